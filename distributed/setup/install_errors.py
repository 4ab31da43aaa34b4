"""Why a machine could not be set up, in a sentence and with a remedy, out of what pip, venv or Python have said."""

import re
from collections.abc import Sequence

BY_WHEELS = "send the packages from here (`--wheels DIR`), or name an index or a proxy that it can reach below `pip:` in the config"
# What is looked for in all lines, the first that is found counts: a pattern, what it means, and what remedies it.
KNOWN = (
    (r"No space left on device|Disk quota exceeded", "its disk is full", "make room there"),
    (
        r"Name or service not known|name resolution|Network is unreachable|No route to host|Connection refused|ConnectTimeout|timed out"
        r"|ProxyError|Tunnel connection failed|SSLError|CERTIFICATE_VERIFY_FAILED|NewConnectionError",
        "it cannot reach the package index",
        BY_WHEELS,
    ),
    (
        r"satisfies the requirement (?P<name>[^\s(]+) \(from versions: none\)",
        "pip finds no {name} at all: it cannot reach the package index, or that has no such package",
        BY_WHEELS,
    ),
    (
        r"(?:No matching distribution found for|satisfies the requirement) (?P<name>[^\s(]+)",
        "pip finds no package {name} for its Python and processor",
        f"see that the index has it; or {BY_WHEELS}",
    ),
    (
        r"cannot make virtual environments|ensurepip is not available",
        "its Python cannot make virtual environments",
        "there: sudo apt-get install python3-venv (Debian, Ubuntu); or send pip too, by `--wheels DIR`",
    ),
    (
        r"MemoryError|Cannot allocate memory|^Killed",
        "it has too little memory",
        "end other programs there, or use another machine",
    ),
    (r"Permission denied: (?P<name>\S+)", "it may not write {name}", "see whom that belongs to"),
)
ERROR = re.compile(r"^(ERROR: |[\w.]*(Error|Exception)\b)")


def explained(said: Sequence[str], code: int) -> tuple[str, str]:
    """Why a step failed, and what remedies it.

    Args:
        said: the last lines of what it said.
        code: its exit code.
    """
    for pattern, meaning, remedy in KNOWN:
        for line in said:
            if found := re.search(pattern, line):
                name = found.groupdict().get("name", "")
                return f"{meaning.format(name=name.strip(chr(39)))} ({_short(line)})", remedy
    telling = [line for line in said if ERROR.match(line)] or list(said)
    return _short(telling[-1]) if telling else f"exit code {code}", "put that right there"


def _short(line: str) -> str:
    """A line's beginning, without what says that it is an error."""
    text = line.strip().removeprefix("ERROR: ").rstrip(".")
    return text if len(text) <= 200 else f"{text[:200]}..."
