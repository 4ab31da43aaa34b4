"""One worker's folder on its machine, its mirror on the main node, and the files that are copied between them.

The Coach reads and writes the mirror. Models and the assignment go to the worker; the heartbeat, finished games and
results of evaluation games come back. The worker deletes results itself. A file of games is deleted from the worker's
outbox only after two things: the Coach has removed it from the mirror's outbox, because the games are in the ledger;
and the assignment on the worker counts the games as delivered. Whatever is interrupted is repeated: a file that is
fetched twice has the same name and content.
"""

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from pydantic import ValidationError

from configs.own_modules import source_of
from distributed.fleet.ownership import Claim
from distributed.remote.owner import LABEL, STRANGER
from distributed.setup.machine import printable_start, worker_place
from distributed.ssh.errors import RemoteFailure
from distributed.ssh.transport import Entry, Transport
from training.common.files import FileTooLarge, sync_folder, write_atomically
from training.data.batch_file import MAX_BATCH_BYTES
from training.evaluation.orders import MAX_RESULT_BYTES, Contestant
from training.worker.model_push import ModelPush, PublishedModel
from training.worker.worker_folder import (
    BATCH_NAME,
    MAX_JSON_BYTES,
    TAGGED,
    Assignment,
    Heartbeat,
    WorkerFolder,
    is_of_run,
)

RUN_MARK = "run_id"  # the file in a mirror that names its run
FAST_LINK = 70e6  # bytes per second; on faster links, decoding a delta takes longer than sending the whole model
LARGE_MODEL_BYTES = 4 * 2**20  # bytes of a model whose transfer time shows the link's speed
FETCH_SECONDS = 2.0  # for one fetch; heartbeats wait meanwhile
CHECK_SECONDS = 1.0  # the maximum age of a check of the folder's owner, when a file is put there or deleted


class Mirror:
    """What one worker has been sent, and what has been fetched from it.

    Args:
        worker: the worker's name.
        root: the folder of the mirrors.
        run_id: the run to which everything here belongs.
        claim: the claim to the worker's folder.

    Attributes:
        model: the model on the worker, as the assignment there has it.
        sent: the assignment on the worker.
        waiting: the number of files still to be fetched.
        more: whether the last fetch ran out of time.
    """

    def __init__(self, worker: str, *, root: Path, run_id: str, claim: Claim) -> None:
        self.worker, self.claim = worker, claim
        self._at = worker_place(worker)  # the source of games: its folder, or the one in which ours are set aside
        self._checked = float("-inf")  # when the folder was last seen to be ours, by this machine's clock
        self._strangers: set[str] = set()  # batches of other runs, by their content alone
        self.folder = open_mirror(root, worker, run_id)
        self.run_id = run_id
        self.model: PublishedModel | None = None
        self.sent: Assignment | None = None
        self.waiting = 0
        self.more = False
        self._heard = False  # there was a heartbeat at the last poll
        self._whole = True  # the model was sent as the whole file
        self._rate = 0.0  # bytes per second of the last large model; 0: unknown
        self._modules: set[str] = set()  # the users' own files that are on the worker
        self._players: set[Contestant] = set()  # the models of evaluation games that are on the worker
        self._results: set[str] = set()  # the results of evaluation games that have been fetched
        self._fetched: set[str] = set()
        self._free: list[str] = []  # files that the Coach has taken and the worker may delete

    @property
    def is_empty(self) -> bool:
        """Whether the worker's outbox was empty at the last poll, or had only files that may be deleted."""
        return self.waiting == 0 and not self._fetched - set(self._free)

    def claim_folder(self, transport: Transport, end_worker: Callable[[], object], *, python: str) -> None:
        """Make sure that the worker's folder is ours; a worker of another run is ended if allowed, and its games are
        set aside.

        Raises:
            Taken: another Coach has it.
            ClusterError: it could not be done.
        """
        if self.claim.take(transport, end_worker, python=python):
            self._forget_all()
        self._checked = time.monotonic()

    def release(self, transport: Transport) -> None:
        """Give up the worker's folder.

        Raises:
            ClusterError: it could not be done.
        """
        # This name belongs to one Coach alone.
        transport.remove(f"{worker_place(self.worker)}/outbox/{self.claim.owner.file_name}")

    def _forget_all(self) -> None:
        """Assume nothing about the files on the worker."""
        self.model = self.sent = None
        self._heard = False
        self._modules.clear()
        self._players.clear()

    def read_heartbeat(self, transport: Transport) -> Heartbeat | None:
        """Return the worker's heartbeat, if there is one and it is of this run.

        Raises:
            ClusterError: it could not be read.
        """
        try:
            text = transport.get(f"{worker_place(self.worker)}/worker.json", MAX_JSON_BYTES)
            heartbeat = Heartbeat.model_validate(json.loads(text))
        except FileNotFoundError:
            if self._heard:  # the folder was deleted
                self._forget_all()
            return None
        except (FileTooLarge, ValidationError, ValueError, RecursionError) as error:
            raise RemoteFailure(
                transport.worker, f"its heartbeat cannot be understood: {printable_start(str(error))[:300]}"
            ) from error
        self._heard = True
        return heartbeat if heartbeat.run_id == self.run_id else None

    def fetch(
        self,
        transport: Transport,
        *,
        came: Callable[[str], None],
        seconds: float = FETCH_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> int:
        """Fetch finished games, oldest first, for about ``seconds``; return how many files came.

        Args:
            transport: to the machine.
            came: called with the name of each file.
            seconds: the time limit; at least one file is fetched.
            clock: a monotonic clock in seconds.

        Raises:
            ClusterError: a file could not be fetched or stored; the next call tries again.
        """
        self._at = worker_place(self.worker)
        found = self._listed(transport)
        self._fetch_results(transport, {entry.name for entry in found})
        return self._fetch_batches(transport, found, came, seconds, clock)

    def fetch_aside(
        self, transport: Transport, *, came: Callable[[str], None], clock: Callable[[], float] = time.monotonic
    ) -> int:
        """Fetch our games that were set aside when another Coach took the worker, as ``fetch`` does."""
        self._at = self.claim.aside
        return self._fetch_batches(transport, transport.names(f"{self._at}/outbox"), came, FETCH_SECONDS, clock)

    def _listed(self, transport: Transport) -> list[Entry]:
        """List the worker's outbox, which also shows its owner.

        Raises:
            Moved: the folder is no longer ours.
        """
        found = transport.names(f"{worker_place(self.worker)}/outbox")
        self.claim.check(transport, (entry.name for entry in found))
        self._checked = time.monotonic()
        return found

    def _check(self, transport: Transport) -> None:
        """Make sure that the folder is still ours before a file is put there or deleted; recent listings count."""
        if time.monotonic() - self._checked > CHECK_SECONDS:
            self._listed(transport)

    def _fetch_batches(
        self,
        transport: Transport,
        found: list[Entry],
        came: Callable[[str], None],
        seconds: float,
        clock: Callable[[], float],
    ) -> int:
        until = clock() + seconds
        names = {entry.name for entry in found}
        self._strangers &= names
        ours = [entry for entry in found if BATCH_NAME.fullmatch(entry.name) and is_of_run(entry.name, self.run_id)]
        entries = [entry for entry in ours if entry.name not in self._strangers]
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
            if self._fetch_one(transport, entry.name, MAX_BATCH_BYTES) and entry.name not in self._strangers:
                self._fetched.add(entry.name)
                came(entry.name)
                fetched += 1
            self.waiting -= 1
        return fetched

    def _fetch_results(self, transport: Transport, there: set[str]) -> None:
        """Fetch the results of evaluation games that were ordered."""
        ordered = {order.file_name for order in self.sent.matches} if self.sent else set()
        self._results &= ordered
        for name in sorted(ordered & there - self._results):
            if self._fetch_one(transport, name, MAX_RESULT_BYTES):
                self._results.add(name)

    def _fetch_one(self, transport: Transport, name: str, limit: int) -> bool:
        """Copy a file from the worker's outbox to the mirror's; return False if it no longer exists.

        A file that is too large is replaced by an empty one of excessive size, which the receiver refuses for its size.
        """
        path = self.folder.outbox / name
        try:
            data = transport.get(f"{self._at}/outbox/{name}", limit)
        except FileNotFoundError:
            return False
        except FileTooLarge:
            data = None
        if data is not None and name.endswith(".games") and self._is_stranger(name, data):
            self._strangers.add(name)
            return True
        try:
            if data is not None:
                write_atomically(path, data)
                return True
            part = self.folder.root / f"{name}.part"
            with part.open("wb") as file:
                file.truncate(limit + 1)
            part.replace(path)
            sync_folder(path.parent)
        except OSError as error:
            what = f"{name} is there, but cannot be kept here on the main node: {error.strerror or error}"
            raise RemoteFailure(
                transport.worker, what, "free space on the main node's disk; it is then fetched"
            ) from error
        return True

    def _is_stranger(self, name: str, data: bytes) -> bool:
        """Return whether a batch is of another run, if its name, from an earlier version, does not say."""
        if TAGGED.search(name):
            return False
        from training.data.records import CorruptBatch, run_in_header  # only now: it imports numba

        try:
            return run_in_header(data) != self.run_id
        except CorruptBatch:
            return False  # the receiver reports what is wrong

    def forget(self, transport: Transport, *, counted: bool) -> None:
        """Delete from the worker what the Coach has taken.

        Args:
            transport: to the machine.
            counted: the worker's assignment, read after the last ``fetch``, counts these games, or no process plays
                there.

        Raises:
            ClusterError: a file could not be deleted; the next call tries again.
        """
        while counted and self._free:
            if self._at == worker_place(self.worker):
                self._check(transport)
            transport.remove(f"{self._at}/outbox/{self._free[0]}")
            self._fetched.discard(self._free.pop(0))

    def send_model(
        self, transport: Transport, model: PublishedModel, *, push: ModelPush, played: int | None, beside: str | None
    ) -> None:
        """Put a model into the worker's inbox. The worker learns of it from the next assignment.

        Args:
            transport: to the machine.
            model: the model to send.
            push: encodes deltas.
            played: the model version that the worker plays with; None: it needs the whole file.
            beside: another worker of the same machine that may have the file already.

        Raises:
            ClusterError: it did not arrive; what did arrive is not sent again.
        """
        self._check(transport)
        name = self.folder.model_path(model.version).name
        self._whole = True
        if not (beside and self._link(transport, beside, name, name)):
            base = self.model if self.model and self.model.version == played and self._rate < FAST_LINK else None
            try:
                file = push.file_for(model, base)
            except ValueError:  # one of them is not a model
                file = push.file_for(model, None)
            began = time.monotonic()
            # Not durable: the worker checks the whole file.
            transport.put(file.data, f"{worker_place(self.worker)}/inbox/{file.name}", durable=False)
            if len(file.data) >= LARGE_MODEL_BYTES:
                self._rate = len(file.data) / max(time.monotonic() - began, 1e-6)
            self._whole = file.name == name
        self.model = model

    @property
    def sha256(self) -> str:
        """The SHA-256 of the model on the worker; empty if there is none."""
        return self.model.sha256 if self.model else ""

    @property
    def can_send_whole(self) -> bool:
        """Whether the model was sent as a delta, so that the whole file can be tried next."""
        return not self._whole

    def has_players(self, wanted: Assignment, players: Mapping[Contestant, bytes]) -> bool:
        """Return whether all of ``players`` that ``wanted`` names are on the worker."""
        return all(player in self._players or player not in players for player in wanted.players)

    def send_players(self, transport: Transport, wanted: Assignment, players: Mapping[Contestant, bytes]) -> None:
        """Put the models of evaluation games that ``wanted`` names into the worker's inbox, as far as they are known.

        Raises:
            ClusterError: one did not arrive.
        """
        self._check(transport)
        for player in wanted.players:
            if player not in players or player in self._players:
                continue
            same = self.model is not None and self.model.sha256 == player.sha256
            model = self.folder.model_path(player.version).name
            if not (same and self._link(transport, self.worker, model, player.file_name)):
                transport.put(players[player], f"{worker_place(self.worker)}/inbox/{player.file_name}", durable=False)
            self._players.add(player)

    def _link(self, transport: Transport, worker: str, name: str, new: str) -> bool:
        """Hard-link a file of an inbox on the machine into this worker's inbox; return whether that worked."""
        make = 'mkdir -p -m 700 "${2%/*}" && ln -f "$1" "$2"'
        files = [f"{worker_place(worker)}/inbox/{name}", f"{worker_place(self.worker)}/inbox/{new}"]
        return transport.run(["sh", "-c", make, "keima", *files]).code == 0

    def send_assignment(self, transport: Transport, wanted: Assignment) -> None:
        """Replace the worker's assignment if it differs. It names only models that are on the worker.

        Raises:
            ClusterError: it did not arrive.
        """
        assert self.model is not None
        able = {None, *self._players}
        changes = {
            "model_version": self.model.version,
            "model_sha256": self.model.sha256,
            "players": tuple(player for player in wanted.players if player in able),
            "matches": tuple(order for order in wanted.matches if order.first in able and order.second in able),
        }
        assignment = wanted.model_copy(update=changes)
        if assignment != self.sent:
            self._check(transport)
            self._send_modules(transport, assignment)
            transport.put(
                assignment.model_dump_json(indent=1).encode(), f"{worker_place(self.worker)}/inbox/assignment.json"
            )
            self.sent = assignment
            self._players &= set(assignment.players)  # the worker deletes what its assignment does not name

    def _send_modules(self, transport: Transport, assignment: Assignment) -> None:
        """Put the users' own files that the assignment names into the worker's inbox."""
        for name in assignment.modules:
            if name not in self._modules:
                path = self.folder.module_path(name).name
                transport.put(source_of(name), f"{worker_place(self.worker)}/inbox/{path}")
                self._modules.add(name)


def open_mirror(root: Path, worker: str, run_id: str) -> WorkerFolder:
    """Open the mirror of a worker; a mirror of another run is renamed.

    Raises:
        OSError: it cannot be written.
    """
    mark = root / worker / RUN_MARK
    if mark.exists():
        owner = mark.read_text(encoding="utf-8", errors="replace")[:64]
        if owner != run_id:
            mark.parent.rename(root / f"{worker}.{owner if LABEL.fullmatch(owner) else STRANGER}")
    folder = WorkerFolder(root / worker).make()
    if not mark.exists():
        write_atomically(mark, run_id.encode())
    return folder


def waiting_files(root: Path, run_id: str) -> dict[str, set[str]]:
    """Return the files that an earlier session of this run fetched and the Coach has not taken, by worker.

    They include those of workers that have left.
    """
    found: dict[str, set[str]] = {}
    for outbox in root.glob("*/outbox"):
        mark = outbox.parent / RUN_MARK
        if not mark.exists() or mark.read_text(encoding="utf-8", errors="replace") == run_id:
            found[outbox.parent.name] = {path.name for path in outbox.iterdir() if BATCH_NAME.fullmatch(path.name)}
    return found
