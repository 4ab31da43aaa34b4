"""The crowd as the fleet sees it: whose machine is present, and a door that cannot be opened."""

import errno
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from keima.cluster.http import source
from keima.cluster.http.source import CrowdProcessManager
from tests.cluster.http.test_door import Rig
from tests.lab.processes import wait_until


class Looks:
    """A fleet's looks at a crowd, with both clocks of the test."""

    def __init__(self, folder: Path, wall: float) -> None:
        self.now, self.wall = 0.0, wall
        self.manager = CrowdProcessManager(folder, usual_silence=45.0, wall=lambda: self.wall, clock=lambda: self.now)

    def slots(self, seconds: float = 1.0) -> list[str]:
        """Return the workers that have a slot after some seconds."""
        self.now += seconds
        self.wall += seconds
        return [slot.name for slot in self.manager.find_slots()]


def test_a_machine_has_a_slot_for_a_minute_after_its_last_report_whatever_the_clock_shows(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    machine = rig.machine()
    names = [*machine.worker_names]
    rig.sync(machine)
    seen = (tmp_path / "workers" / names[0] / "seen").stat().st_mtime
    looks = Looks(tmp_path, seen + 30)
    assert looks.slots() == names
    for step in (86_400, 3600, -2 * 86_400):
        rig.sync(machine)
        assert looks.slots() == names
        looks.wall += step
        assert looks.slots(50.0) == names
    assert looks.slots(20.0) == []
    rig.sync(machine)
    assert looks.slots() == names
    assert Looks(tmp_path, looks.wall + 10**6).slots() == [], "an earlier session's"


def test_a_paused_machine_gives_up_its_slot(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    machine = rig.machine()
    rig.sync(machine)
    looks = Looks(tmp_path, (tmp_path / "workers" / machine.worker_names[0] / "seen").stat().st_mtime)
    assert looks.slots() == [*machine.worker_names]
    for _ in range(3):
        rig.sync(machine, paused=True)
        slots = looks.slots(30.0)
    assert slots == []
    rig.sync(machine)
    assert looks.slots() == [*machine.worker_names]


def test_a_door_that_cannot_be_started_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*words: Any, **options: Any) -> None:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    monkeypatch.setattr(subprocess, "Popen", fail)
    said = list[str]()
    door = source._DoorProcess(tmp_path, tmp_path / "door.log", said.append)
    for _ in range(2):
        assert door.step() > 0
    assert len(said) == 1 and "Cannot allocate memory" in said[0] and "opened again in 1 s" in said[0]


TALKATIVE = """
import pathlib, sys, time
log = pathlib.Path(sys.argv[1], "door.log")
print("a line\\n" * 200_000, flush=True)
while log.stat().st_size:
    time.sleep(0.01)
print("and more", flush=True)
sys.stdin.read()
"""


def test_what_the_door_prints_is_passed_on_and_its_file_is_emptied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source, "program_of", lambda name: [sys.executable, "-c", TALKATIVE])
    said = list[str]()
    door = source._DoorProcess(tmp_path, tmp_path / "door.log", said.append)

    def hears_more() -> bool:
        door.step()
        return "and more" in said

    try:
        wait_until(hears_more, "its last line")
    finally:
        door.end()
    assert said.count("a line") == 200_000
    assert (tmp_path / "door.log").stat().st_size < 100
