"""The policy and value networks by their names in the settings.

Each is called with observations ``[N, C, H, W]`` and gives policy logits ``[N, A]`` and value logits; its part ``value`` is a
``ValueHead``, which says what these mean.
"""

from typing import Any

import torch
from torch import nn

from games.game import Game
from training.resnet import ResNet
from training.spiking import SpikingResNet
from training.value_heads import ValueHead

NETWORKS: dict[str, Any] = {"resnet": ResNet, "spiking": SpikingResNet}


def seed_weights(seed: int) -> None:
    """Let the weights of the networks built from now on follow from ``seed``."""
    torch.manual_seed(seed % 2**63)


def build_network(
    game: Game,
    *,
    type: str = "resnet",
    blocks: int = 6,
    channels: int = 64,
    global_pooling: bool = True,
    time_steps: int | None = None,
) -> nn.Module:
    """A new network for ``game``: observations ``[N, C, H, W]`` -> (policy logits ``[N, A]``, value logits).

    Args:
        time_steps: of a spiking network; None: as many as it has by itself.

    Raises:
        ValueError: there is no such type of network, it takes no time steps, or what it needs is not installed.
    """
    if type not in NETWORKS:
        raise ValueError(f"network.type: there is no network called {type!r}; the networks are {', '.join(sorted(NETWORKS))}")
    if time_steps is not None and type != "spiking":
        raise ValueError(f"network.time_steps: a network of type {type} has no time steps; only one of type spiking has")
    network: nn.Module = NETWORKS[type](
        observation_shape=game.observation_shape,
        num_actions=game.num_actions,
        policy_planes=game.policy_planes,
        blocks=blocks,
        channels=channels,
        global_pooling=global_pooling,
        most_points=game.max_return if game.num_players == 1 else None,
        **({} if time_steps is None else {"time_steps": time_steps}),
    )
    return network


def value_head(network: nn.Module) -> ValueHead:
    """The part of a network that says what its value logits mean."""
    head = network.value
    assert isinstance(head, ValueHead)
    return head
