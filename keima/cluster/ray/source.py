"""The workers of a Ray cluster as a source of machines: each slot is a machine with one worker.

A thread keeps the slots: it replaces those that have ended, asks for more where nodes join, and looks for games that
earlier slots have left. A slot's machine is named after the folder that the slot has on its node, which keeps its name
for ever: so account, games and folder belong together, whatever happens to slots and nodes. A folder whose node is gone
leaves the fleet when its slot has found another; games that it was granted and that were not received are given up
then. It comes back when a slot finds it again.
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
from keima.cluster.agent.call import check_value
from keima.cluster.machines.process_manager import ProcessManager
from keima.cluster.machines.release import WorkerRequirements
from keima.cluster.ray.cluster import NAME, RayCluster
from keima.cluster.ray.errors import as_cluster_error
from keima.cluster.ray.node_facts import NodeFacts
from keima.cluster.ray.process_manager import RayProcessManager
from keima.cluster.ray.transport import RayTransport, SharedObjects
from keima.cluster.ssh.errors import ClusterError, NotReadyYet, Refused, Unreachable
from keima.cluster.ssh.transport import Transport
from keima.config.sections.ray import RaySettings
from keima.config.sections.workers import WorkerSettings
from keima.worker.worker_folder import run_tag

log = logging.getLogger(__name__)

STEP_SECONDS = 0.5
JOIN_SECONDS = 5.0  # between two attempts to join the cluster ...
REFUSED_SECONDS = 60.0  # ... and after a refusal, of the cluster or of a slot
LEFT_OVERS_SECONDS = 15.0  # between two searches for games that earlier slots have left
CLOSE_SECONDS = 10.0
START_SECONDS = 15.0  # for a slot to come to life on a node with room
PATIENCE_SECONDS = 60.0  # with slots: auto, for a slot to find room
NUMBERED = re.compile(r"ray-([1-9][0-9]{0,8})")


@dataclass
class _SlotState:
    """A slot that runs or has been requested."""

    name: str  # of its machine; provisional until it has a folder
    since: float  # when it was asked for
    actor: ActorHandle | None = None
    answer: Any = None  # the object with what it says of its place, until that is here
    node: NodeFacts | None = None
    trouble: ClusterError | None = None  # why it does not live
    retry_at: float = 0.0
    ended: ClusterError | None = None  # set by the thread of a connection
    search: Any = None  # the object with the left-overs that it finds
    left_games: tuple[str, ...] = ()
    is_new: bool = True  # no slot has had a folder of this name


@dataclass(frozen=True, kw_only=True)
class _ListedMachine:
    """A machine as the fleet sees it."""

    slot: _SlotState
    actor: ActorHandle | None
    node: NodeFacts | None
    plays: bool  # else games that an earlier slot left are fetched there
    trouble: ClusterError | None


class RaySource:
    """A ``MachineSource`` for the slots of a Ray cluster.

    Args:
        settings: the settings of the slots.
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
        self._no_room_beyond = 0  # with slots: auto, the room that turned out to be none
        self._closed = False
        count = 1 if settings.slots == "auto" else settings.slots
        self._slots = [_SlotState(self._new_name(), clock()) for _ in range(count)]
        self._listed: dict[str, _ListedMachine] = {}
        self._machines: tuple[WorkerSettings, ...] = ()
        self._update_machines()
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
            raise Unreachable(machine.name, "its slot has left the cluster")
        if listed.actor is None or listed.node is None:
            raise self._connect_error(machine.name, listed)
        return RayTransport(machine.name, listed.actor, self._objects, partial(_note_end, listed.slot, listed.actor))

    def process_manager(self, machine: WorkerSettings) -> ProcessManager:
        """See ``MachineSource``."""

        def slot() -> tuple[NodeFacts, bool]:
            listed = self._listed.get(machine.name)
            if listed is None or listed.node is None:
                raise Unreachable(machine.name, "its slot has left the cluster")
            return listed.node, listed.plays

        gpu = self._settings.num_gpus > 0
        return RayProcessManager(machine, slot=slot, gpu=gpu, required=self._required, coach=self._coach)

    def close(self) -> None:
        """See ``MachineSource``: slots end, and with them what still runs there."""
        self._closed = True
        self._thread.wake()
        if self._thread.join(CLOSE_SECONDS) and self._cluster:
            self._cluster.disconnect()

    def _machine_settings(self, name: str) -> WorkerSettings:
        return WorkerSettings(host=name, name=name, directory=self._settings.directory, processes=1, group=NAME)

    def _connect_error(self, name: str, listed: _ListedMachine) -> ClusterError:
        """Return why a slot is not running."""
        trouble = listed.trouble
        if isinstance(trouble, Refused):
            return Refused(name, trouble.what, trouble.remedy)
        if trouble and listed.actor is None:
            return NotReadyYet(name, trouble.what, trouble.remedy)
        what, remedy = "its slot in the Ray cluster is being started", ""
        if self._clock() - listed.slot.since >= START_SECONDS:
            what, remedy = self._waiting_text()
        return NotReadyYet(name, f"{trouble.what}; {what}" if trouble else what, remedy)

    def _waiting_text(self) -> tuple[str, str]:
        gpu = f" and {self._settings.num_gpus:g} GPU" if self._settings.num_gpus else ""
        what = f"it waits for a node of the Ray cluster with {self._settings.num_cpus:g} CPU{gpu} to spare"
        return what, "add nodes, or ask for fewer distributed.ray.slots"

    # The thread.

    def _step(self) -> float:
        """Do whatever is due; return the seconds until the next step."""
        try:
            if self._cluster is None and self._clock() >= self._join_at:
                self._cluster = RayCluster(self._settings, self._required)
            if self._cluster:
                self._keep_slots(self._cluster)
                self._trouble, self._logged = None, ""
        except ClusterError as error:
            self._note_trouble(error)
        except exceptions.RayError as error:
            self._note_trouble(as_cluster_error(NAME, "managing the slots", error))
        except Exception as error:
            log.exception("%s: unexpected", NAME)
            self._note_trouble(
                Refused(NAME, f"unexpected {type(error).__name__}: {error}; please report it, with the log")
            )
        self._update_machines()
        return STEP_SECONDS

    def _note_trouble(self, error: ClusterError) -> None:
        self._trouble = error
        self._join_at = self._clock() + (REFUSED_SECONDS if isinstance(error, Refused) else JOIN_SECONDS)
        if str(error) != self._logged:
            self._logged = str(error)
            self._news.append(str(error))

    def _keep_slots(self, cluster: RayCluster) -> None:
        cluster.refuse_open_cluster()
        for slot in self._slots:
            self._update_slot(slot, cluster)
        if self._settings.slots == "auto":
            self._follow_room(cluster.count_free_slots())
        self._search_left_overs()

    def _update_slot(self, slot: _SlotState, cluster: RayCluster) -> None:
        """Request a slot that is missing, and record whether it has started or ended."""
        if slot.ended:
            self._replace_slot(slot, slot.ended, 0.0)
        if slot.actor is None:
            if self._clock() >= slot.retry_at:
                slot.actor, slot.since = cluster.request_slot(), self._clock()
                slot.answer = self._request_folder(slot)
        elif slot.answer is not None and ray.wait([slot.answer], timeout=0)[0]:
            try:
                kind, said = ray.get(slot.answer)
            except exceptions.RayError as error:
                self._replace_slot(slot, as_cluster_error(NAME, "taking a slot", error), REFUSED_SECONDS)
                return
            if kind != "ok":
                self._replace_slot(slot, Refused(NAME, *said), REFUSED_SECONDS)
            elif said is None:  # another run has a worker of this name there
                self._rename(slot, self._new_name())
                slot.answer = self._request_folder(slot)
            else:
                slot.node, slot.answer, slot.trouble = check_value(slot.name, NodeFacts, said), None, None
                self._rename(slot, slot.node.worker)
                slot.is_new = False

    def _request_folder(self, slot: _SlotState) -> Any:
        """Have a slot take a folder; a new folder has a name that none had, or two nodes could have one each."""
        assert slot.actor is not None
        fresh = slot.name if slot.is_new else self._new_name()
        return slot.actor.call.remote("take_folder", self._run_id, run_tag(self._run_id), fresh)

    def _replace_slot(self, slot: _SlotState, trouble: ClusterError, seconds: float) -> None:
        """Record that a slot has ended, and request another one in its place after so many seconds."""
        if slot.actor is not None:
            ray.kill(slot.actor)
        slot.actor = slot.answer = slot.node = slot.ended = slot.search = None
        slot.left_games = ()
        slot.trouble, slot.retry_at = trouble, self._clock() + seconds

    def _rename(self, slot: _SlotState, name: str) -> None:
        """Rename a slot after its folder; another slot that had this name, and has no folder, gets a new one."""
        for other in self._slots:
            if other is not slot and other.name == name:
                other.name, other.is_new = self._new_name(), True
        slot.name = name

    def _new_name(self) -> str:
        self._last_number += 1
        return f"ray-{self._last_number}"

    def _follow_room(self, room: int) -> None:
        """Keep as many slots as there is room for, and one that waits where there is none."""
        now = self._clock()
        waiting = [slot for slot in self._slots if slot.node is None]
        self._no_room_beyond = min(self._no_room_beyond, room)
        for _ in range(room - len(waiting) - self._no_room_beyond):
            self._slots.append(_SlotState(self._new_name(), now))
        late = [slot for slot in waiting if slot.actor is not None and now - slot.since > PATIENCE_SECONDS]
        for slot in late[: len(self._slots) - 1]:
            self._replace_slot(slot, Unreachable(NAME, *self._waiting_text()), math.inf)
            self._slots.remove(slot)
            self._no_room_beyond = room

    def _search_left_overs(self) -> None:
        """Have each slot search its node regularly for games that no slot has."""
        search = self._clock() >= self._search_at
        if search:
            self._search_at = self._clock() + LEFT_OVERS_SECONDS
        for slot in self._slots:
            if slot.node is None or slot.actor is None:
                continue
            if slot.search is not None and ray.wait([slot.search], timeout=0)[0]:
                try:
                    kind, found = ray.get(slot.search)
                    slot.left_games = tuple(found) if kind == "ok" else ()
                except exceptions.RayActorError:
                    slot.ended = Unreachable(NAME, "its slot has ended")
                slot.search = None
            elif search and slot.search is None:
                slot.search = slot.actor.call.remote("find_left_games", self._run_id, run_tag(self._run_id))

    def _update_machines(self) -> None:
        """Update the fleet's view."""
        found: dict[str, _ListedMachine] = {}
        for slot in self._slots:
            for name in slot.left_games:
                found[name] = _ListedMachine(slot=slot, actor=slot.actor, node=slot.node, plays=False, trouble=None)
        for slot in self._slots:
            if slot.node is None and slot.name in found:
                slot.name, slot.is_new = self._new_name(), True
            trouble = self._trouble or slot.trouble
            found[slot.name] = _ListedMachine(slot=slot, actor=slot.actor, node=slot.node, plays=True, trouble=trouble)
        if found.keys() != self._listed.keys():
            self._machines = tuple(self._machine_settings(name) for name in found)
        self._listed = found


def _note_end(slot: _SlotState, actor: ActorHandle, error: Unreachable) -> None:
    """Record that a slot has ended; one that only does not answer may answer later."""
    cause = error.__cause__
    gone = isinstance(cause, exceptions.RayActorError) and not isinstance(cause, exceptions.ActorUnavailableError)
    if gone and slot.actor is actor:
        slot.ended = error
