"""Prepare a machine, and start and stop its workers: everything that a connection does there except copy files."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

from keima.cluster.agent.client import AgentTransport
from keima.cluster.agent.commands import Probe
from keima.cluster.agent.packing import install_remote_program
from keima.cluster.machines import machine as remote
from keima.cluster.machines.bootstrap import NO_PIP_SETTINGS, bootstrap_steps
from keima.cluster.machines.check import Finding, fatal_findings, refuse_unfit, run_checks, worker_slots
from keima.cluster.machines.machine import WorkerSlot, worker_place
from keima.cluster.machines.release import WorkerRequirements
from keima.cluster.ssh.transport import Transport
from keima.config.sections.workers import PipSettings, WorkerSettings
from keima.paths import SOURCE

Report = Callable[[str], None]
FIXED_BY_BOOTSTRAP = {"python", "packages", "code"}
TAIL_LINES = 12
STOP_SECONDS = 10.0


@dataclass(frozen=True, kw_only=True)
class ProcessStatus:
    """A worker's process, as its process manager knows it."""

    running: bool  # or it will run without being started again, such as a job in a queue
    waits: str = ""  # what it waits for, if it is in a queue
    start: str = ""  # differs between two starts by somebody else, such as a scheduler; empty: nobody else starts it
    error: str = ""  # what is wrong; a process that does not run is then not started again before the user wants it


class ProcessManager(Protocol):
    """The workers of one machine. Every method raises ClusterError if it fails."""

    def prepare(
        self, transport: Transport, report: Report, should_continue: Callable[[], bool]
    ) -> tuple[WorkerSlot, ...]:
        """Prepare the machine to play; return its slots.

        Args:
            transport: to the machine.
            report: called with each line about the progress.
            should_continue: returns whether to continue; long work ends early if not.
        """

    def start(self, transport: Transport, slot: WorkerSlot) -> None:
        """Start the worker of a slot, unless it runs."""

    def stop(self, transport: Transport, worker: str, *, seconds: float = STOP_SECONDS) -> None:
        """End a worker, if it runs, after it has delivered its finished games."""

    def process_status(self, transport: Transport, worker: str) -> ProcessStatus:
        """Return whether a worker runs."""

    def read_log_end(self, transport: Transport, worker: str) -> str:
        """Return the last lines of a worker's log."""


@runtime_checkable
class ChangingWorkers(Protocol):
    """A ``ProcessManager`` whose workers come and go while its machine is connected.

    Attributes:
        usual_silence: seconds without a heartbeat that mean nothing, as its workers report more rarely than others.
    """

    usual_silence: float

    def find_slots(self) -> tuple[WorkerSlot, ...]:
        """Return the slots of the prepared machine now."""

    def has_other_slots(self) -> bool:
        """Return whether ``find_slots`` would return others than before; called at every step."""


class RemoteProcessManager:
    """Worker processes on a machine that is reached over a transport.

    Args:
        machine: the machine's settings.
        required: the code and packages that it must have.
        bootstrap: whether to install them if they are missing.
        pip: where packages come from then.
        coach: the Coach that the workers play for; empty: any.
        root: the checkout whose code is sent.
    """

    def __init__(
        self,
        machine: WorkerSettings,
        *,
        required: WorkerRequirements,
        bootstrap: bool = False,
        pip: PipSettings = NO_PIP_SETTINGS,
        coach: str = "",
        root: Path = SOURCE,
    ) -> None:
        self._machine, self._required, self._bootstrap, self._pip, self._root = machine, required, bootstrap, pip, root
        self._coach = coach
        self._probe: Probe | None = None

    def prepare(
        self, transport: Transport, report: Report, should_continue: Callable[[], bool]
    ) -> tuple[WorkerSlot, ...]:
        """See ``ProcessManager``."""
        report("checking the machine")
        install_remote_program(transport)
        found, wrong = self._probe_and_check(transport)
        if (
            wrong
            and self._bootstrap
            and should_continue()
            and {finding.what for finding in wrong} <= FIXED_BY_BOOTSTRAP
        ):
            for line in bootstrap_steps(
                transport, self._machine, required=self._required, pip=self._pip, root=self._root
            ):
                if not should_continue():
                    break
                report(f"being set up: {line}") if line else time.sleep(1.0)
            found, wrong = self._probe_and_check(transport)
        refuse_unfit(transport.worker, wrong)
        self._probe = found
        return tuple(worker_slots(found, self._machine))

    def _probe_and_check(self, transport: Transport) -> tuple[Probe, list[Finding]]:
        found = remote.probe_machine(transport, self._machine, self._required)
        return found, fatal_findings(run_checks(found, self._machine, self._required))

    def start(self, transport: Transport, slot: WorkerSlot) -> None:
        """See ``ProcessManager``."""
        assert self._probe is not None
        remote.start_worker(
            transport, slot, machine=self._machine, probe=self._probe, required=self._required, coach=self._coach
        )

    def stop(self, transport: Transport, worker: str, *, seconds: float = STOP_SECONDS) -> None:
        """See ``ProcessManager``."""
        remote.stop_worker(transport, worker, seconds=seconds, python=self._machine.python, coach=self._coach)

    def process_status(self, transport: Transport, worker: str) -> ProcessStatus:
        """See ``ProcessManager``."""
        seen = transport.running.get(worker_place(worker)) if isinstance(transport, AgentTransport) else None
        running = remote.ask_if_alive(transport, worker, python=self._machine.python).running if seen is None else seen
        return ProcessStatus(running=running)

    def read_log_end(self, transport: Transport, worker: str) -> str:
        """See ``ProcessManager``."""
        return remote.read_log_end(transport, worker, lines=TAIL_LINES, python=self._machine.python)
