"""The Coach's side of the fleet's process: it starts the process, watches it, and starts another if it ends or hangs.

What the Coach wants is kept here, so a new process is told everything at once, and nothing depends on what an ended one
had in memory. Games are not sent: they are files in the mirrors, which both processes see.
"""

import logging
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import BaseModel

from keima.base.files import write_atomically
from keima.base.reports.worker_status import ClusterStatus
from keima.base.run_lock import RunLock, RunLocked
from keima.cluster.agent.commands import Owner
from keima.cluster.fleet.mirror import drop_damaged, find_waiting_files
from keima.cluster.fleet.process.messages import (
    MODELS,
    PIPE_BYTES,
    Channel,
    Close,
    Closed,
    Failed,
    FleetState,
    GameName,
    LogLine,
    ModelFile,
    News,
    Opening,
    Release,
    Update,
)
from keima.coach.backends.assignments import AssignmentBook
from keima.coach.backends.folder_matches import FolderMatches
from keima.coach.backends.pending_batch import PendingBatch, pending_batches
from keima.config.schema import Settings
from keima.data.batch_file import SUFFIX
from keima.evaluation.match_jobs import Contestant, EvaluationJob
from keima.games import Game
from keima.networks.files.heading import stored_sha256
from keima.paths import program_of, with_code_on_path
from keima.worker.worker_folder import Heartbeat, WorkerFolder

log = logging.getLogger(__name__)

MODULE = "keima.cluster.fleet.process.program"
OPEN_SECONDS = 300.0  # for the first process to begin: it may have a thousand mirrors to make
SILENT_SECONDS = 60.0  # of polls without a message, after which the process hangs ...
POLL_SECONDS = 1.0  # ... where the time between two polls counts as no more than this: the Coach may have been busy
CLOSE_SECONDS = 60.0  # for the process to end a run; the fleet takes 25 at the most
END_SECONDS = 5.0  # for the process to exit after its last message
WAIT_SECONDS = 0.1
STEADY_SECONDS = 60.0  # a process that has run for this long is replaced at once
MOST_PAUSE_SECONDS = 30.0
RAISED: tuple[type[Exception], ...] = (RunLocked, ValueError, OSError)  # what the opening of a fleet raises here too


@dataclass(kw_only=True)
class _PendingChanges:
    """The changes that the process has not been told yet."""

    accounts: dict[str, tuple[int, int]] = field(default_factory=dict)
    releases: list[Release] = field(default_factory=list)
    ahead: int | None = None
    model: ModelFile | None = None
    players: tuple[Contestant, ...] | None = None
    jobs: dict[str, tuple[EvaluationJob, ...]] = field(default_factory=dict)


class FleetClient:
    """A fleet in a process of its own, as a ``SelfPlayBackend``.

    Args:
        root: the folder of the mirrors.
        factory: what builds the fleet there: see ``fleet_process.Factory``.
        config: the config file that the fleet follows.
        run_dir: the run's folder.
        game: the game that the workers play.
        settings: the run's settings.
        run_id: the run's id.
        owner: the owner of the workers: this process.
        takeover: whether to take over workers of other Coaches at the first contact.
        options: of the factory.
        lock: is held as long as the fleet or this process runs, and then closed.
        log_event: called with each line for the log.
        clock: a monotonic clock in seconds.

    Raises:
        RunLocked, ValueError, OSError: as the factory.
        RuntimeError: the fleet cannot be opened for another reason.
    """

    def __init__(
        self,
        root: Path,
        *,
        factory: str,
        config: Path,
        run_dir: Path,
        game: Game,
        settings: Settings,
        run_id: str,
        owner: Owner,
        takeover: bool = False,
        options: Mapping[str, str] | None = None,
        lock: RunLock | None = None,
        log_event: Callable[[str], None] = log.warning,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.root = root
        self._opening = Opening(
            factory=factory,
            root=root,
            config=config,
            run_dir=run_dir,
            settings=settings,
            game=GameName(name=game.name, options=game.options),
            run_id=run_id,
            owner=owner,
            takeover=takeover,
            options=dict(options or {}),
        )
        self._lock, self._log_event, self._clock = lock, log_event, clock
        self._book = AssignmentBook(game=game, settings=settings, run_id=run_id)  # accounts, players and jobs
        self._model: ModelFile | None = None
        self._ahead: int | None = None
        self._number = 0  # of changes of what workers are granted
        self._changes = _PendingChanges()
        self._waiting: dict[str, set[str]] = {}  # worker -> files in its mirror's outbox
        self._state: FleetState | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: Channel | None = None
        self._failure = ""  # what the process said of its end
        self._errors: tuple[str, ...] = ()
        self._begun = self._polled = self._start_at = 0.0
        self._silence = self._pause = 0.0  # seconds
        self._is_closed = False
        try:
            self._open_first_process()
        except BaseException:
            self._end_process()
            if lock:
                lock.close()
            raise

    # What the Coach calls.

    @property
    def workers(self) -> Sequence[str]:
        """See ``SelfPlayBackend``."""
        return self._state.workers if self._state else ()

    @property
    def process_id(self) -> int | None:
        """The fleet's process; None while there is none."""
        return self._process.pid if self._process else None

    def publish(self, version: int, model: bytes) -> None:
        """See ``SelfPlayBackend``."""
        name = WorkerFolder(self.root).model_path(version).name
        write_atomically(self._models_folder() / name, model, durable=False)
        last, self._model = self._model, ModelFile(version=version, name=name, sha256=stored_sha256(model))
        self._changes.model = self._model
        self._send_changes()
        if last and last.name != name:
            (self.root / MODELS / last.name).unlink(missing_ok=True)

    def grant(self, worker: str, *, granted: int, delivered: int) -> None:
        """See ``SelfPlayBackend``."""
        before = self._book.account(worker).granted
        if self._book.set_account(worker, granted=granted, delivered=delivered):
            self._changes.accounts[worker] = (granted, delivered)
            self._number += before != granted

    def plan_grants(self, outstanding: Mapping[str, int], ahead: int) -> dict[str, int]:
        """See ``SelfPlayBackend``; each of the fleet's decisions counts once, and none made before the last grants."""
        if ahead != self._ahead:
            self._ahead = self._changes.ahead = ahead
            self._number += 1
        if not self._is_up_to_date:
            return {}
        assert self._state is not None
        decisions = dict(self._state.decisions)
        self._state.decisions.clear()
        return decisions

    def withdrawn(self) -> dict[str, int]:
        """See ``SelfPlayBackend``."""
        return dict(self._state.withdrawn) if self._state and self._is_up_to_date else {}

    def collect(self) -> list[PendingBatch]:
        """See ``SelfPlayBackend``; also watches the process."""
        self._exchange_messages()
        return pending_batches(self.root, self._waiting)

    def release(self, batch: PendingBatch, *, delivered: int, refused: str = "") -> None:
        """See ``SelfPlayBackend``."""
        if self._book.has_account(batch.worker):
            self._book.set_account(batch.worker, granted=self._book.account(batch.worker).granted, delivered=delivered)
        self._waiting.get(batch.worker, set()).discard(batch.file_name)
        if self._is_closed:
            (self.root / batch.worker / "outbox" / batch.file_name).unlink(missing_ok=True)
        else:
            self._changes.releases.append(
                Release(worker=batch.worker, batch_id=batch.batch_id, delivered=delivered, refused=refused[:1000])
            )

    def heartbeats(self) -> Mapping[str, Heartbeat | None]:
        """See ``SelfPlayBackend``."""
        return self._state.heartbeats if self._state else {}

    def cluster(self) -> ClusterStatus | None:
        """See ``SelfPlayBackend``."""
        return self._state.cluster if self._state else None

    def match_executors(self) -> FolderMatches:
        """See ``SelfPlayBackend``."""
        return FolderMatches(
            self.root,
            self._book,
            assign=self._send_jobs,
            send_players=self._send_players,
            ready_workers=lambda: list(self._state.ready_workers) if self._state else [],
            heartbeats=self.heartbeats,
        )

    def close(self) -> None:
        """See ``SelfPlayBackend``. If the process ends meanwhile, another one is started once."""
        if self._is_closed:
            return
        for _ in range(2):
            if self._process is None:
                self._try_to_restart()
            if self._process is None or self._close_process():
                break
            if self._process:
                self._note_process_lost("it did not end the run")
        self._end_process()
        self._is_closed = True
        shutil.rmtree(self.root / MODELS, ignore_errors=True)
        if self._lock:
            self._lock.close()

    # Evaluation games.

    def _send_players(self, players: Mapping[Contestant, bytes]) -> None:
        folder = self._models_folder()
        for player, data in players.items():
            write_atomically(folder / player.file_name, data, durable=False)
        for path in folder.glob("player-*"):
            if path.name not in {player.file_name for player in players}:
                path.unlink(missing_ok=True)
        self._changes.players = tuple(players)
        self._changes.jobs.clear()
        self._send_changes()

    def _send_jobs(self, worker: str) -> None:
        if worker in self._book.jobs:
            self._changes.jobs[worker] = self._book.jobs[worker]
            self._send_changes()

    def _models_folder(self) -> Path:
        folder = self.root / MODELS
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return folder

    # What the process is told, and what it says.

    @property
    def _is_up_to_date(self) -> bool:
        """Whether the last state was made after the last change of what workers are granted."""
        return self._state is not None and self._state.heard == self._number

    def _send_changes(self) -> None:
        """Send what has changed. While there is no process, nothing is sent: the next one is told everything."""
        if self._channel is None:
            return
        if self._changes != _PendingChanges():
            self._channel.send(Update(number=self._number, **vars(self._changes)))
            self._changes = _PendingChanges()
        self._channel.flush()

    def _send_everything(self) -> None:
        """Tell a new process what the Coach wants."""
        accounts = {name: self._book.account(name) for name in self._book.workers}
        self._changes = _PendingChanges(
            accounts={name: (account.granted, account.delivered) for name, account in accounts.items()},
            ahead=self._ahead,
            model=self._model,
            players=tuple(self._book.players) or None,
            jobs={worker: jobs for worker, jobs in self._book.jobs.items() if jobs},
            releases=self._changes.releases,  # none of these was sent to the last process
        )
        self._send_changes()

    def _exchange_messages(self) -> None:
        """Exchange messages, and start another process if this one has ended or hangs."""
        if self._is_closed:
            return
        if self._process is None:
            if self._clock() >= self._start_at:
                self._try_to_restart()
            return
        self._send_changes()
        now = self._clock()
        silence = self._silence + min(now - self._polled, POLL_SECONDS)
        self._polled = now
        self._silence = 0.0 if self._receive_messages() else silence
        if self._channel and self._channel.has_ended:
            self._note_process_lost("it has ended")
        elif self._silence >= SILENT_SECONDS:
            self._note_process_lost(f"it has sent nothing for {SILENT_SECONDS:.0f} s")

    def _receive_messages(self) -> bool:
        """Process the messages from the process; return whether there were any."""
        assert self._channel is not None
        heard = False
        try:
            for message in self._channel.receive_messages():
                heard = True
                self._process_message(message)
        except ValueError as error:
            self._note_process_lost(f"it sent an invalid message: {str(error)[:300]}")
        return heard

    def _process_message(self, message: BaseModel) -> None:
        match message:
            case News():
                for worker, file in message.arrived:
                    self._waiting.setdefault(worker, set()).add(file)
                for line in message.lines:
                    self._log_line(line)
            case FleetState():
                self._state = message
                if message.machines is not None:
                    self._opening = self._opening.model_copy(update={"machines": message.machines})
            case Failed():
                self._failure, self._errors = message.text, message.errors
            case Closed():
                self._is_closed = True

    def _log_line(self, line: LogLine) -> None:
        logger = logging.getLogger(line.logger)
        if not line.logger:
            self._log_event(line.text)
        elif logger.isEnabledFor(line.level):
            values = {"name": line.logger, "levelno": line.level, "msg": line.text, "created": line.time}
            logger.handle(logging.makeLogRecord({**values, "levelname": logging.getLevelName(line.level)}))

    # The process.

    def _open_first_process(self) -> None:
        """Start the first process, and wait until it knows its workers."""
        self._waiting = find_waiting_files(self.root, self._opening.run_id)
        drop_damaged(self.root, self._waiting)
        self._start_process()
        until = self._clock() + OPEN_SECONDS
        while self._state is None and self._channel and not self._channel.has_ended and self._clock() < until:
            self._channel.wait(WAIT_SECONDS)
            self._receive_messages()
        if self._state is None:
            known = next((kind for kind in RAISED if kind.__name__ in self._errors), RuntimeError)
            raise known(self._failure or f"the fleet's process {self._end_process() or 'does not start'}")
        self._opening = self._opening.model_copy(update={"takeover": False})  # applies only to the first contact

    def _start_process(self) -> None:
        """Start a process, and tell it everything; a failure shows at the next poll."""
        log.info("the fleet's process is started")
        line = [*program_of(MODULE), str(self._opening.run_dir)]  # the folder is for people who see it
        self._process = subprocess.Popen(
            line,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            pipesize=PIPE_BYTES,
            env=with_code_on_path(os.environ),
            pass_fds=[self._lock.fileno()] if self._lock else [],
        )
        assert self._process.stdin and self._process.stdout
        self._channel = Channel(os.dup(self._process.stdout.fileno()), os.dup(self._process.stdin.fileno()))
        self._process.stdin.close()
        self._process.stdout.close()
        self._begun = self._polled = self._clock()
        self._silence, self._failure, self._errors = 0.0, "", ()
        self._channel.send(self._opening)
        self._send_everything()

    def _try_to_restart(self) -> None:
        try:
            self._start_process()
        except OSError as error:  # too little memory, or too many processes
            self._pause = min(max(1.0, 2 * self._pause), MOST_PAUSE_SECONDS)
            self._start_at = self._clock() + self._pause
            self._log_event(
                f"the fleet's process cannot be started, and is tried again in {self._pause:.0f} s: {error}"
            )

    def _note_process_lost(self, why: str) -> None:
        """Handle the loss of the process; another one is started, after a pause if this one was short-lived.

        Files in the mirrors that the Coach has stored and the process has not removed are offered once more.
        """
        lived = self._clock() - self._begun
        self._pause = 0.0 if lived >= STEADY_SECONDS else min(max(1.0, 2 * self._pause), MOST_PAUSE_SECONDS)
        self._start_at = self._clock() + self._pause
        how = self._end_process()
        said = f": {self._failure}" if self._failure else ""
        next_one = "another one is started; the workers continue to play"
        self._log_event(f"the fleet's process is lost: {why} ({how}){said}; {next_one}")
        if self._state:
            self._state = self._state.model_copy(update={"heard": -1, "decisions": {}, "withdrawn": {}})
        self._waiting = find_waiting_files(self.root, self._opening.run_id)
        for release in self._changes.releases:
            self._waiting.get(release.worker, set()).discard(f"{release.batch_id}{SUFFIX}")

    def _end_process(self) -> str:
        """End the process, if it runs; return how it ended."""
        process, self._process = self._process, None
        channel, self._channel = self._channel, None
        if process is None or channel is None:
            return ""
        try:
            process.wait(END_SECONDS if channel.has_ended or self._is_closed else 0)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        channel.close()
        code = process.returncode
        return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"

    def _close_process(self) -> bool:
        """Have the process end the run; return whether it has."""
        assert self._channel is not None
        self._send_changes()
        self._channel.send(Close())
        until = self._clock() + CLOSE_SECONDS
        while not self._is_closed and self._channel and not self._channel.has_ended and self._clock() < until:
            self._channel.wait(WAIT_SECONDS)
            self._channel.flush()
            self._receive_messages()
        return self._is_closed
