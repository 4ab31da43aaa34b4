"""The worker: a program that watches its folder, plays with the newest model, and hands over its games.

``from training.worker import Worker`` is how classes derived from it begin; torch is imported only with it.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from training.worker.worker import Worker

__all__ = ["Worker"]


if not TYPE_CHECKING:  # a checker would take any name for one of this package's

    def __getattr__(name: str) -> Any:
        if name != "Worker":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from training.worker.worker import Worker

        return Worker
