"""The contract of networks: what the learner, the evaluator and model files rely on."""

from typing import Any, Protocol, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from keima.base.reports.run_reports import SpikeReport
from keima.networks.value_heads import ValueHead


class Runtime(Protocol):
    """A way to run a network on one device with one number type."""

    def describe(self) -> str:
        """Return a text for people and logs, such as "fused bfloat16 on cpu"."""

    def load(self, network: nn.Module) -> None:
        """Switch to the weights of ``network``, which is in evaluation mode, and folded if it folds."""

    def run(self, observations: NDArray[np.float32], count: int) -> tuple[Tensor, Tensor]:
        """Return policy logits ``[count, A]`` and as many value logits; rows after the observations ``[n, C, H, W]``
        are padding.
        """


class PolicyValueNetwork(Protocol):
    """A network as the rest of the program sees it: an ``nn.Module`` with these members.

    Attributes:
        value: the value head, which turns value logits into values and losses.
        runtime_dtype: the number type that evaluation needs; None: the fastest of the device.
        folds_on_cuda: whether batch norms are merged into convolutions on CUDA devices, as always on CPUs.
    """

    value: ValueHead
    runtime_dtype: torch.dtype | None
    folds_on_cuda: bool

    def __call__(self, observations: Tensor) -> tuple[Tensor, Tensor]:
        """Map observations ``[N, C, H, W]`` to policy logits ``[N, A]`` and value logits."""

    def settings(self) -> dict[str, Any]:
        """Return the arguments of ``build_network`` that build a network of this shape, without auxiliary heads."""

    def runtime(self, observation_shape: tuple[int, int, int], dtype: torch.dtype) -> Runtime | None:
        """Return a runtime that is faster than plain torch on this CPU, for the folded network in evaluation mode; or
        None.
        """

    def statistics(self, observations: Tensor) -> SpikeReport | None:
        """Return the network's activity on observations ``[N, C, H, W]``, in evaluation mode; or None."""


class OwnNetwork(nn.Module):
    """The base of a user's own network: define ``forward`` as ``PolicyValueNetwork`` says, and in ``__init__`` a
    ``value`` head, made by ``make_value_head`` (keima/networks/value_heads.py) or your own.

    It runs in plain torch, in the fastest number type of the device. The other members have defaults here.
    """

    value: ValueHead
    runtime_dtype: torch.dtype | None = None
    folds_on_cuda = False

    def __init__(self) -> None:
        super().__init__()
        self.arguments: dict[str, Any] = {}  # of ``build_network``, which sets them

    def settings(self) -> dict[str, Any]:
        """See ``PolicyValueNetwork``."""
        return self.arguments

    def runtime(self, observation_shape: tuple[int, int, int], dtype: torch.dtype) -> Runtime | None:
        """Return None."""
        return None

    def statistics(self, observations: Tensor) -> SpikeReport | None:
        """Return None."""
        return None


MEMBERS = ("value", "runtime_dtype", "folds_on_cuda", "settings", "runtime", "statistics")


def as_policy_value_network(module: nn.Module) -> PolicyValueNetwork:
    """Return the module as a ``PolicyValueNetwork``.

    Raises:
        ValueError: it lacks a member of the protocol.
    """
    missing = [name for name in MEMBERS if not hasattr(module, name)]
    if missing:
        raise ValueError(
            f"{type(module).__name__} is not a network that can be sent to workers: make one with ZeroNetwork or "
            f"build_network"
        )
    return cast(PolicyValueNetwork, module)
