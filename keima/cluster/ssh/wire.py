"""The connections below SshTransport. This is the only file that uses paramiko, and works around its defects.

Measured and surprising behaviour of paramiko is documented where it is handled.
"""

import logging
import os
import shlex
import socket
import time
from base64 import b64decode
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, cast

import paramiko
from paramiko.sftp import (
    CMD_EXTENDED,
    CMD_OPEN,
    CMD_READ,
    CMD_STATUS,
    CMD_WRITE,
    SFTP_FLAG_CREATE,
    SFTP_FLAG_TRUNC,
    SFTP_FLAG_WRITE,
    int64,
)

from keima.base.system.threads import wait_for_turn
from keima.cluster.ssh import host_keys
from keima.cluster.ssh.errors import ClusterError, Refused, Unreachable
from keima.cluster.ssh.proxy import Proxy
from keima.cluster.ssh.route import Hop, Options, config_text, plan_route
from keima.config.sections.workers import WorkerSettings

CHUNK = 32 * 2**10  # bytes in one SFTP request, which every server accepts
IN_FLIGHT = 64  # requests; together they fill the window that servers give a channel
SOCKET_OPTIONS = {  # the kernel notices a dead machine, and sends small packets at once
    (socket.IPPROTO_TCP, "TCP_NODELAY"): 1,
    (socket.SOL_SOCKET, "SO_KEEPALIVE"): 1,
    (socket.IPPROTO_TCP, "TCP_KEEPIDLE"): 5,  # seconds
    (socket.IPPROTO_TCP, "TCP_KEEPINTVL"): 5,  # seconds
    (socket.IPPROTO_TCP, "TCP_KEEPCNT"): 3,
    (socket.IPPROTO_TCP, "TCP_USER_TIMEOUT"): 15_000,  # milliseconds
}
AGENT_SECONDS = 5.0  # for its list of keys; a signature may wait for a user's confirmation
SIGNING_SHARE = 0.8  # of the time for a login, so that the message can name the agent
SESSION_SECONDS = 1.0  # a server that allows few sessions may still count one that we have closed
SESSION_POLL = 0.05
MOST_LOGINS = 8  # at a time by way of one machine: from 10 on, sshd drops some (MaxStartups 10:30:100)
PUBLIC = ("ssh-", "ecdsa-", "sk-")  # the start of a public key's file
# What a lost connection may raise.
CONNECTION_ERRORS = (EOFError, TimeoutError, ConnectionError, paramiko.SSHException, AssertionError)
NotSftp = paramiko.SFTPError  # the answer is not SFTP
NoSession = paramiko.ChannelException  # the machine opens no further channel
Channel = paramiko.Channel
SftpClient = paramiko.SFTPClient
SftpFile = paramiko.SFTPFile

log = logging.getLogger(__name__)


class Connection(paramiko.Transport):
    """A connection with bounded waits; paramiko itself waits without limit for some answers.

    Args:
        sock: a connected socket, or a channel of another connection.
        seconds: the longest wait.
        proxy: the command that ``sock`` leads to; it ends with the connection.
    """

    def __init__(self, sock: Any, seconds: float, proxy: Proxy | None = None) -> None:
        super().__init__(sock)
        self.proxy = proxy
        self.banner_timeout = self.handshake_timeout = self.auth_timeout = seconds
        self.set_timeout(seconds)
        options = self.get_security_options()
        options.ciphers = sorted(options.ciphers, key=lambda name: "gcm" not in name)  # GCM is the fastest by far

    def set_timeout(self, seconds: float) -> None:
        """Set the longest wait for answers, on channels that are opened later."""
        self.channel_timeout = self.clear_to_send_timeout = self.seconds = seconds

    def open_session(self, *args: Any, **options: Any) -> paramiko.Channel:
        """Open a channel for a program.

        Raises:
            NoSession: the machine allows no more of them.
        """
        until = time.monotonic() + SESSION_SECONDS
        while True:
            try:
                return super().open_session(*args, **options)
            except NoSession:
                if time.monotonic() > until:
                    raise
                time.sleep(SESSION_POLL)

    def open_channel(self, *args: Any, **options: Any) -> paramiko.Channel:
        """Open a channel whose waits are bounded too."""
        channel = super().open_channel(*args, **options)
        channel.settimeout(self.seconds)
        for event in (channel.event, channel.status_event):
            # paramiko sets no limit here, and asserts when the event has not come.
            event.wait = partial(event.wait, timeout=self.seconds)  # type: ignore[method-assign]
        return channel


def connect_through(
    machine: WorkerSettings,
    *,
    host_key_policy: Literal["strict", "accept-new"],
    seconds: float = 5.0,
    login_seconds: float = 30.0,
) -> list[Connection]:
    """Connect to a machine as ssh would, through those before it; the last connection is its own.

    Args:
        machine: the worker's settings.
        host_key_policy: accept-new: the first key of a machine without an entry in known_hosts is accepted and stored.
        seconds: the longest wait for the network.
        login_seconds: the longest wait for each answer until the login, and on these connections afterwards.

    Raises:
        Unreachable: it does not answer.
        Refused: it is another machine than the known one, or rejects the login, or the settings are invalid.
    """
    logging.getLogger("paramiko").setLevel(logging.CRITICAL)  # it logs whatever it raises, with a traceback
    hops = plan_route(machine, _option_lookup(machine.name))
    chain: list[Connection] = []
    try:
        with _wait_for_turn(machine.name, hops[0], login_seconds):
            for hop in hops:
                with _translate_connect_errors(machine.name, hop, chain):
                    chain.append(_open_connection(hop, chain, seconds, login_seconds))
                    _check_host(machine.name, hop, chain, accept_new=host_key_policy == "accept-new")
                    _log_in(machine.name, hop, chain[-1])
        return chain
    except BaseException:
        close_chain(chain)
        raise


@contextmanager
def _wait_for_turn(worker: str, first: Hop, seconds: float) -> Iterator[None]:
    """Wait until few enough connections through this first machine are being made; sshd drops more than 10."""
    with wait_for_turn(first.command or f"{first.host}:{first.port}", MOST_LOGINS, seconds) as came:
        if not came:
            raise Unreachable(worker, f"{MOST_LOGINS} other connections through {first.name} are still being made")
        yield


def _option_lookup(worker: str) -> Callable[[str], Options]:
    """Return a function that looks up a host in the user's ssh_config."""

    def lookup(host: str) -> Options:
        try:
            return paramiko.SSHConfig.from_text(config_text()).lookup(host)
        except (paramiko.SSHException, OSError, ValueError, ImportError) as error:
            raise Refused(
                worker, f"~/.ssh/config cannot be used for {host}: {error}", "correct or remove the line in question"
            ) from error

    return lookup


@contextmanager
def _translate_connect_errors(worker: str, hop: Hop, chain: Sequence[Connection]) -> Iterator[None]:
    """Translate the errors of connecting into ClusterError."""
    try:
        yield
    except ClusterError:
        raise
    except Exception as error:
        said = chain[-1].proxy.exit_text() if hop.command and chain and chain[-1].proxy else None
        if said:
            remedy = f"see what `ssh {shlex.quote(hop.name)}` says, and correct ProxyCommand in ~/.ssh/config"
            raise Unreachable(worker, f"its ProxyCommand {said}", remedy) from error
        raise _connect_error(worker, hop, error) from error


def _connect_error(worker: str, hop: Hop, error: Exception) -> ClusterError:
    """Return the ClusterError for a machine that cannot be reached."""
    where = "what its ProxyCommand leads to" if hop.command else f"{hop.host} port {hop.port}"
    match error:
        case socket.gaierror():
            return Unreachable(
                worker,
                f"its host {hop.host} has no address ({error.strerror})",
                "check `host`, or HostName in ~/.ssh/config",
            )
        case ConnectionRefusedError():
            return Unreachable(worker, f"nothing listens at {where}", "start sshd there, or set `port`")
        case paramiko.ChannelException(code=1):  # prohibited
            return Refused(
                worker,
                f"the machine before {where} passes no connections on",
                "set AllowTcpForwarding in its sshd_config",
            )
        case paramiko.ChannelException():
            return Unreachable(worker, f"the machine before {where} cannot reach it ({error.text})")
        case paramiko.ssh_exception.IncompatiblePeer():
            return Refused(
                worker, f"{where} and this machine have no algorithm in common ({error})", "update its OpenSSH"
            )
        case OSError(filename=None):
            return Unreachable(worker, f"no connection to {where} ({error})")
        case OSError():  # a file of ours, such as known_hosts
            return Refused(worker, str(error), "correct the permissions of that file")
        case EOFError() | paramiko.SSHException() | AssertionError():
            return Unreachable(
                worker, f"{where} does not answer as an SSH server does ({error or 'no answer in time'})"
            )
        case _:  # an answer that paramiko does not handle
            return Unreachable(worker, f"{where} sends an invalid answer ({type(error).__name__}: {error})")


def _open_connection(hop: Hop, chain: Sequence[Connection], seconds: float, login_seconds: float) -> Connection:
    """Open a connection to a machine, before the SSH handshake."""
    if chain:
        return Connection(chain[-1].open_channel("direct-tcpip", (hop.host, hop.port), ("127.0.0.1", 0)), login_seconds)
    if not hop.command:
        return Connection(_open_socket(hop, seconds), login_seconds)
    proxy = Proxy(hop.command)
    try:
        return Connection(proxy.sock, login_seconds, proxy)
    except BaseException:
        proxy.close()
        raise


def _open_socket(hop: Hop, seconds: float) -> socket.socket:
    sock = socket.create_connection((hop.host, hop.port), timeout=seconds)
    for (level, name), value in SOCKET_OPTIONS.items():
        if hasattr(socket, name):  # some exist on Linux alone
            sock.setsockopt(level, getattr(socket, name), value)
    return sock


def _check_host(worker: str, hop: Hop, chain: Sequence[Connection], *, accept_new: bool) -> None:
    """Negotiate keys with the last of the chain, and check its host key."""
    known = host_keys.known_host_keys(hop.host, hop.port, hop.known_hosts, alias=hop.alias)
    kinds = {*known.key_kinds, *(("rsa-sha2-512", "rsa-sha2-256") if "ssh-rsa" in known.key_kinds else ())}
    options = chain[-1].get_security_options()
    options.key_types = sorted(options.key_types, key=lambda kind: kind not in kinds)
    chain[-1].start_client(timeout=chain[-1].seconds)
    shown = chain[-1].get_remote_server_key()
    key = host_keys.HostKey(shown.get_name(), shown.asbytes())
    direct = len(chain) == 1 and hop.alias is None and not hop.command
    kind = key.kind.split("-")[1].replace("sha2", "ecdsa")
    scan = host_keys.KeyScan(f"-t {kind} -p {hop.port}", hop.host, known.file) if direct else None
    if host_keys.check_host_key(worker, known, key, accept_new=accept_new, scan=scan):
        log.warning(
            "%s: accepted its host key %s %s, which is now in %s", worker, key.kind, key.fingerprint, known.file
        )


def _log_in(worker: str, hop: Hop, connection: Connection) -> None:
    """Try our keys, one after the other, until one is accepted: those in files, then the agent's.

    Raises:
        Refused: none is accepted, or there is none.
    """
    files = _file_keys(worker, hop)
    if _try_keys(worker, hop, connection, files.keys):
        return
    with _open_agent(hop) as agent:
        keys = _agent_keys(hop, agent, {key.asbytes() for key in files.keys})
        try:
            if _try_keys(worker, hop, connection, keys, before=len(files.keys), signing=agent):
                return
        except paramiko.SSHException as error:
            if not agent.silent:
                raise
            raise _silent_agent_error(worker, "the SSH agent has a key, but does not sign with it") from error
        if agent.silent:
            raise _silent_agent_error(worker, "the SSH agent does not answer")
    raise _login_error(worker, hop, files, len(files.keys) + len(keys))


def _try_keys(
    worker: str,
    hop: Hop,
    connection: Connection,
    keys: Sequence[paramiko.PKey],
    *,
    before: int = 0,
    signing: "_Agent | None" = None,
) -> bool:
    """Return whether the machine accepts one of these keys, after ``before`` that it did not accept."""
    if signing:
        signing.set_timeout(connection.seconds * SIGNING_SHARE)
    for count, key in enumerate(keys, start=before):
        try:
            more = connection.auth_publickey(hop.user, key)
        except paramiko.BadAuthenticationType as error:
            what = f"it takes no keys, only {error.allowed_types}"
            raise Refused(worker, what, "set `PubkeyAuthentication yes` in its sshd_config") from error
        except paramiko.AuthenticationException as error:
            if connection.is_active() and "timeout" not in str(error):
                continue
            if not count or connection.is_active():
                raise EOFError("no answer to the key") from error
            raise Refused(
                worker, f"it hung up after {count + 1} keys that it does not accept", "name the right one as `key_path`"
            ) from error
        if more:
            raise Refused(
                worker,
                f"it accepts no key alone; it also requires {more}",
                "allow login by key alone in its sshd_config",
            )
        return True
    return False


def _silent_agent_error(worker: str, what: str) -> Refused:
    return Refused(worker, what, "see whether `ssh-add -l` answers here; restart the agent, or `unset SSH_AUTH_SOCK`")


def _login_error(worker: str, hop: Hop, files: "_FileKeys", tried: int) -> Refused:
    """Return why none of our keys is accepted."""
    who = shlex.quote(f"{hop.user}@{hop.host}")
    if files.public:
        what = "the file of `key_path` is a public key, and the agent does not have its private one"
        return Refused(worker, what, "name the private key's file: mostly the same name without .pub")
    if files.readable:
        return Refused(
            worker, f"others can read {_key_name(files.readable[0], hop)}, so it is not used", "`chmod 600` its file"
        )
    if files.locked:
        what = f"{_key_name(files.locked[0], hop)} is encrypted, and the agent does not have it"
        return Refused(
            worker, what, "`ssh-add` its file, or put its passphrase into the environment as KEIMA_KEY_PASSPHRASE"
        )
    if not tried:
        remedy = f"`ssh-keygen -t ed25519`, then `ssh-copy-id -p {hop.port} {who}`"
        return Refused(worker, f"there is no key to log in with as {who}", remedy)
    public = " with `-i` and the .pub file of `key_path`" if hop.required else ""
    remedy = f"`ssh-copy-id -p {hop.port} {who}`{public}, or check `user` and `key_path`"
    return Refused(worker, f"{who} accepts none of the {tried} keys", remedy)


@dataclass(frozen=True)
class _FileKeys:
    """The content of the key files to try."""

    keys: tuple[paramiko.PKey, ...]
    locked: tuple[Path, ...]  # encrypted, and we have no passphrase
    readable: tuple[Path, ...]  # readable by others: ssh does not use them either
    public: bool  # the key of the settings is a public key: the agent may have its private one


def _file_keys(worker: str, hop: Hop) -> _FileKeys:
    """Return the readable keys, and the problems of the others."""
    keys, locked, readable, public = [], [], [], False
    for path in hop.keys:
        try:
            if _read_public_key(path) is not None:
                public = public or path == hop.required
            elif path.stat().st_mode & 0o077:
                readable.append(path)
            elif (key := _read_private_key(path)) is None:
                locked.append(path)
            else:
                keys.append(key)
        except OSError as error:
            if path == hop.required:
                make = "make the key by `ssh-keygen -t ed25519 -f` with that file, and `ssh-copy-id -i` with it"
                remedy = f"correct `key_path`, or {make}"
                raise Refused(worker, f"the file of `key_path` cannot be read: {error.strerror}", remedy) from error
        except (paramiko.SSHException, paramiko.pkey.UnknownKeyType, ValueError) as error:
            if path == hop.required:
                raise Refused(
                    worker,
                    f"the file of `key_path` does not hold a supported private key: {error}",
                    "`ssh-keygen -p -f` with it rewrites it",
                ) from error
    return _FileKeys(tuple(keys), tuple(locked), tuple(readable), public)


def _key_name(path: Path, hop: Hop) -> str:
    """Return the name of a key in messages, which are shown, logged and shared: without its path."""
    return "the private key of `key_path`" if path == hop.required else f"the private key {path.name}"


def _read_public_key(path: Path) -> bytes | None:
    """Return the public key that a file consists of; None: it is not one.

    Raises:
        OSError: the file cannot be read.
    """
    words = path.read_bytes()[: 2**16].split(maxsplit=2)
    if len(words) < 2 or not words[0].startswith(tuple(kind.encode() for kind in PUBLIC)):
        return None
    try:
        return b64decode(words[1], validate=True)
    except ValueError:
        return None


def _read_private_key(path: Path) -> paramiko.PKey | None:
    """Return the private key; None: it is encrypted, and we lack the right passphrase."""
    try:
        return paramiko.PKey.from_path(path)
    except (TypeError, paramiko.PasswordRequiredException):
        pass
    passphrase = os.environ.get("KEIMA_KEY_PASSPHRASE")
    try:
        return paramiko.PKey.from_path(path, passphrase.encode()) if passphrase else None  # type: ignore[arg-type]  # it wants bytes
    except (ValueError, paramiko.SSHException):
        return None


class _Agent(paramiko.agent.AgentSSH):
    """The user's agent, if there is one.

    Waits for its answers are bounded, unlike paramiko's.
    """

    def __init__(self, path: str, seconds: float) -> None:
        super().__init__()
        self.silent = False  # it did not answer in time
        self._sock = socket.socket(socket.AF_UNIX)
        self._sock.settimeout(seconds)
        with suppress(OSError, paramiko.SSHException):
            self._sock.connect(path)
            self._connect(self._sock)  # type: ignore[attr-defined]

    def set_timeout(self, seconds: float) -> None:
        """Set the longest wait for answers."""
        self._sock.settimeout(seconds)

    def close(self) -> None:
        """Disconnect from it."""
        self._sock.close()

    def _send_message(self, message: bytes) -> Any:
        try:
            return super()._send_message(message)  # type: ignore[misc]
        except TimeoutError as error:
            self.silent = True
            raise paramiko.SSHException("the SSH agent does not answer") from error


@contextmanager
def _open_agent(hop: Hop) -> Iterator[_Agent]:
    agent = _Agent(hop.agent, AGENT_SECONDS)
    try:
        yield agent
    finally:
        agent.close()


def _agent_keys(hop: Hop, agent: _Agent, have: set[bytes]) -> list[paramiko.PKey]:
    """Return the agent's keys without those that we have, first those whose files are to be used."""
    wanted = set()
    for path in hop.keys:
        for file in (path, path.with_name(f"{path.name}.pub")):
            with suppress(OSError):
                wanted.add(_read_public_key(file))
    keys = [
        key for key in agent.get_keys() if key.asbytes() not in have and (key.asbytes() in wanted or not hop.only_these)
    ]
    return [*sorted(keys, key=lambda key: key.asbytes() not in wanted)]


def close_chain(chain: Sequence[Connection]) -> None:
    """Close the connections, the last first, and wait only for their threads."""
    for connection in reversed(chain):
        sock = connection.sock
        if isinstance(sock, socket.socket):
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)  # unblocks waiting threads
        connection.close()
        sock.close()
        if connection.proxy:
            connection.proxy.close()
        if connection.is_alive():
            connection.join(1.0)


def begin_sftp(channel: Channel) -> SftpClient:
    """Return the client of an SFTP server that has been asked for.

    Raises:
        NotSftp: it sends something else.
        EOFError: it has ended.
        OSError: the connection was lost.
    """
    try:
        return SftpClient(channel)
    except OSError as error:
        # It may end before it is spoken to: what it has sent by then, if anything, is not SFTP.
        if not (channel.closed and channel.get_transport().is_active()):
            raise
        raise (NotSftp("it ends at once") if channel.recv_ready() else EOFError()) from error


def create_file(sftp: SftpClient, path: str) -> SftpFile:
    """Open a file for writing, new or truncated, readable by its user alone; paramiko leaves that to the server.

    Raises:
        OSError: it cannot be created.
    """
    private, client = paramiko.SFTPAttributes(), cast(Any, sftp)
    private.st_mode = 0o600
    flags = SFTP_FLAG_WRITE | SFTP_FLAG_CREATE | SFTP_FLAG_TRUNC
    _, message = client._request(CMD_OPEN, client._adjust_cwd(path), flags, private)
    return SftpFile(sftp, message.get_binary(), "w", -1)


def read_all(sftp: SftpClient, file: SftpFile, size: int, advance: Callable[[int], None]) -> bytes:
    """Return the first ``size`` bytes of a file, or as many as there are; ``advance`` is called with the bytes of each
    request.
    """
    answers = _PendingRequests(sftp)
    for offset in range(0, size, CHUNK):
        asked = min(CHUNK, size - offset)
        answers.send_request(CMD_READ, file.handle, int64(offset), asked)
        advance(asked)
    return answers.wait_for_all()


def write_all(sftp: SftpClient, file: SftpFile, data: bytes, start: int, advance: Callable[[int], None]) -> None:
    """Write ``data`` from ``start`` on to its place in a file; ``advance`` is called with the bytes of each request."""
    answers = _PendingRequests(sftp)
    for offset in range(start, len(data), CHUNK):
        chunk = data[offset : offset + CHUNK]
        answers.send_request(CMD_WRITE, file.handle, int64(offset), chunk)
        advance(len(chunk))
    answers.wait_for_all()


def sync_to_disk(sftp: SftpClient, file: SftpFile) -> None:
    """Flush a file or folder to the disk.

    Raises:
        OSError: it failed, or the server does not know OpenSSH's request for it.
    """
    _PendingRequests(sftp).send_and_wait(CMD_EXTENDED, "fsync@openssh.com", file.handle)


class _PendingRequests:
    """Pipelined SFTP requests without a thread; paramiko's own pipelining has a thread, or loses the last errors."""

    def __init__(self, sftp: SftpClient) -> None:
        self._sftp: Any = sftp
        self._waiting: set[int] = set()
        self._data: dict[int, bytes] = {}
        self._error: OSError | None = None  # the first

    def send_request(self, *request: Any) -> None:
        """Send a request, once there are not too many in flight."""
        self._wait_until(IN_FLIGHT - 1)
        self._waiting.add(self._sftp._async_request(self, *request))

    def send_and_wait(self, *request: Any) -> None:
        """Send a request, and wait for its answer."""
        self.send_request(*request)
        self._wait_until(0)

    def wait_for_all(self) -> bytes:
        """Wait for all answers; return them in the order of the requests."""
        self._wait_until(0)
        return b"".join(self._data[number] for number in sorted(self._data))

    def _wait_until(self, most: int) -> None:
        # After an error, take all answers: none may arrive among those of later requests.
        while len(self._waiting) > (0 if self._error else most):
            self._sftp._read_response()
        if self._error:
            raise self._error

    def _async_response(self, kind: int, message: paramiko.Message, number: int) -> None:
        """Take one answer; called by paramiko."""
        self._waiting.discard(number)
        if kind != CMD_STATUS:
            self._data[number] = message.get_string()
            return
        try:
            self._sftp._convert_status(message)
        except EOFError:
            pass  # the file has become shorter
        except OSError as error:
            self._error = self._error or error
