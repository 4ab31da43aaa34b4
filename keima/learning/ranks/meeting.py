"""Check whether ranks can meet, before any of them is started, so that an error takes one sentence."""

import errno
import logging
import socket
import time

DEFAULT_PORT = 12355
LOCALHOST = "localhost"
# torch's store, through which ranks meet, reads this as its greeting and a ping, and answers the ping with the last
# four bytes. Other programs read the end of a line.
GREETING = b"\x00\xce\xf7\x85\x3c\x0d\xff\xff\xff\xff\r\n\r\n"
ANSWER_SECONDS = 5.0
LOOK_SECONDS = 1.0  # between two attempts to reach the first machine

log = logging.getLogger(__name__)


def check_own_address(address: str, port: int) -> None:
    """Check that other ranks can reach this process at ``address`` and ``port``.

    Raises:
        ValueError: the address is unknown or belongs to another machine, or the port is taken; the message names the
            flag.
    """
    with socket.socket() as listener:
        try:
            listener.bind((_resolve_address(address), 0))
        except OSError as error:
            raise ValueError(
                f"--master-addr {address} is not an address of this machine, which runs rank 0: "
                f"give one that the other machines can reach"
            ) from error
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as torch does: ignores closed connections
        try:
            listener.bind(("", _check_port(port)))
        except OSError as error:
            reason = "another program uses it" if error.errno == errno.EADDRINUSE else str(error.strerror).lower()
            raise ValueError(f"--master-port {port}: {reason}; choose another, the same on all machines") from error


def wait_for_address(address: str, port: int, *, seconds: float) -> None:
    """Wait until rank 0 listens at ``address`` and ``port``; logs a line after the first failed attempt.

    Raises:
        ValueError: the address is unknown.
        RuntimeError: nothing has listened there within ``seconds``.
    """
    deadline, logged = time.monotonic() + seconds, False
    number = _resolve_address(address)
    while True:
        try:
            with socket.create_connection((number, _check_port(port)), timeout=min(5.0, seconds)):
                return
        except OSError as error:
            if time.monotonic() >= deadline:
                raise RuntimeError(
                    f"nobody answers at --master-addr {address}, --master-port {port}: {_error_reason(error)}; "
                    "start the machine of rank 0, check that both flags are the same on all machines, "
                    "and that its firewall lets this machine in"
                ) from error
        if not logged:
            log.warning("waiting for rank 0 at %s port %d, up to %d s", address, port, seconds)
            logged = True
        time.sleep(min(LOOK_SECONDS, seconds))


def reject_foreign_server(address: str, port: int) -> None:
    """Reject a program that answers in text, as web servers do. No version of torch's store does.

    torch itself would need a minute to notice, and hundreds of lines to report it.

    Raises:
        RuntimeError: such a program listens there.
    """
    try:
        with socket.create_connection((_resolve_address(address), port), timeout=ANSWER_SECONDS) as asked:
            asked.sendall(GREETING)
            answer = asked.recv(16)
    except OSError:
        return  # the connection that matters will fail, and its error is reported
    if answer and answer.isascii():
        raise RuntimeError(
            f"the program at --master-addr {address}, --master-port {port} is not a training run: check both flags"
        )


def _error_reason(error: OSError) -> str:
    return "no answer in time" if isinstance(error, TimeoutError) else str(error.strerror or error).lower()


def _check_port(port: int) -> int:
    if not 0 < port < 2**16:
        raise ValueError(f"--master-port {port}: expected a number from 1 to 65535")
    return port


def _resolve_address(address: str) -> str:
    try:
        return socket.gethostbyname(address)
    except OSError as error:
        raise ValueError(
            f"--master-addr {address}: no machine of this name is known here; give its IP address"
        ) from error
