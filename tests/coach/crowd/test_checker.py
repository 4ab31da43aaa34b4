"""Liars are found before their 200th game, and honest workers are not, with real games."""

from itertools import islice
from pathlib import Path

import pytest

from keima.coach.crowd.checker import Checker
from keima.coach.crowd.limits import CHECK_LIMITS
from keima.coach.crowd.verdicts import STATE, VERDICTS, VerdictReader, make_folder
from keima.data.ledger_rows import model_path
from tests.coach.crowd.crowd import BATCH, LIARS, Play, check_all, open_run, play_honestly

pytestmark = pytest.mark.medium

MOST_GAMES = 200  # before which a liar must be found
FOUND_LATE_OR_ALIKE = {
    "a constant policy",
    "flipped values",
    "its own games again",
    "its own games with new seeds",
    "noise in the targets",
    "winners that resign",
}


def find_liar(checker: Checker, folder: Path) -> dict[str, str]:
    check_all(checker)
    return VerdictReader(folder).read_new()


@pytest.mark.parametrize(
    "play",
    [
        pytest.param(play, id=name, marks=[pytest.mark.slow] * (name in FOUND_LATE_OR_ALIKE))
        for name, play in LIARS.items()
    ],
)
def test_every_liar_is_found_before_its_200th_game(tmp_path: Path, play: Play) -> None:
    with open_run(tmp_path) as run, run.checker() as checker:
        for batch in islice(play(run, "crowd-liar-1"), MOST_GAMES // BATCH - 1):
            run.send("crowd-liar-1", batch)
            if verdicts := find_liar(checker, tmp_path):
                break
        assert list(verdicts) == ["crowd-liar-1"], "it was not found"
        reader = VerdictReader(tmp_path)
        reader.read_new()
        assert not reader.passed


def test_honest_workers_are_trusted_whatever_they_compute_with(tmp_path: Path) -> None:
    with open_run(tmp_path) as run, run.checker(share=0.1) as checker:
        for turn in range(4):
            for dtype in ("float32", "bfloat16"):
                records = run.play(f"crowd-{dtype}-1", BATCH, version=2, dtype=dtype, parallel_games=3 + turn)
                run.send(f"crowd-{dtype}-1", records)
            check_all(checker)
        assert VerdictReader(tmp_path).read_new() == {}
        averages = {worker: record.scores.average for worker, record in checker.workers.items()}
        assert max(averages.values()) < 0.01, averages
        assert [record.scores.observations for record in checker.workers.values()] == [11, 11]


def test_a_newcomer_passes_once_enough_of_its_games_were_checked(tmp_path: Path) -> None:
    with open_run(tmp_path) as run:
        reader, sent = VerdictReader(tmp_path), 0
        with run.checker() as checker:
            while not reader.passed:
                run.send("crowd-a-1", run.play("crowd-a-1", BATCH, version=2))
                sent += BATCH
                check_all(checker)
                reader.read_new()
        limits = CHECK_LIMITS
        assert limits.newcomer_grant // 2 <= sent < limits.newcomer_grant - BATCH
        with run.checker() as checker:
            run.send("crowd-a-1", run.play("crowd-a-1", BATCH, version=2))
            check_all(checker)
        assert len((make_folder(tmp_path) / VERDICTS).read_bytes().splitlines()) == 1


def test_a_newcomer_whose_checks_wait_passes_after_a_restart_too(tmp_path: Path) -> None:
    with open_run(tmp_path) as run:
        for _ in range(CHECK_LIMITS.newcomer_grant // BATCH):
            run.send("crowd-a-1", run.play("crowd-a-1", BATCH, version=2))
        with run.checker() as checker:
            checker.read_batches()
            checker.save()
            assert len(checker.workers["crowd-a-1"].chosen) == 22
        with run.checker() as checker:
            checker.step()
        reader = VerdictReader(tmp_path)
        reader.read_new()
        assert reader.passed == {"crowd-a-1"}


def test_many_games_that_wait_are_told_once_an_hour(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("keima.coach.crowd.checker.BEHIND_GAMES", 2)
    with open_run(tmp_path) as run, run.checker() as checker:
        run.send("crowd-a-1", run.play("crowd-a-1", BATCH, version=2))
        check_all(checker)
        lines = (make_folder(tmp_path) / VERDICTS).read_bytes().splitlines()
        assert lines == [b'{"waiting": 4}']


def test_changes_of_the_model_within_games_are_no_lies(tmp_path: Path) -> None:
    with open_run(tmp_path, versions=3) as run, run.checker(share=0.5) as checker:
        for every in (7, 23, 41):
            worker = f"crowd-changing-{every}"
            for _ in range(2):
                records = run.play(worker, BATCH, new_models=(2, 3), new_model_every=every)
                assert any(record.first_model != record.last_model for record in records)
                run.send(worker, records)
        check_all(checker)
        averages = {worker: record.scores.average for worker, record in checker.workers.items()}
        assert max(averages.values()) < 0.04, averages
        assert VerdictReader(tmp_path).read_new() == {}


def test_games_of_a_damaged_model_are_not_checked_and_the_others_are(tmp_path: Path) -> None:
    with open_run(tmp_path, versions=3) as run, run.checker(share=0.5) as checker:
        model_path(tmp_path, 2).write_bytes(b"damaged")
        for worker, version in (("crowd-a-1", 2), ("crowd-b-1", 3)):
            run.send(worker, run.play(worker, BATCH, version=version))
        check_all(checker)
        assert checker.workers["crowd-a-1"].scores.observations == 0
        assert checker.workers["crowd-b-1"].scores.observations > 0
        assert VerdictReader(tmp_path).read_new() == {}


def test_games_of_a_worker_s_next_process_are_its_own(tmp_path: Path) -> None:
    with open_run(tmp_path) as run, run.checker() as checker:
        for _ in range(3):
            run.send("crowd-a-1", run.play("crowd-a-1", BATCH))
            run.play("crowd-a-1", BATCH)  # which are lost
            run.begin_process("crowd-a-1")
        check_all(checker)
        assert checker.workers["crowd-a-1"].scores.total < 0.1
        assert checker.workers["crowd-a-1"].received == 3 * BATCH


def test_the_next_checker_continues_where_the_last_one_was(tmp_path: Path) -> None:
    with open_run(tmp_path) as run:
        first = run.play("crowd-a-1", BATCH)
        run.send("crowd-a-1", first)
        with run.checker() as checker:
            check_all(checker)
            before = checker.workers["crowd-a-1"].to_json()
        with run.checker() as checker:
            assert checker.workers["crowd-a-1"].to_json() == before
            assert not checker.step()
            run.send("crowd-a-1", first)  # again
            check_all(checker)
            assert list(VerdictReader(tmp_path).read_new()) == ["crowd-a-1"]
        with run.checker() as checker:
            assert checker.workers["crowd-a-1"].verdict


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b'{"run_id": 3}'])
def test_a_damaged_state_makes_the_checks_begin_anew(tmp_path: Path, content: bytes) -> None:
    with open_run(tmp_path) as run:
        run.send("crowd-a-1", run.play("crowd-a-1", BATCH))
        (make_folder(tmp_path) / STATE).write_bytes(content)
        with run.checker() as checker:
            check_all(checker)
            assert checker.workers["crowd-a-1"].received == BATCH


def test_where_checks_are_too_slow_few_games_wait_for_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("keima.coach.crowd.checker.MOST_CHOSEN", 5)
    with open_run(tmp_path) as run, run.checker(share=1.0) as checker:
        for _ in range(2):
            run.send("crowd-a-1", run.play("crowd-a-1", BATCH, version=2))
            checker.read_batches()
        record = checker.workers["crowd-a-1"]
        assert len(record.chosen) == 5 and record.to_check < 1.0, "or all of its next games would be checked"
        check_all(checker)
        assert record.scores.observations == 5


def test_what_is_forgotten_of_a_worker_that_was_away_is_read_again(tmp_path: Path) -> None:
    with open_run(tmp_path) as run, run.checker() as checker:
        for batch in islice(LIARS["its own games again"](run, "crowd-liar-1"), MOST_GAMES // BATCH - 1):
            run.send("crowd-liar-1", batch)
            if verdicts := find_liar(checker, tmp_path):
                break
            record = checker.workers["crowd-liar-1"]
            record.read_at -= 2 * 86_400
            checker._tidied_at -= 86_400
            checker._tidy()
            kept = checker.workers["crowd-liar-1"]
            assert kept.known is None and kept.scores == record.scores
        assert list(verdicts) == ["crowd-liar-1"]


def test_games_that_were_begun_under_earlier_settings_are_no_lies(tmp_path: Path) -> None:
    with open_run(tmp_path) as run:
        with run.checker():
            pass
        with run.checker() as checker:
            checker.save()
        earlier = run.search
        run.search = earlier.model_copy(update={"num_simulations": 40})
        with run.checker() as checker:
            run.send("crowd-a-1", run.play("crowd-a-1", BATCH, search=earlier))
            run.send("crowd-a-1", run.play("crowd-a-1", BATCH))
            check_all(checker)
            assert checker.workers["crowd-a-1"].scores.average < 0.04


def test_workers_of_our_own_are_not_checked(tmp_path: Path) -> None:
    with open_run(tmp_path) as run, run.checker() as checker:
        run.send("local-1", run.play("local-1", BATCH, evaluate=run.network(1), version=2))
        check_all(checker)
        assert checker.workers["local-1"].scores.observations == 0


@pytest.mark.slow  # 70 s
def test_a_crowd_of_honest_workers_and_liars_is_told_apart(tmp_path: Path) -> None:
    honest = [f"crowd-honest-{number}" for number in range(1, 11)]
    with open_run(tmp_path) as run, run.checker() as checker:
        plays = {worker: play_honestly(run, worker) for worker in honest}
        plays |= {
            f"crowd-liar-{number}": play(run, f"crowd-liar-{number}") for number, play in enumerate(LIARS.values())
        }
        verdicts, sent = dict[str, str](), dict.fromkeys(plays, 0)
        reader = VerdictReader(tmp_path)
        for _ in range(MOST_GAMES // BATCH - 1):
            for worker in [worker for worker in plays if worker not in verdicts]:  # always in the same order
                batch = next(plays[worker])
                run.send(worker, batch)
                sent[worker] += len(batch)
            check_all(checker)
            verdicts |= reader.read_new()
        assert verdicts.keys() == plays.keys() - set(honest)
        assert max(sent[worker] for worker in verdicts) < MOST_GAMES
