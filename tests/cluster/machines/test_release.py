"""The code that a worker runs: the same name if and only if it is the same code."""

import io
import os
import tarfile
from pathlib import Path

import pytest

from keima.cluster.agent.code import extract
from keima.cluster.machines.release import (
    PACKAGES,
    own_module,
    pack_code,
    worker_code_hash,
    worker_requirements,
)
from tests.cluster.small_project import make_project
from tests.sources import ROOT


def names_in(archive: bytes) -> list[str]:
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        return tar.getnames()


@pytest.mark.parametrize(
    "name",
    [
        "start_worker.py",
        "keima/games/__init__.py",
        "keima/games/new.py",
        "keima/deep/worker.py",
        "keima/table.npz",
        "requirements.txt",
        "scripts/setup.sh",
    ],
)
def test_the_hash_changes_with_every_file_that_a_worker_runs(tmp_path: Path, name: str) -> None:
    before = worker_code_hash(make_project(tmp_path))
    (tmp_path / name).write_text("changed\n")
    assert worker_code_hash(tmp_path) != before


@pytest.mark.parametrize(
    "name",
    [
        "tests/test_x.py",
        "games/__pycache__/x.py",
        "training/x.pyc",
        "runs/x/config.py",
        "requirements-dev.txt",
        "distributed/status.txt",
        ".venv/x.py",
    ],
)
def test_the_hash_does_not_change_with_files_that_a_worker_does_not_run(tmp_path: Path, name: str) -> None:
    before = worker_code_hash(make_project(tmp_path))
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).write_text("something\n")
    assert worker_code_hash(tmp_path) == before


def test_the_hash_depends_neither_on_times_nor_on_the_place(tmp_path: Path) -> None:
    one, other = make_project(tmp_path / "one"), make_project(tmp_path / "other")
    os.utime(one / "start_worker.py", (1, 1))
    assert worker_code_hash(one) == worker_code_hash(other)
    assert pack_code(one) == pack_code(other)


def test_a_folder_without_code_has_no_hash(tmp_path: Path) -> None:
    assert worker_code_hash(tmp_path) == ""


def test_the_archive_contains_exactly_the_hashed_files(tmp_path: Path) -> None:
    make_project(tmp_path)
    (tmp_path / "secret.txt").write_text("secret")
    archive = tmp_path / "archive.tar.gz"
    archive.write_bytes(pack_code(tmp_path))
    extract(archive, tmp_path / "there")
    assert worker_code_hash(tmp_path / "there") == worker_code_hash(tmp_path)
    assert "secret.txt" not in names_in(pack_code(tmp_path))


def test_the_user_s_worker_class_is_included(tmp_path: Path) -> None:
    make_project(tmp_path, module="custom_worker")
    name = "custom_worker.CustomWorker"
    assert "custom_worker.py" in names_in(pack_code(tmp_path, name))
    assert "custom_worker.py" not in names_in(pack_code(tmp_path))
    before = worker_code_hash(tmp_path, name)
    (tmp_path / "custom_worker.py").write_text("class CustomWorker: changed = True\n")
    assert worker_code_hash(tmp_path, name) != before


def test_the_worker_class_may_be_in_a_package(tmp_path: Path) -> None:
    make_project(tmp_path)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "worker.py").write_text("")
    assert "mine/worker.py" in names_in(pack_code(tmp_path, "mine.worker.Mine"))


def test_a_worker_class_without_a_file_is_reported_with_where_it_belongs(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"custom_worker\.py, which does not exist"):
        own_module("custom_worker.CustomWorker", make_project(tmp_path))


def test_our_code_has_a_hash_and_versions_of_all_packages_that_a_worker_imports() -> None:
    found = worker_requirements()
    assert len(found.code_hash) == 16
    assert found.extra == ""
    assert set(found.packages) == set(PACKAGES)
    required = (ROOT / "requirements.txt").read_text()
    assert all(f"{name}==" in required for name in PACKAGES)
    assert len(pack_code()) < 2_000_000
