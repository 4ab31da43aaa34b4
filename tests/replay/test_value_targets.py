"""Value targets, worked out by hand."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from keima.games.game import CHANCE
from keima.replay.value_targets import ReturnParams, SearchedGames, write_value_targets


def targets_of(
    players: Sequence[int],
    *,
    returns: Sequence[float],
    root_values: Sequence[float],
    scores: Sequence[float] = (),
    random: Sequence[bool] | None = None,
    td_lambda: float = 0.5,
    discount: float = 1.0,
) -> Any:
    """Return the targets of one game.

    Args:
        players: who moves in each position.
        returns: of the players at the end.
        root_values: of the searches, each in its player's view.
        scores: after each move, in a game for points.
        random: which moves were drawn at random.
        td_lambda: the weight of what came later.
        discount: of a move later.
    """

    def step(state: Any, action: int) -> None:
        state[0] += 1

    def write_returns(state: Any, into: Any) -> None:
        into[0] = scores[int(state[0]) - 1]

    rules = SimpleNamespace(
        step=step, current_player=lambda state: players[int(state[0])] if state[0] < len(players) else 0
    )
    rules.returns = write_returns
    games = SearchedGames(
        lengths=np.array([len(players)], np.int32),
        returns=np.array([returns], np.float32),
        actions=np.zeros(len(players), np.uint16),
        root_values=np.array(root_values, np.float32),
        random=np.array(random if random is not None else [False] * len(players)),
    )
    return write_targets(rules, games, ReturnParams(td_lambda=td_lambda, discount=discount))[:, 0].tolist()


def write_targets(rules: Any, games: SearchedGames, params: ReturnParams) -> Any:
    """Return the targets of games that begin at 0."""
    found = np.zeros((len(games.actions), games.returns.shape[1] if games.returns.shape[1] > 2 else 1), np.float32)
    write = getattr(
        write_value_targets, "py_func", write_value_targets
    )  # which is the function where it is interpreted
    write(rules, np.zeros(1, np.uint64), games, params, found)
    return found


def test_a_value_changes_its_sign_only_where_the_other_player_moves_next() -> None:
    """The first player moves twice in a row, as in Othello after a pass.

    From the end: 0.5 * 0.4 + 0.5 * 1 = 0.7; 0.5 * -0.3 - 0.5 * 0.7 = -0.5; 0.5 * 0.2 + 0.5 * 0.5 = 0.35;
    0.5 * 0.1 + 0.5 * 0.35 = 0.225.
    """
    found = targets_of([0, 0, 1, 0], returns=[1.0, -1.0], root_values=[0.1, 0.2, -0.3, 0.4])
    assert found == pytest.approx([0.225, 0.35, -0.5, 0.7])


def test_the_loser_moves_last() -> None:
    """0.5 * -0.2 + 0.5 * -1 = -0.6; 0.5 * 0.4 + 0.5 * 0.6 = 0.5."""
    assert targets_of([0, 1], returns=[1.0, -1.0], root_values=[0.4, -0.2]) == pytest.approx([0.5, -0.6])


def test_where_nature_moves_the_position_belongs_to_who_moved_last_or_to_the_first_player() -> None:
    """From the end: 0.5 * 0.4 + 0.5 * 1 = 0.7; chance, of the second player: -0.7; 0.5 * 0.2 - 0.5 * 0.7 = -0.25;
    chance, of the first player: 0.25.
    """
    found = targets_of([CHANCE, 1, CHANCE, 0], returns=[1.0, -1.0], root_values=[9.0, 0.2, 9.0, 0.4])
    assert found == pytest.approx([0.25, -0.25, -0.7, 0.7])


def test_points_are_discounted_by_moves_but_not_by_chance() -> None:
    """Points after the moves: 2, 2 (chance adds none), 5. There is no search where nature moves.

    From the end: 0.5 * 1 + 0.5 * 3 = 2; chance: 0 + 2 = 2; 0.5 * 4 + 0.5 * (2 + 0.5 * 2) = 3.5.
    """
    found = targets_of([0, CHANCE, 0], returns=[5.0], root_values=[4.0, 9.0, 1.0], scores=[2.0, 2.0, 5.0], discount=0.5)
    assert found == pytest.approx([3.5, 2.0, 2.0])


def test_what_follows_a_random_mistake_says_nothing_of_the_position_before() -> None:
    """The second player's random move loses 0.9 - (-0.1) = 1.0 of value; the first player's loses 0.1, and counts.

    From the end: 0.5 * 0.1 + 0.5 * 1 = 0.55; a mistake: 0.9; 0.5 * -0.8 - 0.5 * 0.9 = -0.85.
    """
    found = targets_of([0, 1, 0], returns=[1.0, -1.0], root_values=[-0.8, 0.9, 0.1], random=[True, True, False])
    assert found == pytest.approx([-0.85, 0.9, 0.55])


def test_what_follows_a_random_move_in_a_game_for_points_never_counts() -> None:
    found = targets_of([0, 0], returns=[9.0], root_values=[1.0, 5.0], scores=[4.0, 9.0], random=[True, False])
    assert found == pytest.approx([1.0, 0.5 * 5 + 0.5 * 5])


@pytest.mark.parametrize("num_players", [1, 2, 3])
def test_each_game_has_the_targets_that_it_has_alone(num_players: int) -> None:
    def step(state: Any, action: int) -> None:
        state[0] += 1 + action

    def write_returns(state: Any, into: Any) -> None:
        into[0] = state[0]

    rules = SimpleNamespace(step=step, returns=write_returns, current_player=lambda state: int(state[0]) % num_players)
    chance, lengths = np.random.default_rng(1), (2, 5, 3)
    games = [
        SearchedGames(
            lengths=np.array([length], np.int32),
            returns=chance.normal(size=(1, num_players)).astype(np.float32),
            actions=chance.integers(0, 2, length).astype(np.uint16),
            root_values=chance.normal(size=length).astype(np.float32),
            random=chance.random(length) < 0.3,
        )
        for length in lengths
    ]
    params = ReturnParams(td_lambda=0.7, discount=0.9)
    together = SearchedGames(*(np.concatenate(columns) for columns in zip(*games, strict=True)))
    alone = np.concatenate([write_targets(rules, each, params) for each in games])
    assert np.array_equal(write_targets(rules, together, params), alone)
    if num_players == 3:
        seats = np.concatenate([[0], 1 + games[0].actions[:1]]) % 3
        assert np.array_equal(alone[:2], [np.roll(games[0].returns[0], -seat) for seat in seats])


@pytest.mark.parametrize(("after", "is_mistake"), [(-0.45, False), (0.45, True)])
def test_a_random_move_is_judged_by_the_next_search_beyond_what_nature_does(after: float, is_mistake: bool) -> None:
    """The first player's random move takes its value from 0.1 to ``-after``; two chance events come between."""
    found = targets_of(
        [0, CHANCE, CHANCE, 1],
        returns=[1.0, -1.0],
        root_values=[0.1, 0.0, 0.0, after],
        random=[True, False, False, False],
    )
    assert found[0] == pytest.approx(0.1 if is_mistake else 0.5 * 0.1 + 0.5 * found[1])


@pytest.mark.parametrize(("after", "is_mistake"), [(0.25, False), (0.15, True)])
def test_a_random_move_is_a_mistake_if_it_loses_more_than_three_tenths(after: float, is_mistake: bool) -> None:
    """The first player moves twice; its random move takes its value from 0.5 to ``after``."""
    first, second = targets_of([0, 0], returns=[1.0, -1.0], root_values=[0.5, after], random=[True, False])
    assert first == pytest.approx(0.5 if is_mistake else 0.5 * 0.5 + 0.5 * second)
