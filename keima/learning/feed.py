"""A learner's source of batches for one pass through a data set; other processes may make them in advance."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from keima.base.system.processes import hide_main_program
from keima.base.system.signals import ignore_terminal_signals
from keima.replay.epochs import Epochs
from keima.replay.window import ALL_ROWS, Batch


@dataclass(frozen=True, eq=False)
class LoadedBatch:
    """The next batch."""

    total: int  # positions of all ranks
    share_done: float  # completed share of the epoch after it
    left_out: tuple[str, ...]  # games and files left out while it was made
    tensors: dict[str, Tensor]  # this rank's positions: the fields of ``Batch``

    def batch(self) -> Batch:
        """Return this rank's positions."""
        return Batch(**{name: tensor.numpy() for name, tensor in self.tensors.items()})


class EpochFeed:
    """A ``Window`` for the learner that returns an epoch's batches one after another.

    Args:
        epochs: the data set.
        rows: the rank's share of each batch.
        num_workers: processes that make batches; 0: this process makes each when it is needed.
    """

    def __init__(self, epochs: Epochs, *, rows: slice = ALL_ROWS, num_workers: int = 0) -> None:
        self.epochs, self.rows, self.num_workers = epochs, rows, num_workers
        self._ready: LoadedBatch | None = None

    def batches(self, epoch: int, *, done: int = 0) -> Iterator[LoadedBatch]:
        """Yield the batches of an epoch after its first ``done`` positions; call ``sample`` before the next one."""
        source = _BatchDataset(self.epochs, self.rows, epoch, done)
        loader = DataLoader(
            source,
            batch_size=None,
            num_workers=self.num_workers,
            collate_fn=_return_unchanged,
            worker_init_fn=_tie_loader_to_parent,
        )
        with hide_main_program():
            made = iter(loader)
        for ready in made:
            self._ready = ready
            yield ready

    def sample(self, count: int, rng_seed: int, *, rows: slice = ALL_ROWS) -> Batch:
        """Return the next batch, of ``count`` positions over all ranks."""
        ready, self._ready = self._ready, None
        assert ready is not None and count == ready.total and rows == self.rows
        return ready.batch()


class _BatchDataset(IterableDataset[LoadedBatch]):
    """The batches of one loader process: every K-th of them with K processes; the loader restores the order."""

    def __init__(self, epochs: Epochs, rows: slice, epoch: int, done: int) -> None:
        self._epochs, self._rows, self._epoch, self._done = epochs, rows, epoch, done

    def __iter__(self) -> Iterator[LoadedBatch]:
        worker = get_worker_info()
        number, workers = (worker.id, worker.num_workers) if worker else (0, 1)
        for index, planned in enumerate(self._epochs.batches(self._epoch, done=self._done)):
            if index % workers == number:
                batch = planned.make_batch(self._rows)
                share = {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in vars(batch).items()}
                yield LoadedBatch(planned.num_positions, planned.completed_share, planned.bad, share)


def _return_unchanged(ready: Any) -> Any:
    return ready


def _tie_loader_to_parent(number: int) -> None:
    ignore_terminal_signals()
