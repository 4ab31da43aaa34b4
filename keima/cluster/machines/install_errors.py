"""Explain why a machine could not be set up, with a remedy, from the output of pip, venv or Python."""

import re
from collections.abc import Sequence

BY_WHEELS = "send the packages from here (`--wheels DIR`), or set a reachable index or proxy below `pip:` in the config"
# The first pattern that is found in any line counts: pattern, meaning, remedy.
KNOWN_ERRORS = (
    (r"No space left on device|Disk quota exceeded", "its disk is full", "free space there"),
    (
        r"Name or service not known|name resolution|Network is unreachable|No route to host|Connection refused"
        r"|ConnectTimeout|timed out|ProxyError|Tunnel connection failed|SSLError|CERTIFICATE_VERIFY_FAILED"
        r"|NewConnectionError",
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
        f"check that the index has it; or {BY_WHEELS}",
    ),
    (
        r"cannot make virtual environments|ensurepip is not available",
        "its Python cannot make virtual environments",
        "there: sudo apt-get install python3-venv (Debian, Ubuntu); or send pip too, by `--wheels DIR`",
    ),
    (
        r"MemoryError|Cannot allocate memory|^Killed",
        "it has too little memory",
        "stop other programs there, or use another machine",
    ),
    (r"Permission denied: (?P<name>\S+)", "it has no permission to write {name}", "check who owns it"),
)
ERROR = re.compile(r"^(ERROR: |[\w.]*(Error|Exception)\b)")


def explain_install_error(said: Sequence[str], code: int) -> tuple[str, str]:
    """Return why a step failed, and the remedy.

    Args:
        said: the last lines of its output.
        code: its exit code.
    """
    for pattern, meaning, remedy in KNOWN_ERRORS:
        for line in said:
            if found := re.search(pattern, line):
                name = found.groupdict().get("name", "")
                return f"{meaning.format(name=name.strip(chr(39)))} ({_short_line(line)})", remedy
    errors = [line for line in said if ERROR.match(line)] or list(said)
    return _short_line(errors[-1]) if errors else f"exit code {code}", "fix that there"


def _short_line(line: str) -> str:
    """Return the start of a line, without the words that mark it as an error."""
    text = line.strip().removeprefix("ERROR: ").rstrip(".")
    return text if len(text) <= 200 else f"{text[:200]}..."
