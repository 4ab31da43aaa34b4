"""Which machines are known: ``known_hosts`` files as ssh keeps them, and what to do about a key that is not in them."""

import base64
import binascii
import fnmatch
import hashlib
import hmac
import os
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from distributed.ssh.errors import Refused

REVOKED = "@revoked"
AUTHORITY = "@cert-authority"
SSH_PORT = 22


@dataclass(frozen=True)
class HostKey:
    """A machine's public key: its kind, such as ssh-ed25519, and its bytes."""

    kind: str
    blob: bytes

    @property
    def fingerprint(self) -> str:
        """As ssh shows it."""
        return "SHA256:" + base64.b64encode(hashlib.sha256(self.blob).digest()).decode().rstrip("=")


@dataclass(frozen=True)
class Line:
    """A line of a known_hosts file that speaks of the machine."""

    key: HostKey
    marker: str  # "", REVOKED or AUTHORITY
    file: Path
    number: int


@dataclass(frozen=True)
class Known:
    """What the user's files say of one machine."""

    name: str  # as it stands in them
    lines: tuple[Line, ...]
    without_port: tuple[Line, ...]  # of the machine as such, where it is another port that is asked for
    file: Path  # where a new key goes

    @property
    def kinds(self) -> list[str]:
        """The kinds of key that are known of it: the ones to ask it for."""
        return [line.key.kind for line in (*self.lines, *self.without_port) if not line.marker]


def known(host: str, port: int, files: Sequence[Path], *, alias: str | None = None) -> Known:
    """What the files say of a machine, whose key may go by another name.

    Raises:
        OSError: one of them is there, but cannot be read.
    """
    host = host.lower()
    name = alias or (host if port == SSH_PORT else f"[{host}]:{port}")
    plain = () if name == host or alias else tuple(_lines(files, host))
    return Known(name, tuple(_lines(files, name)), plain, files[0])


def check(worker: str, known: Known, key: HostKey, *, accept_new: bool, scan: str | None) -> bool:
    """Let pass only a machine that shows the key that is known of it, or a new machine where that is welcome.

    Args:
        scan: the ssh-keyscan command that would fetch its keys; None: no such command reaches it.

    Returns:
        Whether it is new: its key is now in the user's file.

    Raises:
        Refused: it is another machine, a new one, or its key has been withdrawn.
        OSError: the user's file cannot be written.
    """
    good = [line for line in known.lines if not line.marker]
    if any(line.key == key and line.marker == REVOKED for line in (*known.lines, *known.without_port)):
        raise Refused(
            worker,
            f"the host key {key.fingerprint} of {known.name} is marked as revoked",
            "give the machine a new host key",
        )
    if any(line.key == key for line in (*good, *known.without_port) if not line.marker):
        return False
    if good:
        line = next((line for line in good if line.key.kind == key.kind), good[0])
        raise Refused(
            worker,
            f"the host key of {known.name} has changed: it shows {key.kind} {key.fingerprint}, but {line.file}, line {line.number}, has "
            f"{line.key.kind} {line.key.fingerprint}. Somebody may be between you and it, or it was set up anew",
            f"if you know that it was: ssh-keygen -R {shlex.quote(known.name)} -f {shlex.quote(str(line.file))}",
        )
    if accept_new:
        add(known.file, known.name, key)
        return True
    file = shlex.quote(str(known.file))
    entry = shlex.quote(entry_of(known.name, key))
    only = " (it trusts a certificate authority there, which is not supported)" if known.lines else ""
    raise Refused(
        worker,
        f"the host key of {known.name} is not known{only}: it shows {key.kind} {key.fingerprint}",
        f"if that is its own: {scan or f'echo {entry}'} >> {file}",
    )


def add(file: Path, name: str, key: HostKey) -> None:
    """Add the key to the user's file.

    Raises:
        OSError: it cannot be written.
    """
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with os.fdopen(os.open(file, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600), "r+b") as opened:
        size = opened.seek(0, os.SEEK_END)
        if size:
            opened.seek(size - 1)
        torn = size > 0 and opened.read(1) != b"\n"
        opened.write(b"\n" * torn + f"{entry_of(name, key)}\n".encode())


def entry_of(name: str, key: HostKey) -> str:
    """The line for a known_hosts file."""
    return f"{name} {key.kind} {base64.b64encode(key.blob).decode()}"


def _lines(files: Sequence[Path], name: str) -> Iterator[Line]:
    """The lines that speak of ``name``; those that make no sense are passed over, as ssh does."""
    for file in files:
        try:
            text = file.read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            continue
        for number, line in enumerate(text.splitlines(), 1):
            words = line.split()
            marker = words.pop(0) if words and words[0].startswith("@") else ""
            if len(words) < 3 or words[0].startswith("#") or marker not in ("", REVOKED, AUTHORITY):
                continue
            try:
                key = HostKey(words[1], base64.b64decode(words[2], validate=True))
            except binascii.Error:
                continue
            if _speaks_of(words[0], name):
                yield Line(key, marker, file, number)


def _speaks_of(patterns: str, name: str) -> bool:
    """Whether the first word of a line means this machine: a hash of its name, or patterns with * and ?, of which none
    may be negated.
    """
    if patterns.startswith("|1|"):
        try:
            salt, digest = (base64.b64decode(part, validate=True) for part in patterns[3:].split("|"))
        except ValueError:
            return False
        return hmac.compare_digest(hmac.new(salt, name.encode(), "sha1").digest(), digest)
    found = False
    for pattern in patterns.lower().split(","):
        plain = pattern.removeprefix("!").replace("[", "[[]")
        if fnmatch.fnmatchcase(name.lower(), plain):
            if pattern.startswith("!"):
                return False
            found = True
    return found
