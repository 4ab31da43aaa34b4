"""Verdicts survive kills between any two bytes."""

import json
from pathlib import Path

from keima.coach.crowd.verdicts import (
    REFUSED,
    VERDICTS,
    VerdictReader,
    append_backlog,
    append_pass,
    append_verdict,
    make_folder,
    write_refused,
)


def test_verdicts_are_read_once_as_they_are_added(tmp_path: Path) -> None:
    reader = VerdictReader(tmp_path)
    assert reader.read_new() == {}
    folder = make_folder(tmp_path)
    append_verdict(folder, "crowd-a-1", "lies")
    assert reader.read_new() == {"crowd-a-1": "lies"}
    append_verdict(folder, "crowd-b-1", "lies\nin two lines " * 100)
    found = reader.read_new()
    assert list(found) == ["crowd-b-1"] and len(found["crowd-b-1"]) == 500
    assert reader.read_new() == {}
    assert list(VerdictReader(tmp_path).read_new()) == ["crowd-a-1", "crowd-b-1"]


def test_half_a_line_waits_and_one_of_a_killed_process_is_skipped(tmp_path: Path) -> None:
    folder, reader = make_folder(tmp_path), VerdictReader(tmp_path)
    path = folder / VERDICTS
    path.write_bytes(b'{"worker": "crowd-a-1", "rea')
    assert reader.read_new() == {}
    append_verdict(folder, "crowd-b-1", "lies")
    assert reader.read_new() == {"crowd-b-1": "lies"}
    path.write_bytes(path.read_bytes() + b'[1]\n{"worker": 3, "reason": ""}\n\xff\n')
    assert reader.read_new() == {}


def test_who_has_passed_is_no_liar(tmp_path: Path) -> None:
    folder, reader = make_folder(tmp_path), VerdictReader(tmp_path)
    append_pass(folder, "crowd-a-1")
    append_backlog(folder, 1234)
    append_verdict(folder, "crowd-b-1", "lies")
    assert reader.read_new() == {"crowd-b-1": "lies"} and reader.passed == {"crowd-a-1"}
    assert reader.waiting == 1234
    assert reader.read_new() == {} and reader.waiting == 0


def test_the_door_gets_all_distrusted_workers(tmp_path: Path) -> None:
    write_refused(tmp_path, {"crowd-a-1": "lies"})
    assert json.loads((tmp_path / "crowd" / REFUSED).read_bytes()) == {"crowd-a-1": "lies"}
