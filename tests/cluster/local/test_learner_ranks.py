"""Several processes train a run's network together, next to those that play."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml
from torch import Tensor

from keima.cli.reports.audit import audit
from keima.cluster.local.learner_ranks import learner_ranks, watch_ranks
from keima.coach.session import session
from keima.data.ledger import read_ledger
from keima.learning.ranks.process_group import RankInfo, RankLost, Ranks, join_ranks, make_file_store
from keima.worker.worker_folder import WorkerFolder
from tests.coach.coaching import inline
from tests.learning.ranks.test_ranks import free_port, largest_difference
from tests.programs import heed_ctrl_c, ranks_of
from tests.small_run import small_settings
from tests.sources import ROOT

pytestmark = pytest.mark.medium

GENTLE = {
    "optimizer": "sgd",
    "learning_rate": 0.001,
    "device": "cpu",
    "mixed_precision": False,
}  # AdamW magnifies a float32's last bit in each step


GROWTH = ["2x12@0.5"]  # of the network


def train(folder: Path, *, ranks: int, iterations: int = 1, kill: bool = False) -> dict[str, Tensor]:
    """Return the weights after this many iterations of a run, new or resumed, in which a seed gives the same games."""
    folder.mkdir(exist_ok=True)
    training = {**GENTLE, "asynchronous": False, "learner": {"ranks": ranks}}
    settings = small_settings(folder, run={"iterations": iterations}, training=training, network={"growth": GROWTH})
    with (
        learner_ranks(settings, folder) as several,
        session(
            folder,
            settings,
            make_backend=lambda game, run_id: inline(folder, settings, run_id),
            observers=[],
            ranks=several,
        ) as coach,
    ):
        if kill:
            (rank,) = (child for child in multiprocessing.active_children() if child.name == "learner-rank-1")
            rank.kill()
        coach.run()
        assert coach.learner.step > 10
        weights = coach.learner.weights()
        return {
            **weights,
            **{f"network.{name}": tensor.clone() for name, tensor in coach.learner.network.state_dict().items()},
        }


@pytest.mark.slow  # tests/learning/ranks has the same without a run
@pytest.mark.timeout(600)
def test_ranks_learn_what_one_process_learns_and_their_number_may_change(tmp_path: Path) -> None:
    alone, several = (train(tmp_path / f"{ranks}", ranks=ranks, iterations=2) for ranks in (1, 2))
    assert len(alone["stem.conv.weight"]) == 12, "the network has grown"
    assert 0 < largest_difference(alone, several) < 1e-4
    for ranks in (1, 2):
        train(tmp_path / "2", ranks=ranks, iterations=2 + ranks)
    assert not audit(tmp_path / "2").problems


def test_ranks_meet_in_a_process_whose_earlier_ranks_have_not_met(tmp_path: Path) -> None:
    place = RankInfo(rank=0, world_size=2, local_rank=0, master_addr="127.0.0.1")
    store = make_file_store(tmp_path, 2)
    with (
        pytest.raises(RuntimeError, match="have not met"),
        join_ranks(place, device="cpu", store=store, environment={"NCCL_TIMEOUT": "1"}),
    ):
        pass
    train(tmp_path / "run", ranks=2)


@pytest.mark.timeout(600)
def test_a_dead_rank_ends_the_run_which_can_be_resumed(tmp_path: Path) -> None:
    with pytest.raises(
        RankLost, match=r"rank 1 of the learner has ended with exit code -9; .*see .*learner_rank_1.log"
    ):
        train(tmp_path, ranks=2, kill=True)
    assert list(tmp_path.glob("checkpoints/checkpoint-*"))
    heartbeat = WorkerFolder(tmp_path / "workers" / "inline").read_heartbeat()
    assert heartbeat and heartbeat.state == "ended"
    train(tmp_path, ranks=1)


@dataclass
class FakeProcess:
    """A rank's process; ``exitcode`` is set by the test."""

    exitcode: int | None = None

    def join(self, seconds: float) -> None:
        pass

    def is_alive(self) -> bool:
        return self.exitcode is None


@pytest.mark.parametrize("code", [-9, 0])
def test_a_rank_that_dies_is_noticed_while_this_one_waits_for_its_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    monkeypatch.setattr("keima.cluster.local.learner_ranks.WATCH_SECONDS", 0.01)
    ranks, process = Ranks(world_size=2, backend="gloo"), FakeProcess()
    (tmp_path / "learner_rank_1.log").write_text("out of memory\n")
    with watch_ranks(ranks, {1: process}, tmp_path):  # type: ignore[dict-item]
        ranks.raise_if_lost()
        process.exitcode = code
        deadline = time.monotonic() + 60
        while code and not ranks.lost and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(0.05)
    if code == 0:  # at the end of a run
        ranks.raise_if_lost()
        return
    with pytest.raises(RankLost, match=r"rank 1 .* exit code -9; its log ends: out of memory; see .*learner_rank_1"):
        ranks.raise_if_lost()


def started(folder: Path, *words: str, program: str = "") -> subprocess.Popen[bytes]:
    """Start start_main.py, or torchrun with it, in its own session, all of which its terminal's Ctrl-C would reach."""
    path = folder / "small.yaml"
    path.write_text(
        yaml.safe_dump(
            small_settings(folder, run={"iterations": 4}, training={"learner": {"ranks": 2}}).model_dump(mode="json")
        )
    )
    launcher = [sys.executable, "-m", "torch.distributed.run", *program.split()] if program else [sys.executable]
    line = [*launcher, str(ROOT / "start_main.py"), "--config", str(path), "--run-dir", str(folder / "run"), *words]
    with (folder / "said").open("ab") as said:
        return subprocess.Popen(line, stdout=said, stderr=said, start_new_session=True, preexec_fn=heed_ctrl_c)


def wait_for_a_checkpoint(folder: Path, process: subprocess.Popen[bytes]) -> None:
    while not list(folder.glob("run/checkpoints/checkpoint-*")):
        assert process.poll() is None, (folder / "said").read_text()
        time.sleep(0.05)


@pytest.mark.slow
@pytest.mark.trial
@pytest.mark.timeout(1200)
def test_ctrl_c_reaches_all_ranks_and_ends_the_run_cleanly(tmp_path: Path) -> None:
    process = started(tmp_path)
    wait_for_a_checkpoint(tmp_path, process)
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait() == 130, (tmp_path / "said").read_text()
    said = (tmp_path / "said").read_text()
    assert "Continue:" in said and "Traceback" not in said
    assert started(tmp_path, "--resume").wait() == 0, (tmp_path / "said").read_text()
    assert not audit(tmp_path / "run").problems


@pytest.mark.slow
@pytest.mark.trial
@pytest.mark.timeout(1200)
def test_torchrun_starts_all_ranks_and_restarts_them_after_a_death(tmp_path: Path) -> None:
    process = started(tmp_path, program=f"--nproc-per-node 2 --max-restarts 2 --master-port {free_port()}")
    wait_for_a_checkpoint(tmp_path, process)
    os.kill(ranks_of(process.pid, "start_main.py")[-1], signal.SIGKILL)
    assert process.wait() == 0, (tmp_path / "said").read_text()
    with read_ledger(tmp_path / "run") as ledger:
        assert len(ledger.iterations()) == 4
    assert not audit(tmp_path / "run").problems
