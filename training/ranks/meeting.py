"""Where ranks meet: looked at before any of them is started, so that what is wrong is said in one sentence."""

import errno
import logging
import socket
import time

DEFAULT_PORT = 12355
# To the store of torch by which ranks meet, its greeting and a ping, which it answers with the last four bytes; to
# others an end of a line.
GREETING = b"\x00\xce\xf7\x85\x3c\x0d\xff\xff\xff\xff\r\n\r\n"
ANSWER_SECONDS = 5.0
LOOK_SECONDS = 1.0  # between two attempts to reach the first machine

log = logging.getLogger(__name__)


def check_own_address(address: str, port: int) -> None:
    """See that other ranks can meet this process at ``address`` and ``port``.

    Raises:
        ValueError: nobody knows the address, it is another machine's, or the port cannot be had; the message names the
        flag.
    """
    with socket.socket() as listener:
        try:
            listener.bind((_resolved(address), 0))
        except OSError as error:
            raise ValueError(
                f"--master-addr {address} is no address of this machine, where rank 0 is to be: "
                f"name one by which the others reach it"
            ) from error
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as torch does: ignores closed connections
        try:
            listener.bind(("", _checked(port)))
        except OSError as error:
            reason = "another program uses it" if error.errno == errno.EADDRINUSE else str(error.strerror).lower()
            raise ValueError(f"--master-port {port}: {reason}; choose another, the same on all machines") from error


def wait_for_address(address: str, port: int, *, seconds: float) -> None:
    """Return when somebody listens at ``address`` and ``port``, where rank 0 is; after a first failure it is logged
    that this waits.

    Raises:
        ValueError: nobody knows the address.
        RuntimeError: nobody has listened there for ``seconds``.
    """
    deadline, told = time.monotonic() + seconds, False
    number = _resolved(address)
    while True:
        try:
            with socket.create_connection((number, _checked(port)), timeout=min(5.0, seconds)):
                return
        except OSError as error:
            if time.monotonic() >= deadline:
                raise RuntimeError(
                    f"nobody answers at --master-addr {address}, --master-port {port}: {_reason(error)}; "
                    "start the machine of rank 0, see that both flags are the same everywhere, "
                    "and that its firewall lets this machine in"
                ) from error
        if not told:
            log.warning("waiting for rank 0 at %s port %d, up to %d s", address, port, seconds)
            told = True
        time.sleep(min(LOOK_SECONDS, seconds))


def see_that_a_training_answers(address: str, port: int) -> None:
    """Refuse a program that speaks in words, as web servers do. A store of torch's does not, of whichever version.

    torch itself would take a minute to find out, and say it in hundreds of lines.

    Raises:
        RuntimeError: such a program listens there.
    """
    try:
        with socket.create_connection((_resolved(address), port), timeout=ANSWER_SECONDS) as asked:
            asked.sendall(GREETING)
            answer = asked.recv(16)
    except OSError:
        return  # whoever connects for good will see
    if answer and answer.isascii():
        raise RuntimeError(
            f"what answers at --master-addr {address}, --master-port {port} is no training: see that both are right"
        )


def _reason(error: OSError) -> str:
    return "no answer in time" if isinstance(error, TimeoutError) else str(error.strerror or error).lower()


def _checked(port: int) -> int:
    if not 0 < port < 2**16:
        raise ValueError(f"--master-port {port}: expected a number from 1 to 65535")
    return port


def _resolved(address: str) -> str:
    try:
        return socket.gethostbyname(address)
    except OSError as error:
        raise ValueError(
            f"--master-addr {address}: no machine of this name is known here; name its IP address"
        ) from error
