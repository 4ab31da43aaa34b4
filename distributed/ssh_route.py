"""The way to a machine as ssh would go it: its own settings, then ``~/.ssh/config``, then what ssh does by itself."""

import getpass
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from configs.schema import WorkerSettings
from distributed.errors import Refused
from distributed.host_keys import SSH_PORT

CONFIGS = (Path("~/.ssh/config"), Path("/etc/ssh/ssh_config"))
KEYS = ("~/.ssh/id_ed25519", "~/.ssh/id_ecdsa", "~/.ssh/id_rsa")
KNOWN_HOSTS = "~/.ssh/known_hosts ~/.ssh/known_hosts2"
GLOBAL_KNOWN_HOSTS = "/etc/ssh/ssh_known_hosts /etc/ssh/ssh_known_hosts2"
JUMP = re.compile(r"(?:ssh://)?(?:(?P<user>[^@]+)@)?(?P<host>\[[^]]+\]|[^:\[\]]+)(?::(?P<port>[0-9]+))?/?")
LONGEST = 8  # jumps
DEEPEST = 16  # files that include files

Options = Mapping[str, str | list[str]]  # what ~/.ssh/config says of a host, names in small letters


@dataclass(frozen=True)
class Hop:
    """One machine on the way, the last of which is the worker's own."""

    name: str  # as the user calls it
    host: str
    port: int
    user: str
    keys: tuple[Path, ...]  # private keys to try
    required: Path | None  # the one that the settings name
    only_these: bool  # of the agent's keys, no others
    known_hosts: tuple[Path, ...]
    alias: str | None  # the name under which known_hosts has it


def route(machine: WorkerSettings, lookup: Callable[[str], Options]) -> tuple[Hop, ...]:
    """The machines to go through, one by one, and at last the worker's own.

    Raises:
        Refused: the settings or ``~/.ssh/config`` make no sense.
    """
    options = lookup(machine.host)
    key = Path(machine.key_path).expanduser() if machine.key_path else None
    last = _hop(machine, options, machine.host, user=machine.user, port=machine.port, key=key)
    jumps = machine.proxy_jump or _text(options, "proxyjump")
    return (*_jumps(machine, lookup, jumps, key, LONGEST), last)


def config_text(files: Sequence[Path] = CONFIGS) -> str:
    """The lines of the user's and the system's ssh_config, with those that they include.

    Raises:
        OSError: a file is there, but cannot be read.
    """
    paths = [file.expanduser() for file in files]
    return "\n".join(line for path in paths for line in (*_config_lines(path, path.parent, DEEPEST), "Host *"))


def _config_lines(file: Path, base: Path, depth: int) -> Iterator[str]:
    section = "Host *"  # the one that goes on after an included file
    for line in file.read_text(encoding="utf-8").splitlines() if file.is_file() and depth else ():
        keyword, _, rest = line.strip().replace("=", " ", 1).partition(" ")
        if keyword.lower() in ("host", "match"):
            section = line
        if keyword.lower() != "include":
            yield line
            continue
        for pattern in rest.replace('"', "").split():
            path = base / Path(pattern).expanduser()
            for included in sorted(Path(path.anchor).glob(str(path.relative_to(path.anchor)))):
                yield from _config_lines(included, base, depth - 1)
        yield section


def _jumps(machine: WorkerSettings, lookup: Callable[[str], Options], jumps: str | None, key: Path | None, left: int) -> list[Hop]:
    """The hops of a ProxyJump line; the first of them may itself be reached by jumps."""
    if not jumps or jumps.lower() == "none":
        return []
    hops: list[Hop] = []
    for jump in jumps.split(","):
        found = JUMP.fullmatch(jump.strip())
        if found is None or left <= len(hops):
            why = "ProxyJump goes in a circle" if found else f"ProxyJump {jump!r} is not [user@]host[:port]"
            raise Refused(machine.name, why, "mend `proxy_jump` in config.yaml or ProxyJump in ~/.ssh/config")
        name = found["host"].strip("[]")
        options = lookup(name)
        if not hops:
            hops += _jumps(machine, lookup, _text(options, "proxyjump"), key, left - 1)
        hops.append(_hop(machine, options, name, user=found["user"], port=int(found["port"]) if found["port"] else None, also=key))
    return hops


def _hop(
    machine: WorkerSettings,
    options: Options,
    name: str,
    *,
    user: str | None,
    port: int | None,
    key: Path | None = None,
    also: Path | None = None,
) -> Hop:
    """One machine: what the settings say counts before what ~/.ssh/config says."""
    configured = options.get("identityfile") or list(KEYS)
    keys = [Path(each).expanduser() for each in ([configured] if isinstance(configured, str) else configured)]
    asked = port or _text(options, "port") or SSH_PORT
    if not str(asked).isdecimal():
        raise Refused(machine.name, f"Port {asked!r} of {name} is no number", "mend ~/.ssh/config")
    files = [*_paths(options, "userknownhostsfile", KNOWN_HOSTS), *_paths(options, "globalknownhostsfile", GLOBAL_KNOWN_HOSTS)]
    return Hop(
        name,
        _text(options, "hostname") or name,
        int(asked),
        user or _text(options, "user") or getpass.getuser(),
        (key,) if key else (*([also] if also else []), *keys),
        key,
        (_text(options, "identitiesonly") or "no").lower() == "yes",
        tuple(files),
        _text(options, "hostkeyalias"),
    )


def _text(options: Options, name: str) -> str | None:
    value = options.get(name)
    return value if isinstance(value, str) else None


def _paths(options: Options, name: str, default: str) -> list[Path]:
    return [Path(path).expanduser() for path in (_text(options, name) or default).split() if path.lower() != "none"]
