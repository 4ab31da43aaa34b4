"""From batches to better weights: the learner, its update step, optimizers, and checkpoints."""
