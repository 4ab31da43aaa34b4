"""Control of a running Coach: it follows the workers in its config file and carries out requests."""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from keima.base.file_stamp import stamp_of
from keima.base.reports.worker_status import ClusterStatus, WorkerState, WorkerStatus
from keima.cluster.control.requests import Request, RequestInbox
from keima.cluster.control.status import status_text
from keima.cluster.fleet.tracked_worker import LOST_STATES
from keima.cluster.machines.machine_source import MachineSources
from keima.cluster.machines.worker_list import add_worker, remove_worker
from keima.config.commands import cluster
from keima.config.load import ConfigError, load_settings
from keima.config.sections.cluster import DistributedSettings
from keima.config.sections.types import listed
from keima.config.sections.workers import WorkerSettings

log = logging.getLogger(__name__)

POLL_SECONDS = 1.0  # between two reads of the file
AWAY_AT_ONCE = 0.25  # of the machines, or one: the part of those that play that may be away at a time for new settings
RETRY_SECONDS = 5.0  # after a machine could not be added or removed


_Reading = DistributedSettings | str  # the file's content, or what is wrong with it


class CommandedFleet(Protocol):
    """The fleet that is controlled, such as ``Fleet``. An unknown name or machine raises ValueError."""

    @property
    def machines(self) -> tuple[WorkerSettings, ...]:
        """The machines that are not being removed."""

    def add(self, machine: WorkerSettings) -> None:
        """Add a machine."""

    def remove(self, name: str) -> None:
        """Remove a machine after its current games."""

    def restart(self, name: str) -> None:
        """End and restart a worker, or all workers of a machine."""

    def stop(self, name: str) -> None:
        """End a worker, or all workers of a machine, until ``restart``."""

    def take_over(self, name: str) -> None:
        """Take a worker, or all workers of a machine, from another Coach."""

    def retry(self, name: str) -> None:
        """Try a machine again at once."""

    def cluster(self) -> ClusterStatus:
        """Return the state of the whole fleet."""


class CommandHandler:
    """Carries out requests and follows the config. Call ``step`` in every cycle; it raises nothing.

    Args:
        fleet: the fleet that is controlled.
        config: the file whose ``distributed.workers`` play.
        inbox: where requests arrive.
        title: the title of the status.
        sources: where machines come from that are not in the file; None: there are none.
        log_event: called with each line for the log.
        reread: whether to read the file at once: it may have changed before.
        clock: a monotonic clock in seconds.
    """

    def __init__(
        self,
        fleet: CommandedFleet,
        config: Path,
        *,
        inbox: RequestInbox,
        title: str = "",
        sources: MachineSources | None = None,
        log_event: Callable[[str], None] = log.warning,
        reread: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._fleet, self._config, self._requests, self._title = fleet, config, inbox, title
        self._sources = sources
        self._log_event, self._clock = log_event, clock
        self._read = None if reread else stamp_of(config)
        self._first: _Reading | None = None  # of a changed file, until a second read agrees
        self._wanted: tuple[WorkerSettings, ...] = fleet.machines
        self._returning: set[str] = set()  # machines that left to come back with new settings, until they play
        self._poll_at = 0.0
        self._retry_at = 0.0
        self._logged_problems = ""

    def step(self) -> None:
        """Carry out new requests, and follow the file if it has changed."""
        self._requests.answer_requests(self._handle_request)
        if self._clock() < self._poll_at:
            return
        self._poll_at = self._clock() + POLL_SECONDS
        self._poll_config()
        if self._clock() >= self._retry_at:
            self._move_to_target()

    def _poll_config(self) -> None:
        """Read the file if it has changed, and follow it once two reads agree, since one may see a partial write."""
        stamp = stamp_of(self._config)
        if stamp == self._read and self._first is None:
            return
        self._read, first, self._first = stamp, self._first, self._read_workers()
        if self._first == first:
            self._set_target(self._first)

    def _handle_request(self, request: Request) -> str:
        """Carry out a request; return the answer. ValueError and OSError say what is wrong with it."""
        match request.command:
            case "status":
                present = self._fleet.cluster()
                shown = named_workers(present.workers, request.workers, self._fleet.machines)
                return status_text(present, shown, title=self._title, when=time.strftime("%Y-%m-%d %H:%M:%S"))
            case "restart":
                self._fleet.restart(request.worker)
                return f"{request.worker} is being restarted; watch it in distributed/status.txt"
            case "stop":
                self._fleet.stop(request.worker)
                again = cluster(f"restart {request.worker}", self._config)
                return f"{request.worker} is being stopped, and stays so until {again}"
            case "takeover":
                self._fleet.take_over(request.worker)
                aside = "finished games of the other run are set aside on its machine for that run"
                return f"{request.worker} is being taken over; {aside}; watch it in distributed/status.txt"
            case "retry":
                self._fleet.retry(request.worker)
                return f"{request.worker} is tried again at once"
            case "add":
                assert request.machine is not None
                add_worker(self._config, request.machine)
                self._follow_written_config()
                added = f"{request.machine.name} is in {self._config}, and is being added"
                return f"{added}; watch it in distributed/status.txt\n{self._bootstrap_hint(request.machine.name)}"
        remove_worker(self._config, request.worker)
        self._follow_written_config()
        leaves = "it finishes and delivers its current games, and is removed"
        return f"{request.worker} is no longer in {self._config}; {leaves}"

    def _bootstrap_hint(self, name: str) -> str:
        """Return what to do about a machine on which nothing is installed."""
        reading = self._read_workers()
        if not isinstance(reading, str) and reading.bootstrap:
            return "If it is bare, it is set up first, which takes minutes (bootstrap: true)"
        command = cluster(f"bootstrap {name}", self._config)
        return (
            f"If it is bare, it is in Error until you run: {command}; "
            "or set `bootstrap: true` below `distributed:` before the next start"
        )

    def _follow_written_config(self) -> None:
        """Follow the file, which this process has just written."""
        self._read = stamp_of(self._config)
        self._set_target(self._read_workers())
        self._move_to_target()

    def _read_workers(self) -> _Reading:
        """Return the workers in the file now, or the error in it."""
        try:
            return load_settings(self._config).distributed
        except ConfigError as error:
            return str(error)

    def _set_target(self, reading: _Reading) -> None:
        """Make a reading of the file the target; an invalid file is not followed."""
        self._first, self._retry_at = None, 0.0
        if isinstance(reading, str):
            self._log_event(f"the workers stay as they are until this is fixed: {reading}")
            return
        self._wanted = reading.workers
        if reading.unused_weights:
            self._log_event(f"{self._config}: {reading.unused_weights}")

    def _move_to_target(self) -> None:
        """Bring the fleet to the target. A machine with new settings leaves and rejoins, which takes several calls."""
        problems = []
        have = {machine.name: machine for machine in self._fleet.machines}
        wanted = {machine.name: machine for machine in self._wanted}
        if self._sources:
            others, taken = self._sources.other_machines(wanted)
            wanted.update({machine.name: machine for machine in others})
            problems += taken
        going = self._machines_free_to_leave(have, wanted)
        for name in have:
            if name in going or name not in wanted:
                why = (
                    "its settings have changed: it leaves and comes back"
                    if name in wanted
                    else f"it is no longer in {self._sources.source_title(name) if self._sources else self._config}"
                )
                self._log_event(f"{name}: {why}")
                problems += _error_of(lambda name=name: self._fleet.remove(name))  # type: ignore[misc]
        for name, machine in wanted.items():
            if name not in have:
                problems += _error_of(lambda machine=machine: self._fleet.add(machine))  # type: ignore[misc]
        self._retry_at = self._clock() + RETRY_SECONDS if problems else 0.0
        waiting = sum(name in wanted and wanted[name] != have[name] and name not in going for name in have)
        if waiting:
            first = ", ".join(sorted(self._returning))
            problems.append(f"{waiting} more with new settings keep the old ones until {first} plays again")
        logged = "; ".join(problems)
        if logged and logged != self._logged_problems:
            self._log_event(logged)
        self._logged_problems = logged

    def _machines_free_to_leave(
        self, have: Mapping[str, WorkerSettings], wanted: Mapping[str, WorkerSettings]
    ) -> set[str]:
        """Return the changed machines that may leave now: of those that play, only a part is away at a time."""
        changed = [name for name in have if name in wanted and wanted[name] != have[name]]
        if not changed and not self._returning:
            return set()
        states: dict[str, set[WorkerState | None]] = {}
        for worker in self._fleet.cluster().workers:
            states.setdefault(worker.machine, set()).add(worker.state)
        back = {name for name in have if wanted.get(name) == have[name] and states.get(name) == {WorkerState.ACTIVE}}
        self._returning = (self._returning - back) & wanted.keys()
        idle = {name for name in changed if name in self._returning or states.get(name, set()) <= LOST_STATES}
        room = max(1, int(len(wanted) * AWAY_AT_ONCE)) - len(self._returning)
        going = [name for name in changed if name not in idle][: max(0, room)]
        self._returning.update(going)
        return idle | set(going)


def named_workers(
    workers: Sequence[WorkerStatus], names: Sequence[str], machines: Sequence[WorkerSettings]
) -> Sequence[WorkerStatus]:
    """Return the workers that names mean; without names, all.

    Args:
        workers: all of the fleet.
        names: of groups, machines and workers.
        machines: have the groups.

    Raises:
        ValueError: there is no worker and no group of a name.
    """
    groups = {machine.name: machine.group for machine in machines}
    known = {worker.name: {worker.name, worker.machine, groups.get(worker.machine)} for worker in workers}
    for name in names:
        if not any(name in each for each in known.values()):
            raise ValueError(f"there is no worker {name}; the workers are: {listed(list(known))}")
    return [worker for worker in workers if not names or known[worker.name] & set(names)]


def _error_of(do: Callable[[], None]) -> list[str]:
    """Return the error, if there was one."""
    try:
        do()
    except (ValueError, OSError) as error:
        return [str(error)]
    return []
