"""Shares: whole numbers that add up, by weight and speed, and respected by the workers."""

import random
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keima.cluster.fleet.balancer import (
    HALF_LIFE,
    START_GAMES,
    Balance,
    Decision,
    WorkerLoad,
    balance_games,
    split_in_proportion,
)

NAMES = st.text("abcdef", min_size=1, max_size=4)
CLAIMS = st.dictionaries(NAMES, st.floats(1e-3, 1e3), min_size=1, max_size=12)


@pytest.mark.medium
@given(st.integers(0, 10_000), CLAIMS)
def test_whole_shares_add_up_and_differ_from_the_exact_ones_by_less_than_a_game(
    total: int, claims: dict[str, float]
) -> None:
    shares = split_in_proportion(total, claims)
    assert sum(shares.values()) == total
    for name, games in shares.items():
        assert abs(games - total * claims[name] / sum(claims.values())) < 1 + 1e-6


def test_the_largest_remainders_get_the_rounding_rest_and_ties_go_by_name() -> None:
    assert split_in_proportion(10, {"a": 1.0, "b": 1.0, "c": 1.0}) == {"a": 4, "b": 3, "c": 3}
    assert split_in_proportion(10, {"a": 0.14, "b": 0.26, "c": 0.6}) == {"a": 1, "b": 3, "c": 6}


LOADS = st.builds(
    lambda finished, left, speed, parallel, weight: WorkerLoad(
        finished=finished, granted=finished + left, speed=speed, parallel_games=parallel, weight=weight
    ),
    st.integers(0, 10_000),
    st.integers(0, 5_000),
    st.just(0.0) | st.floats(1e-3, 1e3),
    st.integers(0, 512),
    st.floats(0.01, 100),
)
FLEETS = st.dictionaries(NAMES, LOADS, max_size=6)


@pytest.mark.medium
@given(st.lists(FLEETS, min_size=1, max_size=5), st.integers(0, 500), st.integers(1, 200), st.booleans())
def test_decisions_are_sound_whatever_workers_report(
    polls: list[dict[str, WorkerLoad]], ahead: int, batch: int, balanced: bool
) -> None:
    state = Balance()
    for number, workers in enumerate(polls):
        state, decisions = balance_games(
            state, workers, 2.0 * number, ahead=ahead, batch_games=batch, load_balancing=balanced
        )
        assert decisions.keys() == workers.keys()
        assert not workers or sum(decision.share for decision in decisions.values()) == pytest.approx(1)
        for name, decision in decisions.items():
            worker = workers[name]
            assert decision.grant >= 0
            assert decision.grant == 0 or (ahead > 0 and decision.lower is None)
            assert decision.lower is None or worker.finished < decision.lower < worker.granted
            assert decision.speed > 0
            most = max(batch, START_GAMES * worker.parallel_games, ahead * len(workers) + 1)
            assert worker.granted - worker.finished + decision.grant <= max(most, worker.granted - worker.finished)


def decide(
    workers: dict[str, WorkerLoad], *, ahead: int = 200, batch_games: int = 10, **options: Any
) -> dict[str, Decision]:
    return balance_games(Balance(), workers, 0.0, ahead=ahead, batch_games=batch_games, **options)[1]


def test_games_ahead_last_all_workers_of_the_same_weight_equally_long() -> None:
    decisions = decide(
        {"a": WorkerLoad(finished=0, granted=0, speed=1.0), "b": WorkerLoad(finished=70, granted=90, speed=3.0)}
    )
    assert {name: decision.grant for name, decision in decisions.items()} == {"a": 100, "b": 280}
    assert {name: decision.share for name, decision in decisions.items()} == {"a": 0.25, "b": 0.75}
    assert decisions["b"].reason == "weight 1 x 3 games/s"


def test_every_worker_has_a_batch_ahead_and_a_game_for_every_slot() -> None:
    workers = {
        "fast": WorkerLoad(finished=0, granted=0, speed=10.0, parallel_games=8),
        "wide": WorkerLoad(finished=0, granted=0, speed=2.0, parallel_games=64),
        "slow": WorkerLoad(finished=0, granted=0, speed=2.0, parallel_games=8),
    }
    assert [decision.grant for decision in decide(workers, ahead=50, batch_games=40).values()] == [107, 64, 40]


def test_a_fast_worker_has_games_ahead_for_the_seconds_until_its_next_grant() -> None:
    workers = {
        name: WorkerLoad(finished=0, granted=0, speed=speed, parallel_games=64, answer_seconds=7.0)
        for name, speed in (("gpu", 300.0), ("old", 1.0), ("liar", 1e9))
    }
    grants = {name: each.grant for name, each in decide(workers).items()}
    assert grants == {"gpu": 2100, "old": 7, "liar": 16 * 200}


def test_a_batch_that_would_take_a_slow_worker_three_times_as_long_as_the_others_is_not_granted() -> None:
    workers = {
        "fast": WorkerLoad(finished=0, granted=0, speed=10.0),
        "slow": WorkerLoad(finished=0, granted=0, speed=0.01),
    }
    assert decide(workers, ahead=50, batch_games=40)["slow"].grant == 1


def test_a_new_worker_is_assumed_as_fast_as_the_others_and_gets_initial_games() -> None:
    workers = {
        "a": WorkerLoad(finished=0, granted=0, speed=2.0),
        "b": WorkerLoad(finished=0, granted=0, speed=4.0),
        "new": WorkerLoad(finished=0, granted=0, parallel_games=16),
    }
    decision = decide(workers)["new"]
    # Four for each of its parallel games, so that all are taken while its speed is measured.
    assert (decision.grant, decision.speed) == (64, 3.0)
    assert decision.share == pytest.approx(1 / 3)
    assert decision.reason == "weight 1 x 3 games/s, not measured yet"


def test_a_first_worker_is_assumed_to_play_a_game_a_second() -> None:
    assert decide({"a": WorkerLoad(finished=0, granted=0)})["a"].speed == 1.0


def test_no_games_are_granted_and_none_withdrawn_while_the_learner_is_behind() -> None:
    decisions = decide(
        {
            "a": WorkerLoad(finished=0, granted=0, speed=1.0),
            "b": WorkerLoad(finished=0, granted=500, speed=1.0),
        },
        ahead=0,
    )
    assert decisions["a"].grant == 0
    assert decisions["b"].lower is None


def test_grants_of_a_few_games_wait_until_they_are_a_sixteenth_of_what_a_worker_may_have() -> None:
    def grant(left: int) -> int:
        return decide({"a": WorkerLoad(finished=0, granted=left, speed=1.0)}, ahead=160)["a"].grant

    assert [grant(left) for left in (0, 149, 150, 151, 160)] == [160, 11, 10, 0, 0]


def test_without_load_balancing_shares_are_equal_and_say_so() -> None:
    workers = {
        "a": WorkerLoad(finished=0, granted=0, speed=1.0, weight=3.0),
        "b": WorkerLoad(finished=0, granted=0, speed=4.0),
    }
    decisions = decide(workers, load_balancing=False)
    assert [decision.share for decision in decisions.values()] == [0.5, 0.5]
    assert decisions["a"].reason == "equal shares"
    assert decisions["b"].reason == "equal shares; idles 75% of the time to keep to its share"


def test_speeds_and_games_in_hand_are_averaged_with_those_of_a_half_life_ago() -> None:
    first = {"a": WorkerLoad(finished=0, granted=20, speed=2.0)}
    state, _ = balance_games(Balance(), first, 0.0, ahead=200, batch_games=10)
    then = {"a": WorkerLoad(finished=0, granted=0, speed=4.0)}
    state, decisions = balance_games(state, then, HALF_LIFE, ahead=200, batch_games=10)
    assert decisions["a"].speed == pytest.approx(3.0)
    assert state.histories["a"].in_hand == pytest.approx(10.0)


def test_a_light_worker_owes_its_share_of_what_the_heavy_ones_finish_and_idles_else() -> None:
    heavy, light = (WorkerLoad(finished=0, granted=0, speed=2.0, weight=weight) for weight in (4.0, 1.0))
    state, _ = balance_games(Balance(), {"heavy": heavy, "light": light}, 0.0, ahead=200, batch_games=10)
    heavy = replace(heavy, finished=40, granted=40)
    state, decisions = balance_games(state, {"heavy": heavy, "light": light}, 2.0, ahead=200, batch_games=10)
    assert state.histories["light"].owed == pytest.approx(10.0), "a fourth of 40 games"
    assert decisions["light"].grant == 11, "with half a piece of 4 s, a fourth of the time, at 2 games/s"
    assert decisions["light"].reason == "weight 1 x 2 games/s; idles 75% of the time to keep to its share"
    state, decisions = balance_games(state, {"light": light}, 4.0, ahead=200, batch_games=10)
    assert state.histories["light"].owed == 0.0, "nobody is there to keep up with"


def test_a_slow_light_worker_gets_single_games() -> None:
    heavy = WorkerLoad(finished=0, granted=0, speed=2.0, weight=4.0)
    light = WorkerLoad(finished=0, granted=0, speed=0.1)
    state, _ = balance_games(Balance(), {"heavy": heavy, "light": light}, 0.0, ahead=200, batch_games=10)
    heavy = replace(heavy, finished=48, granted=48)
    state, decisions = balance_games(state, {"heavy": heavy, "light": light}, 2.0, ahead=200, batch_games=10)
    assert state.histories["light"].owed == pytest.approx(0.6), "an eightieth of 48 games"
    assert decisions["light"].grant == 1


def test_a_measured_worker_has_a_game_for_each_of_its_parallel_games() -> None:
    assert decide({"a": WorkerLoad(finished=0, granted=0, speed=2.0, parallel_games=64)}, ahead=30)["a"].grant == 64


def test_what_a_worker_played_before_it_was_measured_counts_as_far_as_it_was_too_much() -> None:
    heavy = WorkerLoad(finished=0, granted=0, speed=2.0, weight=4.0)
    state = Balance()
    for time, light in enumerate(
        (
            WorkerLoad(finished=0, granted=20),
            WorkerLoad(finished=12, granted=20),
            WorkerLoad(finished=12, granted=20, speed=2.0),
        )
    ):
        state, _ = balance_games(state, {"heavy": heavy, "light": light}, 2.0 * time, ahead=200, batch_games=10)
    assert state.histories["light"].owed == pytest.approx(-12 * (1 - 1 / 4))


def test_without_workers_nothing_is_decided() -> None:
    assert decide({}) == {}


def test_a_worker_that_has_become_slow_loses_the_games_that_it_has_not_begun() -> None:
    workers = {name: WorkerLoad(finished=100, granted=300, speed=2.0, parallel_games=8) for name in "abc"}
    state, decisions = balance_games(Balance(), workers, 0.0, ahead=200, batch_games=10)
    assert all(decision.lower is None for decision in decisions.values())
    workers["c"] = replace(workers["c"], speed=0.1)
    for poll in range(1, 40):
        state, decisions = balance_games(state, workers, 2.0 * poll, ahead=200, batch_games=10)
    assert decisions["a"].lower is decisions["b"].lower is None
    assert decisions["c"].lower is not None
    assert 100 + 8 <= decisions["c"].lower < 130
    assert "are withdrawn" in decisions["c"].reason


def test_a_straggler_takes_three_times_as_long_as_all_together() -> None:
    def lower(left: int) -> int | None:
        workers = {name: WorkerLoad(finished=0, granted=100, speed=2.0) for name in "ab"}
        workers["slow"] = WorkerLoad(finished=0, granted=left, speed=0.5)
        return decide(workers)["slow"].lower  # all have 600 games ahead, which take 133 s; it plays 66.7 in them

    assert lower(200) is None
    assert lower(201) == 66


def test_a_single_worker_is_no_straggler() -> None:
    assert decide({"a": WorkerLoad(finished=0, granted=200, speed=0.001)})["a"].lower is None


def test_a_worker_that_was_away_starts_again_with_its_old_speed() -> None:
    here = WorkerLoad(finished=500, granted=700, speed=2.0)
    away = WorkerLoad(finished=100, granted=100, speed=6.0)
    state, _ = balance_games(Balance(), {"here": here, "away": away}, 0.0, ahead=200, batch_games=10)
    state, _ = balance_games(state, {"here": here}, 2.0, ahead=200, batch_games=10)
    back = replace(away, finished=300, granted=350, speed=0.0)
    state, decisions = balance_games(state, {"here": here, "away": back}, 4.0, ahead=200, batch_games=10)
    assert decisions["away"].speed == 6.0
    assert state.histories["away"].owed == 0.0
    assert state.histories["away"].in_hand == 50.0
    for hours, known in ((23, True), (25, False)):
        state, _ = balance_games(state, {"here": here}, 4.0 + 3600.0 * hours, ahead=200, batch_games=10)
        assert ("away" in state.histories) == known, "or a crowd's histories would grow for weeks"


# Simulated fleets.


@dataclass
class Player:
    """A simulated worker: it plays ``rate`` games per second whatever their number, or each game in its own time."""

    rate: float
    weight: float = 1.0
    slots: int = 8
    own_time: bool = False  # a game takes slots / rate seconds, as on a mostly idle GPU
    granted: int = 0
    finished: int = 0
    speed: float = 0.0  # as it reports itself
    games: list[float] = field(default_factory=list)  # what is left of each, in its own seconds
    idle: float = 0.0
    away: bool = False

    def play(self, seconds: float, rng: random.Random) -> None:
        while len(self.games) < self.slots and self.finished + len(self.games) < self.granted:
            self.games.append(rng.uniform(0.5, 1.5) * self.slots / self.rate)
        self.idle += 0.0 if self.games else seconds
        speed = 1.0 if self.own_time or not self.games else self.slots / len(self.games)
        self.games = [left - speed * seconds for left in self.games]
        self.finished += sum(left <= 0 for left in self.games)
        self.games = [left for left in self.games if left > 0]


def simulate(
    players: dict[str, Player], *, games: int, load_balancing: bool = True, seconds: float = 1e4, seed: int = 1
) -> float:
    """Play until this many games are finished; each worker is polled every 2 s, at its own time. Return the elapsed
    seconds.
    """
    rng, state, time = random.Random(seed), Balance(), 0.0
    seen = {
        name: WorkerLoad(finished=player.finished, granted=0, weight=player.weight) for name, player in players.items()
    }
    begun = sum(player.finished for player in players.values())
    while sum(player.finished for player in players.values()) - begun < games:
        assert time < seconds
        time += 0.1
        for number, (name, player) in enumerate(players.items()):
            player.play(0.1, rng)
            if (round(time * 10) + 5 * number) % 20 == 0:
                player.speed = player.rate * rng.uniform(0.9, 1.1) if player.finished + len(player.games) > 0 else 0.0
                seen[name] = replace(
                    seen[name], finished=player.finished, speed=player.speed, parallel_games=player.slots
                )
        active = {
            name: replace(seen[name], granted=player.granted) for name, player in players.items() if not player.away
        }
        state, decisions = balance_games(state, active, time, ahead=100, batch_games=10, load_balancing=load_balancing)
        for name, decision in decisions.items():
            players[name].granted += decision.grant
    return time


def fleet(*, own_time: bool = False) -> dict[str, Player]:
    """Return four workers with different speeds and weights."""
    pairs = {"a": (1.0, 1.0), "b": (2.0, 2.0), "c": (3.0, 1.0), "d": (4.0, 2.0)}
    return {name: Player(rate, weight, own_time=own_time) for name, (rate, weight) in pairs.items()}


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("own_time", [False, True], ids=["as a processor plays", "as an accelerator plays"])
def test_over_2000_games_shares_are_weights_times_speeds_within_5_per_cent(own_time: bool, seed: int) -> None:
    players = fleet(own_time=own_time)
    simulate(players, games=2000, seed=seed)
    claims = {name: player.weight * player.rate for name, player in players.items()}
    for name, player in players.items():
        assert player.finished == pytest.approx(2000 * claims[name] / sum(claims.values()), rel=0.05), name


def test_the_heaviest_workers_never_idle_and_the_light_ones_idle_as_their_weights_say() -> None:
    players = fleet()
    seconds = simulate(players, games=2000)
    assert players["b"].idle < 2.5, "until its first grant arrives"
    assert players["d"].idle < 2.5
    assert players["c"].idle == pytest.approx(seconds / 2, rel=0.1)


def test_with_equal_weights_no_worker_idles() -> None:
    players = {name: Player(rate) for name, rate in {"a": 0.5, "b": 2.0, "c": 8.0}.items()}
    simulate(players, games=2000)
    assert max(player.idle for player in players.values()) < 2.5


def test_without_load_balancing_all_workers_play_the_same_number_of_games() -> None:
    players = fleet()
    simulate(players, games=2000, load_balancing=False)
    assert all(player.finished == pytest.approx(500, rel=0.05) for player in players.values()), players


def test_a_light_worker_plays_all_the_time_while_the_heavy_one_is_away_and_then_returns_to_its_share() -> None:
    players = {"light": Player(2.0, 1.0), "heavy": Player(2.0, 4.0)}
    simulate(players, games=500)
    players["heavy"].away, players["light"].idle = True, 0.0
    players["heavy"].granted = players["heavy"].finished + len(players["heavy"].games)
    simulate(players, games=300)
    assert players["light"].idle < 10.0
    players["heavy"].away = False
    before = {name: player.finished for name, player in players.items()}
    simulate(players, games=1000)
    played = {name: player.finished - before[name] for name, player in players.items()}
    assert played["light"] / 1000 == pytest.approx(1 / 5, rel=0.1)


def test_games_in_progress_are_not_those_ahead() -> None:
    """A GPU has places for more games than a worker has ahead; none of them may be empty."""
    places, begun = 2048, WorkerLoad(finished=100, granted=8192, speed=50.0, parallel_games=2048)
    balance, decisions = balance_games(Balance(), {"gpu": begun}, 0.0, ahead=200, batch_games=100)
    assert (decisions["gpu"].lower or begun.granted) - begun.finished >= places + 200
    later = replace(begun, finished=7000, granted=7000 + places)
    _, decisions = balance_games(balance, {"gpu": later}, 60.0, ahead=200, batch_games=100)
    assert decisions["gpu"].lower is None and decisions["gpu"].grant >= 200
