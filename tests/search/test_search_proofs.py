"""Proven results: tic-tac-toe searched to the end agrees with exhaustive minimax, and no proof is wrong on the way
there.
"""

import functools
from typing import Any

import numpy as np
import pytest

from keima.config.sections.search import SearchSettings
from keima.games import load_game
from keima.games.game import Planes, States
from keima.search.move_search import Search
from keima.search.tree import DRAW, LOSS, OVER, UNPROVEN, WIN
from tests.search.forest import Forest
from tests.search.naive_search import Floats, StubEvaluator

GAME = load_game("tic_tac_toe")
ENOUGH = {
    0: 520_000,
    1: 60_000,
    2: 16_000,
    3: 3_000,
}  # simulations that search from a ply to the end; later plies need no more


@functools.cache
def positions() -> list[States]:
    """Return all positions that can be reached before the end of the game, by ply."""
    level, found = {GAME.start.tobytes(): GAME.initial_state()}, []
    while level:
        found.append(np.array(list(level.values())))
        following = {}
        for state in level.values():
            for action in GAME.legal_actions(state):
                after = state.copy()
                GAME.play(after, int(action))
                following[after.tobytes()] = after
        level = {key: state for key, state in following.items() if not GAME.terminal(state)}
    return found


VALUES: dict[bytes, int] = {}


def minimax(state: States) -> int:
    """Return the value under perfect play for the player to move."""
    key = state.tobytes()
    if key not in VALUES:
        if GAME.terminal(state):
            VALUES[key] = int(GAME.returns(state)[GAME.current_player(state)])
        else:
            VALUES[key] = max(value_of(state, int(action)) for action in GAME.legal_actions(state))
    return VALUES[key]


def value_of(state: States, action: int) -> int:
    """Return the value of a move under perfect play afterwards, for the player who makes it."""
    after = state.copy()
    GAME.play(after, action)
    return -minimax(after)


def know_nothing(observations: Planes) -> tuple[Floats, Floats]:
    return np.zeros((len(observations), GAME.num_actions), np.float32), np.zeros(len(observations), np.float32)


def check_proofs(forest: Forest, b: int, number: int, state: States) -> int:
    """Compare every proof in a tree with minimax; return the number of proofs."""
    node = forest.trees.nodes[b, number]
    proofs = int(node.proven != UNPROVEN)
    if proofs:
        assert node.proven - DRAW == minimax(state)
    for child in forest.children(b, number):
        after = state.copy()
        GAME.play(after, int(forest.trees.nodes[b, child].action))
        proofs += check_proofs(forest, b, child, after)
    return proofs


@pytest.mark.medium
def test_there_are_4520_positions_with_a_move() -> None:
    assert sum(len(states) for states in positions()) == 4520


@pytest.mark.medium
@pytest.mark.parametrize("ply", range(9))
def test_tic_tac_toe_searched_to_the_end_agrees_with_minimax(ply: int) -> None:
    states = positions()[ply]
    settings = SearchSettings(c_puct=40.0, fpu_reduction=0.0, leaves_per_tree=16 if ply < 2 else 1)
    forest = Forest(GAME, know_nothing, settings, states, num_simulations=ENOUGH.get(ply, 3_000)).run()
    proven = forest.trees.nodes[:, 0].proven - DRAW
    assert (forest.trees.nodes[:, 0].proven != UNPROVEN).all()
    assert proven.tolist() == [minimax(state) for state in states]


@pytest.mark.medium
@pytest.mark.parametrize("leaves_per_tree", [1, 4])
@pytest.mark.parametrize("algorithm", ["puct", "gumbel"])
def test_no_proof_is_ever_wrong(algorithm: Any, leaves_per_tree: int) -> None:
    settings = SearchSettings(algorithm=algorithm, leaves_per_tree=leaves_per_tree)
    proofs = 0
    for states in positions():
        few = states[:: 1 + len(states) // 30]
        forest = Forest(GAME, StubEvaluator(GAME), settings, few, num_simulations=80, full=True, noisy=True).run()
        proofs += sum(check_proofs(forest, b, 0, state) for b, state in enumerate(few))
    assert proofs > 1000


@pytest.mark.medium
def test_a_node_is_proven_as_soon_as_its_children_prove_it() -> None:
    states = positions()[4]
    forest = Forest(GAME, StubEvaluator(GAME), SearchSettings(), states, num_simulations=60).run()
    for b in range(len(states)):
        for number in range(int(forest.trees.searches[b].used_nodes)):
            node = forest.trees.nodes[b, number]
            known = [int(forest.trees.nodes[b, child].proven_for_parent) for child in forest.children(b, number)]
            complete = bool(known) and node.num_candidates == 0 and UNPROVEN not in known
            expected = WIN if WIN in known else max(known) if complete else UNPROVEN
            assert node.stage == OVER or node.proven == expected


@pytest.mark.medium
@pytest.mark.parametrize("num_simulations", [3, 16, 64])
@pytest.mark.parametrize("algorithm", ["puct", "gumbel"])
def test_a_move_proven_to_lose_is_never_the_best(algorithm: Any, num_simulations: int) -> None:
    states = np.concatenate(positions())[::5]
    settings = SearchSettings(algorithm=algorithm)
    forest = Forest(GAME, StubEvaluator(GAME), settings, states, num_simulations=num_simulations).run()
    search = Search(GAME, StubEvaluator(GAME), settings, num_simulations=num_simulations, num_trees=len(states))
    found = search.find(states)
    known = 0
    for b in range(len(states)):
        if forest.trees.nodes[b, 0].proven != UNPROVEN:
            assert value_of(states[b], int(found.actions[b])) == minimax(states[b]) == found.values[b]
        children = [forest.trees.nodes[b, child] for child in forest.children(b)]
        lost = {int(child.action) for child in children if child.proven_for_parent == LOSS}
        if found.values[b] > -1:
            assert int(found.actions[b]) not in lost
            known += bool(lost)
    assert known > 20


@pytest.mark.medium
def test_more_simulations_play_better() -> None:
    states = np.concatenate(positions())[::3]
    mistakes = []
    for num_simulations in (1, 8, 64, 400):
        found = Search(
            GAME, StubEvaluator(GAME), SearchSettings(), num_simulations=num_simulations, num_trees=256
        ).find(states)
        mistakes.append(
            sum(
                value_of(state, int(action)) < minimax(state)
                for state, action in zip(states, found.actions, strict=True)
            )
        )
    assert mistakes[0] > 2 * mistakes[1] > 4 * mistakes[2] > 8 * mistakes[3]


@pytest.mark.parametrize("name", ["tic_tac_toe", "connect_four"])
def test_the_result_does_not_depend_on_how_many_positions_are_searched_at_once(name: str) -> None:
    game = load_game(name)
    states = np.stack([play_first(game, action) for action in range(5)])
    found = [
        Search(game, StubEvaluator(game), SearchSettings(), num_simulations=30, num_trees=n).find(states)
        for n in (1, 3, 8)
    ]
    for other in found[1:]:
        assert (other.actions == found[0].actions).all()
        assert (other.values == found[0].values).all()
        assert (other.visits == found[0].visits).all()
    assert (found[0].visits.sum(axis=1) == 30).all()


def play_first(game: Any, action: int) -> States:
    state: States = game.initial_state()
    game.play(state, action)
    return state
