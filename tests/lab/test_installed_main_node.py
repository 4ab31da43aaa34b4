"""An installed main node, without a checkout, trains on machines that it has set up over SSH."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from keima.data.ledger import read_ledger
from tests.installed import Installation, build_wheel, install
from tests.lab.hosts import Host, running_hosts, why_not


@pytest.fixture
def workers(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Host]]:
    """Two machines that SSH reaches under the names worker1 and worker2."""
    if reason := why_not():
        pytest.skip(reason)
    with running_hosts(2) as hosts:
        monkeypatch.setenv("HOME", str(hosts.home))
        monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
        yield list(hosts)


@pytest.mark.slow
@pytest.mark.trial
@pytest.mark.timeout(1800)
def test_an_installed_main_node_sets_two_workers_up_and_trains_on_them(workers: list[Host], tmp_path: Path) -> None:
    main_node: Installation = install(build_wheel(tmp_path / "wheel"), tmp_path / "environment")
    here = tmp_path / "workspace"
    here.mkdir()

    def keima(*words: str) -> str:
        ended = main_node.run("keima", *words, folder=here)
        assert ended.returncode == 0, ended.stdout + ended.stderr
        return ended.stdout

    for worker in workers:
        keima("cluster", "add", worker.name, worker.user)
    path = here / "configs" / "config.yaml"
    settings = yaml.safe_load(path.read_text())
    for machine in settings["distributed"]["workers"]:  # which have no way to an index
        machine |= {"python": workers[0].python, "processes": 1}
    path.write_text(yaml.safe_dump(settings))
    said = keima("cluster", "bootstrap")
    assert said.count("sending the code, ") == 2 and "ready: worker1" in said and "ready: worker2" in said
    assert "ready: worker1, worker2" in keima("cluster", "check")
    small = ("game={name: tic_tac_toe}", "network={blocks: 1, channels: 8}", "training={games_per_iteration: 100}")
    changes = [
        word for each in (*small, "evaluation={every: 0}", "search={num_simulations: 16}") for word in ("--set", each)
    ]
    keima("train", "--distributed", "--iterations", "2", "--run-dir", "runs/lab", *changes)
    assert "balance" in keima("audit", "lab")
    assert (here / "distributed" / "status.txt").is_file() and (here / "logs" / "distributed_training.log").is_file()
    with read_ledger(here / "runs" / "lab") as ledger:
        played = {account.name for account in ledger.accounts().values() if account.received > 0}
    assert played == {"worker1", "worker2"}
    for worker in workers:
        (release,) = (worker.home / "keima" / "releases").glob("[!.]*")
        assert (release / "keima" / "worker" / "loop.py").is_file() and not (release / "keima" / "learning").exists()
