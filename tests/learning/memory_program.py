"""A learner with less memory than a whole batch needs.

    python -m tests.learning.memory_program MEGABYTES

It prints how many positions it finally takes at once, and its last loss.
"""

import resource
import sys
from pathlib import Path

import torch

from keima.learning.learner import Learner
from keima.networks.network import build_network, seed_weights
from tests.small_networks import CONNECT_FOUR, FixedWindow

BATCH = 4096


def train(megabytes: int | None) -> tuple[int | None, float]:
    """Return the positions at once and the loss of a step with this many megabytes more than are used now; None:
    without a limit.
    """
    seed_weights(1)
    network = build_network(CONNECT_FOUR, blocks=1, channels=32)
    learner = Learner(
        network,
        device="cpu",
        batch_size=BATCH,
        norm_batch=64,
        mixed_precision=False,
        optimizer="sgd",
        learning_rate=1e-3,
    )
    window = FixedWindow(CONNECT_FOUR, BATCH)
    learner.train(window, 1, 3, batch_size=64)  # so that the memory that any step needs is allocated
    if megabytes is not None:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
        most = pages * resource.getpagesize() + megabytes * 2**20
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
    loss = learner.train(window, 1, 3).loss
    return learner.micro_batch, loss


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.stdout.write(" ".join(map(str, train(int(sys.argv[1])))))
