"""The network of the guide to 2048, by its own name, and what settings a network was made with."""

from typing import Any

from torch import nn

from games.twenty48.rules import twenty48
from training.networks.network import build_network
from training.networks.resnet import ResNet
from training.networks.spiking import SpikingResNet


def ZeroNetwork(height: int = 4, width: int = 4, planes: int = 16, *, filters: int = 64, blocks: int = 5) -> nn.Module:  # noqa: N802
    """A new network for 2048 on ``height`` x ``width`` cells: what ``build_network`` makes, in the guide's words.

    Args:
        height: rows of the board. width: columns of the board. planes: of the observation, ``[N, planes, height,
        width]``: one for each size of tile, the last for all larger ones too. filters: channels of the convolutions.
        blocks: residual blocks.

    Returns:
        A module: observations -> (policy logits ``[N, 4]``, value logits, of which ``training.networks.value_heads``
        makes points).

    Raises:
        ValueError, TypeError: the board or the planes are out of range.
    """
    return build_network(twenty48(height=height, width=width, planes=planes), blocks=blocks, channels=filters)


def settings_of_network(network: nn.Module) -> dict[str, Any]:
    """The arguments with which ``build_network`` makes a network like this one, read off its parts.

    Raises:
        ValueError: it is none of ours.
    """
    if not isinstance(network, ResNet | SpikingResNet):
        raise ValueError(
            f"{type(network).__name__} is no network that can be sent to workers: make one by ZeroNetwork or build_network"
        )
    return {
        "type": "resnet" if isinstance(network, ResNet) else "spiking",
        "blocks": len(network.tower),
        "channels": network.stem.conv.out_channels,
        "global_pooling": network.policy.bias is not None,
        **({} if isinstance(network, ResNet) else {"time_steps": network.time_steps}),
    }
