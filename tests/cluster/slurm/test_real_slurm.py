"""Slurm itself: Debian's controller and two nodes on this machine, workers in its jobs, and ``start_main.py``.

Each node has a host name of its own, so a worker that comes back on the other node finds the record of "another
machine". The nodes share this machine's disk; a network file system is not part of these tests.
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from keima.base.reports.worker_status import WorkerState
from keima.cli.reports.audit import audit
from keima.cluster.slurm.commands import Slurm
from keima.cluster.ssh.errors import RemoteFailure
from keima.paths import CACHE
from tests.cluster.slurm.real_slurm import NODES, RealSlurm, missing
from tests.cluster.slurm.slurm_fleet import SlurmFleet
from tests.small_run import small_settings
from tests.sources import copy_checkout

pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(missing()), reason=missing() or "Slurm is installed")]

PATIENCE = 400.0


@pytest.fixture(scope="module")
def slurm() -> Iterator[RealSlurm]:
    root = Path(tempfile.mkdtemp(prefix="slurm-", dir="/tmp"))  # short: sockets' paths are
    cluster = RealSlurm(root / "c")
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()
        shutil.rmtree(root)


Open = Callable[..., SlurmFleet]


@pytest.fixture
def opened(slurm: RealSlurm, tmp_path: Path) -> Iterator[Open]:
    sessions: list[SlurmFleet] = []

    def open_one(**changes: Any) -> SlurmFleet:
        (tmp_path / "run").mkdir(exist_ok=True)
        ledger = sessions[-1].ledger if sessions else None
        sessions.append(SlurmFleet(tmp_path / "run", slurm.environment, ledger=ledger, **changes))
        return sessions[-1]

    yield open_one
    slurm.command("scancel", "--name=keima-run", f"--user={os.getuid()}")
    for session in sessions:
        session.fleet.close()
    deadline = time.monotonic() + PATIENCE
    while slurm.command("squeue", "-h", "--name=keima-run"):
        assert time.monotonic() < deadline, slurm.command("squeue")
        time.sleep(0.5)


def jobs_of(slurm: RealSlurm, name: str = "keima-run") -> dict[str, str]:
    """Return the state of each job that has not ended."""
    lines = slurm.command("squeue", "-h", "-r", f"--name={name}", "-o", "%i %T").splitlines()
    return dict(line.split() for line in lines)


def test_two_workers_play_on_two_nodes_and_nothing_is_left_when_the_run_ends(slurm: RealSlurm, opened: Open) -> None:
    fleet = opened(partition="debug", time="30:00", memory="900M", options=["--nice=5"])
    fleet.wait_for_games("slurm-1", "slurm-2")
    assert sorted(jobs_of(slurm).values()) == ["RUNNING"] * 2
    hosts = [path.read_text() for path in fleet.machines.folder.glob("workers/*/process.json")]
    assert all(any(node in text for text in hosts) for node in NODES), hosts
    fleet.close()
    assert not jobs_of(slurm)


def test_a_third_worker_waits_for_resources_and_says_so(slurm: RealSlurm, opened: Open) -> None:
    fleet = opened(count=3)
    fleet.wait(
        lambda: sorted(view.state.value for view in fleet.fleet.cluster().workers) == ["Active", "Active", "Syncing"]
    )
    name = next(view.name for view in fleet.fleet.cluster().workers if view.state is WorkerState.SYNCING)
    fleet.wait(lambda: "waits for resources in partition debug" in fleet.worker(name).reason)
    assert not {WorkerState.ERROR, WorkerState.OFFLINE} & set(fleet.states_of(name))


def test_a_requeued_worker_hands_over_its_games_and_comes_back_on_another_node(slurm: RealSlurm, opened: Open) -> None:
    fleet = opened(count=1)
    fleet.wait_for_games("slurm-1")
    (job,) = jobs_of(slurm)
    node = slurm.command("squeue", "-h", "-o", "%N", "-j", job).strip()
    slurm.command("scontrol", "update", f"nodename={node}", "state=drain", "reason=test")
    try:
        slurm.command("scontrol", "requeue", job)
        fleet.wait(lambda: "as Slurm has queued it again" in fleet.reasons_of("slurm-1"))
        fleet.wait_for_games("slurm-1")
        assert jobs_of(slurm) == {job: "RUNNING"}
        assert slurm.command("squeue", "-h", "-o", "%N", "-j", job).strip() != node
    finally:
        slurm.command("scontrol", "update", f"nodename={node}", "state=resume")
    assert not {WorkerState.ERROR, WorkerState.OFFLINE} & set(fleet.states_of("slurm-1"))


def test_a_job_at_its_time_limit_hands_over_its_games_and_another_follows(slurm: RealSlurm, opened: Open) -> None:
    fleet = opened(count=1, time="2:00", warning_seconds=30)
    fleet.wait_for_games("slurm-1")
    (job,) = jobs_of(slurm)
    fleet.wait(lambda: set(jobs_of(slurm)) not in ({job}, set()))
    fleet.wait_for_games("slurm-1")
    assert any(f"job {job} has ended" in event for event in fleet.events), fleet.events
    assert not {WorkerState.ERROR, WorkerState.OFFLINE} & set(fleet.states_of("slurm-1"))


def test_a_job_that_an_administrator_cancels_is_an_error_until_restart(slurm: RealSlurm, opened: Open) -> None:
    fleet = opened()
    fleet.wait_for_games("slurm-1", "slurm-2")
    job = next(name for name in jobs_of(slurm) if name.endswith("_2"))
    slurm.command("scancel", job)
    fleet.wait(lambda: fleet.worker("slurm-2").state is WorkerState.ERROR)
    assert f"job {job} was cancelled" in fleet.worker("slurm-2").reason
    assert fleet.worker("slurm-1").state is WorkerState.ACTIVE
    fleet.fleet.restart("slurm-2")
    fleet.wait_for_games("slurm-2")
    fleet.fleet.stop("slurm-1")
    fleet.wait(lambda: [name[-2:] for name in jobs_of(slurm)] == ["_2"])
    fleet.wait(lambda: fleet.worker("slurm-1").state is WorkerState.OFFLINE)


def test_a_worker_whose_node_dies_comes_back_on_another_node(slurm: RealSlurm, opened: Open) -> None:
    fleet = opened(count=1)
    fleet.wait_for_games("slurm-1")
    (job,) = jobs_of(slurm)
    node = slurm.command("squeue", "-h", "-o", "%N", "-j", job).strip()
    slurm.kill_node(node)
    try:
        slurm.command("scontrol", "update", f"nodename={node}", "state=down", "reason=power")
        fleet.wait(lambda: jobs_of(slurm).get(job) == "RUNNING" or len(jobs_of(slurm)) == 1)
        fleet.wait_for_games("slurm-1")
    finally:
        slurm.start_node(node)
        slurm.command("scontrol", "update", f"nodename={node}", "state=resume")
        slurm.wait_for_nodes()


def test_the_next_session_finds_the_jobs_of_one_that_was_killed(slurm: RealSlurm, opened: Open) -> None:
    killed = opened()
    killed.wait_for_games("slurm-1", "slurm-2")
    before = jobs_of(slurm)
    killed.vanish()
    resumed = opened()
    resumed.wait_for_games("slurm-1", "slurm-2")
    assert jobs_of(slurm) == before
    resumed.close()
    assert not jobs_of(slurm)


@pytest.mark.parametrize(
    ("option", "remedy"),
    [
        ("--partition=nowhere", "sinfo lists the partitions"),
        ("--constraint=nothing", "distributed.slurm.constraint"),
        ("--gres=gpu:1", "distributed.slurm.gpus"),
        ("--mem=900G", "distributed.slurm.memory"),
        ("--nonsense", "distributed.slurm.options"),
    ],
)
def test_what_slurm_refuses_is_said_in_its_words_with_the_remedy(
    slurm: RealSlurm, tmp_path: Path, option: str, remedy: str
) -> None:
    script = tmp_path / "job.sh"
    script.write_text("#!/bin/sh\n")
    with pytest.raises(RemoteFailure, match=r"slurm: sbatch: .+; ") as found:
        Slurm(environment=slurm.environment).submit(script, [1], [option])
    assert remedy in found.value.remedy


def test_a_controller_that_is_gone_is_said_to_be(slurm: RealSlurm, tmp_path: Path) -> None:
    text = (slurm.root / "slurm.conf").read_text()
    config = tmp_path / "slurm.conf"
    config.write_text(text.replace("SlurmctldPort=", "SlurmctldPort=1\n#") + "MessageTimeout=5\n")
    with pytest.raises(RemoteFailure, match=r"slurm: squeue: .+; ") as found:
        Slurm(environment={**slurm.environment, "SLURM_CONF": str(config)}, seconds=60.0).jobs("keima-run")
    assert "scontrol ping" in found.value.remedy


# With start_main.py.


class Program:
    """A checkout with a config, and the main node's program in it."""

    def __init__(self, root: Path, slurm: RealSlurm, **run: Any) -> None:
        self.checkout, self.slurm = root / "checkout", slurm
        copy_checkout(self.checkout)
        self.run_dir = root / "runs" / "small"
        jobs = {"count": 2, "time": "30:00", "poll_seconds": 1.0, "warning_seconds": 20}
        distributed = {"enabled": True, "sync_interval": 10, "heartbeat_seconds": 0.5, "slurm": jobs}
        settings = small_settings(root / "runs", run=run)
        given = settings.model_dump(mode="json", exclude_unset=True)
        given["distributed"] |= distributed
        (self.checkout / "configs" / "test.yaml").write_text(yaml.safe_dump(given))
        self.output = root / "output"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, *options: str) -> subprocess.Popen[bytes]:
        line = [sys.executable, "start_main.py", "--distributed", *options]
        with self.output.open("ab") as output:
            self.process = subprocess.Popen(
                line,
                cwd=self.checkout,
                stdout=output,
                stderr=output,
                stdin=subprocess.DEVNULL,
                env={**self.slurm.environment, "KEIMA_CACHE": str(CACHE)},
            )
        return self.process

    def status(self) -> str:
        path = self.checkout / "distributed" / "status.txt"
        return path.read_text() if path.exists() else ""

    def told(self) -> str:
        log = self.run_dir / "coach.log"
        logged = log.read_text()[-3000:] if log.exists() else ""
        return f"{self.output.read_text()[-3000:]}\n{self.status()}\n{logged}"

    def wait(self, done: Callable[[], object]) -> None:
        deadline = time.monotonic() + PATIENCE
        while not done():
            assert time.monotonic() < deadline, self.told()
            time.sleep(0.2)


@pytest.fixture
def program(slurm: RealSlurm, tmp_path: Path) -> Iterator[Callable[..., Program]]:
    made: list[Program] = []

    def make(**run: Any) -> Program:
        made.append(Program(tmp_path, slurm, **run))
        return made[-1]

    yield make
    for each in made:
        if each.process:
            each.process.kill()
            each.process.wait()
    slurm.command("scancel", f"--user={os.getuid()}")


def both_active(program: Program) -> bool:
    lines = [line for line in program.status().splitlines() if "slurm-" in line]
    return len(lines) >= 2 and all("Active" in line for line in lines[:2])


def test_a_run_on_slurm_becomes_active_learns_ends_and_its_account_balances(
    program: Callable[..., Program], slurm: RealSlurm
) -> None:
    run = program(iterations=6)
    process = run.start("--config", "configs/test.yaml")
    run.wait(lambda: both_active(run))
    assert process.wait(PATIENCE) == 0, run.told()
    found = audit(run.run_dir)
    assert not found.problems, found.problems
    assert (run.run_dir / "run.db").exists()
    assert not slurm.command("squeue", "-h").strip()


def test_a_killed_coach_resumes_with_the_same_jobs_and_the_account_balances(
    program: Callable[..., Program], slurm: RealSlurm
) -> None:
    run = program(iterations=None)
    process = run.start("--config", "configs/test.yaml")
    run.wait(lambda: both_active(run))
    before = slurm.command("squeue", "-h", "-r", "-o", "%i %T")
    assert before.count("RUNNING") == 2
    process.send_signal(signal.SIGKILL)
    process.wait()
    (run.checkout / "distributed" / "status.txt").unlink()
    process = run.start("--run-dir", str(run.run_dir), "--resume")
    run.wait(lambda: both_active(run))
    assert slurm.command("squeue", "-h", "-r", "-o", "%i %T") == before
    process.send_signal(signal.SIGINT)
    assert process.wait(PATIENCE) == 130, run.told()
    found = audit(run.run_dir)
    assert not found.problems, found.problems
    run.wait(lambda: not slurm.command("squeue", "-h").strip())
