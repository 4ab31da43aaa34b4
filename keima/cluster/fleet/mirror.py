"""One worker's folder on its machine, its mirror on the main node, and the files that are copied between them.

The Coach reads and writes the mirror. Models and the assignment go to the worker; the heartbeat, finished games and
results of evaluation games come back. A poll (``poll.py``) carries everything but models and large files. The worker
deletes results itself. A file of games is deleted from the worker's
outbox only after two things: the Coach has removed it from the mirror's outbox, because the games are in the ledger;
and the assignment on the worker counts the games as delivered. Whatever is interrupted is repeated: a file that is
fetched twice has the same name and content.
"""

import json
import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from pydantic import ValidationError

from keima.base.files import FileTooLarge, read_limited, sync_folder, write_atomically
from keima.cluster.agent.call import disk_remedy
from keima.cluster.agent.commands import FolderRequest, printable_start
from keima.cluster.agent.owner import LABEL, OWNER, UNKNOWN_RUN
from keima.cluster.fleet.ownership import Claim
from keima.cluster.fleet.poll import PollResult
from keima.cluster.machines.machine import link_to_inbox, worker_place
from keima.cluster.ssh.errors import RemoteFailure
from keima.cluster.ssh.transport import Transport
from keima.config.own_modules import source_of
from keima.data.batch_file import MAX_BATCH_BYTES
from keima.evaluation.match_jobs import MAX_RESULT_BYTES, Contestant
from keima.worker.model_push import ModelPush, PublishedModel
from keima.worker.worker_folder import BATCH_NAME, TAGGED, Assignment, Heartbeat, WorkerFolder, is_batch_of_run

GAMES = ".games"
RUN_MARK = "run_id"  # the file in a mirror that names its run
FAST_LINK = 70e6  # bytes per second; on faster links, decoding a delta takes longer than sending the whole model
LARGE_MODEL_BYTES = 4 * 2**20  # bytes of a model whose transfer time shows the link's speed
KEEP_SECONDS = 30.0  # of processor time between two writes of it to the disk
FETCH_SECONDS = 2.0  # for the large files of one worker; then the next poll is due


class Mirror:
    """The files that one worker has been sent, and those that have been fetched from it.

    Args:
        worker: the worker's name.
        root: the folder of the mirrors.
        run_id: the run to which everything here belongs.
        claim: the claim to the worker's folder.

    Attributes:
        model: the model on the worker, as the assignment there has it.
        sent: the assignment on the worker.
        waiting: the number of files still to be fetched.
        more: whether another poll would bring more games at once.
    """

    def __init__(self, worker: str, *, root: Path, run_id: str, claim: Claim) -> None:
        self.worker, self.claim = worker, claim
        self._at = worker_place(worker)  # the source of games: its folder, or the one in which ours are set aside
        self._foreign_batches: set[str] = set()  # batches of other runs, by their content alone
        self.folder = open_mirror(root, worker, run_id)
        self.run_id = run_id
        self._used = self._kept = self.folder.read_processor_time(run_id)
        self.model: PublishedModel | None = None
        self.sent: Assignment | None = None
        self.waiting = 0
        self.more = False
        self._stamp = ""  # of the last heartbeat; empty: there was none
        self._unreadable = ""  # why that cannot be understood
        self._asked: tuple[Assignment | None, tuple[str, ...]] = (None, ())  # what the last poll was to put and remove
        self._whole = True  # the model was sent as the whole file
        self._rate = 0.0  # bytes per second of the last large model; 0: unknown
        self._modules: set[str] = set()  # the users' own files that are on the worker
        self._players: set[Contestant] = set()  # the models of evaluation games that are on the worker
        self._results: set[str] = set()  # the results of evaluation games that have been fetched
        self._fetched: set[str] = set()  # files in the worker's outbox that have been fetched
        self._large: list[str] = []  # files in the worker's outbox that no poll brings
        self._may_hold = True  # the mirror's outbox may have files; some may be of an earlier session

    @property
    def is_empty(self) -> bool:
        """Whether the worker's outbox was empty at the last poll, or had only files that may be deleted."""
        return self.waiting == 0 and not self._fetched & self._untaken_files()

    def _untaken_files(self) -> set[str]:
        """Return the files that the Coach has not taken yet."""
        if self._may_hold:  # files come by ``_store`` alone; hundreds of workers are polled every second
            with os.scandir(self.folder.outbox) as entries:
                found = {entry.name for entry in entries}
            self._may_hold = bool(found)
            return found
        return set()

    def claim_folder(self, transport: Transport, end_worker: Callable[[], object], *, python: str) -> None:
        """Make sure that this Coach owns the worker's folder. If allowed, a worker of another run is ended and its
        games are set aside.

        Raises:
            FolderTaken: another Coach has it.
            ClusterError: it could not be done.
        """
        if self.claim.enter_owner(transport, end_worker, python=python):
            self._forget_all()

    def release(self, transport: Transport) -> None:
        """Give up the worker's folder.

        Raises:
            ClusterError: it could not be done.
        """
        # This name belongs to one Coach alone.
        transport.remove(f"{worker_place(self.worker)}/outbox/{self.claim.owner.coach}{OWNER}")

    def _forget_all(self) -> None:
        """Assume nothing about the files on the worker."""
        self.model = self.sent = None
        self._stamp = self._unreadable = ""
        self._modules.clear()
        self._players.clear()

    # Polls.

    def make_poll_request(self, wanted: Callable[[], Assignment | None], *, unassigned: bool) -> FolderRequest:
        """Return what the next poll is to do here: put the assignment, and remove what the Coach has taken.

        Args:
            wanted: returns the assignment that the worker is to have now; None: none, or it must wait for files.
            unassigned: whether files may be removed although no assignment counts them: no process plays there.
        """
        lost = self.claim.is_lost  # then only our games are of interest, where they were set aside
        self._at = self.claim.set_aside_folder if lost else worker_place(self.worker)
        kept = self._untaken_files()
        assignment = None if lost else wanted()  # read after what the Coach has taken, so that it counts these games
        counted = lost or unassigned or assignment is not None
        put = self._without_missing_models(assignment) if assignment is not None else None
        if put == self.sent:
            put = None
        self._asked = put, tuple(sorted(self._fetched - kept)) if counted else ()
        expected = {job.file_name for job in self.sent.matches} if self.sent else set()
        self._results &= expected
        return FolderRequest(
            place=self._at,
            coach="" if lost else self.claim.owner.coach,
            seen=self._stamp,
            assignment=put.model_dump_json(indent=1) if put else None,
            remove=self._asked[1],
            have=sorted(self._fetched | self._foreign_batches | kept),
            want=[] if lost else sorted(expected - self._results),
        )

    def make_read_only_request(self) -> FolderRequest:
        """Return a request that changes nothing."""
        return FolderRequest(place=worker_place(self.worker), coach=self.claim.owner.coach, seen=self._stamp)

    def store_files(self, found: PollResult, *, limit: int, machine: str, report_file: Callable[[str], None]) -> int:
        """Store the files that a poll has brought; return how many files of games came.

        Args:
            found: what the poll by the last ``make_poll_request`` has shown.
            limit: the bytes of files that it could bring.
            machine: the machine's name.
            report_file: called with the name of each file of games.

        Raises:
            FolderMoved: the folder is no longer ours.
            ClusterError: something was not possible there, or a file could not be stored; the next poll tries again.
        """
        if found.answer.failed:
            raise RemoteFailure(machine, found.answer.failed, disk_remedy(found.answer.failed))
        put, removed = self._asked
        if found.answer.mine and not found.answer.wrong:
            self._fetched -= set(removed)
            if put is not None:
                self.sent = put
                self._players &= set(put.players)  # the worker deletes what its assignment does not name
        if self._at == worker_place(self.worker):
            self.claim.check_folder(found.answer.mine, (entry.name for entry in found.entries), machine=machine)
        if found.answer.wrong:
            raise RemoteFailure(machine, found.answer.wrong, disk_remedy(found.answer.wrong))
        return self._store_files(found, limit, machine, report_file)

    def read_heartbeat(self, found: PollResult, *, machine: str) -> Heartbeat | None:
        """Return the worker's heartbeat, if it has changed and is of this run.

        Raises:
            RemoteFailure: it cannot be understood.
        """
        if not found.answer.mine or found.answer.failed:
            return None
        if not found.answer.stamp and self._stamp:  # the folder was deleted
            self._forget_all()
        if found.answer.heartbeat is not None or found.answer.unreadable:
            self._unreadable = found.answer.unreadable
        self._stamp, heartbeat = found.answer.stamp, None
        if found.answer.heartbeat is not None:
            try:
                heartbeat = Heartbeat.model_validate(json.loads(found.answer.heartbeat))
            except (ValidationError, ValueError, RecursionError) as error:
                self._unreadable = printable_start(str(error))[:300]
        if self._unreadable:
            raise RemoteFailure(machine, f"its heartbeat is invalid: {self._unreadable}")
        if heartbeat is None or heartbeat.run_id != self.run_id:
            return None
        return heartbeat.model_copy(update={"processor_seconds": self._count_processor_time(heartbeat)})

    def _count_processor_time(self, heartbeat: Heartbeat) -> float:
        """Return the seconds of processor time that the worker has used for the run, in this folder and earlier ones.

        The count is kept on this machine, since the worker's own begins at 0 with each folder.
        """
        self._used = self._used.with_reading(heartbeat.processor_seconds)
        if self._used.earlier != self._kept.earlier or self._used.total - self._kept.total >= KEEP_SECONDS:
            with suppress(OSError):  # the next heartbeat tries again
                self.folder.write_processor_time(self._used)
                self._kept = self._used
        return self._used.total

    def _store_files(self, found: PollResult, limit: int, machine: str, report_file: Callable[[str], None]) -> int:
        self.more = False
        sizes = {entry.name: entry.size for entry in found.entries}
        self._foreign_batches &= sizes.keys()
        kept = self._untaken_files()
        ours = [name for name in sizes if BATCH_NAME.fullmatch(name) and is_batch_of_run(name, self.run_id)]
        games = sorted(name for name in ours if name not in self._foreign_batches)
        self._fetched = (self._fetched | kept) & {*games}
        missing = [name for name in games if name not in self._fetched]
        count = 0
        for name in [name for name in missing if name in found.files]:
            self._store(name, found.files[name], machine, MAX_BATCH_BYTES)
            count += self._count_games(name, report_file)
        expected = {job.file_name for job in self.sent.matches} if self.sent else set()
        for name in sorted((expected - self._results) & sizes.keys() & found.files.keys()):
            self._store(name, found.files[name], machine, MAX_RESULT_BYTES)
            self._results.add(name)
        missing = [name for name in missing if name not in self._fetched | self._foreign_batches]
        results = sorted((expected - self._results) & sizes.keys())
        self._large = [name for name in [*missing, *results] if sizes[name] > limit or name in found.answer.unread]
        self.waiting = len(missing)
        self.more = not {*missing} <= {*self._large}
        return count

    def _count_games(self, name: str, report_file: Callable[[str], None]) -> int:
        if name in self._foreign_batches:
            return 0
        self._fetched.add(name)
        report_file(name)
        return 1

    def fetch_large(
        self,
        transport: Transport,
        *,
        report_file: Callable[[str], None],
        seconds: float = FETCH_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> int:
        """Fetch files that no poll brings, oldest first, for about ``seconds``; return how many files of games came.

        Args:
            transport: to the machine.
            report_file: called with the name of each file of games.
            seconds: the time limit; at least one file is fetched.
            clock: a monotonic clock in seconds.

        Raises:
            ClusterError: a file could not be fetched or stored; the next poll tries again.
        """
        until, count = clock() + seconds, 0
        while self._large:
            name = self._large.pop(0)
            is_result = not name.endswith(GAMES)
            if self._fetch_one(transport, name, MAX_RESULT_BYTES if is_result else MAX_BATCH_BYTES):
                self._results |= {name} if is_result else set()
                count += 0 if is_result else self._count_games(name, report_file)
            self.waiting -= 0 if is_result else 1
            if self._large and clock() >= until:
                self.more = True
                break
        return count

    def _fetch_one(self, transport: Transport, name: str, limit: int) -> bool:
        """Copy a file from the worker's outbox to the mirror's; return False if it no longer exists."""
        try:
            data = transport.get(f"{self._at}/outbox/{name}", limit)
        except FileNotFoundError:
            return False
        except FileTooLarge:
            data = None
        self._store(name, data, transport.worker, limit)
        return True

    def _store(self, name: str, data: bytes | None, machine: str, limit: int) -> None:
        """Store a file in the mirror's outbox, unless it is a batch of another run.

        A file that is too large, without data, is replaced by an empty one of excessive size, which the receiver
        refuses for its size.
        """
        path = self.folder.outbox / name
        if data is not None and name.endswith(GAMES) and self._is_foreign_batch(name, data):
            self._foreign_batches.add(name)
            return
        self._may_hold = True
        try:
            if data is not None:
                write_atomically(path, data, durable=False)  # ``drop_damaged``
                return
            part = self.folder.root / f"{name}.part"
            with part.open("wb") as file:
                file.truncate(limit + 1)
            part.replace(path)
            sync_folder(path.parent)
        except OSError as error:
            what = f"{name} is complete, but cannot be stored on the main node: {error.strerror or error}"
            raise RemoteFailure(machine, what, "free space on the main node's disk; it is then fetched") from error

    def _is_foreign_batch(self, name: str, data: bytes) -> bool:
        """Return whether a batch is of another run, if its name, from an earlier version, does not say."""
        if TAGGED.search(name):
            return False
        from keima.data.records import CorruptBatch, read_run_id  # only now: it imports numba

        try:
            return read_run_id(data) != self.run_id
        except CorruptBatch:
            return False  # the receiver reports what is wrong

    # What a poll does not carry.

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
        name = self.folder.model_path(model.version).name
        self._whole = True
        if not (beside and self._link_file(transport, beside, name, name)):
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
    def model_sha256(self) -> str:
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
        for player in wanted.players:
            if player not in players or player in self._players:
                continue
            same = self.model is not None and self.model.sha256 == player.sha256
            model = self.folder.model_path(player.version).name
            if not (same and self._link_file(transport, self.worker, model, player.file_name)):
                transport.put(players[player], f"{worker_place(self.worker)}/inbox/{player.file_name}", durable=False)
            self._players.add(player)

    def _link_file(self, transport: Transport, worker: str, name: str, new: str) -> bool:
        """Hard-link a file of an inbox on the machine into this worker's inbox; return whether that worked."""
        source = f"{worker_place(worker)}/inbox/{name}"
        return link_to_inbox(transport, source, self.worker, new, coach=self.claim.owner.coach)

    def has_modules(self, wanted: Assignment) -> bool:
        """Return whether the users' own files that ``wanted`` names are on the worker."""
        return self._modules >= {*wanted.modules}

    def send_modules(self, transport: Transport, wanted: Assignment) -> None:
        """Put the users' own files that ``wanted`` names into the worker's inbox.

        Raises:
            ClusterError: one did not arrive.
        """
        for name in wanted.modules:
            if name not in self._modules:
                path = self.folder.module_path(name).name
                transport.put(source_of(name), f"{worker_place(self.worker)}/inbox/{path}")
                self._modules.add(name)

    def _without_missing_models(self, wanted: Assignment) -> Assignment:
        """Return the assignment with only those models that are on the worker."""
        assert self.model is not None
        ready = {None, *self._players}
        return wanted.model_copy(
            update={
                "model_version": self.model.version,
                "model_sha256": self.model.sha256,
                "players": tuple(player for player in wanted.players if player in ready),
                "matches": tuple(job for job in wanted.matches if {job.first, job.second} <= ready),
            }
        )


def open_mirror(root: Path, worker: str, run_id: str) -> WorkerFolder:
    """Open the mirror of a worker; a mirror of another run is renamed.

    Raises:
        OSError: it cannot be written.
    """
    mark = root / worker / RUN_MARK
    if mark.exists():
        owner = mark.read_text(encoding="utf-8", errors="replace")[:64]
        if owner != run_id:
            mark.parent.rename(root / f"{worker}.{owner if LABEL.fullmatch(owner) else UNKNOWN_RUN}")
    folder = WorkerFolder(root / worker).create_folders()
    if not mark.exists():
        write_atomically(mark, run_id.encode())
    return folder


def read_core_hours(root: Path, run_id: str) -> dict[str, float]:
    """Return the core hours that each worker with a mirror has used for the run, also those that have left."""
    folders = (path.parent for path in root.glob("*/processor_time.json"))
    return {folder.name: WorkerFolder(folder).read_processor_time(run_id).total / 3600 for folder in folders}


def drop_damaged(root: Path, waiting: Mapping[str, set[str]]) -> None:
    """Delete, from the mirrors and from ``waiting``, the files that a power cut has damaged.

    Fetched games are not synced, so that no poll waits for a disk. Their workers still have them, and they are fetched
    again. It takes a while for each file that an earlier session has left, and imports numba.
    """
    from keima.data.records import CorruptBatch, decode_batch

    for worker, names in waiting.items():
        for name in sorted(names):
            path = root / worker / "outbox" / name
            try:
                decode_batch(read_limited(path, MAX_BATCH_BYTES))
            except CorruptBatch:
                path.unlink(missing_ok=True)
                names.discard(name)
            except (FileTooLarge, OSError):  # the receiver says so
                continue


def find_waiting_files(root: Path, run_id: str) -> dict[str, set[str]]:
    """Return the files that an earlier session of this run fetched and the Coach has not taken, by worker.

    They include those of workers that have left.
    """
    found: dict[str, set[str]] = {}
    for outbox in root.glob("*/outbox"):
        mark = outbox.parent / RUN_MARK
        if not mark.exists() or mark.read_text(encoding="utf-8", errors="replace") == run_id:
            found[outbox.parent.name] = {path.name for path in outbox.iterdir() if BATCH_NAME.fullmatch(path.name)}
    return found
