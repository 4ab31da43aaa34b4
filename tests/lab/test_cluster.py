"""A whole cluster: the real program, four machines, and all kinds of faults.

One run goes through all of these tests, in any order.
"""

import shlex
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from keima.data.ledger import read_ledger
from keima.evaluation.match_jobs import RESULT_SUFFIX
from tests.lab.driver import ACTIVE, PATIENCE, Driver, driven
from tests.lab.hosts import SSH_PORT, Host, running_hosts
from tests.lab.processes import command_line

pytestmark = [pytest.mark.trial, pytest.mark.timeout(400)]

DISK_MB = 1500  # a worker needs 1 GB of free space
OFFLINE = {"Offline"}
ALREADY_RUNNING = 3
NEW = "worker4"  # is not in the config initially
KEY = b"id_ed25519"  # the file of the key that reaches all of them


@pytest.fixture(scope="module")
def driver(real_hosts: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    with (
        running_hosts(disk_mb=DISK_MB) as hosts,
        driven(tmp_path_factory.mktemp("cluster"), hosts, in_config=3, bare=1) as made,
    ):
        yield made


@pytest.fixture
def cluster(driver: Driver) -> Driver:
    """The run, with all workers of the config Active."""
    if not driver.runs:
        driver.start()
    driver.wait_until_all_play()
    return driver


@pytest.fixture
def four(cluster: Driver) -> Driver:
    """The run with four machines."""
    if NEW not in cluster.workers():
        cluster.add(cluster.hosts[3])
        cluster.wait_until_all_play(4)
    return cluster


def state_is(cluster: Driver, name: str, *states: str) -> Callable[[], bool]:
    return lambda: cluster.states().get(name) in states


def reason(cluster: Driver, name: str) -> str:
    """Return why a worker does not play, with the remedy."""
    return str(cluster.workers()[name]["reason"])


def one_process(cluster: Driver, host: Host) -> int:
    processes = cluster.worker_processes(host)
    assert len(processes) == 1, processes
    return processes[0]


def test_bare_machines_and_clones_become_active_and_play_the_users_own_class(cluster: Driver) -> None:
    bare, clone = cluster.hosts[:2]
    assert list((bare.home / "keima" / "releases").glob("*/.whole"))
    assert not (clone.home / "keima" / "releases").exists()
    cluster.wait(
        lambda: {each["note"] for each in cluster.workers().values()} == {"plays in its own way"},
        "all to say how they play",
    )

    def table() -> str:
        return (cluster.checkout / "distributed" / "status.txt").read_text(encoding="utf-8")

    # A worker that is being sent the next model is Syncing for a moment.
    cluster.wait(lambda: table().count("🟢 Active") == len(cluster.workers()), "all to be Active in the table")
    assert "Workers active" in table() and "MB/min" in table()


def test_only_the_ssh_server_listens_on_a_machine(cluster: Driver) -> None:
    for host in cluster.hosts[:3]:
        one_process(cluster, host)
        listening = set()
        for kind in ("tcp", "tcp6", "udp", "udp6"):
            rows = Path(f"/proc/{one_process(cluster, host)}/net/{kind}").read_text(encoding="ascii").splitlines()[1:]
            states = {"tcp": "0A", "udp": "07"}[kind[:3]]
            listening |= {int(row.split()[1].rpartition(":")[2], 16) for row in rows if row.split()[3] == states}
        assert listening == {SSH_PORT}


def test_a_second_start_never_makes_a_second_worker(cluster: Driver) -> None:
    host = cluster.hosts[1]
    before = one_process(cluster, host)
    line = [host.python, "keima/keima/__main__.py", "worker", "--folder", f"keima/workers/{host.name}"]
    assert host.run(line, seconds=60.0).returncode == ALREADY_RUNNING
    assert one_process(cluster, host) == before


def test_all_machines_receive_a_new_model_and_switch_to_it(cluster: Driver) -> None:
    newest = max(worker["model_version"] for worker in cluster.workers().values())
    cluster.wait(
        lambda: all(worker["model_version"] > newest for worker in cluster.workers().values()),
        f"all to play with what follows {newest}",
    )
    assert cluster.status()["sync_seconds"] is not None
    assert cluster.status()["network_mb_per_minute"] > 0


@pytest.mark.slow
def test_evaluation_games_are_played_on_the_machines(cluster: Driver) -> None:
    results = f"workers/*/outbox/*{RESULT_SUFFIX}"
    cluster.wait(lambda: list(cluster.run_dir.glob(results)), "games of a match to come back from a machine")
    with read_ledger(cluster.run_dir) as ledger:
        cluster.wait(lambda: ledger.matches() and ledger.ratings(), "a match to be in the ledger")
    assert "did not play" not in cluster.log.read_text()


def test_a_machine_added_by_a_script_plays(cluster: Driver) -> None:
    if NEW in cluster.workers():
        cluster.remove(cluster.hosts[3])
    cluster.add(cluster.hosts[3])
    cluster.wait(state_is(cluster, NEW, ACTIVE), f"{NEW} to be Active")
    assert NEW in cluster.config.read_text() and NEW in cluster.log.read_text()


@pytest.mark.slow
def test_a_machine_deleted_from_the_config_hands_over_everything_and_the_others_continue(four: Driver) -> None:
    four.wait(lambda: any(NEW in batch for batch in four.received()), f"games of {NEW}")
    left = four.hosts[3]
    four.remove(left)
    assert not four.worker_processes(left)
    assert not four.spool(left)
    mine = {batch for batch in four.seen if NEW in batch}
    assert mine <= set(four.received())
    before = len(four.received())
    four.wait(lambda: len(four.received()) > before + 5, "the others to play on")


@pytest.mark.slow
def test_a_machine_with_an_unknown_key_is_refused_until_the_remedy_is_applied(cluster: Driver) -> None:
    if NEW in cluster.workers():
        cluster.remove(cluster.hosts[3])
    known, stranger = cluster.hosts.known_hosts, cluster.hosts[3]
    lines = known.read_text().splitlines(keepends=True)
    known.write_text("".join(line for line in lines if not line.startswith(f"{stranger.address} ")))
    cluster.add(cluster.hosts[3])
    cluster.wait(state_is(cluster, NEW, "Error"), f"{NEW} to be refused")
    assert "is not known" in reason(cluster, NEW)
    remedy = reason(cluster, NEW).rpartition("if that is its own: ")[2]
    subprocess.run(["sh", "-c", remedy], check=True, capture_output=True)
    assert cluster.connector("--restart", NEW).returncode == 0
    cluster.wait_until_all_play(4)


def test_a_machine_with_a_changed_key_is_refused_with_the_command_that_forgets_the_old_one(cluster: Driver) -> None:
    known, other = cluster.hosts.known_hosts, cluster.hosts[1]
    before = known.read_text()
    lines = dict(line.split(" ", 1) for line in before.splitlines())
    lines[other.address] = lines[cluster.hosts[0].address]
    known.write_text("".join(f"{name} {key}\n" for name, key in lines.items()))
    try:
        checked = cluster.connector("--check")
    finally:
        known.write_text(before)
    assert checked.returncode == 1
    assert f"the host key of {other.address} has changed" in checked.stdout
    assert shlex.join(["ssh-keygen", "-R", other.address]) in checked.stdout


@pytest.mark.slow
def test_the_connector_shows_restarts_stops_and_reads_the_workers_of_a_running_coach(cluster: Driver) -> None:
    host = cluster.hosts[2]
    checked = cluster.connector("--check")
    assert checked.returncode == 0, checked.stdout
    assert all(name in checked.stdout for name in cluster.workers())
    said = cluster.connector("--status").stdout
    assert "Workers active" in said
    assert all(name in said for name in cluster.workers())
    assert f"worker {host.name}: process" in cluster.connector("--logs", host.name).stdout
    before = one_process(cluster, host)
    assert cluster.connector("--restart", host.name).returncode == 0
    cluster.wait(lambda: cluster.worker_processes(host) not in ([], [before]), "another process")
    cluster.wait_until_all_play()
    assert cluster.connector("--stop", host.name).returncode == 0
    cluster.wait(
        lambda: state_is(cluster, host.name, *OFFLINE)() and not cluster.worker_processes(host), "it to be stopped"
    )
    assert "stopped" in reason(cluster, host.name)
    assert cluster.connector("--restart", host.name).returncode == 0
    cluster.wait_until_all_play()


@pytest.mark.slow
def test_machines_without_network_power_or_pulse_become_offline_and_come_back_automatically(four: Driver) -> None:
    cut, dark, frozen = four.hosts[:3]
    names = {host.name for host in (cut, dark, frozen)}
    playing = one_process(four, cut)
    cut.link.cut()
    dark.poweroff()
    frozen.freeze()
    try:
        four.wait(lambda: {four.states()[name] for name in names} == OFFLINE, "three machines to be Offline")
        before = len(four.received())
        four.wait(lambda: len(four.received()) > before + 3, "the fourth to play on")
        four.wait(lambda: len(four.spool(cut)) > 2, "the one that is cut off to play on")
    finally:
        cut.link.heal()
        dark.boot()
        frozen.thaw()
    four.wait_until_all_play(4)
    assert one_process(four, cut) == playing
    four.wait(lambda: four.seen <= {*four.received()}, "all that they had finished to be in the ledger")


@pytest.mark.slow
def test_a_killed_worker_is_restarted_and_reported(cluster: Driver) -> None:
    host = cluster.hosts[1]
    told = f"{host.name}: its process has ended and is started again"
    before = cluster.log.read_text().count(told)
    (killed,) = host.kill("keima/__main__.py")
    cluster.wait(lambda: cluster.log.read_text().count(told) > before, "the log to name it")
    cluster.wait(lambda: cluster.worker_processes(host) not in ([], [killed]), "another process")
    cluster.wait_until_all_play()


@pytest.mark.slow
def test_a_full_disk_is_an_error_with_its_remedy_and_recovers(cluster: Driver) -> None:
    host = cluster.hosts[2]
    host.fill_disk()
    try:
        cluster.wait(state_is(cluster, host.name, "Error"), "the full disk to be noticed")
        cluster.wait(lambda: "No space left" in reason(cluster, host.name), "it to be named")
    finally:
        host.free_disk()
    cluster.wait_until_all_play()


@pytest.mark.slow
def test_an_invalid_batch_is_quarantined_and_its_worker_named(cluster: Driver) -> None:
    host = cluster.hosts[1]
    batch = f"{999_999_000:09d}-10-{host.name}-00"
    (cluster.folder(host) / "outbox" / f"{batch}.games").write_bytes(b"these are no games")
    cluster.wait(
        lambda: f"batch {batch} of {host.name} is in quarantine" in cluster.log.read_text(), "the log to name it"
    )
    cluster.seen.discard(batch)
    assert [path for path in (cluster.run_dir / "quarantine").iterdir() if batch in path.name]
    cluster.wait(lambda: batch not in cluster.spool(host), "it to be taken from the worker")
    cluster.seen.discard(batch)
    cluster.wait_until_all_play()


@pytest.mark.slow
def test_a_killed_coach_takes_over_its_workers_and_their_games_when_resumed(cluster: Driver) -> None:
    hosts = [host for host in cluster.hosts if host.name in cluster.workers()]
    before = {host.name: one_process(cluster, host) for host in hosts}
    cluster.kill()
    deadline = time.monotonic() + PATIENCE
    while not all(len(cluster.spool(host)) > 2 for host in hosts) and time.monotonic() < deadline:
        time.sleep(0.1)
    cluster.poll()
    spools = set().union(*(cluster.spool(host) for host in hosts))
    assert len(spools) > 2 * len(hosts)
    cluster.start()
    cluster.wait_until_all_play(len(hosts))
    assert {host.name: one_process(cluster, host) for host in hosts} == before
    cluster.wait(lambda: spools <= {*cluster.received()}, "what they had played meanwhile to be in the ledger")


@pytest.mark.slow
def test_after_ctrl_c_nothing_is_left_on_any_machine_and_the_audit_passes(cluster: Driver) -> None:
    cluster.poll()
    assert cluster.interrupt() == 128 + signal.SIGINT
    cluster.poll()
    for host in cluster.hosts:
        assert not [line for line in map(command_line, host.pids()) if "python" in line]
    assert cluster.status()["ended"]
    assert "Traceback" not in cluster.log.read_text() + cluster.output.read_text()
    written = [
        *cluster.run_dir.rglob("*"),
        *cluster.log.parent.iterdir(),
        *(cluster.checkout / "distributed").glob("status.*"),
        cluster.output,
    ]
    assert not [path for path in written if path.is_file() and KEY in path.read_bytes()]
    found = cluster.audit()
    assert not found.problems
    assert found.games > 0
    times = Counter(cluster.received())
    assert {batch: times[batch] for batch in cluster.seen if times[batch] != 1} == {}
