"""The meeting place of ranks is checked before they start."""

import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from torch.distributed import TCPStore  # type: ignore[attr-defined]  # documented, but not marked as exported

from keima.learning.ranks.meeting import (
    GREETING,
    check_own_address,
    reject_foreign_server,
    wait_for_address,
)
from tests.learning.ranks.test_ranks import free_port

ELSEWHERE = "192.0.2.1"  # of a network reserved for documentation


@pytest.fixture
def taken() -> Iterator[int]:
    """A port at which a server listens."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


def test_ranks_can_meet_at_a_free_port_of_this_machine() -> None:
    check_own_address("localhost", free_port())


def test_a_port_in_use_is_named_with_the_remedy(taken: int) -> None:
    with pytest.raises(
        ValueError, match=f"^--master-port {taken}: another program uses it; choose another, the same on all machines$"
    ):
        check_own_address("localhost", taken)


def test_an_address_of_another_machine_and_an_unknown_one_are_reported() -> None:
    with pytest.raises(ValueError, match=f"^--master-addr {ELSEWHERE} is not an address of this machine"):
        check_own_address(ELSEWHERE, free_port())
    for look in (lambda name: check_own_address(name, 1234), lambda name: wait_for_address(name, 1234, seconds=1)):
        with pytest.raises(
            ValueError, match=r"^--master-addr no\.such\.machine\.invalid: no machine of this name is known here"
        ):
            look("no.such.machine.invalid")


@pytest.mark.parametrize("port", [0, 65536])
def test_an_invalid_port_is_refused(port: int) -> None:
    with pytest.raises(ValueError, match=f"^--master-port {port}: expected a number from 1 to 65535$"):
        check_own_address("localhost", port)


def test_a_first_machine_that_does_not_come_is_named(caplog: pytest.LogCaptureFixture) -> None:
    port = free_port()
    with pytest.raises(
        RuntimeError,
        match=f"^nobody answers at --master-addr 127.0.0.1, --master-port {port}: connection refused; start",
    ):
        wait_for_address("127.0.0.1", port, seconds=0.1)
    assert caplog.messages == [f"waiting for rank 0 at 127.0.0.1 port {port}, up to 0 s"]


def test_a_first_machine_that_comes_later_is_waited_for() -> None:
    port = free_port()
    with ThreadPoolExecutor() as pool, socket.socket() as listener:
        waiting = pool.submit(wait_for_address, "127.0.0.1", port, seconds=60)
        time.sleep(0.2)
        assert not waiting.done()
        listener.bind(("127.0.0.1", port))
        listener.listen()
        waiting.result(timeout=240)


def test_another_program_that_answers_there_is_not_mistaken_for_a_training() -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as server, ThreadPoolExecutor() as pool:
        pool.submit(server.serve_forever)
        where = f"--master-addr 127.0.0.1, --master-port {server.server_port}"
        try:
            with pytest.raises(RuntimeError, match=f"^the program at {where} is not a training run: check both flags$"):
                reject_foreign_server("127.0.0.1", server.server_port)
        finally:
            server.shutdown()


def test_a_training_that_waits_there_is_joined() -> None:
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    reject_foreign_server("127.0.0.1", store.port)
    with socket.create_connection(("127.0.0.1", store.port)) as asked:
        asked.sendall(GREETING)
        assert asked.recv(4) == 4 * b"\xff"
    store.set("still", "there")
