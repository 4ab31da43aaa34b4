"""Starts and stops the workers of a run in jobs of Slurm: the ``ProcessManager`` of all of them."""

import time
from collections.abc import Callable

from keima.base.files import FileTooLarge
from keima.cluster.agent.commands import printable_start
from keima.cluster.machines import machine as remote
from keima.cluster.machines.machine import WorkerSlot, worker_place
from keima.cluster.machines.process_manager import STOP_SECONDS, TAIL_LINES, ProcessStatus, Report
from keima.cluster.slurm.jobs import slot_number
from keima.cluster.slurm.queue import JobQueue
from keima.cluster.ssh.transport import Transport

ENDED_POLL_SECONDS = 0.2
MAX_OUTPUT = 2**20  # bytes of a job's output that is shown


class SlurmProcessManager:
    """The workers of a run. The slot of a worker, which is its number, is the number of its job within an array.

    Args:
        names: of the workers.
        queue: the jobs of the run.
        prepare: prepares the folder of the workers; raises ClusterError.
        python: this machine's interpreter for our remote program.
    """

    def __init__(
        self, names: tuple[str, ...], *, queue: JobQueue, prepare: Callable[[Transport], None], python: str
    ) -> None:
        self._names, self._queue, self._prepare, self._python = names, queue, prepare, python

    def prepare(
        self, transport: Transport, report: Report, should_continue: Callable[[], bool]
    ) -> tuple[WorkerSlot, ...]:
        """See ``ProcessManager``."""
        report("checking the folder that the nodes share")
        self._prepare(transport)
        return tuple(WorkerSlot(name, alone=True) for name in self._names)

    def start(self, transport: Transport, slot: WorkerSlot) -> None:
        """See ``ProcessManager``; the job is submitted a moment later, together with those of others."""
        self._queue.request_jobs(slot_number(slot.name))

    def stop(self, transport: Transport, worker: str, *, seconds: float = STOP_SECONDS) -> None:
        """See ``ProcessManager``; a worker that needs longer has Slurm's KillWait in addition."""
        if self._queue.request_end(slot_number(worker)):
            until = time.monotonic() + seconds
            while time.monotonic() < until and self._has_recorded_process(transport, worker):
                transport.meanwhile()
                time.sleep(ENDED_POLL_SECONDS)
        self._queue.cancel_job(slot_number(worker))

    def _has_recorded_process(self, transport: Transport, worker: str) -> bool:
        """Return whether a process is recorded in the worker's folder; it removes its record when it ends."""
        return any(entry.name == "process.json" for entry in transport.list_files(worker_place(worker)))

    def process_status(self, transport: Transport, worker: str) -> ProcessStatus:
        """See ``ProcessManager``."""
        return self._queue.slot_status(slot_number(worker))

    def read_log_end(self, transport: Transport, worker: str) -> str:
        """See ``ProcessManager``; of a job that never became a worker, the output of its script."""
        said = remote.read_log_end(transport, worker, lines=TAIL_LINES, python=self._python)
        return said or self._job_output(transport, slot_number(worker))

    def _job_output(self, transport: Transport, slot: int) -> str:
        names = [entry.name for entry in transport.list_files("logs") if entry.name.endswith(f"_{slot}.out")]
        try:
            text = transport.get(f"logs/{max(names, key=_array_of_output)}", MAX_OUTPUT) if names else b""
        except (FileNotFoundError, FileTooLarge):
            return ""
        lines = text.decode("utf-8", "replace").splitlines()[-TAIL_LINES:]
        return "\n".join(printable_start(line) for line in lines)


def _array_of_output(name: str) -> int:
    """Return the array of an output file ``slurm-12_3.out``."""
    number = name.removeprefix("slurm-").partition("_")[0]
    return int(number) if number.isdecimal() else 0
