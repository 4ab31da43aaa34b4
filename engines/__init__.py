"""UCI and GTP engines, clients of other engines, and benchmarks against them."""
