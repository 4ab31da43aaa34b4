"""The route to a machine, as ssh would take it: the worker's settings, then ``~/.ssh/config``, then ssh's defaults."""

import getpass
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from keima.cluster.ssh.errors import Refused
from keima.cluster.ssh.host_keys import SSH_PORT
from keima.config.sections.workers import WorkerSettings

SSH_CONFIGS = (Path("~/.ssh/config"), Path("/etc/ssh/ssh_config"))
SSH_KEYS = ("~/.ssh/id_ed25519", "~/.ssh/id_ecdsa", "~/.ssh/id_rsa")
KNOWN_HOSTS = "~/.ssh/known_hosts ~/.ssh/known_hosts2"
GLOBAL_KNOWN_HOSTS = "/etc/ssh/ssh_known_hosts /etc/ssh/ssh_known_hosts2"
JUMP = re.compile(r"(?:ssh://)?(?:(?P<user>[^@]+)@)?(?P<host>\[[^]]+\]|[^:\[\]]+)(?::(?P<port>[0-9]+))?/?")
MOST_JUMPS = 8  # jumps
# A name for ProxyCommand that paramiko does not expand: it would use the port and user of the file alone.
PROXY_COMMAND = "keimaproxycommand"
PERCENT_TOKEN = re.compile(r"%(.)")
MOST_INCLUDES = 16  # levels of files that include files

Options = Mapping[str, str | list[str]]  # the options of ~/.ssh/config for a host, names in lower case


@dataclass(frozen=True)
class Hop:
    """One machine on the route; the last one is the worker's own."""

    name: str  # the name that the user gave
    host: str
    port: int
    user: str
    keys: tuple[Path, ...]  # private keys to try
    required: Path | None  # the key that the settings name
    only_these: bool  # use only these of the agent's keys
    known_hosts: tuple[Path, ...]
    alias: str | None  # the name in known_hosts
    agent: str  # the agent's socket; empty: none
    command: str | None = None  # ProxyCommand: what to run in place of a connection of our own


def plan_route(machine: WorkerSettings, lookup: Callable[[str], Options]) -> tuple[Hop, ...]:
    """Return the machines to go through, ending with the worker's own.

    Raises:
        Refused: the settings or ``~/.ssh/config`` are invalid.
    """
    options = lookup(machine.host)
    key = Path(machine.key_path).expanduser() if machine.key_path else None
    last = _make_hop(machine, options, machine.host, user=machine.user, port=machine.port, key=key)
    jumps, command = (machine.proxy_jump, None) if machine.proxy_jump else _proxy_options(options)
    if command:
        last = replace(last, command=_expand_tokens(machine.name, command, last))
    return (*_jump_hops(machine, lookup, jumps, key, MOST_JUMPS), last)


def config_text(files: Sequence[Path] = SSH_CONFIGS) -> str:
    """Return the lines of the user's and the system's ssh_config, including the files that they include.

    Raises:
        OSError: a file exists but cannot be read.
    """
    paths = [file.expanduser() for file in files]
    return "\n".join(line for path in paths for line in (*_config_lines(path, path.parent, MOST_INCLUDES), "Host *"))


def _config_lines(file: Path, base: Path, depth: int) -> Iterator[str]:
    section = "Host *"  # the section that continues after an included file
    for line in file.read_text(encoding="utf-8").splitlines() if file.is_file() and depth else ():
        keyword, _, rest = line.strip().replace("=", " ", 1).partition(" ")
        if keyword.lower() in ("host", "match"):
            section = line
        if keyword.lower() == "proxycommand":
            line = re.sub("(?i)proxycommand", PROXY_COMMAND, line, count=1)
        if keyword.lower() != "include":
            yield line
            continue
        for pattern in rest.replace('"', "").split():
            path = base / Path(pattern).expanduser()
            for included in sorted(Path(path.anchor).glob(str(path.relative_to(path.anchor)))):
                yield from _config_lines(included, base, depth - 1)
        yield section


def _jump_hops(
    machine: WorkerSettings, lookup: Callable[[str], Options], jumps: str | None, key: Path | None, left: int
) -> list[Hop]:
    """Return the hops of a ProxyJump line; the first of them may itself be reached by jumps."""
    if not jumps or jumps.lower() == "none":
        return []
    hops: list[Hop] = []
    for jump in jumps.split(","):
        found = JUMP.fullmatch(jump.strip())
        if found is None or left <= len(hops):
            why = "ProxyJump goes in a circle" if found else f"ProxyJump {jump!r} is not [user@]host[:port]"
            raise Refused(machine.name, why, "correct `proxy_jump` in config.yaml or ProxyJump in ~/.ssh/config")
        name = found["host"].strip("[]")
        options = lookup(name)
        hop = _make_hop(
            machine, options, name, user=found["user"], port=int(found["port"]) if found["port"] else None, also=key
        )
        if not hops:
            earlier, command = _proxy_options(options)
            hops += _jump_hops(machine, lookup, earlier, key, left - 1)
            hop = replace(hop, command=_expand_tokens(machine.name, command, hop)) if command else hop
        hops.append(hop)
    return hops


def _proxy_options(options: Options) -> tuple[str | None, str | None]:
    """Return ProxyJump or ProxyCommand, whichever comes first in ~/.ssh/config; None: there is none."""
    for name in options:
        value = _option_text(options, name)
        if value and name in ("proxyjump", PROXY_COMMAND):
            wanted = None if value.lower() == "none" else value
            return (wanted, None) if name == "proxyjump" else (None, wanted)
    return None, None


def _expand_tokens(worker: str, command: str, hop: Hop) -> str:
    """Return ProxyCommand with its tokens replaced, as ssh does.

    Raises:
        Refused: it has an unknown token.
    """
    values = {
        "%": "%",
        "h": hop.host,
        "n": hop.name,
        "p": str(hop.port),
        "r": hop.user,
        "u": getpass.getuser(),
        "d": str(Path.home()),
    }

    def value(token: re.Match[str]) -> str:
        if token[1] not in values:
            known = " ".join(f"%{letter}" for letter in values)
            raise Refused(
                worker, f"ProxyCommand of {hop.name} has {token[0]}, which is not supported", f"write one of {known}"
            )
        return values[token[1]]

    return PERCENT_TOKEN.sub(value, command)


def _make_hop(
    machine: WorkerSettings,
    options: Options,
    name: str,
    *,
    user: str | None,
    port: int | None,
    key: Path | None = None,
    also: Path | None = None,
) -> Hop:
    """Return one machine; the settings take precedence over ~/.ssh/config."""
    configured = options.get("identityfile") or list(SSH_KEYS)
    keys = [Path(each).expanduser() for each in ([configured] if isinstance(configured, str) else configured)]
    asked = port or _option_text(options, "port") or SSH_PORT
    if not str(asked).isdecimal():
        raise Refused(machine.name, f"Port {asked!r} of {name} is not a number", "correct ~/.ssh/config")
    files = [
        *_option_paths(options, "userknownhostsfile", KNOWN_HOSTS),
        *_option_paths(options, "globalknownhostsfile", GLOBAL_KNOWN_HOSTS),
    ]
    return Hop(
        name,
        _option_text(options, "hostname") or name,
        int(asked),
        user or _option_text(options, "user") or getpass.getuser(),
        (key,) if key else (*([also] if also else []), *keys),
        key,
        (_option_text(options, "identitiesonly") or "no").lower() == "yes",
        tuple(files),
        _option_text(options, "hostkeyalias"),
        _agent_socket(options),
    )


def _agent_socket(options: Options) -> str:
    """Return the socket of the agent to ask."""
    named = (_option_text(options, "identityagent") or "SSH_AUTH_SOCK").strip('"')
    if named.lower() == "none":
        return ""
    variable = named.removeprefix("$").strip("{}")
    return (
        os.environ.get(variable, "")
        if variable == "SSH_AUTH_SOCK" or named.startswith("$")
        else str(Path(named).expanduser())
    )


def _option_text(options: Options, name: str) -> str | None:
    value = options.get(name)
    return value if isinstance(value, str) else None


def _option_paths(options: Options, name: str, default: str) -> list[Path]:
    return [
        Path(path).expanduser() for path in (_option_text(options, name) or default).split() if path.lower() != "none"
    ]
