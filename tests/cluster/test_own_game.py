"""A game outside the checkout is played by the workers of a cluster, which get it with their assignments."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from configs.own_modules import keep_module, stem_of
from tests.cluster.driver import Driver, driven
from tests.cluster.hosts import running_hosts
from tests.sources import ROOT
from training.data.ledger import read_ledger

pytestmark = [pytest.mark.trial, pytest.mark.timeout(400)]

GAMES = 20  # from each worker


@pytest.fixture
def driver(real_hosts: None, tmp_path: Path) -> Iterator[Driver]:
    """Two hosts, and a config that names a game in a separate folder."""
    rules = (ROOT / "games" / "tic_tac_toe.py").read_text(encoding="utf-8")
    game = tmp_path / "mine.py"
    game.write_text(rules.replace("def tic_tac_toe()", "def game()"), encoding="utf-8")
    changes = {"game": {"name": "", "module": str(game)}, "evaluation": {"every": 0}}
    with running_hosts(2) as hosts, driven(tmp_path, hosts, in_config=2, changes=changes) as made:
        yield made


def test_both_hosts_play_it_without_an_installation_and_the_audit_balances(driver: Driver, tmp_path: Path) -> None:
    name = keep_module(tmp_path / "mine.py")
    driver.start()
    driver.wait_until_all_play(2)

    def enough() -> bool:
        with read_ledger(driver.run_dir) as ledger:
            return all(ledger.account(host.name).received >= GAMES for host in driver.hosts)

    driver.wait(enough, f"{GAMES} games from each host")
    driver.interrupt()
    with read_ledger(driver.run_dir) as ledger:
        assert ledger.game == name and stem_of(name) == "mine"
    for host in driver.hosts:
        assert (host.home / ".cache" / "keima" / "modules" / f"{name}.py").read_bytes() == (
            tmp_path / "mine.py"
        ).read_bytes()
    assert not driver.audit().problems
