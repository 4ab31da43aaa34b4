"""Keima as a chess engine, driven by python-chess, which knows nothing of Keima."""

import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import chess
import chess.engine
import pytest

from keima.games import load_game
from tests.programs import command
from tests.small_run import saved_model
from tests.stopwatch import Stopwatch

PATIENCE = 400.0  # seconds, for a machine that is also busy with other work

SECONDS, INCREMENT = 0.5, 0.01
LONGEST = 120  # plies of a game here: untrained networks do not end games
ROOK_MATE = "6k1/5ppp/8/8/8/8/8/R3K3 w - - 0 1"
FIFTY_MOVES, BARE_KINGS = "4k3/8/8/8/8/8/3R4/4K3 w - - 100 80", "4k3/8/8/8/8/8/8/4K3 w - - 0 1"


pytestmark = [pytest.mark.medium, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def engine_command(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    path = saved_model(tmp_path_factory.mktemp("model") / "tiny.safetensors", load_game("chess"))
    return [*command("uci", path)]


def start(engine_command: list[str]) -> chess.engine.SimpleEngine:
    engine = chess.engine.SimpleEngine.popen_uci(engine_command, timeout=PATIENCE)
    engine.ping()
    return engine


@pytest.fixture(scope="module")
def engine(engine_command: list[str]) -> Iterator[chess.engine.SimpleEngine]:
    with start(engine_command) as engine:
        yield engine


def test_a_position_is_analysed(engine: chess.engine.SimpleEngine) -> None:
    board = chess.Board()
    (info,) = engine.analyse(board, chess.engine.Limit(nodes=300), multipv=1)
    assert info["nodes"] == 300
    assert {"depth", "nps", "time", "score", "pv"} <= set(info)
    for move in info["pv"]:
        board.push(move)
    assert len(info["pv"]) == info["depth"]


def test_several_lines_of_play_are_reported(engine: chess.engine.SimpleEngine) -> None:
    infos = engine.analyse(chess.Board(), chess.engine.Limit(nodes=100), multipv=3)
    assert len({info["pv"][0] for info in infos}) == 3


def test_a_mate_is_announced(engine: chess.engine.SimpleEngine) -> None:
    result = engine.play(chess.Board(ROOK_MATE), chess.engine.Limit(nodes=3000), info=chess.engine.INFO_ALL)
    assert result.move == chess.Move.from_uci("a1a8")
    assert result.info["score"].white() == chess.engine.Mate(1)


def test_only_the_requested_moves_are_searched(engine: chess.engine.SimpleEngine) -> None:
    only = [chess.Move.from_uci("a2a3"), chess.Move.from_uci("h2h3")]
    assert engine.play(chess.Board(), chess.engine.Limit(nodes=30), root_moves=only).move in only


def test_an_answer_names_the_move_to_ponder_on_and_pondering_ends_either_way(engine: chess.engine.SimpleEngine) -> None:
    board, clock = chess.Board(), chess.engine.Limit(white_clock=10, black_clock=10, white_inc=0.1, black_inc=0.1)
    enough = chess.engine.Limit(white_clock=600, black_clock=600, nodes=300)  # for a move to ponder on
    for hit, limit in ((False, enough), (True, enough), (True, clock)):  # a limit also ends the pondering on its move
        result = engine.play(board, limit, ponder=True)
        assert result.move is not None and result.ponder is not None
        board.push(result.move)
        board.push(result.ponder if hit else next(move for move in board.legal_moves if move != result.ponder))
    assert engine.play(board, clock, ponder=True).move in board.legal_moves
    assert engine.play(board, chess.engine.Limit(nodes=1)).move in board.legal_moves


def test_an_endless_analysis_is_stopped_at_once(engine: chess.engine.SimpleEngine) -> None:
    with engine.analysis(chess.Board()) as analysis:
        for info in analysis:
            if info.get("nodes", 0) > 50:
                break
        analysis.stop()
        stopwatch = Stopwatch(pid_of(engine))
        assert analysis.wait().move is not None
    assert stopwatch.seconds() < 1


def test_a_decided_position_waits_for_stop(engine: chess.engine.SimpleEngine) -> None:
    board, began = chess.Board(ROOK_MATE), time.monotonic()
    engine.play(board, chess.engine.Limit(nodes=3000))
    taken = time.monotonic() - began
    with engine.analysis(board) as analysis:
        time.sleep(max(0.3, 3 * taken))
        while not analysis.would_block():
            assert analysis.next() is not None, "it moved before it was told to stop"
        analysis.stop()
        assert analysis.wait().move == chess.Move.from_uci("a1a8")


@pytest.mark.parametrize(
    "limit",
    [
        chess.engine.Limit(time=0.3),
        chess.engine.Limit(depth=3),
        chess.engine.Limit(white_clock=3, black_clock=3, remaining_moves=10),
    ],
)
def test_every_limit_is_respected(engine: chess.engine.SimpleEngine, limit: chess.engine.Limit) -> None:
    stopwatch = Stopwatch(pid_of(engine))
    assert engine.play(chess.Board(), limit).move in chess.Board().legal_moves
    assert stopwatch.seconds() < 3


def pid_of(engine: chess.engine.SimpleEngine) -> int:
    pid = engine.transport.get_pid()
    assert pid is not None
    return pid


def play_game(engines: list[chess.engine.SimpleEngine], game: int) -> float:
    """Play a timed game; return the lowest reading of either clock, which stands while others use the processor."""
    board, clocks, poorest = chess.Board(), [SECONDS, SECONDS], SECONDS
    while not board.is_game_over(claim_draw=True) and board.ply() < LONGEST:
        limit = chess.engine.Limit(
            white_clock=max(clocks[0], 0.001),
            black_clock=max(clocks[1], 0.001),
            white_inc=INCREMENT,
            black_inc=INCREMENT,
        )
        mover = board.ply() % 2
        engine = engines[(game + mover) % 2]
        stopwatch = Stopwatch(pid_of(engine))
        result = engine.play(board, limit, game=game)
        clocks[mover] -= stopwatch.seconds()
        poorest = min(poorest, clocks[mover])
        clocks[mover] += INCREMENT
        assert result.move in board.legal_moves
        board.push(result.move)
    return poorest


def test_fast_games_are_not_lost_on_time(engine: chess.engine.SimpleEngine) -> None:
    assert min(play_game([engine, engine], game) for game in range(2)) > 0


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_none_of_a_hundred_fast_games_is_lost_on_time(engine_command: list[str]) -> None:
    with start(engine_command) as white, start(engine_command) as black:
        poorest = [play_game([white, black], game) for game in range(100)]
    assert not [left for left in poorest if left <= 0]


# Without python-chess: input that a proper client never sends.


def talk(engine_command: list[str], *lines: str) -> subprocess.CompletedProcess[str]:
    said = "".join(f"{line}\n" for line in lines)
    return subprocess.run(engine_command, input=said, capture_output=True, text=True, timeout=PATIENCE, check=False)


@pytest.mark.slow
def test_invalid_input_is_reported_and_skipped(engine_command: list[str]) -> None:
    answer = talk(
        engine_command,
        *(
            "uci",
            "xyzzy",
            "joho isready",
            "setoption name Contempt value 3",
            "setoption name Hash value lots",
            "setoption",
        ),
        *("position startpos moves e2e4 e2e4", "position fen rubbish", "position", "ponderhit", "stop"),
        *(
            "position startpos moves e2e4",
            "go searchmoves e2e4 e7e5 nodes soon depth 1",
            "position fen k7/8/1K6/8/8/8/8/7R b - - 0 1 moves a8b8",
        ),
        *(
            "position fen 7k/5Q2/6K1/8/8/8/8/8 b - - 0 1",
            "go nodes 5",
            "position fen R5k1/5ppp/8/8/8/8/8/4K3 b - - 0 1",
            "go infinite",
            "stop",
        ),
        *("go wtime 0 btime 0", "quit", "go"),
    )
    assert answer.returncode == 0
    assert re.fullmatch(r"(keima uci: (loading|compiling) .*\n)*", answer.stderr)
    lines = answer.stdout.splitlines()
    assert all(line.split()[0] in {"id", "option", "uciok", "readyok", "info", "bestmove"} for line in lines)
    assert [line.split()[1] for line in lines if line.startswith("bestmove")] == ["e7e5", "(none)", "(none)", "(none)"]
    for told in (
        "'xyzzy'",
        "no option 'Contempt'",
        "Hash cannot be 'lots'",
        "setoption expects name",
        "move 2: e2e4 is not legal",
    ):
        assert any(told in line for line in lines if line.startswith("info string")), told
    assert "info depth 0 score mate 0" in lines and "info depth 0 score cp 0" in lines


def test_a_game_continues_after_a_draw_that_neither_side_claims(engine: chess.engine.SimpleEngine) -> None:
    boards, repeated = [chess.Board(FIFTY_MOVES), chess.Board(BARE_KINGS)], chess.Board()
    for times in (1, 2, 3):
        for move in ("g1f3", "g8f6", "f3g1", "f6g8"):
            repeated.push_uci(move)
        assert repeated.is_repetition(times + 1)
        boards.append(repeated.copy())
    for board in boards:
        assert engine.play(board, chess.engine.Limit(nodes=10)).move in board.legal_moves


@pytest.mark.slow
def test_the_end_of_the_input_ends_the_program_during_a_search(engine_command: list[str]) -> None:
    answer = talk(engine_command, "isready", "go infinite")
    assert answer.returncode == 0
    assert answer.stdout.splitlines()[-1].startswith("bestmove ")


def test_only_chess_networks_speak_uci(tmp_path: Path) -> None:
    path = saved_model(tmp_path / "other.safetensors", load_game("tic_tac_toe"))
    refused = talk([*command("uci", path)], "uci")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "the Universal Chess Interface is for chess, and this model plays tic_tac_toe" in refused.stderr
