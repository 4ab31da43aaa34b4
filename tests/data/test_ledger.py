"""The ledger balances whatever happens, and entries stay."""

import sqlite3
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keima.data.ledger import (
    Ledger,
    LedgerDamaged,
    LedgerMismatch,
    LedgerUnbalanced,
    NoSuchRun,
    open_ledger,
    read_ledger,
)
from keima.data.ledger_rows import FORMAT, BatchRow, ModelRow, WorkerAccount
from keima.games import Game, load_game


@pytest.fixture(scope="module")
def game() -> Game:
    return load_game("tic_tac_toe")


@pytest.fixture
def ledger(tmp_path: Path, game: Game) -> Iterator[Ledger]:
    with open_ledger(tmp_path, game) as ledger:
        yield ledger


def row(batch_id: str, first_game: int | None, games: int, **changes: Any) -> BatchRow:
    received = BatchRow(
        id=batch_id,
        worker="w1",
        state="received",
        reason="",
        first_game=first_game,
        games=games,
        positions=9 * games,
        bytes=100,
        sha256=batch_id * 2,
        first_model=1,
        last_model=2,
    )
    return replace(received, **changes)


def refused(batch_id: str, first_game: int | None, games: int) -> BatchRow:
    return row(batch_id, first_game, games, state="quarantined", reason="an illegal move")


def sums(ledger: WorkerAccount) -> dict[str, int]:
    names = ("granted", "received", "quarantined", "missing", "discarded", "outstanding")
    return {name: getattr(ledger, name) for name in names if getattr(ledger, name)}


def test_a_new_ledger_keeps_the_id_of_its_run(tmp_path: Path) -> None:
    game = load_game("tic_tac_toe")
    with open_ledger(tmp_path, game) as ledger:
        run_id = ledger.run_id
        assert len(run_id) == 16
    with open_ledger(tmp_path, game) as ledger, read_ledger(tmp_path) as reader:
        assert ledger.run_id == reader.run_id == run_id
        assert (reader.game, reader.options, reader.rules_version) == ("tic_tac_toe", {}, game.rules_version)


def test_a_run_can_be_given_its_id(tmp_path: Path, game: Game) -> None:
    open_ledger(tmp_path, game, run_id="demo-1").close()
    with open_ledger(tmp_path, game, run_id="demo-2") as ledger:
        assert ledger.run_id == "demo-1"


def test_values_read_together_are_from_the_same_moment(tmp_path: Path, game: Game) -> None:
    with open_ledger(tmp_path, game) as ledger, read_ledger(tmp_path) as reader:
        with reader.read_snapshot():
            assert reader.workers() == []
            ledger.grant("w1", 7)
            assert reader.workers() == []
        assert reader.workers() == ["w1"]


def test_the_ledger_of_another_game_is_not_written_to(tmp_path: Path, game: Game) -> None:
    open_ledger(tmp_path, game).close()
    with pytest.raises(
        LedgerMismatch, match=r"is a run of tic_tac_toe \{\} .* not of connect_four .*: choose another run name"
    ):
        open_ledger(tmp_path, load_game("connect_four"))
    with pytest.raises(LedgerMismatch, match=r"rules version 1.* not of .*rules version 2"):
        open_ledger(tmp_path, replace(game, rules_version=2))


def test_a_ledger_that_names_no_planes_is_of_before_there_was_a_choice(tmp_path: Path) -> None:
    older = load_game("connect_four", planes="threats")
    open_ledger(tmp_path, older).close()
    with sqlite3.connect(tmp_path / "run.db") as connection:
        connection.execute("UPDATE run SET value = '{}' WHERE key = 'options'")
    connection.close()
    with open_ledger(tmp_path, older) as ledger:
        assert ledger.options == older.options
    with pytest.raises(LedgerMismatch, match=r"is a run of .*threats.* not of .*stones"):
        open_ledger(tmp_path, load_game("connect_four"))


def test_a_ledger_of_another_format_is_left_alone(tmp_path: Path, game: Game) -> None:
    open_ledger(tmp_path, game).close()
    with sqlite3.connect(tmp_path / "run.db") as connection:
        connection.execute(f"PRAGMA user_version = {FORMAT + 1}")
    connection.close()
    for open_it in (read_ledger, lambda folder: open_ledger(folder, game)):
        with pytest.raises(LedgerMismatch, match=f"has format {FORMAT + 1}, this program writes format {FORMAT}"):
            open_it(tmp_path)


def test_a_folder_without_a_ledger_has_no_run(tmp_path: Path) -> None:
    with pytest.raises(NoSuchRun, match=r"is not the folder of a run: it has no run.db"):
        read_ledger(tmp_path)
    (tmp_path / "run.db").touch()
    with pytest.raises(NoSuchRun, match=r"run.db is empty"):
        read_ledger(tmp_path)


def test_a_file_that_is_no_database_is_named(tmp_path: Path, game: Game) -> None:
    (tmp_path / "run.db").write_bytes(b"not a database at all" * 1000)
    for open_it in (read_ledger, lambda folder: open_ledger(folder, game)):
        with pytest.raises(LedgerDamaged, match=r"run.db cannot be read: file is not a database"):
            open_it(tmp_path)


def test_damage_inside_the_file_is_found(tmp_path: Path, game: Game) -> None:
    with open_ledger(tmp_path, game) as ledger:
        for number in range(200):
            ledger.add_event("note", f"{number}" * 100)
        assert ledger.find_damage() == []
    data = bytearray((tmp_path / "run.db").read_bytes())
    data[-6000:-3000] = b"\xff" * 3000
    (tmp_path / "run.db").write_bytes(data)
    with read_ledger(tmp_path) as ledger:
        assert ledger.find_damage()


def test_every_entry_is_synced_and_references_are_checked(ledger: Ledger) -> None:
    values = {
        name: ledger._db.execute(f"PRAGMA {name}").fetchone()[0]
        for name in ("journal_mode", "synchronous", "foreign_keys")
    }
    assert values == {"journal_mode": "wal", "synchronous": 2, "foreign_keys": 1}


def test_grants_add_up(ledger: Ledger) -> None:
    assert ledger.grant("w1", 200) == 200
    assert ledger.grant("w1", 50) == 250
    assert ledger.grant("w2", 10) == 10
    assert ledger.workers() == ["w1", "w2"]
    assert sums(ledger.account("w1")) == {"granted": 250, "outstanding": 250}
    assert sums(ledger.account("stranger")) == {}
    with pytest.raises(LedgerUnbalanced, match="is negative"):
        ledger.grant("w1", -1)


def test_grants_to_many_workers_are_entered_all_or_none(ledger: Ledger) -> None:
    ledger.grant_all({"w1": 200, "w2": 10})
    with pytest.raises(LedgerUnbalanced, match="w3"):
        ledger.grant_all({"w1": 50, "w3": -1})
    assert ledger.accounts() == {"w1": ledger.account("w1"), "w2": ledger.account("w2")}
    assert [ledger.granted for ledger in ledger.accounts().values()] == [200, 10]


def test_received_games_are_no_longer_outstanding(ledger: Ledger) -> None:
    ledger.grant("w1", 200)
    assert ledger.add_received(row("a", 0, 100)) == 1
    assert ledger.add_received(row("b", 100, 20)) == 2
    assert sums(ledger.account("w1")) == {"granted": 200, "received": 120, "outstanding": 80}
    assert ledger.account("w1").next_game == 120


def test_games_that_overlap_others_are_refused(ledger: Ledger) -> None:
    ledger.grant("w1", 200)
    ledger.grant("w2", 200)
    ledger.add_received(row("a", 50, 50))
    for first_game, games in ((0, 51), (99, 10), (60, 1), (0, 200), (50, 50)):
        with pytest.raises(
            LedgerUnbalanced, match=f"games {first_game} to {first_game + games - 1} of worker w1 overlap batch a"
        ):
            ledger.add_received(row("b", first_game, games))
    ledger.add_received(row("before", 0, 50))
    ledger.add_received(row("after", 100, 1))
    ledger.add_received(row("other", 50, 50, worker="w2"))
    assert ledger.batch_ids_in_order() == ["a", "before", "after", "other"]


def test_games_that_were_never_granted_are_refused(ledger: Ledger) -> None:
    ledger.grant("w1", 99)
    with pytest.raises(LedgerUnbalanced, match="games 0 to 99 of worker w1 are beyond the 99 granted"):
        ledger.add_received(row("a", 0, 100))
    with pytest.raises(LedgerUnbalanced, match="beyond the 0 granted"):
        ledger.add_received(row("a", 0, 1, worker="stranger"))
    assert ledger.batches() == []


def test_a_gap_counts_as_missing_until_it_is_filled(ledger: Ledger) -> None:
    ledger.grant("w1", 300)
    ledger.add_received(row("b", 100, 100))
    assert sums(ledger.account("w1")) == {"granted": 300, "received": 100, "missing": 100, "outstanding": 100}
    ledger.add_received(row("a", 0, 100))
    assert sums(ledger.account("w1")) == {"granted": 300, "received": 200, "outstanding": 100}


def test_quarantined_games_count_only_with_a_place_in_the_sequence(ledger: Ledger) -> None:
    ledger.grant("w1", 300)
    ledger.add_quarantined(refused("bad", 0, 100))
    ledger.add_quarantined(refused("unreadable", None, 0))
    assert sums(ledger.account("w1")) == {"granted": 300, "quarantined": 100, "outstanding": 200}
    assert ledger.batch_ids_in_order() == []
    assert [batch.id for batch in ledger.batches()] == ["bad", "unreadable"]
    assert [event[:3] for event in ledger.events()] == [
        ("quarantined", "w1", "batch bad: an illegal move"),
        ("quarantined", "w1", "batch unreadable: an illegal move"),
    ]


def test_outstanding_games_can_be_given_up(ledger: Ledger) -> None:
    ledger.grant("w1", 100)
    ledger.discard("w1", 60, "the worker was removed")
    assert sums(ledger.account("w1")) == {"granted": 100, "discarded": 60, "outstanding": 40}
    assert ledger.events()[-1][:3] == ("discarded", "w1", "60 games given up: the worker was removed")
    with pytest.raises(LedgerUnbalanced, match="worker w1: 41 games cannot be discarded, 40 are outstanding"):
        ledger.discard("w1", 41, "no reason")


@pytest.mark.parametrize("take_back", ["discard", "withdraw"])
def test_everything_outstanding_can_be_taken_back_but_no_more(ledger: Ledger, take_back: str) -> None:
    ledger.grant("w1", 10)
    ledger.grant("w2", 10)
    for impossible in (-1, 11):
        with pytest.raises(LedgerUnbalanced, match=f"{impossible} games cannot be"):
            getattr(ledger, take_back)("w1", impossible, "no reason")
    getattr(ledger, take_back)("w1", 0, "nothing to do")
    assert ledger.account("w1").outstanding == 10
    getattr(ledger, take_back)("w1", 10, "the worker was removed")
    assert (ledger.account("w1").outstanding, ledger.account("w2").outstanding) == (0, 10)


def test_games_that_arrive_after_they_were_given_up_are_accepted(ledger: Ledger) -> None:
    ledger.grant("w1", 100)
    ledger.discard("w1", 100, "the worker was removed")
    ledger.add_received(row("late", 0, 70))
    assert sums(ledger.account("w1")) == {"granted": 100, "received": 70, "discarded": 30}
    assert ledger.events()[-1][:3] == ("returned", "w1", "70 discarded games arrived after all")


OPERATIONS = st.one_of(
    st.tuples(st.just("grant"), st.integers(0, 50)),
    st.tuples(st.sampled_from(["discard", "withdraw"]), st.integers(0, 50)),
    st.tuples(st.sampled_from(["received", "quarantined"]), st.integers(0, 150), st.integers(1, 40)),
)


@pytest.mark.medium
@settings(max_examples=40)
@given(st.lists(OPERATIONS, min_size=3, max_size=12))
def test_the_ledger_balances_whatever_happens(
    tmp_path_factory: pytest.TempPathFactory, operations: list[tuple[Any, ...]]
) -> None:
    with open_ledger(tmp_path_factory.mktemp("run"), load_game("tic_tac_toe")) as ledger:
        ledger._db.execute("PRAGMA synchronous = OFF")
        counted: set[int] = set()
        for number, (operation, *values) in enumerate(operations):
            try:
                carry_out(ledger, operation, values, f"batch-{number}")
            except LedgerUnbalanced:
                continue
            if operation in {"received", "quarantined"}:
                games = set(range(values[0], sum(values)))
                assert not games & counted
                counted |= games
        account = ledger.account("w1")
        assert (
            account.granted
            == account.received + account.quarantined + account.missing + account.discarded + account.outstanding
        )
        assert min(account.received, account.quarantined, account.missing, account.discarded, account.outstanding) >= 0
        assert account.received + account.quarantined == len(counted)
        assert account.next_game == max(counted, default=-1) + 1


def carry_out(ledger: Ledger, operation: str, values: list[int], batch_id: str) -> None:
    if operation == "grant":
        ledger.grant("w1", *values)
    elif operation == "discard":
        ledger.discard("w1", values[0], "it never came")
    elif operation == "withdraw":
        ledger.withdraw("w1", values[0], "others play them")
    elif operation == "received":
        ledger.add_received(row(batch_id, *values))
    else:
        place = ledger.refusal_reason("w1", *values)
        ledger.add_quarantined(refused(batch_id, None, 0) if place else refused(batch_id, *values))
        if place:
            raise LedgerUnbalanced(place)


def test_received_batches_come_in_the_order_of_receipt(ledger: Ledger) -> None:
    ledger.grant("w1", 100)
    for batch_id, first_game in (("c", 20), ("a", 0), ("b", 10)):
        ledger.add_received(row(batch_id, first_game, 10))
        ledger.add_quarantined(refused(f"bad-{batch_id}", None, 0))
    assert ledger.batch_ids_in_order() == ["c", "a", "b"]
    assert [batch.sequence for batch in ledger.received_batches()] == [1, 3, 5]
    assert [batch.id for batch in ledger.received_batches(after=1, up_to=4)] == ["a"]

    assert ledger.batch("a") == row("a", 0, 10, sequence=3)
    assert ledger.batch("nothing") is None


def test_a_game_is_found_by_its_place_among_the_received_ones(ledger: Ledger) -> None:
    ledger.grant("w1", 100)
    ledger.add_received(row("a", 0, 3))
    ledger.add_quarantined(refused("b", 3, 5))
    ledger.add_received(row("c", 8, 4))
    assert ledger.count_received_games() == 7
    found = [ledger.find_game(index) for index in range(7)]
    assert [(batch.id, place) for batch, place in found] == [
        *(("a", place) for place in range(3)),
        *(("c", place) for place in range(4)),
    ]
    assert [batch.id for batch in ledger.batches(after=1, most=1)] == ["b"]


def test_an_id_is_entered_once(ledger: Ledger) -> None:
    ledger.grant("w1", 100)
    ledger.add_received(row("a", 0, 10))
    with pytest.raises(sqlite3.IntegrityError, match="UNIQUE"):
        ledger.add_received(row("a", 10, 10))
    with pytest.raises(sqlite3.IntegrityError, match="UNIQUE"):
        ledger.add_quarantined(refused("a", None, 0))
    assert sums(ledger.account("w1")) == {"granted": 100, "received": 10, "outstanding": 90}


def test_an_entry_that_fails_half_way_leaves_nothing(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(Ledger, "_insert_event", fail)
    with pytest.raises(OSError, match="no space"):
        ledger.add_quarantined(refused("bad", None, 0))
    monkeypatch.undo()
    assert ledger.batches() == [] and ledger.workers() == []
    ledger.add_quarantined(refused("bad", None, 0))
    assert len(ledger.batches()) == 1


def test_a_ledger_that_another_process_writes_to_is_reported_as_locked(ledger: Ledger) -> None:
    ledger._db.execute("PRAGMA busy_timeout = 1")
    with sqlite3.connect(ledger.folder / "run.db") as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(sqlite3.OperationalError, match="database is locked"):
            ledger.grant("w1", 1)
    other.close()
    assert ledger.grant("w1", 1) == 1


def test_readers_see_entries_and_cannot_write(ledger: Ledger) -> None:
    with read_ledger(ledger.folder) as reader:
        ledger.grant("w1", 7)
        assert reader.account("w1").granted == 7
        assert {name: account.granted for name, account in reader.accounts().items()} == {"w1": 7}
        with pytest.raises(sqlite3.OperationalError, match="readonly"):
            reader.grant("w1", 1)


def test_models_are_entered_and_replaced(ledger: Ledger) -> None:
    model = ModelRow(version=1, iteration=0, path="models/000001.safetensors", bytes=10, sha256="aa", accepted=None)
    ledger.add_model(replace(model, sha256="before the crash"))
    ledger.add_model(model)
    ledger.add_model(replace(model, version=2, accepted=True))
    assert ledger.models() == [model, replace(model, version=2, accepted=True)]
    ledger.add_model(replace(model, accepted=False))
    assert ledger.models()[0] == replace(model, accepted=False)
    times = ledger.times("models")
    assert list(times) == [1, 2] and all(abs(then - time.time()) < 100 for then in times.values())


def test_iterations_matches_ratings_and_events_are_kept(ledger: Ledger) -> None:
    ledger.add_iteration(2, {"iteration": 2, "loss": 0.5})
    ledger.add_iteration(1, {"iteration": 1, "loss": None})
    ledger.add_iteration(2, {"iteration": 2, "loss": 0.25})
    assert ledger.iterations() == [{"iteration": 1, "loss": None}, {"iteration": 2, "loss": 0.25}]
    ledger.add_match("2", "random", wins=8, draws=1, losses=1, num_simulations=64)
    assert ledger.matches() == [("2", "random", 8, 1, 1, 64)]
    for first, second in (("2", "1"), ("3", "random"), ("2", "random")):
        ledger.add_match(first, second, wins=5, draws=0, losses=5, num_simulations=64)
    assert len(ledger.matches()) == 4
    ledger.add_match("2", "random", wins=9, draws=0, losses=1, num_simulations=64, replace=True)
    others = [("2", "1", 5, 0, 5, 64), ("3", "random", 5, 0, 5, 64)]
    assert ledger.matches() == [*others, ("2", "random", 9, 0, 1, 64)]
    ledger.set_ratings({"2": (310.0, 25.0), "random": (0.0, 0.0)})
    ledger.set_ratings({"2": (320.0, 20.0)})
    assert ledger.ratings() == {"2": (320.0, 20.0), "random": (0.0, 0.0)}
    ledger.add_event("restarted", "it did not answer", worker="w1")
    assert ledger.events()[-1][:3] == ("restarted", "w1", "it did not answer")
    ledger.add_event("note", "later")
    assert [text for _, _, text, _ in ledger.events(last=1)] == ["later"]
    assert ledger.events(last=2) == ledger.events()[-2:] and ledger.events(last=99) == ledger.events()


def test_games_that_were_not_begun_can_be_taken_back(ledger: Ledger) -> None:
    ledger.grant("w1", 50)
    ledger.add_received(row("a", 0, 20))
    assert ledger.withdraw("w1", 10, "others play them") == 40
    assert sums(ledger.account("w1")) == {"granted": 40, "received": 20, "outstanding": 20}
    assert ledger.refusal_reason("w1", 35, 10) == "games 35 to 44 of worker w1 are beyond the 40 granted"
    assert ledger.events()[-1][:3] == (
        "withdrawn",
        "w1",
        "10 games that it had not begun were taken back: others play them",
    )


@pytest.mark.parametrize("games", [-1, 31])
def test_no_more_games_can_be_taken_back_than_are_outstanding(ledger: Ledger, games: int) -> None:
    ledger.grant("w1", 50)
    ledger.add_received(row("a", 0, 20))
    with pytest.raises(LedgerUnbalanced, match="30 are outstanding"):
        ledger.withdraw("w1", games, "others play them")
    assert ledger.account("w1").granted == 50


def test_accounts_are_the_same_object_until_one_of_them_changes(ledger: Ledger) -> None:
    ledger.grant_all({"w2": 5, "w1": 7})
    before = ledger.accounts()
    assert list(before) == ["w1", "w2"] and ledger.accounts() is before
    ledger.grant("w2", 1)
    after = ledger.accounts()
    assert after is not before and (before["w2"].granted, after["w2"].granted) == (5, 6)
    assert after["w1"] is before["w1"]


def test_an_account_is_as_the_file_has_it_after_a_write_that_failed(ledger: Ledger) -> None:
    ledger.grant("w1", 5)
    ledger.accounts()
    ledger._db.execute("PRAGMA query_only = ON")
    with pytest.raises(sqlite3.Error):
        ledger.grant("w1", 1)
    ledger._db.execute("PRAGMA query_only = OFF")
    assert ledger.account("w1").granted == ledger.accounts()["w1"].granted == 5
