"""The audit finds every way in which the ledger of a run can be wrong, and no fault in correct ones."""

import json
import re
import shutil
import sqlite3
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from keima.base.files import sha256_hex
from keima.base.system.command_line import program_name
from keima.cli.reports import audit
from keima.data.ledger import Ledger, open_ledger
from keima.data.ledger_rows import ModelRow
from keima.data.packs import games_path
from keima.data.receive import receive_batch
from keima.data.records import GameBatch, encode_batch
from keima.games import Game, load_game
from tests.programs import called, printed
from tests.synthetic import synthetic_batch


@pytest.fixture(scope="module")
def game() -> Game:
    return load_game("tic_tac_toe")


def batch_of(ledger: Ledger, game: Game, batch_id: str, worker: str, first_game: int, **changes: Any) -> GameBatch:
    header: dict[str, Any] = {"run_id": ledger.run_id, "worker": worker, "batch_id": batch_id, "first_game": first_game}
    return synthetic_batch(game, games=10, seed=len(worker) + first_game, num_simulations=4, **(header | changes))


def take(ledger: Ledger, game: Game, batch_id: str, worker: str, first_game: int, data: bytes | None = None) -> None:
    data = encode_batch(batch_of(ledger, game, batch_id, worker, first_game)) if data is None else data
    receive_batch(ledger, game, worker=worker, batch_id=batch_id, fetch=lambda limit: data)


@pytest.fixture(autouse=True)
def no_coach_is_at_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "SETTLE_SECONDS", 0.0)


@pytest.fixture
def run(tmp_path: Path, game: Game) -> Path:
    """A run with two workers, batches a, b and c, a model, and a checkpoint after the first two batches."""
    folder = tmp_path / "demo"
    folder.mkdir()
    with open_ledger(folder, game) as ledger:
        ledger.grant("one", 50)
        ledger.grant("another", 10)
        take(ledger, game, "a", "one", 0)
        take(ledger, game, "b", "another", 0)
        take(ledger, game, "c", "one", 10)
        ledger.discard("one", 5, "the worker was removed")
        ledger.grant("another", 30)
        ledger.withdraw("another", 30, "others play them")
        (folder / "models").mkdir()
        (folder / "models" / "model-000001.model").write_bytes(b"weights")
        model = ModelRow(
            version=1,
            iteration=0,
            path="models/model-000001.model",
            bytes=7,
            sha256=sha256_hex(b"weights"),
            accepted=True,
        )
        ledger.add_model(model)
        seen = ledger.received_batches(up_to=2)
        write_checkpoint(folder, 1, window_sequence=0, total_games=0, total_positions=0)
        write_checkpoint(
            folder, 2, window_sequence=2, total_games=20, total_positions=sum(row.positions for row in seen)
        )
    return folder


def test_the_core_hours_of_workers_are_told_with_those_of_one_that_has_left(run: Path, game: Game) -> None:
    with open_ledger(run, game) as ledger:
        ledger.add_iteration(1, {"workers": [{"name": "one", "core_hours": 1.5}, {"name": "another"}]})
        ledger.add_iteration(2, {"workers": [{"name": "another", "core_hours": 0.25}]})
    hours = {worker["name"]: worker["core_hours"] for worker in audit.audit(run).workers}
    assert hours == {"another": 0.25, "one": 1.5}
    assert "1.75" in called("audit", run)


def write_checkpoint(folder: Path, number: int, **coach: int) -> None:
    path = folder / "checkpoints" / f"checkpoint-{number:06d}"
    path.mkdir(parents=True)
    (path / "checkpoint.json").write_text(json.dumps({"sha256": "", "content": json.dumps({"coach": coach})}))


def change(folder: Path, statement: str) -> None:
    """Falsify the ledger."""
    with sqlite3.connect(folder / "run.db") as connection:
        connection.execute(statement)
    connection.close()


def test_a_ledger_that_balances_is_shown_with_its_sums(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert audit.main([str(run)]) == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == "Worker Granted Received Quarantined Missing Discarded Outstanding Core h"
    assert lines[1:4] == ["another 10 10 0 0 0 0 0.00", "one 50 20 0 0 5 25 0.00", "Total 60 30 0 0 5 25 0.00"]
    assert re.fullmatch(r"Received batches: 3 \(30 games, \d+ positions; replayed by the rules\)", lines[5])
    assert lines[6] == "Models: 1"
    assert lines[-1] == f"The ledger of {run} balances."


def test_the_smaller_boards_of_a_run_are_audited_too(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    board = run / "smaller" / "size-5"
    shutil.copytree(run, board)
    assert audit.main([str(run), "--quick"]) == 0
    assert f"The ledger of {board} balances." in capsys.readouterr().out
    change(board, "UPDATE workers SET granted = granted - 40 WHERE name = 'one'")
    assert audit.main([str(run), "--quick", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["balances"] and not found["smaller"]["size-5"]["balances"]


def test_json_is_available_for_programs(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert audit.main([str(run), "--json", "--quick"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["balances"] is True and found["replayed"] is False and found["problems"] == []
    assert (found["batches"], found["games"], found["models"]) == (3, 30, 1)
    assert found["workers"][1] == {
        "name": "one",
        "granted": 50,
        "received": 20,
        "quarantined": 0,
        "missing": 0,
        "discarded": 5,
        "outstanding": 25,
        "core_hours": 0.0,
    }


def problems(folder: Path, *, quick: bool = False) -> list[str]:
    return audit.audit(folder, quick=quick).problems


def spoil(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


BATCH_DAMAGE: list[tuple[str, Callable[[Path], object]]] = [
    ("batch c: its file .*c.games is missing", lambda run: games_path(run, "c").unlink()),
    (
        "batch c: its file .*c.games has changed: its SHA-256 differs",
        lambda run: spoil(games_path(run, "c")),
    ),
    (
        "games/stranger.games is not in the ledger: resume the run",
        lambda run: games_path(run, "stranger").write_bytes(b"?"),
    ),
    (
        "games/stranger.txt is not in the ledger: it does not belong there",
        lambda run: games_path(run, "").with_name("stranger.txt").touch(),
    ),
    ("model 1: its file .*model-000001.model is missing", lambda run: (run / "models" / "model-000001.model").unlink()),
    (
        "model 1: its file .* has changed",
        lambda run: (run / "models" / "model-000001.model").write_bytes(b"weighty"),
    ),
]
FALSE_BOOKS = [
    (
        "account of worker one has 19 for received, its batches sum to 20",
        "UPDATE workers SET received = 19 WHERE name = 'one'",
    ),
    ("account of worker one has 20 for next_game, its batches sum to 10", "DELETE FROM batches WHERE id = 'c'"),
    (
        "worker one has delivered 5 games more than it was granted",
        "UPDATE workers SET granted = 20 WHERE name = 'one'",
    ),
    ("games from 5 of worker one count twice: in batches a and c", "UPDATE batches SET first_game = 5 WHERE id = 'c'"),
    ("games 10 to 11 of worker one are missing before batch c", "UPDATE batches SET first_game = 12 WHERE id = 'c'"),
    ("games 0 to 9 of worker one are missing before batch c", "DELETE FROM batches WHERE id = 'a'"),
    (
        "checkpoint-000002: its last batch has number 2, which is not in the ledger",
        "DELETE FROM batches WHERE id = 'b'",
    ),
    (
        "checkpoint-000002: it counts 20 games up to batch number 2, but the ledger has 10",
        "DELETE FROM batches WHERE id = 'b'",
    ),
    (
        "batches a and c have the same content",
        "UPDATE batches SET sha256 = (SELECT sha256 FROM batches WHERE id = 'a') WHERE id = 'c'",
    ),
    ("row 3 of table batches refers to nothing", "UPDATE batches SET worker = 'ghost' WHERE id = 'c'"),
]
FALSE_FACTS = [
    ("batch c: its file has games 10, the ledger has 11", "UPDATE batches SET games = 11 WHERE id = 'c'"),
    ("batch c: its file has positions", "UPDATE batches SET positions = positions + 1 WHERE id = 'c'"),
    ("batch c: its file has last_model 8, the ledger has 9", "UPDATE batches SET last_model = 9 WHERE id = 'c'"),
    (
        "batch c: its file has worker one, the ledger has another",
        "UPDATE batches SET worker = 'another' WHERE id = 'c'",
    ),
    ("batch a: it is of run .*, but this is run x", "UPDATE run SET value = 'x' WHERE key = 'run_id'"),
]


@pytest.mark.parametrize(("problem", "damage"), BATCH_DAMAGE, ids=[problem for problem, _ in BATCH_DAMAGE])
def test_every_kind_of_damage_is_named(
    run: Path, monkeypatch: pytest.MonkeyPatch, problem: str, damage: Callable[[Path], object]
) -> None:
    monkeypatch.setattr(audit, "SETTLE_SECONDS", 0.0)
    damage(run)
    assert_found(problem, problems(run))
    assert_found(problem, problems(run, quick=True))
    assert audit.main([str(run)]) == 1


@pytest.mark.parametrize(("problem", "statement"), FALSE_BOOKS, ids=[problem for problem, _ in FALSE_BOOKS])
def test_a_ledger_that_contradicts_itself_is_found_without_replaying(run: Path, problem: str, statement: str) -> None:
    change(run, statement)
    assert_found(problem, problems(run, quick=True))


@pytest.mark.parametrize(("problem", "statement"), FALSE_FACTS, ids=[problem for problem, _ in FALSE_FACTS])
def test_a_ledger_that_contradicts_the_files_is_found(run: Path, problem: str, statement: str) -> None:
    change(run, statement)
    assert_found(problem, problems(run))


def assert_found(problem: str, found: list[str]) -> None:
    assert any(re.search(problem, text) for text in found), found


def test_games_that_break_the_rules_are_found_even_if_the_ledger_agrees_with_their_file(run: Path, game: Game) -> None:
    with open_ledger(run, game) as ledger:
        batch = batch_of(ledger, game, "c", "one", 10)
    actions = batch.actions.copy()
    actions[1] = actions[0]
    data = encode_batch(replace(batch, actions=actions))
    games_path(run, "c").write_bytes(data)
    change(run, f"UPDATE batches SET bytes = {len(data)}, sha256 = '{sha256_hex(data)}' WHERE id = 'c'")
    assert problems(run, quick=True) == []
    assert problems(run) == ["batch c: its games are invalid: game 0 after 1 moves: the move is illegal"]


def test_a_gap_explained_by_an_unreadable_batch_is_a_note(run: Path, game: Game) -> None:
    with open_ledger(run, game) as ledger:
        take(ledger, game, "unreadable", "one", 20, b"noise")
        take(ledger, game, "d", "one", 30)
    found = audit.audit(run)
    assert found.problems == []
    assert found.notes == [
        "games 20 to 29 of worker one are missing before batch d: see the rejected batches unreadable"
    ]
    assert found.workers[1]["missing"] == 10


def test_a_gap_before_a_refused_batch_is_explained(run: Path) -> None:
    change(run, "UPDATE batches SET first_game = 12, state = 'quarantined' WHERE id = 'c'")
    assert_found("games 10 to 11 of worker one are missing before batch c, which was rejected", problems(run))


def test_partial_files_are_a_note(run: Path) -> None:
    (run / "games" / "d.games.part").write_bytes(b"half")
    found = audit.audit(run)
    assert (found.problems, found.notes) == ([], ["games/d.games.part is incomplete: the next session removes it"])


def test_an_unreadable_checkpoint_is_named(run: Path) -> None:
    (run / "checkpoints" / "checkpoint-000002" / "checkpoint.json").write_text("{}")
    assert_found("checkpoint-000002: it does not say which games it was trained on", problems(run, quick=True))


def test_a_damaged_ledger_is_a_problem(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (run / "run.db").write_bytes(b"not a database at all" * 1000)
    assert audit.main([str(run)]) == 1
    assert "Problem: the ledger is damaged" in capsys.readouterr().out


def test_a_folder_without_a_run_is_reported_as_such(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert audit.main([str(tmp_path)]) == 2
    assert audit.main(["no-such-run"]) == 2
    errors = capsys.readouterr().err
    assert f"{program_name()}: {tmp_path} is not the folder of a run" in errors
    assert f"{program_name()}: runs/no-such-run is not the folder of a run" in errors


def test_changed_rules_are_reported_as_such(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    change(run, "UPDATE run SET value = '9' WHERE key = 'rules_version'")
    assert audit.main([str(run)]) == 2
    assert (
        "rules version 9 of tic_tac_toe, and this program has version 1 (--quick does not replay"
        in capsys.readouterr().err
    )
    assert audit.main([str(run), "--quick"]) == 0


@pytest.mark.medium
def test_a_file_that_is_being_entered_is_not_stray(run: Path, game: Game, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "SETTLE_SECONDS", 30.0)
    waits = []
    with open_ledger(run, game) as ledger:
        data = encode_batch(batch_of(ledger, game, "d", "one", 20))
        games_path(run, "d").write_bytes(data)

        def enter_it_meanwhile(seconds: float) -> None:
            waits.append(seconds)
            take(ledger, game, "d", "one", 20, data)

        monkeypatch.setattr(time, "sleep", enter_it_meanwhile)
        assert problems(run) == []
    assert len(waits) == 1


def test_nothing_is_changed(run: Path) -> None:
    def content() -> dict[Path, bytes]:
        return {
            path: path.read_bytes() for path in run.rglob("*") if path.is_file() and not path.name.startswith("run.db-")
        }

    before = content()
    audit.audit(run)
    assert content() == before


@pytest.mark.medium
def test_it_runs_as_a_program_and_explains_itself() -> None:
    shown = printed("audit", "--help", cwd=Path("/"))
    assert "granted = received + quarantined + missing + discarded + outstanding" in shown and "Exit code" in shown
