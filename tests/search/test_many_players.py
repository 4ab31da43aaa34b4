"""Search in games for three and more players (max^n): each player maximizes its own value."""

from typing import Any

import numpy as np
import pytest

from keima.config.sections.search import SearchSettings
from keima.games import Game
from keima.games.authoring.contract import check_game
from keima.search.baselines.uct import UctPlayer
from keima.search.move_search import Search
from tests.games.last_stone import solved
from tests.own_game import last_stone, three_in_line
from tests.search.forest import Forest, naive_summary, random_states, same_shape, values_of
from tests.search.naive_search import NaiveSearch, StubEvaluator, Undecided

STONES = 12


@pytest.fixture(scope="module")
def heap() -> Game:
    return last_stone(STONES)


@pytest.fixture(scope="module")
def connect_three() -> Game:
    return three_in_line()


def blank(game: Game) -> Any:
    """Return a network that knows nothing."""
    return lambda observations: (
        np.zeros((len(observations), game.num_actions), np.float32),
        np.zeros((len(observations), game.num_players), np.float32),
    )


def heaps(game: Game) -> Any:
    """Return the states of all heaps down to one stone, where any player may be to move."""
    states = [game.initial_state()]
    while len(states) < STONES:
        states.append(states[-1].copy())
        game.play(states[-1], 0)
    return np.stack(states)


def test_the_solved_game_keeps_the_contract(heap: Game) -> None:
    check_game(heap, games=6)


@pytest.mark.parametrize("algorithm", ["puct", "gumbel"])
def test_search_without_a_network_finds_the_values_of_a_solved_game(heap: Game, algorithm: Any) -> None:
    states = heaps(heap)
    settings = SearchSettings(algorithm=algorithm)
    found = Search(heap, blank(heap), settings, num_simulations=3000, num_trees=STONES).find(states)
    for state, value, action in zip(states, found.values, found.actions, strict=True):
        left = int(heap.observe(state).sum())
        best = solved(left)[0]
        assert algorithm == "gumbel" or value == pytest.approx(best, abs=0.25)  # its root visits all moves alike
        assert solved(left - int(action) - 1)[-1] == best


def test_uct_plays_a_solved_game_perfectly(heap: Game) -> None:
    states = heaps(heap)
    for state, action in zip(states, UctPlayer(heap, playouts=3000, seed=1).choose(states), strict=True):
        left = int(heap.observe(state).sum())
        assert solved(left - int(action) - 1)[-1] == solved(left)[0]


@pytest.mark.medium
@pytest.mark.parametrize("algorithm", ["puct", "gumbel"])
@pytest.mark.parametrize("full", [False, True])
def test_trees_equal_those_of_a_search_written_apart(connect_three: Game, algorithm: Any, full: bool) -> None:
    game, random = connect_three, np.random.default_rng(5)
    evaluate, settings = StubEvaluator(game, seed=3), SearchSettings(algorithm=algorithm)
    states = random_states(game, 12, random, most_plies=5)
    forest = Forest(game, evaluate, settings, states, num_simulations=60, full=full).run()
    compared = 0
    for b, state in enumerate(states):
        naive = NaiveSearch(game, evaluate, settings, state, full=full)
        try:
            naive.run(60, priors=forest.network_priors(b), gumbels={})
        except Undecided:
            continue
        ours, theirs = forest.summary(b), naive_summary(naive.root, ())
        assert same_shape(ours) == same_shape(theirs)
        assert values_of(ours) == pytest.approx(values_of(theirs), abs=1e-3)
        compared += 1
    assert compared >= 6


@pytest.mark.medium
def test_a_kept_subtree_is_searched_on_as_before(connect_three: Game) -> None:
    game, settings = connect_three, SearchSettings()
    evaluate, states = StubEvaluator(game, seed=3), game.initial_states(1)
    forest = Forest(game, evaluate, settings, states, num_simulations=80).run()
    naive = NaiveSearch(game, evaluate, settings, states[0], full=False)
    naive.run(80, priors=forest.network_priors(0), gumbels={})
    action = max(naive.root.edges, key=lambda each: naive.root.edges[each].visits)
    forest.play(0, action)
    naive.play(action)
    assert same_shape(forest.summary(0)) == same_shape(naive_summary(naive.root, ()))
    root = forest.trees.nodes[0, 0]
    assert root.value_sum == pytest.approx(naive.root.value, abs=1e-3)
    forest.run()
    naive.run(80, priors=forest.network_priors(0), gumbels={})
    assert same_shape(forest.summary(0)) == same_shape(naive_summary(naive.root, ()))
