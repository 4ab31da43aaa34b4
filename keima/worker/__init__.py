"""The worker: a program that watches its folder, plays with the newest model, and delivers its games.

Subclasses start with ``from keima import Worker``, which imports torch.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from keima.worker.loop import Worker

__all__ = ["WORKER_CLASS", "Worker"]

WORKER_CLASS = "keima.worker.Worker"  # that a config names by default


if not TYPE_CHECKING:  # a type checker would accept any name

    def __getattr__(name: str) -> Any:
        if name != "Worker":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from keima.worker.loop import Worker

        return Worker
