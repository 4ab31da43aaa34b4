"""Expectimax plays 2048: its slides are the game's, its values are those of a plain search, and its games are good."""

import numpy as np
import pytest

from keima.games import CHANCE, Game, load_game
from keima.games.game import States
from keima.games.twenty48.expectimax import (
    afterstate_value,
    choose_expectimax_move,
    find_best_action,
    packed_board,
    row_value,
    shared_tables,
)
from keima.games.twenty48.rules import ROWS, SCORE, WIDTH


@pytest.fixture(scope="module")
def game() -> Game:
    return load_game("twenty48")


def some_positions(game: Game, *, count: int, seed: int) -> list[States]:
    """Return positions of the player from random games."""
    found: list[States] = []
    random, state = np.random.default_rng(seed), game.initial_state()
    while len(found) < count:
        if game.terminal(state):
            state = game.initial_state()
        if game.current_player(state) == CHANCE:
            game.play(state, int(random.choice(game.chance_outcomes(state)[0])))
            continue
        if random.random() < 0.1:
            found.append(state.copy())
        game.play(state, int(random.choice(game.legal_actions(state))))
    return found


def after_any(game: Game, state: States) -> States:
    """Return an afterstate of this position."""
    after = state.copy()
    game.play(after, int(game.legal_actions(state)[0]))
    return after


def plain_worth(game: Game, state: States) -> float:
    """Return the value of a board, line by line."""
    rows = (state[ROWS : ROWS + 4, None] >> 8 * np.arange(4)) & 0xFF
    packed = [int(line @ 16 ** np.arange(4)) for line in (*rows, *rows.T)]
    return sum(row_value(line) for line in packed)


def plain_value(game: Game, state: States, depth: int) -> float:
    """Return expectimax by the rules alone, from an afterstate."""
    if depth == 0:
        return plain_worth(game, state)
    total = 0.0
    for outcome, probability in zip(*game.chance_outcomes(state), strict=True):
        after = state.copy()
        game.play(after, int(outcome))
        total += float(probability) * max([0.0, *plain_values(game, after, depth - 1).values()])
    return total


def plain_values(game: Game, state: States, depth: int) -> dict[int, float]:
    values = {}
    for action in game.legal_actions(state).tolist():
        after = state.copy()
        game.play(after, action)
        values[action] = plain_value(game, after, depth)
    return values


def test_it_plays_the_best_move_of_a_plain_search_over_the_rules(game: Game) -> None:
    for state in some_positions(game, count=5, seed=1):
        values = plain_values(game, state, 1)
        assert values[choose_expectimax_move(state, depth=1)] == pytest.approx(max(values.values()), rel=1e-6)


@pytest.mark.medium
@pytest.mark.parametrize("depth", [0, 1, 2])
def test_its_values_are_those_of_a_plain_search(game: Game, depth: int) -> None:
    crowded = sorted(
        some_positions(game, count=300, seed=2), key=lambda state: len(game.chance_outcomes(after_any(game, state))[0])
    )
    for state in crowded[: 5 if depth < 2 else 1]:
        for action in game.legal_actions(state).tolist():
            after = state.copy()
            game.play(after, action)
            mine = afterstate_value(packed_board(after), depth, 1.0, shared_tables())
            assert mine == pytest.approx(plain_value(game, after, depth), rel=1e-6)


@pytest.mark.medium
def test_it_plays_only_legal_actions_and_is_deterministic(game: Game) -> None:
    for state in some_positions(game, count=200, seed=3):
        before = state.copy()
        action = choose_expectimax_move(state, depth=1)
        assert action in game.legal_actions(state)
        assert choose_expectimax_move(state, depth=1) == action
        assert np.array_equal(state, before)


def test_tiles_beyond_its_digits_are_played_legally(game: Game) -> None:
    state = game.initial_state()
    for outcome in (0, 2):
        game.play(state, outcome)
    state[ROWS + 3] = 17 | 16 << 8 | 15 << 16 | 14 << 24
    assert choose_expectimax_move(state, depth=2) in game.legal_actions(state)


def played(game: Game, seed: int) -> States:
    """The end of a game by expectimax of depth 1."""
    random, state = np.random.default_rng(seed), game.initial_state()
    while not game.terminal(state):
        if game.current_player(state) == CHANCE:
            outcomes, probabilities = game.chance_outcomes(state)
            game.play(state, int(random.choice(outcomes, p=probabilities / probabilities.sum())))
        else:
            game.play(state, choose_expectimax_move(state, depth=1))
    return state


@pytest.mark.medium
def test_games_are_far_better_than_random_ones(game: Game) -> None:
    ends = [played(game, seed) for seed in range(2)]
    largest = [max(row >> 8 * cell & 0xFF for row in end[ROWS : ROWS + 4] for cell in range(4)) for end in ends]
    assert np.mean([end[SCORE] for end in ends]) > 10_000  # random play scores about 1,100
    assert max(largest) >= 10, "one of the games has a tile of 1024"


def test_states_and_boards_that_it_cannot_play_are_refused(game: Game) -> None:
    state = game.initial_state()
    with pytest.raises(ValueError, match="not to move"):
        choose_expectimax_move(state, depth=1)
    assert find_best_action(state, 1, shared_tables()) == -1
    small = load_game("twenty48", height=4, width=3).initial_state()
    assert small[WIDTH] == 3
    with pytest.raises(ValueError, match="expectimax plays on 4 x 4, not on 4 x 3"):
        choose_expectimax_move(small, depth=1)
    with pytest.raises(ValueError, match="depth must not be negative"):
        choose_expectimax_move(some_positions(game, count=1, seed=3)[0], depth=-1)
