"""Processes on a worker's machine that outlive the connection by which they were started, at most one at each place.

A *place* is a folder: a worker's, or that of a long command. Who runs there is recorded in its ``process.json``,
written under a lock that is let go only when the new program has begun, so that no two can ever begin at once. A
process is signalled only if its boot, its id and its start time are those recorded: never a stranger that was given the
same id later. Where several machines share the folder, the record of another one's process says nothing of whether it
runs: nobody begins beside it, and nobody signals it.

Like all of ``distributed/remote*.py`` it runs on a worker's machine too, before anything is installed: standard library
only.
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

LOCK_SECONDS = 4.0
LOG_BYTES = 5 * 2**20  # a log that has grown beyond is put aside when the next process begins
TAIL_BYTES = 64 * 2**10
PROC = Path("/proc")
MACHINE_ID = Path("/etc/machine-id")


class Failed(Exception):
    """The command cannot be carried out; ``kind`` tells the main node what to advise."""

    def __init__(self, text: str, kind: str = "failed") -> None:
        super().__init__(text)
        self.kind = kind


def read_text(path: Path) -> str:
    """The content of a small file; empty when there is none to be read."""
    try:
        return path.read_text()
    except (OSError, ValueError):
        return ""


def boot_id() -> str:
    """Another one after each start of the machine."""
    return read_text(PROC / "sys/kernel/random/boot_id").strip()


def host() -> str:
    """This machine, as against others that share its homes."""
    return f"{platform.node()}-{hashlib.sha256(read_text(MACHINE_ID).strip().encode()).hexdigest()[:8]}"


def world() -> str:
    """Where a process id means one process: this machine since its last start, and which of its lists of processes."""
    with contextlib.suppress(OSError):
        return f"{host()}/{boot_id()}/{(PROC / 'self/ns/pid').stat().st_ino}"
    return f"{host()}/{boot_id()}/"


@contextlib.contextmanager
def locked(path: Path, seconds: float) -> Iterator[None]:
    """Hold the lock at ``path``; it is held on by what is forked within until that runs another program."""
    descriptor = os.open(str(path), os.O_RDWR | os.O_CREAT, 0o600)
    deadline = time.monotonic() + seconds
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise Failed(f"another start or stop is under way at {path.parent}", "busy") from None
            time.sleep(0.02)
        yield
    finally:
        os.close(descriptor)


def process_stat(pid: int | str) -> tuple[str, int, int] | None:
    """State, process group and start time (ticks since boot) of a process; None when there is none."""
    fields = read_text(PROC / str(pid) / "stat").rpartition(")")[2].split()
    return (fields[0], int(fields[2]), int(fields[19])) if len(fields) > 19 else None


def record_at(place: Path) -> dict[str, Any]:
    """Who was last recorded at ``place``; nothing where nobody was. One of an earlier version began on this machine."""
    try:
        record = json.loads((place / "process.json").read_text())
    except (OSError, ValueError):
        return {}
    return {"host": host(), **record} if isinstance(record, dict) else {}


def elsewhere(place: Path) -> dict[str, Any] | None:
    """The record of a process at ``place`` that began on another machine, of which nobody here knows whether it still
    runs.

    A command that has left its exit code has ended, wherever it ran.
    """
    record = record_at(place)
    return record if record and record["host"] != host() and not (place / "exit").exists() else None


def refuse_elsewhere(place: Path) -> None:
    """Go on only if no process of another machine is recorded at ``place``.

    Raises:
        Failed: one is.
    """
    if found := elsewhere(place):
        there, here = str(found["host"]).rpartition("-")[0], platform.node()
        text = f"process {found.get('pid')} of {there} is recorded at {place}, and from {here} nobody can see whether it runs"
        raise Failed(f"{text}: these machines share their home", "elsewhere")


def running(place: Path) -> dict[str, Any] | None:
    """The record of the process that runs at ``place``, if it does, on this machine."""
    record = record_at(place)
    try:
        found = process_stat(int(record["pid"])) if record["host"] == host() else None
        same = (
            found is not None
            and found[0] not in "ZX"
            and found[2] == record["start_ticks"]
            and record["boot_id"] == boot_id()
        )
    except (ValueError, KeyError, TypeError):
        return None
    return record if same else None


def record_myself(place: Path, argv: list[str]) -> None:
    """Write who runs at ``place``: this process."""
    found = process_stat(os.getpid())
    assert found is not None
    record = {"pid": os.getpid(), "start_ticks": found[2], "boot_id": boot_id(), "host": host(), "argv": argv}
    part = place / "process.json.part"
    part.write_text(json.dumps(record))
    part.replace(place / "process.json")


def claim(place: Path, argv: list[str], *, seconds: float = LOCK_SECONDS) -> int | None:
    """Have this process be the one at ``place``; else the id of the one that is.

    Raises:
        Failed: others are at it for longer than ``seconds``.
    """
    with locked(place / "launch.lock", seconds):
        refuse_elsewhere(place)
        other = running(place)
        if other and other["pid"] != os.getpid():
            return int(other["pid"])
        record_myself(place, argv)
    return None


def let_go(place: Path) -> None:
    """Leave no record of this process at ``place``, where it ends: others who share the folder could not tell."""
    with contextlib.suppress(OSError):
        if (running(place) or {}).get("pid") == os.getpid():
            (place / "process.json").unlink()


def start(request: dict[str, Any]) -> dict[str, Any]:
    """Start a process at ``place`` that outlives this session, unless one runs there already.

    With ``shared`` it is one for all machines that share the folder: another one's serves as well.
    """
    place = Path(request["place"])
    place.mkdir(parents=True, exist_ok=True, mode=0o700)
    log = Path(request["log"])
    log.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    if request.get("logs"):
        link_log(log, Path(request["logs"]))
    with locked(place / "launch.lock", LOCK_SECONDS):
        found = running(place) or (elsewhere(place) if request.get("shared") else None)
        if found:
            return dict(found, already=True)
        refuse_elsewhere(place)
        (place / "exit").unlink(missing_ok=True)
        if log.exists() and log.stat().st_size > LOG_BYTES:
            log.replace(log.with_name(f"{log.name}.1"))
        ours, theirs = os.pipe()  # closed unread when the program begins; else it says why it did not
        child = os.fork()
        if child == 0:
            if os.fork() == 0:
                become(request, place, log, theirs)
            os._exit(0)
        os.close(theirs)
        os.waitpid(child, 0)
        with os.fdopen(ours, "rb") as pipe:
            error_text = pipe.read().decode("utf-8", "replace")
        if error_text:
            raise Failed(error_text)
        return dict(json.loads((place / "process.json").read_text()), already=False)


def link_log(log: Path, folder: Path) -> None:
    """Let the log be found in ``folder`` too, if that is possible."""
    with contextlib.suppress(OSError):
        folder.mkdir(exist_ok=True)
        if not (folder / log.name).exists():
            (folder / log.name).unlink(missing_ok=True)
            (folder / log.name).symlink_to(log.absolute())


def become(request: dict[str, Any], place: Path, log: Path, pipe: int) -> None:
    """Run the program in this process, cut off from the session; never returns."""
    try:
        os.setsid()
        record_myself(place, request["argv"])
        nothing = os.open(os.devnull, os.O_RDONLY)
        output = os.open(str(log), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        for source, target in ((nothing, 0), (output, 1), (output, 2)):
            os.dup2(source, target)
        for path in list((PROC / "self/fd").iterdir()):
            with contextlib.suppress(OSError):
                os.set_inheritable(int(path.name), int(path.name) < 3)
        for number in (signal.SIGPIPE, signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)  # what Python or nohup ignore would stay ignored
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        os.execvpe(request["argv"][0], request["argv"], dict(os.environ, **request["env"]))
    except BaseException as error:
        (place / "process.json").unlink(missing_ok=True)
        os.write(pipe, f"{request['argv'][0]} cannot be started: {error}".encode())
    os._exit(127)


def stop(request: dict[str, Any]) -> dict[str, Any]:
    """End what runs at ``place``, and all of its process group: asked first, killed after ``seconds``."""
    place, seconds = Path(request["place"]), float(request["seconds"])
    if not place.is_dir():
        return {"found": False, "killed": False}
    with locked(place / "launch.lock", LOCK_SECONDS):
        refuse_elsewhere(place)
        found = running(place)
        if found is None:
            return {"found": False, "killed": False}
        for number, patience in ((signal.SIGTERM, seconds), (signal.SIGKILL, LOCK_SECONDS)):
            signal_process(found["pid"], number)
            deadline = time.monotonic() + patience
            while time.monotonic() < deadline:
                if not (running(place) or members(found["pid"])):
                    (place / "process.json").unlink(missing_ok=True)
                    return {"found": True, "killed": number == signal.SIGKILL}
                time.sleep(0.05)
    raise Failed(f"process {found['pid']} does not end, not even killed: its disk or its GPU hangs")


def signal_process(pid: int, number: int) -> None:
    """Signal the process, and its group if it leads one."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number) if not members(pid) else os.killpg(pid, number)


def members(group: int) -> list[int]:
    """The processes of a group that have not ended."""
    pids = [int(path.name) for path in PROC.iterdir() if path.name.isdigit()]
    found = ((pid, process_stat(pid)) for pid in pids)
    return [pid for pid, stat in found if stat and stat[1] == group and stat[0] not in "ZX"]


def alive(request: dict[str, Any]) -> dict[str, Any]:
    """Whether a process runs at ``place``, and how the last command there ended, if it was one that says so.

    One of another machine counts as running, as it may.
    """
    place = Path(request["place"])
    found = running(place) or elsewhere(place)
    code = read_text(place / "exit").strip()
    return {
        "running": found is not None,
        "pid": found["pid"] if found else 0,
        "code": int(code) if code.isdigit() else None,
    }


def tail(request: dict[str, Any]) -> dict[str, Any]:
    """The last ``lines`` of a log, and where it ends; with ``offset``, what has come since."""
    log, offset = Path(request["log"]), request.get("offset")
    if not log.is_file():
        return {"text": "", "end": 0}
    with log.open("rb") as file:
        end = file.seek(0, os.SEEK_END)
        file.seek(max(0, end - TAIL_BYTES, min(offset or 0, end)))
        text = file.read(end - file.tell()).decode("utf-8", "replace")
    return {"text": "".join(text.splitlines(keepends=True)[-int(request["lines"]) :]), "end": end}
