"""Batches that wait in the outboxes of workers until the Coach has stored them."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from keima.base.files import read_limited
from keima.data.batch_file import SUFFIX


@dataclass(frozen=True, kw_only=True)
class PendingBatch:
    """A batch in a worker's outbox."""

    worker: str
    batch_id: str
    fetch: Callable[[int], bytes]  # (limit) -> the file; raises FileTooLarge, OSError

    @property
    def file_name(self) -> str:
        """Its file in the outbox."""
        return f"{self.batch_id}{SUFFIX}"


def batch_in(root: Path, worker: str, batch_id: str) -> PendingBatch:
    """Return the batch in the outbox of a worker whose folder is in ``root``."""
    path = root / worker / "outbox" / f"{batch_id}{SUFFIX}"
    return PendingBatch(worker=worker, batch_id=batch_id, fetch=partial(read_limited, path))


def pending_batches(root: Path, files: Mapping[str, Collection[str]]) -> list[PendingBatch]:
    """Return the batches of these files, by worker, oldest first for each worker."""
    return [
        batch_in(root, worker, name.removesuffix(SUFFIX)) for worker in sorted(files) for name in sorted(files[worker])
    ]
