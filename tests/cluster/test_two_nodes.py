"""Two machines train one network together, each with a rank."""

import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from tests.cluster.hosts import Host, Hosts
from tests.sources import ROOT
from tests.training.networks import CONNECT_FOUR
from tests.training.synthetic import synthetic_batch
from training.records import encode

PORT = 12355
SMALL = ["--game", "connect_four", "--blocks", "1", "--channels", "8", "--device", "cpu", "--batch-size", "50", "--norm-batch", "25"]

pytestmark = [pytest.mark.slow, pytest.mark.trial, pytest.mark.timeout(1200)]


def put_games(host: Host) -> None:
    """The same games on every machine."""
    folder = host.home / "data"
    folder.mkdir()
    for seed in range(2):
        (folder / f"batch{seed}.games").write_bytes(encode(synthetic_batch(CONNECT_FOUR, games=10, seed=seed)))
    for path in (folder, *folder.iterdir()):
        path.chmod(0o755)


def launch(host: Host, number: int, master: str) -> list[str]:
    """The launcher on one of two machines."""
    line = [str(ROOT / "launch_distributed_training.sh"), "--gpus", "1", "--nodes", "2", "--node-rank", str(number)]
    line += ["--master-addr", master, "--master-port", str(PORT), *SMALL, "--", "--data", "data", "--save-dir", "saved"]
    return ["env", f"KEIMA_PYTHON={sys.executable}", "OMP_NUM_THREADS=1", *line]


def test_two_machines_find_each_other_and_train_one_network(hosts: Hosts) -> None:
    first, second = hosts[0], hosts[1]
    for host in (first, second):
        put_games(host)
    with ThreadPoolExecutor() as pool:
        other = pool.submit(second.run, launch(second, 1, first.address), seconds=900)
        done = first.run(launch(first, 0, first.address), seconds=900)
        said = other.result()
    assert done.returncode == 0, done.stdout + done.stderr + said.stderr
    assert said.returncode == 0, said.stderr
    assert "2 ranks by gloo on cpu, batch 50: 25 a rank" in done.stdout and "is over: mean loss" in done.stdout
    assert "loss" not in said.stdout  # only rank 0 prints, and saves
    saved = first.home / "saved" / "AlphaZeroNet_1x8_distributed.pt"
    assert torch.load(saved, weights_only=True)["random"]["torch"].shape[0] == 2
    assert not (second.home / "saved").exists()
