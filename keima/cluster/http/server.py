"""Serve the door: TLS, and connections that cannot be held open by saying little."""

import logging
import resource
import socket
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

_open: Counter[str] = Counter()  # connections, by address


class PatientProtocol(H11Protocol):
    """HTTP/1.1 with a time limit for the head of each request (slow loris), and a limit of connections per address.

    Behind a proxy all connections come from one address, and the proxy has limits of its own.
    """

    most_connections = MOST_CONNECTIONS  # from one address
    _address = ""
    _limit: Any = None

    def connection_made(self, transport: Any) -> None:
        """Begin a connection."""
        super().connection_made(transport)
        self._address = str((transport.get_extra_info("peername") or ("",))[0])
        _open[self._address] += 1
        if _open[self._address] > self.most_connections:
            log.warning("refused: more than %d connections from %s", self.most_connections, self._address)
            transport.abort()
        self._wait_for_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """End a connection."""
        self._stop_waiting()
        _open[self._address] -= 1
        if _open[self._address] <= 0:
            del _open[self._address]
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
            log.info("a connection from %s is closed: no request within %.0f s", self._address, HEAD_SECONDS)
            self.transport.abort()


def open_listener(host: str, port: int) -> socket.socket:
    """Open a socket that listens there.

    Raises:
        OSError: the port is in use, or the address is not this machine's; the text says so.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    opened = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
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


def make_server(
    app: Any, *, certificate: tuple[Path, Path] | None, connections_per_address: int = MOST_CONNECTIONS
) -> uvicorn.Server:
    """Return the server of an application.

    Args:
        app: the application.
        certificate: the files of the certificate and its key; None: a proxy on this machine has them.
        connections_per_address: at a time; behind a proxy there is no limit but the proxy's.
    """
    most = connections_per_address if certificate else MOST_CONNECTIONS
    protocol = type("LimitedProtocol", (PatientProtocol,), {"most_connections": most})
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        limit_concurrency=MOST_CONNECTIONS,
        h11_max_incomplete_event_size=MOST_HEAD_BYTES,
        http=protocol,
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
