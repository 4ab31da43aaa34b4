"""Self-play: the same games from the same seeds however they are played, and records that describe them."""

import dataclasses
import json
import os
import subprocess
import sys
import threading
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from keima.config.sections.search import ResignationSettings, SearchSettings
from keima.data.records import FULL_SEARCH, RANDOM_MOVE, GameRecord
from keima.games import load_game
from keima.games.game import Game, Planes
from keima.self_play.game_log import make_game_log
from keima.self_play.parallel_games import SelfPlay, make_move_params, move_temperature
from tests.search.naive_search import Floats, StubEvaluator
from tests.search.test_search_proofs import minimax, value_of
from tests.sources import ROOT

TIC_TAC_TOE, CONNECT_FOUR = load_game("tic_tac_toe"), load_game("connect_four")
QUICK = SearchSettings(num_simulations=16, cheap_simulations=6, opening_random_moves=1.0)


def play(
    game: Game,
    settings: SearchSettings,
    games: int,
    *,
    evaluate: Any = None,
    parallel_games: int = 64,
    cache_positions: int = 0,
    first_seed: int = 100,
) -> list[GameRecord]:
    """Return records of this many games, by seed."""
    self_play = SelfPlay(
        game, evaluate or StubEvaluator(game), settings, parallel_games=parallel_games, cache_positions=cache_positions
    )
    return play_on(self_play, list(range(first_seed, first_seed + games)))


def play_on(self_play: SelfPlay, seeds: list[int]) -> list[GameRecord]:
    waiting, records = list(seeds), []
    while waiting or self_play.num_playing:
        now = waiting[: self_play.num_idle()]
        del waiting[: len(now)]
        self_play.begin(now)
        records += self_play.advance()
    return sorted(records, key=lambda record: record.seed)


def as_bytes(record: GameRecord) -> list[Any]:
    """Return everything in a record, byte for byte."""
    values = (getattr(record, field.name) for field in dataclasses.fields(record))
    return [value.tobytes() if isinstance(value, np.ndarray) else value for value in values]


def same(some: list[GameRecord], others: list[GameRecord]) -> bool:
    return [as_bytes(record) for record in some] == [as_bytes(record) for record in others]


def targets(record: GameRecord) -> list[tuple[NDArray[np.int32], NDArray[np.uint16]]]:
    """Return actions and weights of each position's policy target."""
    ends = np.cumsum(record.policy_sizes)
    return list(
        zip(np.split(record.policy_actions, ends[:-1]), np.split(record.policy_weights, ends[:-1]), strict=True)
    )


# The same games.

VARIANTS: dict[str, SearchSettings] = {
    "puct": QUICK,
    "gumbel": QUICK.model_copy(update={"algorithm": "gumbel"}),
    "several leaves": QUICK.model_copy(update={"leaves_per_tree": 4}),
    "resignation": QUICK.model_copy(
        update={"resignation": ResignationSettings(enabled=True, threshold=0.3, consecutive=1)}
    ),
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_games_do_not_depend_on_parallel_games(variant: str) -> None:
    records = [
        play(CONNECT_FOUR, VARIANTS[variant], 30, parallel_games=parallel_games) for parallel_games in (1, 3, 64)
    ]
    assert same(records[0], records[1])
    assert same(records[0], records[2])
    assert len({record.actions.tobytes() for record in records[0]}) > 25


def test_games_do_not_depend_on_other_threads() -> None:
    alone = {first: play(CONNECT_FOUR, QUICK, 40, first_seed=first) for first in (0, 1000)}
    beside: dict[int, list[GameRecord]] = {}

    def run(first: int) -> None:
        beside[first] = play(CONNECT_FOUR, QUICK, 40, first_seed=first)

    threads = [threading.Thread(target=run, args=(first,)) for first in alone]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(same(beside[first], alone[first]) for first in alone)


PLAIN_PYTHON = """
import json
from tests.self_play.test_self_play import CONNECT_FOUR, TIC_TAC_TOE, VARIANTS, play
for variant, game in (("puct", TIC_TAC_TOE), ("gumbel", TIC_TAC_TOE), ("puct", CONNECT_FOUR)):
    for record in play(game, VARIANTS[variant], 2, parallel_games=2):
        print(json.dumps([record.actions.tolist(), record.policy_actions.tolist(), record.policy_weights.tolist()]))
"""


@pytest.mark.medium
def test_plain_python_plays_the_same_games_as_compiled_code() -> None:
    environment = os.environ | {"NUMBA_DISABLE_JIT": "1", "PYTHONPATH": str(ROOT)}
    finished = subprocess.run(
        [sys.executable, "-c", PLAIN_PYTHON], env=environment, cwd=ROOT, capture_output=True, text=True, check=True
    )
    plain = [json.loads(line) for line in finished.stdout.splitlines()]
    played = (("puct", TIC_TAC_TOE), ("gumbel", TIC_TAC_TOE), ("puct", CONNECT_FOUR))
    records = [record for variant, game in played for record in play(game, VARIANTS[variant], 2)]
    assert plain == [[r.actions.tolist(), r.policy_actions.tolist(), r.policy_weights.tolist()] for r in records]


@pytest.mark.parametrize("algorithm", ["puct", "gumbel"])
def test_the_position_cache_saves_evaluations_and_changes_nothing(algorithm: str) -> None:
    settings = QUICK.model_copy(update={"algorithm": algorithm})
    plain, cached, tiny = StubEvaluator(CONNECT_FOUR), StubEvaluator(CONNECT_FOUR), StubEvaluator(CONNECT_FOUR)
    records = play(CONNECT_FOUR, settings, 60, evaluate=plain)
    assert same(records, play(CONNECT_FOUR, settings, 60, evaluate=cached, parallel_games=8, cache_positions=100_000))
    assert same(records, play(CONNECT_FOUR, settings, 60, evaluate=tiny, parallel_games=8, cache_positions=16))
    assert cached.positions < 0.9 * plain.positions
    assert cached.positions < tiny.positions < plain.positions


def test_a_new_or_an_earlier_model_is_used_at_once_and_named_in_the_games_it_plays() -> None:
    evaluator = StubEvaluator(CONNECT_FOUR, seed=1)
    self_play = SelfPlay(
        CONNECT_FOUR, lambda planes: evaluator(planes), QUICK, parallel_games=8, cache_positions=100_000
    )
    old = play_on(self_play, list(range(8)))
    evaluator = StubEvaluator(CONNECT_FOUR, seed=2)
    self_play.change_model(7)
    assert same(
        [dataclasses.replace(record, first_model=0, last_model=0) for record in play_on(self_play, list(range(8)))],
        play(CONNECT_FOUR, QUICK, 8, evaluate=StubEvaluator(CONNECT_FOUR, seed=2), first_seed=0),
    )
    self_play.begin([50])
    for _ in range(5):
        assert self_play.advance() == []
    self_play.change_model(9)
    (record,) = play_on(self_play, [])
    assert (record.first_model, record.last_model) == (7, 9)
    self_play.begin([51])
    assert self_play.advance() == []
    self_play.change_model(8)
    (record,) = play_on(self_play, [])
    assert (record.first_model, record.last_model) == (8, 9)
    assert all((record.first_model, record.last_model) == (0, 0) for record in old)


# The records.


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("game", [TIC_TAC_TOE, CONNECT_FOUR], ids=["tic_tac_toe", "connect_four"])
def test_records_can_be_replayed_and_their_targets_are_legal(game: Game, variant: str) -> None:
    for record in play(game, VARIANTS[variant], 60):
        state = game.initial_state()
        assert (
            record.actions.size
            == record.flags.size
            == record.root_values.size
            == record.policy_sizes.size
            == record.surprise.size
        )
        for action, flags, (policy, weights) in zip(record.actions, record.flags, targets(record), strict=True):
            legal = game.legal_actions(state)
            assert bool(flags & FULL_SEARCH) == (policy.size > 0)
            assert set(policy) <= set(legal)
            assert (np.diff(policy) > 0).all()
            assert (weights > 0).all()
            game.play(state, int(action))
        assert game.terminal(state) or record.resigned
        if not record.resigned:
            assert record.returns.tolist() == game.returns(state).tolist()
        assert (np.abs(record.root_values) <= 1).all()
        assert (record.surprise >= 0).all()
        assert (record.surprise[(record.flags & FULL_SEARCH) == 0] == 0).all()


def test_a_full_search_without_forcing_and_proofs_has_all_its_visits_in_the_target() -> None:
    settings = SearchSettings(
        num_simulations=20,
        full_search_probability=1.0,
        subtree_reuse=False,
        forced_playouts=False,
        proven_results=False,
    )
    for record in play(CONNECT_FOUR, settings, 10):
        assert all(weights.sum() == 20 for _, weights in targets(record))


def test_with_reuse_a_full_search_has_at_least_its_visits_in_the_target() -> None:
    settings = SearchSettings(
        num_simulations=20, full_search_probability=1.0, forced_playouts=False, proven_results=False
    )
    sums = [weights.sum() for record in play(CONNECT_FOUR, settings, 10) for _, weights in targets(record)]
    assert set(sums) == {20}


def test_the_share_of_full_searches_is_as_configured() -> None:
    settings = SearchSettings(num_simulations=8, cheap_simulations=4, full_search_probability=0.3)
    flags = np.concatenate([record.flags for record in play(CONNECT_FOUR, settings, 250)])
    share, error = (flags & FULL_SEARCH > 0).mean(), np.sqrt(0.3 * 0.7 / flags.size)
    assert flags.size > 2000
    assert abs(share - 0.3) < 4 * error


def test_every_search_is_full_if_configured() -> None:
    settings = SearchSettings(num_simulations=8, full_search_probability=1.0)
    assert all((record.flags == FULL_SEARCH).all() for record in play(CONNECT_FOUR, settings, 20))


def test_a_cheap_search_evaluates_less() -> None:
    evaluations = []
    for cheap in (4, 32):
        evaluator = StubEvaluator(CONNECT_FOUR)
        settings = SearchSettings(
            num_simulations=32, cheap_simulations=cheap, full_search_probability=0.01, subtree_reuse=False
        )
        records = play(CONNECT_FOUR, settings, 20, evaluate=evaluator)
        evaluations.append(evaluator.positions / sum(record.actions.size for record in records))
    assert evaluations[0] < 8 < 16 < evaluations[1]


# Random openings.


def one_hot(observations: Planes) -> tuple[Floats, Floats]:
    """A network that wants column 4, and sometimes column 1."""
    logits = np.tile(np.log(np.array([0.2, 1e-9, 1e-9, 0.8, 1e-9, 1e-9, 1e-9], np.float32)), (len(observations), 1))
    return logits, np.zeros(len(observations), np.float32)


def test_a_random_opening_is_drawn_from_the_bare_policy_and_marked() -> None:
    settings = SearchSettings(num_simulations=4, cheap_simulations=4, opening_random_moves=3.0)
    for algorithm in ("puct", "gumbel"):
        records = play(CONNECT_FOUR, settings.model_copy(update={"algorithm": algorithm}), 600, evaluate=one_hot)
        random = [record.flags & RANDOM_MOVE > 0 for record in records]
        lengths = np.array([flags.sum() for flags in random])
        assert all((np.flatnonzero(flags) == np.arange(flags.sum())).all() for flags in random)
        assert lengths.min() == 0
        assert 2.2 < lengths.mean() < 3.2  # a geometric length of mean 2.5: 3 rounded down; some games end before
        first = np.array([record.actions[0] for record, flags in zip(records, random, strict=True) if flags[0]])
        assert set(first) == {0, 3}
        assert abs((first == 3).mean() - 0.8) < 4 * np.sqrt(0.16 / first.size)
        assert all((record.policy_sizes[flags] == 0).all() for record, flags in zip(records, random, strict=True))


def test_a_share_of_the_moves_of_a_random_opening_is_drawn_evenly() -> None:
    settings = SearchSettings(num_simulations=4, cheap_simulations=4, opening_random_moves=3.0, opening_even_share=0.5)
    for algorithm in ("puct", "gumbel"):
        records = play(CONNECT_FOUR, settings.model_copy(update={"algorithm": algorithm}), 900, evaluate=one_hot)
        first = np.array([record.actions[0] for record in records if record.flags[0] & RANDOM_MOVE])
        shares = np.bincount(first, minlength=7) / first.size
        expected = (np.array([0.2, 0, 0, 0.8, 0, 0, 0]) + 1 / 7) / 2
        assert (np.abs(shares - expected) < 4 * np.sqrt(expected * (1 - expected) / first.size)).all()


def test_later_moves_are_also_random_with_a_share_drawn_for_each_game() -> None:
    settings = SearchSettings(
        num_simulations=8, full_search_probability=1.0, random_move_share=0.3, proven_results=False
    )
    for algorithm in ("puct", "gumbel"):
        records = play(CONNECT_FOUR, settings.model_copy(update={"algorithm": algorithm}), 600, evaluate=one_hot)
        shares = np.array([(record.flags & RANDOM_MOVE > 0).mean() for record in records])
        assert 0.25 < shares.mean() < 0.35
        assert shares.min() == 0 and 0.5 < shares.max() < 0.9  # from 0 to 0.6: wider than chance alone would make it
        assert shares.std() > 0.15
        first = np.array([record.actions[0] for record in records if record.flags[0] & RANDOM_MOVE])
        assert (np.abs(np.bincount(first, minlength=7) / first.size - 1 / 7) < 4 * np.sqrt(6 / 49 / first.size)).all()
        assert all((record.policy_sizes > 0).all() for record in records)  # all were searched


def test_proven_results_are_played_to_the_end() -> None:
    settings = SearchSettings(num_simulations=64, full_search_probability=1.0, random_move_share=0.5, lookahead_plies=2)
    records = play(CONNECT_FOUR, settings, 100)
    proven = np.concatenate([np.abs(record.root_values) == 1 for record in records])
    random = np.concatenate([record.flags & RANDOM_MOVE > 0 for record in records])
    assert proven.sum() > 100 and random.sum() > 100 and not (proven & random).any()
    won = [record.returns[0] != 0 for record in records]
    assert all(
        record.root_values[-1] == 1 for record, decided in zip(records, won, strict=True) if decided
    )  # no game got there by chance


def test_without_a_random_opening_no_move_is_marked() -> None:
    assert all(
        (record.flags & RANDOM_MOVE == 0).all() for record in play(CONNECT_FOUR, SearchSettings(num_simulations=16), 20)
    )


# The choice of moves.


def test_the_temperature_halves_its_distance_to_the_final_one() -> None:
    settings = SearchSettings(temperature=1.2, temperature_final=0.2, temperature_halflife=10.0)
    moves, log = make_move_params(settings, CONNECT_FOUR), make_game_log(CONNECT_FOUR, 1)
    streams = np.zeros(1, np.uint64)
    for ply, expected in ((0, 1.2), (10, 0.7), (20, 0.45), (30, 0.325)):
        log.slots[0].ply = ply
        assert move_temperature(moves, streams, log, 0) == pytest.approx(expected)
    log.slots[0].ply, log.slots[0].random_plies = 3, 4
    assert move_temperature(moves, streams, log, 0) == 1.0


def test_the_automatic_halflife_is_the_longer_side_of_the_board() -> None:
    assert make_move_params(SearchSettings(), CONNECT_FOUR).temperature_halflife == 7
    assert make_move_params(SearchSettings(), TIC_TAC_TOE).temperature_halflife == 3


def test_at_temperature_zero_games_differ_only_by_noise() -> None:
    settings = SearchSettings(num_simulations=16, temperature=0.0, temperature_final=0.0, dirichlet_fraction=0.0)
    assert len({record.actions.tobytes() for record in play(CONNECT_FOUR, settings, 10)}) < 10
    plain = settings.model_copy(update={"full_search_probability": 1.0})
    assert len({record.actions.tobytes() for record in play(CONNECT_FOUR, plain, 10)}) == 1


@pytest.mark.parametrize("algorithm", ["puct", "gumbel"])
def test_the_proven_value_of_a_root_is_correct_and_preserved_by_the_move(algorithm: Any) -> None:
    proven = 0
    for record in play(TIC_TAC_TOE, SearchSettings(algorithm=algorithm, num_simulations=64, cheap_simulations=32), 60):
        state = TIC_TAC_TOE.initial_state()
        for action, value in zip(record.actions, record.root_values, strict=True):
            if abs(value) == 1:
                assert minimax(state) == value_of(state, int(action)) == value
                proven += 1
            TIC_TAC_TOE.play(state, int(action))
    assert proven > 50


# Resignation.


def gloomy(observations: Planes) -> tuple[Floats, Floats]:
    """A network that believes that the player of even plies has lost."""
    stones = observations[:, :2].sum(axis=(1, 2, 3)).astype(int)
    return np.zeros((len(observations), 7), np.float32), np.where(stones % 2 == 0, -0.9, 0.9).astype(np.float32)


def resigning(**changes: Any) -> SearchSettings:
    resignation = ResignationSettings(
        **{"enabled": True, "threshold": 0.8, "consecutive": 3, "no_resign_fraction": 0.0} | changes
    )
    return SearchSettings(num_simulations=8, cheap_simulations=4, proven_results=False, resignation=resignation)


def test_a_player_resigns_after_a_number_of_hopeless_moves() -> None:
    for consecutive in (2, 3):
        for record in play(CONNECT_FOUR, resigning(consecutive=consecutive), 10, evaluate=gloomy):
            assert record.resigned == 1
            assert record.returns.tolist() == [-1, 1]
            assert record.actions.size == 2 * (
                consecutive - 1
            )  # plies 0, 2, 4 are the first player's; the last is not played
            assert record.policy_sizes.size == record.actions.size


def test_only_moves_that_were_searched_count_as_hopeless() -> None:
    settings = resigning(consecutive=3).model_copy(update={"opening_random_moves": 5.0})
    openings = set[int]()
    for record in play(CONNECT_FOUR, settings, 30, evaluate=gloomy):
        opening = int(np.logical_and.accumulate(record.flags & RANDOM_MOVE != 0).sum())
        if record.resigned:
            openings.add(opening)
            assert len(range(opening + opening % 2, record.actions.size, 2)) == 2, "the third is not played"
    assert max(openings) > 3


def test_no_player_resigns_before_the_first_move() -> None:
    for record in play(CONNECT_FOUR, resigning(consecutive=1), 10, evaluate=gloomy):
        assert record.resigned == 1
        assert record.actions.size == 2


def test_hopeless_moves_must_be_consecutive() -> None:
    def moody(observations: Planes) -> tuple[Floats, Floats]:
        logits, values = gloomy(observations)
        stones = observations[:, :2].sum(axis=(1, 2, 3)).astype(int)
        return logits, np.where(stones % 4 < 2, values, -values)

    assert not any(record.resigned for record in play(CONNECT_FOUR, resigning(consecutive=3), 10, evaluate=moody))


def test_no_player_resigns_if_resignation_is_off_or_the_game_is_not_hopeless_enough() -> None:
    for settings in (resigning(enabled=False), resigning(threshold=0.95)):
        assert not any(record.resigned for record in play(CONNECT_FOUR, settings, 10, evaluate=gloomy))


def test_a_share_of_the_games_is_played_to_the_end_to_count_false_resignations() -> None:
    records = play(CONNECT_FOUR, resigning(no_resign_fraction=0.25), 400, evaluate=gloomy)
    played_on = np.mean([record.resigned == 0 for record in records])
    assert abs(played_on - 0.25) < 4 * np.sqrt(0.25 * 0.75 / 400)
