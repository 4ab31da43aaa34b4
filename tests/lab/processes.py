"""What the system says about processes; for those that have ended, nothing and no error."""

import time
from collections.abc import Callable
from pathlib import Path

WAIT_SECONDS = 60.0  # on a machine that is also busy with other work


def wait_until(condition: Callable[[], bool], what: str, *, seconds: float = WAIT_SECONDS) -> None:
    """Wait for a condition, or fail."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited {seconds:.0f} s in vain for {what}"
        time.sleep(0.01)


def pids() -> list[int]:
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdecimal()]


def lives(pid: str) -> bool:
    return Path("/proc", pid).exists()


def _stat(pid: int) -> list[str]:
    """Return what the system says about a process, from its state on; X and no parent if it does not exist."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return ["X", "0"]


def state(pid: int) -> str:
    return _stat(pid)[0]


def has_ended(pid: int) -> bool:
    """Return whether a process has ended; a zombie has."""
    return state(pid) in ("X", "Z")


def parent(pid: int) -> int:
    return int(_stat(pid)[1])


def namespace(pid: int) -> str:
    try:
        return str(Path(f"/proc/{pid}/ns/pid").readlink())
    except OSError:
        return ""


def command(pid: int) -> str:
    return _read(pid, "comm").strip()


def command_line(pid: int) -> str:
    return _read(pid, "cmdline").replace("\0", " ")


def _read(pid: int, name: str) -> str:
    try:
        return Path(f"/proc/{pid}/{name}").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return ""
