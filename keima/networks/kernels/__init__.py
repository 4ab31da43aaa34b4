"""Compiled kernels of networks: Winograd convolutions, bfloat16 arithmetic, spiking neurons."""
