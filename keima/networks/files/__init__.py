"""Models as files: transfer files for workers, deltas, safetensors, and weights of other PyTorch programs."""
