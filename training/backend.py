"""Where games come from: the contract between the Coach and those who play, and its simplest form, one worker in this process.

A backend has named workers. The Coach says how many games each may play in all (``grant``), publishes models, collects the batches
that lie in the outboxes, and releases each once it is safe. ``tests/training/test_backends.py`` holds every backend to this.
"""

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

from configs.schema import Settings
from games import Game
from training.files import read_limited, sha256_hex, write_atomically
from training.worker import Worker
from training.worker_folder import Assignment, BrokenMessage, Heartbeat, WorkerFolder

NewLease = Callable[[], str]


@dataclass(frozen=True, kw_only=True)
class Parcel:
    """A batch in a worker's outbox."""

    worker: str
    batch_id: str
    fetch: Callable[[int], bytes]  # (limit) -> the file; raises FileTooLarge, OSError


class SelfPlayBackend(Protocol):
    """Those who play."""

    @property
    def workers(self) -> Sequence[str]:
        """Their names."""

    def publish(self, version: int, model: bytes) -> None:
        """Give all workers a new model; they change over while they play."""

    def grant(self, worker: str, *, granted: int, delivered: int) -> None:
        """Let ``worker`` play up to ``granted`` games in all, of which ``delivered`` are safe here."""

    def collect(self) -> list[Parcel]:
        """The batches that wait, each worker's oldest first; plays meanwhile, if nobody else does. Renews the leases."""

    def release(self, parcel: Parcel, *, delivered: int) -> None:
        """The batch is safe: raise the worker's account to ``delivered`` games, then delete its copy."""

    def status(self) -> dict[str, Heartbeat | None]:
        """The last heartbeat of each worker."""

    def close(self) -> None:
        """Let the workers hand over what they have finished, and end them."""


class FolderBackend:
    """Workers whose folders lie on this machine; whoever derives from it says who runs them.

    Args:
        root: the folder of the worker folders.
        names: of the workers.
        game: what they play.
        settings: the run's.
        run_id: the run's.
    """

    def __init__(self, root: Path, names: Sequence[str], *, game: Game, settings: Settings, run_id: str) -> None:
        self.workers = tuple(names)
        self.folders = {name: WorkerFolder(root / name).make() for name in names}
        self._game, self._settings, self._run_id = game, settings, run_id
        self._accounts = dict.fromkeys(names, (0, 0))
        self._model = (0, "")
        self._stop = False

    def publish(self, version: int, model: bytes) -> None:
        """See ``SelfPlayBackend``."""
        self._model = (version, sha256_hex(model))
        for name, folder in self.folders.items():
            write_atomically(folder.model_path(version), model)
            self._assign(name)

    def grant(self, worker: str, *, granted: int, delivered: int) -> None:
        """See ``SelfPlayBackend``."""
        if self._accounts[worker] != (granted, delivered):
            self._accounts[worker] = (granted, delivered)
            self._assign(worker)

    def collect(self) -> list[Parcel]:
        """See ``SelfPlayBackend``."""
        for name in self.workers:
            self._assign(name)
        return [
            Parcel(worker=name, batch_id=path.stem, fetch=partial(read_limited, path))
            for name, folder in self.folders.items()
            for path in folder.batches()
        ]

    def release(self, parcel: Parcel, *, delivered: int) -> None:
        """See ``SelfPlayBackend``."""
        granted, _ = self._accounts[parcel.worker]
        self.grant(parcel.worker, granted=granted, delivered=delivered)
        (self.folders[parcel.worker].outbox / f"{parcel.batch_id}.games").unlink(missing_ok=True)

    def status(self) -> dict[str, Heartbeat | None]:
        """See ``SelfPlayBackend``; a heartbeat that cannot be read counts as none."""
        heartbeats: dict[str, Heartbeat | None] = {}
        for name, folder in self.folders.items():
            try:
                heartbeats[name] = folder.read_heartbeat()
            except BrokenMessage:
                heartbeats[name] = None
        return heartbeats

    def _assign(self, name: str) -> None:
        version, digest = self._model
        if version == 0:
            return
        granted, delivered = self._accounts[name]
        self_play, distributed = self._settings.self_play, self._settings.distributed
        assignment = Assignment(
            run_id=self._run_id,
            worker=name,
            lease=secrets.token_hex(8),
            lease_seconds=distributed.lease_seconds,
            stop=self._stop,
            granted=granted,
            delivered=delivered,
            model_version=version,
            model_sha256=digest,
            game=self._game.name,
            options=self._game.options,
            search=self._settings.search,
            seed=self._settings.run.seed,
            parallel_games=0 if self_play.parallel_games == "auto" else self_play.parallel_games,
            cache_positions=self_play.cache_positions,
            batch_games=distributed.batch_size,
            flush_seconds=self_play.flush_seconds if self._settings.training.asynchronous else None,
        )
        self.folders[name].write_assignment(assignment)


class InlineBackend(FolderBackend):
    """One worker, played by whoever calls ``collect``: no processes, nothing to start, every step repeatable.

    Args:
        cycles: how many steps of play a call of ``collect`` makes.
    """

    def __init__(self, root: Path, *, game: Game, settings: Settings, run_id: str, cycles: int = 200) -> None:
        super().__init__(root, ["inline"], game=game, settings=settings, run_id=run_id)
        self._cycles = cycles
        self._worker = Worker(root / "inline")

    def collect(self) -> list[Parcel]:
        """See ``SelfPlayBackend``."""
        parcels = super().collect()
        self._worker.look()
        for _ in range(self._cycles):
            self._worker.cycle()
        return parcels or super().collect()

    def close(self) -> None:
        """See ``SelfPlayBackend``."""
        self._worker.flush()
        self._worker.beat("ended")
