"""Networks in which points attend to points: a transformer, and a residual network with attention between its blocks.

Sources: Vaswani and others (arXiv 1706.03762) for attention; LeViT (Graham and others, arXiv 2104.01136) for its form
here: projections are convolutions of 1x1 with batch norm, which evaluation merges into them, and a learned bias for
each offset between two points takes the place of a position embedding.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

from training.networks.layers import Block, ConvNorm
from training.networks.resnet import ResNet, TowerShape

HEAD_WIDTH = 16  # numbers of a query, a key and a value
HIDDEN_RATIO = 2  # of the transformer's hidden layer to its channels


class Attention(nn.Module):
    """Every point of the board attends to all points, with a bias that depends on how far, and where, a point lies.

    The last norm starts at zero, so that new attention adds nothing. The biases are one row of numbers, because
    matrices are decayed, orthogonalized by Muon, and shortened in model files.
    """

    def __init__(self, channels: int, board: tuple[int, int]) -> None:
        super().__init__()
        height, width = board
        self.heads = max(1, channels // HEAD_WIDTH)
        inner = self.heads * HEAD_WIDTH
        self.queries_keys_values = ConvNorm(channels, 3 * inner, 1)
        self.offsets = nn.Parameter(torch.zeros(self.heads * (2 * height - 1) * (2 * width - 1)))
        self.out = ConvNorm(inner, channels, 1)
        nn.init.zeros_(self.out.norm.weight)  # type: ignore[arg-type]

    def forward(self, x: Tensor) -> Tensor:
        """``[N, C, H, W]`` -> what is to be added, of the same shape."""
        height, width = x.shape[2:]
        projected = self.queries_keys_values(x).permute(0, 2, 3, 1).flatten(1, 2)  # [N, P, 3 * heads * HEAD_WIDTH]
        queries, keys, values = projected.unflatten(2, (3, self.heads, HEAD_WIDTH)).permute(2, 0, 3, 1, 4)
        bias = self.position_bias(height, width).to(queries.dtype)[None]  # with this axis torch fuses it all
        if torch.is_grad_enabled():  # not all of torch's fused kernels have a gradient for the bias
            scores = queries @ keys.transpose(2, 3) * HEAD_WIDTH**-0.5 + bias
            seen = torch.softmax(scores, 3) @ values
        else:
            seen = functional.scaled_dot_product_attention(queries, keys, values, attn_mask=bias)
        return self.out(seen.permute(0, 1, 3, 2).reshape(len(x), -1, height, width))

    def position_bias(self, height: int, width: int) -> Tensor:
        """The biases of all pairs of points, ``[heads, P, P]``, by views alone: nothing is copied to a device."""
        table = self.offsets.view(self.heads, 2 * height - 1, 2 * width - 1)
        windows = table.unfold(1, height, 1).unfold(2, width, 1)  # of the last point first: its offsets are the least
        return windows.flip(1, 2).flatten(1, 2).flatten(2)


class TransformerBlock(nn.Module):
    """Attention, then a hidden layer at each point, each with a skip connection."""

    def __init__(self, channels: int, board: tuple[int, int]) -> None:
        super().__init__()
        self.attention = Attention(channels, board)
        self.hidden = ConvNorm(channels, HIDDEN_RATIO * channels, 1)
        self.out = ConvNorm(HIDDEN_RATIO * channels, channels, 1)
        nn.init.zeros_(self.out.norm.weight)  # type: ignore[arg-type]

    def forward(self, x: Tensor) -> Tensor:
        """``[N, C, H, W]`` -> the same shape."""
        x = x + self.attention(x)
        return x + self.out(torch.relu(self.hidden(x)))


class AttendingBlock(nn.Module):
    """A residual block, then attention with a skip connection."""

    def __init__(self, channels: int, board: tuple[int, int], *, squeeze_excitation: bool) -> None:
        super().__init__()
        self.block = Block(channels, squeeze_excitation=squeeze_excitation)
        self.attention = Attention(channels, board)

    def forward(self, x: Tensor) -> Tensor:
        """``[N, C, H, W]`` -> the same shape."""
        x = self.block(x)
        return torch.relu(x + self.attention(x))


class Transformer(ResNet):
    """A transformer over the points of the board, after a convolution of 3x3. Its weights fit one board size."""

    kind = "transformer"

    def make_tower(self, shape: TowerShape) -> nn.Sequential:
        """See ``ResNet``."""
        return nn.Sequential(*(TransformerBlock(shape.channels, shape.board) for _ in range(shape.blocks)))


class AttentionNet(ResNet):
    """A residual network in which every block is followed by attention, not every third by global pooling. Its weights
    fit one board size.
    """

    kind = "attention"

    def make_tower(self, shape: TowerShape) -> nn.Sequential:
        """See ``ResNet``."""
        return nn.Sequential(
            *(
                AttendingBlock(shape.channels, shape.board, squeeze_excitation=shape.squeeze_excitation)
                for _ in range(shape.blocks)
            )
        )
