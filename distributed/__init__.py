"""Reaching workers: processes of this machine, and machines behind SSH.

This file is imported on workers' machines too, before anything is installed there: it needs nothing but Python's
standard library.
"""

from typing import Any


def __getattr__(name: str) -> Any:
    """``from distributed import ParallelZeroTrainer``: it is imported, and torch with it, only where it is asked for."""
    if name not in ("ParallelZeroTrainer", "trainer_settings"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from distributed.local import parallel_zero

    return getattr(parallel_zero, name)
