"""docs/add_a_game.md does what it says, on this machine and with a worker over SSH."""

import logging
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from keima.data.ledger import read_ledger
from tests.lab.hosts import Host, running_hosts, why_not
from tests.pages import commands, follow, page, write_files
from tests.sources import ROOT

logger = logging.getLogger(__name__)

TEXT = page("add_a_game.md")
SHORT = {"--minutes 60": "--minutes 6", "--games 20": "--games 2"}  # in the commands
MINUTES = 1.5  # of the first run, in place of what the config says


def steps() -> dict[str, str]:
    """The page's commands by the program that they call; the first, of several of one program."""
    found: dict[str, str] = {}
    for command in commands(TEXT):
        found.setdefault(command.split()[1] + (" --smoke" if "--smoke" in command else ""), command)
    return found


def test_the_game_of_the_page_is_the_shipped_example() -> None:
    example = (ROOT / "games" / "othello.py").read_text(encoding="utf-8")
    assert example in TEXT and len(example.splitlines()) <= 120


@pytest.mark.slow
@pytest.mark.trial
@pytest.mark.timeout(600)
def test_the_page_leads_from_a_new_game_to_a_checked_one_and_a_small_run(tmp_path: Path) -> None:
    follow(steps()["new-game"], tmp_path)
    assert [path.name for path in write_files(TEXT, tmp_path)] == ["othello.py"]
    assert "symmetr" in follow(steps()["check-game"], tmp_path)
    follow(steps()["train --smoke"], tmp_path, seconds=500)
    assert next((tmp_path / "runs" / "othello-smoke" / "modules").glob("othello-*.py"))


@pytest.fixture
def workers(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Host]]:
    """Two machines that SSH reaches under the names worker1 and worker2."""
    if reason := why_not():
        pytest.skip(reason)
    with running_hosts(2) as hosts:
        monkeypatch.setenv("HOME", str(hosts.home))
        monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
        yield hosts


@pytest.mark.slow
@pytest.mark.trial
@pytest.mark.timeout(3600)
def test_every_command_of_the_page_works_with_two_workers_over_ssh(workers: list[Host], tmp_path: Path) -> None:
    users = {"worker1 alice": f"worker1 {workers[0].user}", "worker2 bob": f"worker2 {workers[1].user}"}
    for command in commands(TEXT):
        for long, short in (SHORT | users).items():
            command = command.replace(long, short)
        started = time.monotonic()
        follow(command, tmp_path, typed="quit\n", seconds=1800)
        logger.info("%4.0f s  %s", time.monotonic() - started, command)
        if "new-game" in command:
            write_files(TEXT, tmp_path)
            change(tmp_path / "othello.yaml", "run", minutes=MINUTES)
            change(tmp_path / "othello.yaml", "evaluation", every=0)
        if "cluster add" in command:  # the packages are in this environment, and the machines have no way to an index
            settings = yaml.safe_load((tmp_path / "othello.yaml").read_text(encoding="utf-8"))
            settings["distributed"]["workers"][-1]["python"] = workers[0].python
            (tmp_path / "othello.yaml").write_text(yaml.safe_dump(settings), encoding="utf-8")
    with read_ledger(tmp_path / "runs" / "othello") as ledger:
        played = [account.name for account in ledger.accounts().values() if account.received > 0]
    for worker in workers:
        assert any(name.startswith(worker.name) for name in played)
        assert len(list((worker.home / ".cache" / "keima" / "modules").glob("othello-*.py"))) == 1


def change(path: Path, section: str, **values: float) -> None:
    """Change values of a config."""
    settings = yaml.safe_load(path.read_text(encoding="utf-8"))
    settings.setdefault(section, {}).update(values)
    path.write_text(yaml.safe_dump(settings), encoding="utf-8")
