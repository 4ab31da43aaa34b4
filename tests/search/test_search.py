"""The compiled search against a naive one: the same edges with the same visits, values and proofs."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from keima.base.random import uniform
from keima.config.sections.search import GumbelSettings, SearchSettings
from keima.games import load_game
from keima.search.gumbel import halving_schedule
from tests.search.forest import Forest, naive_summary, random_states, same_shape, values_of
from tests.search.naive_search import NaiveSearch, StubEvaluator, Undecided, considered_visits

TREES, MOVES = 4, 3
GAMES = {"tic_tac_toe": load_game("tic_tac_toe"), "connect_four": load_game("connect_four")}
GAMES["twenty48"] = load_game("twenty48", height=3, width=3)  # a small one, which can be searched without compiling
MOST_PLIES = {"tic_tac_toe": 5, "connect_four": 36, "twenty48": 100}  # at random before the search


def random_settings(random: np.random.Generator, algorithm: Any) -> SearchSettings:
    return SearchSettings(
        algorithm=algorithm,
        c_puct=float(random.uniform(0.3, 3)),
        c_puct_log_base=float(random.choice([10.0, 500.0, 19652.0])),
        fpu_reduction=float(random.uniform(0, 1)),
        root_fpu_reduction=float(random.uniform(0, 0.5)),
        dirichlet_alpha=float(random.uniform(0.1, 2)),
        forced_playouts=bool(random.integers(2)),
        forced_playouts_k=float(random.uniform(0.5, 4)),
        proven_results=bool(random.integers(4)),
        discount=float(random.choice([1.0, 0.9])),
        evaluate_afterstates=bool(random.integers(2)),
        gumbel=GumbelSettings(
            considered_actions=int(random.integers(2, 17)),
            c_visit=float(random.uniform(1, 50)),
            c_scale=float(random.uniform(0.1, 1)),
        ),
    )


def moves_of(name: str, algorithm: str) -> int:
    """Return how many moves are searched in succession in the kept subtree; Gumbel keeps none, and after chance another
    position follows.
    """
    return MOVES if algorithm == "puct" and name != "twenty48" else 1


def stream_of(forest: Forest, b: int) -> Callable[[], float]:
    """Return the random numbers that the search of tree ``b`` will draw."""
    stream = forest.streams[b : b + 1].copy()
    return lambda: uniform(stream, 0)


def both_searches(name: str, algorithm: str, seed: int) -> int:
    """Run both searches on a few positions, and on through the kept subtrees for a few moves; return the number of
    searches compared.
    """
    random = np.random.default_rng(seed)
    game, settings = GAMES[name], random_settings(random, algorithm)
    evaluate = StubEvaluator(
        game, seed=seed, policy_scale=float(random.uniform(0.3, 2)), value_scale=float(random.uniform(0.1, 1))
    )
    full, num_simulations = bool(random.integers(2)), int(random.integers(1, 50))
    states = random_states(game, TREES, random, most_plies=MOST_PLIES[name])
    noisy = full and game.num_outcomes == 0  # noise would use an unknown number of random numbers
    forest = Forest(game, evaluate, settings, states, num_simulations=num_simulations, full=full, noisy=noisy)
    naive = {
        b: NaiveSearch(game, evaluate, settings, states[b], full=full, uniform=stream_of(forest, b))
        for b in range(TREES)
    }
    compared = 0
    for _ in range(moves_of(name, algorithm)):
        forest.run()
        for b in list(naive):
            if agree(forest, b, naive[b], num_simulations):
                compared += 1
            else:
                del naive[b]
        for b in list(naive):
            action = busiest_action(naive[b])
            naive[b].play(action)
            if game.terminal(naive[b].root.state):
                del naive[b]
            else:
                forest.play(b, action)
    return compared


def agree(forest: Forest, b: int, naive: NaiveSearch, num_simulations: int) -> bool:
    """Run the naive search with the compiled one's noise and compare the trees; return False if they cannot be
    compared.
    """
    gumbel = naive.settings.algorithm == "gumbel"
    noise = forest.root_gumbels(b) if gumbel else {}
    try:
        naive.run(num_simulations, priors=forest.network_priors(b) if gumbel else forest.root_priors(b), gumbels=noise)
    except Undecided:
        return False
    found, expected = forest.summary(b), naive_summary(naive.root)
    assert same_shape(found) == same_shape(expected)
    np.testing.assert_allclose(values_of(found), values_of(expected), atol=1e-4, rtol=1e-6)
    return True


def busiest_action(naive: NaiveSearch) -> int:
    """Return the most visited action."""
    return max(naive.root.edges, key=lambda action: naive.root.edges[action].visits)


@pytest.mark.medium
@pytest.mark.parametrize("algorithm", ["puct", "gumbel"])
@pytest.mark.parametrize("name", GAMES)
@pytest.mark.parametrize("searches", [10, pytest.param(20, marks=pytest.mark.slow)])
def test_the_compiled_search_visits_the_same_edges_as_a_naive_one(name: str, algorithm: str, searches: int) -> None:
    compared = sum(both_searches(name, algorithm, seed) for seed in range(searches))
    assert compared > 0.8 * searches * TREES * moves_of(name, algorithm)  # the others depend on nearly equal scores


def test_sequential_halving_counts_visits_like_the_published_implementation() -> None:
    for num_simulations in (1, 2, 7, 16, 64, 200):
        table = halving_schedule(32, num_simulations, columns=210)
        for considered in range(1, 33):
            assert table[considered, :num_simulations].tolist() == considered_visits(considered, num_simulations)
        assert table.shape == (33, 210) and not table[0].any() and not table[:, num_simulations:].any()
