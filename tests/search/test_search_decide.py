"""The result of a search, on roots made by hand: weights, pruned playouts, the choice of the move, and the surprise."""

import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from keima.compilation.decorators import compiled
from keima.config.sections.search import SearchSettings
from keima.games import Game, load_game
from keima.search.decide import choose_action, policy_surprise, root_value, write_move_weights
from keima.search.puct import search_params
from keima.search.tree import DRAW, LOSS, UNPROVEN, WIN, WITH_PRIORS, Trees, make_trees
from keima.search.workspace import make_workspace

GAME = load_game("tic_tac_toe")

Move = tuple[int, float, float, int]  # visits, mean value, prior, proven


def make_root(moves: list[Move], *, full: bool = False, proven: int = UNPROVEN, evaluation: float = 0.0) -> Trees:
    """Return a tree that consists of a root whose action i is ``moves[i]``; unvisited moves are candidates."""
    trees = make_trees(1, max_nodes=len(moves) + 1, num_actions=len(moves), most_legal_actions=len(moves))
    root = trees.nodes[0, 0]
    root.parent, root.first_child, root.next_sibling, root.value_factor, root.stage, root.proven = (
        -1,
        -1,
        -1,
        1.0,
        WITH_PRIORS,
        proven,
    )
    root.evaluation, root.value_sum, root.visits = evaluation, evaluation, 1
    number = 1
    for action, (visits, mean, prior, proven_for_parent) in enumerate(moves):
        trees.root_priors[0, action] = prior
        if visits == 0:
            trees.actions[0, root.num_candidates], trees.priors[0, root.num_candidates] = action, prior
            root.num_candidates += 1
            continue
        child = trees.nodes[0, number]
        child.visits, child.value_sum, child.prior, child.logit = visits, visits * mean, prior, math.log(prior)
        child.action, child.parent, child.value_factor, child.proven_for_parent = action, 0, -1.0, proven_for_parent
        child.next_sibling, root.first_child = root.first_child, number
        root.visits += visits
        root.value_sum += visits * mean
        number += 1
    trees.searches[0].full = full
    return trees


def weights_of(trees: Trees, game: Game = GAME, **settings: Any) -> list[float]:
    """Return the weights of all actions."""
    weights = np.zeros(trees.root_priors.shape[1], np.float32)
    write_move_weights(search_params(SearchSettings(**settings), game, max_visits=1000), trees, 0, weights)
    return weights.tolist()


def value_of(trees: Trees) -> float:
    """Return the root's value."""
    weights = np.array(weights_of(trees), np.float32)
    return root_value(search_params(SearchSettings(), GAME, max_visits=1000), trees, 0, weights)


def chosen(trees: Trees, weights: list[float], temperature: float, draws: int, **settings: Any) -> NDArray[np.int64]:
    """Return how often each action is chosen."""
    work = make_workspace(GAME, SearchSettings(**settings), num_trees=1, simulations=1000)._replace(trees=trees)
    work.streams[0] = 7
    counts = np.zeros(len(weights), np.int64)
    count_choices(work, np.array(weights, np.float32), temperature, draws, counts)
    return counts


@compiled
def count_choices(work: Any, weights: Any, temperature: float, draws: int, counts: Any) -> None:
    """Count how often each action is chosen; a call from Python would unpack the workspace each time."""
    for _ in range(draws):
        counts[choose_action(work, 0, weights, temperature)] += 1


def test_weights_are_visits() -> None:
    trees = make_root(
        [(5, 0.1, 0.2, UNPROVEN), (0, 0, 0.3, UNPROVEN), (7, 0.2, 0.4, UNPROVEN), (1, 0.0, 0.1, UNPROVEN)]
    )
    assert weights_of(trees) == [5, 0, 7, 1]
    assert value_of(trees) == pytest.approx((0.5 + 1.4) / 14)


def test_a_proven_loss_has_no_weight() -> None:
    trees = make_root([(5, 0.1, 0.2, UNPROVEN), (30, 0.3, 0.4, LOSS), (7, 0.2, 0.4, DRAW)])
    assert weights_of(trees) == [5, 0, 7]


def test_a_won_root_gives_weight_only_to_its_winning_moves() -> None:
    trees = make_root([(50, 0.9, 0.9, UNPROVEN), (1, 1.0, 0.05, WIN), (0, 0, 0.05, UNPROVEN)], proven=WIN, full=True)
    assert weights_of(trees) == [0, 1, 0]
    assert value_of(trees) == 1


def test_a_drawn_root_gives_weight_only_to_its_drawing_moves() -> None:
    trees = make_root([(50, -0.9, 0.9, LOSS), (2, 0.0, 0.05, DRAW), (3, 0.2, 0.05, DRAW)], proven=DRAW, full=True)
    assert weights_of(trees) == [0, 2, 3]
    assert value_of(trees) == 0


def test_in_a_lost_position_visits_count_and_nothing_is_surprising() -> None:
    trees = make_root([(5, -0.9, 0.1, LOSS), (2, -1.0, 0.9, LOSS)], proven=LOSS, full=True)
    assert weights_of(trees) == [5, 2]
    assert policy_surprise(trees, 0, np.array([5, 2], np.float32)) == 0
    assert value_of(trees) == -1


def test_without_visits_the_network_decides() -> None:
    trees = make_root([(0, 0, 0.2, UNPROVEN), (0, 0, 0.7, UNPROVEN), (0, 0, 0.1, UNPROVEN)], evaluation=0.3)
    assert weights_of(trees) == pytest.approx([200, 700, 100])
    assert weights_of(trees, algorithm="gumbel") == pytest.approx([200, 700, 100])
    assert value_of(trees) == pytest.approx(0.3)


@pytest.mark.parametrize("algorithm", ["puct", "gumbel"])
def test_if_all_visited_moves_lose_the_network_decides_between_the_others(algorithm: str) -> None:
    moves = [(9, -0.5, 0.7, LOSS), (0, 0, 0.2, UNPROVEN), (3, -0.5, 0.06, LOSS), (0, 0, 0.04, UNPROVEN)]
    weights = weights_of(make_root(moves, full=True), algorithm=algorithm, gumbel={"c_visit": 0.0, "c_scale": 1e-6})
    assert weights == pytest.approx([0, 1000 * 0.2 / 0.24, 0, 1000 * 0.04 / 0.24], rel=1e-3)


@pytest.mark.parametrize("algorithm", ["puct", "gumbel"])
def test_moves_next_to_a_lost_favourite_have_enough_weight_to_be_recorded(algorithm: str) -> None:
    moves = [(9, -0.5, 0.999998, LOSS), (0, 0, 1e-6, UNPROVEN), (0, 0, 1e-6, UNPROVEN)]
    assert weights_of(make_root(moves, full=True), algorithm=algorithm) == pytest.approx([0, 500, 500])


def test_gumbel_weights_are_the_improved_policy() -> None:
    moves = [(4, 0.5, 0.2, UNPROVEN), (2, -0.25, 0.3, UNPROVEN), (0, 0, 0.5, UNPROVEN)]
    weights = weights_of(
        make_root(moves, full=True, evaluation=0.1), algorithm="gumbel", gumbel={"c_visit": 6.0, "c_scale": 0.5}
    )
    mixed = (0.1 + 6 * (0.2 * 0.5 + 0.3 * -0.25) / 0.5) / 7  # the paper's equation 33
    logits = [math.log(prior) + (6 + 4) * 0.5 * (1 + q) / 2 for prior, q in ((0.2, 0.5), (0.3, -0.25), (0.5, mixed))]
    expected = np.exp(logits) / np.exp(logits).sum()
    assert weights == pytest.approx((1000 * expected).tolist(), rel=1e-4)


def test_an_illegal_move_has_no_gumbel_weight() -> None:
    moves = [(4, 0.5, 0.2, UNPROVEN), (0, 0, 0.8, UNPROVEN), (0, 0, 0.0, UNPROVEN)]
    weights = weights_of(make_root(moves, full=True), algorithm="gumbel")
    assert weights[2] == 0 and min(weights[:2]) > 0


def test_gumbel_plays_the_best_of_its_most_visited_moves_at_any_temperature() -> None:
    moves = [
        (4, 0.2, 0.2, UNPROVEN),
        (4, 0.3, 0.2, UNPROVEN),
        (2, 0.9, 0.3, UNPROVEN),
        (6, 0.9, 0.2, LOSS),
        (0, 0, 0.1, UNPROVEN),
    ]
    for order in (1, -1):  # the search looks at the latest first
        found = chosen(make_root(moves[::order]), [1, 1, 1, 0, 1][::order], 1.0, 20, algorithm="gumbel")
        assert found[::order].tolist() == [0, 20, 0, 0, 0]


# Forced playouts and policy target pruning.

FORCED: dict[str, Any] = {"c_puct": 1.0, "c_puct_log_base": 1e12, "forced_playouts_k": 2.0}


def puct(value: float, prior: float, total: int, visits: float) -> float:
    return value + prior * math.sqrt(total + 0.01) / (1 + visits)


def test_forced_playouts_are_pruned_as_long_as_the_favourite_stays_ahead() -> None:
    moves = [(80, 0.3, 0.6, UNPROVEN), (12, -0.4, 0.3, UNPROVEN), (8, 0.2, 0.1, UNPROVEN)]
    favourite = puct(0.3, 0.6, 100, 80)
    weights = weights_of(make_root(moves, full=True), **FORCED)
    assert weights[0] == 80
    for action in (1, 2):
        visits, mean, prior, _ = moves[action]
        fewest = next(n for n in range(visits + 1) if n == visits or puct(mean, prior, 100, n) < favourite)
        forced = math.ceil(math.sqrt(2 * prior * 100))
        assert weights[action] == max(fewest, visits - forced)
    assert weights[1] == 12 - 8  # all that can have been forced
    assert 8 - 5 < weights[2] < 8  # worth most of its playouts


def test_a_move_left_with_a_single_playout_also_loses_that_one() -> None:
    moves = [(90, 0.5, 0.7, UNPROVEN), (5, -0.9, 0.2, UNPROVEN), (5, -0.9, 0.1, UNPROVEN)]
    assert weights_of(make_root(moves, full=True), **FORCED) == [90, 0, 0]


def test_a_move_better_than_the_favourite_keeps_its_playouts() -> None:
    moves = [(50, 0.1, 0.8, UNPROVEN), (40, 0.4, 0.2, UNPROVEN)]
    assert weights_of(make_root(moves, full=True), **FORCED) == [50, 40]


def test_only_a_full_search_that_forces_playouts_is_pruned() -> None:
    moves = [(90, 0.5, 0.7, UNPROVEN), (5, -0.9, 0.2, UNPROVEN), (5, -0.9, 0.1, UNPROVEN)]
    assert weights_of(make_root(moves, full=False), **FORCED) == [90, 5, 5]
    assert weights_of(make_root(moves, full=True), **FORCED, forced_playouts=False) == [90, 5, 5]


def test_the_favourite_of_pruning_is_not_a_proven_loss() -> None:
    moves = [(90, 0.9, 0.7, LOSS), (5, -0.1, 0.2, UNPROVEN), (5, -0.9, 0.1, UNPROVEN)]
    weights = weights_of(make_root(moves, full=True), **FORCED)
    assert weights[0] == 0
    assert weights[1] == 5


def test_if_every_move_had_one_playout_all_keep_theirs() -> None:
    moves = [(1, -0.1, 0.3, UNPROVEN), (1, 0.1, 0.3, UNPROVEN), (1, -0.4, 0.4, UNPROVEN)]
    assert weights_of(make_root(moves, full=True), **FORCED) == [1, 1, 1]


# The choice of the move.


@pytest.mark.parametrize("temperature", [0.25, 0.5, 1.0, 2.0])
def test_moves_are_drawn_by_their_weights_to_the_power_of_one_over_the_temperature(temperature: float) -> None:
    weights, draws = [3.0, 0.0, 8.0, 1.0, 5.0], 4000
    counts = chosen(make_root([(1, 0, 0.2, UNPROVEN)] * 5), weights, temperature, draws)
    expected = np.array(weights) ** (1 / temperature)
    expected *= draws / expected.sum()
    seen = expected > 0
    assert counts[1] == 0
    assert (
        ((counts - expected)[seen] ** 2) / expected[seen]
    ).sum() < 16.3  # chi-squared with 3 degrees, one in a thousand


@pytest.mark.parametrize("temperature", [0.0, 1e-9, 0.009, 0.011, 0.02])
def test_a_tiny_temperature_plays_the_best_move(temperature: float) -> None:
    weights = [3.0, 0.0, 1e-20, 30000.0, 1.0]
    assert chosen(make_root([(1, 0, 0.2, UNPROVEN)] * 5), weights, temperature, 50)[3] == 50


def test_surprise_is_the_divergence_from_the_network_not_from_the_noise() -> None:
    priors, weights = np.array([0.5, 0.3, 0.2]), np.array([0.1, 0.9, 0.0])
    trees = make_root([(1, 0, 0.9, UNPROVEN), (9, 0, 0.05, UNPROVEN), (0, 0, 0.05, UNPROVEN)])
    trees.root_priors[0] = priors
    expected = sum(w * math.log(w / p) for w, p in zip(weights, priors, strict=True) if w > 0)
    assert policy_surprise(trees, 0, np.array(40 * weights, np.float32)) == pytest.approx(expected, rel=1e-5)
    assert policy_surprise(trees, 0, np.array(7 * priors, np.float32)) == pytest.approx(0, abs=1e-6)


def test_a_root_with_one_move_gives_it_all_the_weight() -> None:
    trees = make_root([(16, -0.3, 1.0, UNPROVEN)], full=True)
    assert weights_of(trees, **FORCED) == [16]
    assert chosen(trees, [16.0], 1.0, 5).tolist() == [5]
