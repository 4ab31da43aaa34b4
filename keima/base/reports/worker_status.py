"""A worker's status on the main node: what status.txt, the terminal, the dashboard and a run's files show of it."""

from dataclasses import dataclass
from enum import Enum


class WorkerState(Enum):
    """The state of a worker on another machine, in one word."""

    ACTIVE = "Active"
    SYNCING = "Syncing"
    ERROR = "Error"
    OFFLINE = "Offline"


@dataclass(frozen=True, kw_only=True)
class WorkerStatus:
    """One worker. Times are in seconds, rates per second, shares between 0 and 1."""

    name: str
    # What its process says.
    activity: str = "starting"  # compiling, playing, evaluating (evaluation games), waiting, error, ended
    error: str = ""  # what keeps it from playing
    idle: float = 0.0  # share of its places for games that are empty; 1: it waits for games
    model_version: int = 0  # the version it plays with; 0 before the first
    games_per_second: float = 0.0
    evaluations_per_second: float = 0.0
    core_hours: float = 0.0  # of the processor, by all its processes for the run
    disk_free: int | None = None  # bytes, where its folder is; None: it has not said
    # What the ledger says.
    games: int = 0  # received from it since the run began
    outstanding: int = 0  # games granted to it and not yet received
    waiting: int = 0  # of these, the ones in its outbox
    # Of a worker on another machine alone.
    state: WorkerState | None = None  # None: it is on this machine
    machine: str = ""
    since: float = 0.0  # since the state last changed
    reason: str = ""  # why it is not Active, with the remedy; empty if it is
    note: str = ""  # a warning that does not stop it from playing
    share: float = 0.0  # of the games granted now
    weight: float = 1.0  # from the config
    last_batch: float | None = None  # since its last batch arrived; None before the first
    sent: int = 0  # bytes of files to its machine since the session began
    received: int = 0  # bytes of files from its machine


@dataclass(frozen=True, kw_only=True)
class ClusterNetwork:
    """How files travel between the main node and its workers."""

    model_version: int  # the newest version
    sync_seconds: float | None  # from the last model's publication until all Active workers had it; None before that
    network_mb_per_minute: float  # megabytes (10^6 bytes) in both directions


@dataclass(frozen=True, kw_only=True)
class ClusterStatus:
    """All workers on other machines, and the network between."""

    workers: tuple[WorkerStatus, ...]
    network: ClusterNetwork
    earlier_core_hours: float = 0.0  # of workers that have left

    @property
    def active(self) -> int:
        """The number of Active workers."""
        return sum(worker.state is WorkerState.ACTIVE for worker in self.workers)

    @property
    def total(self) -> int:
        """The number of workers."""
        return len(self.workers)

    @property
    def games_per_second(self) -> float:
        """The total rate of all workers."""
        return sum(worker.games_per_second for worker in self.workers)

    @property
    def core_hours(self) -> float:
        """The core hours of all workers that the run has had."""
        return self.earlier_core_hours + sum(worker.core_hours for worker in self.workers)
