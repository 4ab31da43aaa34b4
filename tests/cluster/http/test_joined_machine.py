"""A joined machine at a real door, without workers: what it hands in, and what it says of itself."""

from pathlib import Path

import pytest

from keima.cluster.http.client import DoorRefused
from keima.cluster.http.door import last_report
from keima.cluster.http.joining import JoinedMachine, Membership, RunChanged
from keima.worker.worker_folder import WorkerFolder
from tests.cluster.http.open_door import CODE, KEY, RUN_ID, OpenDoor, assignment, batch_file, open_door


def join(door: OpenDoor, folder: Path, *, code: str = CODE) -> JoinedMachine:
    """Return a machine with two workers, each with a finished batch, which does not start them."""
    names = door.register(workers=2).workers
    membership = Membership(link=str(door.link), key=KEY, name="Anna", workers=names)
    machine = JoinedMachine(door.client(key=KEY), membership, folder, run_id=RUN_ID, code=code)
    for name in names:
        door.mailbox(name).create_folders().write_assignment(assignment(name))
        (WorkerFolder(folder / "workers" / name).outbox / batch_file(name, b"games")).write_bytes(b"games")
    return machine


def test_a_full_mailbox_of_one_worker_keeps_no_other_waiting(tmp_path: Path) -> None:
    with open_door(tmp_path / "crowd") as door:
        machine = join(door, tmp_path / "join")
        first, second = machine._members
        for number in range(4):
            with (door.mailbox(first).outbox / batch_file(first, b"", first=100 + number)).open("wb") as file:
                file.truncate(16 * 2**20)
        with pytest.raises(DoorRefused, match="not taken"):
            machine._sync(leaving=False)
        assert [len(door.mailbox(name).batch_files()) for name in (first, second)] == [4, 1]
        assert all(member.stamp for member in machine._members.values()), "both have their assignments"


def test_a_paused_machine_hands_in_its_games_and_does_not_count_as_present(tmp_path: Path) -> None:
    with open_door(tmp_path / "crowd") as door:
        machine = join(door, tmp_path / "join")
        machine._paused = "on battery"
        machine._sync(leaving=False)
        assert all(len(door.mailbox(name).batch_files()) == 1 for name in machine._members)
        assert not any(last_report(door.folder, name) for name in machine._members)
        machine._paused = ""
        machine._sync(leaving=False)
        assert all(last_report(door.folder, name) for name in machine._members)


def test_what_is_too_large_for_a_batch_is_put_aside(tmp_path: Path) -> None:
    with open_door(tmp_path / "crowd") as door:
        machine = join(door, tmp_path / "join")
        for member in machine._members.values():
            (path,) = member.folder.batch_files()
            with path.open("r+b") as file:
                file.truncate(2**25)
        machine._sync(leaving=True)
        assert machine.games == machine.games_left == 0


def test_a_run_with_other_code_makes_a_machine_join_again(tmp_path: Path) -> None:
    with open_door(tmp_path / "crowd") as door, pytest.raises(RunChanged, match="new code"):
        join(door, tmp_path / "join", code="fedcba9876543210")._try_to_sync()
