"""Starts and stops the worker of one job: the ``ProcessManager`` of a machine that is a job of Slurm."""

import time
from collections.abc import Callable

from distributed.setup import machine as remote
from distributed.setup.machine import WorkerSlot, worker_place
from distributed.setup.process_manager import STOP_SECONDS, TAIL_LINES, ProcessStatus, Report
from distributed.slurm.jobs import RUNNING, seat_name
from distributed.slurm.queue import Commands, JobQueue
from distributed.ssh.transport import Transport
from training.common.files import FileTooLarge

ENDED_POLL_SECONDS = 0.2
MAX_OUTPUT = 2**20  # bytes of a job's output that is shown


class SlurmProcessManager:
    """The worker of one seat.

    Args:
        seat: the number of the worker.
        queue: the jobs of the run.
        slurm: Slurm's commands.
        prepare: prepares the folder of the run's workers, once for all of them; raises ClusterError.
        python: this machine's interpreter for our remote program.
    """

    def __init__(
        self,
        seat: int,
        *,
        queue: JobQueue,
        slurm: Commands,
        prepare: Callable[[Transport], None],
        python: str,
    ) -> None:
        self._seat, self._queue, self._slurm, self._prepare, self._python = seat, queue, slurm, prepare, python

    def prepare(self, transport: Transport, report: Report, go_on: Callable[[], bool]) -> tuple[WorkerSlot, ...]:
        """See ``ProcessManager``."""
        report("checking the folder that the nodes share")
        self._prepare(transport)
        return (WorkerSlot(seat_name(self._seat)),)

    def start(self, transport: Transport, slot: WorkerSlot) -> None:
        """See ``ProcessManager``; the job is submitted a moment later, together with those of others."""
        self._queue.want(self._seat)

    def stop(self, transport: Transport, worker: str, *, seconds: float = STOP_SECONDS) -> None:
        """See ``ProcessManager``; a worker that needs longer has Slurm's KillWait in addition."""
        job = self._queue.job(self._seat)
        if job is not None:
            if job.state == RUNNING:
                self._slurm.warn(job.id)
                until = time.monotonic() + seconds
                while time.monotonic() < until and self._plays(transport, worker):
                    time.sleep(ENDED_POLL_SECONDS)
            self._slurm.cancel(job.id)
        self._queue.give_up(self._seat)

    def _plays(self, transport: Transport, worker: str) -> bool:
        """Return whether a process is recorded in the worker's folder; it removes its record when it ends."""
        return any(entry.name == "process.json" for entry in transport.names(worker_place(worker)))

    def alive(self, transport: Transport, worker: str) -> ProcessStatus:
        """See ``ProcessManager``."""
        return self._queue.status(self._seat)

    def tail(self, transport: Transport, worker: str) -> str:
        """See ``ProcessManager``; of a job that never became a worker, the output of its script."""
        said = remote.tail(transport, worker, lines=TAIL_LINES, python=self._python)
        return said or self._output(transport)

    def _output(self, transport: Transport) -> str:
        names = [entry.name for entry in transport.names("logs") if entry.name.endswith(f"_{self._seat}.out")]
        try:
            text = transport.get(f"logs/{max(names, key=_array)}", MAX_OUTPUT) if names else b""
        except (FileNotFoundError, FileTooLarge):
            return ""
        lines = text.decode("utf-8", "replace").splitlines()[-TAIL_LINES:]
        return "\n".join(remote.printable_start(line) for line in lines)


def _array(name: str) -> int:
    """Return the array of an output file ``slurm-12_3.out``."""
    number = name.removeprefix("slurm-").partition("_")[0]
    return int(number) if number.isdecimal() else 0
