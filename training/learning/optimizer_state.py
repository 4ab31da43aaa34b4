"""An optimizer at rest, as tensors by name: what a checkpoint keeps of it.

Several ranks may share an optimizer out, so that each remembers its part of the parameters and steps it for all (ZeRO,
arXiv 1910.02054, stage 1). At rest nothing is to be seen of that.
"""

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from training.networks.model_file import read_tree, tree_bytes
from training.ranks.ranks import ALONE, Ranks


def own_part(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """The optimizer of this rank's part of the parameters: of all, unless it is shared out."""
    return getattr(optimizer, "optim", optimizer)


def optimizer_tensors(network: nn.Module, optimizer: torch.optim.Optimizer, ranks: Ranks = ALONE) -> dict[str, Tensor]:
    """What the optimizer remembers of each parameter of the network, under "parameter/key"; if it is shared out, every
    rank asks.
    """
    own = own_part(optimizer)
    tensors = {
        f"{name}/{key}": tensor
        for name, parameter in network.named_parameters()
        for key, tensor in own.state.get(parameter, {}).items()
    }
    if own is optimizer:
        return tensors
    parts = [ranks.broadcast_bytes(tree_bytes(tensors), source=rank) for rank in range(ranks.world_size)]
    return {
        name: tensor
        for rank, part in enumerate(parts)
        for name, tensor in read_tree(part, path=Path(f"rank {rank}")).items()
    }


def restore_optimizer(network: nn.Module, optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Let the optimizer go on from ``optimizer_tensors``, of which it takes its part.

    Raises:
        KeyError: they are of another network.
    """
    optimizer = own_part(optimizer)
    parameters = dict(network.named_parameters())
    indices = {id(p): i for i, p in enumerate(p for group in optimizer.param_groups for p in group["params"])}
    state: dict[int, dict[str, Tensor]] = {}
    for path, tensor in tensors.items():
        name, key = path.rsplit("/", 1)
        parameter = parameters[name]
        if id(parameter) not in indices:  # another rank's
            continue
        if (
            tensor.ndim
        ):  # fused optimizers walk through memory and need the parameter's own order of elements (channels last)
            tensor = torch.empty_like(parameter).copy_(tensor)
        state.setdefault(indices[id(parameter)], {})[key] = tensor
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
