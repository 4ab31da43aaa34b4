"""Where a cluster is operated: ``ssh_connector.py``, ``status.txt`` and ``control/``; and the door to
``keima.cluster``.
"""

from typing import Any


def __getattr__(name: str) -> Any:
    """Import the guide's trainer, and torch with it, only when it is used."""
    if name not in ("ParallelZeroTrainer", "trainer_settings"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from keima.trainers import parallel_zero

    return getattr(parallel_zero, name)
