"""More positions than trees: each tree takes the next position as soon as it is done."""

import numpy as np
import pytest

from keima.config.sections.search import SearchSettings
from keima.games import load_game
from keima.games.game import Planes
from keima.search.move_search import Search, SearchResult
from tests.search.forest import random_states
from tests.search.naive_search import StubEvaluator

GAME = load_game("connect_four")


def search(num_trees: int, *, cache_positions: int = 0) -> tuple[Search, list[int]]:
    """Return a search, and the list of its batches' sizes."""
    evaluate, batches = StubEvaluator(GAME), list[int]()

    def counted(observations: Planes) -> tuple[np.ndarray, np.ndarray]:
        batches.append(len(observations))
        return evaluate(observations)

    settings = SearchSettings(forced_playouts=False)
    found = Search(GAME, counted, settings, num_simulations=24, num_trees=num_trees, cache_positions=cache_positions)
    return found, batches


def same(one: SearchResult, other: SearchResult) -> bool:
    return all(np.array_equal(getattr(one, name), getattr(other, name)) for name in ("actions", "values", "visits"))


@pytest.mark.medium
def test_results_do_not_depend_on_how_many_positions_are_searched_at_a_time_nor_on_remembered_evaluations() -> None:
    states = random_states(GAME, 20, np.random.default_rng(1), most_plies=36)
    (whole, _), (few, batches), (remembering, fewer) = search(20), search(3), search(3, cache_positions=1000)
    expected = whole.find(states)
    assert same(few.find(states), expected)
    assert same(remembering.find(states), expected)
    assert sum(fewer) < sum(batches)
    assert np.mean(np.array(batches[:20]) == 3) > 0.5  # some searches end early, and others follow


@pytest.mark.medium
def test_positions_can_be_submitted_while_others_are_searched() -> None:
    states = random_states(GAME, 6, np.random.default_rng(2), most_plies=36)
    expected = search(6)[0].find(states)
    streaming, found = search(2)[0], dict[int, int]()
    streaming.submit([10, 11], states[:2])
    streaming.advance()
    streaming.submit([12, 13, 14, 15], states[2:])
    while streaming.pending:
        numbers, results = streaming.advance()
        found |= dict(zip(numbers.tolist(), results.actions.tolist(), strict=True))
    assert found == {10 + i: action for i, action in enumerate(expected.actions.tolist())}
