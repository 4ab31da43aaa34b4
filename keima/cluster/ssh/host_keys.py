"""Host keys: ``known_hosts`` files in ssh's format, and what to do about a key that is not in them."""

import base64
import binascii
import fnmatch
import hashlib
import hmac
import os
import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from keima.cluster.ssh.errors import Refused

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
        """The fingerprint, as ssh prints it."""
        return "SHA256:" + base64.b64encode(hashlib.sha256(self.blob).digest()).decode().rstrip("=")


@dataclass(frozen=True)
class KeyScan:
    """What ssh-keyscan is asked for, to learn the key of a host."""

    options: str  # the kind of key, and the port
    host: str
    file: Path  # where the key goes


class UnknownHostKey(Refused):
    """The machine's host key is not known. ``scan`` would fetch it; None: ssh-keyscan cannot reach the machine."""

    def __init__(self, worker: str, what: str, remedy: str, scan: KeyScan | None) -> None:
        super().__init__(worker, what, remedy)
        self.scan = scan


def scan_commands(scans: Iterable[KeyScan]) -> list[str]:
    """Return the shell commands that fetch the keys of several hosts: one for all that have the same options."""
    together: dict[tuple[str, Path], list[str]] = {}
    for scan in scans:
        together.setdefault((scan.options, scan.file), []).append(scan.host)
    return [
        f"ssh-keyscan {options} {' '.join(hosts)} >> {shlex.quote(str(file))}"
        for (options, file), hosts in together.items()
    ]


@dataclass(frozen=True)
class KnownHostLine:
    """A line of a known_hosts file that matches the machine."""

    key: HostKey
    marker: str  # "", REVOKED or AUTHORITY
    file: Path
    number: int


@dataclass(frozen=True)
class KnownHost:
    """What the user's files contain about one machine."""

    name: str  # as it is listed
    lines: tuple[KnownHostLine, ...]
    without_port: tuple[KnownHostLine, ...]  # for the machine without a port, if another port is asked for
    file: Path  # where new keys go

    @property
    def key_kinds(self) -> list[str]:
        """The known kinds of its keys: the ones to ask it for."""
        return [line.key.kind for line in (*self.lines, *self.without_port) if not line.marker]


def known_host_keys(host: str, port: int, files: Sequence[Path], *, alias: str | None = None) -> KnownHost:
    """Return what the files contain about a machine, whose key may be listed under an alias.

    Raises:
        OSError: a file exists but cannot be read.
    """
    host = host.lower()
    name = alias or (host if port == SSH_PORT else f"[{host}]:{port}")
    plain = () if name == host or alias else tuple(_matching_lines(files, host))
    return KnownHost(name, tuple(_matching_lines(files, name)), plain, files[0])


def check_host_key(worker: str, known: KnownHost, key: HostKey, *, accept_new: bool, scan: KeyScan | None) -> bool:
    """Accept only a machine that shows a known key, or a new machine if ``accept_new``.

    Args:
        worker: the worker's name, for messages.
        known: what the user's files contain about the machine.
        key: the key that it shows.
        accept_new: whether to accept and store the key of a new machine.
        scan: how ssh-keyscan would fetch its key; None: it does not reach the machine.

    Returns:
        Whether it is new: its key is now in the user's file.

    Raises:
        Refused: it is another machine, a new one, or its key has been revoked.
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
            f"the host key of {known.name} has changed: it shows {key.kind} {key.fingerprint}, but {line.file}, "
            f"line {line.number}, has {line.key.kind} {line.key.fingerprint}. Someone may be intercepting the "
            "connection, or it was reinstalled",
            f"if it was reinstalled: ssh-keygen -R {shlex.quote(known.name)} -f {shlex.quote(str(line.file))}",
        )
    if accept_new:
        append_host_key(known.file, known.name, key)
        return True
    entry = shlex.quote(known_hosts_line(known.name, key))
    add = scan_commands([scan])[0] if scan else f"echo {entry} >> {shlex.quote(str(known.file))}"
    only = " (it trusts a certificate authority there, which is not supported)" if known.lines else ""
    raise UnknownHostKey(
        worker,
        f"the host key of {known.name} is not known{only}: it shows {key.kind} {key.fingerprint}",
        f"if that is its own: {add}",
        scan,
    )


def append_host_key(file: Path, name: str, key: HostKey) -> None:
    """Append the key to the user's file.

    Raises:
        OSError: it cannot be written.
    """
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with os.fdopen(os.open(file, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600), "r+b") as opened:
        size = opened.seek(0, os.SEEK_END)
        if size:
            opened.seek(size - 1)
        torn = size > 0 and opened.read(1) != b"\n"
        opened.write(b"\n" * torn + f"{known_hosts_line(name, key)}\n".encode())


def known_hosts_line(name: str, key: HostKey) -> str:
    """Return the line for a known_hosts file."""
    return f"{name} {key.kind} {base64.b64encode(key.blob).decode()}"


def _matching_lines(files: Sequence[Path], name: str) -> Iterator[KnownHostLine]:
    """Yield the lines that match ``name``; invalid lines are skipped, as ssh does."""
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
            if _matches_host(words[0], name):
                yield KnownHostLine(key, marker, file, number)


def _matches_host(patterns: str, name: str) -> bool:
    """Return whether the first word of a line matches the machine: a hash of its name, or patterns with *, ? and !."""
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
