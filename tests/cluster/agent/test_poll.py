"""One poll of the workers of a machine, as our program there carries it out."""

import fcntl
import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from keima.cluster.agent.commands import MOST_HEARTBEAT, MOST_NAMES, Linked, LinkRequest, PollRequest, to_json
from keima.cluster.agent.owner import owner_lock_path
from keima.cluster.agent.poll import answer_poll, link_file
from keima.cluster.agent.process import CommandFailed, claim_place

COACH = "0123456789abcdef"
GAMES = r"[0-9]+\.games"


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("w1", "w2", "w3"):
        for folder in ("inbox", "outbox"):
            (tmp_path / "workers" / name / folder).mkdir(parents=True)
        (tmp_path / "workers" / name / "outbox" / f"{COACH}.owner").write_text("{}")
        (tmp_path / "workers" / name / "worker.json").write_text(f'{{"worker": "{name}"}}')
    return tmp_path / "workers"


def slot(name: str, **changes: Any) -> dict[str, Any]:
    base = {"coach": COACH, "seen": "", "assignment": None, "remove": [], "have": [], "want": []}
    return {"place": f"workers/{name}", **base, **changes}


def polled(*slots: dict[str, Any], limit: int = 10_000) -> list[tuple[dict[str, Any], dict[str, bytes]]]:
    """Return the answer for each, and the files that came with it."""
    answer, data = answer_poll(PollRequest(slots, GAMES, limit))
    found = []
    for each in json.loads(to_json(answer))["workers"]:
        files = {}
        for name, size in each["files"]:
            files[name], data = data[:size], data[size:]
        found.append((each, files))
    assert data == b""
    return found


def test_all_workers_are_answered_for_in_their_order(root: Path) -> None:
    (root / "w2/outbox/1.games").write_bytes(b"one")
    (root / "w3/outbox/2.games").write_bytes(b"two")
    found = polled(slot("w3"), slot("w1"), slot("w2"))
    assert [json.loads(each["heartbeat"])["worker"] for each, _ in found] == ["w3", "w1", "w2"]
    assert [files for _, files in found] == [{"2.games": b"two"}, {}, {"1.games": b"one"}]
    assert [name for name, _ in found[0][0]["names"]] == [f"{COACH}.owner", "2.games"]


def test_a_heartbeat_comes_only_when_it_has_changed(root: Path) -> None:
    ((first, _),) = polled(slot("w1"))
    ((second, _),) = polled(slot("w1", seen=first["stamp"]))
    assert second["heartbeat"] is None and second["stamp"] == first["stamp"]
    part = root / "w1/part"
    part.write_text('{"worker": "w9"}')
    part.replace(root / "w1/worker.json")
    ((third, _),) = polled(slot("w1", seen=first["stamp"]))
    assert json.loads(third["heartbeat"])["worker"] == "w9"


def too_large(folder: Path) -> None:
    os.truncate(folder / "worker.json", MOST_HEARTBEAT + 1)


def a_folder(folder: Path) -> None:
    (folder / "worker.json").unlink()
    (folder / "worker.json").mkdir()


def not_text(folder: Path) -> None:
    (folder / "worker.json").write_bytes(b"\xff\xfe\x00")


@pytest.mark.parametrize("wrong", [too_large, a_folder, not_text])
def test_an_unreadable_heartbeat_is_told_and_stops_nothing(root: Path, wrong: Callable[[Path], None]) -> None:
    wrong(root / "w1")
    (root / "w1/outbox/1.games").write_bytes(b"one")
    (first, files), (second, _) = polled(slot("w1", assignment="{}"), slot("w2"))
    assert first["unreadable"] or "\ufffd" in first["heartbeat"]
    assert files == {"1.games": b"one"} and (root / "w1/inbox/assignment.json").read_text() == "{}"
    assert json.loads(second["heartbeat"])["worker"] == "w2"


def no_folder_at_all(folder: Path) -> None:
    folder.rename(folder.with_name("away"))


def a_file_in_its_place(folder: Path) -> None:
    no_folder_at_all(folder)
    folder.write_bytes(b"")


def an_inbox_that_is_a_file(folder: Path) -> None:
    (folder / "inbox").rmdir()
    (folder / "inbox").write_bytes(b"")


def an_outbox_that_is_a_file(folder: Path) -> None:
    (folder / "outbox").rename(folder / "away")
    (folder / "outbox").write_bytes(b"")


@pytest.mark.parametrize(
    "wrong", [no_folder_at_all, a_file_in_its_place, an_inbox_that_is_a_file, an_outbox_that_is_a_file]
)
def test_what_is_wrong_with_one_folder_concerns_that_one_alone(root: Path, wrong: Callable[[Path], None]) -> None:
    wrong(root / "w1")
    (root / "w2/outbox/1.games").write_bytes(b"one")
    (first, _), (second, files) = polled(slot("w1", assignment="{}"), slot("w2", assignment="{}"))
    assert first["failed"] or first["wrong"] or not first["mine"]
    assert second["mine"] and not second["wrong"] and files == {"1.games": b"one"}
    assert (root / "w2/inbox/assignment.json").read_text() == "{}"


def test_nothing_is_removed_if_the_assignment_that_counts_it_cannot_be_put(root: Path) -> None:
    (root / "w1/outbox/1.games").write_bytes(b"one")
    (root / "w1/inbox/assignment.json").mkdir()
    ((found, _),) = polled(slot("w1", assignment="{}", remove=["1.games"], have=["1.games"]))
    assert "[Errno" in found["wrong"] and (root / "w1/outbox/1.games").exists()
    assert not [path for path in (root / "w1/inbox").iterdir() if path.name != "assignment.json"]
    (root / "w1/inbox/assignment.json").rmdir()
    ((found, _),) = polled(slot("w1", assignment="{}", remove=["1.games"]))
    assert not found["wrong"] and found["names"] == [[f"{COACH}.owner", 2]]


@pytest.mark.parametrize("owners", [[], ["ffffffffffffffff"], [COACH, "ffffffffffffffff"]])
def test_a_folder_of_another_coach_is_not_touched_and_nothing_of_it_told(root: Path, owners: list[str]) -> None:
    outbox = root / "w1/outbox"
    (outbox / f"{COACH}.owner").unlink()
    for owner in owners:
        (outbox / f"{owner}.owner").write_text("{}")
    (outbox / "1.games").write_bytes(b"one")
    ((found, files),) = polled(slot("w1", assignment="{}", remove=["1.games"]))
    assert (found["mine"], files) == (False, {})
    assert not (found["stamp"] or found["heartbeat"] or found["names"] or found["running"])
    assert (outbox / "1.games").exists() and not list((root / "w1/inbox").iterdir())


def test_nothing_changes_while_another_coach_takes_the_folder(root: Path) -> None:
    descriptor = os.open(owner_lock_path(root / "w1"), os.O_RDWR | os.O_CREAT)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    (found, _), (other, _) = polled(slot("w1", assignment="{}"), slot("w2", assignment="{}"))
    assert "is under way" in found["failed"] and not list((root / "w1/inbox").iterdir()) and not other["wrong"]
    ((found, _),) = polled(slot("w1"))  # reading needs no lock
    assert found["mine"]
    os.close(descriptor)


def test_small_files_come_with_the_answer_up_to_a_limit_for_all(root: Path) -> None:
    for name, file in (("w1", 1), ("w1", 2), ("w2", 3), ("w2", 4)):
        (root / name / f"outbox/{file}.games").write_bytes(bytes(100 * file))
    (root / "w1/outbox/x.match").write_bytes(b"result")
    (root / "w1/outbox/other.txt").write_bytes(b"other")
    (root / "w1/outbox/5.games.part").write_bytes(b"half")
    (_, first), (answer, second) = polled(slot("w1", have=["1.games"], want=["x.match"]), slot("w2"), limit=550)
    assert {name: len(data) for name, data in first.items()} == {"x.match": 6, "2.games": 200}
    assert {name: len(data) for name, data in second.items()} == {"3.games": 300}
    assert ["4.games", 400] in answer["names"]


def test_of_very_many_files_the_oldest_games_are_listed_and_all_others(root: Path) -> None:
    for number in range(MOST_NAMES + 10):
        (root / f"w1/outbox/{number:09d}.games").touch()
    (root / "w1/outbox/z.match").touch()
    ((found, _),) = polled(slot("w1"), limit=0)
    names = [name for name, _ in found["names"]]
    assert len(names) == MOST_NAMES and names[:3] == [f"{COACH}.owner", "z.match", "000000000.games"]


def test_whether_the_process_runs_is_told_as_far_as_there_is_a_record(root: Path) -> None:
    claim_place(root / "w1", ["start_worker.py"])  # this process
    record = json.loads((root / "w1/process.json").read_text())
    (root / "w2/process.json").write_text(json.dumps({**record, "start_ticks": 1}))
    assert [each["running"] for each, _ in polled(slot("w1"), slot("w2"), slot("w3"))] == [True, False, None]


@pytest.mark.parametrize("name", ["../w2/worker.json", "/etc/passwd", "..", ""])
def test_no_name_leads_out_of_the_outbox(root: Path, name: str) -> None:
    ((found, _),) = polled(slot("w1", remove=[name]))
    assert "is not a file name" in found["failed"]
    assert (root / "w2/worker.json").exists()


def test_a_model_is_linked_from_a_neighbour_only_into_a_folder_of_ours(root: Path) -> None:
    (root / "w1/inbox/a.model").write_bytes(b"model")
    request = LinkRequest("workers/w1/inbox/a.model", "workers/w2", "b.model", COACH)
    for _ in range(2):
        assert link_file(request) == Linked(True)
        assert (root / "w2/inbox/b.model").samefile(root / "w1/inbox/a.model")
    assert link_file(replace(request, source="workers/w1/inbox/none")) == Linked(False)
    (root / "w3/outbox" / f"{COACH}.owner").unlink()
    owner = {"run_id": "r", "host": "h", "label": "r"}
    (root / "w3/outbox/ffffffffffffffff.owner").write_text(json.dumps(owner))
    with pytest.raises(CommandFailed, match="is of run r"):
        link_file(replace(request, place="workers/w3"))
