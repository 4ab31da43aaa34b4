"""Two machines train one network together, each with some ranks, as the guide's commands say."""

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from keima.data.records import encode_batch
from tests.lab.hosts import Host, Hosts
from tests.promises.test_distributed_training import (
    CORES,
    FIRST_NODE,
    FIRST_TORCHRUN,
    LOADING,
    SECOND_NODE,
    SECOND_TORCHRUN,
    THIRD_NODE,
    commands,
)
from tests.small_networks import CONNECT_FOUR
from tests.sources import ROOT
from tests.synthetic import synthetic_batch

ADDRESS = "192.168.1.100"  # of the first machine, in the guide
SMALL = ["--game", "connect_four", "--blocks", "1", "--channels", "8", "--batch-size", "50", "--norm-batch", "25"]

pytestmark = [pytest.mark.slow, pytest.mark.trial, pytest.mark.timeout(1200)]


def put_games(host: Host) -> None:
    """Put the same games on every machine."""
    folder = host.home / "data"
    folder.mkdir()
    for seed in range(2):
        (folder / f"batch{seed}.games").write_bytes(encode_batch(synthetic_batch(CONNECT_FOUR, games=10, seed=seed)))
    for path in (folder, *folder.iterdir()):
        path.chmod(0o755)


def typed(text: str, master: str) -> list[str]:
    """Return the guide's command for one of two machines, with the first one's address here, and a small network."""
    (line,) = commands(text)
    words = [*line.replace(ADDRESS, master).split(), *SMALL, "--data", "data", "--save-dir", "saved"]
    places = {name: str(ROOT / name) for name in ("./launch_distributed_training.sh", "train_distributed.py")}
    places["torchrun"] = str(Path(sys.executable).parent / "torchrun")
    return ["env", f"KEIMA_PYTHON={sys.executable}", "OMP_NUM_THREADS=1", *(places.get(word, word) for word in words)]


@pytest.mark.parametrize(("first_line", "second_line"), [(FIRST_NODE, SECOND_NODE), (FIRST_TORCHRUN, SECOND_TORCHRUN)])
def test_two_machines_find_each_other_and_train_one_network(hosts: Hosts, first_line: str, second_line: str) -> None:
    first, second = hosts[0], hosts[1]
    for host in (first, second):
        put_games(host)
    with ThreadPoolExecutor() as pool:
        other = pool.submit(second.run, typed(second_line, first.address), seconds=900)
        done = first.run(typed(first_line, first.address), seconds=900)
        said = other.result()
    assert done.returncode == 0, done.stdout + done.stderr + said.stderr
    assert said.returncode == 0, said.stderr
    ranks = 2 * min(8, CORES)
    assert f"{ranks} ranks by gloo on cpu, batch 50: " in done.stdout and "is over: mean loss" in done.stdout
    assert "loss" not in said.stdout  # only rank 0 prints and saves
    saved = first.home / "saved" / "AlphaZeroNet_1x8_distributed.pt"
    assert torch.load(saved, weights_only=True)["random"]["torch"].shape[0] == ranks
    assert not (second.home / "saved").exists()


def test_a_machine_whose_first_one_does_not_come_says_so(hosts: Hosts) -> None:
    """The guide's third machine."""
    third = hosts[2]
    put_games(third)
    refused = third.run(["env", "NCCL_TIMEOUT=3", *typed(THIRD_NODE, hosts[0].address)], seconds=300)
    lines = refused.stderr.removeprefix(LOADING).splitlines()
    assert refused.returncode == 2 and len(lines) == 2, refused.stderr
    assert lines[0] == f"waiting for rank 0 at {hosts[0].address} port 12355, up to 3 s"
    assert lines[1].startswith(
        f"train_distributed.py: nobody answers at --master-addr {hosts[0].address}, --master-port 12355: "
    )
