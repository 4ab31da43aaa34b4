"""The code that a worker runs: the same name if and only if it is the same code."""

import io
import os
import re
import zipfile
from pathlib import Path

import pytest

from keima import __version__
from keima.cluster.agent.code import extract_wheel
from keima.cluster.machines.release import (
    PACKAGES,
    own_module_name,
    pack_code,
    wheel_name,
    worker_code_hash,
    worker_requirements,
)
from keima.games import GAMES
from keima.worker import WORKER_CLASS
from tests.cluster.small_project import make_project
from tests.installed import install
from tests.sources import ROOT, imported_files, project_file, relative

ONLY = """
import importlib.abc, sys

class Missing(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name in "argcomplete matplotlib paramiko rich scp sgfmill starlette tensorboard uvicorn".split():
            raise ModuleNotFoundError(f"a worker has no {name}", name=name)

sys.meta_path.insert(0, Missing())
"""


def names_in(archive: bytes) -> list[str]:
    return zipfile.ZipFile(io.BytesIO(archive)).namelist()


def packed(project: Path, worker_class: str = WORKER_CLASS) -> bytes:
    return pack_code(worker_requirements(worker_class, root=project), project)


@pytest.mark.parametrize(
    "name",
    [
        "keima/__main__.py",
        "keima/games/__init__.py",
        "keima/games/new.py",
        "keima/search/worker.py",
        "keima/data/table.npz",
        "keima/cluster/agent/make_environment.sh",
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
        "requirements.txt",
        "keima/shipped/configs/go9.yaml",
        "keima/web/pages.py",
        "keima/report/tables.py",
        "keima/games/authoring/templates/plain.py",
        "keima/coach/loop.py",
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
    os.utime(one / "keima/__main__.py", (1, 1))
    assert worker_code_hash(one) == worker_code_hash(other)
    assert packed(one) == packed(other)


def test_a_folder_without_code_has_no_hash(tmp_path: Path) -> None:
    assert worker_code_hash(tmp_path) == ""


def test_the_archive_contains_exactly_the_hashed_files(tmp_path: Path) -> None:
    make_project(tmp_path)
    (tmp_path / "secret.txt").write_text("secret")
    archive = tmp_path / "archive.whl"
    archive.write_bytes(packed(tmp_path))
    extract_wheel(archive, tmp_path / "there")
    assert worker_code_hash(tmp_path / "there") == worker_code_hash(tmp_path)
    assert "secret.txt" not in names_in(packed(tmp_path))


def test_the_user_s_worker_class_is_included(tmp_path: Path) -> None:
    make_project(tmp_path, module="custom_worker")
    name = "custom_worker.CustomWorker"
    assert "custom_worker.py" in names_in(packed(tmp_path, name))
    assert "custom_worker.py" not in names_in(packed(tmp_path))
    before = worker_code_hash(tmp_path, name)
    (tmp_path / "custom_worker.py").write_text("class CustomWorker: changed = True\n")
    assert worker_code_hash(tmp_path, name) != before


def test_the_worker_class_may_be_in_a_package(tmp_path: Path) -> None:
    make_project(tmp_path)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "worker.py").write_text("")
    assert "mine/worker.py" in names_in(packed(tmp_path, "mine.worker.Mine"))


def test_a_worker_class_without_a_file_is_reported_with_where_it_belongs(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"custom_worker\.py, which does not exist"):
        own_module_name("custom_worker.CustomWorker", make_project(tmp_path))


def test_our_code_has_a_hash_and_versions_of_all_packages_that_a_worker_imports() -> None:
    found = worker_requirements()
    assert len(found.code_hash) == 16
    assert found.extra == ""
    assert set(found.packages) == set(PACKAGES)
    assert len(pack_code(found)) < 600_000
    about = f"keima-{__version__}+{found.code_hash}.dist-info/METADATA"
    metadata = zipfile.ZipFile(io.BytesIO(pack_code(found))).read(about).decode()
    assert re.findall(r"(?m)^Requires-Dist: (.*)$", metadata) == found.pins


def test_everything_that_a_worker_imports_is_in_its_wheel() -> None:
    shipped = {ROOT / name for name in names_in(pack_code(worker_requirements()))}
    entries = ["keima.__main__", "keima.cli.worker", "keima.worker.loop", "keima.cluster.ray.slot", *GAMES.values()]
    needed, left = set(), {file for entry in entries if (file := project_file(entry))}
    while left:
        file = left.pop()
        needed.add(file)
        left |= imported_files(file, at_run_time=True) - needed
    assert not sorted(map(relative, needed - shipped))


@pytest.mark.slow
def test_pip_installs_the_wheel_and_its_keima_plays_with_the_packages_that_it_names_alone(tmp_path: Path) -> None:
    required = worker_requirements()
    wheel = tmp_path / wheel_name(required.code_hash)
    wheel.write_bytes(pack_code(required))
    worker = install(wheel, tmp_path / "environment")
    (worker.site_packages / "sitecustomize.py").write_text(ONLY)
    ended = worker.run("keima", "worker", "--test-games", "tic_tac_toe", folder=tmp_path)
    assert "games of tic_tac_toe have been played" in ended.stderr, ended.stderr
    ended = worker.run("keima", "train", folder=tmp_path)
    assert (ended.returncode, ended.stderr) == (
        2,
        "keima train: this installation is for workers and has only `keima worker`\n",
    )
