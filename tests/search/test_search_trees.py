"""Search trees: their sums agree after every step, virtual loss leaves no trace, and a kept subtree is unchanged."""

from typing import Any

import numpy as np
import pytest

from keima.config.sections.search import SearchSettings
from keima.games import load_game
from keima.games.game import Planes
from keima.search.tree import AWAITED, NONE, OVER, UNPROVEN, WITH_PRIORS
from tests.search.forest import Forest, random_states
from tests.search.naive_search import Floats, StubEvaluator

GAMES = ["tic_tac_toe", "connect_four"]


def check_node(forest: Forest, b: int, number: int) -> None:
    """Check what must hold at a node whose evaluations have all come back."""
    node = forest.trees.nodes[b, number]
    children = [forest.trees.nodes[b, child] for child in forest.children(b, number)]
    below = sum(int(child.visits) for child in children)
    assert node.stage != AWAITED
    assert node.pending == 0
    if node.stage == OVER or node.proven != UNPROVEN:
        assert node.visits >= 1 + below  # more simulations may have ended here, at a known value
    else:
        assert node.visits == 1 + below
        value = node.evaluation + sum(float(child.value_sum) for child in children)
        assert node.value_factor * node.value_sum == pytest.approx(value, abs=1e-4)
    if node.stage == WITH_PRIORS:
        assert node.explored_prior == pytest.approx(sum(float(child.prior) for child in children), abs=1e-5)
        assert node.explored_prior + sum(forest.candidates(b, number).values()) == pytest.approx(1, abs=1e-5)
    for child in children:
        assert child.value_factor == (1 if child.player == node.player else -1)


def check_tree(forest: Forest, b: int) -> None:
    """Check what must hold in a tree between two steps."""
    used = int(forest.trees.searches[b].used_nodes)
    children = [child for number in range(used) for child in forest.children(b, number)]
    assert sorted(children) == list(range(1, used))
    assert all(int(forest.trees.nodes[b, child].parent) < child for child in children)
    for number in range(used):
        check_node(forest, b, number)


def check_moves(forest: Forest, b: int) -> None:
    """Check that children and candidates of every open node are the legal moves, each once."""

    def visit(number: int, state: Any) -> None:
        children = {int(forest.trees.nodes[b, child].action): child for child in forest.children(b, number)}
        if forest.trees.nodes[b, number].stage == WITH_PRIORS:
            assert sorted([*children, *forest.candidates(b, number)]) == forest.game.legal_actions(state).tolist()
        for action, child in children.items():
            after = state.copy()
            forest.game.play(after, action)
            visit(child, after)

    visit(0, forest.states[b])


@pytest.mark.medium
@pytest.mark.parametrize("leaves_per_tree", [1, 2, 3, 8])
@pytest.mark.parametrize("name", GAMES)
def test_after_every_step_no_virtual_loss_remains_and_all_sums_agree(name: str, leaves_per_tree: int) -> None:
    game, random = load_game(name), np.random.default_rng(leaves_per_tree)
    settings = SearchSettings(leaves_per_tree=leaves_per_tree, virtual_loss=0.7)
    states = random_states(game, 6, random, most_plies=6)
    forest = Forest(game, StubEvaluator(game), settings, states, num_simulations=50, full=True, noisy=True)
    while forest.step():
        for b in range(len(states)):
            check_tree(forest, b)
    for b in range(len(states)):
        check_moves(forest, b)
        root = forest.trees.nodes[b, 0]
        assert root.visits == 51 or root.proven != UNPROVEN


def test_sums_of_gumbel_trees_also_agree_after_every_step() -> None:
    game = load_game("connect_four")
    settings = SearchSettings(algorithm="gumbel", leaves_per_tree=3)
    forest = Forest(game, StubEvaluator(game), settings, game.initial_states(3), num_simulations=40)
    while forest.step():
        for b in range(3):
            check_tree(forest, b)


@pytest.mark.parametrize("algorithm", ["puct", "gumbel"])
def test_pending_simulations_are_counted_on_their_paths_and_lead_to_different_leaves(algorithm: Any) -> None:
    game = load_game("connect_four")
    settings = SearchSettings(algorithm=algorithm, leaves_per_tree=8)
    forest = Forest(game, StubEvaluator(game), settings, game.initial_states(4), num_simulations=80)
    batches = []
    while count := forest.select():
        for b in range(4):
            waiting = int(forest.trees.searches[b].waiting)
            assert forest.trees.nodes[b, 0].pending == waiting == len(set(forest.leaves.rows[b, :waiting].node))
        assert forest.trees.searches.waiting.sum() == count
        forest.answer(count)
        batches.append(count)
    assert batches[0] == 4  # a tree without a root has one position to evaluate
    assert np.mean(batches) > 12  # of 4 trees with up to 8 simulations each; few collide


def constant(logits: list[float], value: float) -> Any:
    """Return a network that gives the same answer to every position."""

    def evaluate(observations: Planes) -> tuple[Floats, Floats]:
        return np.tile(np.array(logits, np.float32), (len(observations), 1)), np.full(
            len(observations), value, np.float32
        )

    return evaluate


def test_a_tree_of_three_simulations_agrees_with_a_calculation_by_hand() -> None:
    game = load_game("tic_tac_toe")
    evaluate = constant(np.log([0.4, 0.3, 0.1, 0.05, 0.05, 0.03, 0.03, 0.02, 0.02]).tolist(), 0.2)
    forest = Forest(
        game, evaluate, SearchSettings(c_puct=1.0, fpu_reduction=0.2), game.initial_states(1), num_simulations=3
    ).run()
    # First the largest prior, 0.4. Then sqrt(N) is about 1, and the next prior has 0 + 0.3 (the root's mean is 0)
    # against -0.2 + 0.4 / 2. Then sqrt(N) is about 1.41: 0.1 * 1.41 - 0.2 / 3 for the third is less than -0.2 + 1.41 *
    # 0.4 / 2, and one reply is seen.
    summary = forest.summary(0)
    assert {path: visits for path, (visits, _, _) in summary.items()} == {(0,): 2, (1,): 1, (0, 1): 1}
    assert [summary[path][2] for path in ((0,), (1,), (0, 1))] == pytest.approx([-0.2 + 0.2, -0.2, -0.2])
    root = forest.trees.nodes[0, 0]
    assert root.visits == 4
    assert root.value_sum == pytest.approx(0.2 - 0.2 - 0.2 + 0.2)


def test_a_search_that_wins_at_once_needs_no_more_simulations() -> None:
    game = load_game("tic_tac_toe")
    state = game.initial_state()
    for action in (0, 3, 1, 4):  # X has 0 and 1, O has 3 and 4: X wins with 2
        game.play(state, action)
    logits = [0.0] * 9
    logits[2] = 5.0
    forest = Forest(game, constant(logits, 0.0), SearchSettings(), state[None], num_simulations=50).run()
    assert forest.trees.nodes[0, 0].visits == 2
    assert forest.summary(0) == {(2,): (1, 1, 1.0)}


@pytest.mark.parametrize("name", GAMES)
def test_subtree_reuse_keeps_exactly_the_subtree(name: str) -> None:
    game, random = load_game(name), np.random.default_rng(5)
    forest = Forest(
        game, StubEvaluator(game), SearchSettings(), random_states(game, 8, random, most_plies=3), num_simulations=60
    ).run()
    kept = 0
    for b in range(8):
        child = forest.busiest(b)
        node = forest.trees.nodes[b, child].copy()
        before = {
            path[1:]: found for path, found in forest.summary(b).items() if path[0] == node.action and len(path) > 1
        }
        candidates = forest.candidates(b, child)
        forest.play(b, int(node.action))
        root = forest.trees.nodes[b, 0]
        assert forest.summary(b) == before
        assert forest.candidates(b) == candidates
        assert (root.visits, root.value_sum) == (node.visits, -node.value_sum)
        assert (root.explored_prior, root.evaluation) == (node.explored_prior, node.evaluation)
        assert (root.parent, root.next_sibling, root.value_factor) == (NONE, NONE, 1.0)
        check_tree(forest, b)
        check_moves(forest, b)
        kept += len(before)
    assert kept > 80  # or there was little to keep


@pytest.mark.medium
def test_a_reused_tree_grows_like_any_other() -> None:
    game = load_game("connect_four")
    forest = Forest(
        game, StubEvaluator(game), SearchSettings(), game.initial_states(4), num_simulations=60, full=True, noisy=True
    )
    for _ in range(10):
        forest.run()
        for b in range(4):
            check_tree(forest, b)
            check_moves(forest, b)
            if forest.trees.nodes[b, 0].proven == UNPROVEN:
                forest.play(b, int(forest.trees.nodes[b, forest.busiest(b)].action))
