"""Matches played by workers: a host in this process does what a worker would, or something else, on a clock of the
test.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest

from keima.evaluation.match import MatchResult, RandomPlayer, make_opening_states
from keima.evaluation.match_jobs import MAX_PAIRS, Contestant, EvaluationJob, EvaluationJobResult
from keima.evaluation.match_worker import InvalidMatchResult, make_job_result, play_job, verify_job_result
from keima.evaluation.remote_matches import QUIET_SECONDS, MatchSpec, RemoteMatches
from keima.networks.files.heading import stored_sha256
from tests.games.dice_race import dice_race
from tests.small_run import GAME, model_bytes

MODEL = Contestant(version=1, sha256=stored_sha256(model_bytes(1)))


def job(*, first_pair: int = 0, pairs: int = 3) -> EvaluationJob:
    return EvaluationJob(
        id=f"m-{first_pair}",
        first=MODEL,
        second=None,
        seed=7,
        opening_plies=2,
        match_pairs=8,
        first_pair=first_pair,
        pairs=pairs,
        num_simulations=4,
    )


def player_of(who: Contestant) -> RandomPlayer:
    return RandomPlayer(GAME, who.version)


def honest(worker: str, wanted: EvaluationJob) -> EvaluationJobResult:
    return make_job_result(worker, wanted, *play_job(GAME, wanted, player_of))


@dataclass
class Sign:
    beat: int
    job: str


Answer = Callable[[str, EvaluationJob], EvaluationJobResult | bytes | None]


@dataclass
class Actors:
    """Workers that answer a job at the next poll as configured; None is no answer."""

    answers: dict[str, Answer]
    asked: dict[str, list[EvaluationJob]] = field(default_factory=dict)
    now_playing: dict[str, list[EvaluationJob]] = field(default_factory=dict)
    brought: list[set[Contestant]] = field(default_factory=list)
    remote: set[str] = field(default_factory=set)
    alive: bool = False  # whether silent workers show signs of playing
    beat: int = 0

    def deploy_models(self, players: Mapping[Contestant, bytes]) -> None:
        self.brought.append(set(players))

    def assign_jobs(self, worker: str, jobs: Sequence[EvaluationJob]) -> None:
        self.now_playing[worker] = list(jobs)
        self.asked.setdefault(worker, []).extend(job for job in jobs if job not in self.asked.get(worker, []))

    def results(self) -> list[tuple[str, EvaluationJob, bytes]]:
        found = []
        for worker, jobs in self.now_playing.items():
            for wanted in jobs:
                answer = self.answers[worker](worker, wanted)
                if answer is not None:
                    found.append(
                        (worker, wanted, answer if isinstance(answer, bytes) else answer.model_dump_json().encode())
                    )
        return found

    def ready_workers(self) -> list[str]:
        return [worker for worker in self.answers if worker not in self.remote]

    def heartbeats(self) -> dict[str, Sign | None]:
        self.beat += 1
        return {
            worker: Sign(self.beat, jobs[0].id) if self.alive and jobs else None
            for worker, jobs in self.now_playing.items()
        }


class Table:
    """A match between actors, and its clock."""

    def __init__(self, answers: dict[str, Answer], **options: object) -> None:
        self.actors = Actors(answers, **options)  # type: ignore[arg-type]
        self.now = 0.0
        self.remote = RemoteMatches(GAME, self.actors, clock=lambda: self.now, sleep=self.wait)

    def wait(self, seconds: float) -> None:
        self.now += seconds

    def play(self, pairs: int = 20, poll: Callable[[], None] = lambda: None, *, beside: bool = False) -> MatchResult:
        spec = MatchSpec(
            first=MODEL, second=None, pairs=pairs, seed=7, opening_plies=2, num_simulations=4, beside=beside
        )
        with self.remote.deploy({MODEL: b"model"}):
            (result,) = self.remote.play([spec], player_of, poll=poll)
        assert result.scores.shape == (pairs, 2)
        assert not np.isnan(result.scores).any()
        return result


def silent(worker: str, wanted: EvaluationJob) -> None:
    return None


def test_a_match_is_shared_out_and_every_pair_is_played_once() -> None:
    table = Table({"a": honest, "b": honest})
    table.play()
    played_pairs = sorted(
        pair
        for jobs in table.actors.asked.values()
        for wanted in jobs
        for pair in range(wanted.first_pair, wanted.first_pair + wanted.pairs)
    )
    assert played_pairs == list(range(20))
    assert set(table.actors.asked) == {"a", "b"}
    assert (table.remote.remote_games, table.remote.local_games) == (40, 0)
    assert table.actors.brought == [{MODEL}, set()]


def test_several_matches_are_played_side_by_side_without_mixing() -> None:
    table = Table({"a": honest})
    specs = [
        MatchSpec(first=MODEL, second=None, pairs=pairs, seed=pairs, opening_plies=2, num_simulations=4)
        for pairs in (5, 9)
    ]
    results = table.remote.play(specs, player_of, poll=lambda: None)
    assert [len(result.scores) for result in results] == [5, 9]


def test_the_slices_of_a_match_have_the_openings_of_the_whole_match() -> None:
    whole = make_opening_states(GAME, 8, 2, 7)
    parts = [play_job(GAME, job(first_pair=i, pairs=4), player_of)[0] for i in (0, 4)]
    assert np.array_equal(np.concatenate(parts), whole)


def test_slices_of_a_silent_worker_are_played_by_another() -> None:
    table = Table({"a": silent, "b": honest})
    table.play()
    assert (table.remote.remote_games, table.remote.local_games) == (40, 0)
    assert table.now < QUIET_SECONDS + 5


def test_without_a_worker_that_answers_everything_is_played_locally() -> None:
    table = Table({"a": silent, "b": silent})
    table.play()
    assert (table.remote.remote_games, table.remote.local_games) == (0, 40)
    assert table.now < QUIET_SECONDS + 5


def test_without_workers_nothing_is_waited_for() -> None:
    table = Table({})
    table.play()
    assert (table.remote.local_games, table.now) == (40, 0.0)


def test_a_worker_that_shows_signs_of_playing_is_waited_for_but_not_for_ever() -> None:
    table = Table({"a": silent}, alive=True)
    table.play()
    assert table.remote.local_games == 40
    assert QUIET_SECONDS < table.now <= 2 * 1800


@pytest.mark.parametrize("beside", [False, True])
def test_a_slow_worker_is_waited_for_longer_where_self_play_goes_on_meanwhile(beside: bool) -> None:
    table = Table({"a": honest, "b": lambda worker, wanted: honest(worker, wanted) if table.now > 40 else None})
    table.actors.alive = True
    table.play(beside=beside)
    assert (table.now > 40) == beside


def test_a_lost_worker_is_not_waited_for() -> None:
    table = Table({"a": silent})
    table.play(poll=lambda: table.actors.remote.add("a") if table.now > 3 else None)
    assert table.remote.local_games == 40
    assert table.now < 6


def forge(**changes: object) -> Answer:
    """Return an answer with these fields changed."""

    def answer(worker: str, wanted: EvaluationJob) -> EvaluationJobResult:
        return honest(worker, wanted).model_copy(update=changes)

    return answer


def with_first_game(change: Callable[[list[int]], list[int]]) -> Answer:
    def answer(worker: str, wanted: EvaluationJob) -> EvaluationJobResult:
        result = honest(worker, wanted)
        return result.model_copy(update={"moves": (tuple(change(list(result.moves[0]))), *result.moves[1:])})

    return answer


def turned_round(worker: str, wanted: EvaluationJob) -> EvaluationJobResult:
    result = honest(worker, wanted)
    return result.model_copy(update={"scores": tuple(1 - score if score != 0.5 else 1.0 for score in result.scores)})


FORGERIES: dict[str, Answer] = {
    "the scores do not match": turned_round,
    "the move is illegal": with_first_game(lambda moves: [*moves, moves[0]]),
    "end before the game does": with_first_game(lambda moves: moves[:-1]),
    "it has 0 games": forge(moves=()),
    "the openings do not match": forge(openings="0" * 64),
    "of another job": forge(worker="somebody"),
    "it did not play: no model": forge(refused="no model"),
    "cannot be parsed": lambda worker, wanted: b"{",
}


@pytest.mark.parametrize("reason", FORGERIES)
def test_a_forged_result_is_refused_and_played_by_another(reason: str, caplog: pytest.LogCaptureFixture) -> None:
    table = Table({"forger": FORGERIES[reason], "b": honest})
    table.play()
    assert (table.remote.remote_games, table.remote.local_games) == (40, 0)
    assert reason in caplog.text
    assert table.now < 2


def test_a_result_contains_exactly_the_played_games() -> None:
    wanted = job()
    starts, result = play_job(GAME, wanted, player_of)
    travelled = EvaluationJobResult.model_validate(
        json.loads(make_job_result("w", wanted, starts, result).model_dump_json())
    )
    assert np.array_equal(verify_job_result(GAME, wanted, "w", travelled).scores, result.scores)
    with pytest.raises(InvalidMatchResult, match="another job"):
        verify_job_result(GAME, job(first_pair=4), "w", travelled)


def test_the_job_of_a_result_is_written_and_read_by_the_key_of_all_versions() -> None:
    wanted = job()
    written = json.loads(EvaluationJobResult(worker="w", job=wanted).model_dump_json())
    assert written["order"]["id"] == wanted.id and "job" not in written
    assert EvaluationJobResult.model_validate(written).job == wanted


def test_chance_outcomes_of_a_result_must_be_those_of_the_seed() -> None:
    game, wanted = dice_race(), job(first_pair=3)
    starts, result = play_job(game, wanted, lambda who: RandomPlayer(game, who.version))
    told = make_job_result("w", wanted, starts, result)
    assert np.array_equal(verify_job_result(game, wanted, "w", told).scores, result.scores)
    # An opening of two plies: the first roll and the choice of a die, which is rolled next.
    first, *others = told.moves
    lucky = sum(game.chance_outcomes(starts[0])[0].tolist()) - first[0]
    with pytest.raises(InvalidMatchResult, match="game 0 after 0 moves: the chance outcome is impossible"):
        verify_job_result(game, wanted, "w", told.model_copy(update={"moves": ((lucky, *first[1:]), *others)}))


def test_a_stop_withdraws_the_jobs() -> None:
    table = Table({"a": silent, "b": silent})

    def stop() -> None:
        if table.now > 1:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        table.play(poll=stop)
    assert table.actors.now_playing == {"a": [], "b": []}
    assert table.actors.brought[-1] == set()


def test_an_order_is_within_its_match_and_no_larger_than_allowed() -> None:
    with pytest.raises(ValueError, match="has no pair 8"):
        job(first_pair=6, pairs=3)
    with pytest.raises(ValueError, match="less than or equal"):
        job(pairs=MAX_PAIRS + 1)
