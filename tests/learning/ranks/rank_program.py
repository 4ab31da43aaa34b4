"""Small trainings by several ranks, for their tests.

Start them by ``python -m tests.learning.ranks.rank_program FOLDER RANKS JOB...``. Each rank of a job writes its final
state to FOLDER/JOB, as a state dictionary.
"""

import importlib
import os
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from keima.learning.learner import Learner, copy_to_device
from keima.learning.optimizer_state import local_optimizer
from keima.learning.plain_optimizers import AdamW
from keima.learning.ranks.process_group import RankInfo, Ranks, join_ranks
from keima.learning.ranks.rank_norm import GroupLayout, replace_batch_norms
from keima.learning.ranks.total_batch import PartRows, split_into_parts
from keima.learning.update_step import Losses, UpdateStep
from keima.networks.files.weights_file import save_weights
from keima.networks.network import build_network, seed_weights
from tests.small_networks import CONNECT_FOUR, FixedWindow, noted_gradients

STEPS = 20
GENTLE = {
    "optimizer": "sgd",
    "learning_rate": 0.001,
}  # AdamW, or larger steps, magnify a float32's last bit in each step
JOBS: dict[str, dict[str, Any]] = {  # the learner's settings
    "whole": {"batch_size": 48, **GENTLE},
    "groups": {"batch_size": 50, "norm_batch": 20, "micro_batch": 5, **GENTLE},
    "gradients": {"batch_size": 50, "norm_batch": 25},
    "sharded": {"batch_size": 50, "shard_optimizer": True},
    "not sharded": {"batch_size": 50},
    "sharded muon": {"batch_size": 50, "optimizer": "muon", "shard_optimizer": True},
    "not sharded muon": {"batch_size": 50, "optimizer": "muon"},
}


def train(job: str, ranks: Ranks) -> dict[str, Tensor]:
    """Return the job's result: weights after some steps, or gradients of the first one."""
    seed_weights(7)
    if job == "float64":
        return train_in_float64(ranks)
    network = build_network(CONNECT_FOUR, blocks=1, channels=16)
    learner = Learner(network, device="cpu", mixed_precision=False, ranks=ranks, **JOBS[job])
    window = FixedWindow(CONNECT_FOUR, 400)
    if job == "gradients":
        return first_gradients(learner, window)
    if "sharded" in job:
        return what_is_remembered(learner, window)
    learner.train(window, STEPS, 3)
    return {**learner.network.state_dict(), **{f"average.{name}": tensor for name, tensor in learner.weights().items()}}


def train_in_float64(ranks: Ranks) -> dict[str, Tensor]:
    """Return AdamW's final weights, with shares of unequal size, in numbers so precise that rounding stays small."""
    network = nn.Sequential(
        nn.Conv2d(2, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 3), nn.BatchNorm2d(4), nn.Tanh()
    ).double()
    layout = GroupLayout(ranks)
    replace_batch_norms(network, layout)
    step = UpdateStep(network, AdamW(network.parameters(), lr=0.01), clip_norm=0.1, mixed_precision=False, ranks=ranks)
    parts = split_into_parts(31, norm_batch=16, micro_batch=3, rank=ranks.rank, world_size=ranks.world_size)
    generator = torch.Generator().manual_seed(1)
    for _ in range(STEPS):
        rows = torch.randn(31, 2, 6, 6, generator=generator, dtype=torch.float64)[ranks.own_rows]

        def losses(part: PartRows, rows: Tensor = rows) -> Losses:
            layout.sizes, layout.totals = part.sizes, part.totals
            return Losses((network(rows[part.rows]) - rows[part.rows, :1, :2, :2]).square().mean(), {})

        step(losses, parts, shares=[part.count / 31 for part in parts])
    return network.state_dict()


def what_is_remembered(learner: Learner, window: FixedWindow) -> dict[str, Tensor]:
    """Return the state of a learner that was saved and restored, and how many numbers its own optimizer holds."""
    learner.train(window, 5, 3)
    learner.restore(learner.state())
    learner.train(window, 5, 3)
    held = [
        tensor.numel() for tensors in local_optimizer(learner.optimizer).state.values() for tensor in tensors.values()
    ]
    tensors = {
        f"{group}.{name}": tensor for group, named in learner.state().tensors.items() for name, tensor in named.items()
    }
    return {**tensors, "held": torch.tensor(float(sum(held)))}


def first_gradients(learner: Learner, window: FixedWindow) -> dict[str, Tensor]:
    """Return the gradients of the first step, as the optimizer gets them."""
    found = noted_gradients(learner.network, learner.optimizer)
    learner.update_step.clip_norm = 1e9
    batch = window.sample(learner.batch_size, 5, rows=learner.ranks.own_rows)
    learner.descend(copy_to_device(batch, learner.device), total=learner.batch_size)
    return found[0]


def free_port() -> int:
    """Return a port of this machine that is free."""
    with socket.socket() as listener:
        listener.bind(("localhost", 0))
        port: int = listener.getsockname()[1]
        return port


def run(jobs: Sequence[str], folder: Path, count: int) -> int:
    """Run the ranks, as processes that share what has been imported, and all jobs one after the other in them; return
    the worst exit code.
    """
    if any(JOBS.get(job, {}).get("shard_optimizer") for job in jobs):
        importlib.import_module("torch._dynamo")  # as sharded optimizers do: once, and not in every rank

    port, children = free_port(), []
    for rank in range(count):
        child = os.fork()
        if child == 0:
            with join_ranks(RankInfo(rank=rank, world_size=count, master_port=port), device="cpu") as ranks:
                for job in jobs:
                    (folder / job).mkdir(exist_ok=True)
                    save_weights(folder / job / f"rank{rank}.pth", train(job, ranks))
            sys.exit()
        children.append(child)
    return max(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children)


def main() -> None:
    """Run the jobs."""
    folder, count, *jobs = sys.argv[1:]
    torch.set_num_threads(1)
    sys.exit(run(jobs, Path(folder), int(count)))


if __name__ == "__main__":
    main()
