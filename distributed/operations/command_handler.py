"""What people want of a running Coach: it follows the workers in its settings file, and carries out requests."""

import logging
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

from configs.commands import connector
from configs.load import ConfigError, load_settings
from configs.schema import DistributedSettings, WorkerSettings
from distributed.fleet.views import FleetView
from distributed.fleet.worker_state import Mark
from distributed.operations.requests import Request, RequestInbox
from distributed.operations.status import status_text
from distributed.setup.worker_list import add_worker, remove_worker

log = logging.getLogger(__name__)

POLL_SECONDS = 1.0  # between two looks at the file
AT_ONCE = 0.25  # of the machines, or one: so many that play may be away at a time because their settings have changed
LOST = {Mark.ERROR, Mark.OFFLINE}
RETRY_SECONDS = 5.0  # after a machine could not be taken in or let go


_Reading = DistributedSettings | str  # what the file says, or what is wrong with it


class CommandedFleet(Protocol):
    """What is steered; ``Fleet`` says more. A name or machine that it does not know is a ValueError."""

    @property
    def machines(self) -> tuple[WorkerSettings, ...]:
        """Those that are not being removed."""

    def add(self, machine: WorkerSettings) -> None:
        """Take in a machine."""

    def remove(self, name: str) -> None:
        """Let a machine finish what is under way, and go."""

    def restart(self, name: str) -> None:
        """End a worker, or all of a machine, and start it again."""

    def stop(self, name: str) -> None:
        """End a worker, or all of a machine, until it is restarted."""

    def take_over(self, name: str) -> None:
        """Take a worker, or all of a machine, over from whoever has it."""

    def view(self) -> FleetView:
        """How everything stands."""


class CommandHandler:
    """Call ``step`` in every cycle; it raises nothing.

    Args:
        fleet: what is steered.
        config: the file whose ``distributed.workers`` play.
        inbox: where requests arrive.
        title: what plays, for people.
        log_event: is told what is worth a line in the log.
        clock: seconds that never go back.
    """

    def __init__(
        self,
        fleet: CommandedFleet,
        config: Path,
        *,
        inbox: RequestInbox,
        title: str = "",
        log_event: Callable[[str], None] = log.warning,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._fleet, self._config, self._requests, self._title = fleet, config, inbox, title
        self._log_event, self._clock = log_event, clock
        self._read = _state_of(config)
        self._first: _Reading | None = None  # of a file that has changed, until a second reading has found the same
        self._wanted: tuple[WorkerSettings, ...] = fleet.machines
        self._returning: set[str] = set()  # machines that have gone to come back with other settings, until they play
        self._poll_at = 0.0
        self._retry_at = 0.0
        self._logged_problems = ""

    def step(self) -> None:
        """Carry out what has been asked, and follow the file if it has changed."""
        self._requests.serve(self._carry_out)
        if self._clock() < self._poll_at:
            return
        self._poll_at = self._clock() + POLL_SECONDS
        self._poll_config()
        if self._clock() >= self._retry_at:
            self._follow()

    def _poll_config(self) -> None:
        """Take the file up if it has changed, once two looks have found the same in it: a single one may see half of
        what is written.
        """
        state = _state_of(self._config)
        if state == self._read and self._first is None:
            return
        self._read, first, self._first = state, self._first, self._reading()
        if self._first == first:
            self._take_up(self._first)

    def _carry_out(self, request: Request) -> str:
        """What has come of it, in words; ValueError and OSError say what is wrong with it."""
        match request.command:
            case "status":
                return status_text(self._fleet.view(), title=self._title, when=time.strftime("%Y-%m-%d %H:%M:%S"))
            case "restart":
                self._fleet.restart(request.worker)
                return f"{request.worker} is being restarted; watch it in distributed/status.txt"
            case "stop":
                self._fleet.stop(request.worker)
                return f"{request.worker} is being stopped, and stays so until --restart {request.worker}"
            case "takeover":
                self._fleet.take_over(request.worker)
                aside = "the finished games of another run are set aside on its machine, for that run"
                return f"{request.worker} is being taken over; {aside}; watch it in distributed/status.txt"
            case "add":
                assert request.machine is not None
                add_worker(self._config, request.machine)
                self._follow_now()
                taken = f"{request.machine.name} is in {self._config}, and is being taken in; watch it in distributed/status.txt"
                return f"{taken}\n{self._if_bare(request.machine.name)}"
        remove_worker(self._config, request.worker)
        self._follow_now()
        return f"{request.worker} is no longer in {self._config}; it finishes the games under way, hands them over, and is dropped"

    def _if_bare(self, name: str) -> str:
        """What makes a machine ready on which nothing of ours is."""
        reading = self._reading()
        if not isinstance(reading, str) and reading.bootstrap:
            return "If it is bare, it is set up first, which takes minutes (bootstrap: true)"
        command = f"{connector(self._config)} --bootstrap {name}"
        return (
            f"If it is bare, it is in Error until you run: {command}; "
            "or set `bootstrap: true` below `distributed:` before the next start"
        )

    def _follow_now(self) -> None:
        """Follow the file, which has just been written here, whole."""
        self._read = _state_of(self._config)
        self._take_up(self._reading())
        self._follow()

    def _reading(self) -> _Reading:
        """What the file says now: the workers, or what is wrong with it."""
        try:
            return load_settings(self._config).distributed
        except ConfigError as error:
            return str(error)

    def _take_up(self, reading: _Reading) -> None:
        """Want what the file says; one that is not right is not followed."""
        self._first, self._retry_at = None, 0.0
        if isinstance(reading, str):
            self._log_event(f"the workers stay as they are until this is put right: {reading}")
            return
        self._wanted = reading.workers
        if reading.unused_weights:
            self._log_event(f"{self._config}: {reading.unused_weights}")

    def _follow(self) -> None:
        """Bring the fleet to what is wanted.

        A machine whose settings have changed goes and comes back, which takes several looks.
        """
        problems = []
        have = {machine.name: machine for machine in self._fleet.machines}
        wanted = {machine.name: machine for machine in self._wanted}
        going = self._may_go(have, wanted)
        for name in have:
            if name in going or name not in wanted:
                why = (
                    "its settings have changed: it goes and comes back"
                    if name in wanted
                    else f"{self._config} has it no more"
                )
                self._log_event(f"{name}: {why}")
                problems += _attempt(lambda name=name: self._fleet.remove(name))  # type: ignore[misc]
        for name, machine in wanted.items():
            if name not in have:
                problems += _attempt(lambda machine=machine: self._fleet.add(machine))  # type: ignore[misc]
        self._retry_at = self._clock() + RETRY_SECONDS if problems else 0.0
        waiting = sum(name in wanted and wanted[name] != have[name] and name not in going for name in have)
        if waiting:
            problems.append(
                f"{waiting} more with other settings play on as they are until {', '.join(sorted(self._returning))} is back and plays"
            )
        logged = "; ".join(problems)
        if logged and logged != self._logged_problems:
            self._log_event(logged)
        self._logged_problems = logged

    def _may_go(self, have: Mapping[str, WorkerSettings], wanted: Mapping[str, WorkerSettings]) -> set[str]:
        """The machines whose settings have changed and that may leave now: of those that play, only a part is away at a
        time.
        """
        changed = [name for name in have if name in wanted and wanted[name] != have[name]]
        if not changed and not self._returning:
            return set()
        marks: dict[str, set[Mark]] = {}
        for worker in self._fleet.view().workers:
            marks.setdefault(worker.machine, set()).add(worker.mark)
        back = {name for name in have if wanted.get(name) == have[name] and marks.get(name) == {Mark.ACTIVE}}
        self._returning = (self._returning - back) & wanted.keys()
        idle = {name for name in changed if name in self._returning or marks.get(name, set()) <= LOST}
        room = max(1, int(len(wanted) * AT_ONCE)) - len(self._returning)
        going = [name for name in changed if name not in idle][: max(0, room)]
        self._returning.update(going)
        return idle | set(going)


def _attempt(do: Callable[[], None]) -> list[str]:
    """What went wrong, if anything did."""
    try:
        do()
    except (ValueError, OSError) as error:
        return [str(error)]
    return []


def _state_of(path: Path) -> tuple[int, int, int] | None:
    """Something that changes when the file does."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
