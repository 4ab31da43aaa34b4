"""Only games that the rules allow are accepted."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from keima.data.records import AGREED, FULL_SEARCH, CorruptBatch, GameBatch, decode_batch, encode_batch, validate_batch
from keima.data.verify import verify_batch
from keima.games import load_game
from keima.games.game import Game
from tests.synthetic import synthetic_batch


@pytest.fixture(scope="module")
def game() -> Game:
    return load_game("connect_four")


@pytest.fixture(scope="module")
def batch(game: Game) -> GameBatch:
    """Twenty games, the first of which, game 0, is not resigned."""
    batch = synthetic_batch(game, games=20, full_share=0.5, resign_share=0.5, seed=3)
    assert batch.resigned[0] == 0 and batch.resigned.any()
    return batch


def one_game(game: Game, moves: list[int], returns: list[float], *, resigned: int = 0, **columns: Any) -> GameBatch:
    """Return a batch of one game with a full search at its last move, where only that move was considered."""
    last = np.arange(len(moves)) == len(moves) - 1
    fields: dict[str, Any] = {
        "lengths": np.array([len(moves)], np.int32),
        "returns": np.array([returns], np.float32),
        "first_model": np.zeros(1, np.int32),
        "last_model": np.zeros(1, np.int32),
        "seeds": np.zeros(1, np.uint64),
        "resigned": np.array([resigned], np.uint8),
        "actions": np.array(moves, np.int32),
        "root_values": np.zeros(len(moves), np.float32),
        "flags": np.where(last, FULL_SEARCH, 0).astype(np.uint8),
        "surprise": np.zeros(len(moves), np.float32),
        "policy_sizes": last.astype(np.int32),
        "policy_actions": np.array(moves[-1:], np.int32),
        "policy_weights": np.ones(1, np.uint16),
    }
    header: dict[str, Any] = {"batch_id": "b", "run_id": "r", "worker": "w", "game": game.name, "options": game.options}
    header |= {"rules_version": game.rules_version, "first_game": 0}
    batch = GameBatch(**(header | fields | columns))
    validate_batch(batch)
    return batch


FIRST_WINS = [3, 2, 3, 2, 3, 2, 3]  # four in column 3
SECOND_WINS = [0, 3, 2, 3, 2, 3, 1, 3]
DRAW = [
    0,
    1,
    0,
    1,
    0,
    1,
    1,
    0,
    1,
    0,
    1,
    0,
    2,
    3,
    2,
    3,
    2,
    3,
    3,
    2,
    3,
    2,
    3,
    2,
    4,
    5,
    4,
    5,
    4,
    5,
    5,
    4,
    5,
    4,
    5,
    4,
    6,
    6,
    6,
    6,
    6,
    6,
]


@pytest.mark.parametrize(("name", "options"), [("tic_tac_toe", {}), ("connect_four", {}), ("go", {"size": 7})])
def test_real_games_are_accepted(name: str, options: dict[str, Any]) -> None:
    game = load_game(name, **options)
    verify_batch(decode_batch(encode_batch(synthetic_batch(game, games=50, full_share=0.5, resign_share=0.5))), game)


@pytest.mark.parametrize(("moves", "returns"), [(FIRST_WINS, [1, -1]), (SECOND_WINS, [-1, 1]), (DRAW, [0, 0])])
def test_the_returns_must_be_those_of_the_rules(game: Game, moves: list[int], returns: list[float]) -> None:
    verify_batch(one_game(game, moves, returns), game)
    others: list[list[float]] = [[1, -1], [-1, 1], [0, 0], [1, 0], [1, 1], [0.5, -0.5]]
    for wrong in others:
        if wrong != returns:
            with pytest.raises(CorruptBatch, match=f"game 0 after {len(moves)} moves: the returns"):
                verify_batch(one_game(game, moves, wrong), game)


def test_a_resigned_game_is_lost_by_the_player_who_resigned(game: Game) -> None:
    for player, returns in ((0, [-1.0, 1.0]), (1, [1.0, -1.0])):
        verify_batch(one_game(game, FIRST_WINS[:-1], returns, resigned=1 + player), game)
        with pytest.raises(CorruptBatch, match="the returns"):
            verify_batch(one_game(game, FIRST_WINS[:-1], returns[::-1], resigned=1 + player), game)


def test_a_draw_by_agreement_is_a_draw(game: Game) -> None:
    verify_batch(one_game(game, FIRST_WINS[:-1], [0, 0], resigned=AGREED), game)
    with pytest.raises(CorruptBatch, match="the returns"):
        verify_batch(one_game(game, FIRST_WINS[:-1], [1, -1], resigned=AGREED), game)


def test_a_finished_game_cannot_be_resigned(game: Game) -> None:
    with pytest.raises(CorruptBatch, match="game 0 after 7 moves: a player resigned, or"):
        verify_batch(one_game(game, FIRST_WINS, [1, -1], resigned=2), game)


def test_a_game_must_continue_to_its_end(game: Game) -> None:
    with pytest.raises(CorruptBatch, match="game 0 after 6 moves: the moves end before"):
        verify_batch(one_game(game, FIRST_WINS[:-1], [1, -1]), game)


def test_a_game_must_stop_at_its_end(game: Game) -> None:
    with pytest.raises(CorruptBatch, match=r"game 0 after 7 moves: the policy has an illegal"):
        verify_batch(one_game(game, [*FIRST_WINS, 0], [1, -1]), game)


def test_a_game_longer_than_its_rules_allow_is_refused(game: Game) -> None:
    with pytest.raises(CorruptBatch, match="game 0 after 42 moves: the game is longer"):
        verify_batch(one_game(game, [*DRAW, 0], [0, 0]), game)


@pytest.mark.parametrize("action", [7, 100, 65535])
def test_moves_that_do_not_exist_are_refused(game: Game, action: int) -> None:
    with pytest.raises(CorruptBatch, match="game 0 after 2 moves: the move is illegal"):
        verify_batch(one_game(game, [3, 2, action, 3], [1, -1]), game)


def test_a_full_column_accepts_no_more(game: Game) -> None:
    with pytest.raises(CorruptBatch, match="game 0 after 6 moves: the move is illegal"):
        verify_batch(one_game(game, [0] * 8, [1, -1]), game)


@pytest.mark.parametrize("policy", [[0], [0, 3], [3, 7], [3, 65535]])
def test_a_policy_may_only_have_legal_moves(game: Game, policy: list[int]) -> None:
    """Column 0 is full before the last move."""
    moves = [0, 0, 0, 0, 0, 0, *FIRST_WINS]
    weights, sizes = np.ones(len(policy), np.uint16), np.zeros(len(moves), np.int32)
    sizes[-1] = len(policy)
    forged: dict[str, Any] = {
        "policy_actions": np.array(policy, np.int32),
        "policy_weights": weights,
        "policy_sizes": sizes,
    }
    verify_batch(one_game(game, moves, [1, -1]), game)
    with pytest.raises(CorruptBatch, match="game 0 after 12 moves: the policy has an illegal move"):
        verify_batch(one_game(game, moves, [1, -1], **forged), game)


CHANGES: dict[str, Callable[[NDArray[Any]], NDArray[Any]]] = {
    "actions": lambda column: column + 7,
    "returns": lambda column: -column,
    "resigned": lambda column: np.where(column, 3 - column, 0).astype(np.uint8),
    "policy_actions": lambda column: column + 7,
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_fault_in_any_game_is_found_and_located(game: Game, batch: GameBatch, name: str) -> None:
    """Change one column within one game, for each game with a part of it that changes."""
    axis = {
        "actions": batch.lengths,
        "policy_actions": np.add.reduceat(batch.policy_sizes, np.cumsum(batch.lengths) - batch.lengths),
    }
    sizes = axis.get(name, np.ones(batch.num_games, np.int32))
    found = 0
    for index in range(batch.num_games):
        column = getattr(batch, name).copy()
        part = slice(int(sizes[:index].sum()), int(sizes[: index + 1].sum()))
        column[part] = CHANGES[name](column[part])
        if np.array_equal(column, getattr(batch, name)):
            continue
        changed = replace(batch, **{name: column})
        with pytest.raises(CorruptBatch, match=rf"^game {index} after \d+ moves: "):
            verify_batch(changed, game)
        found += 1
    assert found > 3


@pytest.mark.parametrize("changes", [{"game": "tic_tac_toe"}, {"options": {"size": 9}}, {"rules_version": 99}])
def test_games_of_other_rules_are_refused(game: Game, batch: GameBatch, changes: dict[str, Any]) -> None:
    with pytest.raises(
        CorruptBatch, match=r"it holds games of .*, not of connect_four .* by rules version 2: run the same version"
    ):
        verify_batch(replace(batch, **changes), game)


def test_returns_for_another_number_of_players_are_refused(game: Game, batch: GameBatch) -> None:
    with pytest.raises(CorruptBatch, match="returns for 1 players, and connect_four has 2"):
        verify_batch(replace(batch, returns=batch.returns[:, :1].copy()), game)
