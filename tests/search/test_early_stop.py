"""In matches and play a search stops once its move is settled."""

import numpy as np
import pytest

from keima.config.sections.search import SearchSettings
from keima.games import load_game
from keima.search.analysis import Analysis, AnalysisTrees
from keima.search.move_search import Search, SearchResult
from tests.search.forest import random_states
from tests.search.naive_search import StubEvaluator

GAME, SIMULATIONS = load_game("connect_four"), 60


def search(early_stop: bool, *, algorithm: str = "puct") -> SearchResult:
    """Search the same 40 positions, most of which are not decided, without proofs."""
    settings = SearchSettings.model_validate(
        {"match_early_stop": early_stop, "algorithm": algorithm, "forced_playouts": False, "proven_results": False}
    )
    found = Search(GAME, StubEvaluator(GAME), settings, num_simulations=SIMULATIONS, num_trees=7)
    return found.find(random_states(GAME, 40, np.random.default_rng(3), most_plies=30))


def test_a_search_stops_as_soon_as_no_move_can_catch_up_and_its_move_is_that_of_a_whole_search() -> None:
    whole, stopped = search(False), search(True)
    assert (stopped.actions == whole.actions).all()
    visits = np.sort(stopped.visits, axis=1)
    left = SIMULATIONS - visits.sum(1)
    over_the_rest = visits[:, -1] - visits[:, -2] - left
    assert (left[over_the_rest <= 0] == 0).all(), "an open race is run to its end"
    assert set(over_the_rest[left > 0].tolist()) <= {1, 2}, "one simulation earlier the other move could catch up"
    assert left.mean() > 0.15 * SIMULATIONS
    assert whole.visits.sum() == len(left) * SIMULATIONS


def test_sequential_halving_is_never_cut_short() -> None:
    assert search(True, algorithm="gumbel").visits.sum() == 40 * SIMULATIONS


def test_analysis_goes_on_although_the_move_is_settled() -> None:
    settings = SearchSettings(match_early_stop=True, forced_playouts=False)
    analysis = Analysis(AnalysisTrees(GAME, StubEvaluator(GAME), settings, max_simulations=SIMULATIONS))
    while not analysis.is_finished:
        analysis.run_simulations(1)
    assert analysis.visits == SIMULATIONS


@pytest.mark.medium
def test_moves_that_lose_for_certain_are_no_contenders() -> None:
    settings = SearchSettings(match_early_stop=True, forced_playouts=False)
    states = random_states(GAME, 60, np.random.default_rng(4), most_plies=38)
    found = Search(GAME, StubEvaluator(GAME), settings, num_simulations=SIMULATIONS, num_trees=9).find(states)
    whole = settings.model_copy(update={"match_early_stop": False})
    expected = Search(GAME, StubEvaluator(GAME), whole, num_simulations=SIMULATIONS, num_trees=9).find(states)
    assert (found.actions == expected.actions).mean() > 0.9  # the rest of a search may prove what it would have played
