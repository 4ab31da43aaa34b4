"""keima analysis as programs start it: queries and results over pipes."""

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from keima import __version__
from keima.games import load_game
from tests.programs import command, heed_ctrl_c
from tests.small_run import saved_model

PATIENCE = 400.0  # seconds, for a machine that is also busy with other work
SIZE, KOMI, VISITS = 7, 4.5, 12
PLAIN = {"moves": [], "rules": "chinese", "komi": KOMI, "boardXSize": SIZE, "boardYSize": SIZE}
GAME = [["B", "D4"], ["W", "C3"], ["B", "E5"], ["W", "pass"]]

pytestmark = [pytest.mark.medium, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    game, folder = load_game("go", size=SIZE, komi=KOMI), tmp_path_factory.mktemp("model")
    return saved_model(folder / "tiny.safetensors", game, version=3, predict_ownership=True, predict_score=True)


def started(*words: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command("analysis", *words),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=heed_ctrl_c,
    )


def ask(process: subprocess.Popen[str], **fields: object) -> dict[str, Any]:
    """Send a query and return the next line."""
    assert process.stdin and process.stdout
    process.stdin.write(json.dumps(fields) + "\n")
    process.stdin.flush()
    answer: dict[str, Any] = json.loads(process.stdout.readline())
    return answer


@pytest.fixture(scope="module")
def engine(model: Path) -> Iterator[subprocess.Popen[str]]:
    with started(model, "--max-visits", VISITS) as process:
        yield process
        process.kill()


def talk(words: list[object], queries: list[dict[str, object] | str]) -> tuple[list[dict[str, Any]], str, int]:
    """Return all results to queries that are followed by the end of the input, the messages and the exit code."""
    lines = [query if isinstance(query, str) else json.dumps(query) for query in queries]
    process = started(*words)
    out, messages = process.communicate("\n".join(lines), timeout=PATIENCE)
    return [json.loads(line) for line in out.splitlines()], messages, process.returncode


def test_a_query_gets_what_the_network_knows(engine: subprocess.Popen[str]) -> None:
    wanted = {"includeOwnership": True, "includePolicy": True, "includeMovesOwnership": True}
    said = ask(engine, id="q", **PLAIN | {"moves": GAME} | wanted)
    assert (said["id"], said["turnNumber"], said["rootInfo"]["visits"]) == ("q", len(GAME), VISITS)
    assert len(said["ownership"]) == SIZE**2 and len(said["policy"]) == SIZE**2 + 1
    for move in said["moveInfos"]:
        assert 0 <= move["winrate"] <= 1 and {"scoreLead", "prior", "lcb", "pv"} <= set(move)
        assert len(move["ownership"]) == SIZE**2


def test_after_errors_it_answers_on(engine: subprocess.Popen[str]) -> None:
    assert ask(engine, id="q", **PLAIN | {"boardXSize": 19})["field"] == "boardXSize"
    assert "Illegal move" in ask(engine, id="q", **PLAIN | {"moves": [["B", "D4"], ["W", "D4"]]})["error"]
    assert ask(engine, id="v", action="query_version")["version"] == __version__
    (about,) = ask(engine, id="m", action="query_models")["models"]
    assert (about["name"], about["version"]) == ("tiny.safetensors", 3)


@pytest.mark.slow
def test_the_end_of_the_input_waits_for_all_results(model: Path) -> None:
    """KataGo's flags name the network and its settings, as programs pass them."""
    words = ["-model", model, "-config", "analysis.cfg", "-analysis-threads", 3, "-override-config", "homeDataDir=/tmp"]
    queries: list[dict[str, object] | str] = [
        {"id": "all", **PLAIN, "moves": GAME, "analyzeTurns": [0, 1, 2, 3, 4], "maxVisits": 5},
        "",
        "nonsense",
        {"id": "last", **PLAIN, "maxVisits": 5},
    ]
    said, _, code = talk(words, queries)
    assert code == 0
    assert sorted(each["turnNumber"] for each in said if each.get("id") == "all") == [0, 1, 2, 3, 4]
    assert [each["id"] for each in said if each.get("id") == "last"] == ["last"]
    assert [each["error"] for each in said if "error" in each]


@pytest.mark.slow
def test_it_need_not_wait(model: Path) -> None:
    said, _, code = talk(
        [model, "-quit-without-waiting"],
        [{"id": "q", **PLAIN, "maxVisits": 10_000}, {"id": "v", "action": "query_version"}],
    )
    assert code == 0 and [each["id"] for each in said] == ["v"]


@pytest.mark.slow
def test_ctrl_c_is_quiet(model: Path) -> None:
    with started(model) as process:
        assert ask(process, id="q", **PLAIN, maxVisits=1)["rootInfo"]["visits"] == 1
        assert process.stdin and process.stdout and process.stderr
        process.stdin.write(json.dumps({"id": "long", **PLAIN, "maxVisits": 10_000}) + "\n")
        process.stdin.flush()
        os.kill(process.pid, signal.SIGINT)
        assert process.wait(PATIENCE) == 130
        assert "Traceback" not in process.stderr.read()


def test_one_network_is_needed(model: Path, tmp_path: Path) -> None:
    for words in ([], [model, "-model", model]):
        _, messages, code = talk(list(words), [])
        assert code == 2 and "name one network" in messages
    other = saved_model(tmp_path / "other.safetensors", load_game("tic_tac_toe"))
    said, messages, code = talk([other], [{"id": "q", **PLAIN}])
    assert (said, code) == ([], 2)
    assert "KataGo's analysis protocol is for go, and this model plays tic_tac_toe" in messages
