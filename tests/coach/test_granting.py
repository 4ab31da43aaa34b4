"""How many games each worker may play, with simulated workers."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from keima.coach.backends.pending_batch import PendingBatch
from keima.coach.granting import GRACE_SECONDS, Granting, NobodyPlays
from keima.data.ledger import Ledger, open_ledger
from keima.worker.worker_folder import Heartbeat
from tests.small_run import GAME, small_settings


class Actors:
    """Workers that report what the test sets."""

    def __init__(self, *workers: str) -> None:
        self.workers = workers
        self.accounts: dict[str, tuple[int, int]] = {}
        self.last: dict[str, Heartbeat | None] = dict.fromkeys(workers)
        self.unstarted: dict[str, int] = {}

    def publish(self, version: int, model: bytes) -> None:
        raise AssertionError

    def grant(self, worker: str, *, granted: int, delivered: int) -> None:
        self.accounts[worker] = (granted, delivered)

    def plan_grants(self, outstanding: Mapping[str, int], ahead: int) -> dict[str, int]:
        return {worker: ahead - games for worker, games in outstanding.items()}

    def withdrawn(self) -> dict[str, int]:
        return self.unstarted

    def collect(self) -> list[PendingBatch]:
        return []

    def release(self, pending: PendingBatch, *, delivered: int, refused: str = "") -> None:
        raise AssertionError

    def heartbeats(self) -> dict[str, Heartbeat | None]:
        return self.last

    def cluster(self) -> None:
        raise AssertionError

    def match_executors(self) -> None:
        raise AssertionError

    def close(self) -> None:
        pass

    def says(self, worker: str, state: str, *, finished: int, beat: int) -> None:
        values = {"run_id": "run", "worker": worker, "beat": beat, "pid": 1, "state": state, "finished": finished}
        self.last[worker] = Heartbeat.model_validate(values)


class Desk:
    """Granting with its ledger, workers and clock."""

    def __init__(self, folder: Path, *workers: str, asynchronous: bool = True, newcomers: str = "") -> None:
        self.ledger: Ledger = open_ledger(folder, GAME)
        self.actors, self.now, self.told = Actors(*workers), 0.0, list[str]()
        settings = small_settings(folder, training={"asynchronous": asynchronous})
        self.granting = Granting(
            settings=settings,
            ledger=self.ledger,
            backend=self.actors,
            clock=lambda: self.now,
            log_event=self.told.append,
            limit=lambda account: 8 - account.granted if account.name in newcomers else None,
        )


def pending(worker: str) -> PendingBatch:
    return PendingBatch(worker=worker, batch_id="000000000-1-x", fetch=lambda limit: b"")


def test_every_worker_is_kept_a_number_of_games_ahead(tmp_path: Path) -> None:
    desk = Desk(tmp_path, "a", "b")
    desk.granting.grant(0)
    assert desk.actors.accounts == {"a": (40, 0), "b": (40, 0)}
    desk.ledger.discard("a", 10, "for the test")
    desk.granting.grant(0)
    assert desk.actors.accounts == {"a": (50, 0), "b": (40, 0)}


def test_a_newcomer_gets_no_more_games_than_it_may_have_in_all(tmp_path: Path) -> None:
    desk = Desk(tmp_path, "a", "b", newcomers="b")
    desk.granting.grant(0)
    desk.granting.grant(0)
    assert desk.actors.accounts == {"a": (40, 0), "b": (8, 0)}
    desk.ledger.discard("b", 4, "its machine was off")
    desk.granting.grant(0)
    assert desk.actors.accounts["b"] == (8, 0), "it may still play what was given up"


def test_in_synchronous_mode_others_play_what_a_newcomer_may_not(tmp_path: Path) -> None:
    desk = Desk(tmp_path, "a", "b", "c", asynchronous=False, newcomers="c")
    for _ in range(6):
        desk.granting.grant(0)
    assert [granted for granted, _ in desk.actors.accounts.values()] == [7, 7, 6]
    desk.ledger.withdraw("b", 7, "for the test")
    desk.actors.workers = ("a", "c")
    for _ in range(6):
        desk.granting.grant(0)
    assert desk.actors.accounts == {"a": (12, 0), "b": (7, 0), "c": (8, 0)}


def test_nothing_is_granted_while_the_learner_is_far_behind(tmp_path: Path) -> None:
    desk = Desk(tmp_path, "a")
    desk.granting.grant(60)
    assert desk.actors.accounts == {"a": (0, 0)}


def test_in_synchronous_mode_exactly_the_games_missing_from_the_iteration_are_granted(tmp_path: Path) -> None:
    desk = Desk(tmp_path, "a", "b", "c", asynchronous=False)
    desk.granting.grant(0)
    assert [granted for granted, _ in desk.actors.accounts.values()] == [7, 7, 6]
    desk.granting.grant(0)
    assert [granted for granted, _ in desk.actors.accounts.values()] == [7, 7, 6]


def test_in_synchronous_mode_games_in_a_missing_worker_s_outbox_are_not_granted_again(
    tmp_path: Path,
) -> None:
    desk = Desk(tmp_path, "a", "b", asynchronous=False)
    desk.granting.grant(0)
    desk.ledger.withdraw("b", 7, "for the test")
    desk.actors.workers = ("a",)
    desk.granting.grant(0)
    assert desk.actors.accounts["a"] == (17, 0)
    assert desk.ledger.account("b").outstanding == 3


@pytest.mark.parametrize("asynchronous", [True, False])
def test_games_that_will_never_arrive_are_given_up_and_granted_again(tmp_path: Path, asynchronous: bool) -> None:
    desk = Desk(tmp_path, "a", asynchronous=asynchronous)
    desk.granting.grant(0)
    granted = desk.actors.accounts["a"][0]
    for second in range(int(GRACE_SECONDS) + 1):
        desk.now = float(second)
        desk.actors.says("a", "waiting", finished=granted, beat=second + 1)
        assert not desk.told
        desk.granting.give_up_lost([])
    assert f"{granted} games of worker a are given up" in desk.told[0]
    desk.granting.grant(0)
    assert desk.actors.accounts["a"] == (2 * granted, 0)
    assert desk.ledger.account("a").outstanding == granted


@pytest.mark.parametrize(
    "change", ["still playing", "not all finished", "a batch lies there", "no new beat", "no heartbeat"]
)
def test_games_that_may_still_arrive_are_waited_for(tmp_path: Path, change: str) -> None:
    desk = Desk(tmp_path, "a")
    desk.granting.grant(0)
    for second in range(int(GRACE_SECONDS) * 3):
        desk.now = float(second)
        state, finished = (
            ("playing" if change == "still playing" else "waiting"),
            39 if change == "not all finished" else 40,
        )
        desk.actors.says("a", state, finished=finished, beat=1 if change == "no new beat" else second)
        if change == "no heartbeat":
            desk.actors.last["a"] = None
        desk.granting.give_up_lost([pending("a")] if change == "a batch lies there" and second % 9 == 0 else [])
    assert not desk.told
    assert desk.ledger.account("a").outstanding == 40


def test_games_of_a_lost_worker_are_given_up_once_its_outbox_is_empty(tmp_path: Path) -> None:
    desk = Desk(tmp_path, "a")
    desk.ledger.grant("old", 30)
    desk.granting.give_up_lost([pending("old")])
    assert desk.ledger.account("old").outstanding == 30
    desk.granting.give_up_lost([])
    assert desk.ledger.account("old").outstanding == 0
    assert "30 games of worker old are given up: the worker is gone" in desk.told


def test_games_that_a_worker_has_not_begun_leave_its_account_before_anything_is_granted(tmp_path: Path) -> None:
    desk = Desk(tmp_path, "a", "b")
    desk.granting.grant(0)
    desk.actors.unstarted = {"a": 15}
    desk.granting.grant(60)
    assert desk.actors.accounts == {"a": (25, 0), "b": (40, 0)}
    desk.actors.unstarted = {"a": 1000}
    desk.granting.grant(60)
    assert desk.actors.accounts["a"] == (0, 0), "never more than is outstanding"


def test_a_run_without_workers_ends(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    with pytest.raises(NobodyPlays, match="logs"):
        desk.granting.grant(0)


def test_in_synchronous_mode_batches_come_worker_by_worker_and_those_of_gone_workers_at_once(tmp_path: Path) -> None:
    desk = Desk(tmp_path, "a", "b", asynchronous=False)
    desk.granting.grant(0)
    waiting = [pending("b"), pending("a"), pending("old")]
    assert [found.worker for found in desk.granting.in_turn(waiting)] == ["a", "old"]
    desk.ledger.discard("a", 10, "for the test")
    assert [found.worker for found in desk.granting.in_turn(waiting)] == ["b", "old"]


def test_accounts_are_published_before_anything_is_granted(tmp_path: Path) -> None:
    desk = Desk(tmp_path, "a", "b")
    desk.ledger.grant("a", 12)
    desk.granting.restore_accounts()
    assert desk.actors.accounts == {"a": (12, 0), "b": (0, 0)}


def test_accounts_are_sent_only_when_they_have_changed_and_to_workers_that_come_back(tmp_path: Path) -> None:
    desk = Desk(tmp_path, "a", "b")
    desk.granting.grant(0)
    desk.actors.accounts.clear()
    desk.granting.grant(0)
    assert desk.actors.accounts == {}
    desk.ledger.discard("b", 10, "for the test")
    desk.granting.grant(0)
    assert desk.actors.accounts == {"b": (50, 0)}
    desk.actors.workers = ("b",)
    desk.granting.grant(0)
    desk.actors.accounts.clear()
    desk.actors.workers = ("a", "b")
    desk.granting.grant(0)
    assert desk.actors.accounts == {"a": (40, 0)}
