"""What plays for people and programs: UCI and GTP engines, clients of other engines, and benchmarks against them."""
