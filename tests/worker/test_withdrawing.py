"""Games granted but not begun go back into the ledger, and no crash makes two workers play the same game."""

from pathlib import Path

import pytest

from keima.coach.backends.backend import FolderBackend
from keima.coach.granting import Granting
from keima.data.ledger import Ledger, open_ledger
from keima.data.receive import Received, receive_batch
from keima.worker.loop import Worker
from keima.worker.worker_folder import Assignment, Heartbeat
from tests.small_run import GAME, model_bytes, small_settings


class Desk:
    """A main node with its ledger and two workers; the test says when they poll their folders and when they play."""

    def __init__(self, folder: Path) -> None:
        self.root = folder
        self.now = 0.0
        (folder / "run").mkdir(exist_ok=True)
        self.ledger: Ledger = open_ledger(folder / "run", GAME, run_id="run")
        settings = small_settings(
            folder, self_play={"games_per_worker": 100, "flush_seconds": 1.0, "parallel_games": 16}
        )
        self.backend = FolderBackend(folder / "workers", ["a", "b"], game=GAME, settings=settings, run_id="run")
        # As many as the settings say in all, so that the numbers below are round.
        self.backend.plan_grants = lambda outstanding, ahead: {  # type: ignore[method-assign]
            worker: max(0, ahead - outstanding[worker]) for worker in self.backend.workers
        }
        self.told: list[str] = []
        self.granting = Granting(
            settings=settings,
            ledger=self.ledger,
            backend=self.backend,
            clock=lambda: self.now,
            log_event=self.told.append,
        )
        self.granting.restore_accounts()
        self.backend.publish(1, model_bytes(1))

    def worker(self, name: str = "a") -> Worker:
        return Worker(self.root / "workers" / name, clock=lambda: self.now)

    def poll(self, worker: Worker, *, cycles: int = 1) -> None:
        """Let the worker read its folder, play this many steps, and report its state."""
        self.now += 1.0
        for _ in range(cycles):
            worker.cycle()
        self.now += 1.0
        worker.cycle()

    def assignment(self, name: str = "a") -> Assignment:
        found = self.backend.folders[name].read_assignment()
        assert found is not None
        return found

    def take_in(self) -> int:
        """Receive everything there; return the number of games."""
        games = 0
        for pending in self.backend.collect():
            receipt = receive_batch(
                self.ledger, GAME, worker=pending.worker, batch_id=pending.batch_id, fetch=pending.fetch
            )
            assert isinstance(receipt, Received), receipt
            games += receipt.batch.num_games
            self.backend.release(pending, delivered=self.ledger.account(pending.worker).next_game)
        return games

    def play_all(self, worker: Worker) -> int:
        """Let the worker play its whole grant, and receive the games."""
        games = 0
        for _ in range(200):
            self.poll(worker, cycles=20)
            games += self.take_in()
            if worker.playing and worker.playing.self_play.num_playing == 0:
                break
        return games + self.take_in()


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def begin(desk: Desk) -> Worker:
    """Worker a has 100 games and has begun some of them."""
    desk.granting.grant(0)
    worker = desk.worker()
    desk.poll(worker, cycles=3)
    assert 0 < worker.playing.begun < 50
    return worker


@pytest.mark.medium
def test_games_not_begun_return_to_the_ledger_and_the_rest_is_played(desk: Desk) -> None:
    worker = begin(desk)
    desk.backend.lower_grant("a", 50)
    assert (desk.assignment().granted, desk.assignment().promised) == (50, 100)
    assert desk.backend.withdrawn() == {}, "the worker has not heard of it"
    desk.poll(worker)
    assert desk.backend.withdrawn() == {"a": 50}
    desk.granting._take_back()
    assert desk.ledger.account("a").granted == desk.ledger.account("a").outstanding == 50
    assert (desk.assignment().granted, desk.assignment().promised) == (50, 50)
    assert desk.backend.withdrawn() == {}
    assert desk.told == ["50 games that worker a has not begun are reassigned"]
    assert ("withdrawn", "a") in [(kind, name) for kind, name, _, _ in desk.ledger.events()]
    assert desk.play_all(worker) == 50
    assert desk.ledger.account("a").outstanding == 0


def test_begun_games_are_never_taken_back(desk: Desk) -> None:
    worker = begin(desk)
    begun = worker.playing.begun
    desk.backend.lower_grant("a", 0)
    desk.poll(worker, cycles=30)
    assert worker.playing.begun == begun
    assert desk.backend.withdrawn() == {"a": 100 - begun}
    desk.granting._take_back()
    assert desk.play_all(worker) == begun


@pytest.mark.medium
def test_taken_back_games_are_granted_again_by_the_next_grant(desk: Desk) -> None:
    worker = begin(desk)
    desk.backend.lower_grant("a", 50)
    desk.poll(worker)
    desk.granting.grant(0)
    assert desk.ledger.account("a").granted == 100
    assert desk.assignment().granted == 100
    assert desk.play_all(worker) == 100


@pytest.mark.medium
def test_a_worker_that_has_begun_all_games_keeps_them(desk: Desk) -> None:
    worker = begin(desk)
    desk.poll(worker, cycles=2000)
    desk.backend.lower_grant("a", 50)
    desk.poll(worker)
    assert desk.backend.withdrawn() == {}
    assert desk.assignment().granted == 50, "written before"
    desk.granting.grant(0)
    desk.backend.collect()
    assert desk.ledger.account("a").granted == 100
    assert desk.play_all(worker) == 100


@pytest.mark.medium
def test_an_old_answer_is_not_mistaken_for_a_new_one(desk: Desk) -> None:
    """Lowered to 50, taken back, raised to 100 and lowered to 50 again: the first answer says nothing about the second
    request.
    """
    worker = begin(desk)
    desk.backend.lower_grant("a", 50)
    desk.poll(worker)
    first_answer = desk.backend.heartbeats()["a"]
    desk.granting.grant(0)
    desk.poll(worker, cycles=500)
    assert worker.playing.begun > 50
    desk.backend.lower_grant("a", 50)
    assert isinstance(first_answer, Heartbeat)
    desk.backend.folders["a"].write_heartbeat(first_answer)
    assert desk.backend.withdrawn() == {}


@pytest.mark.medium
def test_a_killed_and_restarted_worker_continues_counting_from_its_outbox(desk: Desk) -> None:
    worker = begin(desk)
    while not desk.backend.folders["a"].batch_files():
        worker.cycle()
    handed_over = desk.backend.folders["a"].batch_ends()[-1]
    desk.backend.lower_grant("a", 1)
    successor = desk.worker()
    desk.poll(successor)
    assert successor.playing.begun == handed_over > 1
    assert desk.backend.withdrawn() == {"a": 100 - handed_over}
    desk.granting._take_back()
    assert desk.play_all(successor) == handed_over
    assert desk.ledger.account("a").outstanding == 0


def test_a_worker_killed_after_its_answer_plays_its_remaining_games(desk: Desk) -> None:
    worker = begin(desk)
    desk.backend.lower_grant("a", 0)
    desk.poll(worker)
    begun = worker.playing.begun
    desk.granting._take_back()
    assert desk.play_all(desk.worker()) == begun
    assert desk.ledger.account("a").outstanding == 0


@pytest.mark.medium
@pytest.mark.parametrize("answered", [True, False])
def test_a_main_node_killed_before_the_entry_shows_the_ledger_s_number(
    desk: Desk, answered: bool, tmp_path: Path
) -> None:
    worker = begin(desk)
    desk.backend.lower_grant("a", 50)
    if answered:
        desk.poll(worker)
    desk.ledger.close()
    resumed = Desk(tmp_path)
    resumed.now = desk.now
    assert resumed.backend.withdrawn() == {}
    assert resumed.assignment().granted == 100
    desk.poll(worker)
    assert resumed.backend.withdrawn() == {}
    worker.clock = lambda: resumed.now
    assert resumed.play_all(worker) == 100


@pytest.mark.medium
def test_a_main_node_killed_after_the_entry_grants_the_games_once(desk: Desk, tmp_path: Path) -> None:
    worker = begin(desk)
    desk.backend.lower_grant("a", 50)
    desk.poll(worker)
    (games,) = desk.backend.withdrawn().values()
    desk.ledger.withdraw("a", games, "for the test")
    desk.ledger.close()
    resumed = Desk(tmp_path)
    resumed.now = desk.now
    worker.clock = lambda: resumed.now
    assert resumed.assignment().granted == 50
    assert resumed.play_all(worker) == 50


def test_lowering_a_grant_to_more_than_was_granted_changes_nothing(desk: Desk) -> None:
    worker = begin(desk)
    desk.backend.lower_grant("a", 100)
    desk.backend.lower_grant("a", 70)
    desk.backend.lower_grant("a", 80)
    assert desk.assignment().granted == 70
    desk.poll(worker)
    assert desk.backend.withdrawn() == {"a": 30}
