"""The commands of README and reference exist, accept the flags that are used there, and do what they say."""

import re
import shlex
import subprocess
import tomllib

import pytest

from tests.programs import run
from tests.sources import ROOT

README = "\n".join((ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "docs/reference.md"))
PYTHON = ".venv/bin/python"


def commands() -> list[list[str]]:
    """Return the commands in the README's shell blocks, as words."""
    blocks = re.findall(r"^```sh\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
    return [shlex.split(line) for block in blocks for line in block.splitlines()]


PROGRAMS = sorted({words[1] for words in commands() if words[0] in (PYTHON, "keima") and words[1] != "--help"})


def test_the_readme_uses_only_make_our_python_and_standard_debian_tools() -> None:
    assert {words[0] for words in commands()} == {"make", PYTHON, "keima", "sudo", "watch", "."}


def test_make_has_the_targets_that_the_readme_names() -> None:
    named = set(re.findall(r"make ([a-z]+(?:-[a-z]+)*)", " ".join(re.findall(r"`make [^`]*`", README))))
    named |= {words[1] for words in commands() if words[0] == "make"}
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    assert {"train", "test", "check", "help"} <= named <= targets


def test_make_alone_lists_its_targets() -> None:
    shown = subprocess.run(["make"], cwd=ROOT, capture_output=True, text=True, timeout=240, check=True).stdout
    assert {"setup", "train", "test", "check", "clean"} <= set(re.findall(r"make ([a-z-]+)", shown))


@pytest.mark.medium
@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_accepts_the_flags_that_the_readme_uses(program: str) -> None:
    shown = run(program, "--help")
    assert shown.returncode == 0, shown.stderr
    flags = {word for words in commands() if words[1] == program for word in words if word.startswith("--")}
    if program == "train":
        flags |= set(re.findall(r"^\| `(--[a-z-]+)", README, re.MULTILINE))
    assert flags <= set(re.findall(r"--[a-z-]+", shown.stdout))


@pytest.mark.medium
@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_refuses_an_unknown_flag_next_to_those_of_the_readme(program: str) -> None:
    calls = (words for words in commands() if words[0] in (PYTHON, "keima") and words[1] == program)
    words = next(words for words in calls if words[1:3] != ["play", "quickstart"])  # a run that is not there
    refused = run(program, *words[2:], "--no-such-flag")
    assert refused.returncode == 2
    assert "unrecognized arguments: --no-such-flag" in refused.stderr


def test_files_named_by_commands_exist() -> None:
    files = {word for words in commands() for word in words if word.endswith((".py", ".yaml"))}
    made = {f"{words[2]}{ending}" for words in commands() if words[1] == "new-game" for ending in (".py", ".yaml")}
    assert not [file for file in sorted(files - made) if not (ROOT / file).is_file()]


def test_every_shipped_experiment_is_described() -> None:
    described = set(re.findall(r"\]\(configs/([a-z0-9_]+\.yaml)\)", README))
    assert described == {path.name for path in (ROOT / "configs").glob("*.yaml")}


def test_the_stated_python_version_is_the_required_one() -> None:
    required = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["requires-python"]
    assert f"Python {required.removeprefix('>=')} or newer" in README
