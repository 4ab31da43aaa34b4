"""The pip calls of scripts/setup.sh: a stand-in for the environment's interpreter records its arguments."""

import os
import runpy
import shutil
import subprocess
from pathlib import Path

import pytest

from keima.cluster.machines.bootstrap import MAKE_ENVIRONMENT
from tests.sources import ROOT

PYTHON = """#!/bin/sh
case "$*" in *"pip install"*) echo "$@" >>"$ASKED"; echo "${PIP_CONSTRAINT:-none}" >>"$ASKED.constraint";; esac
"""
OPTIONS = "-m pip install --no-compile --quiet --disable-pip-version-check --only-binary=:all:"
INDEX = "https://torch.example/cpu"
PACKAGES = f"{OPTIONS} -r requirements.txt"
KEIMA = "-m pip install --quiet --disable-pip-version-check --no-deps --editable ."


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout with an environment in which nothing is installed yet."""
    (tmp_path / "scripts").mkdir()
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    shutil.copy(ROOT / "scripts" / "setup.sh", tmp_path / "scripts")
    (tmp_path / MAKE_ENVIRONMENT).parent.mkdir(parents=True)
    shutil.copy(ROOT / MAKE_ENVIRONMENT, tmp_path / MAKE_ENVIRONMENT)
    for name in ("requirements.txt", "requirements.lock", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    python = tmp_path / ".venv" / "bin" / "python"
    python.write_text(PYTHON)
    python.chmod(0o700)
    return tmp_path


def asked_of_pip(checkout: Path, **variables: str) -> list[str]:
    """Run it once; return the arguments of each call of pip."""
    asked = checkout / "asked"
    asked.unlink(missing_ok=True)
    environment = {"PATH": os.environ["PATH"], "ASKED": str(asked), **variables}
    subprocess.run(
        ["sh", checkout / "scripts" / "setup.sh", "requirements.txt"], env=environment, check=True, capture_output=True
    )
    return asked.read_text().splitlines() if asked.exists() else []


def torch() -> str:
    """Return the line of requirements.txt for torch."""
    (line,) = [line for line in (ROOT / "requirements.txt").read_text().splitlines() if line.startswith("torch==")]
    return line


def test_one_file_has_everything_that_training_needs_including_torch(checkout: Path) -> None:
    assert torch()
    assert asked_of_pip(checkout) == [PACKAGES, KEIMA]
    assert set((checkout / "asked.constraint").read_text().splitlines()) == {"requirements.lock"}


def test_torch_is_installed_first_and_alone_from_its_own_index(checkout: Path) -> None:
    assert asked_of_pip(checkout, TORCH_INDEX=INDEX) == [
        f"{OPTIONS} --index-url={INDEX} {torch()}",
        PACKAGES,
        KEIMA,
    ]


def test_installed_packages_are_not_requested_again_until_the_file_changes(checkout: Path) -> None:
    assert asked_of_pip(checkout)
    assert asked_of_pip(checkout) == []
    with (checkout / "requirements.txt").open("a") as file:
        file.write("one-more==1.0\n")
    assert asked_of_pip(checkout) == [PACKAGES]


def test_a_machine_that_gets_wheels_installs_the_packages_alone(checkout: Path) -> None:
    asked, wheels = checkout / "asked", checkout / "wheels"
    environment = {"PATH": os.environ["PATH"], "ASKED": str(asked), "KEIMA_WHEELS": str(wheels)}
    line = ["sh", MAKE_ENVIRONMENT, "requirements.txt"]
    subprocess.run(line, cwd=checkout, env=environment, check=True, capture_output=True)
    assert asked.read_text() == f"{OPTIONS} --no-index --find-links={wheels} -r requirements.txt\n"


def test_the_requirements_files_are_those_that_the_project_and_its_lock_make() -> None:
    lock = runpy.run_path(str(ROOT / "tools" / "lock.py"))
    for name, text in lock["requirements_files"]().items():
        assert (ROOT / name).read_text(encoding="utf-8") == text, f"{name} differs: run make lock"
