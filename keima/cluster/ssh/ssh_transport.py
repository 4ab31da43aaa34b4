"""Another machine over SSH: one lasting connection, with bounded waits and Keima's own errors."""

import errno
import hashlib
import io
import logging
import os
import re
import secrets
import shlex
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import PurePosixPath
from typing import Literal

import scp

from keima.base.files import PART, FileTooLarge
from keima.cluster.ssh.errors import ClusterError, Refused, RemoteFailure, Unreachable
from keima.cluster.ssh.transport import (
    REMEDIES,
    SEND_SECONDS,
    STREAM_CHUNK,
    Completed,
    Entry,
    Stream,
    StreamEnded,
    check_folder_entered,
    check_name,
    check_readable,
    complete_files,
    do_nothing,
    remote_failure,
    shell_command,
    stream_command,
)
from keima.cluster.ssh.wire import (
    CONNECTION_ERRORS,
    Channel,
    Connection,
    NoSession,
    NotSftp,
    SftpFile,
    begin_sftp,
    close_chain,
    connect_through,
    create_file,
    read_all,
    sync_to_disk,
    write_all,
)
from keima.config.sections.workers import WorkerSettings

BIG = 2**20  # bytes; from here on SCP is faster than SFTP, and resuming an interrupted transfer pays
MODELS = (".model", ".delta")  # these go by SCP whatever their size: 4 ms more for a small one, once per iteration
MOST_OUTPUT = 16 * 2**20  # bytes of a program's output
POLL_SECONDS = 0.05  # interval for reading a program's stderr while stdout is silent
MOST_CONNECTIONS = 3  # to one machine: where a server allows one session each, for files, the agent and other programs
# Says on standard error why a file cannot be written, and on standard output how much space its disk has.
WRITE_SCRIPT = 'LC_ALL=C; export LC_ALL; mkdir -p "$1" && : > "$2" && rm -f "$2"; df -Pk "$1"'
NOISY = (
    "its shell prints text in sessions without a terminal: put `case $- in *i*) ;; *) return ;; esac` first in its "
    "~/.bashrc (or what its shell reads instead), or `Subsystem sftp internal-sftp` in its sshd_config"
)
FORCED = (
    "its sshd runs a command of its own instead of ours: remove ForceCommand from its sshd_config, and command= from "
    "the line of your key in its ~/.ssh/authorized_keys"
)
WINDOWS = re.compile(r"windows", re.IGNORECASE)  # in the name that its SSH server announces
DRIVE = re.compile(r"/?[A-Za-z]:")  # the start of a home folder there

log = logging.getLogger(__name__)


def connect(
    machine: WorkerSettings,
    *,
    host_key_policy: Literal["strict", "accept-new"],
    seconds: float = 5.0,
    login_seconds: float = 30.0,
) -> "SshTransport":
    """Connect to a machine as ssh would, by the settings, ``~/.ssh/config``, the agent and the user's keys.

    Args:
        machine: the worker's settings.
        host_key_policy: accept-new: the first key of a machine without an entry in known_hosts is accepted and stored.
        seconds: the longest wait for the network, and for each answer after the login.
        login_seconds: the longest wait for each answer before that: a login may look up names, ask other servers, or
            mount a home.

    Raises:
        Unreachable: it does not answer.
        Refused: it is another machine than the known one, or rejects the login, or the settings are invalid.
    """
    further = partial(
        connect_through, machine, host_key_policy=host_key_policy, seconds=seconds, login_seconds=login_seconds
    )
    chain = further()
    try:
        return SshTransport(machine, chain, further=further, seconds=seconds)
    except BaseException:
        close_chain(chain)
        raise


class SshTransport:
    """A ``Transport`` over a connection that ``connect`` has made."""

    def __init__(
        self,
        machine: WorkerSettings,
        chain: Sequence[Connection],
        *,
        further: Callable[[], Sequence[Connection]],
        seconds: float = 5.0,
    ) -> None:
        """Take over a connection, and those that it goes through; answers are awaited for at most ``seconds``.

        ``further`` makes another connection, for a server that allows too few sessions on one.

        Raises:
            Unreachable: the connection was lost.
            Refused: the machine transfers no files.
        """
        self.worker = machine.name
        self.sent = 0
        self.received = 0
        self.meanwhile: Callable[[], None] = do_nothing
        self._chains = [chain]
        self._further, self._seconds = further, seconds
        self._scp_works = True
        self._closed = False
        try:
            self._channel = chain[-1].open_session()
            self._channel.invoke_subsystem("sftp")
            self._sftp = begin_sftp(self._channel)
            home = self._sftp.normalize(".")
        except NotSftp as error:
            remedy = NOISY if self._runs_our_commands() else FORCED
            raise Refused(self.worker, f"its SFTP server sends invalid data ({error})", remedy) from error
        except NoSession as error:
            raise self._too_few_sessions_error(error) from error
        except Exception as error:
            if not isinstance(error, AssertionError | OSError) and chain[-1].is_active():
                remedy = "put `Subsystem sftp internal-sftp` into its sshd_config, and restart its sshd"
                raise Refused(self.worker, f"it offers no SFTP ({error})", remedy) from error
            raise Unreachable(self.worker, "the connection was lost while connecting") from error
        self._set_timeouts(chain)
        self._channel.settimeout(seconds)
        if WINDOWS.search(chain[-1].remote_version) or DRIVE.match(home):
            remedy = "run an SSH server in WSL 2 there and name its `port`, or use another machine"
            raise Refused(self.worker, "it runs Windows, and a worker needs Linux", remedy)
        if machine.directory.startswith("~") and machine.directory[1:2] not in ("", "/"):
            raise Refused(
                self.worker, f"`directory` {machine.directory} is in another user's home", "write the full path"
            )
        self._root = str(PurePosixPath(home) / re.sub(r"^~/*", "", machine.directory))

    def put(self, data: bytes, name: str, *, durable: bool = True) -> None:
        """See ``Transport``. Large files and models go by SCP; others, or if SCP does not work, by SFTP."""
        path = f"{self._root}/{check_name(name)}"
        # Only a large file is continued. Machines that share a home may put the same small one at the same time.
        part = path + (PART if len(data) >= BIG else f".{secrets.token_hex(4)}{PART}")
        with self._translate_errors(f"writing {path}"):
            start = self._bytes_already_there(data, name + PART) if len(data) >= BIG else 0
            try:
                with self._open_file(part, "r+" if start else "w") as file:
                    by_scp = not start and (len(data) >= BIG or name.endswith(MODELS))
                    if not (by_scp and self._send_by_scp(data, part)):
                        write_all(self._sftp, file, data, start, self._count_sent)
                    if file.stat().st_size != len(data):
                        raise OSError("not all of it has arrived")
                    if durable:
                        self._sync_to_disk(file)
            except OSError as error:
                if not isinstance(error, TimeoutError) and self._is_alive():
                    self._abandon_file(part, error, len(data))
                raise
            self._sftp.posix_rename(part, path)
            if durable:
                with self._open_file(str(PurePosixPath(path).parent), "r") as folder:
                    self._sync_to_disk(folder)

    def get(self, name: str, limit: int) -> bytes:
        """See ``Transport``."""
        path = f"{self._root}/{check_name(name)}"
        with self._translate_errors(f"reading {path}", missing_is_said=True), self._open_file(path, "r") as file:
            found = file.stat()
            size = found.st_size or 0
            check_readable(self.worker, path, found.st_mode or 0, size, limit)
            data = read_all(self._sftp, file, size, self._count_received)
            if len(data) != size:
                raise OSError("it has changed while it was read")
            return data

    def list_files(self, folder: str) -> list[Entry]:
        """See ``Transport``."""
        path = f"{self._root}/{check_name(folder)}"
        with self._translate_errors(f"listing {path}"):
            try:
                found = self._sftp.listdir_attr(path)
            except FileNotFoundError:
                return []
            return complete_files([(each.filename, each.st_mode or 0, each.st_size or 0) for each in found])

    def remove(self, name: str) -> None:
        """See ``Transport``."""
        path = f"{self._root}/{check_name(name)}"
        with self._translate_errors(f"removing {path}"), suppress(FileNotFoundError):
            self._sftp.remove(path)

    def run(self, argv: Sequence[str], *, seconds: float = 5.0) -> Completed:
        """See ``Transport``."""
        deadline = time.monotonic() + seconds
        with self._translate_errors(f"running {argv[0]}"):
            channel = self._open_session()
            try:
                channel.exec_command(f"/bin/sh -c {shlex.quote(shell_command(self._root, argv))}")
                return check_folder_entered(
                    self.worker, self._root, self._read_output(channel, argv[0], deadline, seconds)
                )
            finally:
                channel.close()

    def open(self, argv: Sequence[str]) -> Stream:
        """See ``Transport``."""
        with self._translate_errors(f"running {argv[0]}"):
            channel = self._open_session()
            channel.exec_command(f"/bin/sh -c {shlex.quote(stream_command(self._root, argv))}")
            return SshStream(self, channel)

    def close(self) -> None:
        """See ``Transport``."""
        if not self._closed:
            self._closed = True
            for chain in self._chains:
                close_chain(chain)

    def send(self, channel: Channel, data: bytes) -> None:
        """Send bytes to a stream's program."""
        with self._translate_errors("sending to its program"):
            self._check_lasts(channel)
            channel.settimeout(SEND_SECONDS)
            channel.sendall(data)

    def receive(self, channel: Channel, seconds: float) -> bytes:
        """Return bytes of a stream's program, as ``Stream.receive`` does."""
        with self._translate_errors("receiving from its program"):
            channel.settimeout(max(seconds, 0.0))
            try:
                data = channel.recv(STREAM_CHUNK)
            except TimeoutError:
                return b""
            if not data:
                self._check_lasts(channel)
            return data

    def _check_lasts(self, channel: Channel) -> None:
        """Raise StreamEnded if the program has ended. A lost connection looks the same; the next call shows the
        difference.
        """
        if channel.closed or channel.eof_received:
            if not self._is_alive():
                raise EOFError("the connection was lost")
            raise StreamEnded(self.worker, "its program has ended")

    def _runs_our_commands(self) -> bool:
        """Return whether the machine runs the command that it is given, whatever else it prints."""
        nonce = secrets.token_hex(8)
        try:
            channel = self._open_session()
            channel.exec_command(f"echo {nonce}")
            deadline = time.monotonic() + self._seconds
            return nonce.encode() in self._read_output(channel, "echo", deadline, self._seconds).stdout
        except (OSError, EOFError, ClusterError, NoSession):
            return False

    def _open_session(self) -> Channel:
        """Open a session for a program, on a further connection if the server allows no more on the last one."""
        while True:
            try:
                return self._chains[-1][-1].open_session()
            except NoSession:
                if len(self._chains) == MOST_CONNECTIONS:
                    raise
            chain = self._further()
            self._chains.append(chain)
            self._set_timeouts(chain)

    def _set_timeouts(self, chain: Sequence[Connection]) -> None:
        for connection in chain:
            connection.set_timeout(self._seconds)

    def _too_few_sessions_error(self, error: NoSession) -> Refused:
        remedy = "set `MaxSessions 10` in its sshd_config (the default is 10), and restart its sshd"
        return Refused(self.worker, f"its SSH server allows too few sessions on one connection ({error.text})", remedy)

    def _read_output(self, channel: Channel, program: str, deadline: float, seconds: float) -> Completed:
        """Return a program's whole output and exit status.

        Both streams are read together, so that it never blocks on either.
        """
        stdout, stderr = bytearray(), bytearray()
        ended = False
        while not (ended and channel.exit_status_ready() and (channel.closed or not channel.recv_stderr_ready())):
            left = deadline - time.monotonic()
            if left <= 0:
                raise Unreachable(self.worker, f"{program} has not ended after {seconds:g} s")
            channel.settimeout(min(left, POLL_SECONDS))
            with suppress(TimeoutError):
                chunk = channel.recv(2**16)
                stdout += chunk
                ended = not chunk
            while channel.recv_stderr_ready() and len(stderr) <= MOST_OUTPUT:
                stderr += channel.recv_stderr(2**16)
            if len(stdout) + len(stderr) > MOST_OUTPUT:
                raise RemoteFailure(self.worker, f"{program} prints more than {MOST_OUTPUT:,} bytes")
            if ended and not channel.exit_status_ready():
                channel.status_event.wait(timeout=min(left, POLL_SECONDS))
        code = channel.recv_exit_status()
        if code < 0:
            raise EOFError("the connection was lost")
        return Completed(code, bytes(stdout), bytes(stderr))

    def _bytes_already_there(self, data: bytes, part: str) -> int:
        """Return how many bytes of ``data`` an earlier call has left there; 0 if it is something else."""
        try:
            size = self._sftp.stat(f"{self._root}/{part}").st_size or 0
        except FileNotFoundError:
            return 0
        if not 0 < size <= len(data):
            return 0
        said = self.run(["sha256sum", part], seconds=30.0)
        return size if hashlib.sha256(data[:size]).hexdigest().encode() in said.stdout else 0

    def _count_received(self, size: int) -> None:
        self.received += size
        self.meanwhile()

    def _count_sent(self, size: int) -> None:
        self.sent += size
        self.meanwhile()

    def _send_by_scp(self, data: bytes, path: str) -> bool:
        """Send the data by SCP into the existing file; return False if SCP does not work here."""
        if not self._scp_works:
            return False
        before = self.sent

        def progress(_name: bytes, _size: int, sent: int) -> None:
            self.sent = before + sent
            self.meanwhile()

        client = scp.SCPClient(self._chains[-1][-1], socket_timeout=self._seconds, progress=progress)
        try:
            client.putfo(io.BytesIO(data), path, mode="0600", size=len(data))
        except NoSession as error:  # SFTP needs none
            return self._disable_scp(error.text)
        except scp.SCPException as error:
            client.channel.close()
            said = str(error)
            if "Timeout" in said or not self._is_alive():
                raise TimeoutError(said) from error
            for number in (errno.ENOSPC, errno.EDQUOT):
                if os.strerror(number) in said:
                    raise OSError(number, os.strerror(number)) from error
            self.sent = before
            return self._disable_scp(said)
        return True

    def _disable_scp(self, why: str) -> bool:
        self._scp_works = False
        log.info("%s: SCP does not work there (%s), so SFTP is used", self.worker, why.strip())
        return False

    def _sync_to_disk(self, file: SftpFile) -> None:
        """Flush the file, or folder, to the disk."""
        try:
            sync_to_disk(self._sftp, file)
        except TimeoutError:
            raise
        except OSError:
            if self.run(["sync"], seconds=30.0).code:  # the server does not know this request
                raise

    def _abandon_file(self, part: str, error: OSError, size: int) -> None:
        """Delete a file that cannot be written, and find out why, which SFTP does not say: it knows only "Failure".

        Raises:
            OSError: the cause, with its number, as a shell there says it or as the disk has too little space.
        """
        with suppress(OSError):
            self._sftp.remove(part)
        if error.errno is None:
            said = self.run(["sh", "-c", WRITE_SCRIPT, "sh", str(PurePosixPath(part).parent), part])
            cause, free = said.stderr.decode("utf-8", "replace"), said.stdout.split()
            number = next((number for number in REMEDIES if os.strerror(number) in cause), None)
            if free[-3:-2] and free[-3].isdigit() and int(free[-3]) * 1024 < size:
                number = number or errno.ENOSPC
            if number:
                raise OSError(number, os.strerror(number)) from error

    @contextmanager
    def _open_file(self, path: str, mode: str) -> Iterator[SftpFile]:
        """Open a file or folder; the folders of a new file are created."""
        try:
            file = create_file(self._sftp, path) if mode == "w" else self._sftp.open(path, mode)
        except FileNotFoundError:
            if mode == "r":
                raise
            self._make_folders(PurePosixPath(path).parent)
            file = create_file(self._sftp, path)
        try:
            yield file
        except CONNECTION_ERRORS:
            raise  # closing it would only be another wait
        except BaseException:
            file.close()
            raise
        file.close()

    def _make_folders(self, folder: PurePosixPath) -> None:
        for path in reversed([folder, *folder.parents]):
            if self._is_missing(path):
                try:
                    self._sftp.mkdir(str(path), 0o700)
                except OSError:
                    # Another connection may have made it in the meantime, for machines that share a home.
                    if self._is_missing(path):
                        raise

    def _is_missing(self, path: PurePosixPath) -> bool:
        try:
            self._sftp.stat(str(path))
        except FileNotFoundError:
            return True
        return False

    def _is_alive(self) -> bool:
        """Return whether the connection shows no sign of loss; a lost one may not show it."""
        return (
            not self._closed
            and not self._channel.closed
            and all(connection.is_active() for chain in self._chains for connection in chain)
        )

    @contextmanager
    def _translate_errors(self, doing: str, *, missing_is_said: bool = False) -> Iterator[None]:
        """Translate all errors into ClusterError. A connection that has lost an answer is closed at once."""
        if self._closed:
            raise Unreachable(self.worker, f"{doing}: the connection is closed")
        try:
            yield
        except (RemoteFailure, FileTooLarge):
            raise  # StreamEnded among them
        except Unreachable:
            self.close()
            raise
        except NoSession as error:
            raise self._too_few_sessions_error(error) from error
        except CONNECTION_ERRORS as error:
            self.close()
            raise Unreachable(self.worker, f"{doing}: {str(error) or 'no answer in time'}") from error
        except OSError as error:
            if not self._is_alive():
                self.close()
                raise Unreachable(self.worker, f"{doing}: the connection was lost ({error})") from error
            if isinstance(error, FileNotFoundError) and missing_is_said:
                raise FileNotFoundError(
                    errno.ENOENT, f"{self.worker}: there is no such file", doing.partition(" ")[2]
                ) from None
            raise remote_failure(self.worker, doing, error) from error
        except Exception as error:
            self.close()
            raise RemoteFailure(
                self.worker, f"{doing}: its answer is invalid ({type(error).__name__}: {error})"
            ) from error


class SshStream:
    """A ``Stream`` on a channel of its own."""

    def __init__(self, transport: SshTransport, channel: Channel) -> None:
        self._transport, self._channel = transport, channel

    def send(self, data: bytes) -> None:
        """See ``Stream``."""
        self._transport.send(self._channel, data)

    def receive(self, seconds: float) -> bytes:
        """See ``Stream``."""
        return self._transport.receive(self._channel, seconds)

    def close(self) -> None:
        """See ``Stream``."""
        self._channel.close()
