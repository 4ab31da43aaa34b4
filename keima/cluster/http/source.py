"""The machines that join a run from outside, as the fleet sees them: one machine, whose workers are their mailboxes.

The mailboxes are folders of the main node, so one poll reads all of them, and nothing goes over a network by us. Who
has reported lately has a slot; whoever leaves gives it up. Nothing here can start a worker: its user does.
"""

import logging
import os
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

from keima.base.system.processes import end_program
from keima.base.system.threads import SteppingThread
from keima.cluster.agent.packing import install_remote_program
from keima.cluster.http.door import PRESENT_SECONDS, last_report, machine_files
from keima.cluster.machines.machine import WorkerSlot
from keima.cluster.machines.process_manager import STOP_SECONDS, ProcessStatus, Report
from keima.cluster.ssh.transport import LocalTransport, Transport
from keima.coach.crowd.verdicts import FOLDER
from keima.config.sections.crowd import CROWD_NAME, CrowdSettings
from keima.config.sections.workers import WorkerSettings
from keima.paths import program_of, with_code_on_path
from keima.worker.worker_folder import BATCH_NAME

log = logging.getLogger(__name__)

PROGRAM = "keima.web.door"
OUTPUT = "door.log"  # of the door's process, in the crowd's folder
OUTPUT_BYTES = 2**20  # of that file; its lines are in the run's log too
SLOTS_SECONDS = 2.0  # between two looks for machines that have joined or left
CHECK_SECONDS = 1.0  # between two looks at the door's process
RESTART_SECONDS = (1.0, 60.0)  # until it is started again: at first, and at most
STEADY_SECONDS = 600.0  # one that has run for so long is started again as soon as at first
END_SECONDS = 8.0  # for it to end
WAITS = "its machine has not reported for a minute: its user has ended or paused it, or it has no network"


class CrowdMachines:
    """The crowd of a run. It is a ``MachineSource``, and keeps the door open.

    Args:
        settings: of the crowd.
        run_dir: the run's folder.
        log_event: called with each line for the log, in the thread that calls ``machines`` and ``close``.

    Raises:
        OSError: the folder cannot be made.
    """

    title = "distributed.crowd"

    def __init__(
        self, settings: CrowdSettings, *, run_dir: Path, log_event: Callable[[str], None] = log.warning
    ) -> None:
        self.folder = run_dir / FOLDER
        (self.folder / "workers").mkdir(parents=True, exist_ok=True, mode=0o700)
        self._settings, self._log_event = settings, log_event
        self._machine = WorkerSettings.model_validate(
            {
                "name": CROWD_NAME,
                "host": CROWD_NAME,
                "directory": str(self.folder),
                "python": sys.executable,
                "processes": 1,
            }
        )
        self._news: deque[str] = deque()
        self._ended = False
        self._door = _DoorProcess(run_dir, self.folder / OUTPUT, self._news.append)
        self._thread = SteppingThread("door", self._door.step, lambda: self._ended)
        self._thread.start()

    def machines(self) -> tuple[WorkerSettings, ...]:
        """See ``MachineSource``."""
        while self._news:
            self._log_event(self._news.popleft())
        return (self._machine,)

    def connect(self, machine: WorkerSettings) -> Transport:
        """See ``MachineSource``."""
        return LocalTransport(self.folder, worker=machine.name)

    def process_manager(self, machine: WorkerSettings) -> "CrowdProcessManager":
        """See ``MachineSource``."""
        return CrowdProcessManager(self.folder, usual_silence=self._settings.usual_silence)

    def close(self) -> None:
        """See ``MachineSource``; the door closes, and machines learn of the run's end before."""
        self._ended = True
        self._thread.wake()
        self._thread.join(END_SECONDS)
        self._door.end()
        self.machines()


class CrowdProcessManager:
    """The workers of machines that have joined. It is a ``ProcessManager``.

    Args:
        folder: the crowd's.
        usual_silence: seconds without a report that mean nothing.
        wall: seconds since 1970, as files have them.
        clock: a monotonic clock in seconds.
    """

    def __init__(
        self,
        folder: Path,
        *,
        usual_silence: float,
        wall: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.usual_silence = usual_silence
        self._folder, self._wall, self._clock = folder, wall, clock
        self._machines, self._slots = machine_files(folder), frozenset[str]()
        self._reports: dict[str, tuple[float, float]] = {}  # by worker: the stamp of its last one, and when it came
        self._look_at = clock()

    def prepare(
        self, transport: Transport, report: Report, should_continue: Callable[[], bool]
    ) -> tuple[WorkerSlot, ...]:
        """See ``ProcessManager``."""
        install_remote_program(transport)
        return self.find_slots()

    def find_slots(self) -> tuple[WorkerSlot, ...]:
        """Return the workers that have reported lately, or whose games wait in their mailboxes."""
        names = self._find_workers()
        self._slots = frozenset(names)
        return tuple(WorkerSlot(name, alone=True, far=True) for name in names)

    def has_other_slots(self) -> bool:
        """See ``ProcessManager``."""
        if self._clock() < self._look_at:
            return False
        self._look_at = self._clock() + SLOTS_SECONDS
        return frozenset(self._find_workers()) != self._slots

    def _find_workers(self) -> list[str]:
        names = [name for machine in self._machines.read() if machine for name in machine.worker_names]
        for gone in self._reports.keys() - {*names}:
            del self._reports[gone]
        return [name for name in names if self._is_present(name) or self._has_games(name)]

    def _is_present(self, worker: str) -> bool:
        """Return whether a worker's machine has reported on it within the last minute.

        The first look compares its report with the clock of files. After that only this process's clock counts, which
        neither a step of the system's clock nor a suspended main node moves.
        """
        now, stamp = self._clock(), last_report(self._folder, worker)
        known = self._reports.get(worker)
        if known is None:
            known = stamp, now - max(0.0, self._wall() - stamp)
        elif known[0] != stamp:
            known = stamp, now
        self._reports[worker] = known
        return now - known[1] < PRESENT_SECONDS

    def _has_games(self, worker: str) -> bool:
        outbox = self._folder / "workers" / worker / "outbox"
        try:
            return any(BATCH_NAME.fullmatch(path.name) for path in outbox.iterdir())
        except OSError:
            return False

    def start(self, transport: Transport, slot: WorkerSlot) -> None:
        """See ``ProcessManager``: its user starts it."""

    def stop(self, transport: Transport, worker: str, *, seconds: float = STOP_SECONDS) -> None:
        """See ``ProcessManager``: it ends when its assignment says so."""

    def process_status(self, transport: Transport, worker: str) -> ProcessStatus:
        """See ``ProcessManager``."""
        waits = "" if self._is_present(worker) else WAITS
        return ProcessStatus(running=True, waits=waits)

    def read_log_end(self, transport: Transport, worker: str) -> str:
        """See ``ProcessManager``: logs stay with its user."""
        return ""


class _DoorProcess:
    """The door's process, started again when it ends.

    Args:
        run_dir: the run's folder.
        output: the file for what it prints.
        log_event: called with each line for the log.
    """

    def __init__(self, run_dir: Path, output: Path, log_event: Callable[[str], None]) -> None:
        self._run_dir, self._output, self._log_event = run_dir, output, log_event
        output.unlink(missing_ok=True)  # of an earlier process
        self._process: subprocess.Popen[bytes] | None = None
        self._delay, self._start_at, self._printed = RESTART_SECONDS[0], 0.0, 0
        self._started_at = 0.0

    def step(self) -> float:
        """Start the process if none runs, and pass on what it prints; return the seconds until the next step."""
        self._pass_on_output()
        if self._process is not None and self._process.poll() is not None:
            code, self._process = self._process.returncode, None
            if time.monotonic() - self._started_at > STEADY_SECONDS:
                self._delay = RESTART_SECONDS[0]
            self._open_later(f"the door has ended with exit code {code}")
        elif self._process is None and time.monotonic() >= self._start_at:
            try:
                self._start()
            except OSError as error:  # no memory, no disk
                self._open_later(f"the door cannot be opened: {error}")
        return CHECK_SECONDS

    def _open_later(self, why: str) -> None:
        self._log_event(f"{why}; it is opened again in {self._delay:.0f} s")
        self._start_at = time.monotonic() + self._delay
        self._delay = min(2 * self._delay, RESTART_SECONDS[1])

    def _start(self) -> None:
        self._output.unlink(missing_ok=True)
        with self._output.open("ab") as output:  # so that the process writes to its end, also when it is emptied
            self._printed = 0
            self._process = subprocess.Popen(
                [*program_of(PROGRAM), str(self._run_dir)],
                stdin=subprocess.PIPE,  # it ends with this process: its input does
                stdout=output,
                stderr=output,
                env=with_code_on_path(os.environ),
                start_new_session=True,
            )
            self._started_at = time.monotonic()

    def _pass_on_output(self) -> None:
        try:
            with self._output.open("rb") as file:
                file.seek(self._printed)
                text = file.read()
        except OSError:
            return
        whole = text[: text.rfind(b"\n") + 1]
        self._printed += len(whole)
        if self._printed > OUTPUT_BYTES and not text:  # all is passed on
            os.truncate(self._output, 0)
            self._printed = 0
        for line in whole.decode("utf-8", "replace").splitlines():
            self._log_event(line)

    def end(self) -> None:
        """End the process."""
        if self._process is None:
            return
        end_program(self._process, END_SECONDS)
        self._pass_on_output()
        self._process = None
