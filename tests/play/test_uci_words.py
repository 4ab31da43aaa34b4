"""The words of the Universal Chess Interface: parsing and output."""

import re

import pytest
from numba.core import event

from keima.compilation.shared_cache import WAIT
from keima.games import load_game
from keima.games.chess.board import CLOCK
from keima.games.chess.notation import position_from_fen
from keima.play.thinking import Thinker
from keima.play.time_keeping import Clock
from keima.play.uci.engine import UciEngine
from keima.play.uci.options import Options
from keima.play.uci.syntax import (
    BrokenCommand,
    GoArguments,
    format_score,
    moves_as_uci,
    parse_go,
    parse_position,
    parse_setoption,
    to_centipawns,
)
from keima.search.analysis import MoveAnalysis
from keima.search.baselines.alpha_beta import find_best_moves

CHESS = load_game("chess")


def go_of(text: str) -> GoArguments:
    return parse_go(text.split())


def position_of(text: str) -> tuple[str | None, tuple[str, ...]]:
    return parse_position(text.split())


def setoption_of(text: str) -> tuple[str, str]:
    return parse_setoption(text.split())


def line(value: float, plies: int | None = None) -> MoveAnalysis:
    return MoveAnalysis(action=0, visits=1, prior=0.5, value=value, plies=plies, actions=(0,))


def test_go_understands_all_limits() -> None:
    said = "wtime 1000 btime 2000 winc 10 binc 20 movestogo 5 depth 6 nodes 700 movetime 80 mate 9 ponder"
    assert go_of(said) == GoArguments(
        wtime=1000, btime=2000, winc=10, binc=20, movestogo=5, depth=6, nodes=700, movetime=80, mate=9, ponder=True
    )


def test_searchmoves_end_at_another_keyword() -> None:
    assert go_of("searchmoves e2e4 d2d4 nodes 5") == GoArguments(searchmoves=("e2e4", "d2d4"), nodes=5)
    assert go_of("infinite searchmoves e2e4") == GoArguments(searchmoves=("e2e4",), infinite=True)


@pytest.mark.parametrize("said", ["wtime", "wtime soon", "nodes 1e9", "nodes ²", "nodes " + "9" * 5000, "wtime nodes"])
def test_an_invalid_limit_is_skipped_and_reported(said: str) -> None:
    go = go_of(said)
    assert not go.has_limit
    assert go.complaints


def test_words_after_an_invalid_one_still_count() -> None:
    go = go_of("wtime nodes 7 quickly depth 3")
    assert (go.nodes, go.depth, len(go.complaints)) == (7, 3, 2)


def test_each_player_has_its_own_clock() -> None:
    go = go_of("wtime 1500 btime -20 winc 10 movestogo 0")
    assert go.clock(0) == Clock(remaining=1.5, increment=0.01)
    assert go.clock(1) == Clock(remaining=0.0)
    assert parse_go(["wtime", "5"]).clock(1) is None


def test_a_position_is_a_start_and_moves() -> None:
    assert position_of("startpos moves e2e4 E7E5") == (None, ("e2e4", "e7e5"))
    assert position_of("fen 8/8/8/8/8/8/8/K1k5 w - - 0 1") == ("8/8/8/8/8/8/8/K1k5 w - - 0 1", ())


@pytest.mark.parametrize("said", ["", "fen", "moves e2e4", "startpos e2e4", "endpos"])
def test_an_invalid_position_is_refused(said: str) -> None:
    with pytest.raises(BrokenCommand, match="startpos or fen"):
        position_of(said)


def test_names_and_values_of_options_may_have_several_words() -> None:
    assert setoption_of("name Move Overhead value 30") == ("Move Overhead", "30")
    assert setoption_of("name Clear Hash") == ("Clear Hash", "")
    for broken in ("", "name", "name value 3", "Hash value 3"):
        with pytest.raises(BrokenCommand):
            setoption_of(broken)


def test_options_have_types_and_bounds() -> None:
    options = Options(simulations=400)
    assert "option name Hash type spin default 256 min 1 max 4096" in options.announcements()
    options.set_option("move overhead", "30")
    assert (options.overhead, options.simulations) == (0.03, 400)
    for name, value in (("Hash", "0"), ("Hash", ""), ("Hash", "much"), ("Ponder", "perhaps"), ("Contempt", "1")):
        with pytest.raises(BrokenCommand, match="option"):
            options.set_option(name, value)


def test_values_are_reported_on_lc0_s_scale() -> None:
    assert [to_centipawns(value) for value in (0.0, 0.5, -0.5)] == [0, 89, -89]
    assert 12_000 < to_centipawns(1.0) == -to_centipawns(-1.0) < 13_000


def test_a_proven_end_is_reported_in_moves() -> None:
    assert format_score(line(0.5)) == "cp 89"
    assert [format_score(line(1.0, plies)) for plies in (1, 3, 5)] == ["mate 1", "mate 2", "mate 3"]
    assert [format_score(line(-1.0, plies)) for plies in (2, 4)] == ["mate -1", "mate -2"]


def test_moves_are_written_from_both_sides() -> None:
    state = CHESS.initial_state()
    played = CHESS.legal_actions(state)[:1].tolist()
    assert moves_as_uci(CHESS, state, played * 2) == ["a2a3", "a7a6"]
    assert (state == CHESS.initial_state()).all()


def test_a_draw_by_the_clock_that_nobody_claimed_is_no_error() -> None:
    fen = "8/8/4k3/8/8/4K3/4P3/8 w - - 104 90"
    with pytest.raises(ValueError, match="104 plies"):
        position_from_fen(CHESS, fen)
    assert position_from_fen(CHESS, fen, unclaimed=True)[CLOCK] == 100
    said = list[str]()
    engine = UciEngine(CHESS, name="Keima", think=lambda simulations: pytest.fail(), write=said.append, simulations=1)
    engine.handle_line(f"position fen {fen}", 0.0)
    assert not any("rejected" in line for line in said)


def test_a_gui_is_told_what_is_being_compiled() -> None:
    said = list[str]()

    def think(simulations: int) -> Thinker:
        with event.trigger_event(WAIT, data=find_best_moves):  # as when another process compiles it
            raise BrokenCommand("that is enough")

    engine = UciEngine(CHESS, name="Keima", think=think, write=said.append, simulations=1)
    engine.handle_line("isready", 0.0)
    assert re.fullmatch(r"info string compiling search \(1 of up to \d+\)", said[0])
