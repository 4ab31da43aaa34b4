"""The tables of the ledger (``keima/data/ledger.py``) and the classes of their rows."""

from dataclasses import dataclass, fields
from pathlib import Path

from keima.base.files import sha256_hex

FORMAT = 1  # raised when the tables change
RECEIVED, QUARANTINED = "received", "quarantined"  # states of a batch

DISTRUSTED = """CREATE TABLE IF NOT EXISTS distrusted ( -- ledgers of earlier versions get it when they are written to
    worker TEXT PRIMARY KEY REFERENCES workers (name),
    reason TEXT NOT NULL,
    time REAL NOT NULL
)"""
TABLES = (
    "CREATE TABLE run (key TEXT PRIMARY KEY, value TEXT NOT NULL)",
    """CREATE TABLE workers (
    name TEXT PRIMARY KEY,
    granted INTEGER NOT NULL DEFAULT 0 CHECK (granted >= 0),
    received INTEGER NOT NULL DEFAULT 0, -- this and the next two are sums over the worker's batches
    quarantined INTEGER NOT NULL DEFAULT 0,
    next_game INTEGER NOT NULL DEFAULT 0,
    discarded INTEGER NOT NULL DEFAULT 0 CHECK (discarded >= 0)
)""",
    """CREATE TABLE batches (
    sequence INTEGER PRIMARY KEY AUTOINCREMENT, -- the order of receipt
    id TEXT NOT NULL UNIQUE,
    worker TEXT NOT NULL REFERENCES workers (name),
    state TEXT NOT NULL CHECK (state IN ('received', 'quarantined')),
    reason TEXT NOT NULL, -- of the quarantine
    first_game INTEGER CHECK (first_game >= 0), -- NULL: the batch has no place in its worker's sequence
    games INTEGER NOT NULL CHECK (games >= 0),
    positions INTEGER NOT NULL CHECK (positions >= 0),
    bytes INTEGER NOT NULL CHECK (bytes >= 0),
    sha256 TEXT NOT NULL,
    first_model INTEGER NOT NULL,
    last_model INTEGER NOT NULL,
    time REAL NOT NULL,
    CHECK (state = 'quarantined' OR (first_game IS NOT NULL AND games > 0))
)""",
    "CREATE INDEX batches_of_worker ON batches (worker, first_game)",
    """CREATE TABLE models (
    version INTEGER PRIMARY KEY,
    iteration INTEGER NOT NULL,
    path TEXT NOT NULL, -- in the run's folder; empty: its file was removed, as run.keep_models says
    bytes INTEGER NOT NULL,
    sha256 TEXT NOT NULL,
    accepted INTEGER, -- by gating; NULL: not decided
    time REAL NOT NULL
)""",
    "CREATE TABLE iterations (number INTEGER PRIMARY KEY, report TEXT NOT NULL, time REAL NOT NULL)",
    "CREATE TABLE events (number INTEGER PRIMARY KEY, kind TEXT NOT NULL, worker TEXT NOT NULL, "
    "text TEXT NOT NULL, time REAL NOT NULL)",
    """CREATE TABLE matches (
    number INTEGER PRIMARY KEY,
    first TEXT NOT NULL, -- a model's version, or the name of an anchor
    second TEXT NOT NULL,
    wins INTEGER NOT NULL, -- of the first
    draws INTEGER NOT NULL,
    losses INTEGER NOT NULL,
    num_simulations INTEGER NOT NULL,
    time REAL NOT NULL
)""",
    "CREATE TABLE ratings (player TEXT PRIMARY KEY, elo REAL NOT NULL, margin REAL NOT NULL, time REAL NOT NULL)",
    DISTRUSTED,
)


@dataclass(frozen=True, kw_only=True)
class BatchRow:
    """A batch in the ledger."""

    sequence: int = 0  # 1, 2, ... in order of receipt; 0: not entered yet
    id: str
    worker: str
    state: str
    reason: str
    first_game: int | None
    games: int
    positions: int
    bytes: int
    sha256: str
    first_model: int
    last_model: int


BATCH_COLUMNS = tuple(field.name for field in fields(BatchRow))


@dataclass(frozen=True, kw_only=True)
class ModelRow:
    """A published model in the ledger."""

    version: int
    iteration: int
    path: str  # empty: its file was removed, as run.keep_models says
    bytes: int
    sha256: str
    accepted: bool | None


def make_model_row(run_dir: Path, version: int, *, iteration: int, data: bytes, accepted: bool) -> ModelRow:
    """Return the row of a model whose file holds ``data``."""
    path = model_path(run_dir, version).relative_to(run_dir)
    return ModelRow(
        version=version,
        iteration=iteration,
        path=str(path),
        bytes=len(data),
        sha256=sha256_hex(data),
        accepted=accepted,
    )


@dataclass(frozen=True, kw_only=True)
class WorkerAccount:
    """One worker's account, in games."""

    name: str
    granted: int = 0  # in all
    received: int = 0
    quarantined: int = 0
    next_game: int = 0  # after the last delivered game; a worker that lost its folder counts on from here
    discarded: int = 0  # given up

    @property
    def missing(self) -> int:
        """The number of games in no batch, although later games are in one."""
        return self.next_game - self.received - self.quarantined

    @property
    def undelivered(self) -> int:
        """The number of games that the worker may still deliver, with those that were given up."""
        return self.granted - self.next_game

    @property
    def outstanding(self) -> int:
        """The number of games that are still to come."""
        return self.undelivered - self.discarded


ACCOUNT_COLUMNS = tuple(field.name for field in fields(WorkerAccount))


def model_path(run_dir: Path, version: int) -> Path:
    """Return the file of a published model."""
    return run_dir / "models" / f"model-{version:06d}.model"
