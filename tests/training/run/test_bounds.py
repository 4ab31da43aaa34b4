"""How a run's figures grow with its games."""

import pytest

from configs.schema import GrowthSettings, SearchSettings
from training.run.bounds import full_simulations


@pytest.mark.parametrize(("games", "simulations"), [(0, 16), (250, 28), (500, 40), (1000, 64), (10**6, 64)])
def test_full_searches_grow_evenly_to_their_size(games: int, simulations: int) -> None:
    settings = SearchSettings(num_simulations=64, growth=GrowthSettings(simulations=16, games=1000))
    assert full_simulations(settings, games) == simulations


def test_searches_have_their_size_all_along_by_default() -> None:
    assert full_simulations(SearchSettings(), 0) == full_simulations(SearchSettings(), 10**6) == 0
