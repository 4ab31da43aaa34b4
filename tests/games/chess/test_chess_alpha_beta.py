"""Chess players without learning: the search finds what a plain one over another program's rules finds."""

from collections.abc import Iterator

import chess
import numpy as np
import pytest

from keima.games import Game, load_game
from keima.games.chess.alpha_beta import DEEPEST, MATE, find_best_chess_moves
from keima.games.chess.material import choose_greedy_actions
from keima.games.chess.notation import action_of_uci, fen_of, position_from_fen, uci_of
from keima.games.game import States

GAME = load_game("chess")
VALUES = {chess.PAWN: 100, chess.KNIGHT: 320, chess.BISHOP: 330, chess.ROOK: 500, chess.QUEEN: 900, chess.KING: 0}


def balance(board: chess.Board) -> int:
    return sum(
        VALUES[piece.piece_type] * (1 if piece.color == board.turn else -1) for piece in board.piece_map().values()
    )


def forcing_moves(board: chess.Board) -> Iterator[chess.Move]:
    return (move for move in board.legal_moves if board.is_capture(move) or move.promotion)


def plain_value(board: chess.Board, depth: int, ply: int = 0) -> int:
    """Return minimax to the depth, then over forcing moves, or in check over all; a player who is not in check may also
    stop there.
    """
    if board.is_checkmate():
        return ply - MATE
    if board.is_stalemate() or board.is_insufficient_material() or board.halfmove_clock >= 100:
        return 0
    quiet = depth <= 0 and not board.is_check()
    best = balance(board) if quiet else -MATE
    for move in list(forcing_moves(board) if quiet else board.legal_moves):
        board.push(move)
        best = max(best, -plain_value(board, depth - 1, ply + 1))
        board.pop()
    return best


def plain_search(fen: str, depth: int) -> tuple[int, set[str]]:
    board, values = chess.Board(fen), {}
    for move in list(board.legal_moves):
        board.push(move)
        values[move.uci()] = -plain_value(board, depth - 1, 1)
        board.pop()
    best = max(values.values())
    return best, {move for move, value in values.items() if value == best}


def found(fen: str, depth: int) -> tuple[int, set[str]]:
    state = position_from_fen(GAME, fen)
    seen = find_best_chess_moves(GAME, state[None], depth=depth)
    return int(seen.values[0]), {uci_of(state, int(action)) for action in seen.actions[0, : seen.counts[0]]}


def some_positions(*, count: int, pieces: int, seed: int) -> list[str]:
    """Return positions with at most this many pieces, from random games."""
    random, fens, state = np.random.default_rng(seed), list[str](), GAME.initial_state()
    while len(fens) < count:
        if GAME.terminal(state):
            state = GAME.initial_state()
        elif sum(letter.isalpha() for letter in fen_of(state).split()[0]) <= pieces and random.random() < 0.05:
            fens.append(fen_of(state))
            state = GAME.initial_state()
        else:
            GAME.play(state, int(random.choice(GAME.legal_actions(state))))
    return fens


@pytest.mark.medium
@pytest.mark.parametrize(
    ("depth", "pieces", "count"), [(1, 14, 4), pytest.param(2, 9, 8, marks=pytest.mark.slow), (3, 5, 2)]
)
def test_it_finds_the_same_as_a_plain_search(depth: int, pieces: int, count: int) -> None:
    for fen in some_positions(count=count, pieces=pieces, seed=depth):
        assert found(fen, depth) == plain_search(fen, depth), fen


def test_it_sees_promotions_en_passant_and_castling() -> None:
    for fen in (
        "8/P7/8/8/8/7k/8/K7 w - - 0 1",
        "7k/8/8/8/1pP5/8/8/K7 b - c3 0 1",
        "r3k3/8/8/8/8/8/8/R3K2R w KQq - 0 1",
        "7k/5Q2/8/6K1/8/8/8/8 w - - 0 1",
        "8/8/8/8/8/5k2/7p/5K2 b - - 99 80",
    ):
        for depth in (1, 2):
            assert found(fen, depth) == plain_search(fen, depth), fen


def test_it_mates_as_soon_as_it_can() -> None:
    assert found("6k1/5ppp/8/8/8/8/8/R5K1 w - - 0 1", 1) == (MATE - 1, {"a1a8"})
    in_two = "7k/8/4K3/8/8/8/8/6Q1 w - - 0 1"
    value, best = found(in_two, 3)
    assert value == MATE - 3
    state = position_from_fen(GAME, in_two)
    GAME.play(state, action_of_uci(state, min(best)))
    assert find_best_chess_moves(GAME, state[None], depth=2).values[0] == 2 - MATE


def test_it_captures_hanging_pieces_and_leaves_guarded_ones() -> None:
    assert found("4k3/8/8/3r4/8/8/8/3RK3 w - - 0 1", 1)[1] == {"d1d5"}
    assert "d1d5" not in found("4k3/8/4p3/3n4/8/8/8/3RK3 w - - 0 1", 1)[1]


def test_it_avoids_a_third_repetition() -> None:
    """A player who is far ahead does not repeat, which the board alone does not show."""
    state = position_from_fen(GAME, "q5k1/8/8/8/8/8/8/6K1 w - - 0 1")
    for text in ("g1h2", "g8f8", "h2g1", "f8g8", "g1h2", "g8f8", "h2g1"):
        GAME.play(state, action_of_uci(state, text))
    back = action_of_uci(state, "f8g8")
    seen = find_best_chess_moves(GAME, state[None], depth=1)
    assert back not in seen.actions[0, : seen.counts[0]] and seen.values[0] > 0
    GAME.play(state, back)
    assert GAME.terminal(state)


def test_states_are_left_unchanged_and_many_are_answered_at_once() -> None:
    states = np.stack([position_from_fen(GAME, fen) for fen in some_positions(count=6, pieces=20, seed=5)])
    before = states.copy()
    together = find_best_chess_moves(GAME, states, depth=2)
    assert np.array_equal(states, before)
    for i, state in enumerate(states):
        alone = find_best_chess_moves(GAME, state[None], depth=2)
        assert together.values[i] == alone.values[0]
        assert set(together.actions[i, : together.counts[i]]) == set(alone.actions[0, : alone.counts[0]])
        assert set(together.actions[i, : together.counts[i]]) <= set(GAME.legal_actions(state))


@pytest.mark.parametrize("depth", [0, DEEPEST + 1])
def test_a_depth_out_of_range_is_refused(depth: int) -> None:
    with pytest.raises(ValueError, match="the depth must be from 1 to"):
        find_best_chess_moves(GAME, GAME.initial_states(1), depth=depth)


def greedy(fen: str, game: Game = GAME) -> set[str]:
    state: States = position_from_fen(game, fen)
    chosen, counts = choose_greedy_actions(game, state[None])
    return {uci_of(state, int(action)) for action in chosen[0, : counts[0]]}


def test_the_greedy_player_captures_the_most_and_prefers_mate() -> None:
    assert greedy("4k3/8/8/q2r4/1P6/8/8/3RK3 w - - 0 1") == {"b4a5"}
    assert greedy("6k1/5ppp/8/8/q7/1P6/8/R5K1 w - - 0 1") == {"b3a4", "a1a4"}
    assert greedy("6k1/5ppp/8/8/2b5/3P4/8/R5K1 w - - 0 1") == {"a1a8"}
    assert greedy("7k/8/8/8/1pP5/8/8/K7 b - c3 0 1") == {"b4c3"}
    assert greedy("8/P7/8/8/8/7k/8/K7 w - - 0 1") == {"a7a8q"}


def test_the_greedy_player_moves_at_random_without_a_capture() -> None:
    assert len(greedy(fen_of(GAME.initial_state()))) == 20
