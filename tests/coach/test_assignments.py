"""The book of assignments: accounts, lowered grants, evaluation games, and leases, all in memory."""

from pathlib import Path

import pytest

from keima.coach.backends.assignments import RENEW_SECONDS, AssignmentBook, GamesAccount, find_flush_seconds
from keima.evaluation.match_jobs import Contestant, EvaluationJob
from keima.worker.worker_folder import Heartbeat
from tests.small_run import GAME, small_settings


class Clock:
    """A clock set by the test."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def book(tmp_path: Path, clock: Clock) -> AssignmentBook:
    return AssignmentBook(["a"], game=GAME, settings=small_settings(tmp_path), run_id="run", clock=clock)


def heartbeat(book: AssignmentBook, *, begun: int) -> Heartbeat:
    """Return worker a's heartbeat after it has read its current assignment."""
    read = book.next_assignment("a")
    return Heartbeat(
        run_id="run", worker="a", beat=1, pid=1, state="playing", begun=begun, granted=read.granted, lease=read.lease
    )


def a_job(name: str) -> EvaluationJob:
    return EvaluationJob(
        id=name,
        first=None,
        second=None,
        match_pairs=1,
        first_pair=0,
        pairs=1,
        seed=1,
        opening_plies=2,
        num_simulations=16,
    )


@pytest.mark.parametrize(
    ("minutes", "is_spread", "given", "seconds"),
    [(1, False, "auto", 2), (20, False, "auto", 6), (600, False, "auto", 30), (20, True, "auto", 30), (20, True, 4, 4)],
)
def test_the_learner_of_a_short_run_waits_less_for_its_first_games_but_not_if_machines_would_send_files_without_end(
    minutes: float, is_spread: bool, given: str | float, seconds: float, tmp_path: Path
) -> None:
    settings = small_settings(tmp_path, run={"minutes": minutes}, self_play={"flush_seconds": given})
    spread = settings.distributed.model_copy(update={"enabled": is_spread})
    assert find_flush_seconds(settings.model_copy(update={"distributed": spread})) == seconds


def test_an_account_changes_only_when_its_numbers_do(book: AssignmentBook) -> None:
    assert book.set_account("a", granted=100, delivered=0)
    assert not book.set_account("a", granted=100, delivered=0)
    assert book.account("a") == GamesAccount(granted=100, delivered=0)
    assert book.account("unknown") == GamesAccount()


def test_a_worker_that_left_has_no_account(book: AssignmentBook) -> None:
    book.set_account("b", granted=10, delivered=0)
    assert book.workers == ("a", "b")
    book.close_account("b")
    assert book.workers == ("a",)


def test_a_lowered_grant_is_withdrawn_only_after_the_worker_confirms(book: AssignmentBook) -> None:
    book.set_account("a", granted=100, delivered=0)
    before = heartbeat(book, begun=20)
    assert book.lower_grant("a", 50)
    assert not book.lower_grant("a", 60), "it is lower already"
    assert book.withdrawn(lambda: {"a": before}) == {}
    after = heartbeat(book, begun=20)
    assert (after.granted, book.next_assignment("a").promised) == (50, 100)
    assert book.withdrawn(lambda: {"a": after}) == {"a": 50}
    book.set_account("a", granted=50, delivered=0)
    assert book.withdrawn(lambda: {"a": after}) == {}


def test_begun_games_are_not_withdrawn(book: AssignmentBook) -> None:
    book.set_account("a", granted=100, delivered=0)
    book.lower_grant("a", 0)
    assert book.withdrawn(lambda: {"a": heartbeat(book, begun=70)}) == {"a": 30}
    assert book.withdrawn(lambda: {"a": heartbeat(book, begun=100)}) == {}


def test_leases_are_unique_and_renewed_in_time(book: AssignmentBook, clock: Clock, tmp_path: Path) -> None:
    assert book.is_due("a")
    first = book.next_assignment("a")
    assert not book.is_due("a")
    clock.now += RENEW_SECONDS
    assert book.is_due("a")
    other = AssignmentBook(["a"], game=GAME, settings=small_settings(tmp_path), run_id="run").next_assignment("a")
    assert len({first.lease, book.next_assignment("a").lease, other.lease}) == 3


def test_new_orders_replace_the_old_ones(book: AssignmentBook) -> None:
    first, second, third = a_job("one"), a_job("two"), a_job("three")
    assert book.set_jobs("a", [first, second]) == set()
    assert book.set_jobs("a", [first, second]) is None
    assert book.set_jobs("a", [second, third]) == {first}
    assert book.next_assignment("a").matches == (second, third)
    assert book.set_jobs("unknown", [first]) is None
    player = Contestant(version=3, sha256="0" * 64)
    book.set_players({player: b"model"})
    assert (book.next_assignment("a").players, book.next_assignment("a").matches) == ((player,), ())


def test_a_refused_batch_is_remembered_until_the_next_good_one(book: AssignmentBook) -> None:
    book.record_receipt("a", "b1", "move 3 is illegal")
    assert book.refusals == {"a": "batch b1 is in the run's quarantine/: move 3 is illegal"}
    book.record_receipt("a", "b2", "")
    assert book.refusals == {}


def test_after_the_end_every_assignment_says_stop(book: AssignmentBook) -> None:
    assert not book.next_assignment("a").stop
    book.stop()
    assert book.next_assignment("a").stop


def test_a_machine_may_have_its_own_number_of_parallel_games(book: AssignmentBook) -> None:
    assert book.next_assignment("a", parallel_games=3).parallel_games == 3
