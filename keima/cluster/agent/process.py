"""Processes on a worker's machine that outlive the connection that started them, at most one at each place.

A *place* is a folder: a worker's, or that of a long command. Its ``process.json`` records the process. It is written
under a lock that is released only after the new program has begun, so two can never begin at once. A process is
signalled only if its boot, id and start time match the record, so another process with the same id never is. If several
machines share the folder, a record of another machine does not say whether its process still runs: none is started
beside it, and it is not signalled.

Like all of this folder, it runs on a worker's machine before anything is installed: standard library only.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import platform
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from keima.base.system.limits import read_text
from keima.cluster.agent.commands import (
    Alive,
    AliveRequest,
    Started,
    StartRequest,
    Stopped,
    StopRequest,
    Tail,
    TailRequest,
)

LOCK_SECONDS = 4.0
LOG_BYTES = 5 * 2**20  # a larger log is renamed when the next process begins
TAIL_BYTES = 64 * 2**10
PROC = Path("/proc")
MACHINE_ID = Path("/etc/machine-id")


class CommandFailed(Exception):
    """The command cannot be carried out; ``kind`` tells the main node what to advise."""

    def __init__(self, text: str, kind: str = "failed") -> None:
        super().__init__(text)
        self.kind = kind


def boot_id() -> str:
    """Return an id that changes with every start of the machine."""
    return read_text(PROC / "sys/kernel/random/boot_id").strip()


def host_name() -> str:
    """Return a name for this machine that differs from others that share its homes."""
    return f"{platform.node()}-{hashlib.sha256(read_text(MACHINE_ID).strip().encode()).hexdigest()[:8]}"


def process_id_scope() -> str:
    """Return where a process id is unique: this machine since its last start, and its process namespace."""
    with contextlib.suppress(OSError):
        return f"{host_name()}/{boot_id()}/{(PROC / 'self/ns/pid').stat().st_ino}"
    return f"{host_name()}/{boot_id()}/"


@contextlib.contextmanager
def hold_lock(path: Path, seconds: float) -> Iterator[None]:
    """Hold the lock at ``path``; a process forked within holds it until it runs another program."""
    descriptor = os.open(str(path), os.O_RDWR | os.O_CREAT, 0o600)
    deadline = time.monotonic() + seconds
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise CommandFailed(f"another start or stop is under way at {path.parent}", "busy") from None
            time.sleep(0.02)
        yield
    finally:
        os.close(descriptor)


def read_process_stat(pid: int | str) -> tuple[str, int, int] | None:
    """Return state, process group and start time (ticks since boot) of a process; None if there is none."""
    fields = read_text(PROC / str(pid) / "stat").rpartition(")")[2].split()
    return (fields[0], int(fields[2]), int(fields[19])) if len(fields) > 19 else None


def read_record(place: Path) -> dict[str, Any]:
    """Return the last record at ``place``; empty if there is none. One of an earlier version is of this machine."""
    try:
        record = json.loads((place / "process.json").read_text())
    except (OSError, ValueError):
        return {}
    return {"host": host_name(), **record} if isinstance(record, dict) else {}


def find_process_elsewhere(place: Path) -> dict[str, Any] | None:
    """Return the record of a process at ``place`` that was started on another machine, so that its state is unknown
    here.

    A command that has left its exit code has ended, wherever it ran.
    """
    record = read_record(place)
    return record if record and record["host"] != host_name() and not (place / "exit").exists() else None


def check_not_elsewhere(place: Path) -> None:
    """Check that no process of another machine is recorded at ``place``.

    Raises:
        Failed: one is.
    """
    if found := find_process_elsewhere(place):
        there, here = str(found["host"]).rpartition("-")[0], platform.node()
        unknown = f"and from {here} it cannot be seen whether it runs"
        text = f"process {found.get('pid')} of {there} is recorded at {place}, {unknown}"
        raise CommandFailed(f"{text}: these machines share their home", "elsewhere")


def find_running(place: Path) -> dict[str, Any] | None:
    """Return the record of the process that runs at ``place`` on this machine; None if none does."""
    record = read_record(place)
    try:
        found = read_process_stat(int(record["pid"])) if record["host"] == host_name() else None
        same = (
            found is not None
            and found[0] not in "ZX"
            and found[2] == record["start_ticks"]
            and record["boot_id"] == boot_id()
        )
    except (ValueError, KeyError, TypeError):
        return None
    return record if same else None


def record_this_process(place: Path, argv: list[str]) -> None:
    """Record this process as the one at ``place``."""
    found = read_process_stat(os.getpid())
    assert found is not None
    record = {"pid": os.getpid(), "start_ticks": found[2], "boot_id": boot_id(), "host": host_name(), "argv": argv}
    part = place / "process.json.part"
    part.write_text(json.dumps(record))
    part.replace(place / "process.json")


def claim_place(place: Path, argv: list[str], *, seconds: float = LOCK_SECONDS) -> int | None:
    """Make this process the one at ``place``; return the id of another one that runs there.

    Raises:
        Failed: others hold the place's lock for longer than ``seconds``.
    """
    with hold_lock(place / "launch.lock", seconds):
        check_not_elsewhere(place)
        other = find_running(place)
        if other and other["pid"] != os.getpid():
            return int(other["pid"])
        record_this_process(place, argv)
    return None


def release_place(place: Path) -> None:
    """Remove the record of this process at ``place`` before it ends: other machines that share the folder could not
    tell.
    """
    with contextlib.suppress(OSError):
        if (find_running(place) or {}).get("pid") == os.getpid():
            (place / "process.json").unlink()


def start_detached(request: StartRequest) -> Started:
    """Start a process that outlives this session, unless one runs at its place."""
    place = Path(request.place)
    place.mkdir(parents=True, exist_ok=True, mode=0o700)
    log = Path(request.log)
    log.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    if request.logs:
        link_log(log, Path(request.logs))
    with hold_lock(place / "launch.lock", LOCK_SECONDS):
        found = find_running(place) or (find_process_elsewhere(place) if request.shared else None)
        if found:
            return describe_started(found, already=True)
        check_not_elsewhere(place)
        (place / "exit").unlink(missing_ok=True)
        if log.exists() and log.stat().st_size > LOG_BYTES:
            log.replace(log.with_name(f"{log.name}.1"))
        ours, theirs = os.pipe()  # closed without data when the program begins; otherwise it has the error
        child = os.fork()
        if child == 0:
            if os.fork() == 0:
                run_detached(request, place, log, theirs)
            os._exit(0)
        os.close(theirs)
        os.waitpid(child, 0)
        with os.fdopen(ours, "rb") as pipe:
            error_text = pipe.read().decode("utf-8", "replace")
        if error_text:
            raise CommandFailed(error_text)
        return describe_started(json.loads((place / "process.json").read_text()), already=False)


def describe_started(record: dict[str, Any], *, already: bool) -> Started:
    """Return what the record of a process says of it."""
    return Started(record["pid"], record["start_ticks"], record["boot_id"], already)


def link_log(log: Path, folder: Path) -> None:
    """Link the log into ``folder``, if possible."""
    with contextlib.suppress(OSError):
        folder.mkdir(exist_ok=True)
        if not (folder / log.name).exists():
            (folder / log.name).unlink(missing_ok=True)
            (folder / log.name).symlink_to(log.absolute())


def run_detached(request: StartRequest, place: Path, log: Path, pipe: int) -> None:
    """Run the program in this process, detached from the session; never returns."""
    try:
        os.setsid()
        lower_priority(request.nice)
        record_this_process(place, request.argv)
        nothing = os.open(os.devnull, os.O_RDONLY)
        output = os.open(str(log), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        for source, target in ((nothing, 0), (output, 1), (output, 2)):
            os.dup2(source, target)
        for path in list((PROC / "self/fd").iterdir()):
            with contextlib.suppress(OSError):
                os.set_inheritable(int(path.name), int(path.name) < 3)
        for number in (signal.SIGPIPE, signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)  # ignored signals would stay ignored
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        os.execvpe(request.argv[0], request.argv, dict(os.environ, **request.env))
    except BaseException as error:
        (place / "process.json").unlink(missing_ok=True)
        os.write(pipe, f"{request.argv[0]} cannot be started: {error}".encode())
    os._exit(127)


def stop_process_group(request: StopRequest) -> Stopped:
    """End a process and its process group."""
    place = Path(request.place)
    if not place.is_dir():
        return Stopped(found=False, killed=False)
    with hold_lock(place / "launch.lock", LOCK_SECONDS):
        check_not_elsewhere(place)
        found = find_running(place)
        if found is None:
            return Stopped(found=False, killed=False)
        for number, patience in ((signal.SIGTERM, request.seconds), (signal.SIGKILL, LOCK_SECONDS)):
            signal_process(found["pid"], number)
            deadline = time.monotonic() + patience
            while time.monotonic() < deadline:
                if not (find_running(place) or group_members(found["pid"])):
                    (place / "process.json").unlink(missing_ok=True)
                    return Stopped(found=True, killed=number == signal.SIGKILL)
                time.sleep(0.05)
    raise CommandFailed(f"process {found['pid']} does not end even when killed: its disk or its GPU hangs")


def lower_priority(level: int) -> None:
    """Lower the priority of this process, which leads a session; where Linux shares the processor between sessions
    first (sched(7)), that of the session too.
    """
    os.nice(level)
    with contextlib.suppress(OSError):
        if level and (PROC / "self/autogroup").exists():
            (PROC / "self/autogroup").write_text(f"{level}\n")


def signal_process(pid: int, number: int) -> None:
    """Signal the process, and its group if it leads one."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number) if not group_members(pid) else os.killpg(pid, number)


def group_members(group: int) -> list[int]:
    """Return the running processes of a group."""
    pids = [int(path.name) for path in PROC.iterdir() if path.name.isdigit()]
    found = ((pid, read_process_stat(pid)) for pid in pids)
    return [pid for pid, stat in found if stat and stat[1] == group and stat[0] not in "ZX"]


def report_alive(request: AliveRequest) -> Alive:
    """Return whether a process runs. One of another machine counts as running, since it may be."""
    place = Path(request.place)
    found = find_running(place) or find_process_elsewhere(place)
    code = read_text(place / "exit").strip()
    return Alive(found is not None, found["pid"] if found else 0, int(code) if code.isdigit() else None)


def read_log_tail(request: TailRequest) -> Tail:
    """Return the end of a log, and its size."""
    log = Path(request.log)
    if not log.is_file():
        return Tail(text="", end=0)
    with log.open("rb") as file:
        end = file.seek(0, os.SEEK_END)
        file.seek(max(0, end - TAIL_BYTES, min(request.offset, end)))
        text = file.read(end - file.tell()).decode("utf-8", "replace")
    return Tail(text="".join(text.splitlines(keepends=True)[-request.lines :]), end=end)
