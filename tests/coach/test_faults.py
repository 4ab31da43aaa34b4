"""The Coach's reaction to bad input and a full disk: it reports them, keeps the good data, and continues."""

import sqlite3
from collections.abc import Callable
from itertools import cycle
from pathlib import Path

import pytest

from keima.cli.reports.audit import audit
from keima.coach.backends.pending_batch import PendingBatch
from keima.coach.loop import Coach
from keima.data.batch_file import MAX_BATCH_BYTES
from keima.data.ledger import LedgerMismatch, read_ledger
from keima.data.receive import quarantine_path
from keima.worker.worker_folder import WorkerFolder
from tests.coach.coaching import Listener, coaching
from tests.small_run import small_settings

pytestmark = pytest.mark.medium


def place(coach: Coach, name: str, data: bytes, worker: str = "inline") -> Path:
    path = WorkerFolder(coach.run_dir / "workers" / worker).create_folders().outbox / f"{name}.games"
    path.write_bytes(data)
    return path


def a_received_batch(coach: Coach) -> bytes:
    row = coach.ledger.received_batches()[0]
    return (coach.run_dir / "games" / f"{row.id}.games").read_bytes()


FAULTS: dict[str, Callable[[bytes], bytes]] = {
    "nonsense": lambda good: b"nonsense",
    "empty": lambda good: b"",
    "truncated": lambda good: good[: len(good) // 2],
    "flipped": lambda good: good[:200] + bytes([good[200] ^ 1]) + good[201:],
    "oversized": lambda good: bytes(MAX_BATCH_BYTES + 1),
    "other version": lambda good: good[:8] + b"\x09\x00" + good[10:],
    "another batch": lambda good: good,
}


def test_each_bad_batch_is_quarantined_and_the_run_continues(tmp_path: Path) -> None:
    listener = Listener()
    with coaching(tmp_path, small_settings(tmp_path), listeners=[listener]) as coach:
        coach.start()
        coach.gather()
        placed = {
            fault: place(coach, f"{900 + 10 * number:09}-10-inline-0000", damage(a_received_batch(coach)))
            for number, (fault, damage) in enumerate(FAULTS.items())
        }
        coach.poll_workers(ingest=True)
        assert not [fault for fault, path in placed.items() if path.exists()]
        assert "quarantine" in coach.progress_report().workers[0].error
        coach.run()
        assert coach.state.iteration == 2
        assert not coach.progress_report().workers[0].error  # good ones have arrived since
        quarantined = {row.id for row in coach.ledger.batches() if row.state == "quarantined"}
    assert quarantined == {path.stem for path in placed.values()}
    for batch_id in quarantined:
        assert any("quarantine" in text and batch_id in text for text in listener.events)
        assert quarantine_path(tmp_path, batch_id).with_suffix(".reason").exists()
    assert not audit(tmp_path).problems


@pytest.mark.parametrize("asynchronous", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_batch_damaged_in_transit_does_not_stall_the_run(tmp_path: Path, asynchronous: bool) -> None:
    now, listener = [0.0], Listener()

    def clock() -> float:
        now[0] += 0.3
        return now[0]

    changes = {
        "self_play": {"games_per_worker": 10, "flush_seconds": 1e6},
        "distributed": {"batch_size": 20},
    }  # two batches are more than a whole grant
    settings = small_settings(tmp_path, training={"asynchronous": asynchronous}, **changes)
    with coaching(tmp_path, settings, listeners=[listener], clock=clock) as coach:
        coach.start()
        collect, damaged = coach.backend.collect, list[str]()

        def damage_until_games_are_given_up() -> list[PendingBatch]:
            waiting = collect()
            if waiting and waiting[0].batch_id not in damaged and not given_up():
                damaged.append(waiting[0].batch_id)
                place(coach, waiting[0].batch_id, b"damaged")
            return waiting

        def given_up() -> bool:
            return any("given up" in text for text in listener.events)

        coach.backend.collect = damage_until_games_are_given_up  # type: ignore[method-assign]
        coach.run()
        assert coach.state.iteration == 2
    assert damaged and given_up()
    assert not audit(tmp_path).problems


@pytest.mark.parametrize(
    "error",
    [
        OSError(28, "No space left on device"),
        pytest.param(sqlite3.OperationalError("database or disk is full"), marks=pytest.mark.slow),
    ],
)
def test_a_full_disk_is_reported_once_and_the_batch_is_received_when_there_is_room(
    tmp_path: Path, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    listener = Listener()
    with coaching(tmp_path, small_settings(tmp_path), listeners=[listener]) as coach:
        coach.start()

        def refuse(*arguments: object, **options: object) -> object:
            raise error

        monkeypatch.setattr("keima.coach.receiving.receive_batches", refuse)
        for _ in range(20):
            coach.poll_workers(ingest=True)
        assert coach.state.total_games == 0
        told = [text for text in listener.events if "cannot be stored now" in text]
        assert len(told) == len(set(told)) > 0
        monkeypatch.undo()
        coach.run()
        assert coach.state.iteration == 2
    assert not audit(tmp_path).problems


def test_an_unreadable_batch_delays_no_other(tmp_path: Path) -> None:
    listener = Listener()
    with coaching(tmp_path, small_settings(tmp_path), listeners=[listener]) as coach:
        (WorkerFolder(tmp_path / "workers" / "inline").create_folders().outbox / "000000000-1-folder-0.games").mkdir()
        coach.run()
        assert coach.state.iteration == 2
    assert sum("cannot be stored now" in text for text in listener.events) == 1


@pytest.mark.parametrize(
    ("damaged", "gone"),
    [(0, -1), pytest.param(-1, 0, marks=pytest.mark.slow)],
    ids=["first and last", "last and first"],
)
def test_received_batches_that_are_damaged_or_gone_are_left_out_and_the_run_continues(
    tmp_path: Path, damaged: int, gone: int
) -> None:
    settings, listener = small_settings(tmp_path, run={"iterations": 3}), Listener()
    with coaching(tmp_path, settings) as coach:
        coach.start()
        coach.gather()
        coach.end()
        rows = coach.ledger.received_batches()
    paths = [tmp_path / "games" / f"{rows[place].id}.games" for place in (damaged, gone)]
    good = {path: path.read_bytes() for path in paths}
    paths[0].write_bytes(b"damaged")
    paths[1].unlink()
    with coaching(tmp_path, settings, listeners=[listener]) as coach:
        assert coach.window.num_games < coach.state.total_games
        coach.run()
        assert coach.state.total_games == sum(row.games for row in coach.ledger.received_batches())
    problems = audit(tmp_path).problems
    assert len(problems) == 2 and all(path.stem in "".join(problems) for path in paths)
    for path, data in good.items():
        path.write_bytes(data)
    assert not audit(tmp_path).problems


def test_games_of_a_worker_of_an_earlier_session_are_collected(tmp_path: Path) -> None:
    settings = small_settings(tmp_path)
    with coaching(tmp_path, settings) as coach:
        coach.start()
        coach.gather()
        coach.end()
        coach.ledger.grant("gone", 50)
    with coaching(tmp_path, settings) as coach:
        path = place(coach, "000000000-5-gone-0000", b"damaged", worker="gone")
        coach.run()
        assert not path.exists()
        assert coach.ledger.account("gone").outstanding == 0
    assert not audit(tmp_path).problems


def test_an_unreadable_heartbeat_does_not_matter(tmp_path: Path) -> None:
    heartbeats = cycle([b"", b"{", b"\x00" * 100])
    with coaching(tmp_path, small_settings(tmp_path)) as coach:
        read = coach.backend.heartbeats

        def garble() -> object:
            (tmp_path / "workers" / "inline" / "worker.json").write_bytes(next(heartbeats))
            return read()

        coach.backend.heartbeats = garble  # type: ignore[method-assign, assignment]
        coach.run()
        assert coach.state.iteration == 2


def test_a_run_continues_from_the_checkpoint_before_a_damaged_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with coaching(tmp_path, small_settings(tmp_path)) as coach:
        coach.run()
        newest = coach.checkpoints.paths()[-1]
        games = coach.state.total_games
    (newest / "network.safetensors").write_bytes(b"damaged")
    with coaching(tmp_path, small_settings(tmp_path, run={"iterations": 3})) as coach:
        coach.run()
        assert coach.state.iteration == 3
        assert coach.state.total_games > games
    assert "network.safetensors" in caplog.text
    assert not audit(tmp_path).problems


def test_a_ledger_of_another_version_is_refused_with_its_number(tmp_path: Path) -> None:
    with coaching(tmp_path, small_settings(tmp_path)) as coach:
        coach.run()
    with sqlite3.connect(tmp_path / "run.db") as connection:
        connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(LedgerMismatch, match="format 99"), coaching(tmp_path, small_settings(tmp_path)):
        pass
    with pytest.raises(LedgerMismatch, match="format 99"):
        read_ledger(tmp_path)
