"""Requests to a running Coach, as files in a folder, because a run opens no ports.

A client writes ``<id>.request``. The Coach takes the request by renaming it to ``<id>.taken``, and answers with
``<id>.answer``. So each request is carried out at most once, and a client that stops waiting knows whether it was
taken. The folder belongs to one user, and only that user can write to it. A lock shows whether a Coach runs; the system
releases it when the process ends.
"""

import logging
import os
import re
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from keima.base.files import FileTooLarge, read_limited, write_atomically
from keima.base.run_lock import RunLock, RunLocked, is_held
from keima.config.sections.workers import WorkerSettings
from keima.paths import CHECKOUT, workspace

log = logging.getLogger(__name__)

CONTROL_FOLDER = workspace() / "distributed" / "control"
COACH = "coach.json"  # what the Coach publishes about itself
REQUEST_NAME = re.compile(r"[0-9a-f]{16}")
MOST_FILE_BYTES = 256 * 1024  # bytes of any file here
WAIT_SECONDS = 30.0
POLL_SECONDS = 0.05
STALE_SECONDS = 300.0  # longer than any client waits
LOCK_SECONDS = 1.0  # checking the lock holds it for a moment


class NoCoach(Exception):
    """No Coach is running that could answer."""


class NotAnswered(Exception):
    """A Coach is running but has not answered in time; the text says whether it has taken the request."""


class _Message(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Request(_Message):
    """A request to the Coach."""

    command: Literal["status", "restart", "stop", "takeover", "retry", "add", "remove"]
    worker: str = Field(default="", max_length=100)  # the worker that it is about
    workers: tuple[str, ...] = ()  # of status: which workers, machines and groups; empty: all
    machine: WorkerSettings | None = None  # to be added

    @model_validator(mode="after")
    def _check_fields(self) -> "Request":
        if self.command == "add" and self.machine is None:
            raise ValueError("add needs a machine")
        if self.command in ("restart", "stop", "takeover", "retry", "remove") and not self.worker:
            raise ValueError(f"{self.command} needs a worker")
        return self


class RequestAnswer(_Message):
    """The answer to a request."""

    ok: bool
    text: str


class CoachFacts(_Message):
    """What a running Coach publishes about itself."""

    pid: int
    run: str  # the run's folder
    config: str  # the file whose workers it follows


@dataclass(frozen=True)
class PendingRequest:
    """A request that has been taken and not yet answered."""

    id: str
    request: Request


class RequestInbox:
    """The Coach's side of the folder. While it is open, others can see that a Coach is running.

    Args:
        folder: where requests are written.
        run: the run's folder.
        config: the file whose workers the Coach follows.
        coach: the Coach's process, which holds the folder's lock; None: this process, which takes it.

    Raises:
        RunLocked: another Coach uses this folder's workers.
        OSError: the folder cannot be created or written.
    """

    def __init__(self, folder: Path = CONTROL_FOLDER, *, run: Path, config: Path, coach: int | None = None) -> None:
        self.folder, self._is_open = folder, True
        self._lock = lock_control_folder(folder) if coach is None else None
        facts = CoachFacts(pid=coach or os.getpid(), run=str(run.absolute()), config=str(config.absolute()))
        try:
            write_atomically(folder / COACH, facts.model_dump_json().encode())
            _delete_stale_files(folder)
        except OSError:
            if self._lock:
                self._lock.close()
            raise

    def take_requests(self) -> list[PendingRequest]:
        """Take all new requests, in any order; unreadable ones are answered with an error."""
        found = []
        for path in sorted(self.folder.glob("*.request")):
            if REQUEST_NAME.fullmatch(path.stem):
                taken = path.with_suffix(".taken")
                with suppress(OSError):  # withdrawn in this moment, or a full disk
                    path.rename(taken)
                    found += [PendingRequest(path.stem, request) for request in self._read_request(path.stem, taken)]
        return found

    def _read_request(self, name: str, path: Path) -> Iterator[Request]:
        try:
            yield Request.model_validate_json(read_limited(path, MOST_FILE_BYTES))
        except (OSError, FileTooLarge) as error:
            self.write_answer(name, RequestAnswer(ok=False, text=f"the request cannot be read: {error}"))
        except ValidationError as error:
            self.write_answer(name, RequestAnswer(ok=False, text=f"the request is invalid: {validation_text(error)}"))

    def write_answer(self, name: str, answer: RequestAnswer) -> None:
        """Answer a request; if the disk does not take the answer, that is logged."""
        try:
            write_atomically(self.folder / f"{name}.answer", answer.model_dump_json().encode())
            (self.folder / f"{name}.taken").unlink(missing_ok=True)
        except OSError as error:
            log.warning("a request cannot be answered: %s", error)

    def answer_requests(self, carry_out: Callable[[Request], str]) -> None:
        """Carry out all new requests, and answer each with its result or error."""
        for pending in self.take_requests():
            try:
                answer = RequestAnswer(ok=True, text=carry_out(pending.request))
            except Exception as error:  # no request may end a run
                expected = isinstance(error, ValueError | OSError)
                log.log(
                    logging.WARNING if expected else logging.ERROR,
                    "%s: %s",
                    pending.request.command,
                    error,
                    exc_info=not expected,
                )
                text = (
                    str(error)
                    if expected
                    else f"something unexpected went wrong, see the Coach's log: {type(error).__name__}: {error}"
                )
                answer = RequestAnswer(ok=False, text=text)
            self.write_answer(pending.id, answer)

    def close(self) -> None:
        """Stop answering."""
        if self._is_open:
            with suppress(OSError):
                (self.folder / COACH).unlink()
            if self._lock:
                self._lock.close()
        self._is_open = False


def ask_coach(
    request: Request,
    folder: Path = CONTROL_FOLDER,
    *,
    seconds: float = WAIT_SECONDS,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> RequestAnswer:
    """Have the running Coach carry out a request, and wait for its answer for at most ``seconds``.

    Raises:
        NoCoach: none is running, or it ended before it took the request.
        NotAnswered: it did not answer in time.
        OSError: the request cannot be written.
    """
    if not is_coach_running(folder):
        raise NoCoach("no Coach is running")
    name = secrets.token_hex(8)
    path, answer = folder / f"{name}.request", folder / f"{name}.answer"
    write_atomically(path, request.model_dump_json(exclude_unset=True).encode())
    deadline = clock() + seconds
    while True:
        runs = is_coach_running(folder)  # checked before the answer is: a Coach that has ended answers no more
        with suppress(FileNotFoundError):
            found = RequestAnswer.model_validate_json(read_limited(answer, MOST_FILE_BYTES))
            answer.unlink()
            return found
        if not runs or clock() >= deadline:
            break
        sleep(POLL_SECONDS)
    try:
        path.unlink()
    except FileNotFoundError:
        end = "has ended before it answered" if not runs else f"has not answered in {seconds:g} s"
        raise NotAnswered(
            f"the Coach has taken the request ({request.command}), but {end}; see logs/distributed_training.log"
        ) from None
    if not runs:
        raise NoCoach("the Coach has ended before it took the request")
    raise NotAnswered(
        f"a Coach is running, but it has not read the request ({request.command}) in {seconds:g} s, and the request "
        "has been withdrawn; the Coach may be busy: try again, and see logs/distributed_training.log"
    )


def is_coach_running(folder: Path = CONTROL_FOLDER) -> bool:
    """Return whether a Coach is running that can answer."""
    return is_held(folder)


def read_coach_facts(folder: Path = CONTROL_FOLDER) -> CoachFacts | None:
    """Return what the running Coach has published about itself; None if none is running."""
    if not is_coach_running(folder):
        return None
    try:
        return CoachFacts.model_validate_json(read_limited(folder / COACH, MOST_FILE_BYTES))
    except (OSError, ValueError):
        return None  # it is just starting, or ending


def validation_text(error: ValidationError) -> str:
    """Return the errors in a message or a machine, in one line."""
    problems = []
    for details in error.errors(include_url=False, include_input=False, include_context=False):
        where = ".".join(map(str, details["loc"]))
        problems.append(f"{where}: {details['msg']}" if where else details["msg"])
    return "; ".join(problems).replace("Value error, ", "")


def lock_control_folder(folder: Path = CONTROL_FOLDER) -> RunLock:
    """Take the lock that shows that a Coach runs.

    Raises:
        RunLocked: another Coach uses this folder's workers.
        OSError: the folder cannot be created or written.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    deadline = time.monotonic() + LOCK_SECONDS
    while True:
        try:
            return RunLock(folder)
        except RunLocked:
            if time.monotonic() >= deadline:
                facts = read_coach_facts(folder)
                elsewhere = "use another checkout" if CHECKOUT else "start this run in another folder"
                who = f" (process {facts.pid}, for {facts.run})" if facts else ""
                raise RunLocked(
                    f"another Coach already uses the workers of {folder.parents[1]}{who}; stop it first, or {elsewhere}"
                ) from None
        time.sleep(POLL_SECONDS)


def _delete_stale_files(folder: Path) -> None:
    """Delete files that no client waits for any more."""
    for path in folder.iterdir():
        with suppress(FileNotFoundError):
            if (
                path.suffix in (".request", ".taken", ".answer", ".part")
                and time.time() - path.lstat().st_mtime > STALE_SECONDS
            ):
                path.unlink()
