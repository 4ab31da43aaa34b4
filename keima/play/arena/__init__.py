"""Benchmarks: matches against a ladder of opponents, and scores of one-player games, on all cores."""
