"""A small PPO run on markets, with the files that it leaves."""

import io
from pathlib import Path

import numpy as np
import torch
from rich.console import Console

from keima.base.random import seed_stream
from keima.ppo.actor_critic import ActorCritic
from keima.ppo.observers import ppo_observers
from keima.ppo.settings import PPOSettings, TradingSettings
from keima.ppo.trainer import PPOTrainer
from keima.ppo.worlds.trading import TradingMarkets

SETTINGS = PPOSettings(num_steps=16, sequence_length=4, epochs=2, minibatches=2, target_kl=0)
WORLDS = 4


def leave_a_run(folder: Path, *, episodes: int = 16, window: int = 16) -> tuple[TradingMarkets, str]:
    """Train, and return the markets and the output."""
    seeds = np.array([seed_stream("world", b) for b in range(WORLDS)], np.uint64)
    markets = TradingMarkets(seeds, TradingSettings(window=window))
    torch.manual_seed(1)
    network = ActorCritic(markets.observation_size, markets.num_actions, lstm_size=8, hidden=(5,))
    console = Console(file=io.StringIO())
    observers = ppo_observers(folder, console, markets, every=4, device="GPUs")
    PPOTrainer(network, markets, SETTINGS, seed=1, episodes=episodes, observers=observers).run()
    for observer in observers:
        observer.close()
    assert isinstance(console.file, io.StringIO)
    return markets, console.file.getvalue()
