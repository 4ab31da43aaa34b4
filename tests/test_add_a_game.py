"""docs/add_a_game.md does what it says, on this machine and with a worker over SSH."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.cluster.hosts import Host, running_hosts, why_not
from tests.pages import commands, follow, page, write_files
from tests.sources import ROOT

TEXT = page("add_a_game.md")
SHORT = {"--minutes 60": "--minutes 3", "worker1 alice": "worker1 {user}", "--games 20": "--games 2"}  # in the commands
MINUTES = 1.5  # of the first run, in place of what the config says


def steps() -> dict[str, str]:
    """The page's commands by the program that they call; the first, of several of one program."""
    found: dict[str, str] = {}
    for command in commands(TEXT):
        found.setdefault(command.split()[1].rpartition("/")[2] + (" --smoke" if "--smoke" in command else ""), command)
    return found


def test_the_game_of_the_page_is_the_shipped_example() -> None:
    example = (ROOT / "examples" / "games" / "othello.py").read_text(encoding="utf-8")
    assert example in TEXT and len(example.splitlines()) <= 120


@pytest.mark.trial
@pytest.mark.timeout(600)
def test_the_page_leads_from_a_new_game_to_a_checked_one_and_a_small_run(tmp_path: Path) -> None:
    follow(steps()["new_game.py"], tmp_path)
    assert [path.name for path in write_files(TEXT, tmp_path)] == ["othello.py"]
    assert "symmetr" in follow(steps()["check_game.py"], tmp_path)
    follow(steps()["start_main.py --smoke"], tmp_path, seconds=500)
    assert next((tmp_path / "runs" / "othello-smoke" / "modules").glob("othello-*.py"))


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> Iterator[Host]:
    """A machine that SSH reaches under the name worker1."""
    if reason := why_not():
        pytest.skip(reason)
    with running_hosts(1) as hosts:
        monkeypatch.setenv("HOME", str(hosts.home))
        monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
        yield hosts[0]


@pytest.mark.slow
@pytest.mark.trial
@pytest.mark.timeout(3600)
def test_every_command_of_the_page_works_with_a_worker_over_ssh(worker: Host, tmp_path: Path) -> None:
    for command in commands(TEXT):
        for long, short in SHORT.items():
            command = command.replace(long, short.format(user=worker.user))
        follow(command, tmp_path, typed="quit\n", seconds=1800)
        if "new_game.py" in command:
            write_files(TEXT, tmp_path)
            change(tmp_path / "othello.yaml", "run", minutes=MINUTES)
            change(tmp_path / "othello.yaml", "evaluation", every=0)
        if "--add" in command:  # the packages are in this environment, and the machine has no way to an index
            settings = yaml.safe_load((tmp_path / "othello.yaml").read_text(encoding="utf-8"))
            settings["distributed"]["workers"][0]["python"] = worker.python
            (tmp_path / "othello.yaml").write_text(yaml.safe_dump(settings), encoding="utf-8")
    assert list((worker.home / ".cache" / "keima" / "modules").glob("othello-*.py"))


def change(path: Path, section: str, **values: float) -> None:
    """Change values of a config."""
    settings = yaml.safe_load(path.read_text(encoding="utf-8"))
    settings[section] |= values
    path.write_text(yaml.safe_dump(settings), encoding="utf-8")
