"""The connections beneath SshTransport: how they are made, and the one place that knows paramiko and its traps.

What is measured and odd about paramiko is said here, where it is dealt with; nothing above imports it.
"""

import logging
import os
import socket
from base64 import b64decode
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
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

from configs.schema import WorkerSettings
from distributed import host_keys
from distributed.errors import ClusterError, Refused, Unreachable
from distributed.ssh_route import Hop, Options, config_text, route

CHUNK = 32 * 2**10  # bytes in one SFTP request: what every server takes
IN_FLIGHT = 64  # requests; together they fill the window that servers give a channel
SOCKET_OPTIONS = {  # so that the kernel notices a machine that is gone, and sends small packets at once
    (socket.IPPROTO_TCP, "TCP_NODELAY"): 1,
    (socket.SOL_SOCKET, "SO_KEEPALIVE"): 1,
    (socket.IPPROTO_TCP, "TCP_KEEPIDLE"): 5,  # seconds
    (socket.IPPROTO_TCP, "TCP_KEEPINTVL"): 5,  # seconds
    (socket.IPPROTO_TCP, "TCP_KEEPCNT"): 3,
    (socket.IPPROTO_TCP, "TCP_USER_TIMEOUT"): 15_000,  # milliseconds
}
LOST = (EOFError, TimeoutError, ConnectionError, paramiko.SSHException, AssertionError)  # what a connection that is gone may raise
NotSftp = paramiko.SFTPError  # what comes instead of SFTP
Channel = paramiko.Channel
SftpClient = paramiko.SFTPClient
SftpFile = paramiko.SFTPFile

log = logging.getLogger(__name__)


class Connection(paramiko.Transport):
    """A connection that waits for no answer longer than it is told to; paramiko's own waits for ever for some."""

    def __init__(self, sock: Any, seconds: float) -> None:
        """Speak SSH over a connected socket, or over a channel of another connection."""
        super().__init__(sock)
        self.banner_timeout = self.handshake_timeout = self.auth_timeout = seconds
        self.channel_timeout = self.clear_to_send_timeout = seconds
        options = self.get_security_options()
        options.ciphers = sorted(options.ciphers, key=lambda name: "gcm" not in name)  # the fastest, by far
        self.seconds = seconds

    def open_channel(self, *args: Any, **options: Any) -> paramiko.Channel:
        """A channel whose waits are bounded too."""
        channel = super().open_channel(*args, **options)
        channel.settimeout(self.seconds)
        for event in (channel.event, channel.status_event):
            event.wait = partial(event.wait, timeout=self.seconds)  # type: ignore[method-assign]  # paramiko gives these no limit: it asserts then
        return channel


def reach(machine: WorkerSettings, *, host_key_policy: Literal["strict", "accept-new"], seconds: float = 5.0) -> list[Connection]:
    """Connect to a machine as ssh would, through those before it: the last connection is its own.

    Args:
        host_key_policy: accept-new: a machine that is in no known_hosts file is believed the first time and put into it.
        seconds: the longest wait for any one answer, now and later.

    Raises:
        Unreachable: it does not answer.
        Refused: it is not the machine that is known, or does not let us in, or the settings make no sense.
    """
    logging.getLogger("paramiko").setLevel(logging.CRITICAL)  # it logs whatever it raises, with a traceback
    chain: list[Connection] = []
    try:
        for hop in route(machine, _lookup(machine.name)):
            with _connecting(machine.name, hop):
                sock = chain[-1].open_channel("direct-tcpip", (hop.host, hop.port), ("127.0.0.1", 0)) if chain else _socket(hop, seconds)
                chain.append(Connection(sock, seconds))
                _check_host(machine.name, hop, chain, accept_new=host_key_policy == "accept-new")
                _log_in(machine.name, hop, chain[-1])
        return chain
    except BaseException:
        close(chain)
        raise


def _lookup(worker: str) -> Callable[[str], Options]:
    """What the user's ssh_config says of a host."""

    def lookup(host: str) -> Options:
        try:
            return paramiko.SSHConfig.from_text(config_text()).lookup(host)
        except (paramiko.SSHException, OSError, ValueError, ImportError) as error:
            raise Refused(worker, f"~/.ssh/config cannot be used for {host}: {error}", "mend or remove the line in question") from error

    return lookup


@contextmanager
def _connecting(worker: str, hop: Hop) -> Iterator[None]:
    """Say in our words why a machine cannot be reached."""
    where = f"{hop.host} port {hop.port}"
    try:
        yield
    except ClusterError:
        raise
    except socket.gaierror as error:
        raise Unreachable(
            worker, f"its host {hop.host} has no address ({error.strerror})", "check `host`, or HostName in ~/.ssh/config"
        ) from error
    except ConnectionRefusedError as error:
        raise Unreachable(worker, f"nothing listens at {where}", "start sshd there, or set `port`") from error
    except paramiko.ChannelException as error:
        if error.code == 1:  # prohibited
            raise Refused(
                worker, f"the machine before {where} passes no connections on", "set AllowTcpForwarding in its sshd_config"
            ) from error
        raise Unreachable(worker, f"the machine before {where} cannot reach it ({error.text})") from error
    except paramiko.ssh_exception.IncompatiblePeer as error:
        raise Refused(worker, f"{where} and we have no algorithm in common ({error})", "update its OpenSSH") from error
    except OSError as error:
        if error.filename is not None:  # a file of ours, such as known_hosts
            raise Refused(worker, str(error), "mend the rights of that file") from error
        raise Unreachable(worker, f"no connection to {where} ({error})") from error
    except (EOFError, paramiko.SSHException, AssertionError) as error:
        raise Unreachable(worker, f"{where} does not answer as an SSH server does ({error or 'no answer in time'})") from error
    except Exception as error:  # what paramiko does not foresee in an answer
        raise Unreachable(worker, f"{where} answers what makes no sense ({type(error).__name__}: {error})") from error


def _socket(hop: Hop, seconds: float) -> socket.socket:
    sock = socket.create_connection((hop.host, hop.port), timeout=seconds)
    for (level, name), value in SOCKET_OPTIONS.items():
        if hasattr(socket, name):  # some are known to Linux alone
            sock.setsockopt(level, getattr(socket, name), value)
    return sock


def _check_host(worker: str, hop: Hop, chain: Sequence[Connection], *, accept_new: bool) -> None:
    """Agree on keys with the last of the chain, if it is the machine that it should be."""
    known = host_keys.known(hop.host, hop.port, hop.known_hosts, alias=hop.alias)
    kinds = {*known.kinds, *(("rsa-sha2-512", "rsa-sha2-256") if "ssh-rsa" in known.kinds else ())}
    options = chain[-1].get_security_options()
    options.key_types = sorted(options.key_types, key=lambda kind: kind not in kinds)
    chain[-1].start_client(timeout=chain[-1].seconds)
    shown = chain[-1].get_remote_server_key()
    key = host_keys.HostKey(shown.get_name(), shown.asbytes())
    direct = len(chain) == 1 and hop.alias is None
    scan = f"ssh-keyscan -t {key.kind.split('-')[1]} -p {hop.port} {hop.host}" if direct else None
    scan = scan.replace("-t sha2", "-t ecdsa") if scan else None
    if host_keys.check(worker, known, key, accept_new=accept_new, scan=scan):
        log.warning("%s: believed its host key %s %s, which is now in %s", worker, key.kind, key.fingerprint, known.file)


def _log_in(worker: str, hop: Hop, connection: Connection) -> None:
    """Show our keys, one after the other, until one is accepted."""
    agent = paramiko.Agent() if _has_agent() else None
    try:
        keys, locked = _file_keys(worker, hop)
        keys += _agent_keys(hop, agent, {key.asbytes() for key in keys})
        for count, key in enumerate(keys):
            try:
                more = connection.auth_publickey(hop.user, key)
            except paramiko.BadAuthenticationType as error:
                raise Refused(
                    worker, f"it takes no keys, only {error.allowed_types}", "set `PubkeyAuthentication yes` in its sshd_config"
                ) from error
            except paramiko.AuthenticationException as error:
                if connection.is_active() and "timeout" not in str(error):
                    continue
                if not count or connection.is_active():
                    raise EOFError("no answer to our key") from error
                raise Refused(
                    worker, f"it hung up after {count + 1} keys that it does not accept", "name the right one as `key_path`"
                ) from error
            if more:
                raise Refused(worker, f"a key is not enough for it, it also wants {more}", "allow keys alone in its sshd_config")
            return
    finally:
        if agent:
            agent.close()
    who = f"{hop.user}@{hop.host}"
    if locked:
        what = f"{_called(locked[0], hop)} is encrypted, and the agent does not have it"
        raise Refused(worker, what, "`ssh-add` its file, or put its passphrase into the environment as KEIMA_KEY_PASSPHRASE")
    if not keys:
        raise Refused(
            worker, f"there is no key to log in with as {who}", f"`ssh-keygen -t ed25519`, then `ssh-copy-id -p {hop.port} {who}`"
        )
    public = " with `-i` and the .pub file of `key_path`" if hop.required else ""
    remedy = f"`ssh-copy-id -p {hop.port} {who}`{public}, or check `user` and `key_path`"
    raise Refused(worker, f"{who} accepts none of our {len(keys)} keys", remedy)


def _file_keys(worker: str, hop: Hop) -> tuple[list[paramiko.PKey], list[Path]]:
    """The keys that could be read, and the files of those that are encrypted."""
    keys, locked = [], []
    for path in hop.keys:
        try:
            if path.stat().st_mode & 0o077:
                raise Refused(worker, f"others can read {_called(path, hop)}", "`chmod 600` its file")
            key = _key(path)
            if key is None:
                locked.append(path)
            else:
                keys.append(key)
        except OSError as error:
            if path == hop.required:
                remedy = "correct `key_path`, or make the key by `ssh-keygen -t ed25519 -f` with that file, and `ssh-copy-id -i` with it"
                raise Refused(worker, f"the file of `key_path` cannot be read: {error.strerror}", remedy) from error
        except (paramiko.SSHException, paramiko.pkey.UnknownKeyType, ValueError) as error:
            if path == hop.required:
                raise Refused(
                    worker,
                    f"the file of `key_path` holds no private key that is understood: {error}",
                    "`ssh-keygen -p -f` with it rewrites it",
                ) from error
    return keys, locked


def _called(path: Path, hop: Hop) -> str:
    """What messages call a key, which are shown, logged and handed on: not where it lies."""
    return "the private key of `key_path`" if path == hop.required else f"the private key {path.name}"


def _key(path: Path) -> paramiko.PKey | None:
    """The private key; None: it is encrypted, and we have no passphrase, or not the right one."""
    try:
        return paramiko.PKey.from_path(path)
    except (TypeError, paramiko.PasswordRequiredException):
        pass
    passphrase = os.environ.get("KEIMA_KEY_PASSPHRASE")
    try:
        return paramiko.PKey.from_path(path, passphrase.encode()) if passphrase else None  # type: ignore[arg-type]  # it wants bytes
    except (ValueError, paramiko.SSHException):
        return None


def _has_agent() -> bool:
    """Whether an agent is there; paramiko would leave a socket open where there is none any more."""
    with socket.socket(socket.AF_UNIX) as probe, suppress(OSError):
        probe.connect(os.environ.get("SSH_AUTH_SOCK", ""))
        return True
    return False


def _agent_keys(hop: Hop, agent: paramiko.Agent | None, have: set[bytes]) -> list[paramiko.PKey]:
    """The agent's keys, but for those that we have; first those whose files are to be used."""
    if agent is None:
        return []
    wanted = set()
    for path in hop.keys:
        with suppress(OSError, ValueError, IndexError):
            wanted.add(b64decode(path.with_name(f"{path.name}.pub").read_text().split()[1]))
    keys = [key for key in agent.get_keys() if key.asbytes() not in have and (key.asbytes() in wanted or not hop.only_these)]
    return [*sorted(keys, key=lambda key: key.asbytes() not in wanted)]


def close(chain: Sequence[Connection]) -> None:
    """End the connections, the last first, and wait for nobody but their threads."""
    for connection in reversed(chain):
        sock = connection.sock
        if isinstance(sock, socket.socket):
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)  # frees whoever waits
        connection.close()
        sock.close()
        if connection.is_alive():
            connection.join(1.0)


def create(sftp: SftpClient, path: str) -> SftpFile:
    """A file to be written, new or emptied, that nobody but its user may read; paramiko leaves that to the server.

    Raises:
        OSError: it cannot be made.
    """
    private, client = paramiko.SFTPAttributes(), cast(Any, sftp)
    private.st_mode = 0o600
    flags = SFTP_FLAG_WRITE | SFTP_FLAG_CREATE | SFTP_FLAG_TRUNC
    _, message = client._request(CMD_OPEN, client._adjust_cwd(path), flags, private)
    return SftpFile(sftp, message.get_binary(), "w", -1)


def read_all(sftp: SftpClient, file: SftpFile, size: int) -> bytes:
    """The first ``size`` bytes of a file, or as many as there are."""
    answers = _Answers(sftp)
    for offset in range(0, size, CHUNK):
        answers.ask(CMD_READ, file.handle, int64(offset), min(CHUNK, size - offset))
    return answers.data()


def write_all(sftp: SftpClient, file: SftpFile, data: bytes, start: int, tell: Callable[[int], None]) -> None:
    """Write ``data`` from ``start`` on to its place in a file; ``tell`` is told of the bytes of each request."""
    answers = _Answers(sftp)
    for offset in range(start, len(data), CHUNK):
        chunk = data[offset : offset + CHUNK]
        answers.ask(CMD_WRITE, file.handle, int64(offset), chunk)
        tell(len(chunk))
    answers.data()


def sync(sftp: SftpClient, file: SftpFile) -> None:
    """Have a file or folder written to the disk.

    Raises:
        OSError: it cannot be, or the server does not know OpenSSH's request for that.
    """
    _Answers(sftp).one(CMD_EXTENDED, "fsync@openssh.com", file.handle)


class _Answers:
    """Many SFTP requests on their way together, without a thread; paramiko's own pipelining has one, or loses the last errors."""

    def __init__(self, sftp: SftpClient) -> None:
        self._sftp: Any = sftp
        self._waiting: set[int] = set()
        self._data: dict[int, bytes] = {}
        self._error: OSError | None = None  # the first

    def ask(self, *request: Any) -> None:
        """Send a request, once there are not too many on their way."""
        self._settle(IN_FLIGHT - 1)
        self._waiting.add(self._sftp._async_request(self, *request))

    def one(self, *request: Any) -> None:
        """Send a request, and wait for its answer."""
        self.ask(*request)
        self._settle(0)

    def data(self) -> bytes:
        """All answers, in the order of the requests, once they are there."""
        self._settle(0)
        return b"".join(self._data[number] for number in sorted(self._data))

    def _settle(self, most: int) -> None:
        while len(self._waiting) > (0 if self._error else most):  # after an error no answer may come in between others' answers
            self._sftp._read_response()
        if self._error:
            raise self._error

    def _async_response(self, kind: int, message: paramiko.Message, number: int) -> None:
        """Called by paramiko with one answer."""
        self._waiting.discard(number)
        if kind != CMD_STATUS:
            self._data[number] = message.get_string()
            return
        try:
            self._sftp._convert_status(message)
        except EOFError:
            pass  # a file that has become shorter
        except OSError as error:
            self._error = self._error or error
