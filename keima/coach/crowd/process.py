"""The Coach's side of the checker's process: it starts the process, and starts another one if it ends."""

import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from keima.base.system.processes import end_program
from keima.coach.crowd.program import LOG
from keima.coach.crowd.verdicts import FOLDER
from keima.paths import program_of, with_code_on_path

MODULE = "keima.coach.crowd.program"
PAUSE_SECONDS = 60.0  # before a process that has ended is replaced
END_SECONDS = 5.0


class CheckerProcess:
    """Keeps a checker running beside a Coach.

    Args:
        run_dir: the run's folder.
        share: of the games that is checked.
        log_event: called with each line for the log.
        clock: seconds that never go back.
    """

    def __init__(
        self,
        run_dir: Path,
        share: float,
        *,
        log_event: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._run_dir, self._share, self._log_event, self._clock = run_dir, share, log_event, clock
        self._process: subprocess.Popen[bytes] | None = None
        self._start_at = -PAUSE_SECONDS

    @property
    def process_id(self) -> int | None:
        """The checker's process; None while there is none."""
        return self._process.pid if self._process else None

    def poll(self) -> None:
        """Start a process if there is none; one that has ended is reported, and replaced after a pause."""
        if self._process and (code := self._process.poll()) is not None:
            where = self._run_dir / FOLDER / LOG
            self._log_event(f"the checks of the crowd's games ended with exit code {code} and begin again; see {where}")
            self._process, self._start_at = None, self._clock() + PAUSE_SECONDS
        if self._process is None and self._clock() >= self._start_at:
            line = [*program_of(MODULE), str(self._run_dir), str(self._share), str(os.getpid())]
            try:
                self._process = subprocess.Popen(
                    line,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    env=with_code_on_path(os.environ),
                )
            except OSError as error:
                self._log_event(f"the checks of the crowd's games cannot begin: {error}")
                self._start_at = self._clock() + PAUSE_SECONDS

    def close(self) -> None:
        """End the process."""
        if self._process is None:
            return
        end_program(self._process, END_SECONDS)
        self._process = None
