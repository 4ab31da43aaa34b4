"""Records of races: what was reached, after how long, and what the run's books must then hold."""

import hashlib
import json
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from keima.base.files import read_limited, sha256_hex, write_atomically
from keima.base.run_folder import RECORD_NAME
from keima.data.ledger import Ledger
from keima.play.network_loader import SETTINGS
from keima.play.speedrun.judge import Judgement
from keima.play.speedrun.target import Target

MAX_BYTES = 1_000_000


class RecordedJudgement(BaseModel):
    """How strong the network was; see ``Judgement``."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    value: float
    low: float
    high: float
    count: int
    seed: int


class Record(BaseModel):
    """A race that met its target."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Literal[1] = 1
    name: str
    """Of the target."""
    target: Target
    seconds: float = Field(gt=0, allow_inf_nan=False)
    """The clock: since the run began, until the model was published. Measuring it is not in it."""
    model_version: int
    model_sha256: str
    judgement: RecordedJudgement
    games: int
    """That the run had received by then, and their positions."""
    positions: int
    core_hours: float = Field(gt=0, allow_inf_nan=False)
    """Of the workers, by then."""
    run_id: str
    ledger_sha256: str
    config_sha256: str
    versions: dict[str, str]
    """The commit, and the packages."""
    machine: dict[str, str]
    """The main node."""
    workers: int
    made: str
    """The day, in UTC."""


def hash_ledger(ledger: Ledger) -> str:
    """Return the SHA-256 of what a ledger holds, whatever its file looks like."""
    digest = hashlib.sha256()
    with ledger.read_snapshot():
        for row in ledger.dump():
            digest.update(json.dumps(row).encode() + b"\n")
    return digest.hexdigest()


def hash_config(run: Path) -> str:
    """Return the SHA-256 of a run's settings."""
    return sha256_hex((run / SETTINGS).read_bytes())


def write_record(run: Path, record: Record) -> Path:
    """Write a record into the folder of its run, and return its path."""
    path = run / RECORD_NAME
    write_atomically(path, (record.model_dump_json(indent=1) + "\n").encode())
    return path


def read_record(run: Path) -> Record:
    """Read the record in the folder of a run.

    Raises:
        ValueError: there is none, or it is damaged.
        OSError: it cannot be read.
    """
    path = run / RECORD_NAME
    if not path.is_file():
        raise ValueError(f"{run} has no {RECORD_NAME}: keima speedrun writes one when a run meets its target")
    try:
        return Record.model_validate_json(read_limited(path, MAX_BYTES))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise ValueError(f"{path}: {where}: {first['msg']}") from None


def recorded(found: Judgement, seed: int) -> RecordedJudgement:
    """Return a judgement in the form of a record."""
    return RecordedJudgement(value=found.value, low=found.low, high=found.high, count=found.count, seed=seed)


def find_clock(rows: list[dict[str, Any]], version: int) -> dict[str, Any]:
    """Return the report of the iteration that published a model.

    Raises:
        ValueError: none did.
    """
    row = next((row for row in rows if row["model_version"] >= version), None)
    if row is None:
        raise ValueError(f"no iteration has published model {version}")
    return row
