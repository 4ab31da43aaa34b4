"""The workers of a Ray cluster as a source of machines: each seat is a machine with one worker.

A thread keeps the seats: it replaces those that have ended, asks for more where nodes join, and looks for games that
earlier seats have left. A seat's machine is named after the folder that the seat has on its node, which keeps its name
for ever: so account, games and folder belong together, whatever happens to seats and nodes. A folder whose node is gone
leaves the fleet when its seat has found another; games that it was granted and that were not received are given up
then. It comes back when a seat finds it again.
"""

import logging
import math
import re
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import ray
from ray import exceptions
from ray.actor import ActorHandle

from keima.base.system.threads import SteppingThread
from keima.cluster.machines.process_manager import ProcessManager
from keima.cluster.machines.release import WorkerRequirements
from keima.cluster.ray.cluster import NAME, RayCluster
from keima.cluster.ray.errors import as_cluster_error
from keima.cluster.ray.place import Place
from keima.cluster.ray.process_manager import RayProcessManager
from keima.cluster.ray.transport import RayTransport, SharedObjects
from keima.cluster.ssh.errors import ClusterError, NotYet, Refused, Unreachable
from keima.cluster.ssh.transport import Transport
from keima.config.sections.ray import RaySettings
from keima.config.sections.workers import WorkerSettings
from keima.worker.worker_folder import run_tag

log = logging.getLogger(__name__)

STEP_SECONDS = 0.5
JOIN_SECONDS = 5.0  # between two attempts to join the cluster ...
REFUSED_SECONDS = 60.0  # ... and after a refusal, of the cluster or of a seat
LEFT_OVERS_SECONDS = 15.0  # between two searches for games that earlier seats have left
CLOSE_SECONDS = 10.0
START_SECONDS = 15.0  # for a seat to come to life on a node with room
PATIENCE_SECONDS = 60.0  # with seats: auto, for a seat to find room
NUMBERED = re.compile(r"ray-([1-9][0-9]{0,8})")


@dataclass
class _Seat:
    """A seat that lives, or is asked for."""

    name: str  # of its machine; provisional until it has a folder
    since: float  # when it was asked for
    actor: ActorHandle | None = None
    answer: Any = None  # the object with what it says of its place, until that is here
    place: Place | None = None
    trouble: ClusterError | None = None  # why it does not live
    retry_at: float = 0.0
    ended: ClusterError | None = None  # set by the thread of a connection
    search: Any = None  # the object with the left-overs that it finds
    left_overs: tuple[str, ...] = ()
    is_new: bool = True  # no seat has had a folder of this name


@dataclass(frozen=True, kw_only=True)
class _Listed:
    """A machine as the fleet sees it."""

    seat: _Seat
    actor: ActorHandle | None
    place: Place | None
    plays: bool  # else games that an earlier seat left are fetched there
    trouble: ClusterError | None


class RaySource:
    """A ``MachineSource`` for the seats of a Ray cluster.

    Args:
        settings: the settings of the seats.
        root: the folder of the run's mirrors.
        run_id: the run's id.
        required: the code and packages that nodes must have.
        coach: the Coach that the workers play for.
        log_event: called by ``machines`` with each line for the log.
        clock: a monotonic clock in seconds.
    """

    def __init__(
        self,
        settings: RaySettings,
        *,
        root: Path,
        run_id: str,
        required: WorkerRequirements,
        coach: str,
        log_event: Callable[[str], None] = log.warning,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.title = "the Ray cluster"
        self._settings, self._run_id, self._required, self._coach = settings, run_id, required, coach
        self._log_event, self._clock = log_event, clock
        self._last_number = max(
            (int(match[1]) for path in root.glob("ray-*") if (match := NUMBERED.fullmatch(path.name))), default=0
        )
        self._objects = SharedObjects()
        self._cluster: RayCluster | None = None
        self._trouble: ClusterError | None = None  # with the whole cluster
        self._logged, self._news = "", deque[str]()
        self._join_at = self._search_at = clock()
        self._no_room_beyond = 0  # with seats: auto, the room that turned out to be none
        self._closed = False
        count = 1 if settings.seats == "auto" else settings.seats
        self._seats = [_Seat(self._fresh(), clock()) for _ in range(count)]
        self._listed: dict[str, _Listed] = {}
        self._machines: tuple[WorkerSettings, ...] = ()
        self._list()
        self._thread = SteppingThread(NAME, self._step, lambda: self._closed)
        self._thread.start()

    # What the fleet calls.

    def machines(self) -> tuple[WorkerSettings, ...]:
        """See ``MachineSource``; also logs what has happened."""
        while self._news:
            self._log_event(self._news.popleft())
        return self._machines

    def connect(self, machine: WorkerSettings) -> Transport:
        """See ``MachineSource``."""
        listed = self._listed.get(machine.name)
        if listed is None:
            raise Unreachable(machine.name, "its seat has left the cluster")
        if listed.actor is None or listed.place is None:
            raise self._why(machine.name, listed)
        return RayTransport(machine.name, listed.actor, self._objects, partial(_note_end, listed.seat, listed.actor))

    def process_manager(self, machine: WorkerSettings) -> ProcessManager:
        """See ``MachineSource``."""

        def seat() -> tuple[Place, bool]:
            listed = self._listed.get(machine.name)
            if listed is None or listed.place is None:
                raise Unreachable(machine.name, "its seat has left the cluster")
            return listed.place, listed.plays

        gpu = self._settings.num_gpus > 0
        return RayProcessManager(machine, seat=seat, gpu=gpu, required=self._required, coach=self._coach)

    def close(self) -> None:
        """See ``MachineSource``: seats end, and with them what still runs there."""
        self._closed = True
        self._thread.wake()
        if self._thread.join(CLOSE_SECONDS) and self._cluster:
            self._cluster.leave()

    def _machine(self, name: str) -> WorkerSettings:
        return WorkerSettings(host=name, name=name, directory=self._settings.directory, processes=1, group=NAME)

    def _why(self, name: str, listed: _Listed) -> ClusterError:
        """Return why a seat does not live."""
        trouble = listed.trouble
        if isinstance(trouble, Refused):
            return Refused(name, trouble.what, trouble.remedy)
        if trouble and listed.actor is None:
            return NotYet(name, trouble.what, trouble.remedy)
        what, remedy = "its seat in the Ray cluster is being started", ""
        if self._clock() - listed.seat.since >= START_SECONDS:
            what, remedy = self._waits()
        return NotYet(name, f"{trouble.what}; {what}" if trouble else what, remedy)

    def _waits(self) -> tuple[str, str]:
        gpu = f" and {self._settings.num_gpus:g} GPU" if self._settings.num_gpus else ""
        what = f"it waits for a node of the Ray cluster with {self._settings.num_cpus:g} CPU{gpu} to spare"
        return what, "add nodes, or ask for fewer distributed.ray.seats"

    # The thread.

    def _step(self) -> float:
        """Do whatever is due; return the seconds until the next step."""
        try:
            if self._cluster is None and self._clock() >= self._join_at:
                self._cluster = RayCluster(self._settings, self._required)
            if self._cluster:
                self._keep_seats(self._cluster)
                self._trouble, self._logged = None, ""
        except ClusterError as error:
            self._fail(error)
        except exceptions.RayError as error:
            self._fail(as_cluster_error(NAME, "looking after the seats", error))
        except Exception as error:
            log.exception("%s: unexpected", NAME)
            self._fail(Refused(NAME, f"unexpected {type(error).__name__}: {error}; please report it, with the log"))
        self._list()
        return STEP_SECONDS

    def _fail(self, error: ClusterError) -> None:
        self._trouble = error
        self._join_at = self._clock() + (REFUSED_SECONDS if isinstance(error, Refused) else JOIN_SECONDS)
        if str(error) != self._logged:
            self._logged = str(error)
            self._news.append(str(error))

    def _keep_seats(self, cluster: RayCluster) -> None:
        cluster.refuse_strangers()
        for seat in self._seats:
            self._see_to(seat, cluster)
        if self._settings.seats == "auto":
            self._follow_room(cluster.room())
        self._search_left_overs()

    def _see_to(self, seat: _Seat, cluster: RayCluster) -> None:
        """Ask for a seat that is missing, and note whether it has come to life or ended."""
        if seat.ended:
            self._lost(seat, seat.ended, 0.0)
        if seat.actor is None:
            if self._clock() >= seat.retry_at:
                seat.actor, seat.since = cluster.seat(), self._clock()
                seat.answer = self._settle(seat)
        elif seat.answer is not None and ray.wait([seat.answer], timeout=0)[0]:
            try:
                kind, said = ray.get(seat.answer)
            except exceptions.RayError as error:
                self._lost(seat, as_cluster_error(NAME, "taking a seat", error), REFUSED_SECONDS)
                return
            if kind != "ok":
                self._lost(seat, Refused(NAME, *said), REFUSED_SECONDS)
            elif said is None:  # another run has a worker of this name there
                self._rename(seat, self._fresh())
                seat.answer = self._settle(seat)
            else:
                seat.place, seat.answer, seat.trouble = Place.model_validate(said), None, None
                self._rename(seat, seat.place.worker)
                seat.is_new = False

    def _settle(self, seat: _Seat) -> Any:
        """Have a seat take a folder; a new folder has a name that none had, or two nodes could have one each."""
        assert seat.actor is not None
        fresh = seat.name if seat.is_new else self._fresh()
        return seat.actor.call.remote("settle", self._run_id, run_tag(self._run_id), fresh)

    def _lost(self, seat: _Seat, trouble: ClusterError, seconds: float) -> None:
        """Note that a seat has ended, and ask for another one in its place after so many seconds."""
        if seat.actor is not None:
            ray.kill(seat.actor)
        seat.actor = seat.answer = seat.place = seat.ended = seat.search = None
        seat.left_overs = ()
        seat.trouble, seat.retry_at = trouble, self._clock() + seconds

    def _rename(self, seat: _Seat, name: str) -> None:
        """Name a seat after its folder; another one that had this name, and has no folder, gets a new one."""
        for other in self._seats:
            if other is not seat and other.name == name:
                other.name, other.is_new = self._fresh(), True
        seat.name = name

    def _fresh(self) -> str:
        self._last_number += 1
        return f"ray-{self._last_number}"

    def _follow_room(self, room: int) -> None:
        """Have as many seats as there is room for, and one that waits where there is none."""
        now = self._clock()
        waiting = [seat for seat in self._seats if seat.place is None]
        self._no_room_beyond = min(self._no_room_beyond, room)
        for _ in range(room - len(waiting) - self._no_room_beyond):
            self._seats.append(_Seat(self._fresh(), now))
        late = [seat for seat in waiting if seat.actor is not None and now - seat.since > PATIENCE_SECONDS]
        for seat in late[: len(self._seats) - 1]:
            self._lost(seat, Unreachable(NAME, *self._waits()), math.inf)
            self._seats.remove(seat)
            self._no_room_beyond = room

    def _search_left_overs(self) -> None:
        """Have each seat look now and then for games on its node that no seat has."""
        search = self._clock() >= self._search_at
        if search:
            self._search_at = self._clock() + LEFT_OVERS_SECONDS
        for seat in self._seats:
            if seat.place is None or seat.actor is None:
                continue
            if seat.search is not None and ray.wait([seat.search], timeout=0)[0]:
                try:
                    kind, found = ray.get(seat.search)
                    seat.left_overs = tuple(found) if kind == "ok" else ()
                except exceptions.RayActorError:
                    seat.ended = Unreachable(NAME, "its seat has ended")
                seat.search = None
            elif search and seat.search is None:
                seat.search = seat.actor.call.remote("left_overs", self._run_id, run_tag(self._run_id))

    def _list(self) -> None:
        """Renew what the fleet sees."""
        found: dict[str, _Listed] = {}
        for seat in self._seats:
            for name in seat.left_overs:
                found[name] = _Listed(seat=seat, actor=seat.actor, place=seat.place, plays=False, trouble=None)
        for seat in self._seats:
            if seat.place is None and seat.name in found:
                seat.name, seat.is_new = self._fresh(), True
            trouble = self._trouble or seat.trouble
            found[seat.name] = _Listed(seat=seat, actor=seat.actor, place=seat.place, plays=True, trouble=trouble)
        if found.keys() != self._listed.keys():
            self._machines = tuple(self._machine(name) for name in found)
        self._listed = found


def _note_end(seat: _Seat, actor: ActorHandle, error: Unreachable) -> None:
    """Note that a seat has ended; one that only does not answer may answer later."""
    cause = error.__cause__
    gone = isinstance(cause, exceptions.RayActorError) and not isinstance(cause, exceptions.ActorUnavailableError)
    if gone and seat.actor is actor:
        seat.ended = error
