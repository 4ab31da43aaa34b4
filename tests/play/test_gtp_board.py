"""The board, the clocks and the words of the Go engine, without the engine."""

import subprocess
from pathlib import Path

import numpy as np
import pytest

from keima.games import Game, load_game
from keima.games.go.playouts import estimate_ownership
from keima.games.go.setup import make_position, stones_on_board, with_komi, with_player
from keima.games.go.sgf import sgf_text
from keima.play.gtp.board import GtpBoard, handicap_points
from keima.play.gtp.clock import PlayerClock, TimeSettings, parse_kgs_time_settings, parse_time_settings
from keima.play.gtp.syntax import (
    GtpCommand,
    GtpError,
    format_info,
    parse_analysis_options,
    parse_command,
    parse_player,
    parse_vertex,
)
from keima.play.time_keeping import Clock, allot_seconds
from keima.search.analysis import MoveAnalysis
from tests.games.go.naive_go import NaiveGo
from tests.programs import GNU_GO, needs_gnu_go


@pytest.fixture(scope="module")
def game() -> Game:
    return load_game("go", size=7, komi=4.5, max_plies=490)


@pytest.fixture
def board(game: Game) -> GtpBoard:
    return GtpBoard(game)


def play(board: GtpBoard, game: Game, *moves: str) -> None:
    for move in moves:
        color, vertex = move.split()
        board.play(parse_player(color), parse_vertex(game, vertex))


def shown(board: GtpBoard) -> list[str]:
    return ["".join(".XO"[stone] for stone in row) for row in stones_on_board(board.state)]


def test_a_position_that_was_set_up_continues_like_one_that_was_played(game: Game) -> None:
    random, naive, state = np.random.default_rng(1), NaiveGo(**game.options), game.initial_state()
    for _ in range(30):
        action = int(random.choice(game.legal_actions(state)))
        game.play(state, action)
        naive.apply_action(action)
    board = stones_on_board(state)
    black, white = (np.flatnonzero(board.ravel() == color).tolist() for color in (1, 2))
    again = make_position(game, black, white, player=naive.current_player())
    assert (stones_on_board(again) == board).all()
    for _ in range(10):
        legal = game.legal_actions(again)
        action = int(random.choice(legal))
        assert action in game.legal_actions(state)  # which knows more positions that may not be repeated
        game.play(again, action)
        game.play(state, action)
        assert (stones_on_board(again) == stones_on_board(state)).all()


def test_stones_without_liberties_and_two_on_one_point_cannot_be_set_up(game: Game) -> None:
    with pytest.raises(ValueError, match="without liberties"):
        make_position(game, [1, 7], [0], player=0)
    with pytest.raises(ValueError, match="two stones on A7"):
        make_position(game, [0], [0], player=0)


def test_a_small_table_of_positions_does_not_overflow() -> None:
    tiny = load_game("go", size=9, max_plies=4)
    assert (stones_on_board(make_position(tiny, range(36), range(45, 81), player=0)) > 0).sum() == 72


def test_moves_may_be_out_of_turn_and_after_two_passes(board: GtpBoard, game: Game) -> None:
    play(board, game, "b D4", "b D5", "w C4", "w pass", "b pass", "b E4", "w E5")
    assert shown(board)[2:4] == ["...XO..", "..OXX.."]
    state = with_player(board.state, 1)
    assert not game.terminal(state) and game.current_player(state) == 1
    assert (with_player(state, 1) == state).all()


def test_illegal_moves_stay_illegal(board: GtpBoard, game: Game) -> None:
    play(board, game, "w A7", "b B7", "b A6")
    assert shown(board)[:2] == [".X.....", "X......"]  # A7 was captured
    for move in ("w B7", "w A7"):
        with pytest.raises(GtpError, match="illegal move"):
            play(board, game, move)


def test_moves_are_undone_one_by_one(board: GtpBoard, game: Game) -> None:
    play(board, game, "b D4", "w E5")
    board.undo()
    assert sum(row.count("O") for row in shown(board)) == 0
    assert board.player == 1
    board.undo()
    with pytest.raises(GtpError, match="cannot undo"):
        board.undo()


def test_the_komi_takes_effect_at_once_and_is_kept(board: GtpBoard, game: Game) -> None:
    play(board, game, "b D4")
    assert board.final_score() == "B+44.5"
    board.set_komi(49)
    assert board.final_score() == "0"
    board.begin()
    assert board.final_score() == "W+49"
    for komi in (0.25, 50):
        with pytest.raises(GtpError, match="syntax error: komi must be"):
            board.set_komi(komi)


@pytest.mark.parametrize("size", [7, 8, 9, 11, 12, 13, 19])
@needs_gnu_go
def test_handicap_stones_are_where_gnu_go_puts_them(size: int) -> None:
    game, counts = load_game("go", size=size), range(1, 11)
    said = "".join(f"boardsize {size}\nclear_board\nfixed_handicap {count}\n" for count in counts)
    answered = subprocess.run(
        [str(GNU_GO), "--mode", "gtp"], input=said, capture_output=True, text=True, check=True, timeout=100
    ).stdout
    for count, answer in zip(counts, answered.split("\n\n")[2::3], strict=True):
        if answer.startswith("?"):
            with pytest.raises(GtpError, match="invalid number of stones"):
                handicap_points(size, count)
        else:
            assert sorted(answer.split()[1:]) == sorted(
                game.action_name(point) for point in handicap_points(size, count)
            )


def test_a_file_is_set_up_to_the_requested_move_or_not_at_all(board: GtpBoard, game: Game, tmp_path: Path) -> None:
    path, bad = tmp_path / "a game.sgf", tmp_path / "bad.sgf"
    path.write_text("(;SZ[7]KM[2]AB[aa][bb]AW[gg]PL[W];W[ee];B[dd];W[])", encoding="utf-8")
    board.load(path, None)
    assert [shown(board)[row] for row in (0, 1, 3, 4, 6)] == ["X......", ".X.....", "...X...", "....O..", "......O"]
    assert board.player == 0
    board.load(path, 2)
    assert sum(row.count("X") for row in shown(board)) == 2
    assert board.final_score() == "W+2"
    for text, reason in (
        ("(;SZ[9])", "its board is 9 x 9"),
        ("(;SZ[7];B[aa];W[aa])", "move 2, A7: illegal move"),
        ("", "no game in SGF"),
    ):
        bad.write_text(text, encoding="utf-8")
        with pytest.raises(GtpError, match=f"cannot load file: .*{reason}"):
            board.load(bad, None)
        assert board.final_score() == "W+2"
    with pytest.raises(GtpError, match="cannot load file"):
        board.load(tmp_path / "nothing.sgf", None)
    path.write_text(sgf_text(game, [0, 1, 2], tags={}, result="?"), encoding="utf-8")
    board.load(path, None)
    assert shown(board)[0] == "XOX...."


def test_dead_stones_are_found_and_no_living_ones(board: GtpBoard, game: Game) -> None:
    wall = [f"b {column}{row}" for row in range(1, 8) for column in "CE"]
    play(board, game, *wall, "w G4", "w G5", "b pass")
    assert sorted(game.action_name(point) for point in board.liberties_of_dead(0)) == ["F4", "F5", "G3", "G6"]
    assert board.liberties_of_dead(1) == []
    sure = estimate_ownership(game, with_player(board.state, 0))
    assert sure.shape == (7, 7) and (sure > 0.5).all()


def test_chains_are_distinguished(board: GtpBoard, game: Game) -> None:
    play(board, game, "b A1", "b A2", "w C3", "b G7")
    assert sorted(len(chain) for chain in board.find_chains()) == [1, 1, 2]


def test_a_copy_has_its_own_komi(game: Game) -> None:
    state = game.initial_state()
    assert (with_komi(state, 0) != state).any()
    assert (state == game.initial_state()).all()


# Words.


def test_lines_are_parsed_as_the_protocol_defines_them() -> None:
    for line in ("", "   ", "# a comment", "\x01\x02", "12"):
        assert parse_command(line) is None
    assert parse_command("12 play\tB  D4 # here") == GtpCommand(identity="12", name="play", words=("B", "D4"))
    assert parse_command("\x07na\x00me") == GtpCommand(identity="", name="name", words=())


def words(text: str) -> list[str]:
    return text.split()


def line(game: Game, move: str, visits: int, value: float) -> MoveAnalysis:
    action = game.parse_action(move)
    return MoveAnalysis(
        action=action, visits=visits, prior=0.25, value=value, plies=None, actions=(action, game.parse_action("pass"))
    )


def test_an_analysis_has_the_format_of_leela_zero_and_katago(game: Game) -> None:
    lines = [line(game, "D4", 7, 0.5), line(game, "C3", 1, -1.0)]
    assert format_info(game, lines, kata=False, score_leads={}) == (
        "info move D4 visits 7 winrate 7500 prior 2500 lcb 7500 order 0 pv D4 pass "
        "info move C3 visits 1 winrate 0 prior 2500 lcb 0 order 1 pv C3 pass"
    )
    assert format_info(game, lines[:1], kata=True, score_leads={}) == (
        "info move D4 visits 7 utility 0.500000 winrate 0.750000 prior 0.250000 lcb 0.750000 order 0 pv D4 pass"
    )


def test_points_and_ownership_have_katago_s_format(game: Game) -> None:
    lines = [line(game, "D4", 7, 0.5), line(game, "C3", 1, -1.0)]
    told = format_info(
        game, lines, kata=True, score_leads={lines[0].action: -2.25}, ownership=np.linspace(1, -1, 49, dtype=np.float32)
    )
    first, second = told.removeprefix("info ").split(" info ")
    assert "winrate 0.750000 scoreMean -2.2500 scoreLead -2.2500 prior" in first and "score" not in second
    found = [float(word) for word in second.partition(" ownership ")[2].split()]
    assert found == pytest.approx(np.linspace(1, -1, 49), abs=1e-4)


@pytest.mark.parametrize(
    ("text", "player", "seconds", "most"),
    [
        ("", 0, None, 1000),
        ("50", 0, 0.5, 1000),
        ("W", 1, None, 1000),
        ("white 10 maxmoves 3", 1, 0.1, 3),
        ("b interval 20", 0, 0.2, 1000),
        ("interval 100 ownership true rootInfo true", 0, 1.0, 1000),
    ],
)
def test_an_analysis_can_be_requested_in_many_ways(
    game: Game, text: str, player: int, seconds: float | None, most: int
) -> None:
    wanted = parse_analysis_options(game, words(text), player=0, kata=False)
    assert (wanted.player, wanted.seconds, wanted.max_moves, wanted.allowed) == (
        player,
        seconds and pytest.approx(seconds),
        most,
        None,
    )


def test_ownership_is_from_the_mover_s_view_as_in_katago(game: Game) -> None:
    asked = [(text, kata) for text in ("ownership true", "ownership FALSE", "") for kata in (True, False)]
    assert [parse_analysis_options(game, words(text), player=0, kata=kata).ownership for text, kata in asked] == [
        True
    ] + 5 * [False]


def test_moves_can_be_allowed_and_avoided(game: Game) -> None:
    wanted = parse_analysis_options(game, words("B 10 allow B D4,E5 1 avoid B E5 9 avoid W D4 9"), player=1, kata=True)
    assert wanted.allowed == frozenset([game.parse_action("D4")])
    for text in ("xyzzy 3", "interval", "interval x", "allow B D4", "allow B Z9 1", "maxmoves 0", "ownership maybe"):
        with pytest.raises(GtpError, match="syntax error"):
            parse_analysis_options(game, words(text), player=0, kata=False)


# Clocks.


def settings(text: str) -> TimeSettings | None:
    command = parse_command(text)
    assert command is not None
    return (parse_kgs_time_settings if command.name.startswith("kgs") else parse_time_settings)(command)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("time_settings 60 0 0", TimeSettings(main=60)),
        ("time_settings 0 10 5", TimeSettings(main=0, period=10, moves=5)),
        ("time_settings 60 10 0", None),
        ("kgs-time_settings none", None),
        ("kgs-time_settings absolute 30", TimeSettings(main=30)),
        ("kgs-time_settings byoyomi 60 10 3", TimeSettings(main=60, period=10, periods=3)),
        ("kgs-time_settings canadian 60 100 20", TimeSettings(main=60, period=100, moves=20)),
    ],
)
def test_time_settings_are_understood(text: str, expected: TimeSettings | None) -> None:
    assert settings(text) == expected


@pytest.mark.parametrize(
    "text", ["time_settings 60 0", "time_settings x 0 0", "kgs-time_settings", "kgs-time_settings byoyomi 3"]
)
def test_other_time_settings_are_refused(text: str) -> None:
    with pytest.raises(GtpError, match="syntax error"):
        settings(text)


@pytest.mark.parametrize(
    "given",
    [
        TimeSettings(main=5),
        TimeSettings(main=5, period=1, moves=5),
        TimeSettings(main=0, period=2, moves=3),
        TimeSettings(main=3, period=0.5, periods=2),
    ],
)
def test_no_game_is_lost_on_a_clock_that_is_not_reported(given: TimeSettings) -> None:
    """A referee that counts as the protocol does, and a player whose moves take all their time and the overhead."""
    player, main, left, moves, periods = PlayerClock(given), given.main, given.period, given.moves, given.periods
    for _ in range(100):
        spent = allot_seconds(player.clock, 0.01) + 0.005
        if main > 0 or given.period == 0:
            main -= spent
            spent = max(-main, 0.0) if given.period else 0.0
            assert given.period or main > 0
        if main <= 0 and given.period:
            left -= spent
            moves -= 1
            while left <= 0:
                periods -= 1
                left += given.period
            assert periods > 0
            if moves == 0:
                left, moves = given.period, given.moves
            if given.periods > 1:
                left = given.period
        player.subtract_move_time(0.005 + allot_seconds(player.clock, 0.01))


def test_reported_time_takes_precedence() -> None:
    clock = PlayerClock(TimeSettings(main=100, period=10, moves=5))
    clock.set_remaining(7.0, 0)
    assert clock.clock == Clock(remaining=9.0, increment=2.0)
    clock.set_remaining(6.0, 3)
    assert clock.clock == Clock(remaining=6.0, moves_to_go=3)
    clock.subtract_move_time(2.0)
    assert clock.clock == Clock(remaining=4.0, moves_to_go=2)
