"""The files of a run for other programs: training_stats.json, metrics.jsonl and TensorBoard's event files.

A run that is taken up again repeats the iterations after its last checkpoint. What a file says of an iteration and of
later ones is dropped when that iteration is reported again.
"""

import json
import math
import os
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ConfigDict, TypeAdapter, ValidationError

from keima.base.reports.run_reports import IterationReport, ProgressReport
from keima.report.files.appended_file import AppendedFile
from keima.report.files.row_file import RowFile, read_rows
from keima.report.files.tensorboard import EventsWriter
from keima.report.metrics import METRICS

METRICS_NAME = "metrics.jsonl"
EVENTS_FOLDER = "tensorboard"


class UnreadableStats(ValueError):
    """A file is not a statistics file."""


@dataclass(frozen=True, kw_only=True)
class StatsRow(IterationReport):
    """A row of training_stats.json: the report, and the run's plan at that time."""

    iterations: int | None = None
    seconds_left: float | None = None


# A number that is not finite is a string in the file ("NaN"), because JSON has none.
_ROWS = TypeAdapter(list[StatsRow], config=ConfigDict(ser_json_inf_nan="strings"))


def read_stats(path: Path, *, last: int | None = None) -> list[StatsRow]:
    """Read the iterations from a statistics file, or only the last ones.

    Raises:
        UnreadableStats: it is not such a file, or only part of one.
        OSError: it is missing or may not be read.
    """
    found: list[StatsRow] = []
    try:
        for row in read_rows(path) if last is None else deque(read_rows(path), maxlen=last):
            found += _ROWS.validate_json(b"[" + row + b"]")
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, (len(found), *first["loc"][1:])))
        raise UnreadableStats(f"{path} is not a list of iterations: {place}: {first['msg']}") from error
    except ValueError as error:
        raise UnreadableStats(f"{path} is not a list of iterations: {error}") from error
    return found


def report_scalars(report: IterationReport) -> dict[str, float]:
    """Return every finite number of a report under the name ``section/name``; unmeasured metrics are left out."""
    content = report.as_dict()
    workers, _ = content.pop("workers"), content.pop("iteration")
    sections: dict[str, dict[str, Any]] = {"run": {}}
    for key, value in content.items():
        if isinstance(value, dict):
            parts = _score_metrics(value.pop("score", None)) | _spike_metrics(value.pop("spikes", None))
            sections[key] = value | parts | _generalization_metrics(value.pop("generalization", None))
        else:
            sections["run"][key] = value
    sections["workers"] = {
        "playing": sum(worker["state"] in ("playing", "evaluating") for worker in workers),
        "processes": sum(worker["state"] not in ("error", "ended") for worker in workers),
        "evaluations_per_second": sum(worker["evaluations_per_second"] for worker in workers),
        "core_hours": sum(worker.get("core_hours", 0.0) for worker in workers),
    }
    metrics = {f"{section}/{name}": value for section, values in sections.items() for name, value in values.items()}
    return {
        name: float(value) for name, value in metrics.items() if isinstance(value, int | float) and math.isfinite(value)
    }


def _score_metrics(score: dict[str, Any] | None) -> dict[str, float]:
    """Return a score's metrics by name; a milestone's is the share of games that have reached it."""
    if score is None:
        return {}
    shares = {f"reached_{part['milestone']}": part["share"] for part in score["milestones"]}
    return {f"score_{name}": score[name] for name in ("mean", "margin", "median", "best")} | shares


def _spike_metrics(spikes: dict[str, Any] | None) -> dict[str, float]:
    """Return a spiking network's metrics by name; each layer has its firing rate."""
    if spikes is None:
        return {}
    layers = {f"firing_rate/{name}": rate for name, rate in spikes.pop("layers").items()}
    return spikes | layers


def _generalization_metrics(found: dict[str, Any] | None) -> dict[str, float]:
    """Return how well a network does on new positions, by name."""
    return {f"generalization_{name}": metric for name, metric in (found or {}).items()}


class _IterationObserver:
    """An observer of iterations alone."""

    def progress(self, report: ProgressReport) -> None:
        """Do nothing: nothing is recorded between iterations."""

    def event(self, text: str) -> None:
        """Do nothing: events are kept elsewhere."""

    def close(self) -> None:
        """Do nothing: no file is left open."""


class StatsFile(_IterationObserver):
    """Writes training_stats.json: a list of iterations, one per line."""

    def __init__(self, path: Path) -> None:
        self._rows = RowFile(path, key="iteration")
        self._plan: dict[str, Any] = {}

    def progress(self, report: ProgressReport) -> None:
        """Remember the run's plan for the next row."""
        self._plan = {"iterations": report.iterations, "seconds_left": report.seconds_left}

    def iteration(self, report: IterationReport) -> None:
        """Add the iteration; rows that could not be written before are written now."""
        self._rows.write_row(report.iteration, _encode_row(StatsRow(**vars(report), **self._plan)))


def read_earlier_rows(path: Path, *, last: int) -> list[StatsRow]:
    """Read the last iterations of earlier sessions; none if the file cannot be read (``StatsFile`` then renames it)."""
    try:
        return read_stats(path, last=last)
    except (OSError, UnreadableStats):
        return []


def _encode_row(row: StatsRow) -> bytes:
    return _ROWS.dump_json([row])[1:-1]


class MetricsFile(_IterationObserver):
    """Appends one flat JSON object per iteration to metrics.jsonl."""

    def __init__(self, path: Path) -> None:
        self._file = AppendedFile(path)
        self._begun = False

    def iteration(self, report: IterationReport) -> None:
        """Append the iteration."""
        if not self._begun:
            _drop_lines_from(self._file.path, report.iteration)
            self._begun = True
        line = {"iteration": report.iteration, "time": time.time(), **report_scalars(report)}
        self._file.append(json.dumps(line).encode() + b"\n")


def _drop_lines_from(path: Path, iteration: int) -> None:
    """Remove the lines from ``iteration`` on, and an incomplete last line."""
    if not path.exists():
        return
    end = 0
    with path.open("r+b") as file:
        for line in file:
            if _iteration_of_line(line) >= iteration:
                file.truncate(end)
                return
            end += len(line)


def _iteration_of_line(line: bytes) -> float:
    """Return the iteration of a line; infinity if the line is incomplete."""
    try:
        return int(json.loads(line)["iteration"]) if line.endswith(b"\n") else math.inf
    except (ValueError, KeyError, TypeError):
        return math.inf


def read_metrics(path: Path) -> list[Mapping[str, float]]:
    """Read the iterations from metrics.jsonl; lines that are not objects of numbers, such as an incomplete last one,
    are left out.
    """
    return read_new_metrics(path, 0)[0]


def read_new_metrics(path: Path, offset: int) -> tuple[list[Mapping[str, float]], int]:
    """Read the iterations from a byte of metrics.jsonl on, as ``read_metrics`` does; return them and the byte at which
    the next reading begins. A file that has become shorter is read from its beginning.
    """
    rows: list[Mapping[str, float]] = []
    try:
        with path.open("rb") as file:
            file.seek(offset if offset <= file.seek(0, os.SEEK_END) else 0)
            lines = file.read().splitlines(keepends=True)
            end = file.tell()
    except OSError:
        return [], offset
    if lines and not lines[-1].endswith(b"\n"):
        end -= len(lines[-1])  # it is read again, once it is complete
    for line in lines:
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(row, dict) and "iteration" in row:
            row["run/iteration"] = row["iteration"]
            rows.append({name: value for name, value in row.items() if type(value) in (int, float)})
    return rows, end


class EventFile(_IterationObserver):
    """Writes the iterations' numbers for TensorBoard."""

    def __init__(self, folder: Path) -> None:
        self._events = EventsWriter(folder, METRICS)

    def iteration(self, report: IterationReport) -> None:
        """Append the iteration."""
        self._events.write(report.iteration, report_scalars(report))
