"""Noise at the root: how much, where, and that the network's own priors stay known."""

from typing import Any

import numpy as np
import pytest

from keima.config.sections.search import GumbelSettings, SearchSettings
from keima.games import load_game
from keima.games.game import Planes
from tests.search.forest import Forest
from tests.search.naive_search import Floats, StubEvaluator

GAME = load_game("connect_four")
PRIORS = np.array([0.4, 0.25, 0.15, 0.1, 0.06, 0.03, 0.01])


def evaluate(observations: Planes) -> tuple[Floats, Floats]:
    """Return the same priors everywhere."""
    return np.tile(np.log(PRIORS).astype(np.float32), (len(observations), 1)), np.zeros(len(observations), np.float32)


def noisy_priors(settings: SearchSettings, trees: int) -> Any:
    """Return the root's priors ``[B, A]`` at the beginning of a noisy search."""
    forest = Forest(
        GAME, evaluate, settings, GAME.initial_states(trees), num_simulations=1, full=True, noisy=True
    ).run()
    assert np.allclose(forest.trees.root_priors, PRIORS, atol=1e-6)
    found = [forest.root_priors(b) for b in range(trees)]
    return np.array([[priors[action] for action in range(7)] for priors in found])


def test_the_root_policy_temperature_flattens_the_priors() -> None:
    softened = PRIORS ** (1 / 1.5)
    settings = SearchSettings(root_policy_temperature=1.5, dirichlet_fraction=0.0)
    assert noisy_priors(settings, 1)[0] == pytest.approx(softened / softened.sum(), rel=1e-4)


@pytest.mark.parametrize("alpha", ["auto", 0.3, 3.0])
def test_a_share_of_the_priors_is_a_dirichlet_draw(alpha: Any) -> None:
    settings = SearchSettings(root_policy_temperature=1.0, dirichlet_alpha=alpha, dirichlet_fraction=0.25)
    priors = noisy_priors(settings, 3000)
    noise = (priors - 0.75 * PRIORS) / 0.25
    assert np.allclose(priors.sum(axis=1), 1, atol=1e-5)
    assert noise.min() > -1e-5
    each = 10.83 / 7 if alpha == "auto" else alpha
    assert np.allclose(noise.mean(axis=0), 1 / 7, atol=0.02)
    assert np.allclose(noise.var(axis=0), (1 / 7) * (6 / 7) / (7 * each + 1), rtol=0.15)


def test_a_search_without_noise_has_the_network_s_priors() -> None:
    forest = Forest(GAME, evaluate, SearchSettings(), GAME.initial_states(1), num_simulations=9, full=True).run()
    assert list(forest.root_priors(0).values()) == pytest.approx(
        [forest.network_priors(0)[action] for action in forest.root_priors(0)]
    )


def test_a_visited_move_of_a_gumbel_search_keeps_the_network_s_prior() -> None:
    settings = SearchSettings(algorithm="gumbel", gumbel=GumbelSettings(considered_actions=3))
    start = GAME.initial_states(1)
    forest = Forest(GAME, evaluate, settings, start, num_simulations=9, full=True, noisy=True).run()
    visited = [forest.trees.nodes[0, child] for child in forest.children(0)]
    assert len(visited) == 3
    assert [node.prior for node in visited] == pytest.approx([PRIORS[node.action] for node in visited])
    assert any(abs(node.logit - np.log(node.prior)) > 0.01 for node in visited)


def test_only_legal_moves_get_noise() -> None:
    state = GAME.initial_state()
    for action in (3, 3, 3, 3, 3, 3):
        GAME.play(state, action)
    forest = Forest(GAME, evaluate, SearchSettings(), state[None], num_simulations=1, full=True, noisy=True).run()
    assert sorted(forest.root_priors(0)) == sorted(forest.network_priors(0)) == [0, 1, 2, 4, 5, 6]
    assert sum(forest.root_priors(0).values()) == pytest.approx(1, abs=1e-5)


def test_each_move_of_a_reused_tree_gets_new_noise() -> None:
    forest = Forest(
        GAME, StubEvaluator(GAME), SearchSettings(), GAME.initial_states(1), num_simulations=50, full=True, noisy=True
    ).run()
    for _ in range(3):
        forest.play(0, int(forest.trees.nodes[0, forest.busiest(0)].action))
        clean = forest.root_priors(0)
        forest.run()
        noisy, root = forest.root_priors(0), forest.trees.nodes[0, 0]
        assert forest.network_priors(0) == pytest.approx(clean)
        assert max(abs(noisy[action] - clean[action]) for action in clean) > 0.01
        assert root.explored_prior == pytest.approx(
            sum(float(forest.trees.nodes[0, child].prior) for child in forest.children(0)), abs=1e-5
        )


def test_the_first_simulation_of_a_gumbel_search_is_a_draw_from_the_policy() -> None:
    settings = SearchSettings(algorithm="gumbel")
    forest = Forest(GAME, evaluate, settings, GAME.initial_states(4000), num_simulations=1, noisy=True).run()
    first = forest.trees.nodes[:, 1].action
    expected = 4000 * PRIORS
    assert (
        ((np.bincount(first, minlength=7) - expected) ** 2) / expected
    ).sum() < 22.5  # chi-squared with 6 degrees, one in a thousand


def test_a_gumbel_search_without_noise_begins_with_the_largest_prior() -> None:
    forest = Forest(GAME, evaluate, SearchSettings(algorithm="gumbel"), GAME.initial_states(5), num_simulations=1).run()
    assert forest.trees.nodes[:, 1].action.tolist() == [0] * 5


@pytest.mark.medium
def test_gumbel_noise_can_be_weaker_or_none() -> None:
    spread = {}
    for noise in (0.0, 0.5, 1.0):
        settings = SearchSettings(algorithm="gumbel", gumbel=GumbelSettings(noise=noise))
        forest = Forest(
            GAME, evaluate, settings, GAME.initial_states(2000), num_simulations=1, full=True, noisy=True
        ).run()
        spread[noise] = np.std([forest.root_gumbels(b)[0] for b in range(2000)])
    assert spread[0.0] == pytest.approx(0, abs=1e-4)
    assert spread[1.0] == pytest.approx(np.pi / np.sqrt(6), rel=0.06)  # of the standard Gumbel distribution
    assert spread[0.5] == pytest.approx(spread[1.0] / 2, rel=0.06)
