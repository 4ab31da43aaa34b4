"""The network of the guide to 2048, under the guide's name."""

from torch import nn

from keima.games.twenty48.rules import twenty48
from keima.networks.network import build_network


def ZeroNetwork(height: int = 4, width: int = 4, planes: int = 16, *, filters: int = 64, blocks: int = 5) -> nn.Module:  # noqa: N802
    """Return a new network for 2048 on ``height`` x ``width`` cells, built by ``build_network``.

    Args:
        height: rows of the board.
        width: columns of the board.
        planes: of the observation ``[N, planes, height, width]``: one per tile, the last for all larger tiles too.
        filters: channels of the convolutions.
        blocks: residual blocks.

    Returns:
        A module: observations -> (policy logits ``[N, 4]``, value logits, which its head ``value`` turns into points).

    Raises:
        ValueError, TypeError: the board or the planes are out of range.
    """
    return build_network(twenty48(height=height, width=width, planes=planes), blocks=blocks, channels=filters)
