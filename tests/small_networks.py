"""Small networks, boards and batches for the tests of everything with tensors."""

from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from keima.games import Game, load_game
from keima.games.game import action_table, board_symmetries
from keima.networks.architectures.resnet import ResNet
from keima.networks.architectures.spiking import SpikingResNet
from keima.networks.files.model import canary_positions
from keima.networks.network import build_network
from keima.replay.window import ALL_ROWS, Batch

CONNECT_FOUR = load_game("connect_four")
TIC_TAC_TOE = load_game("tic_tac_toe")


def board_with_pass(size: int = 9, planes: int = 17) -> Game:
    """A game that looks like Go to networks: a board whose points are actions, and one more action. It has no rules."""
    points = board_symmetries(size)
    return replace(
        TIC_TAC_TOE,
        name=f"board{size}",
        num_actions=size * size + 1,
        observation_shape=(planes, size, size),
        point_symmetries=points,
        action_symmetries=action_table(points, planes=1, extra=1),
    )


def positions(game: Game, count: int) -> NDArray[np.float32]:
    """Return observations ``[count, C, H, W]``: of random games if there are rules, otherwise random planes."""
    if game.name in ("connect_four", "tic_tac_toe"):
        return canary_positions(game, count)
    return np.random.default_rng(1).integers(0, 2, (count, *game.observation_shape)).astype(np.float32)


def noted_gradients(network: nn.Module, optimizer: torch.optim.Optimizer) -> list[dict[str, Tensor]]:
    """Return a list that receives the gradients of each step from now on, as the optimizer gets them."""
    found: list[dict[str, Tensor]] = []

    def keep(*_: object) -> None:
        found.append(
            {
                name: parameter.grad.clone()
                for name, parameter in network.named_parameters()
                if parameter.grad is not None
            }
        )

    optimizer.register_step_pre_hook(keep)
    return found


def trained_network(
    game: Game, *, blocks: int = 2, channels: int = 32, global_pooling: bool = True, spread: float = 0.3
) -> ResNet:
    """Return a network that looks trained."""
    torch.manual_seed(1)
    network = build_network(game, blocks=blocks, channels=channels, global_pooling=global_pooling)
    assert isinstance(network, ResNet)
    look_trained(network, spread)
    return network.eval()


def look_trained(network: ResNet | SpikingResNet, spread: float) -> None:
    """Make a network look trained: its norms have statistics, its blocks add something, and it strongly prefers some
    moves.
    """
    with torch.no_grad():
        for module in network.modules():
            if isinstance(module, nn.BatchNorm2d):
                assert module.running_mean is not None and module.running_var is not None
                module.running_mean.normal_(0, 0.2)
                module.running_var.uniform_(0.5, 1.5)
                module.weight.uniform_(0.5, 1)
                module.bias.normal_(0, 0.1)
        for layer in (network.policy.points, network.policy.others, getattr(network.value, "logit", None)):
            if isinstance(layer, nn.Linear):
                layer.weight.normal_(0, spread)


def random_batch(game: Game, count: int) -> Batch:
    """Return positions with one right move each, and outcomes, all at random."""
    rng = np.random.default_rng(2)
    batch = Batch.empty(game, count)
    batch.observations[:] = rng.integers(0, 2, batch.observations.shape)
    batch.legal[:] = rng.random(batch.legal.shape) < 0.7
    batch.legal[:, 0] = True
    right = np.array([rng.choice(np.flatnonzero(row)) for row in batch.legal])
    batch.policies[:] = np.eye(game.num_actions)[right]
    batch.values[:] = rng.choice([-1, 1], count)
    batch.policy_mask[:] = 1
    return batch


class FixedWindow:
    """A replay window with ``size`` random positions."""

    def __init__(self, game: Game, size: int) -> None:
        self.positions = random_batch(game, size)

    def sample(self, count: int, rng_seed: int, *, rows: slice = ALL_ROWS) -> Batch:
        """Draw without replacement."""
        drawn = np.random.default_rng(rng_seed).permutation(len(self.positions.values))[:count][rows]
        return Batch(**{name: array[drawn] for name, array in vars(self.positions).items()})
