"""Workers as processes of this machine, and on machines that are reached over SSH.

This file is imported on workers' machines too, before anything is installed there: it uses only the standard library.
"""

from typing import Any


def __getattr__(name: str) -> Any:
    """Import ParallelZeroTrainer, and torch with it, only when it is used."""
    if name not in ("ParallelZeroTrainer", "trainer_settings"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from distributed.local import parallel_zero

    return getattr(parallel_zero, name)
