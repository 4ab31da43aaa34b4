"""The client of NBoard engines: what an engine of Othello is told, and what it may answer."""

import os
import re
from pathlib import Path

import numpy as np
import pytest

from keima.config.own_modules import keep_module
from keima.games import Game, load_game
from keima.play.engines.engine_process import EngineFailed
from keima.play.engines.nboard_client import NboardClient, NboardPlayer, game_as_ggf
from tests.play.bad_engines import program
from tests.sources import ROOT

# It answers pings, and "go" with a line of its own.
ENGINE = (
    "while read word rest; do",
    "case $word in",
    'ping) echo "pong $rest";;',
    "go) echo status Thinking; ANSWER;;",
    "esac",
    "done",
)


@pytest.fixture(scope="module")
def othello() -> Game:
    return load_game(keep_module(ROOT / "games" / "othello.py"), size=8)


def engine(folder: Path, answer: str) -> Path:
    return program(folder, *(line.replace("ANSWER", answer) for line in ENGINE))


@pytest.mark.medium
def test_what_an_engine_logs_for_days_is_not_kept_whole(othello: Game, tmp_path: Path) -> None:
    answer = "head -c 600000 /dev/zero >&2; echo 'the end' >&2; echo '=== F5/1.25/0.3'"
    with NboardClient([engine(tmp_path, answer)], ["set depth 4"]) as client:
        player = NboardPlayer(othello, client, seconds=1.0)
        for _ in range(6):
            player.choose(othello.initial_states(1))
        assert 600_000 <= os.fstat(client._errors.fileno()).st_size < 2_000_000
        client._errors.seek(-8, os.SEEK_END)
        assert client._errors.read() == b"the end\n"


@pytest.mark.medium
@pytest.mark.parametrize("answer", ["=== F5/1.25/0.3", "=== f5 1.25 0.3"], ids=["NTest", "Edax"])
def test_an_engine_answers_with_its_move_value_and_time(othello: Game, tmp_path: Path, answer: str) -> None:
    with NboardClient([engine(tmp_path, f"echo '{answer}'")], ["set depth 4"]) as client:
        chosen = NboardPlayer(othello, client, seconds=1.0).choose(othello.initial_states(1))
    assert [othello.action_name(int(action)) for action in chosen] == ["f5"]


@pytest.mark.medium
@pytest.mark.parametrize(
    ("answer", "complaint"),
    [
        ("echo '=== A1'", "answered 'A1', which is not a legal move there"),
        ("echo '==='", "answered '', which is not a legal move there"),
        ("exit 3", "ended with exit code 3"),
    ],
)
def test_invalid_answers_and_crashes_are_reported(othello: Game, tmp_path: Path, answer: str, complaint: str) -> None:
    with NboardClient([engine(tmp_path, answer)]) as client, pytest.raises(EngineFailed, match=complaint):
        NboardPlayer(othello, client, seconds=1.0).choose(othello.initial_states(1))


def test_a_program_that_does_not_speak_the_protocol_is_not_waited_for(tmp_path: Path) -> None:
    with pytest.raises(EngineFailed, match="has not answered 'pong 1' to 'ping 1' in time: does it speak NBoard"):
        NboardClient([program(tmp_path, "exec sleep 100")], seconds=0.2)


@pytest.mark.medium
def test_a_game_is_written_with_the_passes_that_keima_leaves_out(othello: Game) -> None:
    random, passes = np.random.default_rng(3), 0
    for _ in range(20):
        state, moves = othello.initial_state(), list[int]()
        while not othello.terminal(state):
            moves.append(int(random.choice(othello.legal_actions(state))))
            othello.play(state, moves[-1])
        written = game_as_ggf(othello, moves)
        colors = re.findall(r"([BW])\[(?:PA|[A-H][1-8])\]", written)
        assert colors == ["BW"[number % 2] for number in range(len(colors))]
        passes += written.count("[PA]")
        assert len(colors) - written.count("[PA]") == len(moves)
    assert passes > 0
