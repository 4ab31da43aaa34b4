"""A fleet on a stand-in for Slurm (``stand_in.py``), which really runs the jobs: real workers, real games."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from keima.base.reports.worker_status import WorkerState
from tests.cluster.slurm.slurm_fleet import SlurmFleet
from tests.cluster.slurm.stand_in import StandIn

pytestmark = pytest.mark.trial


class Run:
    """A run on a stand-in, in sessions."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.cluster = StandIn(root / "cluster")
        self.sessions: list[SlurmFleet] = []
        (root / "run").mkdir()

    def session(self, **changes: Any) -> SlurmFleet:
        ledger = self.sessions[-1].ledger if self.sessions else None
        self.sessions.append(SlurmFleet(self.root / "run", self.cluster.environment, ledger=ledger, **changes))
        return self.sessions[-1]


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    one = Run(tmp_path)
    yield one
    one.cluster.end_all()
    for session in one.sessions:
        session.fleet.close()


@pytest.mark.slow
def test_workers_in_jobs_play_and_nothing_is_left_when_the_run_ends(run: Run) -> None:
    fleet = run.session(partition="gpu", options=["--nice=10"])
    fleet.wait_for_games("slurm-1", "slurm-2")
    (submission,) = run.cluster.calls("sbatch")
    assert {"--array=1-2", "--job-name=keima-run", "--partition=gpu", "--requeue", "--nice=10"} <= set(submission)
    assert submission[-1] == str(run.root / "run" / "slurm" / "job.sh")
    fleet.close()
    assert {job["state"] for job in run.cluster.jobs()} == {"COMPLETED"}
    assert not run.cluster.calls("scancel") or all("--quiet" in call for call in run.cluster.calls("scancel"))


@pytest.mark.slow
def test_a_worker_in_the_queue_is_syncing_with_slurm_s_reason_until_there_is_room(run: Run) -> None:
    run.cluster.set_places(1)
    fleet = run.session()
    fleet.wait(lambda: sorted(view.state.value for view in fleet.fleet.cluster().workers) == ["Active", "Syncing"])
    (waiting,) = (view for view in fleet.fleet.cluster().workers if view.state is WorkerState.SYNCING)
    fleet.wait(lambda: "waits for resources in partition debug" in fleet.worker(waiting.name).reason)
    run.cluster.set_places(2)
    fleet.wait_for_games("slurm-1", "slurm-2")
    assert WorkerState.OFFLINE not in fleet.states_of(waiting.name) + fleet.states_of("slurm-1")


@pytest.mark.slow
def test_a_requeued_worker_hands_over_its_games_and_comes_back_with_the_next_game(run: Run) -> None:
    fleet = run.session(count=1)
    fleet.wait_for_games("slurm-1")
    run.cluster.requeue(run.cluster.alive(1)[0])
    fleet.wait(lambda: run.cluster.jobs()[0]["restarts"] == 1 and run.cluster.jobs()[0]["state"] == "RUNNING")
    fleet.wait_for_games("slurm-1")
    assert len(run.cluster.calls("sbatch")) == 1
    assert not {WorkerState.OFFLINE, WorkerState.ERROR} & set(fleet.states_of("slurm-1"))


@pytest.mark.slow
def test_a_job_at_its_time_limit_hands_over_its_games_and_another_follows(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(run.cluster.variables, "STAND_IN_SECONDS", "35")
    fleet = run.session(count=1)
    fleet.wait(lambda: len(run.cluster.jobs()) == 2)
    assert run.cluster.jobs()[0]["state"] == "COMPLETED"
    fleet.wait_for_games("slurm-1")
    assert not {WorkerState.OFFLINE, WorkerState.ERROR} & set(fleet.states_of("slurm-1"))


@pytest.mark.slow
def test_a_cancelled_job_is_an_error_and_restart_and_stop_work_for_each_worker(run: Run) -> None:
    fleet = run.session()
    fleet.wait_for_games("slurm-1", "slurm-2")
    job = run.cluster.alive(2)[0]
    fleet.slurm.cancel(f"{job['array']}_2")
    fleet.wait(lambda: fleet.worker("slurm-2").state is WorkerState.ERROR)
    assert "was cancelled" in fleet.worker("slurm-2").reason
    assert fleet.worker("slurm-1").state is WorkerState.ACTIVE
    fleet.fleet.restart("slurm-2")
    fleet.wait_for_games("slurm-2")
    fleet.fleet.stop("slurm-1")
    fleet.wait(lambda: not run.cluster.alive(1))
    fleet.wait(lambda: fleet.worker("slurm-1").state is WorkerState.OFFLINE)
    assert "cluster restart" in fleet.worker("slurm-1").reason and fleet.worker("slurm-2").state is WorkerState.ACTIVE


@pytest.mark.slow
def test_the_next_session_finds_the_jobs_of_one_that_was_killed(run: Run) -> None:
    killed = run.session()
    killed.wait_for_games("slurm-1", "slurm-2")
    killed.vanish()
    resumed = run.session()
    resumed.wait_for_games("slurm-1", "slurm-2")
    assert len(run.cluster.calls("sbatch")) == 1 and len(run.cluster.jobs()) == 2
    resumed.close()
    assert {job["state"] for job in run.cluster.jobs()} == {"COMPLETED"}


def test_a_refused_submission_is_an_error_of_all_workers_until_it_is_accepted(run: Run) -> None:
    run.cluster.refuse("sbatch", "Batch job submission failed: Invalid account or account/partition combination")
    fleet = run.session()
    fleet.wait(lambda: all(view.state is WorkerState.ERROR for view in fleet.fleet.cluster().workers))
    assert "Invalid account" in fleet.worker("slurm-1").reason
    assert "correct distributed.slurm.account" in fleet.worker("slurm-1").reason


@pytest.mark.slow
def test_a_node_that_does_not_share_the_folder_is_an_error_with_the_remedy(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("keima.cluster.slurm.script.VISIBLE_TRIES", 1)
    fleet = run.session(count=1)
    run.cluster.set_places(0)
    fleet.wait(lambda: run.cluster.alive(1))
    (run.root / "run" / "slurm" / "worker.sh").rename(run.root / "away.sh")
    run.cluster.set_places(1)
    fleet.wait(lambda: fleet.worker("slurm-1").state is WorkerState.ERROR)
    assert "distributed.slurm.directory" in fleet.worker("slurm-1").reason
    shutil.move(run.root / "away.sh", run.root / "run" / "slurm" / "worker.sh")
    fleet.fleet.restart("slurm-1")
    fleet.wait_for_games("slurm-1")
