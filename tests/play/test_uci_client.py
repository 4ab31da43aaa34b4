"""Clients of UCI engines: the real Stockfish, and programs that are not engines."""

import os
import time
from pathlib import Path

import numpy as np
import pytest

from keima.games import load_game
from keima.games.chess.notation import action_of_uci, fen_of, position_from_fen
from keima.games.game import States
from keima.play.arena.ladder import find_program, make_stockfish_entrants
from keima.play.engines.engine_process import EngineFailed
from keima.play.engines.uci_client import UciClient, UciPlayer
from tests.lab.processes import has_ended
from tests.play.bad_engines import program

GAME = load_game("chess")
STOCKFISH = find_program("stockfish")
MATE_IN_ONE = "6k1/5ppp/8/8/8/8/8/R5K1 w - - 0 1"


@pytest.fixture
def stockfish() -> Path:
    if STOCKFISH is None:
        pytest.skip("Stockfish is not installed (Debian: apt-get install stockfish)")
    return STOCKFISH


def test_an_engine_finds_a_mate_and_continues_from_the_moves_of_a_game(stockfish: Path) -> None:
    with UciClient([stockfish], ["setoption name Hash value 1"]) as engine:
        assert engine.name.startswith("Stockfish") and engine.ranges["hash"][0] == 1
        assert engine.best_move(MATE_IN_ONE, [], "nodes 1000") == "a1a8"
        assert engine.best_move("6k1/5ppp/8/8/8/8/R7/6K1 w - - 0 1", ["a2a1", "g8h8"], "nodes 1000") == "a1a8"


def test_an_engine_plays_many_games_each_with_its_own_past(stockfish: Path) -> None:
    start = position_from_fen(GAME, "k7/8/1K6/8/8/8/8/7R w - - 0 1")
    state = start.copy()
    moves = []
    for text in ("h1h2", "a8b8"):
        moves.append(action_of_uci(state, text))
        GAME.play(state, moves[-1])
    with UciClient([stockfish]) as engine:
        player = UciPlayer(GAME, engine, "nodes 2000")
        mate, first = player.choose_with_history(
            position_states(fen_of(state), fen_of(start)), position_states(fen_of(start), fen_of(start)), [moves, []]
        )
    assert mate == action_of_uci(state, "h2h8") and first == action_of_uci(start, "h1h8")


def position_states(*fens: str) -> States:
    return np.stack([position_from_fen(GAME, fen) for fen in fens])


@pytest.mark.medium
def test_levels_are_those_of_the_engine(stockfish: Path) -> None:
    with UciClient([stockfish]) as engine:
        least, greatest = engine.ranges["uci_elo"]
    rungs = make_stockfish_entrants(stockfish, [], movetime=None, nodes=100)
    assert [rung.name for rung in rungs] == [f"stockfish-{least}", "stockfish-1700"]
    assert [rung.name for rung in make_stockfish_entrants(stockfish, [2000, least], movetime=5, nodes=100)] == [
        f"stockfish-{least}",
        "stockfish-2000",
    ]
    with pytest.raises(
        ValueError, match=f"--stockfish-levels: Stockfish .* has levels from {least} to {greatest}, not 800"
    ):
        make_stockfish_entrants(stockfish, [800], movetime=None, nodes=100)


def test_a_program_that_is_missing_or_ends_at_once_is_reported(tmp_path: Path) -> None:
    with pytest.raises(EngineFailed, match="cannot be started: No such file"):
        UciClient([tmp_path / "nothing"])
    with pytest.raises(EngineFailed, match=r"has ended with exit code 3 when it was told 'uci': no network file"):
        UciClient([program(tmp_path, "echo no network file >&2", "exit 3")])


@pytest.mark.medium
def test_a_silent_program_is_not_waited_for(tmp_path: Path) -> None:
    with pytest.raises(EngineFailed, match="has not answered 'uciok' to 'uci' in time"):
        UciClient([program(tmp_path, "exec sleep 100")], seconds=0.3)


GREETING = ("read line", "echo uciok", "read line", "echo readyok", "read line", "read line", "read line")


@pytest.mark.parametrize(
    ("answer", "complaint"),
    [
        ("echo bestmove e2e5", "answered bestmove e2e5: e2e5 is not legal"),
        ("echo bestmove hello", "answered bestmove hello: 'hello' is not a move"),
        ("echo bestmove", "answered 'bestmove' without a move"),
        (
            "echo Segmentation fault >&2; exit 139",
            "ended with exit code 139 when it was told 'go nodes 1': Segmentation fault",
        ),
    ],
)
def test_invalid_answers_and_crashes_are_reported(tmp_path: Path, answer: str, complaint: str) -> None:
    with UciClient([program(tmp_path, *GREETING, answer, "exec sleep 100")]) as engine:
        player = UciPlayer(GAME, engine, "nodes 1")
        with pytest.raises(EngineFailed, match=complaint):
            player.choose(GAME.initial_states(1))


def test_an_option_that_an_engine_would_ignore_is_reported(stockfish: Path) -> None:
    with pytest.raises(EngineFailed, match=r"Stockfish .* has no option Skil Level"):
        UciClient([stockfish], ["setoption name Skil Level value 3"])
    with pytest.raises(EngineFailed, match=r"has skill level from 0 to 20, so .* would do nothing"):
        UciClient([stockfish], ["setoption name skill level value 50"])
    with UciClient([stockfish], ["setoption name skill level value 3", "setoption name Clear Hash"]) as engine:
        assert "skill level" in engine.options


def test_what_a_script_has_started_ends_with_it(tmp_path: Path) -> None:
    path = program(tmp_path, "sleep 1000 &", f"echo $! > {tmp_path / 'child'}", *GREETING[:4], "wait")
    with UciClient([path]):
        child = int((tmp_path / "child").read_text())
        os.kill(child, 0)
    until = time.monotonic() + 60
    while not has_ended(child):
        assert time.monotonic() < until
        time.sleep(0.02)


def test_an_engine_without_levels_cannot_be_limited(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="cannot be limited to a level: it has no option UCI_Elo"):
        make_stockfish_entrants(program(tmp_path, *GREETING), [], movetime=None, nodes=1)
