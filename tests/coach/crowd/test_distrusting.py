"""A distrusted worker's games leave the run, the books balance, and a resumed run has the same window."""

import json
import sqlite3
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from keima.cli.reports.audit import audit
from keima.coach.backends.pending_batch import PendingBatch
from keima.coach.crowd.limits import CHECK_LIMITS
from keima.coach.crowd.verdicts import REFUSED, append_backlog, append_pass, append_verdict, make_folder
from keima.coach.fingerprint import window_fingerprint
from keima.coach.loop import Coach
from keima.config.schema import Settings
from keima.data.ledger import Ledger, open_ledger, read_ledger
from keima.data.ledger_rows import WorkerAccount
from keima.data.records import encode_batch
from tests.coach.coaching import Listener, coaching
from tests.small_run import GAME, small_settings
from tests.synthetic import synthetic_batch

HONEST, LIAR = "crowd-anna-1", "crowd-liar-1"


def settings_of(folder: Path, *, window: int = 50, share: float = 0.0) -> Settings:
    """Return settings without a checker, if ``share`` is 0; ``window`` positions is the first size of the window, which
    grows.
    """
    return small_settings(
        folder,
        distributed={"enabled": True, "batch_size": 10, "crowd": {"check_share": share}},
        training={"window": {"min_positions": window, "max_positions": 1_000}},
    )


def waiting_batch(ledger: Ledger, worker: str, first_game: int) -> PendingBatch:
    name = f"{first_game:09d}-10-{worker}"
    batch = synthetic_batch(
        GAME,
        games=10,
        seed=len(worker) + first_game,
        run_id=ledger.run_id,
        worker=worker,
        batch_id=name,
        first_game=first_game,
    )
    data = encode_batch(batch)
    return PendingBatch(worker=worker, batch_id=name, fetch=lambda limit: data)


def receive(coach: Coach, worker: str, *first_games: int) -> None:
    for first_game in first_games:
        missing = first_game + 30 - coach.ledger.account(worker).granted
        coach.ledger.grant(worker, max(0, missing))
        coach.receiving.receive([waiting_batch(coach.ledger, worker, first_game)])


def account_of(worker: str, delivered: int, *, owed: int = 0) -> WorkerAccount:
    return WorkerAccount(name=worker, granted=delivered + owed, received=delivered, next_game=delivered)


def act_on_verdicts(coach: Coach) -> None:
    coach._distrusting._looked = -1e9
    coach._distrusting.poll()


def window_of(folder: Path, workers: Sequence[tuple[str, int]]) -> str:
    """Return the fingerprint of the window of a run that has only these batches."""
    folder.mkdir()
    with coaching(folder, settings_of(folder, window=500)) as coach:
        for worker, first_game in workers:
            receive(coach, worker, first_game)
        return window_fingerprint(coach.window)


def test_a_liar_s_games_leave_the_window_and_the_others_stay(tmp_path: Path) -> None:
    expected = window_of(tmp_path / "honest", [(HONEST, 0), (HONEST, 10)])
    folder, listener = tmp_path / "run", Listener()
    folder.mkdir()
    with coaching(folder, settings_of(folder, window=500), listeners=[listener]) as coach:
        receive(coach, LIAR, 0)
        receive(coach, HONEST, 0)
        receive(coach, LIAR, 10)
        receive(coach, HONEST, 10)
        append_verdict(make_folder(folder), LIAR, "its games are copies")
        act_on_verdicts(coach)
        assert coach.window.num_games == 20 and window_fingerprint(coach.window) == expected
        assert coach.state.total_games == 40, "what has been learned from stays counted"
        assert coach.ledger.distrusted() == {LIAR: "its games are copies"}
        assert coach.ledger.account(LIAR).outstanding == 0
        assert [row.worker for row in coach.ledger.trusted_batches()] == [HONEST, HONEST]
        assert any(f"worker {LIAR} is distrusted, and its 20 games" in text for text in listener.events)
        assert json.loads((folder / "crowd" / REFUSED).read_bytes()) == {LIAR: "its games are copies"}
        assert coach.window.add(synthetic_batch(GAME, games=5)) > 0, "the window goes on"


def test_newcomers_have_few_games_until_they_were_checked(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, share=0.02)
    with coaching(tmp_path, settings) as coach:
        distrusting = coach._distrusting
        assert distrusting._checker
        distrusting._checker.poll = lambda: None  # type: ignore[method-assign]
        delivered = CHECK_LIMITS.newcomer_grant - 50
        assert distrusting.limit_grant(account_of("local-1", delivered)) is None
        assert distrusting.limit_grant(account_of(HONEST, delivered)) == 50
        append_pass(make_folder(tmp_path), HONEST)
        act_on_verdicts(coach)
        assert distrusting.limit_grant(account_of(HONEST, delivered)) == delivered
        assert distrusting.limit_grant(account_of(LIAR, delivered, owed=50)) == 0
        away = replace(account_of(LIAR, delivered, owed=50), discarded=50)
        assert distrusting.limit_grant(away) == 0, "what was given up may still come"


@pytest.mark.parametrize(
    ("delivered", "owed", "more"), [(0, 0, 20), (0, 20, 0), (0, 30, -10), (200, 0, 200), (200, 150, 50)]
)
def test_a_worker_from_outside_owes_no_more_than_it_has_delivered(
    tmp_path: Path, delivered: int, owed: int, more: int
) -> None:
    with coaching(tmp_path, settings_of(tmp_path)) as coach:
        assert coach._distrusting.limit_grant(account_of(HONEST, delivered, owed=owed)) == more


def test_checks_that_are_far_behind_are_told(tmp_path: Path) -> None:
    listener = Listener()
    with coaching(tmp_path, settings_of(tmp_path), listeners=[listener]) as coach:
        append_backlog(make_folder(tmp_path), 1234)
        act_on_verdicts(coach)
        act_on_verdicts(coach)
    assert [text for text in listener.events if "wait for their check" in text] == [
        "1,234 games of the crowd wait for their check: this machine cannot check as many as "
        "distributed.crowd.check_share says"
    ]


def test_a_verdict_counts_once(tmp_path: Path) -> None:
    listener = Listener()
    with coaching(tmp_path, settings_of(tmp_path), listeners=[listener]) as coach:
        for reason in ("first", "second"):
            append_verdict(make_folder(tmp_path), LIAR, reason)
            act_on_verdicts(coach)
        assert coach.ledger.distrusted() == {LIAR: "first"}
        assert len(listener.events) == 1


def test_later_batches_of_a_liar_are_refused_and_it_gets_no_games(tmp_path: Path) -> None:
    with coaching(tmp_path, settings_of(tmp_path)) as coach:
        receive(coach, LIAR, 0)
        append_verdict(make_folder(tmp_path), LIAR, "its games are copies")
        act_on_verdicts(coach)
        coach.receiving.receive([waiting_batch(coach.ledger, LIAR, 10)])
        (row,) = coach.ledger.batches(after=1)
        assert row.state == "quarantined" and row.reason == "the worker is distrusted: its games are copies"
        account = coach.ledger.account(LIAR)
        assert (account.granted, account.received, account.quarantined, account.discarded) == (30, 10, 10, 10)
        coach.backend.workers = (LIAR,)  # type: ignore[misc]
        coach.grant([])
        assert coach.ledger.account(LIAR).granted == 30
        assert coach.window.num_games == 0


def test_the_audit_names_the_liar_and_balances(tmp_path: Path) -> None:
    with coaching(tmp_path, settings_of(tmp_path)) as coach:
        receive(coach, LIAR, 0, 10)
        receive(coach, HONEST, 0)
        append_verdict(make_folder(tmp_path), LIAR, "its games are copies")
        act_on_verdicts(coach)
        receive(coach, LIAR, 20)
        coach.save()
    found = audit(tmp_path)
    assert found.problems == []
    assert found.distrusted == {LIAR: "its games are copies"} and found.games == 30
    (note,) = found.notes
    assert note == f"worker {LIAR} is distrusted, and its 20 received games are left out: its games are copies"


@pytest.mark.parametrize("checkpoint", ["without", "before the verdict", "after the verdict"])
def test_a_resumed_run_has_the_same_window(tmp_path: Path, checkpoint: str) -> None:
    settings = settings_of(tmp_path)
    with coaching(tmp_path, settings) as coach:
        receive(coach, LIAR, 0)
        receive(coach, HONEST, 0)
        if checkpoint == "before the verdict":
            coach.save()
        receive(coach, LIAR, 10)
        receive(coach, HONEST, 10)
        append_verdict(make_folder(tmp_path), LIAR, "lies")
        act_on_verdicts(coach)
        if checkpoint == "after the verdict":
            coach.save()
        receive(coach, HONEST, 20)
        expected, samples = window_fingerprint(coach.window), coach.state.total_samples
    with coaching(tmp_path, settings) as coach:
        coach.receiving.restore()
        assert window_fingerprint(coach.window) == expected
        assert (coach.state.total_games, coach.state.total_samples) == (50, samples)


def test_a_verdict_that_a_killed_coach_has_not_read_counts_in_the_next_session(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, window=500)
    with coaching(tmp_path, settings) as coach:
        receive(coach, LIAR, 0)
        append_verdict(make_folder(tmp_path), LIAR, "lies")
    with coaching(tmp_path, settings) as coach:
        coach.receiving.restore()
        assert coach.window.num_games == 10
        act_on_verdicts(coach)
        assert coach.window.num_games == 0 and coach.ledger.distrusted() == {LIAR: "lies"}


def test_ledgers_of_earlier_versions_are_read_and_written(tmp_path: Path) -> None:
    open_ledger(tmp_path, GAME).close()
    with sqlite3.connect(tmp_path / "run.db") as connection:
        connection.execute("DROP TABLE distrusted")
    connection.close()
    with read_ledger(tmp_path) as ledger:
        assert ledger.distrusted() == {} and list(ledger.dump()) and ledger.trusted_batches() == []
    with open_ledger(tmp_path, GAME) as ledger, read_ledger(tmp_path) as reader:
        ledger.grant("a", 5)
        ledger.distrust({"a": "lies", "b": "of whom nothing is known"})
        assert ledger.distrusted() == reader.distrusted() == {"a": "lies", "b": "of whom nothing is known"}
        assert ledger.account("a").discarded == 5
        assert ("distrusted", "a", "lies") in list(reader.dump())


def test_all_workers_of_a_liar_s_machine_are_distrusted_and_no_others(tmp_path: Path) -> None:
    other = "crowd-liar-2"
    with coaching(tmp_path, settings_of(tmp_path)) as coach:
        for worker in (LIAR, other, HONEST):
            receive(coach, worker, 0)
        append_verdict(make_folder(tmp_path), LIAR, "its games are copies")
        act_on_verdicts(coach)
        assert set(coach.ledger.distrusted()) == {LIAR, other}
        assert LIAR in coach.ledger.distrusted()[other]
