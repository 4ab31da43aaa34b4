"""Every position of a recorded game is searched again, whatever move was made there."""

from dataclasses import replace

import numpy as np
import pytest

from keima.config.sections.search import SearchSettings
from keima.data.records import GameRecord
from keima.self_play.follow import FollowedGames, measure_differences
from keima.self_play.parallel_games import SelfPlay
from tests.self_play.test_reproduce import GAME, make_network

SETTINGS = SearchSettings.model_validate(
    {
        "num_simulations": 16,
        "cheap_simulations": 4,
        "opening_random_moves": 2.0,
        "resignation": {"enabled": True, "threshold": 0.6, "consecutive": 1},
    }
)
BELOW = -0.6


@pytest.fixture(scope="module")
def records() -> list[GameRecord]:
    """Sixteen games, some of which were resigned."""
    self_play = SelfPlay(GAME, make_network(), SETTINGS, parallel_games=16)
    self_play.begin(range(100, 116))
    found = list[GameRecord]()
    while self_play.num_playing:
        found += self_play.advance()
    return found


def mean(column: np.ndarray) -> float:
    return float(np.nanmean(column))


def test_the_same_network_searches_every_position_alike(records: list[GameRecord]) -> None:
    assert {bool(record.resigned) for record in records} == {True, False}
    followed = FollowedGames(GAME, make_network(), SETTINGS, records).follow()
    for record, again in zip(records, followed, strict=True):
        assert again.compared == len(record.actions)
        found = measure_differences(record, again, resign_below=BELOW)
        assert mean(found.policies) == mean(found.values) == mean(found.moves) == found.end == 0


def test_two_games_with_one_seed_are_kept_apart(records: list[GameRecord]) -> None:
    twice = [records[0], replace(records[1], seed=records[0].seed)]
    first, second = FollowedGames(GAME, make_network(), SETTINGS, twice).follow()
    assert mean(measure_differences(records[0], first, resign_below=BELOW).moves) == 0
    assert mean(measure_differences(records[1], second, resign_below=BELOW).moves) > 0.2


def test_positions_are_compared_to_the_end_although_moves_differ(records: list[GameRecord]) -> None:
    followed = FollowedGames(GAME, make_network(noise=1e-4), SETTINGS, records).follow()
    found = [
        measure_differences(record, again, resign_below=BELOW) for record, again in zip(records, followed, strict=True)
    ]
    assert all(np.isfinite(each.moves).all() for each in found)
    assert np.mean([mean(each.policies) for each in found]) < 0.05


def test_another_network_is_seen_in_every_column(records: list[GameRecord]) -> None:
    followed = FollowedGames(GAME, make_network(-1.0), SETTINGS, records).follow()
    found = [
        measure_differences(record, again, resign_below=BELOW) for record, again in zip(records, followed, strict=True)
    ]
    for name in ("policies", "values", "moves"):
        assert np.mean([mean(getattr(each, name)) for each in found]) > 0.1, name


def test_the_wrong_player_has_not_resigned(records: list[GameRecord]) -> None:
    resigned = next(record for record in records if record.resigned)
    (again,) = FollowedGames(GAME, make_network(), SETTINGS, [resigned]).follow()
    assert measure_differences(resigned, again, resign_below=BELOW).end == 0
    other = replace(resigned, resigned=3 - resigned.resigned)
    assert measure_differences(other, again, resign_below=BELOW).end == 1


def test_who_resigns_a_good_position_is_seen(records: list[GameRecord]) -> None:
    record, plies = next(
        (record, int(ply)) for record in records for ply in np.flatnonzero(record.root_values > 0.2) if ply > 0
    )
    early = replace(
        record,
        resigned=1 + plies % 2,
        policy_actions=record.policy_actions[: record.policy_sizes[:plies].sum()],
        policy_weights=record.policy_weights[: record.policy_sizes[:plies].sum()],
        **{name: getattr(record, name)[:plies] for name in ("actions", "root_values", "flags", "policy_sizes")},
    )
    (again,) = FollowedGames(GAME, make_network(), SETTINGS, [early]).follow()
    assert measure_differences(early, again, resign_below=BELOW).end > 0.05
