"""The ranks of a small PPO training, for their test: ``python -m tests.ppo.ppo_rank_program FOLDER WORLD_SIZE
PORT``.
"""

import os
import sys
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from keima.base.random import seed_stream
from keima.learning.ranks.process_group import RankInfo, Ranks, join_ranks
from keima.networks.files.weights_file import save_weights
from keima.ppo.actor_critic import ActorCritic
from keima.ppo.settings import PPOSettings, TradingSettings
from keima.ppo.trainer import PPOTrainer
from keima.ppo.worlds.trading import TradingMarkets

WORLDS, EPISODES = 6, 18
SETTINGS = PPOSettings(
    num_steps=8, sequence_length=4, epochs=2, minibatches=3, learning_rate_actor=1e-4, learning_rate_critic=1e-4
)


def train(ranks: Ranks) -> dict[str, Tensor]:
    """Return the final state of this many ranks that have ``WORLDS`` worlds together."""
    count = WORLDS // ranks.world_size
    seeds = [seed_stream("world", ranks.rank * count + b) for b in range(count)]
    worlds = TradingMarkets(np.array(seeds, np.uint64), TradingSettings(window=6))
    torch.manual_seed(3)
    network = ActorCritic(worlds.observation_size, worlds.num_actions, lstm_size=8, hidden=(5,))
    trainer = PPOTrainer(network, worlds, SETTINGS, seed=1, episodes=EPISODES, ranks=ranks)
    last = trainer.run()
    assert last and last.episodes_over == EPISODES
    said = [
        last.learning["loss"],
        last.learning["approx_kl"],
        last.explained_variance,
        last.episodes.rewards,
        last.total_steps,
    ]
    episodes = last.episodes
    said += [episodes.count, episodes.steps, episodes.metrics["won"], episodes.metrics["closed"]]
    return {**network.state_dict(), "metrics": torch.tensor(said)}


def main() -> None:
    """Run the ranks, as processes that share what has been imported."""
    folder, world_size, port = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(1)
    children = []
    for rank in range(world_size):
        child = os.fork()
        if child == 0:
            place = RankInfo(rank=rank, world_size=world_size, local_rank=0, master_addr="localhost", master_port=port)
            with join_ranks(place, device="cpu") as ranks:
                save_weights(folder / f"rank{rank}.pth", train(ranks))
            sys.exit()
        children.append(child)
    sys.exit(max(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children))


if __name__ == "__main__":
    main()
