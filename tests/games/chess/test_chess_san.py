"""Moves in SAN: python-chess writes and reads the same ones, and loosely written files are read as they are meant."""

from collections.abc import Iterator

import chess
import numpy as np
import pytest

from keima.games import Game, load_game
from keima.games.chess.notation import action_of_uci, position_from_fen, uci_of
from keima.games.chess.san import action_of_san, play_and_name
from keima.games.game import IllegalAction, States
from tests.games.chess.test_chess_differential import STARTS, choose

CROWDED = [  # where names need files, ranks, or both
    "3k4/8/8/1Q3Q2/8/8/1Q3Q2/3K4 w - - 0 1",
    "k7/8/2N1N3/1N3N2/8/1N3N2/2N1N3/K7 w - - 0 1",
    "4k3/8/8/R6R/8/8/8/R3K2R w KQ - 0 1",
    "8/PPPPPPPP/8/k6K/8/8/pppppppp/8 b - - 0 1",
    "4k3/8/8/2pPpP2/8/8/8/4K3 w - e6 0 1",
    "1n1n1n1n/P1P1P1P1/8/k6K/8/8/1p1p1p1p/N1N1N1N1 w - - 0 1",
]
LONGEST = 60  # plies of a random game: all positions should occur, and long games are of little use


@pytest.fixture(scope="module")
def game() -> Game:
    return load_game("chess", max_plies=2_000, claim_draws=False)


def positions(game: Game, *, count: int, seed: int) -> Iterator[tuple[States, chess.Board]]:
    """Yield this many positions of random games, in both implementations."""
    random, starts, start = np.random.default_rng(seed), [*STARTS, *CROWDED], 0
    while True:
        board = chess.Board(starts[start % len(starts)])
        start += 1
        state = position_from_fen(game, board.fen())
        while not game.terminal(state) and len(board.move_stack) < LONGEST:
            yield state, board
            count -= 1
            if count == 0:
                return
            move = choose(random, board)
            game.play(state, action_of_uci(state, move.uci()))
            board.push(move)


@pytest.mark.medium
def test_every_move_of_random_positions_is_written_and_read_as_by_python_chess(game: Game) -> None:
    names = set()
    for state, board in positions(game, count=1_000, seed=1):
        for action in game.legal_actions(state).tolist():
            name = play_and_name(state.copy(), action)
            assert name == board.san(chess.Move.from_uci(uci_of(state, action)))
            assert action_of_san(state, name) == action
            names.add(name)
    assert {"O-O", "O-O-O"} <= {name.rstrip("+#") for name in names}
    assert any(name.endswith("#") for name in names)
    assert any("x" in name and "=" in name for name in names)


def spellings(board: chess.Board, move: chess.Move) -> Iterator[str]:
    """Return other ways to write a move that can only mean this one."""
    san, piece = board.san(move).rstrip("+#"), board.piece_at(move.from_square)
    assert piece is not None
    yield from (f"{san}!?", f"{san}+", f"{san}#!")
    if san.startswith("O"):
        yield from (san.replace("O", "0"), san.replace("O", "o"), san.replace("-", ""))
        return
    letter = piece.symbol().upper() if piece.piece_type != chess.PAWN else ""
    home, target, promotion = chess.square_name(move.from_square), chess.square_name(move.to_square), ""
    if move.promotion:
        promotion = chess.piece_symbol(move.promotion).upper()
        yield from (san.replace("=", ""), san.replace("=", "/"), f"{san[:-2]}({promotion})", san[:-1] + san[-1].lower())
    yield from (f"{letter}{home}{mark}{target}{promotion}" for mark in ("", "-", "x"))
    yield san.replace("x", "").replace("=", "")
    if not letter:
        yield f"P{home}{target}{promotion}"
    if board.is_en_passant(move):
        yield from (f"{san}e.p.", f"{san} e.p.", f"{san}ep")


@pytest.mark.medium
def test_loosely_written_moves_are_read_as_they_are_meant(game: Game) -> None:
    seen = set()
    for state, board in positions(game, count=400, seed=2):
        for move in board.legal_moves:
            for text in spellings(board, move):
                assert uci_of(state, action_of_san(state, text)) == move.uci(), (text, board.fen())
                seen.add(text[-4:])
    assert {"e.p."} <= seen


@pytest.mark.medium
def test_neither_program_reads_an_invalid_move(game: Game) -> None:
    """Moves of one position, tried in others."""
    names, refused = (
        [name for _, board in positions(game, count=30, seed=3) for name in map(board.san, board.legal_moves)],
        0,
    )
    for state, board in positions(game, count=40, seed=4):
        for name in names[:: 1 + len(names) // 300]:
            try:
                theirs = board.parse_san(name).uci()
            except ValueError:
                theirs = ""
            try:
                ours = uci_of(state, action_of_san(state, name))
            except ValueError:
                ours = ""
            assert ours == theirs, (name, board.fen())
            refused += not ours
    assert refused > 1_000


@pytest.mark.parametrize("text", ["", "e9", "Nf", "O-O-O-O", "--", "Z0", "hello", "e4e5e6", "Ke8=Q9", "1-0", "♘f3"])
def test_text_that_is_not_a_move_is_refused(game: Game, text: str) -> None:
    with pytest.raises(ValueError, match="is not a move in SAN"):
        action_of_san(game.initial_state(), text)


@pytest.mark.parametrize("text", ["e5", "Nd2", "O-O", "Qh5", "e4=Q", "exd3"])
def test_an_illegal_move_is_refused(game: Game, text: str) -> None:
    with pytest.raises(IllegalAction, match="is not legal in rnbqkbnr"):
        action_of_san(game.initial_state(), text)


def test_an_ambiguous_move_is_refused(game: Game) -> None:
    state = position_from_fen(game, "4k3/8/8/8/8/8/8/RN2KN2 w - - 0 1")
    with pytest.raises(IllegalAction, match="Nd2 could be several moves"):
        action_of_san(state, "Nd2")
    assert uci_of(state, action_of_san(state, "Nbd2")) == "b1d2"


def test_a_promotion_must_name_its_piece(game: Game) -> None:
    state = position_from_fen(game, "7k/P7/8/8/8/8/8/K7 w - - 0 1")
    with pytest.raises(IllegalAction, match="a8 is not legal"):
        action_of_san(state, "a8")


def test_an_illegal_action_has_no_name_and_is_not_played(game: Game) -> None:
    state = game.initial_state()
    before = state.copy()
    with pytest.raises(IllegalAction, match="action 0 is not legal"):
        play_and_name(state, 0)
    assert np.array_equal(state, before)


def test_people_continue_after_a_draw_but_not_beyond_the_move_limit(game: Game) -> None:
    state = position_from_fen(load_game("chess"), "4k3/8/8/8/8/8/8/4K3 w - - 99 80")
    assert game.terminal(state)
    assert play_and_name(state, action_of_san(state, "Kd1")) == "Kd1"
    with pytest.raises(IllegalAction, match="Kd8 is not legal"):
        action_of_san(state, "Kd8")
