"""The real program with other layouts of machines, several processes on one and one behind another, with a user's own
game, and faults of these machines.
"""

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from keima.config.own_modules import keep_module
from keima.data.ledger import read_ledger
from tests.lab.driver import ACTIVE, BROKEN, PATIENCE, Driver, driven, in_time
from tests.lab.hosts import Host, running_hosts
from tests.own_game import own_game

pytestmark = [pytest.mark.slow, pytest.mark.trial, pytest.mark.timeout(400)]

SLOTS = ("worker3-1", "worker3-2")
HEARTBEAT_SECONDS = 2.0
STARTS = 6  # of a process that keeps dying; then it is given up


@pytest.fixture(scope="module")
def driver(real_hosts: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    with running_hosts(3) as hosts:
        first, behind = hosts[:2]
        # It answers only the other hosts.
        assert behind.run(["ip", "route", "add", "blackhole", f"{hosts.network}.254/32"], user="root").returncode == 0
        machines = {behind.name: {"proxy_jump": f"{first.user}@{first.address}"}, "worker3": {"processes": 2}}
        folder = tmp_path_factory.mktemp("cluster")
        game = {"name": "", "module": str(own_game(folder / "mine.py"))}
        with driven(folder, hosts, in_config=3, machines=machines, changes={"game": game}) as made:
            yield made


@pytest.fixture
def cluster(driver: Driver) -> Driver:
    """The run, with all workers Active: one each on two machines, and two on the third."""
    if not driver.runs:
        driver.start()
    driver.wait_until_all_play(4)
    return driver


def status_text(cluster: Driver) -> str:
    return (cluster.checkout / "distributed" / "status.txt").read_text(encoding="utf-8")


def wait_for_games(cluster: Driver, *workers: str) -> None:
    """Wait until each of these workers has handed over new games."""
    before = set(cluster.received())
    cluster.wait(
        lambda: all(any(f"-{worker}-" in batch for batch in {*cluster.received()} - before) for worker in workers),
        f"games of {' and '.join(workers)}",
    )


def test_all_play_a_users_own_game_which_came_with_their_assignments(cluster: Driver, driver: Driver) -> None:
    game = driver.output.parent / "mine.py"
    name = keep_module(game)
    with read_ledger(cluster.run_dir) as ledger:
        assert ledger.game == name
    for host in cluster.hosts:
        copy = host.home / ".cache" / "keima" / "modules" / f"{name}.py"
        assert copy.read_bytes() == game.read_bytes()


def test_a_machine_behind_another_one_plays_through_it(cluster: Driver) -> None:
    first, behind = cluster.hosts[:2]
    assert cluster.hosts.ssh("-o", "ConnectTimeout=1", behind.name, "true").returncode != 0
    wait_for_games(cluster, behind.name)
    peers = behind.run(["ss", "-Htn", "state", "established", "( sport = :22 )"], user="root").stdout
    assert first.address in peers and f"{cluster.hosts.network}.254" not in peers


def test_each_process_of_a_machine_plays_is_shown_and_has_its_share(cluster: Driver) -> None:
    assert len(cluster.worker_processes(cluster.hosts[2])) == 2
    wait_for_games(cluster, *SLOTS)

    def shown() -> bool:
        text, now = status_text(cluster), cluster.workers()
        return "Workers active: 4/4" in text and all(slot in text and now[slot]["share"] > 0.05 for slot in SLOTS)

    cluster.wait(shown, "all four to be shown as Active, each with its share")  # one may just be Syncing
    workers = cluster.workers()
    assert {workers[slot]["machine"] for slot in SLOTS} == {"worker3"}
    assert sum(worker["share"] for worker in workers.values()) == pytest.approx(1.0, abs=1e-6)


def test_stopping_a_machine_ends_all_its_processes_and_one_can_be_stopped_alone(cluster: Driver) -> None:
    host = cluster.hosts[2]
    assert cluster.connector("--stop", "worker3").returncode == 0
    cluster.wait(lambda: not cluster.worker_processes(host), "both processes to end")
    cluster.wait(lambda: {cluster.states()[slot] for slot in SLOTS} == {"Offline"}, "both to be shown as stopped")
    assert cluster.connector("--restart", SLOTS[0]).returncode == 0
    cluster.wait(lambda: [cluster.states()[slot] for slot in SLOTS] == [ACTIVE, "Offline"], "one of them to play")
    assert len(cluster.worker_processes(host)) == 1
    assert cluster.connector("--restart", SLOTS[1]).returncode == 0
    cluster.wait_until_all_play(4)


def test_a_machine_whose_packets_are_dropped_becomes_offline_in_time_and_hands_over_its_spool_later(
    cluster: Driver,
) -> None:
    host = cluster.hosts[2]
    processes = cluster.worker_processes(host)
    host.link.blackhole()
    try:
        took = cluster.wait(lambda: {cluster.states()[slot] for slot in SLOTS} == {"Offline"}, "it to be Offline")
        assert took < in_time(10.0 + HEARTBEAT_SECONDS)
        wait_for_games(cluster, "worker1", "worker2")
        trained = max(worker["model_version"] for worker in cluster.workers().values())
        cluster.wait(lambda: cluster.workers()["worker1"]["model_version"] > trained, "training to go on")
        spool = cluster.spool(host)
        assert spool
    finally:
        host.link.heal()
    cluster.wait_until_all_play(4)
    assert cluster.worker_processes(host) == processes
    cluster.wait(lambda: spool <= {*cluster.received()}, "what was played meanwhile to be in the ledger")


def test_a_worker_that_dies_at_once_is_given_up_with_its_log_until_the_fault_is_fixed(cluster: Driver) -> None:
    host = cluster.hosts[0]
    starts = f"{host.name}: its process has ended and is started again"
    (host.home / BROKEN).touch()
    before = cluster.log.read_text().count(starts)
    host.kill("keima/__main__.py")
    cluster.wait(lambda: cluster.states()[host.name] == "Error", "it to be given up", seconds=2 * PATIENCE)
    text = " ".join(status_text(cluster).split())
    assert f"ended {STARTS} times in 10 minutes" in text and "libgo.so.9: cannot open shared object file" in text
    tried = cluster.log.read_text().count(starts) - before
    assert tried <= STARTS
    wait_for_games(cluster, "worker2", *SLOTS)
    until = time.monotonic() + 10.0
    cluster.wait(lambda: time.monotonic() >= until, "nothing")
    assert cluster.log.read_text().count(starts) - before == tried and not cluster.worker_processes(host)
    (host.home / BROKEN).unlink()
    assert cluster.connector("--restart", host.name).returncode == 0
    cluster.wait_until_all_play(4)


def test_a_run_that_ends_asks_machines_that_were_away_once_more_for_their_games(cluster: Driver) -> None:
    cut_off = cluster.hosts[:2]  # the second one is behind the first
    cut_off[0].link.cut()
    try:
        cluster.wait(lambda: all(cluster.states()[host.name] == "Offline" for host in cut_off), "both to be Offline")
        cluster.wait(lambda: all(len(cluster.spool(host)) > 1 for host in cut_off), "both to play on")
        attempts_are_rare = time.monotonic() + 15.0
        cluster.wait(lambda: time.monotonic() > attempts_are_rare, "attempts to become rare")
    finally:
        cut_off[0].link.heal()
    assert cluster.interrupt() == 128 + signal.SIGINT
    cluster.poll()
    assert cluster.seen <= {*cluster.received()}
    assert not any(cluster.worker_processes(host) for host in cluster.hosts)
    assert not cluster.audit().problems


@pytest.fixture
def begun_here(real_hosts: None, tmp_path: Path) -> Iterator[tuple[Driver, Host]]:
    """A run that has trained on this machine alone until it was interrupted, and a machine that its config does not
    list.
    """
    changes = {"distributed": {"enabled": False}, "training": {"games_per_iteration": 20}}
    with running_hosts(1) as hosts, driven(tmp_path, hosts, in_config=0, changes=changes) as made:
        made.start("--config", "configs/config.yaml")
        made.wait(lambda: list(made.run_dir.glob("checkpoints/checkpoint-*")), "a checkpoint", seconds=2 * PATIENCE)
        assert made.interrupt() == 128 + signal.SIGINT
        yield made, hosts[0]


@pytest.mark.timeout(900)  # starts the program three times
def test_a_run_started_on_this_machine_continues_with_machines_that_its_config_lists_later(
    begun_here: tuple[Driver, Host],
) -> None:
    cluster, host = begun_here
    before = cluster.received()
    cluster.start()
    assert cluster.process and cluster.process.wait(2 * PATIENCE) == 2
    assert "configs/config.yaml: distributed.workers: none are listed" in cluster.output.read_text()
    cluster.add(host)
    cluster.start()
    cluster.wait_until_all_play(1)
    wait_for_games(cluster, host.name)
    assert cluster.received()[: len(before)] == before
    assert cluster.interrupt() == 128 + signal.SIGINT
    assert not cluster.audit().problems


def test_machines_play_a_game_of_openspiel(real_hosts: None, tmp_path: Path) -> None:
    pytest.importorskip("pyspiel", reason="open_spiel is not installed")
    game = {"name": "openspiel", "options": {"game": "tic_tac_toe"}}
    with running_hosts(2) as hosts, driven(tmp_path, hosts, in_config=2, bare=1, changes={"game": game}) as cluster:
        cluster.start()
        cluster.wait_until_all_play()
        wait_for_games(cluster, "worker1", "worker2")
        assert cluster.interrupt() == 128 + signal.SIGINT
        assert not cluster.audit().problems
