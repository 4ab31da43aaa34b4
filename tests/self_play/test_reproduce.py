"""Recorded games are played again by their seeds, with the same moves and visits if nothing was forged."""

import numpy as np
import pytest

from keima.config.sections.search import SearchSettings
from keima.data.records import GameRecord
from keima.games import load_game
from keima.search.puct import Evaluate
from keima.self_play.parallel_games import SelfPlay
from keima.self_play.reproduce import compare_games, reproduce_games

GAME = load_game("connect_four")
SETTINGS = SearchSettings(num_simulations=16, cheap_simulations=4, opening_random_moves=2.0)


def make_network(weight: float = 1.0, noise: float = 0.0) -> Evaluate:
    """Return a network that likes what it sees, with answers that are a little off."""
    random = np.random.default_rng(1)

    def evaluate(observations: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        flat = observations.reshape(len(observations), -1)
        mixed = np.sin(flat @ np.arange(1, flat.shape[1] * (GAME.num_actions + 1) + 1).reshape(flat.shape[1], -1))
        mixed = weight * mixed + noise * random.normal(size=mixed.shape)
        return mixed[:, :-1].astype(np.float32), np.tanh(mixed[:, -1]).astype(np.float32)

    return evaluate


@pytest.fixture(scope="module")
def records() -> list[GameRecord]:
    """Eight games that were played side by side."""
    self_play = SelfPlay(GAME, make_network(), SETTINGS, parallel_games=8)
    self_play.begin(range(100, 108))
    found = list[GameRecord]()
    while self_play.num_playing:
        found += self_play.advance()
    return found


def test_the_same_network_repeats_every_game_alone(records: list[GameRecord]) -> None:
    distances = list[float]()
    for record in records[:4]:
        (agreement,), evaluations = reproduce_games(GAME, make_network(), SETTINGS, [record])
        assert agreement.same == agreement.plies == len(record.actions) and evaluations > 0
        distances += agreement.distances
    assert distances and max(distances) == 0


def test_answers_that_are_rounded_differently_change_few_visits(records: list[GameRecord]) -> None:
    agreements, _ = reproduce_games(GAME, make_network(noise=1e-4), SETTINGS, records)
    distances = [agreement.distance for agreement in agreements if agreement.distance is not None]
    assert np.mean(distances) < 0.05


@pytest.mark.parametrize(
    ("evaluate", "settings"),
    [(make_network(-1.0), SETTINGS), (make_network(), SETTINGS.model_copy(update={"num_simulations": 32}))],
    ids=["another network", "other settings"],
)
def test_another_network_or_search_is_seen(
    evaluate: Evaluate, settings: SearchSettings, records: list[GameRecord]
) -> None:
    agreements, _ = reproduce_games(GAME, evaluate, settings, records)
    distances = [agreement.distance for agreement in agreements if agreement.distance is not None]
    assert np.median(distances) > 0.05


def test_nothing_is_compared_after_the_first_move_that_differs(records: list[GameRecord]) -> None:
    first, second = records[:2]
    agreement = compare_games(first, second)
    assert agreement.same < agreement.plies
    assert len(agreement.distances) <= agreement.same + 1
