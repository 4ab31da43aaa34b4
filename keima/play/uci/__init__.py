"""Keima as a chess engine: the Universal Chess Interface."""
