"""Groups of games on threads: the same games, while a device evaluates for one group and others search."""

import threading
from collections.abc import Callable

import numpy as np
import pytest

from keima.data.records import GameRecord
from keima.games.game import Planes
from keima.self_play.groups import GroupedSelfPlay, ParallelGames, make_parallel_games
from keima.self_play.parallel_games import SelfPlay
from tests.search.naive_search import Floats, StubEvaluator
from tests.self_play.test_self_play import QUICK, TIC_TAC_TOE, play_on, same


def played(games: ParallelGames, seeds: range) -> dict[int, GameRecord]:
    """Play games to their end, as many at a time as there is room for; by seed."""
    waiting, records = list(seeds), {}
    while waiting or games.num_playing:
        now, waiting = waiting[: games.num_idle()], waiting[games.num_idle() :]
        if now:
            games.begin(now)
        records |= {record.seed: record for record in games.advance()}
    return records


@pytest.mark.parametrize(("parallel_games", "groups"), [(7, 3), (2, 5)])
def test_each_game_is_played_as_without_groups(parallel_games: int, groups: int) -> None:
    evaluate = StubEvaluator(TIC_TAC_TOE)
    wanted = played(SelfPlay(TIC_TAC_TOE, evaluate, QUICK, parallel_games=5), range(20))
    games = GroupedSelfPlay(TIC_TAC_TOE, evaluate, QUICK, parallel_games=parallel_games, groups=groups)
    found = played(games, range(20))
    assert same([found[seed] for seed in range(20)], [wanted[seed] for seed in range(20)])
    assert (games.num_playing, games.num_idle(), games.parallel_games) == (0, parallel_games, parallel_games)


def test_groups_evaluate_at_the_same_time() -> None:
    plain, together = StubEvaluator(TIC_TAC_TOE), threading.Barrier(2, timeout=240)

    def evaluate(observations: Planes) -> tuple[Floats, Floats]:
        together.wait()  # breaks unless two calls are here at once
        return plain(observations)

    games = GroupedSelfPlay(TIC_TAC_TOE, evaluate, QUICK, parallel_games=2, groups=2)
    games.begin([1, 2])
    games.advance()


def test_more_games_than_slots_of_resting_groups_are_refused() -> None:
    games = GroupedSelfPlay(TIC_TAC_TOE, StubEvaluator(TIC_TAC_TOE), QUICK, parallel_games=4, groups=2)
    with pytest.raises(ValueError, match="5 games cannot begin in 4 idle slots"):
        games.begin(range(5))


def test_a_new_model_waits_for_the_evaluations_of_the_old_one() -> None:
    plain, go_on, asked = StubEvaluator(TIC_TAC_TOE), threading.Event(), threading.Semaphore(0)
    slow: list[Callable[[], object]] = []

    def evaluate(observations: Planes) -> tuple[Floats, Floats]:
        if slow and slow.pop():
            asked.release()
            go_on.wait(240)
        return plain(observations)

    games = GroupedSelfPlay(TIC_TAC_TOE, evaluate, QUICK, parallel_games=2, groups=2)
    games.begin([1, 2])
    slow.append(go_on.set)  # one of two calls
    games.advance()  # the other one has its answers
    asked.acquire(timeout=240)
    changed = threading.Thread(target=games.change_model, args=(7,))
    changed.start()
    changed.join(0.05)
    assert changed.is_alive()
    go_on.set()
    changed.join(240)
    assert not changed.is_alive()
    records = play_all(games)
    assert [record.last_model for record in records] == [7, 7]


def play_all(games: ParallelGames) -> list[GameRecord]:
    """Play the games that are under way to their end."""
    records = []
    while games.num_playing:
        records += games.advance()
    return records


def test_an_error_of_the_network_is_raised() -> None:
    logits, values = np.full((1, 9), np.nan, np.float32), np.zeros(1, np.float32)
    games = GroupedSelfPlay(TIC_TAC_TOE, lambda planes: (logits, values), QUICK, parallel_games=1, groups=2)
    games.begin([1])
    with pytest.raises(ValueError, match="NaN or infinity"):
        games.advance()


@pytest.mark.parametrize("threads", [1, 3])
def test_one_thread_needs_no_groups(threads: int) -> None:
    games = make_parallel_games(TIC_TAC_TOE, StubEvaluator(TIC_TAC_TOE), QUICK, parallel_games=3, threads=threads)
    assert isinstance(games, SelfPlay if threads == 1 else GroupedSelfPlay)
    assert len(play_on(games, [1, 2, 3, 4, 5])) == 5
