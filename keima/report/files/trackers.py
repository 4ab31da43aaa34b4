"""Trackers of runs, such as Weights & Biases and MLflow, as an observer.

Each is told by a process of its own (``tracker_process.py``), which reads metrics.jsonl and has a low priority. So
what its client imports, waits for, and breaks does not concern the run.
"""

import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path

from keima.base.reports.run_reports import IterationReport, ProgressReport
from keima.base.reports.text import printable_line
from keima.paths import program_of, with_code_on_path

FOLDER = "trackers"  # in the run's folder: logs, what was sent, and files of clients
FIRST_RETRY, MOST_RETRY = 60.0, 3600.0  # seconds after a failure
END_SECONDS = 10.0  # that the end of a session waits for what is still to be sent; it is sent afterwards, too
REASON_LENGTH = 200

log = logging.getLogger(__name__)


def require_trackers(names: Sequence[str]) -> None:
    """Check that the clients of these trackers are installed.

    Raises:
        ValueError: some are not.
    """
    missing = [name for name in names if find_spec(name) is None]
    if missing:
        remedy = f"{sys.executable} -m pip install {' '.join(missing)}"
        raise ValueError(f"run.trackers: {' and '.join(missing)} not installed here: run `{remedy}`")


class Tracker:
    """Keeps the process of a tracker running, from the first iteration to the end of the session.

    A process that fails is started again later, and then gets what it has missed.

    Args:
        name: the tracker's, which is that of its package.
        run_dir: the run's folder.
        log_event: called once, at the first failure.
        clock: seconds.
    """

    def __init__(
        self,
        name: str,
        run_dir: Path,
        *,
        log_event: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._name, self._run_dir, self._log_event, self._clock = name, run_dir, log_event, clock
        self._process: subprocess.Popen[bytes] | None = None
        self._begun, self._told = False, False
        self._delay, self._next_try = FIRST_RETRY, 0.0

    def progress(self, report: ProgressReport) -> None:
        """Check the process, and restart it when it is due."""
        if self._begun:
            self._check_process()

    def iteration(self, report: IterationReport) -> None:
        """Start the process at the first iteration; it finds all of them in metrics.jsonl."""
        self._begun = True
        self._check_process()

    def event(self, text: str) -> None:
        """Do nothing: events are kept elsewhere."""

    def close(self) -> None:
        """Let the process send the rest and exit; what takes long continues without this one."""
        if self._process and self._process.stdin:
            self._process.stdin.close()
            try:
                self._process.wait(END_SECONDS)
            except subprocess.TimeoutExpired:
                log.warning("%s still sends metrics; it exits by itself", self._name)

    def _check_process(self) -> None:
        if self._process is not None and self._process.poll() is not None:
            if self._process.stdin:
                self._process.stdin.close()
            self._process = None
            self._log_failure(self._last_log_line())
        if self._process is None and self._clock() >= self._next_try:
            try:
                self._process = self._start_process()
            except OSError as error:
                self._log_failure(str(error))

    def _start_process(self) -> subprocess.Popen[bytes]:
        folder = self._run_dir / FOLDER
        folder.mkdir(exist_ok=True)
        command = [*program_of("keima.report.files.tracker_process"), self._name, str(self._run_dir.resolve())]
        with self._log_path().open("wb") as output:
            return subprocess.Popen(
                command,
                env=with_code_on_path(os.environ),
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def _log_failure(self, reason: str) -> None:
        self._next_try = self._clock() + self._delay
        self._delay = min(2 * self._delay, MOST_RETRY)
        if not self._told:
            self._told = True
            retried = "it is retried now and then, with the metrics that it has missed"
            self._log_event(f"{self._name} failed, training continues: {reason}; {retried}")

    def _log_path(self) -> Path:
        return self._run_dir / FOLDER / f"{self._name}.log"

    def _last_log_line(self) -> str:
        try:
            lines = self._log_path().read_text(encoding="utf-8", errors="replace").split("\n")
        except OSError:
            lines = []
        said = [line.strip() for line in lines if line.strip()]
        return printable_line(said[-1])[:REASON_LENGTH] if said else "it exited without a message"
