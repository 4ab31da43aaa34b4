"""No finished game is lost and none counts twice, wherever receiving is interrupted and whatever a worker sends."""

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest

from keima.base import files
from keima.base.files import read_limited, sha256_hex
from keima.data import ledger as ledger_module
from keima.data import receive
from keima.data.batch_file import MAX_BATCH_BYTES
from keima.data.ledger import Ledger, open_ledger
from keima.data.packs import games_path
from keima.data.receive import (
    AlreadyReceived,
    Quarantined,
    Received,
    load_if_intact,
    load_received,
    quarantine_path,
    recover_batches,
)
from keima.data.records import CorruptBatch, GameBatch, encode_batch
from keima.games import Game, load_game
from tests.coach.crash_points import FullOnce, Snapshots
from tests.synthetic import synthetic_batch

Change = Callable[[GameBatch], GameBatch]


@pytest.fixture(scope="module")
def game() -> Game:
    return load_game("tic_tac_toe")


@pytest.fixture
def ledger(tmp_path: Path, game: Game) -> Iterator[Ledger]:
    with new_ledger(tmp_path / "run", game) as ledger:
        yield ledger


def new_ledger(folder: Path, game: Game) -> Ledger:
    """Return the ledger of a run that has granted worker w1 200 games."""
    folder.mkdir()
    ledger = open_ledger(folder, game)
    ledger.grant("w1", 200)
    return ledger


def batch_of(ledger: Ledger, game: Game, batch_id: str = "batch-a", first_game: int = 0, **changes: Any) -> GameBatch:
    header: dict[str, Any] = {"run_id": ledger.run_id, "worker": "w1", "batch_id": batch_id, "first_game": first_game}
    return synthetic_batch(game, games=10, seed=first_game + 1, num_simulations=4, **(header | changes))


def take(ledger: Ledger, game: Game, data: bytes, batch_id: str = "batch-a", worker: str = "w1") -> receive.Receipt:
    return receive.receive_batch(ledger, game, worker=worker, batch_id=batch_id, fetch=lambda limit: data)


def offers_of(ledger: Ledger, game: Game, *batch_ids: str) -> list[receive.Offer]:
    """Return offers of batches with the worker's next games."""
    files = [encode_batch(batch_of(ledger, game, each, 10 * number)) for number, each in enumerate(batch_ids)]
    return [
        receive.Offer(worker="w1", batch_id=batch_id, fetch=lambda limit, data=data: data)  # type: ignore[misc]
        for batch_id, data in zip(batch_ids, files, strict=True)
    ]


def test_a_received_batch_is_on_the_disk_and_in_the_ledger(ledger: Ledger, game: Game) -> None:
    batch = batch_of(ledger, game)
    data = encode_batch(batch)
    receipt = take(ledger, game, data)
    assert isinstance(receipt, Received)
    assert (receipt.sequence, receipt.bytes, receipt.next_game) == (1, len(data), 10)
    assert np.array_equal(receipt.batch.actions, batch.actions)
    assert games_path(ledger.folder, "batch-a").read_bytes() == data
    row = ledger.batch("batch-a")
    assert row is not None
    assert (row.state, row.worker, row.first_game, row.games, row.positions) == (
        "received",
        "w1",
        0,
        10,
        batch.num_positions,
    )
    assert (row.bytes, row.sha256, row.first_model, row.last_model) == (len(data), sha256_hex(data), 7, 8)


def test_a_batch_that_is_offered_again_counts_once(ledger: Ledger, game: Game) -> None:
    data = encode_batch(batch_of(ledger, game))
    take(ledger, game, data)
    assert take(ledger, game, data) == AlreadyReceived(batch_id="batch-a", next_game=10)
    assert ledger.account("w1").received == 10
    assert len(ledger.batches()) == 1


def test_batches_may_come_in_any_order(ledger: Ledger, game: Game) -> None:
    for batch_id, first_game in (("c", 20), ("a", 0), ("b", 10)):
        assert isinstance(
            take(ledger, game, encode_batch(batch_of(ledger, game, batch_id, first_game)), batch_id), Received
        )
    assert ledger.batch_ids_in_order() == ["c", "a", "b"]
    assert ledger.account("w1").missing == 0


def test_a_failed_fetch_changes_nothing(ledger: Ledger, game: Game) -> None:
    def unreachable(limit: int) -> bytes:
        raise ConnectionError("w1 does not answer")

    with pytest.raises(ConnectionError):
        receive.receive_batch(ledger, game, worker="w1", batch_id="batch-a", fetch=unreachable)
    assert ledger.batches() == []
    assert [path.name for path in ledger.folder.iterdir() if path.is_dir()] == []


def illegal(batch: GameBatch) -> GameBatch:
    actions = batch.actions.copy()
    actions[1] = actions[0]
    return replace(batch, actions=actions)


REFUSED: list[tuple[str, Change, int]] = [  # the reason, the fault, and how many games take their place in the sequence
    ("game 0 after 1 moves: the move is illegal", illegal, 10),
    ("it holds games of tic_tac_toe {} by rules version 9", lambda batch: replace(batch, rules_version=9), 10),
    ("it holds games of chess {'history': 8}", lambda batch: replace(batch, game="chess"), 10),
    ("of run other by worker w1, but it came as batch", lambda batch: replace(batch, run_id="other"), 0),
    ("by worker w2, but it came as", lambda batch: replace(batch, worker="w2"), 0),
    ("its header says batch batch-b of run", lambda batch: replace(batch, batch_id="batch-b"), 0),
    ("games 195 to 204 of worker w1 are beyond the 200 granted", lambda batch: replace(batch, first_game=195), 0),
    ("games 9007199254740000 to", lambda batch: replace(batch, first_game=9007199254740000), 0),
]


@pytest.mark.parametrize(("reason", "change", "placed"), REFUSED, ids=[reason for reason, _, _ in REFUSED])
def test_an_invalid_batch_is_quarantined_with_its_reason(
    ledger: Ledger, game: Game, reason: str, change: Change, placed: int
) -> None:
    data = encode_batch(change(batch_of(ledger, game)))
    receipt = take(ledger, game, data)
    assert isinstance(receipt, Quarantined) and receipt.batch_id == "batch-a" and reason in receipt.reason
    assert quarantine_path(ledger.folder, "batch-a").read_bytes() == data
    assert quarantine_path(ledger.folder, "batch-a").with_suffix(".reason").read_text() == f"{receipt.reason}\n"
    assert not games_path(ledger.folder, "batch-a").exists()
    assert ledger.batch_ids_in_order() == []
    assert (ledger.account("w1").quarantined, ledger.account("w1").received) == (placed, 0)
    assert ledger.events()[-1][:3] == ("quarantined", "w1", f"batch batch-a: {receipt.reason}")
    assert take(ledger, game, data) == AlreadyReceived(batch_id="batch-a", next_game=receipt.next_game)


@pytest.mark.parametrize(
    "data", [b"", b"KEIMAGB\n", b"\x80\x04pickle", os.urandom(5000)], ids=["empty", "short", "pickle", "noise"]
)
def test_bytes_that_are_no_batch_are_quarantined(ledger: Ledger, game: Game, data: bytes) -> None:
    receipt = take(ledger, game, data)
    assert isinstance(receipt, Quarantined)
    assert quarantine_path(ledger.folder, "batch-a").read_bytes() == data
    assert ledger.account("w1").next_game == 0


def test_games_received_before_are_refused_under_another_name(ledger: Ledger, game: Game) -> None:
    take(ledger, game, encode_batch(batch_of(ledger, game)))
    receipt = take(ledger, game, encode_batch(batch_of(ledger, game, "batch-b")), "batch-b")
    assert receipt == Quarantined(
        batch_id="batch-b", reason="games 0 to 9 of worker w1 overlap batch batch-a", next_game=10
    )
    assert ledger.account("w1").received == 10


def test_an_id_with_different_content_is_refused_and_both_are_kept(ledger: Ledger, game: Game) -> None:
    first, second = encode_batch(batch_of(ledger, game)), encode_batch(batch_of(ledger, game, first_game=10))
    take(ledger, game, first)
    receipt = take(ledger, game, second)
    assert (
        isinstance(receipt, Quarantined) and "batch batch-a was received before, with other content" in receipt.reason
    )
    assert games_path(ledger.folder, "batch-a").read_bytes() == first
    assert quarantine_path(ledger.folder, receipt.batch_id).read_bytes() == second
    assert take(ledger, game, second) == AlreadyReceived(batch_id=receipt.batch_id, next_game=10)


HOSTILE = [
    "",
    "../../etc/passwd",
    "/etc/passwd",
    "a/b",
    "A",
    "a.b",
    "a" * 81,
    "a\n",
    "a\x00b",
    "ä",
    "\udcff",
    "x" * 100_000,
]


@pytest.mark.parametrize("batch_id", HOSTILE, ids=ascii)
def test_an_id_never_becomes_another_path(ledger: Ledger, game: Game, batch_id: str) -> None:
    receipt = take(ledger, game, encode_batch(batch_of(ledger, game)), batch_id)
    assert isinstance(receipt, Quarantined) and "is not the id of a batch" in receipt.reason
    assert len(receipt.reason) < 600
    kept = {path.name for path in ledger.folder.rglob("*") if path.is_file()} - {"run.db", "run.db-wal", "run.db-shm"}
    assert kept == {f"{receipt.batch_id}.games", f"{receipt.batch_id}.reason"}
    assert receipt.batch_id.startswith("refused-")


def test_a_file_that_is_too_large_is_not_read(ledger: Ledger, game: Game, tmp_path: Path) -> None:
    path = tmp_path / "batch-a.games"
    with path.open("wb") as file:
        file.truncate(MAX_BATCH_BYTES + 1)
    receipt = receive.receive_batch(
        ledger, game, worker="w1", batch_id="batch-a", fetch=lambda limit: read_limited(path, limit)
    )
    assert isinstance(receipt, Quarantined) and "holds more than the 16,777,216 bytes allowed" in receipt.reason
    assert take(ledger, game, b"") == AlreadyReceived(batch_id="batch-a", next_game=0)


@pytest.mark.parametrize(
    ("limit", "value"), [("MAX_QUARANTINED_FILES", 3), ("MAX_QUARANTINED_BYTES", 303), ("MAX_QUARANTINED_BYTES", 403)]
)
def test_the_quarantine_cannot_fill_the_disk(
    ledger: Ledger, game: Game, monkeypatch: pytest.MonkeyPatch, limit: str, value: int
) -> None:
    monkeypatch.setattr(receive, limit, value)
    for number in range(6):
        assert isinstance(take(ledger, game, b"x" * 100 + b"%d" % number, f"bad-{number}"), Quarantined)
    assert len(list(quarantine_path(ledger.folder, "").parent.glob("*.games"))) == 3
    assert len(ledger.batches()) == 6


def test_a_window_can_be_refilled_from_the_disk(ledger: Ledger, game: Game) -> None:
    batches = [batch_of(ledger, game, f"batch-{n}", 10 * n) for n in range(3)]
    for batch in batches:
        take(ledger, game, encode_batch(batch), batch.batch_id)
    loaded = [load_received(ledger.folder, row) for row in ledger.received_batches()]
    assert [batch.batch_id for batch in loaded] == ["batch-0", "batch-1", "batch-2"]
    assert all(np.array_equal(ours.actions, theirs.actions) for ours, theirs in zip(loaded, batches, strict=True))
    path = games_path(ledger.folder, "batch-1")
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CorruptBatch, match=r"batch-1.games has changed since it was received"):
        load_received(ledger.folder, ledger.received_batches()[1])


def test_a_batch_damaged_or_lost_since_is_left_out_of_the_window_and_reported(ledger: Ledger, game: Game) -> None:
    for number in range(4):
        take(ledger, game, encode_batch(batch_of(ledger, game, f"batch-{number}", 10 * number)), f"batch-{number}")
    os.truncate(games_path(ledger.folder, "batch-3"), MAX_BATCH_BYTES + 1)
    games_path(ledger.folder, "batch-0").unlink()
    games_path(ledger.folder, "batch-1").write_bytes(b"other content")
    said: list[str] = []
    found = [load_if_intact(ledger.folder, row, log_event=said.append) for row in ledger.received_batches()]
    assert [batch and batch.batch_id for batch in found] == [None, None, "batch-2", None]
    assert len(said) == 3
    assert "batch batch-0 is left out of the window: " in said[0] and "No such file" in said[0]
    assert "batch batch-1 is left out of the window: " in said[1] and "has changed since it was received" in said[1]
    assert "batch batch-3 is left out of the window: " in said[2] and "allowed for it" in said[2]


@pytest.fixture
def steps(ledger: Ledger, game: Game, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is synced, renamed and committed from now on."""
    steps: list[str] = []

    def noted(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*values: Any, **options: Any) -> Any:
            target = values[0]
            where = Path(f"/proc/self/fd/{target}").readlink().name if isinstance(target, int) else ""
            steps.append(f"{name} {where}".strip())
            return function(*values, **options)

        return call

    recover_batches(ledger, game)
    monkeypatch.setattr(os, "fsync", noted("sync", os.fsync))
    monkeypatch.setattr(Path, "replace", noted("rename", Path.replace))
    ledger._db.set_trace_callback(lambda statement: steps.append("commit") if statement == "COMMIT" else None)
    return steps


def test_everything_is_on_the_disk_before_the_ledger_says_so(ledger: Ledger, game: Game, steps: list[str]) -> None:
    take(ledger, game, encode_batch(batch_of(ledger, game)))
    assert steps == ["sync batch-a.games.part", "rename", "sync games", "commit"]


def test_batches_that_wait_together_share_the_syncs_of_folder_and_ledger(
    ledger: Ledger, game: Game, steps: list[str]
) -> None:
    receipts = receive.receive_batches(ledger, game, offers_of(ledger, game, "a", "b", "c"))
    assert [(receipt.sequence, receipt.next_game) for receipt in receipts if isinstance(receipt, Received)] == [
        (1, 10),
        (2, 20),
        (3, 30),
    ]
    assert steps == [*(f"sync {name}.games.part" for name in "abc"), *["rename"] * 3, "sync games", "commit"]
    assert ledger.account("w1").received == 30


def test_of_batches_that_are_received_together_all_are_safe_or_none(ledger: Ledger, game: Game) -> None:
    offers = offers_of(ledger, game, "a", "b", "c")

    def unreachable(limit: int) -> bytes:
        assert ledger.accounts()["w1"].received == 10  # also what is read meanwhile is forgotten
        raise ConnectionError("w1 does not answer")

    with pytest.raises(ConnectionError):
        receive.receive_batches(ledger, game, [offers[0], replace(offers[1], fetch=unreachable), offers[2]])
    assert ledger.batches() == [] and ledger.accounts()["w1"].received == 0
    assert not any(games_path(ledger.folder, "").parent.glob("*.games*"))
    assert all(isinstance(each, Received) for each in receive.receive_batches(ledger, game, offers))


def test_a_batch_that_is_offered_twice_at_once_counts_once(ledger: Ledger, game: Game) -> None:
    offer = offers_of(ledger, game, "a")[0]
    first, second = receive.receive_batches(ledger, game, [offer, offer])
    assert isinstance(first, Received) and second == AlreadyReceived(batch_id="a", next_game=10)
    assert ledger.account("w1").received == 10


# Interruptions at every line of the code under test.

LINES = {files.__file__, ledger_module.__file__, receive.__file__}


def before_each_line(call: Callable[[], None], action: Callable[[], object]) -> None:
    """Carry out ``action``, and ``call`` before each line of the code under test that it runs, and at the end."""

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        if frame.f_code.co_filename not in LINES:
            return None
        if event == "line":
            call()
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        action()
    finally:
        sys.settrace(before)
    call()


def states_on_the_way(folder: Path, action: Callable[[], object]) -> list[Path]:
    """Yield what a kill at each line of ``action`` would leave of ``folder``: copies, without repetition."""
    snapshots = Snapshots(folder)
    before_each_line(snapshots.poll, action)
    return snapshots.states


def fails_at(line: int, action: Callable[[], object]) -> bool:
    """Carry out ``action`` on a disk that becomes full at the ``line``-th line; return whether it got there."""
    try:
        before_each_line(FullOnce(line), action)
    except OSError:
        return True
    return False


def counted_once(ledger: Ledger, data: bytes, *, good: bool = True) -> bool:
    """Return whether the batch is on the disk and in the ledger exactly once, where it belongs, and nothing else is."""
    kept = sorted(
        path.name for path in ledger.folder.rglob("*") if path.is_file() and not path.name.startswith("run.db")
    )
    path = games_path(ledger.folder, "batch-a") if good else quarantine_path(ledger.folder, "batch-a")
    names = ["batch-a.games"] if good else ["batch-a.games", "batch-a.reason"]
    account = ledger.account("w1")
    return (
        kept == names
        and path.read_bytes() == data
        and [(row.id, row.state) for row in ledger.batches()] == [("batch-a", "received" if good else "quarantined")]
        and (account.received, account.quarantined) == ((10, 0) if good else (0, 10))
    )


CHANGES = pytest.mark.parametrize("change", [lambda batch: batch, illegal], ids=["good", "illegal"])


@CHANGES
def test_a_kill_at_any_line_loses_nothing_and_counts_nothing_twice(ledger: Ledger, game: Game, change: Change) -> None:
    data, good = encode_batch(change(batch_of(ledger, game))), change is not illegal
    states = states_on_the_way(ledger.folder, lambda: (recover_batches(ledger, game), take(ledger, game, data)))
    assert len(states) >= 7
    for state in states:  # the coach is restarted, and the worker still offers the batch
        with open_ledger(state, game) as again:
            recover_batches(again, game)
            take(again, game, data)
            assert counted_once(again, data, good=good), state


def test_a_batch_that_was_in_place_survives_even_without_its_worker(ledger: Ledger, game: Game) -> None:
    data = encode_batch(batch_of(ledger, game))
    outcomes = set()
    for state in states_on_the_way(ledger.folder, lambda: take(ledger, game, data)):
        in_place = games_path(state, "batch-a").exists()
        with open_ledger(state, game) as again:  # the batch is not offered again
            recover_batches(again, game)
            assert counted_once(again, data) == in_place, state
            assert recover_batches(again, game) == []
        outcomes.add(in_place)
    assert outcomes == {False, True}


@pytest.mark.medium
def test_a_kill_during_recovery_loses_nothing(ledger: Ledger, game: Game) -> None:
    good, bad = encode_batch(batch_of(ledger, game)), encode_batch(batch_of(ledger, game, "batch-b", 10))[:-1]
    games_path(ledger.folder, "").parent.mkdir()
    games_path(ledger.folder, "batch-a").write_bytes(good)
    games_path(ledger.folder, "batch-b").write_bytes(bad)
    states = states_on_the_way(ledger.folder, lambda: recover_batches(ledger, game))
    assert len(states) >= 8
    for state in states:
        with open_ledger(state, game) as again:
            recover_batches(again, game)
            assert [(row.id, row.state) for row in again.batches()] == [
                ("batch-a", "received"),
                ("batch-b", "quarantined"),
            ], state
        assert games_path(state, "batch-a").read_bytes() == good
        assert quarantine_path(state, "batch-b").read_bytes() == bad
        assert not games_path(state, "batch-b").exists()


def test_a_kill_while_the_ledger_is_created_leaves_a_run_that_can_start(tmp_path: Path, game: Game) -> None:
    folder = tmp_path / "new"
    folder.mkdir()
    states = states_on_the_way(folder, lambda: open_ledger(folder, game).close())
    assert len(states) >= 3
    for state in states:
        with open_ledger(state, game) as ledger:
            assert ledger.grant("w1", 5) == 5


@pytest.mark.medium
@CHANGES
@pytest.mark.filterwarnings(
    "ignore:unclosed file:ResourceWarning"
)  # where the error occurs between opening and holding a file
def test_after_an_error_at_any_line_the_same_coach_receives_the_batch(
    tmp_path: Path, game: Game, monkeypatch: pytest.MonkeyPatch, change: Change
) -> None:
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)  # the power stays on: a hundred runs take a second
    with new_ledger(tmp_path / "before", game) as ledger:
        data, good = encode_batch(change(batch_of(ledger, game))), change is not illegal
    line, failed = 0, True
    while failed:
        line += 1
        folder = tmp_path / f"run-{line}"
        shutil.copytree(ledger.folder, folder)
        with open_ledger(folder, game) as again:
            again._db.execute("PRAGMA synchronous = OFF")
            failed = fails_at(line, lambda again=again: take(again, game, data))  # type: ignore[misc]
            take(again, game, data)
            assert counted_once(again, data, good=good), line
    assert line > 40


# Files in place at recovery.


def test_a_damaged_file_in_place_is_moved_to_the_quarantine(ledger: Ledger, game: Game) -> None:
    data = encode_batch(batch_of(ledger, game))
    games_path(ledger.folder, "").parent.mkdir()
    games_path(ledger.folder, "batch-a").write_bytes(data[:-1])
    receipts = recover_batches(ledger, game)
    assert [type(receipt) for receipt in receipts] == [Quarantined]
    assert not games_path(ledger.folder, "batch-a").exists()
    assert quarantine_path(ledger.folder, "batch-a").read_bytes() == data[:-1]
    assert recover_batches(ledger, game) == []


def test_recovery_removes_partial_files_and_nothing_else(ledger: Ledger, game: Game) -> None:
    data = encode_batch(batch_of(ledger, game))
    take(ledger, game, data)
    (ledger.folder / "games" / "batch-b.games.part").write_bytes(data[:100])
    assert recover_batches(ledger, game) == []
    assert [path.name for path in (ledger.folder / "games").iterdir()] == ["batch-a.games"]
    assert (ledger.folder / "quarantine").is_dir()
