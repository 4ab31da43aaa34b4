"""Only requests with the token, for this server, are answered; none changes anything."""

import itertools
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from keima.report import make_observers
from tests.example_reports import iteration, progress
from tests.web.serving import SECONDS, Dashboard, dashboard

pytestmark = pytest.mark.medium


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dashboard]:
    folder = tmp_path_factory.mktemp("runs") / "first"
    folder.mkdir()
    for observer in make_observers(folder, name="first", game="connect_four"):
        observer.progress(progress(1))
        observer.iteration(iteration(1))
    with dashboard(folder) as found:
        yield found


def test_the_printed_address_moves_the_token_into_a_cookie(served: Dashboard) -> None:
    answer = served.ask(f"/?token={served.token}", cookie=False)
    assert (answer.status, answer.headers["Location"]) == (303, "/")
    cookie = answer.headers["Set-Cookie"]
    assert cookie.startswith(f"keima-{served.port}={served.token};")
    assert "HttpOnly" in cookie and "SameSite=lax" in cookie
    assert served.ask("/", cookie=False, Cookie=cookie.split(";")[0]).status == 200


def test_every_answer_keeps_the_page_to_itself(served: Dashboard) -> None:
    for path, cookie in (("/", True), ("/api/runs", True), ("/dashboard.js", True), ("/nothing", True), ("/", False)):
        headers = served.ask(path, cookie=cookie).headers
        policy = headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy and "frame-ancestors 'none'" in policy and "unsafe" not in policy
        assert (headers["X-Content-Type-Options"], headers["Referrer-Policy"]) == ("nosniff", "no-referrer")
        assert headers["Cache-Control"] == "no-store" and "Server" not in headers


PAGES = ("/", "/play", "/dashboard.js", "/nothing")
PATHS = (*PAGES, "/api/runs", "/api/runs/0/curves", "/api/runs/0/state", "/api/changes")
CHANGES = [
    *({"cookie": False, "method": "GET", **each} for each in ({}, {"Cookie": "keima-1=x"}, {"Cookie": "a" * 9000})),
    *({"method": method} for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "BREW")),
    *({"Host": host} for host in ("evil.example", "evil.example:80", "127.0.0.1", "127.0.0.1:1", "", "localhost@evil")),
    *({"Origin": origin} for origin in ("http://evil.example", "null", "https://localhost", "http://127.0.0.1:1", "")),
    *({"Content-Length": length} for length in ("5", "99999999999", "-1", "x")),
    {"Transfer-Encoding": "chunked"},
    {"X-Long": "a" * 20_000},
]


@pytest.mark.parametrize("path", PATHS)
def test_hostile_requests_are_refused(served: Dashboard, path: str) -> None:
    assert len(PATHS) * len(CHANGES) >= 180
    for change in CHANGES:
        answer = served.ask(path, **change)  # type: ignore[arg-type]
        assert 400 <= answer.status < 500, (change, answer.status)
        text = answer.body.decode()
        assert "first" not in text and "Traceback" not in text, (change, text)


TOKENS = ("", "x", "%00", "%ff", "é", "a" * 1000, "../../etc/passwd")


def test_a_wrong_token_is_refused_even_with_the_cookie(served: Dashboard) -> None:
    for token, cookie in itertools.product((*TOKENS[:4], *TOKENS[5:], served.token[:-1]), (True, False)):
        assert served.ask(f"/?token={token}", cookie=cookie).status == 403


WRONG_ADDRESSES = (
    *(
        "/api/runs/1/state",
        "/api/runs/-1/state",
        "/api/runs/x/state",
        "/api/runs/0",
        "/api/runs/99999999999999999999/state",
    ),
    *(
        "/../pyproject.toml",
        "/..%2f..%2fetc%2fpasswd",
        "/%2e%2e/access.py",
        "//etc/passwd",
        "/LICENSE",
        "/app.py",
    ),
    *(f"/api/runs/0/games/{number}" for number in ("0", "1", "-1", "x", "1.5", "--1", "9" * 13, "")),
    "/" + "a" * 3000,
)


@pytest.mark.parametrize("path", WRONG_ADDRESSES)
def test_other_addresses_lead_nowhere(served: Dashboard, path: str) -> None:
    assert served.ask(path).status in (404, 414)


BYTES = (
    *(b"", b"\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00", b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"\x00" * 40_000),
    *(b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 20_000, b"G" * 70_000, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
    *(
        b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        b"GET http://evil.example/ HTTP/1.1\r\nHost: evil.example\r\n\r\n",
    ),
    b"GET / HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Key: AAAA\r\n\r\n",
)


@pytest.mark.parametrize("sent", BYTES, ids=range(len(BYTES)))
def test_what_is_no_request_does_no_harm(served: Dashboard, sent: bytes) -> None:
    with socket.create_connection(("127.0.0.1", served.port), timeout=SECONDS) as connection:
        try:
            connection.sendall(sent)
            connection.shutdown(socket.SHUT_WR)
            answer = connection.recv(100)
        except OSError:  # it has closed the connection before it had everything
            answer = b""
    assert not answer or answer.split()[1].startswith(b"4"), answer
    assert served.read("/api/runs")["runs"][0]["name"] == "first"


def test_it_listens_for_this_machine_alone(served: Dashboard) -> None:
    listening = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    mine = [words[1] for words in listening if words[3] == "0A" and words[1].endswith(f":{served.port:04X}")]
    assert mine == [f"0100007F:{served.port:04X}"]
