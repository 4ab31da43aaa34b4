"""A worker and its jobs for evaluation games, with a clock set by the tests and a simulated main node."""

import errno
import json
from pathlib import Path

import numpy as np
import pytest

from keima.base.files import write_atomically
from keima.evaluation.match_jobs import Contestant, EvaluationJob, EvaluationJobResult
from keima.evaluation.match_worker import verify_job_result
from keima.networks.files.heading import stored_sha256
from keima.worker import worker_match
from keima.worker.loop import Worker
from keima.worker.worker_folder import BrokenMessage
from tests.small_run import GAME, model_bytes
from tests.worker.test_worker import Main, numbers

CYCLES = 2000


class Organizer(Main):
    """A main node that asks for evaluation games."""

    def bring(self, *versions: int, **changes: object) -> None:
        """Put the models of these versions into the inbox and name them."""
        for version in versions:
            (self.folder.inbox / self.player(version).file_name).write_bytes(model_bytes(version))
        self.assign(players=tuple(self.player(version) for version in versions), **changes)

    def player(self, version: int) -> Contestant:
        return Contestant(version=version, sha256=stored_sha256(model_bytes(version)))

    def job(self, name: str, first: int, second: int | None, *, first_pair: int = 0) -> EvaluationJob:
        return EvaluationJob(
            id=name,
            first=self.player(first),
            second=self.player(second) if second else None,
            seed=5,
            opening_plies=2,
            match_pairs=8,
            first_pair=first_pair,
            pairs=4,
            num_simulations=4,
        )

    def result(self, job: EvaluationJob) -> EvaluationJobResult:
        return EvaluationJobResult.model_validate(json.loads((self.folder.outbox / job.file_name).read_bytes()))

    def results(self) -> list[str]:
        return [path.stem for path in self.folder.result_files()]


@pytest.mark.medium
def test_an_order_is_played_as_soon_as_it_is_seen_and_its_games_follow_the_rules(tmp_path: Path) -> None:
    main = Organizer(tmp_path)
    worker = main.worker()
    main.play(worker)
    jobs = main.job("a", 2, 3), main.job("b", 2, None, first_pair=4)
    main.bring(2, 3, matches=jobs)
    main.play(worker)
    assert main.results() == ["a", "b"]
    for job in jobs:
        result = verify_job_result(GAME, job, "w", main.result(job))
        assert result.wins + result.draws + result.losses == 8
    assert main.heartbeat().error == ""


@pytest.mark.medium
def test_an_order_is_played_once_and_its_games_are_reproducible(tmp_path: Path) -> None:
    main, other = Organizer(tmp_path / "one"), Organizer(tmp_path / "other")
    job = main.job("a", 2, 3)
    for organizer in (main, other):
        worker = organizer.worker()
        organizer.bring(2, 3, matches=(job,))
        organizer.play(worker)
        before = (organizer.folder.outbox / job.file_name).stat().st_mtime_ns
        organizer.play(worker, seconds=2.0)
        assert (organizer.folder.outbox / job.file_name).stat().st_mtime_ns == before
    assert main.result(job) == other.result(job)


@pytest.mark.medium
def test_results_that_a_full_disk_has_refused_are_played_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refused: list[Path] = []

    def write(path: Path, data: bytes) -> None:
        if not refused:
            refused.append(path)
            raise OSError(errno.ENOSPC, "No space left on device")
        write_atomically(path, data)

    monkeypatch.setattr(worker_match, "write_atomically", write)
    main = Organizer(tmp_path)
    worker = main.worker()
    main.bring(2, 3, matches=(main.job("a", 2, 3), main.job("b", 2, 3)))  # the same games, which end together
    main.play(worker, seconds=8.0)
    assert refused and main.results() == ["a", "b"]


@pytest.mark.medium
def test_games_in_progress_wait_for_an_urgent_match_and_are_then_finished(tmp_path: Path) -> None:
    main, undisturbed = Organizer(tmp_path / "one", granted=9), Main(tmp_path / "other", granted=9)
    worker = main.worker()
    for _ in range(12):
        worker.cycle()
    assert worker.playing is not None
    begun = worker.playing.self_play.num_playing
    assert begun > 0
    main.bring(2, matches=(main.job("a", 2, None),))
    main.now += 1.0
    while not main.results():
        worker.cycle()
        assert worker.playing.self_play.num_playing == begun
    main.play(worker)
    undisturbed.play(undisturbed.worker())
    assert numbers(main.batches()) == list(range(9))
    assert [path.read_bytes() for path in main.folder.batch_files()] == [
        path.read_bytes() for path in undisturbed.folder.batch_files()
    ]


class Watched(Organizer):
    """A main node whose clock advances with every reading, so that matches take time."""

    def worker(self, kind: type[Worker] = Worker) -> Worker:
        return kind(self.folder.root, clock=self.clock)

    def clock(self) -> float:
        self.now += 0.05
        return self.now


def test_a_worker_writes_heartbeats_while_it_plays_a_match(tmp_path: Path) -> None:
    main = Watched(tmp_path)
    worker = main.worker()
    main.play(worker)
    beats = []
    write = worker.folder.write_heartbeat
    worker.folder.write_heartbeat = lambda heartbeat: (beats.append(heartbeat), write(heartbeat))[1]  # type: ignore[method-assign,func-returns-value]
    main.bring(2, 3, matches=(main.job("a", 2, 3),))
    worker.poll()
    while not main.results():
        worker.cycle()
    playing = [heartbeat for heartbeat in beats if heartbeat.job == "a"]
    assert len(playing) >= 2
    assert {heartbeat.state for heartbeat in playing} == {"playing"}
    main.play(worker, seconds=2.0)
    assert main.heartbeat().job == ""


@pytest.mark.medium
@pytest.mark.parametrize("stop", [False, True])
def test_a_withdrawn_order_or_a_stop_ends_a_match_in_the_middle(tmp_path: Path, stop: bool) -> None:
    main = Watched(tmp_path)
    worker = main.worker()
    main.play(worker)
    main.bring(2, 3, matches=(main.job("a", 2, 3),))
    for _ in range(4):
        worker.cycle()
    assert main.heartbeat().job == "a"
    main.assign(matches=(), stop=stop)
    for _ in range(CYCLES // 10):
        worker.cycle()
    assert main.results() == []
    assert worker._job_player.current_job is None or stop
    assert worker.stopping == stop
    if not stop:
        main.assign(matches=(main.job("b", 2, 3),), granted=4)
        main.play(worker)
        assert main.results() == ["b"]
        assert numbers(main.batches()) == list(range(4))


@pytest.mark.medium
def test_a_match_interrupted_by_a_kill_is_played_by_the_successor(tmp_path: Path) -> None:
    main = Watched(tmp_path)
    worker = main.worker()
    main.play(worker)
    main.bring(2, 3, matches=(main.job("a", 2, 3), main.job("b", 2, None)))
    for _ in range(4):
        worker.cycle()
    assert worker._job_player.current_job is not None
    assert main.results() == []
    main.play(main.worker())
    assert main.results() == ["a", "b"]


@pytest.mark.medium
def test_an_order_that_cannot_be_played_is_refused_with_the_reason(tmp_path: Path) -> None:
    main = Organizer(tmp_path, granted=3)
    worker = main.worker()
    missing, damaged, good = main.job("missing", 9, None), main.job("damaged", 2, None), main.job("good", 3, None)
    main.bring(2, 3)
    (main.folder.inbox / main.player(2).file_name).write_bytes(model_bytes(4))
    main.assign(matches=(missing, damaged, good))
    main.play(worker)
    assert main.results() == ["damaged", "good", "missing"]
    assert "No such file" in main.result(missing).refused
    assert "SHA-256" in main.result(damaged).refused
    assert main.result(good).refused == ""
    assert numbers(main.batches()) == [0, 1, 2]


@pytest.mark.medium
def test_files_of_players_and_results_are_removed_when_no_longer_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("keima.worker.worker_match.SURPLUS_SECONDS", 0.0)
    main = Organizer(tmp_path)
    worker = main.worker()
    left_behind = main.folder.inbox / "player-000001-0123456789abcdef.model"
    left_behind.write_bytes(b"of an earlier process")
    main.bring(2, 3, matches=(main.job("a", 2, 3),))
    main.play(worker)
    early = main.folder.inbox / main.player(4).file_name
    early.write_bytes(model_bytes(4))  # its assignment is still on the way
    main.publish(5)
    main.play(worker)
    assert sorted(path.name for path in main.folder.inbox.glob("player-*")) == [
        main.player(v).file_name for v in (2, 3, 4)
    ]
    assert main.results() == ["a"]
    main.assign(players=(main.player(3), main.player(4)), matches=())
    main.play(worker)
    assert sorted(path.name for path in main.folder.inbox.glob("player-*")) == [
        main.player(v).file_name for v in (3, 4)
    ]
    assert main.results() == []


def test_a_player_that_returns_before_its_removal_was_noticed_stays(tmp_path: Path) -> None:
    main = Organizer(tmp_path)
    worker = main.worker()
    main.bring(2)
    main.play(worker)
    main.assign(players=())
    (main.folder.inbox / main.player(2).file_name).write_bytes(model_bytes(2))
    main.play(worker)  # only now it sees the assignment without the player, whose file has come for the next assignment
    main.assign(players=(main.player(2),), matches=(main.job("a", 2, None),))
    main.play(worker)
    assert main.result(main.job("a", 2, None)).refused == ""


@pytest.mark.medium
def test_matches_do_not_count_for_the_speed_of_self_play(tmp_path: Path) -> None:
    main = Organizer(tmp_path, granted=400, parallel_games=8)
    worker = main.worker()
    for _ in range(CYCLES // 4):
        main.now += 0.01
        worker.cycle()
    before = worker.playing.full_load_speed()
    assert before > 0
    advance = worker._job_player.advance_jobs

    def advance_for_long(*arguments: object, device: str) -> None:
        advance(*arguments, device=device)  # type: ignore[arg-type]
        main.now += 5.0

    worker._job_player.advance_jobs = advance_for_long  # type: ignore[method-assign,assignment]
    main.bring(2, matches=(main.job("a", 2, None),))
    for _ in range(CYCLES):
        main.now += 0.01
        worker.cycle()
    assert main.results() == ["a"]
    assert np.isclose(worker.playing.full_load_speed(), before, rtol=0.3)


@pytest.mark.slow
@pytest.mark.medium
def test_a_match_beside_self_play_has_its_share_of_the_time_and_the_same_games(tmp_path: Path) -> None:
    urgent, beside = Organizer(tmp_path / "urgent", granted=0), Watched(tmp_path / "beside", granted=400)
    job = urgent.job("a", 2, 3)
    urgent.bring(2, 3, matches=(job,))
    urgent.play(urgent.worker())
    worker = beside.worker()
    beside.play(worker, seconds=1.0)
    beside.bring(2, 3, matches=(job.model_copy(update={"beside": True}),))
    turns = {"match": 0, "game": 0}
    advance, play = worker._job_player.advance_jobs, worker.play
    worker._job_player.advance_jobs = lambda *given, device: (  # type: ignore[method-assign]
        turns.update(match=turns["match"] + 1),
        advance(*given, device=device),
    )[1]
    worker.play = lambda playing: (turns.update(game=turns["game"] + 1), play(playing))[1]  # type: ignore[method-assign]
    while not beside.results() and turns["game"] < CYCLES:
        worker.cycle()
    assert beside.result(job).moves == urgent.result(job).moves
    assert turns["game"] >= 2 * turns["match"]


def test_an_assignment_with_a_forged_order_is_reported_as_broken(tmp_path: Path) -> None:
    main = Organizer(tmp_path)
    main.bring(2, matches=(main.job("a", 2, None),))
    path = main.folder.inbox / "assignment.json"
    path.write_text(path.read_text(encoding="utf-8").replace('"id": "a"', '"id": "../a"'), encoding="utf-8")
    with pytest.raises(BrokenMessage, match="pattern"):
        main.folder.read_assignment()
