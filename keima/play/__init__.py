"""Playing with a network: engines for other programs, other engines as opponents, and benchmarks."""
