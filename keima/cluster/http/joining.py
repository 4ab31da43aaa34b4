"""A machine that has joined a run: its workers play in folders here, and their files travel through the door.

What a connection to a machine does over SSH (``keima/cluster/fleet/machine_connection.py``), this does from the other
side: it fetches models and assignments, hands in finished games, and deletes them only when the Coach has counted them.
The workers watch folders and play on while there is no network.
"""

import hashlib
import json
import logging
import os
import secrets
import shutil
import signal
import subprocess
import time
import zipfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import ValidationError

from keima.base.files import PART, read_limited, remove_stale_parts, write_atomically
from keima.base.reports.text import printable_line
from keima.base.system.processes import die_with_starter, wait_or_kill
from keima.cluster.agent import code as remote_code
from keima.cluster.agent.process import CommandFailed
from keima.cluster.http.client import DoorClient, DoorRefused, DoorUnreachable, WrongServer
from keima.cluster.http.conditions import Conditions
from keima.cluster.http.protocol import (
    MOST_LISTED,
    InboxFile,
    Link,
    Orders,
    OutboxFile,
    RunFacts,
    SyncReply,
    SyncRequest,
    WorkerReport,
    parse_link,
)
from keima.config.own_modules import is_own
from keima.data.batch_file import MAX_BATCH_BYTES
from keima.paths import program_of, with_code_on_path
from keima.worker.model_push import MODEL_NAME
from keima.worker.worker_folder import MAX_JSON_BYTES, Assignment, WorkerFolder

log = logging.getLogger(__name__)

STATE = "join.json"  # in the run's folder on this machine
CODE = "code"  # there too: the Coach's code, by its hash
STEP_SECONDS = 0.25
FIRST_SECONDS, MOST_SECONDS = 2.0, 60.0  # between two attempts to reach the door
HAND_OVER_SECONDS = 20.0  # for workers to end
LAST_SECONDS = 60.0  # for the last games to be handed in
RESTARTS, RESTART_WINDOW = 5, 600.0  # a worker that ends more often in so many seconds is given up
SAY_SECONDS = 60.0
RELEASE_BYTES = 64 * 2**20  # of the Coach's code, unpacked
UPGRADE, REFUSED = 426, (401, 403)  # all others may pass


class CannotJoin(Exception):
    """This machine cannot play in the run; the text has the reason and the remedy."""


class RunChanged(CannotJoin):
    """The run now needs other code, so this machine has to join again."""


@dataclass(frozen=True, kw_only=True)
class Membership:
    """What this machine remembers of a run."""

    link: str
    key: str
    name: str
    workers: tuple[str, ...] = ()
    trusted: tuple[str, ...] = ()  # SHA-256 of code that its user has allowed

    @property
    def parsed_link(self) -> Link:
        """The link."""
        return parse_link(self.link)


def read_membership(folder: Path) -> Membership | None:
    """Return what the folder of a run remembers; None if there is nothing, or it is damaged."""
    try:
        found = json.loads(read_limited(folder / STATE, MAX_JSON_BYTES))
        tuples = {name: tuple(found[name]) for name in ("workers", "trusted")}
        return Membership(link=str(found["link"]), key=str(found["key"]), name=str(found["name"]), **tuples)
    except (OSError, ValueError, LookupError, TypeError):
        return None


def write_membership(folder: Path, membership: Membership) -> None:
    """Remember a run.

    Raises:
        OSError: it cannot be stored.
    """
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    write_atomically(folder / STATE, json.dumps(vars(membership), indent=1).encode())


def unpack_code(folder: Path, facts: RunFacts, wheel: bytes) -> Path:
    """Unpack the Coach's code into the folder of a run, and return where it is.

    Raises:
        CannotJoin: it is not what the run has announced.
        OSError: it cannot be stored.
    """
    if hashlib.sha256(wheel).hexdigest() != facts.wheel_sha256:
        raise CannotJoin("the code that came is not the one that the run has announced; try again")
    target = folder / CODE / facts.code
    part = target.with_name(f"{target.name}{PART}")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True, mode=0o700)
    archive = part.with_name(f"{target.name}.whl{PART}")
    archive.write_bytes(wheel)
    try:
        remote_code.extract_wheel(archive, part, most=RELEASE_BYTES)
    except (CommandFailed, zipfile.BadZipFile) as error:
        raise CannotJoin(f"the code of the run cannot be used: {printable_line(str(error))}") from error
    finally:
        archive.unlink()
    if remote_code.code_hash(part, "", part) != facts.code:
        raise CannotJoin("the code of the run is not what its hash says")
    shutil.rmtree(target, ignore_errors=True)
    part.replace(target)
    return target


def find_code(folder: Path, code: str) -> Path | None:
    """Return where the Coach's code of this hash is, if it was unpacked here and is whole."""
    target = folder / CODE / code
    return target if target.is_dir() and remote_code.code_hash(target, "", target) == code else None


@dataclass
class _Member:
    """A worker of this machine."""

    name: str
    folder: WorkerFolder
    gpu: int | None = None
    process: subprocess.Popen[bytes] | None = None
    starts: list[float] = field(default_factory=list)
    heartbeat: str = ""  # the stamp of the last one that was sent
    stamp: str = ""  # of its assignment
    files: dict[str, str] = field(default_factory=dict)  # SHA-256 of what was put into its inbox
    handed_in: set[str] = field(default_factory=set)  # batches that the door has, and that stay until they are counted
    ended: bool = False  # the run has ended for it
    given_up: bool = False


class JoinedMachine:
    """See the module. One thread uses it.

    Args:
        client: to the door, with this machine's key.
        membership: this machine's.
        folder: of the run on this machine.
        code: the hash of the code that workers run.
        code_folder: where that code is; None: this installation.
        gpus: the GPU of each worker, as far as there are any.
        modules: the SHA-256 of the run's own code, by its name, as its user has allowed it.
        conditions: say when to play.
        say: prints a line.
        clock: a monotonic clock in seconds.
    """

    def __init__(
        self,
        client: DoorClient,
        membership: Membership,
        folder: Path,
        *,
        run_id: str,
        code: str,
        code_folder: Path | None = None,
        gpus: Sequence[int] = (),
        modules: Mapping[str, str] | None = None,
        conditions: Conditions | None = None,
        say: Callable[[str], None] = log.info,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client, self._membership, self._folder, self._run_id = client, membership, folder, run_id
        self._code, self._code_folder, self._modules = code, code_folder, modules or {}
        self._conditions, self._say, self._clock = conditions or Conditions(), say, clock
        self._session = secrets.token_hex(8)
        self._members = {}
        for index, name in enumerate(membership.workers):
            place = WorkerFolder(folder / "workers" / name).create_folders()
            gpu = gpus[index] if index < len(gpus) else None
            self._members[name] = _Member(name, place, gpu)
            remove_stale_parts(place.inbox)
        self._sync_at = self._said_at = 0.0
        self._failures, self._trouble, self._paused = 0, "", ""
        self.stop_requested = False  # by the user
        self.games = 0  # handed in by this process

    def run(self, *, until: Callable[[], bool] = lambda: False) -> bool:
        """Play until the run ends, the user stops it, or ``until`` returns True; return whether the run has ended.

        Raises:
            CannotJoin: the door does not let this machine in any more.
        """
        try:
            while not (self.stop_requested or until() or self.has_run_ended):
                self.step()
                time.sleep(STEP_SECONDS)
        finally:
            self._end_workers()
        self._hand_in_last_games()
        return self.has_run_ended

    @property
    def has_run_ended(self) -> bool:
        """Whether the Coach has ended all workers, and they have."""
        return all(member.ended and member.process is None for member in self._members.values())

    def step(self) -> None:
        """Do whatever is due."""
        self._pause_or_continue()
        for member in self._members.values():
            self._keep_running(member)
        if self._clock() >= self._sync_at:
            self._sync_at = self._clock() + self._try_to_sync()
        if self._clock() - self._said_at >= SAY_SECONDS:
            self._said_at = self._clock()
            self._say(self.describe())

    def describe(self) -> str:
        """Return the state of this machine in one line."""
        running = sum(member.process is not None for member in self._members.values())
        playing = f"{running} worker{'s play' if running != 1 else ' plays'}"
        what = (self._paused and f"paused: {self._paused}") or self._trouble or playing
        waiting = self.games_left
        return f"{what}; {self.games:,} games handed in" + (f", {waiting:,} wait" if waiting else "")

    # The workers.

    def _pause_or_continue(self) -> None:
        """Freeze the workers' processes, or let them go on: nothing of their games is lost."""
        reason = self._conditions.reason_to_pause()
        if reason == self._paused:
            return
        if bool(reason) != bool(self._paused):
            for member in self._members.values():
                if member.process is not None:
                    with suppress(ProcessLookupError):
                        os.killpg(member.process.pid, signal.SIGSTOP if reason else signal.SIGCONT)
        self._paused = reason
        self._say(f"paused: {reason}" if reason else "plays on")

    def _keep_running(self, member: _Member) -> None:
        """Start a worker that has an assignment and does not run."""
        if member.process is not None:
            code = member.process.poll()
            if code is None:
                return
            member.process = None
            assignment = self._read_assignment(member)
            if code == 0 and assignment and assignment.stop:
                member.ended = True
                return
            if code != 0:
                self._say(f"{member.name} has ended with exit code {code}; see {self._log_path(member)}")
        if member.ended or member.given_up or self._paused or not member.stamp:
            return
        now = self._clock()
        member.starts = [then for then in member.starts if now - then < RESTART_WINDOW]
        if len(member.starts) > RESTARTS:
            member.given_up = True
            self._say(f"{member.name} ends again and again and is given up; see {self._log_path(member)}")
            if all(each.given_up for each in self._members.values()):
                raise CannotJoin(f"no worker can play here; the log {self._log_path(member)} says why")
            return
        member.starts.append(now)
        self._start(member)

    def _start(self, member: _Member) -> None:
        words = ["worker", "--folder", str(member.folder.root), "--log", str(self._log_path(member))]
        words += [] if member.gpu is None else ["--gpu", str(member.gpu)]
        words.append("--confined")  # also without code of the run's own: models and games come from a stranger
        environment = with_code_on_path({**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"})
        if self._code_folder:
            environment["PYTHONPATH"] = str(self._code_folder)
        member.process = subprocess.Popen(
            [*program_of("keima"), *words],
            cwd=self._folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            process_group=0,  # Ctrl-C reaches this process alone, which ends them
            preexec_fn=lambda: die_with_starter(signal.SIGTERM),
        )

    def _log_path(self, member: _Member) -> Path:
        return self._folder / "logs" / f"{member.name}.log"

    def _end_workers(self) -> None:
        """Let the workers put their finished games into their outboxes, and end."""
        running = [member for member in self._members.values() if member.process is not None]
        for member in running:
            assert member.process is not None
            with suppress(ProcessLookupError):
                os.killpg(member.process.pid, signal.SIGCONT)
                member.process.terminate()
        deadline = self._clock() + HAND_OVER_SECONDS
        for member in running:
            assert member.process is not None
            wait_or_kill(member.process, deadline - self._clock())
            with suppress(ProcessLookupError):
                os.killpg(member.process.pid, signal.SIGKILL)  # whatever the game has left behind
            member.process = None

    # The door.

    def _try_to_sync(self) -> float:
        """Report, and do what is said; return the seconds until the next time.

        Raises:
            CannotJoin: the door does not let this machine in any more.
        """
        try:
            reply = self._sync(leaving=False)
        except (DoorUnreachable, WrongServer, OSError) as error:
            return self._wait_after(str(error))
        except DoorRefused as error:
            if error.status == UPGRADE:
                raise RunChanged("the run has new code") from error
            if error.status in REFUSED:
                raise CannotJoin(f"{error}; {self.games:,} games were handed in") from error
            return max(self._wait_after(str(error)), error.retry_seconds or 0.0)
        if self._trouble:
            self._say("the door answers again")
        self._failures, self._trouble = 0, ""
        return reply.seconds

    def _wait_after(self, trouble: str) -> float:
        if trouble != self._trouble:
            self._say(f"{trouble}; it is tried again, and the workers play on")
        self._trouble, self._failures = trouble, self._failures + 1
        most = min(MOST_SECONDS, FIRST_SECONDS * 2 ** min(self._failures, 10))
        return most * (0.5 + secrets.randbelow(512) / 1024)  # so that not all machines come back at once

    def _sync(self, *, leaving: bool) -> SyncReply:
        reports, stamps = [], {}
        for member in self._members.values():
            report, stamps[member.name] = self._report(member)
            reports.append(report)
        wanted = SyncRequest(
            session=self._session,
            code=self._code,
            workers=tuple(reports),
            leaving=leaving,
            paused=bool(self._paused),
        )
        reply = self._client.sync(wanted)
        for name, stamp in stamps.items():
            self._members[name].heartbeat = stamp
        refused: DoorRefused | None = None  # one worker's refusal is not to keep the others waiting
        for follow in (self._follow, self._hand_in_batches):
            for orders in reply.orders:
                try:
                    if orders.worker in self._members:
                        follow(self._members[orders.worker], orders)
                except DoorRefused as error:
                    if error.status in (UPGRADE, *REFUSED):
                        raise
                    refused = refused or error
        if refused:
            raise refused
        if reply.notice:
            self._say(reply.notice)
        return reply

    def _report(self, member: _Member) -> tuple[WorkerReport, str]:
        """Return a worker's report, and the stamp of its heartbeat."""
        path, text = member.folder.root / "worker.json", None
        stamp = member.heartbeat
        with suppress(OSError, ValueError):
            found = path.stat()
            stamp = f"{found.st_mtime_ns}-{found.st_ino}"
            if stamp != member.heartbeat:
                text = read_limited(path, MAX_JSON_BYTES).decode()
        files = []
        for each in member.folder.batch_files()[:MOST_LISTED]:
            with suppress(FileNotFoundError):
                files.append(OutboxFile(name=each.name, bytes=each.stat().st_size))
        report = WorkerReport(worker=member.name, heartbeat=text, outbox=tuple(files), assignment=member.stamp)
        return report, stamp

    def _follow(self, member: _Member, orders: Orders) -> None:
        """Fetch files, put the assignment, and delete what is counted: in this order."""
        for file in () if member.given_up else orders.files:  # without a process, nobody would remove them
            self._put_file(member, file)
        if orders.files:
            needed = {file.name for file in orders.files}
            member.files = {name: sha256 for name, sha256 in member.files.items() if name in needed}
        if orders.assignment is not None:
            self._put_assignment(member, orders)
        if orders.stamp == member.stamp:  # it counts them
            for name in orders.remove:
                (member.folder.outbox / name).unlink(missing_ok=True)
                member.handed_in.discard(name)

    def _hand_in_batches(self, member: _Member, orders: Orders) -> None:
        """Hand in the games that the door asks for."""
        for name, offset in orders.uploads:
            self._hand_in(member, name, offset)

    def _put_file(self, member: _Member, file: InboxFile) -> None:
        if member.files.get(file.name) == file.sha256:
            return
        target = member.folder.inbox / file.name
        own = self._modules.get(file.name.removesuffix(".py")) if file.name.endswith(".py") else None
        if not MODEL_NAME.fullmatch(file.name) and own != file.sha256:
            raise RunChanged(f"the run now plays with other code, {file.name}")
        for other in self._members.values():  # a machine fetches the same content once
            source = other.folder.inbox / file.name
            if other is not member and other.files.get(file.name) == file.sha256 and source.is_file():
                data = source.read_bytes()
                if hashlib.sha256(data).hexdigest() == file.sha256:
                    write_atomically(target, data, durable=False)
                    break
        else:
            self._client.fetch_file(member.name, file, target)
        member.files[file.name] = file.sha256

    def _put_assignment(self, member: _Member, orders: Orders) -> None:
        assert orders.assignment is not None
        try:
            assignment = Assignment.model_validate_json(orders.assignment)
        except (ValidationError, ValueError, RecursionError):
            raise DoorUnreachable(f"the assignment of {member.name} cannot be understood") from None
        if (assignment.worker, assignment.run_id) != (member.name, self._run_id):
            raise DoorUnreachable(f"the assignment of {member.name} is of another worker or run")
        named = {name for name in (assignment.game, *assignment.modules) if is_own(name)}
        if not named <= self._modules.keys():
            raise RunChanged("the run now plays with other code")
        member.folder.write_assignment(assignment)
        member.stamp = orders.stamp
        if assignment.stop and member.process is None:
            member.ended = True

    def _read_assignment(self, member: _Member) -> Assignment | None:
        with suppress(ValueError, OSError):
            return member.folder.read_assignment()
        return None

    def _hand_in(self, member: _Member, name: str, offset: int) -> None:
        """Send a batch; the worker's copy stays until the Coach has counted it."""
        try:
            data = read_limited(member.folder.outbox / name, MAX_BATCH_BYTES)
        except FileNotFoundError:
            return
        except ValueError:
            self._say(f"{name} is too large to be a batch, and is put aside")
            (member.folder.outbox / name).rename(member.folder.root / name)
            return
        self._client.send_batch(member.name, name, data, hashlib.sha256(data).hexdigest(), offset=offset)
        if name not in member.handed_in:
            member.handed_in.add(name)
            self.games += int(name.split("-")[1])

    def _hand_in_last_games(self) -> None:
        """Hand in what the workers have left, if the door answers; what stays is handed in when this starts again."""
        deadline = self._clock() + LAST_SECONDS
        try:
            while True:
                reply = self._sync(leaving=True)
                done = not any(orders.uploads for orders in reply.orders)
                if done or self._clock() >= deadline:
                    break
        except (DoorUnreachable, DoorRefused, WrongServer, CannotJoin, OSError) as error:
            log.info("the last games: %s", error)
        finally:
            self._client.close()

    @property
    def games_left(self) -> int:
        """Games in the outboxes that this process has not handed in."""
        names = [
            path.name
            for member in self._members.values()
            for path in member.folder.batch_files()
            if path.name not in member.handed_in
        ]
        return sum(int(name.split("-")[1]) for name in names)
