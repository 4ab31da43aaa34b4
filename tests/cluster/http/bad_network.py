"""A TCP relay of this machine that fails as a test asks: cuts, black holes, and slow lines."""

import select
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from keima.base.system.threads import SteppingThread

CHUNK = 2**14
MOST_SEEN = 2**20


@dataclass
class BadNetwork:
    """What the relay does to bytes. All numbers are of bytes; None: no limit."""

    port: int = 0
    to_port: int = 0
    cut_after: int | None = None  # bytes to the client of a connection; the connection is then reset
    cut_uploads_after: int | None = None  # bytes from the client, likewise
    is_black_hole: bool = False  # takes bytes and passes none on
    refuses: bool = False
    drops: bool = False  # all open connections, once
    bytes_per_second: float | None = None
    connections: int = 0
    seen: bytearray = field(default_factory=bytearray)  # from clients, as sent: the first MOST_SEEN bytes


@contextmanager
def bad_network(to_port: int) -> Iterator[BadNetwork]:
    """Relay to a port of this machine while the block runs."""
    state, listener, done = BadNetwork(to_port=to_port), socket.create_server(("127.0.0.1", 0)), list[bool]()
    listener.settimeout(0.05)
    state.port = listener.getsockname()[1]
    pairs: dict[socket.socket, tuple[socket.socket, bool]] = {}  # to the other end; True: from the client
    counts: dict[socket.socket, int] = {}

    def close(one: socket.socket) -> None:
        other = pairs.pop(one)[0]
        pairs.pop(other, None)
        for each in (one, other):
            counts.pop(each, None)
            with suppress(OSError):
                each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # reset, do not end
            each.close()

    def step() -> float:
        if state.drops:
            for one in list(pairs):
                if one in pairs:
                    close(one)
            state.drops = False
        readable = select.select([listener, *pairs], [], [], 0.05)[0]
        for each in readable:
            if each is listener:
                client, _ = listener.accept()
                state.connections += 1
                if state.refuses:
                    client.close()
                    continue
                server = socket.create_connection(("127.0.0.1", state.to_port))
                pairs[client], pairs[server] = (server, True), (client, False)
                counts[client] = counts[server] = 0
            elif each in pairs:
                pass_on(each)
        return 0.0

    def pass_on(each: socket.socket) -> None:
        other, is_client = pairs[each]
        limit = state.cut_uploads_after if is_client else state.cut_after
        try:
            data = each.recv(CHUNK)
            if not data:
                close(each)
                return
            if is_client and len(state.seen) < MOST_SEEN:
                state.seen += data
            if state.is_black_hole:
                return
            if limit is not None and counts[each] + len(data) > limit:
                other.sendall(data[: max(0, limit - counts[each])])
                close(each)
                return
            counts[each] += len(data)
            if state.bytes_per_second:
                time.sleep(len(data) / state.bytes_per_second)
            other.sendall(data)
        except OSError:
            if each in pairs:
                close(each)

    thread = SteppingThread("bad network", step, lambda: bool(done))
    thread.start()
    yield state
    done.append(True)
    thread.join(5.0)
    for each in list(pairs):
        if each in pairs:
            close(each)
    listener.close()
