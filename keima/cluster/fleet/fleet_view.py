"""The state of the cluster at one moment, as plain values for display."""

from dataclasses import dataclass

from keima.cluster.fleet.worker_state import Mark


@dataclass(frozen=True, kw_only=True)
class WorkerView:
    """One worker process."""

    name: str
    machine: str
    mark: Mark
    since: float  # seconds since the mark last changed
    reason: str  # why it is not Active; empty if it is
    model_version: int  # the version it plays with; 0 before the first
    games_per_second: float
    evaluations_per_second: float
    outstanding: int  # games granted and not delivered
    share: float  # of the games that are granted now, from 0 to 1
    weight: float  # from the config
    last_batch: float | None  # seconds since the last batch arrived; None before the first
    note: str  # what the user should know although it plays
    sent: int = 0  # bytes of files to its machine so far
    received: int = 0  # bytes of files from its machine
    disk_free: int | None = None  # bytes, where its folder is; None: it has not said
    core_hours: float = 0.0  # of the processor, by all its processes for the run


@dataclass(frozen=True, kw_only=True)
class FleetView:
    """All workers, and their totals."""

    workers: tuple[WorkerView, ...]
    games_per_second: float
    active: int
    total: int
    sync_seconds: float | None  # from the last model's publication until all Active workers had it; None before that
    network_mb_per_minute: float  # megabytes (10^6 bytes) in both directions
    model_version: int  # the newest version

    @property
    def core_hours(self) -> float:
        """The core hours of all workers."""
        return sum(worker.core_hours for worker in self.workers)
