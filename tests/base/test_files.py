"""Files appear whole, private, and within their limits."""

import errno
import os
import stat
from pathlib import Path

import pytest

from keima.base.files import (
    FileTooLarge,
    read_limited,
    remove_stale_parts,
    sha256_hex,
    write_atomically,
    write_together,
)


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_written_file_has_the_data_and_leaves_no_partial_file(tmp_path: Path) -> None:
    write_atomically(tmp_path / "a.json", b"first")
    write_atomically(tmp_path / "a.json", b"second")
    assert (tmp_path / "a.json").read_bytes() == b"second"
    assert names_in(tmp_path) == ["a.json"]


def test_a_file_is_private_by_default(tmp_path: Path) -> None:
    write_atomically(tmp_path / "private", b"")
    write_atomically(tmp_path / "public", b"", mode=0o644)
    modes = [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("private", "public")]
    assert modes == [0o600, 0o644 & ~current_umask()]


def current_umask() -> int:
    umask = os.umask(0)
    os.umask(umask)
    return umask


def test_a_failed_write_leaves_the_old_file_and_no_partial_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_atomically(tmp_path / "a", b"old")

    def fail(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="No space"):
        write_atomically(tmp_path / "a", b"new")
    assert (tmp_path / "a").read_bytes() == b"old"
    assert names_in(tmp_path) == ["a"]


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is synced and renamed from now on."""
    steps: list[str] = []
    fsync, replace = os.fsync, Path.replace

    def watched_fsync(descriptor: int) -> None:
        steps.append("folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file")
        fsync(descriptor)

    def watched_replace(source: Path, target: Path) -> Path:
        steps.append("rename")
        return replace(source, target)

    monkeypatch.setattr(os, "fsync", watched_fsync)
    monkeypatch.setattr(Path, "replace", watched_replace)
    return steps


def test_the_data_is_synced_before_the_rename_and_the_folder_after(tmp_path: Path, steps: list[str]) -> None:
    write_atomically(tmp_path / "a", b"data")
    assert steps == ["file", "rename", "folder"]


def test_files_that_are_written_together_are_all_synced_before_any_has_its_name(
    tmp_path: Path, steps: list[str]
) -> None:
    (tmp_path / "a.part").write_bytes(b"of a killed writer")
    write_together({tmp_path / "a": b"one", tmp_path / "b": b"two"})
    assert steps == ["file", "file", "rename", "rename", "folder"]
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"a": b"one", "b": b"two"}


def test_files_that_cannot_be_written_together_leave_no_partial_one(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        write_together({tmp_path / "a": b"one", tmp_path / "missing" / "b": b"two"})
    assert names_in(tmp_path) == []


def test_a_file_that_need_not_be_durable_appears_whole_and_syncs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)
    write_atomically(tmp_path / "a", b"old", durable=False)
    write_atomically(tmp_path / "a", b"new", durable=False)
    assert (tmp_path / "a").read_bytes() == b"new"
    assert names_in(tmp_path) == ["a"]
    assert not synced


def test_a_stale_partial_file_passes_on_neither_its_bytes_nor_its_permissions(tmp_path: Path) -> None:
    (tmp_path / "a.part").write_bytes(b"left by a killed writer, longer than the new data")
    (tmp_path / "a.part").chmod(0o666)
    write_atomically(tmp_path / "a", b"new")
    assert (tmp_path / "a").read_bytes() == b"new"
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o600


def test_a_stale_partial_file_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "precious").write_bytes(b"precious")
    (tmp_path / "a.part").symlink_to(tmp_path / "precious")
    write_atomically(tmp_path / "a", b"new")
    assert (tmp_path / "precious").read_bytes() == b"precious"


def test_reading_stops_at_the_limit(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"12345")
    assert read_limited(tmp_path / "a", 5) == b"12345"
    with pytest.raises(FileTooLarge, match="more than the 4 bytes"):
        read_limited(tmp_path / "a", 4)


def test_an_endless_file_is_refused() -> None:
    with pytest.raises(FileTooLarge):
        read_limited(Path("/dev/zero"), 1000)


def test_only_stale_partial_files_are_removed(tmp_path: Path) -> None:
    (tmp_path / "b.games.part").write_bytes(b"")
    (tmp_path / "a.games").write_bytes(b"")
    (tmp_path / "c.part").mkdir()
    assert remove_stale_parts(tmp_path) == [tmp_path / "b.games.part"]
    assert names_in(tmp_path) == ["a.games", "c.part"]


def test_sha256_is_the_standard_one() -> None:
    assert sha256_hex(b"abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


def test_a_new_file_whose_folder_cannot_be_synced_does_not_exist(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sync = os.fsync

    def sync_files_alone(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", sync_files_alone)
    with pytest.raises(OSError, match="No space left"):
        write_atomically(tmp_path / "a.games", b"games")
    assert names_in(tmp_path) == []
