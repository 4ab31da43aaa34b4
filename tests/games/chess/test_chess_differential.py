"""Chess and python-chess agree on every position of random games: moves, checks, ends, FEN, repetitions, and the
network's input.
"""

from collections import Counter
from collections.abc import Iterator

import chess
import numpy as np
import pytest
from numpy.typing import NDArray

from keima.games import Game, load_game
from keima.games.chess.board import REPEATED
from keima.games.chess.moves import is_in_check
from keima.games.chess.notation import START_FEN, action_of_uci, describe_ending, fen_of, position_from_fen, uci_of
from keima.games.game import States
from keima.games.perft import count_perft

STARTS = [
    START_FEN,
    "r3k2r/p1ppqpb1/bn2pnp1/3PN3/1p2P3/2N2Q1p/PPPBBPPP/R3K2R w KQkq - 0 1",  # castling, pins and captures
    "8/2p5/3p4/KP5r/1R3p1k/8/4P1P1/8 w - - 0 1",  # en passant, or not
    "n1n5/PPPk4/8/8/8/8/4Kppp/5N1N b - - 0 1",  # promotions
    "r3k2r/8/8/8/8/8/8/R3K2R w KQkq - 0 1",  # castling and checks
    "4k3/pppppppp/8/8/8/8/PPPPPPPP/4K3 w - - 0 1",  # pawns
    "8/5k2/8/2b5/8/3B4/4K3/7N w - - 90 70",  # nearly drawn
    "8/3k4/3q4/8/8/4Q3/4K3/8 b - - 0 1",  # long, with repetitions
]


def choose(random: np.random.Generator, board: chess.Board) -> chess.Move:
    """Return a random move, which often undoes the mover's last one, so that positions repeat."""
    legal = list(board.legal_moves)
    if len(board.move_stack) >= 2 and random.random() < 0.35:
        last = board.move_stack[-2]
        back = chess.Move(last.to_square, last.from_square)
        if back in legal:
            return back
    return legal[int(random.integers(len(legal)))]


def games(game: Game, *, positions: int, seed: int) -> Iterator[tuple[States, chess.Board, int]]:
    """Yield at least this many positions of random games, in both implementations, each with how often it has occurred
    before.
    """
    random = np.random.default_rng(seed)
    start = 0
    while positions > 0:
        board = chess.Board(STARTS[start % len(STARTS)])
        start += 1
        state, occurred = position_from_fen(game, board.fen()), Counter[str]()
        while True:
            position = board.fen().rsplit(" ", 2)[0]
            yield state, board, occurred[position]
            occurred[position] += 1
            positions -= 1
            if game.terminal(state):
                break
            move = choose(random, board)
            game.play(state, action_of_uci(state, move.uci()))
            board.push(move)


def ending(game: Game, board: chess.Board, before: int) -> str:
    claimed = game.options["claim_draws"]
    if board.is_checkmate() or board.is_stalemate():
        return "checkmate" if board.is_check() else "stalemate"
    if before + 1 >= (3 if claimed else 5):
        return "threefold repetition" if claimed else "fivefold repetition"
    if board.halfmove_clock >= (100 if claimed else 150):
        return "fifty moves" if claimed else "75 moves"
    return "insufficient material" if board.is_insufficient_material() else ""


def agree(game: Game, state: States, board: chess.Board, before: int) -> None:
    over = ending(game, board, before)
    assert fen_of(state) == board.fen()
    assert is_in_check(state) == board.is_check()
    assert state[REPEATED] & 15 == before
    assert describe_ending(state) == over
    assert game.terminal(state) == (over != "")
    mover = int(board.turn == chess.BLACK)
    assert game.current_player(state) == mover
    lost = -1.0 if over == "checkmate" else 0.0
    assert game.returns(state).tolist() == ([lost, -lost] if mover == 0 else [-lost, lost])
    moves = sorted(uci_of(state, action) for action in game.legal_actions(state).tolist())
    assert moves == ([] if over else sorted(move.uci() for move in board.legal_moves))
    again = position_from_fen(game, board.fen())
    assert fen_of(again) == board.fen()
    if not over:
        assert np.array_equal(game.legal_actions(again), game.legal_actions(state))


def compare(positions: int, *, claim_draws: bool, seed: int) -> Counter[str]:
    game, ends = load_game("chess", claim_draws=claim_draws, max_plies=10_000), Counter[str]()
    for state, board, before in games(game, positions=positions, seed=seed):
        agree(game, state, board, before)
        ends[ending(game, board, before)] += 1
    return ends


@pytest.mark.medium
def test_random_games_agree_to_the_end() -> None:
    ends = compare(1_500, claim_draws=True, seed=8)
    assert {"checkmate", "threefold repetition", "fifty moves", "insufficient material"} <= set(ends)


@pytest.mark.medium
def test_random_games_without_claims_agree_to_the_end() -> None:
    ends = compare(2_000, claim_draws=False, seed=2)
    assert {"fivefold repetition"} <= set(ends)


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_two_hundred_thousand_random_positions_agree() -> None:
    ends = compare(140_000, claim_draws=True, seed=3) + compare(60_000, claim_draws=False, seed=4)
    assert sum(ends.values()) >= 200_000
    assert set(ends) == {
        *("", "checkmate", "stalemate", "insufficient material"),
        *("threefold repetition", "fifty moves", "fivefold repetition", "75 moves"),
    }


SEDLAK = [  # M. Sedlak's positions in which programs have failed
    *("3k4/3p4/8/K1P4r/8/8/8/8 b - - 0 1", "8/8/8/8/k1p4R/8/3P4/3K4 w - - 0 1"),
    *(
        "8/8/4k3/8/2p5/8/B2P1K2/8 w - - 0 1",
        "8/8/1k6/2b5/2pP4/8/5K2/8 b - d3 0 1",
        "8/5k2/8/2Pp4/2B5/1K6/8/8 w - d6 0 1",
    ),
    *("5k2/8/8/8/8/8/8/4K2R w K - 0 1", "3k4/8/8/8/8/8/8/R3K3 w Q - 0 1", "2K2r2/4P3/8/8/8/8/8/3k4 w - - 0 1"),
    *("8/8/1P2K3/8/2n5/1q6/8/5k2 b - - 0 1", "4k3/1P6/8/8/8/8/K7/8 w - - 0 1", "8/P1k5/K7/8/8/8/8/8 w - - 0 1"),
    *("K1k5/8/P7/8/8/8/8/8 w - - 0 1", "8/k1P5/8/1K6/8/8/8/8 w - - 0 1", "8/8/2k5/5q2/5n2/8/5K2/8 b - - 0 1"),
]


def leaves(board: chess.Board, depth: int) -> int:
    if board.is_insufficient_material():
        return 0
    if depth == 1:
        return board.legal_moves.count()
    total = 0
    for move in board.legal_moves:
        board.push(move)
        total += leaves(board, depth - 1)
        board.pop()
    return total


@pytest.mark.parametrize("fen", SEDLAK)
def test_positions_that_have_tripped_up_other_programs_have_as_many_leaves(fen: str) -> None:
    """The published counts continue where neither side can win any more, so they are not those of the rules."""
    assert count_perft(load_game("chess"), 4, position_from_fen(load_game("chess"), fen)) == leaves(chess.Board(fen), 4)


def planes_of(board: chess.Board, repeated: list[int], game: Game) -> NDArray[np.float32]:
    """Return the planes that ``keima.games.chess.rules`` documents for the player to move."""
    history, plies = game.options["history"], len(board.move_stack)
    planes = np.zeros((14 * history + 7, 8, 8), np.float32)
    mover, past, whole = board.turn, board.copy(), planes[14 * history :]
    for age in range(min(history, plies + 1)):
        for square, piece in past.piece_map().items():
            row = chess.square_rank(square) if mover == chess.BLACK else 7 - chess.square_rank(square)
            planes[14 * age + 6 * (piece.color != mover) + piece.piece_type - 1, row, chess.square_file(square)] = 1
        planes[14 * age + 12] = repeated[-1 - age] >= 1
        planes[14 * age + 13] = repeated[-1 - age] >= 2
        if past.move_stack:
            past.pop()
    whole[0] = mover == chess.WHITE
    whole[1] = plies / game.max_plies
    for side, color in enumerate((mover, not mover)):
        whole[2 + 2 * side] = board.has_kingside_castling_rights(color)
        whole[3 + 2 * side] = board.has_queenside_castling_rights(color)
    whole[6] = board.halfmove_clock / (100 if game.options["claim_draws"] else 150)
    return planes


@pytest.mark.medium
@pytest.mark.parametrize("options", [{"max_plies": 400}, {"max_plies": 300, "claim_draws": False, "history": 2}])
def test_the_network_s_input_is_as_documented(options: dict[str, int]) -> None:
    game, repeated = load_game("chess", **options), list[int]()
    for state, board, before in games(game, positions=800, seed=5):
        if not board.move_stack:
            repeated = []
        repeated.append(before)
        if board.root().has_legal_en_passant():
            continue
        planes = planes_of(board, repeated, game)
        assert np.allclose(game.observe(state), planes, rtol=0, atol=1e-6)
