"""Enlarge a network without changing its answers.

New blocks begin as the identity, as in a new tower. New channels get the features that a new network would have, but
nothing reads them yet: weights from new channels to old ones are zero, so that old channels keep their values (as in
Chen, Goodfellow and Shlens, "Net2Net", arXiv 1511.05641, with zeros in place of copies). They learn from the first step
on, because their own weights are not zero.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

# Inputs or outputs of a layer that come in several equal parts, each of which grows at its end: (dimension, parts).
PARTS = {
    ".bias.weight": (1, 3),  # of a block that pools: means, scaled means, maxima
    ".scale_and_bias.weight": (0, 2),
    ".scale_and_bias.bias": (0, 2),
}
SGD_BUFFER = "momentum_buffer"
SQUARES = "exp_avg_sq"  # Adam's


def enlarge_weights(old: Mapping[str, Tensor], network: nn.Module) -> dict[str, Tensor]:
    """Return the state dictionary of ``network``, new and larger, with which it answers as the one of ``old`` does.

    Raises:
        ValueError: it is not the same network with more blocks or channels.
    """
    check_is_larger(old, network)
    return {
        name: _enlarge(name, old[name], tensor) if name in old else tensor.clone()
        for name, tensor in network.state_dict().items()
    }


def enlarge_optimizer_state(old: Mapping[str, Tensor], network: nn.Module) -> dict[str, Tensor]:
    """Return an optimizer's state, "parameter/key" -> tensor, with zeros for what is new in ``network``.

    But new entries of an enlarged tensor have the mean of the old squared gradients. Adam counts steps for each tensor,
    so with zeros their first steps would be many times as long as the others.
    """
    parameters = dict(network.named_parameters())
    added: dict[str, Tensor] = {}
    if {path.rsplit("/", 1)[1] for path in old} == {SGD_BUFFER}:  # SGD wants it for all parameters or for none
        added = {f"{name}/{SGD_BUFFER}": torch.zeros_like(parameter) for name, parameter in parameters.items()}
    return added | {
        path: _enlarge_moment(path, tensor, parameters) if tensor.ndim else tensor for path, tensor in old.items()
    }


def _enlarge_moment(path: str, old: Tensor, parameters: Mapping[str, Tensor]) -> Tensor:
    name, key = path.rsplit("/", 1)
    fill = float(old.mean()) if key == SQUARES else 0.0
    return _enlarge(name, old, torch.full_like(parameters[name], fill), fill=fill)


def check_is_larger(old: Mapping[str, Tensor], network: nn.Module) -> None:
    """Check that ``network`` is the one of ``old`` with more blocks or channels.

    Raises:
        ValueError: it is not.
    """
    new = network.state_dict()
    missing = [name for name in old if name not in new]
    smaller = [
        name
        for name, tensor in old.items()
        if name in new
        and (tensor.ndim != new[name].ndim or any(a > b for a, b in zip(tensor.shape, new[name].shape, strict=True)))
    ]
    if missing or smaller:
        raise ValueError(f"a network grows only by blocks and channels: {(missing + smaller)[0]} would not fit")


def _enlarge(name: str, old: Tensor, new: Tensor, *, fill: float = 0.0) -> Tensor:
    """Return ``new`` with ``old`` in its leading corner, or in that of each part; ``fill`` from new inputs to old
    outputs.

    Args:
        name: of the tensor.
        old: its values.
        new: the values of what is added.
        fill: instead of these.
    """
    dimension, count = next((found for end, found in PARTS.items() if name.endswith(end)), (0, 1))
    grown = new.detach().clone()
    parts = zip(old.chunk(count, dimension), grown.chunk(count, dimension), strict=True) if old.ndim else [(old, grown)]
    for before, after in parts:
        corner = after[tuple(slice(size) for size in before.shape)]
        if before.ndim > 1:
            after[: len(before)] = fill
        corner.copy_(before)
    return grown
