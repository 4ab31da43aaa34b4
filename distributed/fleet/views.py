"""How the cluster stands, as whoever shows it needs it: plain values, taken at one moment."""

from dataclasses import dataclass

from distributed.fleet.worker_state import Mark


@dataclass(frozen=True, kw_only=True)
class WorkerView:
    """One worker process."""

    name: str
    machine: str
    mark: Mark
    since: float  # seconds since the mark became what it is
    reason: str  # why it is not Active; empty when it is
    model_version: int  # with which it plays; 0 before the first
    games_per_second: float
    evaluations_per_second: float
    outstanding: int  # games that it has been granted and has not handed over
    share: float  # of the games that are granted now, from 0 to 1
    weight: float  # as the config has it
    last_batch: float | None  # seconds since the last batch came; None before the first
    note: str  # what is worth knowing although it plays


@dataclass(frozen=True, kw_only=True)
class FleetView:
    """All workers, and what they do together."""

    workers: tuple[WorkerView, ...]
    games_per_second: float
    active: int
    total: int
    sync_seconds: float | None  # that the last model took until all who are Active had it; None before that
    network_mb_per_minute: float  # megabytes (10^6 bytes) in both directions
    model_version: int  # the newest
