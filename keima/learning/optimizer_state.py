"""The state of an optimizer as tensors by name, for checkpoints.

Several ranks may shard an optimizer: each holds the state of its part of the parameters and steps that part for all
(ZeRO, arXiv 1910.02054, stage 1). The saved state does not depend on sharding.
"""

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from keima.learning.ranks.process_group import ALONE, Ranks
from keima.networks.files.weights_file import decode_tree, encode_tree


def local_optimizer(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """Return the optimizer of this rank's part of the parameters; of all parameters if it is not sharded."""
    return getattr(optimizer, "optim", optimizer)


def gather_optimizer_tensors(
    network: nn.Module, optimizer: torch.optim.Optimizer, ranks: Ranks = ALONE
) -> dict[str, Tensor]:
    """Return the optimizer's state for each parameter of the network, as "parameter/key"; with a sharded optimizer all
    ranks must call this.
    """
    own = local_optimizer(optimizer)
    tensors = {
        f"{name}/{key}": tensor
        for name, parameter in network.named_parameters()
        for key, tensor in own.state.get(parameter, {}).items()
    }
    if own is optimizer:
        return tensors
    parts = [ranks.broadcast_bytes(encode_tree(tensors), source=rank) for rank in range(ranks.world_size)]
    return {
        name: tensor
        for rank, part in enumerate(parts)
        for name, tensor in decode_tree(part, path=Path(f"rank {rank}")).items()
    }


def restore_optimizer(network: nn.Module, optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Restore the optimizer from ``gather_optimizer_tensors``, of which this rank takes its part.

    Raises:
        KeyError: they belong to another network.
    """
    optimizer = local_optimizer(optimizer)
    parameters = dict(network.named_parameters())
    indices = {id(p): i for i, p in enumerate(p for group in optimizer.param_groups for p in group["params"])}
    state: dict[int, dict[str, Tensor]] = {}
    for path, tensor in tensors.items():
        name, key = path.rsplit("/", 1)
        parameter = parameters[name]
        if id(parameter) not in indices:  # another rank's
            continue
        if tensor.ndim:  # fused optimizers need the parameter's own memory order (channels last)
            tensor = torch.empty_like(parameter).copy_(tensor)
        state.setdefault(indices[id(parameter)], {})[key] = tensor
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
