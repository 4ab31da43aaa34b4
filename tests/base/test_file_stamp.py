"""Stamps of files."""

import os
from pathlib import Path

import pytest

from keima.base.file_stamp import FileStamp, stamp_of
from keima.base.files import write_atomically
from keima.base.system.disk_space import free_disk_bytes


def test_a_stamp_changes_when_a_file_is_written_or_replaced(tmp_path: Path) -> None:
    path = tmp_path / "file"
    assert stamp_of(path) is None
    with pytest.raises(FileNotFoundError):
        FileStamp.of(path)
    path.write_bytes(b"a")
    os.utime(path, ns=(0, 7_000_000_000))
    first = FileStamp.of(path)
    assert first.written == 7.0 and stamp_of(path) == first
    path.write_bytes(b"ab")
    os.utime(path, ns=(0, 7_000_000_000))
    longer = stamp_of(path)
    write_atomically(path, b"ba")
    os.utime(path, ns=(0, 7_000_000_000))
    assert len({first, longer, stamp_of(path)}) == 3


def test_the_space_on_a_disk_is_known_unless_the_folder_is_gone(tmp_path: Path) -> None:
    found = free_disk_bytes(tmp_path)
    assert found is not None and found > 0
    assert free_disk_bytes(tmp_path / "gone") is None
