"""The messages and the folder between the main node and a worker."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from keima.data.receive import BATCH_ID
from keima.data.records import BatchLimits
from keima.worker.worker_folder import (
    BATCH_NAME,
    MAX_JSON_BYTES,
    AlreadyRunning,
    BrokenMessage,
    FolderGone,
    Heartbeat,
    WorkerFolder,
    batch_name,
    is_batch_of_run,
)

GOOD = {"run_id": "run", "worker": "w", "beat": 3, "pid": 7, "state": "playing"}


@pytest.mark.parametrize(
    "changes",
    [
        {"state": "dancing"},
        {"beat": -1},
        {"beat": 2**60},
        {"pid": "seven"},
        {"error": "x" * 1001},
        {"games_per_second": float("nan")},
        {"games_per_second": -1.0},
        {"games_per_second": 1e308},
        {"evaluations_per_second": 1e308},
        {"speed": 1e308},
        {"parallel_games": 2**53},
        {"protocol": 2},
        {"surprise": 1},
    ],
)
def test_an_invalid_heartbeat_is_refused(tmp_path: Path, changes: dict[str, Any]) -> None:
    folder = WorkerFolder(tmp_path).create_folders()
    (tmp_path / "worker.json").write_text(json.dumps(GOOD))
    assert folder.read_heartbeat() == Heartbeat.model_validate(GOOD)
    (tmp_path / "worker.json").write_text(json.dumps(GOOD | changes))
    with pytest.raises(BrokenMessage, match=r"worker\.json"):
        folder.read_heartbeat()


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b"null", b"\xff\xfe", b"[" * 50_000, b" " * (MAX_JSON_BYTES + 1)])
def test_a_message_that_is_no_object_or_too_long_is_refused(tmp_path: Path, text: bytes) -> None:
    folder = WorkerFolder(tmp_path).create_folders()
    for path, read in (
        (tmp_path / "worker.json", folder.read_heartbeat),
        (folder.inbox / "assignment.json", folder.read_assignment),
    ):
        path.write_bytes(text)
        with pytest.raises(BrokenMessage, match=path.name):
            read()


def test_an_unreadable_message_is_refused_and_a_missing_one_is_none(tmp_path: Path) -> None:
    folder = WorkerFolder(tmp_path).create_folders()
    assert folder.read_heartbeat() is None
    assert folder.read_assignment() is None
    (tmp_path / "worker.json").mkdir()
    with pytest.raises(BrokenMessage):
        folder.read_heartbeat()


def test_the_job_of_a_heartbeat_is_written_and_read_by_the_key_of_all_versions(tmp_path: Path) -> None:
    folder = WorkerFolder(tmp_path)
    folder.write_heartbeat(Heartbeat.model_validate(GOOD | {"job": "a-1"}))
    written = json.loads((tmp_path / "worker.json").read_bytes())
    assert written["order"] == "a-1" and "job" not in written
    (tmp_path / "worker.json").write_text(json.dumps(GOOD | {"order": "a-2"}), encoding="utf-8")
    read = folder.read_heartbeat()
    assert read is not None and read.job == "a-2"


def test_a_message_cannot_be_changed() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        Heartbeat.model_validate(GOOD).beat = 4


@pytest.mark.parametrize("worker", ["local-1", "Worker.Example.org", "ä" * 60, "UPPER_case", "x" * 64])
def test_the_name_of_a_batch_states_its_place_and_is_valid_for_both_sides(worker: str) -> None:
    name = batch_name("0123456789abcdef", worker, 1234, BatchLimits().max_games, "0123456789abcdef" * 4)
    assert BATCH_ID.fullmatch(name)
    match = BATCH_NAME.fullmatch(f"{name}.games")
    assert match and (int(match[1]), int(match[2])) == (1234, BatchLimits().max_games)


@pytest.mark.parametrize("run_id", ["0123456789abcdef", "run", "A run_of-ours", "x" * 64])
@pytest.mark.parametrize("worker", ["local-1", "w_", "_", "a__b", "x" * 64])
def test_the_name_of_a_batch_states_its_run_except_for_older_names(run_id: str, worker: str) -> None:
    name = f"{batch_name(run_id, worker, 7, 10, '0123456789abcdef')}.games"
    assert is_batch_of_run(name, run_id) and not is_batch_of_run(name, "another")
    player = re.sub("[^a-z0-9]+", "-", worker.lower())[:40]  # as earlier versions have it
    assert is_batch_of_run(f"000000007-10-{player}-0123456789abcdef.games", "another")


def test_only_whole_batches_in_the_outbox_count_and_the_oldest_comes_first(tmp_path: Path) -> None:
    folder = WorkerFolder(tmp_path).create_folders()
    for name in (
        "000000010-5-w-ab.games",
        "000000000-10-w-cd.games",
        "000000020-5-w-ab.games.part",
        "notes",
        "1-2-w.games",
        "٠" * 9 + "-1-w.games",
    ):
        (folder.outbox / name).write_bytes(b"")
    assert [path.name for path in folder.batch_files()] == ["000000000-10-w-cd.games", "000000010-5-w-ab.games"]
    assert folder.batch_ends() == [10, 15]


def test_one_process_at_a_time_uses_a_folder(tmp_path: Path) -> None:
    folder = WorkerFolder(tmp_path).create_folders()
    with folder.lock(), pytest.raises(AlreadyRunning, match="another worker"), folder.lock(seconds=0.0):
        pass
    with folder.lock(seconds=0.0):
        pass


def test_a_process_notices_that_its_folder_was_deleted_even_if_a_new_one_is_there(tmp_path: Path) -> None:
    folder = WorkerFolder(tmp_path / "w").create_folders()
    with folder.lock() as check:
        check()
        shutil.rmtree(folder.root)
        with pytest.raises(FolderGone, match="was deleted"):
            check()
        with folder.create_folders().lock(seconds=0.0) as check_other:
            check_other()
            with pytest.raises(FolderGone):
                check()
