"""Commands of people who play, to the real server."""

import http.client
import itertools
import json
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from keima.web.limits import MOST_COMMAND_BYTES, MOST_SECONDS, MOST_SIMULATIONS
from tests.lab.processes import command_line, parent, pids
from tests.web.serving import SECONDS, Answer, Dashboard, server
from tests.web.small_models import small_model

pytestmark = pytest.mark.medium
NEW = {"do": "new", "model": "file-0", "person": 0, "simulations": 8}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dashboard]:
    model = small_model(tmp_path_factory.mktemp("models"), "tic_tac_toe")
    with server("play", "--web", model, page="/play") as found:
        yield found


def visitor(served: Dashboard, name: str) -> str:
    """Return the cookies of a visitor."""
    return f"keima-{served.port}={served.token}; keima-visitor={name}"


def sent(served: Dashboard, body: bytes, *, name: str = "ada", **headers: str) -> Answer:
    """Send a command as the page does; ``headers`` replace what a browser would send."""
    usual = {
        "Cookie": visitor(served, name),
        "Content-Type": "application/json",
        "Origin": f"http://127.0.0.1:{served.port}",
    }
    with closing(http.client.HTTPConnection("127.0.0.1", served.port, timeout=10 * SECONDS)) as connection:
        connection.request("POST", "/api/play", body, usual | headers)
        answer = connection.getresponse()
        return Answer(answer.status, answer.headers, answer.read())


def told(served: Dashboard, command: dict[str, Any], name: str = "ada") -> dict[str, Any]:
    """Return the view of the game after a command."""
    answer = sent(served, json.dumps(command).encode(), name=name)
    assert answer.status == 200, answer.body
    view: dict[str, Any] = json.loads(answer.body)
    return view


def test_visitors_play_games_of_their_own(served: Dashboard) -> None:
    told(served, NEW)
    told(served, NEW | {"person": 1}, "grace")
    told(served, {"do": "move", "action": 4, "ply": 0})
    assert told(served, {"do": "answer", "ply": 0}, "grace")["to_move"] == 1
    assert told(served, {"do": "look"})["moves"] == ["5"]
    assert len(told(served, {"do": "answer", "ply": 1})["moves"]) == 2
    assert told(served, {"do": "undo"})["moves"] == []


def test_a_second_click_plays_nothing(served: Dashboard) -> None:
    told(served, NEW)
    for _ in range(2):
        assert told(served, {"do": "move", "action": 4, "ply": 0})["moves"] == ["5"]
    assert len(told(served, {"do": "answer", "ply": 0})["moves"]) == 1


def test_a_game_outlives_the_process_that_thinks(served: Dashboard) -> None:
    told(served, NEW)
    told(served, {"do": "move", "action": 0, "ply": 0})
    (engine,) = thinking_processes()
    os.kill(engine, signal.SIGKILL)
    assert len(told(served, {"do": "answer", "ply": 1})["moves"]) == 2


def thinking_processes() -> list[int]:
    """Return the running engines of all servers that this process has started."""
    return [pid for pid in descendants(os.getpid()) if "keima.web.engine" in command_line(pid)]


def descendants(pid: int) -> list[int]:
    """Return the processes that a process and its descendants have started."""
    children = [child for child in pids() if parent(child) == pid]
    return [*children, *(each for child in children for each in descendants(child))]


def test_the_engine_has_the_lowest_priority_and_one_thread(served: Dashboard) -> None:
    told(served, NEW)
    (engine,) = thinking_processes()
    assert os.getsid(engine) == engine, "it can give way as a whole"
    assert os.getpriority(os.PRIO_PROCESS, engine) == 19
    environment = Path(f"/proc/{engine}/environ").read_bytes().split(b"\0")
    assert b"OMP_NUM_THREADS=1" in environment


def test_the_game_is_saved_as_a_file(served: Dashboard) -> None:
    told(served, NEW)
    told(served, {"do": "move", "action": 4, "ply": 0})
    answer = served.ask("/api/play/file", Cookie=visitor(served, "ada"))
    assert answer.headers["Content-Disposition"] == 'attachment; filename="game.txt"'
    assert b"1. 5" in answer.body
    assert served.ask("/api/play/file", Cookie=visitor(served, "nobody")).status == 404


def test_the_page_gives_each_visitor_a_cookie_that_scripts_cannot_read(served: Dashboard) -> None:
    cookie = served.ask("/play").headers["Set-Cookie"]
    assert cookie.startswith("keima-visitor=") and "HttpOnly" in cookie and "SameSite=strict" in cookie
    assert served.ask("/play", Cookie=visitor(served, "ada")).headers["Set-Cookie"] is None


WRONG = (
    *(b"", b"{", b"[]", b"null", b"7", b'"new"', b"\x00", b"\xff\xfe", b"{" * 500, b"[" * 900),
    *(
        json.dumps(command).encode()
        for command in (
            *({}, {"do": "quit"}, {"do": None}, {"do": ["new"]}, {"do": "new"}, {"do": "move"}, {"do": "look", "x": 1}),
            *(NEW | {"model": model} for model in ("../secret", "file-9", "run-0-1", "", 7, None, "a" * 41)),
            *(NEW | {"person": person} for person in (2, -1, 16, "0", 0.5, True)),
            *(NEW | {"simulations": count} for count in (0, -1, MOST_SIMULATIONS + 1, 1.5, "8", None, 10**30)),
            *(NEW | {"simulations": None, "seconds": count} for count in (0, -1, MOST_SECONDS + 1, "x", "nan")),
            NEW | {"seconds": 1.0},
            *({"do": "move", "action": action, "ply": 0} for action in (9, -1, 2**31, 10**20, 0.5, "4", None)),
            *({"do": "move", "action": 4, "ply": ply} for ply in (-1, "0", None)),
        )
    ),
)


def test_malformed_commands_are_refused_and_change_nothing(served: Dashboard) -> None:
    before = told(served, NEW)
    for body in WRONG:
        answer = sent(served, body)
        assert 400 <= answer.status < 500, (body, answer)
        assert b"Traceback" not in answer.body and b"/" not in answer.body.replace(b"https://", b""), answer.body
    assert told(served, {"do": "look"}) == before


HOSTILE = (
    *({"Origin": origin} for origin in ("http://evil.example", "null", "", "http://127.0.0.1:1")),
    *({"Content-Type": kind} for kind in ("text/plain", "multipart/form-data", "application/json; a=b", "")),
    *({"Host": host} for host in ("evil.example", "")),
    *({"Content-Length": size} for size in (str(MOST_COMMAND_BYTES + 1), "0" * 20 + "99999", "-1", "x", "1, 1")),
    {"Cookie": "keima-visitor=ada"},
    {"Transfer-Encoding": "chunked"},
)


def test_commands_from_elsewhere_are_refused(served: Dashboard) -> None:
    before = told(served, NEW)
    for headers, command in itertools.product(HOSTILE, (NEW, {"do": "resign"}, {"do": "move", "action": 4, "ply": 0})):
        answer = sent(served, json.dumps(command).encode(), **headers)
        assert 400 <= answer.status < 500, (headers, answer)
    for method, path in itertools.product(("POST", "PUT", "DELETE"), ("/play", "/api/play/models", "/api/play/x")):
        assert served.ask(path, method=method, body=b"{}").status in (404, 405, 413)
    assert sent(served, json.dumps(NEW).encode(), Cookie=f"keima-{served.port}={served.token}").status == 403
    assert told(served, {"do": "look"}) == before


@pytest.mark.slow
def test_visitors_beyond_the_bound_are_told_that_the_server_is_busy(served: Dashboard) -> None:
    names = [f"visitor-{number}" for number in range(16)]
    for name in names:
        told(served, NEW | {"person": 1, "simulations": None, "seconds": 0.3}, name)
    found: list[int] = []
    command = json.dumps({"do": "answer", "ply": 0}).encode()
    threads = [
        threading.Thread(target=lambda name=name: found.append(sent(served, command, name=name).status))
        for name in names
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(found) == {200, 503} and found.count(200) >= 8
