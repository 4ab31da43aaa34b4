"""The process that tells a tracker of a run: it sends the iterations in metrics.jsonl until its standard input ends.

    python -m keima.report.files.tracker_process wandb RUN

It remembers what it has sent. A resumed run continues in the same record of the tracker; iterations that
it repeats are not sent again. Addresses, projects and keys are read from the variables of the trackers' own clients
(``WANDB_*``, ``MLFLOW_*``).
"""

import json
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from keima.base.file_stamp import stamp_of
from keima.base.files import write_atomically
from keima.base.system.priority import begin_session
from keima.config.load import load_settings
from keima.config.public import public_settings
from keima.report.files.run_files import METRICS_NAME, read_new_metrics
from keima.report.files.trackers import FOLDER

PROJECT = "keima"  # unless the client's variables name another
POLL_SECONDS = 1.0
PRIORITY = 10  # against a process that wants the same core: a tenth of it
LAST_SECONDS = 600  # in which the client may end after the run has
PARAMETERS_AT_ONCE = 100  # MLflow takes no more
PARAMETER_LENGTH = 6000  # characters, likewise


@dataclass(frozen=True, kw_only=True)
class SentState:
    """What the tracker has been told."""

    record: str = ""  # the client's name for the run
    iteration: int = 0  # the last one


class TrackerClient(Protocol):
    """A tracker's client, with one run open."""

    record: str

    def send(self, iteration: int, values: Mapping[str, float]) -> None:
        """Send the metrics of an iteration."""

    def end(self) -> None:
        """Send what waits, and end."""


class Wandb:
    """Weights & Biases, by its client."""

    def __init__(self, run_dir: Path, settings: Mapping[str, Any], record: str) -> None:
        import wandb

        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            name=run_dir.name,
            id=record or None,
            resume="allow",
            config=dict(settings),
            dir=run_dir / FOLDER,
            # The run's metrics and settings alone: nothing of the machine and its output.
            settings=wandb.Settings(
                console="off",
                disable_git=True,
                disable_code=True,
                host=os.environ.get("WANDB_HOST", PROJECT),
                x_disable_meta=True,
                x_disable_stats=True,
            ),
        )
        self.record = self._run.id

    def send(self, iteration: int, values: Mapping[str, float]) -> None:
        """Send the metrics of an iteration."""
        self._run.log(dict(values), step=iteration, commit=True)

    def end(self) -> None:
        """Send what waits, and end."""
        self._run.finish()


class MLflow:
    """MLflow, by its client."""

    def __init__(self, run_dir: Path, settings: Mapping[str, Any], record: str) -> None:
        from mlflow.tracking import MlflowClient

        self._client = MlflowClient()
        if record:
            self.record = record
            self._client.update_run(record, status="RUNNING")
            return
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
        found = self._client.get_experiment_by_name(name)
        experiment = found.experiment_id if found else self._client.create_experiment(name)
        self.record = self._client.create_run(experiment, run_name=run_dir.name).info.run_id
        self._log_settings(settings)

    def _log_settings(self, settings: Mapping[str, Any]) -> None:
        from mlflow.entities import Param

        parameters = [Param(key, str(value)[:PARAMETER_LENGTH]) for key, value in flatten_settings(settings)]
        for start in range(0, len(parameters), PARAMETERS_AT_ONCE):
            self._client.log_batch(self.record, params=parameters[start : start + PARAMETERS_AT_ONCE])

    def send(self, iteration: int, values: Mapping[str, float]) -> None:
        """Send the metrics of an iteration."""
        from mlflow.entities import Metric

        now = round(1000 * time.time())
        metrics = [Metric(name, value, now, iteration) for name, value in values.items()]
        self._client.log_batch(self.record, metrics=metrics)

    def end(self) -> None:
        """End the run."""
        self._client.set_terminated(self.record)


CLIENTS: dict[str, Callable[[Path, Mapping[str, Any], str], TrackerClient]] = {"wandb": Wandb, "mlflow": MLflow}


def flatten_settings(settings: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    """Return nested settings as pairs of a dotted key and a value."""
    pairs: list[tuple[str, Any]] = []
    for key, value in settings.items():
        pairs += flatten_settings(value, f"{prefix}{key}.") if isinstance(value, dict) else [(f"{prefix}{key}", value)]
    return pairs


def follow_run(name: str, run_dir: Path, wait: Callable[[], bool]) -> None:
    """Send every iteration of the run, from those that were not sent before.

    Args:
        wait: waits until there may be more; returns whether there will be none.
    """
    memory, metrics = run_dir / FOLDER / f"{name}.json", run_dir / METRICS_NAME
    sent = read_sent_state(memory)
    client = CLIENTS[name](run_dir, public_settings(load_settings(run_dir / "config.yaml")), sent.record)
    save_sent_state(memory, sent := replace(sent, record=client.record))
    seen, last, offset = None, False, 0
    while True:
        now = stamp_of(metrics)
        if now != seen:
            rows, offset = read_new_metrics(metrics, offset)
            for row in rows:
                if row["iteration"] > sent.iteration:
                    values = {name: value for name, value in row.items() if "/" in name}
                    client.send(int(row["iteration"]), values)
                    sent = replace(sent, iteration=int(row["iteration"]))
            save_sent_state(memory, sent)
            seen = now
        if last:
            client.end()
            return
        last = wait()


def read_sent_state(path: Path) -> SentState:
    """Read what an earlier process has sent; nothing if it has left no such file."""
    try:
        return SentState(**json.loads(path.read_bytes()))
    except (OSError, ValueError, TypeError):
        return SentState()


def save_sent_state(path: Path, sent: SentState) -> None:
    """Keep what was sent."""
    write_atomically(path, json.dumps(asdict(sent)).encode(), mode=0o644, durable=False)


def wait_for_input_end() -> bool:
    """Wait a moment for standard input to end; when it has, this process may live on only for a while."""
    ended = bool(select.select([sys.stdin], [], [], POLL_SECONDS)[0])
    if ended:
        signal.alarm(LAST_SECONDS)
    return ended


def main(argv: Sequence[str]) -> None:
    """Follow a run: the tracker's name and the run's folder."""
    begin_session(PRIORITY)
    name, folder = argv
    follow_run(name, Path(folder), wait_for_input_end)


if __name__ == "__main__":
    main(sys.argv[1:])
