"""The networks and their parts: residual, bottleneck and spiking towers, heads, and their fast forms on a CPU."""
