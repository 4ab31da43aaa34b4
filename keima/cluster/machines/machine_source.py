"""Where the machines of a fleet come from: the config's list, reached over SSH, or a cluster that has its own list."""

from collections.abc import Container, Sequence
from typing import Protocol

from keima.cluster.machines.process_manager import ProcessManager
from keima.cluster.ssh.transport import Transport
from keima.config.sections.workers import WorkerSettings


class MachineSource(Protocol):
    """Machines that are not in the config's list, such as slots on a Ray or Slurm cluster.

    A fleet is stepped by one thread for each machine, so ``connect`` and what it returns are used from several threads
    at a time; ``machines`` and ``close`` by one.

    Attributes:
        title: the source's name in messages.
    """

    title: str

    def machines(self) -> tuple[WorkerSettings, ...]:
        """Return the machines there are now. It returns at once; what takes longer is done before or elsewhere."""
        ...

    def connect(self, machine: WorkerSettings) -> Transport:
        """Connect to a machine.

        Raises:
            ClusterError: it cannot be reached.
        """
        ...

    def process_manager(self, machine: WorkerSettings) -> ProcessManager:
        """Return what starts and stops the workers of a machine."""
        ...

    def close(self) -> None:
        """Release everything there; all machines have been left."""
        ...


class MachineSources:
    """Several sources as one. A machine's name determines its source, even when the source no longer lists it.

    Args:
        listed: reaches the machines of the config's list.
        others: the other sources.
    """

    def __init__(self, listed: MachineSource, others: Sequence[MachineSource] = ()) -> None:
        self._listed, self._others = listed, others
        self._whose: dict[str, MachineSource] = {}

    def other_machines(self, listed: Container[str]) -> tuple[list[WorkerSettings], list[str]]:
        """Return the machines of the other sources, and their problems.

        Args:
            listed: the names in the config's list; no other machine may have one of them.
        """
        found, problems = [], []
        for source in self._others:
            for machine in source.machines():
                if machine.name in listed or self._whose.setdefault(machine.name, source) is not source:
                    problems.append(f"{machine.name} of {source.title} is not used: another machine has this name")
                else:
                    found.append(machine)
        return found, problems

    def is_in_config(self, name: str) -> bool:
        """Return whether a machine is of the config's list."""
        return name not in self._whose

    def source_title(self, name: str) -> str:
        """Return the title of the source of the machine with this name."""
        return self._source_of(name).title

    def connect(self, machine: WorkerSettings) -> Transport:
        """See ``MachineSource``."""
        return self._source_of(machine.name).connect(machine)

    def process_manager(self, machine: WorkerSettings) -> ProcessManager:
        """See ``MachineSource``."""
        return self._source_of(machine.name).process_manager(machine)

    def close(self) -> None:
        """See ``MachineSource``."""
        for source in self._others:
            source.close()

    def _source_of(self, name: str) -> MachineSource:
        return self._whose.get(name, self._listed)
