"""One worker's folder on its machine, and its mirror on the main node, which the Coach reads: what is copied between the two, and when.

Up go models and the assignment, down come the heartbeat and finished games. A file leaves the worker's outbox only after the Coach has
taken it out of the mirror's outbox, which it does when the games are in the books, and after the assignment lies on the worker that
counts them as delivered. Whatever is cut off in between is done again: a file that is fetched twice has the same name and content.
"""

import json
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from distributed.errors import RemoteFailure
from distributed.machine import place, printable
from distributed.transport import Entry, Transport
from training.files import FileTooLarge, sync_folder, write_atomically
from training.receive import MAX_BYTES
from training.worker_folder import BATCH_NAME, MAX_JSON_BYTES, Assignment, Heartbeat, WorkerFolder

RUN_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
STRANGER = "unknown"  # the run of a folder that does not say
MARK = "run_id"  # the file of a mirror that says whose it is
FETCH_SECONDS = 2.0  # so long at a time; heartbeats wait meanwhile

# Puts the folder $1 of run $2 aside, if there are games in it, and brings back what was put aside of run $3.
MAKE_ROOM = (
    'set -e; here=$1; aside=$1.$2; mine=$1.$3; if ls "$here"/outbox/*.games >/dev/null 2>&1; then '
    'if [ -e "$aside" ]; then aside=$aside.$$; fi; mv "$here" "$aside"; '
    'else rm -rf "$here"; fi; if [ -d "$mine" ] && [ "$mine" != "$aside" ]; then mv "$mine" "$here"; fi'
)


@dataclass(frozen=True, kw_only=True)
class PublishedModel:
    """A model as its file."""

    version: int
    data: bytes
    sha256: str


class Mirror:
    """What one worker has been sent, and what has been fetched from it.

    Args:
        seat: the worker's name.
        root: the folder of the mirrors.
        run_id: of the run to which all this belongs.
    """

    def __init__(self, seat: str, *, root: Path, run_id: str) -> None:
        self.seat = seat
        self.folder = open_mirror(root, seat, run_id)
        self.run_id = run_id
        self.model: PublishedModel | None = None  # that lies on the worker, as the assignment there has it
        self.sent: Assignment | None = None  # that lies on the worker
        self.waiting = 0  # files that are yet to be fetched
        self.more = False  # there was no time for all of them
        self._fetched: set[str] = set()
        self._free: list[str] = []  # files that the Coach has taken, and the worker may forget

    @property
    def is_empty(self) -> bool:
        """Whether the worker's outbox was empty at the last look, or holds only what it may forget."""
        return self.waiting == 0 and not self._fetched - set(self._free)

    def settle(self, transport: Transport, end_worker: Callable[[], object]) -> None:
        """See that the worker's folder is this run's; another run's worker is ended and its games are put aside.

        Raises:
            ClusterError: it could not be done.
        """
        owner = self._owner(transport)
        if owner is None:  # nothing there, or nothing any more
            self.model = self.sent = None
        elif owner != self.run_id:
            end_worker()
            mine = self.run_id if RUN_ID.fullmatch(self.run_id) else STRANGER
            done = transport.run(["sh", "-c", MAKE_ROOM, "keima", place(self.seat), owner, mine])
            if done.code:
                said = printable(done.stderr.decode("utf-8", "replace"))[-300:]
                what = f"{place(self.seat)} belongs to another run, {owner}, and cannot be put aside: {said}"
                raise RemoteFailure(transport.worker, what, "move that folder away")
            self.model = self.sent = None

    def look(self, transport: Transport) -> Heartbeat | None:
        """The worker's heartbeat, if there is one, and if it is this run's.

        Raises:
            ClusterError: it could not be read.
        """
        try:
            text = transport.get(f"{place(self.seat)}/worker.json", MAX_JSON_BYTES)
            heartbeat = Heartbeat.model_validate(json.loads(text))
        except FileNotFoundError:
            return None
        except (FileTooLarge, ValidationError, ValueError, RecursionError) as error:
            raise RemoteFailure(transport.worker, f"its heartbeat cannot be understood: {printable(str(error))[:300]}") from error
        return heartbeat if heartbeat.run_id == self.run_id else None

    def fetch(
        self,
        transport: Transport,
        *,
        came: Callable[[str], None],
        seconds: float = FETCH_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> int:
        """Fetch finished games, oldest first, for about so long; ``came`` is told each file. Returns how many came.

        Raises:
            ClusterError: a file could not be fetched, or not be kept; it is tried again at the next call.
        """
        until = clock() + seconds
        entries = [entry for entry in transport.names(f"{place(self.seat)}/outbox") if BATCH_NAME.fullmatch(entry.name)]
        there = {entry.name for entry in entries}
        here = {name for name in there if (self.folder.outbox / name).exists()}
        self._fetched = (self._fetched & there) | here
        self._free = sorted(self._fetched - here)
        missing = [entry for entry in entries if entry.name not in self._fetched]
        self.waiting, self.more = len(missing), False
        fetched = 0
        for entry in missing:
            if fetched and clock() >= until:
                self.more = True
                break
            if self._fetch_one(transport, entry):
                came(entry.name)
                fetched += 1
            self.waiting -= 1
        return fetched

    def _fetch_one(self, transport: Transport, entry: Entry) -> bool:
        try:
            data = transport.get(f"{place(self.seat)}/outbox/{entry.name}", MAX_BYTES)
        except FileNotFoundError:
            return False
        except FileTooLarge:
            self._stand_in(transport, entry)
        else:
            try:
                write_atomically(self.folder.outbox / entry.name, data)
            except OSError as error:
                raise _not_kept(transport, entry.name, error) from error
        self._fetched.add(entry.name)
        return True

    def _stand_in(self, transport: Transport, entry: Entry) -> None:
        """A file without content, as large as one that is too large: whoever receives it refuses it with the right reason."""
        part = self.folder.root / f"{entry.name}.part"
        try:
            with part.open("wb") as file:
                file.truncate(MAX_BYTES + 1)
            part.replace(self.folder.outbox / entry.name)
            sync_folder(self.folder.outbox)
        except OSError as error:
            raise _not_kept(transport, entry.name, error) from error

    def forget(self, transport: Transport, *, counted: bool) -> None:
        """Remove from the worker what the Coach has taken; ``counted``: its assignment says so, or nobody plays there any more.

        The assignment must be one that was read after the last ``fetch``.

        Raises:
            ClusterError: a file could not be removed; it is tried again at the next call.
        """
        while counted and self._free:
            transport.remove(f"{place(self.seat)}/outbox/{self._free[0]}")
            self._fetched.discard(self._free.pop(0))

    def send_model(self, transport: Transport, model: PublishedModel, *, beside: str | None) -> None:
        """Put a model into the worker's inbox; the worker does not know of it before the next assignment.

        Args:
            beside: another worker of the same machine that has it already.

        Raises:
            ClusterError: it did not get there; what did is not sent again.
        """
        name = WorkerFolder(Path()).model_path(model.version).as_posix()
        if not (beside and self._link_model(transport, f"{place(beside)}/{name}", name)):
            transport.put(model.data, f"{place(self.seat)}/{name}")
        self.model = model

    def _link_model(self, transport: Transport, there: str, name: str) -> bool:
        here = f"{place(self.seat)}/{name}"
        make = 'mkdir -p -m 700 "${2%/*}" && ln -f "$1" "$2"'
        return transport.run(["sh", "-c", make, "keima", there, here]).code == 0

    def send_assignment(self, transport: Transport, wanted: Assignment) -> None:
        """Replace the worker's assignment, naming the model that lies there, if it differs from what it has.

        Raises:
            ClusterError: it did not get there.
        """
        assert self.model is not None
        assignment = wanted.model_copy(update={"model_version": self.model.version, "model_sha256": self.model.sha256})
        if assignment != self.sent:
            transport.put(assignment.model_dump_json(indent=1).encode(), f"{place(self.seat)}/inbox/assignment.json")
            self.sent = assignment

    def _owner(self, transport: Transport) -> str | None:
        """Whose the worker's folder is; None when nothing there needs care."""
        try:
            found = json.loads(transport.get(f"{place(self.seat)}/inbox/assignment.json", MAX_JSON_BYTES))
        except FileNotFoundError:
            found = None if not transport.names(f"{place(self.seat)}/outbox") else {}
        except (ValueError, RecursionError):
            found = {}
        if found is None:
            return None
        owner = found.get("run_id") if isinstance(found, dict) else None
        return owner if isinstance(owner, str) and RUN_ID.fullmatch(owner) else STRANGER


def open_mirror(root: Path, seat: str, run_id: str) -> WorkerFolder:
    """The mirror of a worker; one of another run is put aside.

    Raises:
        OSError: this machine's disk does not take it.
    """
    mark = root / seat / MARK
    if mark.exists():
        owner = mark.read_text(encoding="utf-8", errors="replace")[:64]
        if owner != run_id:
            mark.parent.rename(root / f"{seat}.{owner if RUN_ID.fullmatch(owner) else STRANGER}")
    folder = WorkerFolder(root / seat).make()
    if not mark.exists():
        write_atomically(mark, run_id.encode())
    return folder


def waiting_files(root: Path, run_id: str) -> dict[str, set[str]]:
    """What an earlier sitting of this run has fetched, and nobody has taken in, by worker; of workers that are no longer too."""
    found: dict[str, set[str]] = {}
    for outbox in root.glob("*/outbox"):
        mark = outbox.parent / MARK
        if not mark.exists() or mark.read_text(encoding="utf-8", errors="replace") == run_id:
            found[outbox.parent.name] = {path.name for path in outbox.iterdir() if BATCH_NAME.fullmatch(path.name)}
    return found


def _not_kept(transport: Transport, name: str, error: OSError) -> RemoteFailure:
    what = f"{name} is there, but cannot be kept here on the main node: {error.strerror or error}"
    return RemoteFailure(transport.worker, what, "make room on the main node's disk, it is then fetched by itself")
