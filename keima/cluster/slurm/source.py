"""The jobs of a Slurm cluster as the fleet sees them: one machine, whose workers are the jobs of an array.

The machine is a folder that the nodes share, so nothing is copied over a network by us, one poll reads all workers, and
they share the files of models. The folder belongs to one run. It holds the code under the name of its hash, the two
scripts of the jobs, the workers' folders and their logs.
"""

import logging
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from keima.base.system.threads import SteppingThread
from keima.cluster.agent.commands import Probe
from keima.cluster.agent.packing import install_remote_program
from keima.cluster.machines import machine as remote
from keima.cluster.machines.bootstrap import send_code
from keima.cluster.machines.check import Finding, refuse_unfit, run_checks
from keima.cluster.machines.machine import release_folder
from keima.cluster.machines.release import WorkerRequirements
from keima.cluster.slurm.commands import Slurm
from keima.cluster.slurm.file_system import CACHED, SHARED, can_lock_files, file_system_of
from keima.cluster.slurm.process_manager import SlurmProcessManager
from keima.cluster.slurm.queue import Commands, JobQueue, Submission
from keima.cluster.slurm.script import JOB_SCRIPT, WORKER_SCRIPT, job_script, sbatch_options, worker_script
from keima.cluster.ssh.errors import ClusterError, Refused
from keima.cluster.ssh.transport import LocalTransport, Transport
from keima.config.sections.slurm import SLURM_NAME, SlurmSettings
from keima.config.sections.workers import WorkerSettings
from keima.paths import SOURCE
from keima.worker.worker_folder import run_tag

log = logging.getLogger(__name__)

FOLDER = "slurm"  # in the run's folder
END_SECONDS = 5.0  # for a command of Slurm that is under way at the end
CHECKED = ("folder", "disk", "python", "packages")  # of this machine, on behalf of the nodes
SLOW_VIEW_SECONDS = 60.0  # until a change on a file system with a cache is seen everywhere


class SlurmMachines:
    """The jobs of a run. It is a ``MachineSource``.

    Args:
        settings: of the jobs.
        run_dir: the run's folder.
        run_id: the run's id.
        required: the code and packages that workers must have.
        offline_seconds: of silence, after which a worker is Offline.
        log_event: called with each line for the log, in the thread that calls ``machines`` and ``close``.
        slurm: Slurm's commands.
        root: the checkout whose code is played.
        clock: a monotonic clock in seconds.

    Attributes:
        title: the source's name in messages.
        folder: the folder of the run's workers, which the nodes share.

    Raises:
        ValueError: the folder cannot be used.
    """

    title = "distributed.slurm"

    def __init__(
        self,
        settings: SlurmSettings,
        *,
        run_dir: Path,
        run_id: str,
        required: WorkerRequirements,
        offline_seconds: float,
        log_event: Callable[[str], None] = log.warning,
        slurm: Commands | None = None,
        root: Path = SOURCE,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.folder = shared_folder(settings, run_dir, run_id)
        self._settings, self._required, self._root = settings, required, root
        self._offline_seconds, self._log_event = offline_seconds, log_event
        self._news: deque[str] = deque()  # lines for the log, of the threads of all connections
        self._slurm = slurm or Slurm()
        name = f"keima-{run_tag(run_id)}"
        options = tuple(sbatch_options(settings, name=name, folder=self.folder))
        self._queue = JobQueue(
            self._slurm,
            Submission(name=name, script=self.folder / JOB_SCRIPT, options=options),
            poll_seconds=settings.poll_seconds,
            log_event=self._news.append,
            clock=clock,
        )
        self._python = settings.python or sys.executable
        given = {"host": SLURM_NAME, "directory": str(self.folder), "python": sys.executable, "processes": 1}
        self._machine = WorkerSettings.model_validate({"name": SLURM_NAME, **given})
        self._ended = False
        self._thread = SteppingThread("slurm", self._queue.step, lambda: self._ended)
        self._prepared = False

    def machines(self) -> tuple[WorkerSettings, ...]:
        """See ``MachineSource``."""
        while self._news:
            self._log_event(self._news.popleft())
        return (self._machine,)

    def connect(self, machine: WorkerSettings) -> Transport:
        """See ``MachineSource``."""
        return LocalTransport(self.folder, worker=machine.name)

    def process_manager(self, machine: WorkerSettings) -> SlurmProcessManager:
        """See ``MachineSource``."""
        return SlurmProcessManager(
            self._settings.names, queue=self._queue, prepare=self.prepare, python=self._machine.python
        )

    def close(self) -> None:
        """See ``MachineSource``; jobs that are left are ended."""
        self._ended = True
        if self._prepared:
            self._thread.wake()
            self._thread.join(END_SECONDS)
            try:
                self._queue.end_all()
            except ClusterError as error:
                self._news.append(f"jobs of this run may be left in Slurm; they end when their lease expires: {error}")
        self.machines()

    def prepare(self, transport: Transport) -> None:
        """Put into the folder what the jobs need, check it, and submit jobs; the first time, and then never again.

        Raises:
            ClusterError: it cannot be done; the text has the remedy.
        """
        if self._prepared:
            return
        self._slurm.check()
        install_remote_program(transport)
        self._check_folder()
        self._write_files(transport, self._probe_this_machine(transport))
        self._end_surplus()
        self._prepared = True
        self._queue.request_jobs(*range(1, self._settings.count + 1))  # they wait for the first model in the queue
        self._thread.start()

    def _check_folder(self) -> None:
        """Reject a folder without locks; warn the user of a doubtful one."""
        kind = file_system_of(self.folder)
        if not can_lock_files(self.folder):
            remedy = "mount it with locks (Lustre: -o flock), or set distributed.slurm.directory"
            raise Refused(SLURM_NAME, f"{self.folder} is on {kind or 'a file system'} without locks", remedy)
        if kind and not SHARED.fullmatch(kind):
            self._news.append(
                f"slurm: {self.folder} is on {kind}. The nodes must share it: if this machine does not export it to "
                "them, set distributed.slurm.directory"
            )
        if CACHED.fullmatch(kind) and self._offline_seconds < SLOW_VIEW_SECONDS:
            self._news.append(
                f"slurm: {self.folder} is on {kind}, where changes may appear up to a minute late: if playing "
                f"workers are shown as Offline, raise distributed.offline_seconds to {SLOW_VIEW_SECONDS + 30:.0f}"
            )

    def _probe_this_machine(self, transport: Transport) -> Probe:
        """Probe this machine. Refuse a Python that lacks something; one that `setup` loads is seen by jobs alone."""
        python = sys.executable if self._settings.setup else self._python
        machine = self._machine.model_copy(update={"python": python})
        found = remote.probe_machine(transport, machine, self._required)
        checked = [finding for finding in run_checks(found, machine, self._required) if finding.what in CHECKED]
        refuse_unfit(SLURM_NAME, [_with_slurm_remedy(finding, python, self._required.pins) for finding in checked])
        return found

    def _write_files(self, transport: Transport, found: Probe) -> None:
        """Write the code and the scripts."""
        release = release_folder(self._required.code_hash)
        if found.folder_of(self._required.code_hash) != release:
            send_code(transport, self._machine, self._required, self._root)
        own = self._required.worker_class if self._required.extra else ""
        worker = worker_script(self._settings, python=self._python, release=release, worker_class=own)
        for folder in ("logs", "workers"):
            (self.folder / folder).mkdir(mode=0o700, exist_ok=True)
        transport.put(worker.encode(), WORKER_SCRIPT)
        transport.put(job_script(self.folder).encode(), JOB_SCRIPT)

    def _end_surplus(self) -> None:
        """End jobs of an earlier session that had more of them."""
        surplus = [job.id for job in self._queue.running_jobs() if not 1 <= job.slot <= self._settings.count]
        self._slurm.cancel(*surplus)


def shared_folder(settings: SlurmSettings, run_dir: Path, run_id: str) -> Path:
    """Return the folder of a run's workers, which the nodes share.

    Raises:
        ValueError: its path holds a percent sign, which Slurm replaces in paths.
    """
    name = f"{run_dir.resolve().name}-{run_tag(run_id)}"
    folder = Path(settings.directory).expanduser() / name if settings.directory else run_dir / FOLDER
    folder = folder.absolute()
    if "%" in str(folder):
        raise ValueError(f"distributed.slurm: the folder {folder} has a percent sign in its name, which Slurm replaces")
    return folder


def _with_slurm_remedy(finding: Finding, python: str, pins: Sequence[str]) -> Finding:
    """Return a finding with the remedy for a cluster on which Keima installs nothing."""
    if finding.what == "packages":
        install = f"install them: {python} -m pip install {' '.join(pins)}"
        return replace(finding, remedy=f"{install}; or set distributed.slurm.python to an environment that has them")
    if finding.what == "python":
        return replace(finding, remedy="set distributed.slurm.python to a Python 3.11 or newer that all nodes share")
    return replace(finding, remedy="set distributed.slurm.directory to another folder that all nodes share")
