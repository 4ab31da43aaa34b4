"""Older batches are packed; whoever reads them need not know, and a kill at any moment loses none."""

import os
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from keima.cli.reports.audit import audit
from keima.data import packs
from keima.data.imports.game_files import find_game_files, read_game_file
from keima.data.ledger import Ledger, open_ledger
from keima.data.packs import games_path, list_packs, pack_old_batches, read_batch_file
from keima.data.receive import load_if_intact, load_received, receive_batch
from keima.data.records import CorruptBatch, encode_batch
from tests.small_run import GAME
from tests.synthetic import synthetic_batch

BATCHES = 14


@pytest.fixture(autouse=True)
def small_packs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packs, "PACKED", 5)
    monkeypatch.setattr(packs, "LOOSE", 3)


def keep(data: bytes, limit: int) -> bytes:
    return data


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    """The ledger of a run with 14 batches of two games."""
    ledger = open_ledger(tmp_path, GAME)
    ledger.grant("one", 2 * BATCHES)
    for number in range(BATCHES):
        header: dict[str, Any] = {"batch_id": f"batch-{number:02}", "run_id": ledger.run_id, "worker": "one"}
        header |= {"first_game": 2 * number, "seed": number}
        data = encode_batch(synthetic_batch(GAME, games=2, num_simulations=4, **header))
        receive_batch(ledger, GAME, worker="one", batch_id=header["batch_id"], fetch=partial(keep, data))
    return ledger


def loose(ledger: Ledger) -> list[str]:
    return sorted(path.stem for path in (ledger.folder / "games").glob("*.games"))


def pack_all(ledger: Ledger) -> None:
    while pack_old_batches(ledger):
        pass


def test_old_batches_are_packed_and_the_newest_stay_files(ledger: Ledger) -> None:
    before = {row.id: read_batch_file(ledger.folder, row) for row in ledger.received_batches()}
    pack_all(ledger)
    assert [path.name for path in list_packs(ledger.folder)] == ["000000001-000000005.zip", "000000006-000000010.zip"]
    assert loose(ledger) == [f"batch-{number}" for number in range(10, 14)]
    assert {row.id: read_batch_file(ledger.folder, row) for row in ledger.received_batches()} == before
    assert [load_received(ledger.folder, row).batch_id for row in ledger.received_batches()] == list(before)
    assert not audit(ledger.folder).problems


def test_files_from_a_time_before_the_clock_was_set_are_packed_too(ledger: Ledger) -> None:
    for path in (ledger.folder / "games").glob("*.games"):
        os.utime(path, (0, 0))
    pack_all(ledger)
    assert len(list_packs(ledger.folder)) == 2


def test_any_program_can_unpack_them(ledger: Ledger, tmp_path: Path) -> None:
    row = ledger.received_batches()[0]
    data = read_batch_file(ledger.folder, row)
    pack = pack_old_batches(ledger)
    assert pack and pack.stat().st_mode & 0o777 == 0o600
    with zipfile.ZipFile(pack) as archive:
        archive.extract("batch-00.games", tmp_path / "unpacked")
    assert (tmp_path / "unpacked" / "batch-00.games").read_bytes() == data


def test_games_in_packs_train_a_big_network(ledger: Ledger) -> None:
    def count() -> int:
        chunks = (chunk for path in find_game_files(ledger.folder) for chunk in read_game_file(path, GAME))
        return sum(chunk.games.num_games for chunk in chunks if chunk.games)

    assert count() == 2 * BATCHES
    pack_all(ledger)
    assert count() == 2 * BATCHES


@pytest.mark.parametrize("operation", ["fsync", "replace", "unlink"])
def test_a_kill_at_any_moment_loses_nothing(operation: str, ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = 0
    usual: Callable[..., object] = getattr(os, operation)

    def killed(*arguments: object, **options: object) -> object:
        nonlocal calls
        calls += 1
        if calls > 2 * (operation == "unlink"):
            raise KeyboardInterrupt
        return usual(*arguments, **options)

    monkeypatch.setattr(os, operation, killed)
    with pytest.raises(KeyboardInterrupt):
        pack_old_batches(ledger)
    monkeypatch.setattr(os, operation, usual)
    assert not audit(ledger.folder).problems
    pack_all(ledger)
    assert len(loose(ledger)) == 4 and not audit(ledger.folder).problems


def test_a_damaged_pack_is_named_and_its_batches_are_left_out(ledger: Ledger) -> None:
    pack = pack_old_batches(ledger)
    assert pack
    first, second = ledger.received_batches()[:2]
    content = bytearray(pack.read_bytes())
    content[100] ^= 0xFF  # in the first batch
    pack.write_bytes(content)
    packs._open_pack.cache_clear()
    said = list[str]()
    assert load_if_intact(ledger.folder, first, log_event=said.append) is None and "left out" in said[0]
    assert load_if_intact(ledger.folder, second, log_event=said.append) is not None
    (problem,) = audit(ledger.folder).problems
    assert "batch-00" in problem
    pack.write_bytes(b"nothing")
    packs._open_pack.cache_clear()
    with pytest.raises(CorruptBatch, match="is damaged"):
        load_received(ledger.folder, second)
    assert any("cannot be read" in problem for problem in audit(ledger.folder).problems)


def test_damaged_and_missing_files_are_not_hidden_in_packs(ledger: Ledger) -> None:
    rows = ledger.received_batches()
    games_path(ledger.folder, rows[0].id).write_bytes(b"damaged")
    games_path(ledger.folder, rows[1].id).unlink()
    pack_all(ledger)
    problems = audit(ledger.folder).problems
    assert len(problems) == 2 and "batch-00" in problems[0] and "missing" in problems[1]
    assert "batch-00" in loose(ledger)


def test_what_is_not_in_the_ledger_is_found_in_packs_too(ledger: Ledger) -> None:
    pack = pack_old_batches(ledger)
    assert pack
    with zipfile.ZipFile(pack, "a") as archive:
        archive.writestr("stranger.games", b"x")
    packs._open_pack.cache_clear()
    assert audit(ledger.folder).problems == [f"games/{pack.name} holds stranger.games, which is not in the ledger"]
