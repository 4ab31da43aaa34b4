"""Compilation with numba: decorators, the cache on disk, random streams for compiled code, and progress."""
