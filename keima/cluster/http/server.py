"""Serve the door: TLS, and connections that cannot be held open by saying little."""

import logging
import resource
import socket
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from keima.cluster.http.limits import HEAD_SECONDS, MOST_HEAD_BYTES

log = logging.getLogger(__name__)

MOST_CONNECTIONS = 4000
KEEP_ALIVE_SECONDS = 75
GRACE_SECONDS = 5
BACKLOG = 512
LOG_SECONDS = 60.0  # between two lines about the same

_open: Counter[str] = Counter()  # connections, by address


class PatientProtocol(H11Protocol):
    """HTTP/1.1 with a time limit for the head of each request (slow loris)."""

    _limit: Any = None

    def connection_made(self, transport: Any) -> None:
        """Begin a connection."""
        super().connection_made(transport)
        self._wait_for_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """End a connection."""
        self._stop_waiting()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take what has arrived."""
        before = self.cycle
        super().data_received(data)
        if self.cycle is not before:  # the head of a request is complete
            self._stop_waiting()
        elif (self.cycle is None or self.cycle.response_complete) and self._limit is None:
            self._wait_for_head()

    def _wait_for_head(self) -> None:
        self._limit = self.loop.call_later(HEAD_SECONDS, self._end_slow_connection)

    def _stop_waiting(self) -> None:
        if self._limit is not None:
            self._limit.cancel()
            self._limit = None

    def _end_slow_connection(self) -> None:
        self._limit = None
        if not self.transport.is_closing():
            self.transport.abort()


class _CountedSocket(socket.socket):
    """An accepted connection, which is counted until it is closed."""

    address = ""

    def close(self) -> None:
        """Close it."""
        if self.address:
            _open[self.address] -= 1
            if _open[self.address] <= 0:
                del _open[self.address]
            self.address = ""
        super().close()


class LimitedListener(socket.socket):
    """A listening socket that accepts only so many connections at a time from one address, before TLS begins."""

    most = MOST_CONNECTIONS
    _said_at = -LOG_SECONDS

    def accept(self) -> tuple[socket.socket, Any]:
        """Accept a connection; one too many is closed at once, as if nobody had come."""
        plain, address = super().accept()
        opened = _CountedSocket(plain.family, plain.type, plain.proto, fileno=plain.detach())
        host = str(address[0])
        if _open[host] >= self.most:
            opened.close()
            if time.monotonic() - self._said_at >= LOG_SECONDS:
                self._said_at = time.monotonic()
                log.warning("refused: more than %d connections from %s", self.most, host)
            raise BlockingIOError
        _open[host] += 1
        opened.address = host
        return opened, address


def open_listener(host: str, port: int, *, connections_per_address: int = MOST_CONNECTIONS) -> socket.socket:
    """Open a socket that listens there.

    Args:
        host: the address of this machine.
        port: 0: a free one.
        connections_per_address: at a time.

    Raises:
        OSError: the port is in use, or the address is not this machine's; the text says so.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    opened = LimitedListener(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    opened.most = connections_per_address
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        opened.bind((host, port))
        opened.listen(BACKLOG)
    except OSError as error:
        opened.close()
        raise OSError(f"the door cannot listen on {host}, port {port}: {error.strerror}") from error
    return opened


def allow_many_connections() -> None:
    """Raise the limit of open files as far as the system lets this process."""
    with suppress(ValueError, OSError):
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def make_server(app: Any, *, certificate: tuple[Path, Path] | None) -> uvicorn.Server:
    """Return the server of an application.

    Args:
        app: the application.
        certificate: the files of the certificate and its key; None: a proxy on this machine has them.
    """
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)  # it warns of each invalid request
    config = uvicorn.Config(
        app,
        log_level="error",
        access_log=False,
        limit_concurrency=MOST_CONNECTIONS,
        h11_max_incomplete_event_size=MOST_HEAD_BYTES,
        http=PatientProtocol,
        ws="none",
        lifespan="off",
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=GRACE_SECONDS,
        server_header=False,
        proxy_headers=certificate is None,
        forwarded_allow_ips="127.0.0.1",
        ssl_certfile=certificate and certificate[0],
        ssl_keyfile=certificate and certificate[1],
    )
    return uvicorn.Server(config)
