"""A source of machines that lists what a test wants, reached as folders that do not exist yet."""

from pathlib import Path

from keima.cluster.machines.process_manager import ProcessManager, RemoteProcessManager
from keima.cluster.machines.release import WorkerRequirements
from keima.cluster.ssh.transport import LocalTransport, Transport
from keima.config.sections.workers import WorkerSettings

NOTHING = WorkerRequirements(code_hash="")


class ListedMachines:
    """See ``MachineSource``. ``listed`` may be changed."""

    def __init__(self, title: str, *machines: WorkerSettings) -> None:
        self.title, self.listed, self.closed = title, list(machines), False

    def machines(self) -> tuple[WorkerSettings, ...]:
        return tuple(self.listed)

    def connect(self, machine: WorkerSettings) -> Transport:
        return LocalTransport(Path("missing") / machine.name, worker=f"{machine.name} of {self.title}")

    def process_manager(self, machine: WorkerSettings) -> ProcessManager:
        return RemoteProcessManager(machine, required=NOTHING)

    def close(self) -> None:
        self.closed = True
