"""The door of a run: machines, their keys, and the mailboxes through which their workers and the fleet exchange files.

A mailbox is a worker folder on the main node (``keima/worker/worker_folder.py``). The fleet treats it as that of any
worker: it puts the assignment and models into the inbox and takes games from the outbox. The door is the other side: it
passes on what is in the inbox, and puts into the outbox what a machine hands in. So nothing in how games are granted,
received and counted depends on the door.

A batch is acknowledged after it is on the disk. It may be deleted on the machine when two things are so: the fleet has
removed it from the mailbox, because its games are in the ledger; and the machine has the assignment that counts them.
The fleet writes that assignment first. The door therefore reads the outbox first, and the assignment after it.

Nothing here is about HTTP; ``keima/cluster/http/app.py`` is.
"""

import hashlib
import json
import logging
import math
import os
import re
import shutil
import time
import unicodedata
from collections.abc import Callable, Collection, Iterable
from contextlib import AbstractContextManager, suppress
from dataclasses import asdict, dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import Any, Generic, TypeVar

from pydantic import ValidationError

from keima.base.file_stamp import StampedFiles
from keima.base.files import PART, read_limited, sync_folder, write_atomically
from keima.base.reports.text import printable_line
from keima.base.system.disk_space import free_disk_bytes
from keima.base.system.threads import new_lock
from keima.cluster.http.limits import MACHINE_BYTES, MACHINE_REQUESTS, MAILBOX_BYTES, Buckets
from keima.cluster.http.links import FILE as LINKS
from keima.cluster.http.links import StoredLink, find_link, read_links
from keima.cluster.http.protocol import (
    MACHINE_NAME,
    MOST_PART_BYTES,
    InboxFile,
    Orders,
    Registered,
    Registration,
    SyncReply,
    SyncRequest,
    WorkerReport,
)
from keima.coach.crowd.verdicts import REFUSED, read_refused
from keima.config.sections.crowd import CrowdSettings
from keima.data.batch_file import MAX_BATCH_BYTES
from keima.worker.model_push import MODEL_NAME
from keima.worker.worker_folder import (
    BATCH_NAME,
    CROWD,
    MAX_JSON_BYTES,
    TAGGED,
    Heartbeat,
    WorkerFolder,
    is_batch_of_run,
    machine_of,
)

log = logging.getLogger(__name__)

MACHINES = "machines"  # in the crowd's folder: what the door knows of each machine
SEEN = "seen"  # in a mailbox: changed at every report
PRESENT_SECONDS = 60.0  # after its last report, a machine is present
SESSION_SECONDS = 30.0  # of silence, until another process may take a machine's place
SYNCS_PER_SECOND = 100.0  # of all machines together
LEAST_SYNC_SECONDS, MOST_SYNC_SECONDS = 2.0, 20.0
SPARE_BYTES = 2**30  # of the main node's disk, that games from outside leave free
RATE_SECONDS = 600.0  # over which the games of a worker are counted
SPEED_FACTOR = 3.0  # a worker may say that it plays this many times as fast as its games have come
MOST_EVALUATIONS = 2e6  # of one worker in a second, which no GPU exceeds
MOST_CORES = 4.0  # that a worker may say that it keeps busy
MOST_PARTS = 2  # batches of a worker that are begun and not here yet
STALE_SECONDS = 3600.0
GONE_SECONDS = 30 * 86_400.0
REGISTRATIONS_PER_SECOND = 1.0  # by a link, in the long run
MOST_NAME = 30  # characters
NAME_KINDS = "LNPZ"  # kinds of characters in a name (Unicode): letters, numbers, punctuation and spaces
INVISIBLE = '\u115f\u1160\u3164\uffa0<>&|"\\'
OWN, FILES, NAMELESS = "the run's own machines", "games from files", "somebody"  # in the public table
KEPT_NAMES = 2000  # of a worker's batches
KEPT_HASHES = 20_000  # of files
T = TypeVar("T")

_hashes: dict[str, str] = {}  # by the stamp of a file


class DoorRefusal(Exception):
    """A request is refused; ``status`` is that of HTTP, and the text says why."""

    def __init__(self, status: HTTPStatus, text: str, *, retry_seconds: float = 0.0) -> None:
        super().__init__(text)
        self.status, self.retry_seconds = status, retry_seconds


@dataclass(frozen=True, kw_only=True)
class Machine:
    """A machine that has registered, as its file keeps it."""

    id: str  # its name and the first digits of its key's hash
    name: str  # for the table
    link: str  # the id of the link that it came by
    key_sha256: str
    workers: int
    since: float  # seconds since 1970
    processor: str = ""

    @property
    def worker_names(self) -> tuple[str, ...]:
        """The names of its workers."""
        return tuple(f"{CROWD}{self.id}-{number}" for number in range(1, self.workers + 1))


@dataclass
class _Mailbox:
    """What the door remembers of a worker while it runs."""

    folder: WorkerFolder
    accepted: dict[str, None] = field(default_factory=dict)  # batches that were put into the outbox, oldest first
    delivered: list[tuple[float, int]] = field(default_factory=list)  # times, and games that the ledger had received

    def note_batch(self, name: str) -> None:
        self.accepted[name] = None
        while len(self.accepted) > KEPT_NAMES:
            del self.accepted[next(iter(self.accepted))]

    def forget_batches(self, present: Collection[str]) -> None:
        """Forget accepted batches that neither the machine nor the outbox has: nobody hands them in again."""
        for name in [name for name in list(self.accepted) if name not in present]:
            self.accepted.pop(name, None)

    def note_delivered(self, games: int, now: float) -> None:
        if not self.delivered or games != self.delivered[-1][1]:
            self.delivered.append((now, games))
        while len(self.delivered) > 2 and now - self.delivered[1][0] > RATE_SECONDS:
            del self.delivered[0]

    def games_per_second(self, now: float) -> float:
        """Return how fast the Coach has received games lately."""
        if len(self.delivered) < 2:
            return 0.0
        (began, before), (_, games) = self.delivered[0], self.delivered[-1]
        return max(0, games - before) / max(1.0, now - began)


@dataclass
class _Presence:
    """A machine's last report."""

    session: str
    heard: float


class Door:
    """See the module.

    Args:
        folder: the crowd's folder in that of the run.
        run_id: the run's id.
        settings: of the crowd.
        code_hash: of the code that workers must run.
        clock: a monotonic clock in seconds.
        wall: seconds since 1970.

    Raises:
        OSError: the folder cannot be used.
    """

    def __init__(
        self,
        folder: Path,
        *,
        run_id: str,
        settings: CrowdSettings,
        code_hash: str,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.folder, self.run_id, self.code_hash = folder, run_id, code_hash
        self.settings, self._clock, self._wall = settings, clock, wall
        for each in (folder, folder / MACHINES, folder / "workers"):
            each.mkdir(mode=0o700, exist_ok=True)
        self._machines: dict[str, Machine] = {}  # by the hash of the key
        self._ids: set[str] = set()
        for machine in read_machines(folder):
            self._machines[machine.key_sha256] = machine
            self._ids.add(machine.id)
        self._mailboxes: dict[str, _Mailbox] = {}
        self._presence: dict[str, _Presence] = {}
        self._opened, self._guard = wall(), new_lock()
        self._opened_at, self._registered_at = clock(), dict[str, float]()  # the latter by the hash of the key
        self._locks: dict[str, AbstractContextManager[object]] = {}  # by machine: its requests take turns
        self._requests = Buckets(*MACHINE_REQUESTS, clock=clock)
        self._registrations = Buckets(REGISTRATIONS_PER_SECOND, settings.machines_per_link, clock=clock)
        self._bytes = Buckets(*MACHINE_BYTES, clock=clock)
        self._links = _WatchedFile(folder / LINKS, lambda path: read_links(path.parent), list[StoredLink]())
        self._refused = _WatchedFile(folder / REFUSED, _refused_machines, dict[str, str]())

    # Who may enter.

    def admit_link(self, secret: str, *, key: str = "") -> StoredLink:
        """Return the link with this secret. One that has expired still admits the machine with this ``key`` that has
        come by it.

        Raises:
            DoorRefusal: there is none, or it is not valid any more.
        """
        link = find_link(self._links.read(), secret)
        if link is None:
            raise DoorRefusal(HTTPStatus.UNAUTHORIZED, "this link is not known here: copy all of it")
        if problem := link.problem_at(self._wall()):
            machine = self._machines.get(_hash(key))
            if link.revoked is not None or machine is None or machine.link != link.id:
                raise DoorRefusal(HTTPStatus.FORBIDDEN, problem)
        return link

    def admit_machine(self, key: str) -> Machine:
        """Return the machine with this key.

        Raises:
            DoorRefusal: there is none, it is not believed, its link was revoked, or it asks too often.
        """
        machine = self._machines.get(_hash(key))
        if machine is None:
            raise DoorRefusal(HTTPStatus.UNAUTHORIZED, "this machine is not registered here: join again by a link")
        if not any(link.id == machine.link and link.revoked is None for link in self._links.read()):
            raise DoorRefusal(HTTPStatus.FORBIDDEN, "the link that this machine came by was revoked")
        if reason := self._refused.read().get(f"{CROWD}{machine.id}"):
            raise DoorRefusal(HTTPStatus.FORBIDDEN, f"the games of this machine are not accepted: {reason}")
        if not self._requests.take(machine.id):
            seconds = self._requests.seconds_until(machine.id)
            raise DoorRefusal(HTTPStatus.TOO_MANY_REQUESTS, "this machine asks too often", retry_seconds=seconds)
        return machine

    def register(self, link: StoredLink, wanted: Registration) -> Registered:
        """Register a machine that came by a link; one that is registered has as many workers as it now wants.

        Raises:
            DoorRefusal: there is no room for it.
            OSError: it cannot be stored.
        """
        with self._guard:
            return self._register(link, wanted)

    def _register(self, link: StoredLink, wanted: Registration) -> Registered:
        digest = _hash(wanted.key)
        known = self._machines.get(digest)
        if known is None and not self._registrations.take(link.id):
            raise DoorRefusal(HTTPStatus.TOO_MANY_REQUESTS, "too many machines register by this link", retry_seconds=60)
        others = [each for each in self._machines.values() if each.key_sha256 != digest and self._is_counted(each)]
        by_link = [each for each in others if each.link == link.id]
        if len(others) >= self.settings.most_machines or len(by_link) >= self.settings.machines_per_link:
            raise DoorRefusal(HTTPStatus.SERVICE_UNAVAILABLE, "the run has no room for more machines; try again later")
        if sum(each.workers for each in by_link) + wanted.workers > self.settings.workers_per_link:
            raise DoorRefusal(HTTPStatus.SERVICE_UNAVAILABLE, "this link has no room for more workers; try with fewer")
        machine = Machine(
            id=known.id if known else self._new_id(wanted.name, digest),
            name=clean_name(wanted.name),
            link=link.id,
            key_sha256=digest,
            workers=wanted.workers,
            since=known.since if known else self._wall(),
            processor=printable_line(wanted.processor)[:200],
        )
        if machine != known:
            content = json.dumps(asdict(machine)).encode()
            write_atomically(self.folder / MACHINES / f"{machine.id}.json", content)
            self._machines[digest] = machine
            self._ids.add(machine.id)
        self._registered_at[digest] = self._clock()
        for worker in machine.worker_names:
            self._mailbox(worker)
        return Registered(run_id=self.run_id, workers=machine.worker_names)

    def _is_counted(self, machine: Machine) -> bool:
        """Return whether a machine takes room: it is present, or has just registered."""
        return self._has_reported_within(PRESENT_SECONDS, machine.id) or (
            self._clock() - self._registered_at.get(machine.key_sha256, -math.inf) < PRESENT_SECONDS
        )

    def _has_reported_within(self, seconds: float, machine_id: str) -> bool:
        seen = self._presence.get(machine_id)
        return seen is not None and self._clock() - seen.heard < seconds

    def _new_id(self, name: str, digest: str) -> str:
        short = re.sub("[^a-z0-9]+", "-", name.lower())[:16].strip("-") or "somebody"
        assert MACHINE_NAME.fullmatch(short)
        return next(found for size in range(4, 13) if (found := f"{short}-{digest[:size]}") not in self._ids)

    def _mailbox(self, worker: str) -> _Mailbox:
        if worker not in self._mailboxes:
            folder = WorkerFolder(self.folder / "workers" / worker).create_folders()
            self._mailboxes[worker] = _Mailbox(folder)
        return self._mailboxes[worker]

    # Reports.

    def sync(self, machine: Machine, report: SyncRequest) -> SyncReply:
        """Process a machine's report.

        Raises:
            DoorRefusal: another process has the machine's place, or its code is another one.
            OSError: this machine's disk takes no files; everything can be repeated.
        """
        with self.machine_lock(machine):
            return self._sync(machine, report)

    def machine_lock(self, machine: Machine) -> AbstractContextManager[object]:
        """Return the lock that the requests of a machine hold while they change its mailboxes."""
        with self._guard:
            return self._locks.setdefault(machine.id, new_lock())

    def _sync(self, machine: Machine, report: SyncRequest) -> SyncReply:
        if report.code != self.code_hash:
            raise DoorRefusal(HTTPStatus.UPGRADE_REQUIRED, f"this run needs the code {self.code_hash}")
        now, seen = self._clock(), self._presence.get(machine.id)
        if seen and seen.session != report.session and now - seen.heard < SESSION_SECONDS:
            raise DoorRefusal(
                HTTPStatus.CONFLICT,
                "another process of this machine has its place in the run; if there is none, try again in a minute",
                retry_seconds=SESSION_SECONDS,
            )
        self._presence[machine.id] = _Presence(report.session, now if not report.leaving else now - SESSION_SECONDS)
        own = {*machine.worker_names}
        orders = [
            self._sync_worker(machine, each, paused=report.paused) for each in report.workers if each.worker in own
        ]
        return SyncReply(seconds=self.sync_seconds(), orders=tuple(orders))

    def sync_seconds(self) -> float:
        """Return the seconds between two reports of a machine: more with many machines."""
        wanted = self.count_present() / SYNCS_PER_SECOND
        return min(max(LEAST_SYNC_SECONDS, wanted), MOST_SYNC_SECONDS)

    def count_present(self) -> int:
        """Return how many machines have reported within the last minute."""
        now = self._clock()
        return sum(now - seen.heard < PRESENT_SECONDS for seen in list(self._presence.values()))

    def _sync_worker(self, machine: Machine, report: WorkerReport, *, paused: bool) -> Orders:
        mailbox = self._mailbox(report.worker)
        folder = mailbox.folder.create_folders()
        if report.heartbeat is not None:
            self._store_heartbeat(machine, mailbox, report.worker, report.heartbeat)
        if not paused:  # else others play its games meanwhile
            (folder.root / SEEN).touch(mode=0o600)
        here = {path.name for path in folder.batch_files()}  # first: see the module
        assignment, stamp = read_stamped(folder.inbox / "assignment.json")
        names = [each.name for each in report.outbox if is_batch_of_run(each.name, self.run_id)]
        mailbox.forget_batches({*names, *here})
        taken = [name for name in names if name in mailbox.accepted and name not in here]
        wanted = [name for name in names if name not in mailbox.accepted and name not in here]
        found = _parse_assignment(assignment, self.run_id)
        if found is None or (found.get("stop") and _last_change(folder.inbox / "assignment.json") < self._opened):
            return Orders(worker=report.worker)  # the latter is of an earlier session of the run, which goes on
        mailbox.note_delivered(int(found["delivered"]), self._clock())
        is_new = stamp != report.assignment
        return Orders(
            worker=report.worker,
            files=tuple(list_needed_files(folder, found)),
            assignment=assignment.decode() if is_new and assignment else None,
            stamp=stamp,
            uploads=tuple((name, self._uploaded_bytes(report.worker, name)) for name in wanted),
            remove=tuple(taken),
        )

    def _store_heartbeat(self, machine: Machine, mailbox: _Mailbox, worker: str, text: str) -> None:
        """Put a heartbeat into the mailbox, with no greater figures than games and time have shown."""
        try:
            heartbeat = Heartbeat.model_validate(json.loads(text))
        except (ValidationError, ValueError, RecursionError):
            raise DoorRefusal(HTTPStatus.BAD_REQUEST, f"the heartbeat of {worker} is invalid") from None
        if (heartbeat.worker, heartbeat.run_id) != (worker, self.run_id):
            raise DoorRefusal(HTTPStatus.BAD_REQUEST, f"the heartbeat of {worker} is of another worker or run")
        credible = SPEED_FACTOR * mailbox.games_per_second(self._clock())
        seconds = max(0.0, self._wall() - machine.since)
        bounded = {
            "speed": min(heartbeat.speed, credible),
            "games_per_second": min(heartbeat.games_per_second, credible),
            "evaluations_per_second": min(heartbeat.evaluations_per_second, MOST_EVALUATIONS) if credible else 0.0,
            "processor_seconds": min(heartbeat.processor_seconds, MOST_CORES * seconds),
        }
        data = heartbeat.model_copy(update=bounded).model_dump_json(indent=1).encode()
        write_atomically(mailbox.folder.root / "worker.json", data, durable=False)

    # Files.

    def inbox_file(self, machine: Machine, worker: str, name: str) -> Path:
        """Return a file of a mailbox's inbox.

        Raises:
            DoorRefusal: there is none, or the worker is of another machine.
        """
        path = self._own_folder(machine, worker).inbox / name
        if path.name != name or name.startswith(".") or name.endswith(PART) or not path.is_file():
            raise DoorRefusal(HTTPStatus.NOT_FOUND, "there is no such file; a newer one may have taken its place")
        return path

    def _own_folder(self, machine: Machine, worker: str) -> WorkerFolder:
        if worker not in machine.worker_names:
            raise DoorRefusal(HTTPStatus.NOT_FOUND, "this machine has no such worker")
        return self._mailbox(worker).folder.create_folders()

    def check_upload(self, machine: Machine, worker: str, name: str, *, offset: int, size: int, total: int) -> None:
        """Check that a part of a batch may be sent.

        Args:
            machine: that sends it.
            worker: whose batch it is.
            name: of the batch's file.
            offset: in bytes, where the part begins.
            size: bytes of the part.
            total: bytes of the batch.

        Raises:
            DoorRefusal: it may not, or the batch is here.
        """
        folder = self._own_folder(machine, worker)
        if not (BATCH_NAME.fullmatch(name) and TAGGED.fullmatch(name) and is_batch_of_run(name, self.run_id)):
            raise DoorRefusal(HTTPStatus.BAD_REQUEST, f"{name[:120]} is not the name of a batch of this run")
        if not (0 < total <= MAX_BATCH_BYTES and 0 < size <= MOST_PART_BYTES and 0 <= offset <= total - size):
            raise DoorRefusal(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"a batch has at most {MAX_BATCH_BYTES:,} bytes")
        if name in self._mailbox(worker).accepted or (folder.outbox / name).exists():
            raise DoorRefusal(HTTPStatus.OK, "the batch is here")
        part = self._part_path(worker, name)
        others = [path for path in part.parent.glob(f"*{PART}") if path != part]
        waiting = sum(path.stat().st_size for path in _existing([*folder.batch_files(), *others]))
        if waiting + total > MAILBOX_BYTES or len(others) >= MOST_PARTS:
            raise DoorRefusal(
                HTTPStatus.TOO_MANY_REQUESTS, "the Coach has not taken this worker's last games", retry_seconds=60.0
            )
        free = free_disk_bytes(self.folder)
        if free is not None and free < SPARE_BYTES:
            raise DoorRefusal(HTTPStatus.INSUFFICIENT_STORAGE, "the main node's disk is full", retry_seconds=60.0)
        if not self._bytes.take(machine.id, size):
            seconds = self._bytes.seconds_until(machine.id, size)
            raise DoorRefusal(HTTPStatus.TOO_MANY_REQUESTS, "this machine sends too much", retry_seconds=seconds)

    def store_part(self, worker: str, name: str, part: bytes, *, offset: int, total: int, sha256: str) -> int:
        """Store a part of a batch that ``check_upload`` has accepted; return the bytes of it that are here.

        The last part puts the batch into the outbox; it is on the disk when this returns.

        Raises:
            DoorRefusal: it is not the next part, or the batch has another hash.
            OSError: the disk does not take it.
        """
        mailbox = self._mailbox(worker)
        path = self._part_path(worker, name)
        path.parent.mkdir(mode=0o700, exist_ok=True)
        with os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), "r+b") as file:
            here = file.seek(0, os.SEEK_END)
            if offset > here:
                raise DoorRefusal(HTTPStatus.CONFLICT, f"the next part begins at byte {here}")
            file.seek(offset)
            file.write(part)
            file.truncate()
            if offset + len(part) < total:
                return offset + len(part)
            file.flush()
            file.seek(0)
            if hashlib.file_digest(file, "sha256").hexdigest() != sha256:
                file.truncate(0)
                raise DoorRefusal(HTTPStatus.UNPROCESSABLE_ENTITY, "the batch has another SHA-256 than announced")
            os.fsync(file.fileno())
        path.replace(mailbox.folder.outbox / name)
        sync_folder(mailbox.folder.outbox)
        mailbox.note_batch(name)
        return total

    def _part_path(self, worker: str, name: str) -> Path:
        return self._mailbox(worker).folder.root / "uploads" / f"{name}{PART}"

    def _uploaded_bytes(self, worker: str, name: str) -> int:
        try:
            return self._part_path(worker, name).stat().st_size
        except FileNotFoundError:
            return 0

    def tidy(self) -> None:
        """Remove what nobody needs: models of machines that have left and that no assignment names, parts of batches
        that nobody continues, and machines that have registered and never reported, or not for a month. Such a one
        registers again when it returns.
        """
        now = self._wall()
        self._forget_machines()
        has_just_opened = self._clock() - self._opened_at < 2 * PRESENT_SECONDS  # they have not reported yet
        for root in (self.folder / "workers").glob(f"{CROWD}*"):
            folder = WorkerFolder(root)
            assignment = _parse_assignment(read_stamped(folder.inbox / "assignment.json")[0], self.run_id)
            needed = {each.name for each in list_needed_files(folder, assignment)} if assignment else set()
            machine_id = machine_of(root.name).removeprefix(CROWD)
            present = has_just_opened or self._has_reported_within(2 * PRESENT_SECONDS, machine_id)
            for path in (root / "uploads").glob(f"*{PART}"):
                with suppress(FileNotFoundError):
                    if now - path.stat().st_mtime > STALE_SECONDS:
                        path.unlink()
            for path in _inbox_models(folder):
                with suppress(FileNotFoundError):
                    if now - path.stat().st_mtime > PRESENT_SECONDS and not (present and path.name in needed):
                        path.unlink()

    def _forget_machines(self) -> None:
        now = self._clock()
        for machine_id, report in list(self._presence.items()):
            if now - report.heard > STALE_SECONDS and self._presence.get(machine_id) is report:
                self._presence.pop(machine_id, None)
        for digest, machine in list(self._machines.items()):
            roots = [self.folder / "workers" / worker for worker in machine.worker_names]
            with self._guard:  # it may register now
                is_new = now - self._registered_at.get(digest, self._opened_at) < STALE_SECONDS
                seen = max((_last_change(root / SEEN) for root in roots), default=0.0)  # 0: never
                if is_new or machine.id in self._presence or self._wall() - seen < GONE_SECONDS:
                    continue
                if any(WorkerFolder(root).batch_files() for root in roots):
                    continue
                (self.folder / MACHINES / f"{machine.id}.json").unlink(missing_ok=True)
                for root in roots:
                    self._mailboxes.pop(root.name, None)
                    shutil.rmtree(root, ignore_errors=True)
                self._machines.pop(digest, None)
                self._registered_at.pop(digest, None)
                self._ids.discard(machine.id)
                self._locks.pop(machine.id, None)


def clean_name(text: str) -> str:
    """Return a name for the public table: letters, digits and a few signs, and none of the table's own lines."""
    kept = "".join(char for char in unicodedata.normalize("NFC", text) if unicodedata.category(char)[0] in NAME_KINDS)
    short = printable_line("".join(char for char in kept if char not in INVISIBLE))[:MOST_NAME].strip()
    return NAMELESS if not short or short.casefold() in (OWN, FILES, NAMELESS) else short


def read_machine(path: Path) -> Machine | None:
    """Return the machine of a file; None, and a warning, if the file is damaged."""
    try:
        return Machine(**json.loads(read_limited(path, MAX_JSON_BYTES)))
    except (OSError, ValueError, TypeError, RecursionError) as error:
        log.warning("%s cannot be read, so its machine must register again: %s", path, error)
        return None


def machine_files(folder: Path) -> StampedFiles[Machine | None]:
    """Return the files of the machines that have registered, in the crowd's ``folder``."""
    return StampedFiles(folder / MACHINES, ".json", read_machine)


def read_machines(folder: Path) -> list[Machine]:
    """Return the machines that have registered, in the order of their ids; damaged files are left out."""
    return [machine for machine in machine_files(folder).read() if machine]


def last_report(folder: Path, worker: str) -> float:
    """Return when a worker's machine has last reported on it, by the clock of files; 0: never."""
    return _last_change(folder / "workers" / worker / SEEN)


def read_stamped(path: Path) -> tuple[bytes, str]:
    """Return a small file's content and its stamp; empty if there is none."""
    try:
        with path.open("rb") as file:
            return file.read(MAX_JSON_BYTES), _stamp(os.fstat(file.fileno()))
    except FileNotFoundError:
        return b"", ""


def list_needed_files(folder: WorkerFolder, assignment: dict[str, Any]) -> Iterable[InboxFile]:
    """Yield the files of an inbox that an assignment needs: its model or deltas to it, and own modules."""
    version = int(assignment["model_version"])
    named = {f"{name}.py" for name in assignment.get("modules", ())}
    for path in sorted(folder.inbox.iterdir()):
        match = MODEL_NAME.fullmatch(path.name)
        if (match and int(match[1]) == version) or path.name in named:
            with suppress(FileNotFoundError):
                size, sha256 = _hash_file(path)
                yield InboxFile(name=path.name, bytes=size, sha256=sha256)


def _hash_file(path: Path) -> tuple[int, str]:
    """Return size and SHA-256 of a file that is replaced, never changed."""
    with path.open("rb") as file:
        found = os.fstat(file.fileno())
        key = _stamp(found)
        if key not in _hashes:
            _hashes[key] = hashlib.file_digest(file, "sha256").hexdigest()
            while len(_hashes) > KEPT_HASHES:
                del _hashes[next(iter(_hashes))]
        return found.st_size, _hashes[key]


def _inbox_models(folder: WorkerFolder) -> list[Path]:
    try:
        return [path for path in folder.inbox.iterdir() if path.name.startswith(("model-", "player-"))]
    except FileNotFoundError:
        return []


def _parse_assignment(text: bytes, run_id: str) -> dict[str, Any] | None:
    """Return the fleet's assignment; None if there is none for this run."""
    try:
        found = json.loads(text)
    except ValueError:
        return None
    return found if isinstance(found, dict) and found.get("run_id") == run_id else None


def _existing(paths: Iterable[Path]) -> Iterable[Path]:
    return (path for path in paths if path.exists())


def _stamp(found: os.stat_result) -> str:
    return f"{found.st_ino}-{found.st_mtime_ns}-{found.st_size}"


def _last_change(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _hash(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


def _refused_machines(path: Path) -> dict[str, str]:
    """Return the reason why a machine is refused, by what the names of its workers begin with."""
    return {machine_of(worker): reason for worker, reason in reversed(read_refused(path).items())}


class _WatchedFile(Generic[T]):
    """A file that is read again when it has changed; while it cannot be read, what was read last holds."""

    def __init__(self, path: Path, read: Callable[[Path], T], empty: T) -> None:
        self._path, self._read, self._value, self._stamp = path, read, empty, ""

    def read(self) -> T:
        """Return its value now."""
        try:
            stamp = _stamp(self._path.stat())
            if stamp != self._stamp:
                self._value, self._stamp = self._read(self._path), stamp
        except FileNotFoundError:
            pass
        except (OSError, ValueError) as error:
            log.warning("%s cannot be read now: %s", self._path, error)
        return self._value
