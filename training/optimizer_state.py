"""An optimizer at rest, as tensors by name: what a checkpoint keeps of it."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn


def optimizer_tensors(network: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """What the optimizer remembers of each parameter of the network, under "parameter/key"."""
    return {
        f"{name}/{key}": tensor
        for name, parameter in network.named_parameters()
        for key, tensor in optimizer.state.get(parameter, {}).items()
    }


def restore_optimizer(network: nn.Module, optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Let the optimizer go on from ``optimizer_tensors``.

    Raises:
        KeyError: they are of another network.
    """
    parameters = dict(network.named_parameters())
    indices = {id(p): i for i, p in enumerate(p for group in optimizer.param_groups for p in group["params"])}
    state: dict[int, dict[str, Tensor]] = {}
    for path, tensor in tensors.items():
        name, key = path.rsplit("/", 1)
        parameter = parameters[name]
        if tensor.ndim:  # fused optimizers walk through memory and need the parameter's own order of elements (channels last)
            tensor = torch.empty_like(parameter).copy_(tensor)
        state.setdefault(indices[id(parameter)], {})[key] = tensor
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
