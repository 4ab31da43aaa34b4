"""Alpha-beta by the score on the board, against a plain minimax without pruning, and against the exact solver."""

import numpy as np
import pytest

from keima.games import Game, load_game
from keima.games.connect_four.solver import solve_position
from keima.games.exact import solve_all_positions
from keima.games.game import States, call_step
from keima.search.baselines.alpha_beta import WON, find_best_moves
from tests.games.dice_race import dice_race
from tests.games.dots_and_boxes import dots_and_boxes

GAMES = {
    "connect_four": load_game("connect_four"),
    "go": load_game("go", size=5, komi=0.5),
    "dots_and_boxes": dots_and_boxes(),
}


def minimax(game: Game, state: States, depth: int, plies: int = 0) -> int:
    """Player 0's value of a position, over all moves to the depth."""
    if game.terminal(state):
        result = int(game.returns(state)[0])
        return result * (WON - plies)
    if depth == 0:
        return int(game.final_score(state, np.empty(game.height * game.width, np.int32)))
    values = [value for _, value in move_values(game, state, depth, plies)]
    return max(values) if game.current_player(state) == 0 else min(values)


def move_values(game: Game, state: States, depth: int, plies: int = 0) -> list[tuple[int, int]]:
    """The moves of a position with player 0's values after them."""
    found = []
    for action in game.legal_actions(state).tolist():
        following = state.copy()
        call_step(game.rules.step, following, action)
        found.append((action, minimax(game, following, depth - 1, plies + 1)))
    return found


def best_moves(game: Game, state: States, depth: int) -> tuple[int, set[int]]:
    """What plain minimax finds: the value for the player to move, and the moves that have it."""
    sign = 1 if game.current_player(state) == 0 else -1
    values = {action: sign * value for action, value in move_values(game, state, depth)}
    best = max(values.values())
    return best, {action for action, value in values.items() if value == best}


def found_moves(game: Game, state: States, depth: int) -> tuple[int, set[int]]:
    """What alpha-beta finds."""
    found = find_best_moves(game, state[None], depth=depth)
    return int(found.values[0]), set(found.actions[0, : found.counts[0]].tolist())


def random_position(game: Game, plies: int, random: np.random.Generator) -> States:
    """A position that is not over, after so many random moves or fewer."""
    state = game.initial_state()
    for _ in range(plies):
        before = state.copy()
        game.play(state, int(random.choice(game.legal_actions(state))))
        if game.terminal(state):
            return before
    return state


@pytest.mark.medium
@pytest.mark.parametrize(
    ("name", "depth", "plies", "count"),
    [
        pytest.param("connect_four", 1, 30, 10, marks=pytest.mark.slow),
        ("connect_four", 3, 30, 8),
        ("connect_four", 4, 20, 2),
        ("go", 1, 30, 10),
        ("go", 2, 40, 3),
        ("dots_and_boxes", 2, 6, 10),
        ("dots_and_boxes", 4, 6, 4),
    ],
)
def test_it_finds_the_value_and_all_the_moves_that_plain_minimax_finds(
    name: str, depth: int, plies: int, count: int
) -> None:
    game, random = GAMES[name], np.random.default_rng(depth)
    for _ in range(count):
        state = random_position(game, int(random.integers(plies + 1)), random)
        assert found_moves(game, state, depth) == best_moves(game, state, depth), game.render(state)


@pytest.mark.medium
def test_to_the_end_of_the_game_it_agrees_with_the_exact_solver() -> None:
    game, random = GAMES["connect_four"], np.random.default_rng(7)
    for _ in range(20):
        state = random_position(game, 32, random)
        if state[2] >= 28:
            value, _ = found_moves(game, state, 42 - int(state[2]))
            assert np.sign(value) == solve_position(state), game.render(state)


@pytest.mark.medium
def test_a_player_who_moves_twice_is_searched_to_the_end_exactly() -> None:
    game = GAMES["dots_and_boxes"]
    for state, values in solve_all_positions(game):
        left = len(game.legal_actions(state))
        if left <= 6:
            value, moves = found_moves(game, state, left)
            assert np.sign(value) == values.max()
            assert {values[move] for move in moves} == {values.max()}


def test_a_sooner_win_is_better_and_a_later_loss() -> None:
    game = GAMES["connect_four"]
    state = game.initial_state()
    for move in (3, 0, 3, 0, 3):
        game.play(state, move)
    assert found_moves(game, state, 4)[1] == {3}  # the one move that does not lose at once
    game.play(state, 0)
    assert found_moves(game, state, 4) == (WON - 1, {3})


def test_games_without_a_score_or_with_chance_are_refused_with_the_remedy() -> None:
    for game, reason in (
        (load_game("tic_tac_toe"), "tic_tac_toe has none: use mcts:1000"),
        (dice_race(), "no games of chance such as dice_race: use mcts:1000"),
        (load_game("twenty48"), "twenty48 is a game for 1"),
    ):
        with pytest.raises(ValueError, match=reason):
            find_best_moves(game, game.initial_states(1), depth=2)
