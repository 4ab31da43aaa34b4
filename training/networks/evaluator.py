"""The network as search sees it: observations in, policy logits and values out.

One ``Evaluator`` answers ``evaluate(observations [N, C, H, W]) -> (policy_logits [N, A], values [N])`` for any batch up
to its ``max_batch``; no row ever depends on another. On a CPU it runs a residual network through fused operators where
that works (training/networks/fused.py), a spiking one by its spikes (training/networks/event_driven.py), else through
torch; on a CUDA device through torch as one captured graph per batch size.
"""

import copy
import ctypes
import logging
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from games.game import Game
from training.networks.event_driven import EventDrivenNetwork
from training.networks.fused import Arithmetic, Bfloat16, Float32, FusedResNet
from training.networks.network import value_head
from training.networks.resnet import ConvNorm, ResNet
from training.networks.spiking import SpikingResNet

log = logging.getLogger(__name__)

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # glibc's malloc.h
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


class Runtime(Protocol):
    """A way to run a network on one device in one type of number."""

    def describe(self) -> str:
        """For people and logs."""

    def load(self, network: nn.Module) -> None:
        """Run with the weights of ``network``, in evaluation mode and ``ready``, from now on."""

    def run(self, observations: NDArray[np.float32], count: int) -> tuple[Tensor, Tensor]:
        """Policy logits ``[count, A]`` and as many value logits; rows beyond the observations ``[n, C, H, W]`` are
        padding.
        """


class Evaluator:
    """A network that is ready to play.

    Args:
        network: its weights are copied. game: what it plays. device: "auto" (a CUDA device where there is one), "cpu",
        "cuda", "cuda:1", ... dtype: "auto" (bfloat16 where the device is fast in it and the network bears it),
        "float32", "bfloat16" or "float16". max_batch: no batch is larger. fused: whether to use what is faster than
        torch's ordinary operators on a CPU, where it works. graphs: whether to capture CUDA graphs on a CUDA device.

    Raises:
        ValueError: there is no such device or type of number.
    """

    def __init__(
        self,
        network: nn.Module,
        game: Game,
        *,
        device: str = "auto",
        dtype: str = "auto",
        max_batch: int = 256,
        fused: bool = True,
        graphs: bool = True,
    ) -> None:
        if dtype != "auto" and dtype not in DTYPES:
            raise ValueError(f"there is no dtype {dtype!r} for evaluation; use auto, {', '.join(DTYPES)}")
        keep_freed_memory()
        where = pick_device(device)
        what = suitable_dtype(network, where) if dtype == "auto" else DTYPES[dtype]
        self.game = game
        self.max_batch = max_batch
        self._network = copy.deepcopy(network).cpu().eval().requires_grad_(False)
        self._device = where
        self._runtime = pick_runtime(ready(self._network, where), game, where, what, fused=fused, graphs=graphs)

    def describe(self) -> str:
        """How the network is run, such as "fused bfloat16 on cpu"."""
        return self._runtime.describe()

    def load(self, weights: Mapping[str, Tensor]) -> None:
        """Play with these weights (a state dictionary of the network) from now on.

        Raises:
            ValueError: they belong to another network; the old ones stay.
        """
        network = copy.deepcopy(self._network)
        try:
            network.load_state_dict(weights)
        except RuntimeError as error:
            raise ValueError(f"these weights belong to another network: {error}") from error
        self._network = network
        self._runtime.load(ready(network, self._device))

    def __call__(self, observations: NDArray[np.float32]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Evaluate positions.

        Args:
            observations: float32 ``[N, C, H, W]``, N from 0 to ``max_batch``.

        Returns:
            Policy logits float32 ``[N, A]`` and values float32 ``[N]`` for the player to move, in [-1, 1] or in points,
            in memory of their own.

        Raises:
            ValueError: there are too many rows, or they are not observations of this game.
        """
        count = len(observations)
        if (
            observations.shape[1:] != self.game.observation_shape
            or count > self.max_batch
            or observations.dtype != np.float32
        ):
            wanted = f"float32 [up to {self.max_batch}, {', '.join(map(str, self.game.observation_shape))}]"
            raise ValueError(f"observations must be {wanted}, not {observations.dtype} {list(observations.shape)}")
        if count == 0:
            return np.empty((0, self.game.num_actions), np.float32), np.empty(0, np.float32)
        with torch.inference_mode():
            logits, value_logits = self._runtime.run(observations, padded(count))
            return logits[:count].numpy(), value_head(self._network).values(value_logits[:count]).numpy()


def padded(count: int) -> int:
    """The batch size at which ``count`` rows are run: ``count`` rounded up to six binary digits, so at most 3 % more.

    A new size costs some 10 ms at first (oneDNN, CUDA graphs); rounded, there are only 32 between a power of two and
    the next.
    """
    step: int = 2 ** max(0, count.bit_length() - 6)
    return -(-count // step) * step


def keep_freed_memory() -> None:
    """Tell the C library to keep what is freed, up to a gigabyte, where it is glibc.

    A network takes and frees the same megabytes at each call. Each time they go back to the system and come again page
    by page, which costs a tenth of a training step and of a large batch's evaluation.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, 32 * 2**20)
        mallopt(M_TRIM_THRESHOLD, 2**30)


def use_threads(count: int) -> None:
    """Let networks on the CPU of this process compute with ``count`` threads."""
    torch.set_num_threads(count)


def pick_device(name: str) -> torch.device:
    """The device called ``name``; "auto" is a CUDA device where there is one, else the CPU.

    Raises:
        ValueError: there is no such device here.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ValueError(f"there is no device {name!r} here; use auto or cpu: {error}") from error
    return device


def count_gpus() -> int:
    """How many CUDA devices this process sees."""
    return torch.cuda.device_count()


def fast_dtype(device: torch.device) -> torch.dtype:
    """The shortest type of number in which ``device`` multiplies fast."""
    if device.type == "cuda":
        return torch.bfloat16 if torch.cuda.is_bf16_supported(including_emulation=False) else torch.float16
    names = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    fast = any(getattr(torch.cpu, name, bool)() for name in names)
    return torch.bfloat16 if fast and device.type == "cpu" else torch.float32


def suitable_dtype(network: nn.Module, device: torch.device) -> torch.dtype:
    """The shortest type of number in which ``device`` multiplies fast and ``network`` still says the same.

    In a spiking network a rounded current decides whether a neuron fires, and a few per cent of its answers become
    others.
    """
    return torch.float32 if isinstance(network, SpikingResNet) else fast_dtype(device)


def ready(network: nn.Module, device: torch.device) -> nn.Module:
    """A copy of a network in evaluation mode as it is run on ``device``: folded, but for spiking networks on CUDA
    devices.

    There, float32 convolutions round their weights to 11 bits (TF32). Those of a model that has travelled have 8 and
    are not changed, so with spikes every product is exact; merged with norms they would have more.
    """
    if isinstance(network, SpikingResNet) and device.type == "cuda":
        return copy.deepcopy(network)
    return folded(network)


def folded(network: nn.Module) -> nn.Module:
    """A copy of a network in evaluation mode whose batch norms are merged into their convolutions."""
    network = copy.deepcopy(network)
    for module in network.modules():
        if isinstance(module, ConvNorm):
            module.fold()
    return network


def pick_runtime(
    network: nn.Module, game: Game, device: torch.device, dtype: torch.dtype, *, fused: bool, graphs: bool
) -> Runtime:
    """The fastest way to run a folded network on ``device`` in ``dtype``."""
    if device.type == "cpu" and fused and isinstance(network, ResNet) and dtype != torch.float16:
        arithmetic = Bfloat16() if dtype == torch.bfloat16 else Float32()
        try:
            runtime = FusedRuntime(network, arithmetic)
            runtime.run(np.zeros((1, *game.observation_shape), np.float32), 1)
            return runtime
        except (
            AttributeError,
            RuntimeError,
            TypeError,
        ) as error:  # another torch, or a processor that its oneDNN does not serve
            log.warning("the network runs through plain torch, slower: the fused operators do not work here: %s", error)
    if device.type == "cpu" and fused and isinstance(network, SpikingResNet) and dtype == torch.float32:
        return EventDrivenRuntime(network)
    return ModuleRuntime(network, game, device, dtype, graphs=graphs and device.type == "cuda")


class FusedRuntime:
    """A residual network on a CPU."""

    def __init__(self, network: ResNet, arithmetic: Arithmetic) -> None:
        self._arithmetic = arithmetic
        self.load(network)

    def describe(self) -> str:
        """For people and logs."""
        return f"fused {str(self._arithmetic.dtype).removeprefix('torch.')} on cpu"

    def load(self, network: nn.Module) -> None:
        """Pack the weights anew."""
        assert isinstance(network, ResNet)
        self._network = FusedResNet(network, self._arithmetic)

    def run(self, observations: NDArray[np.float32], count: int) -> tuple[Tensor, Tensor]:
        """Policy logits ``[count, A]`` and value logits ``[count]``."""
        return self._network(observations, count)


class EventDrivenRuntime:
    """A spiking network on a CPU."""

    def __init__(self, network: SpikingResNet) -> None:
        self.load(network)

    def describe(self) -> str:
        """For people and logs."""
        return "event-driven float32 on cpu"

    def load(self, network: nn.Module) -> None:
        """Lay the weights out anew."""
        assert isinstance(network, SpikingResNet)
        self._network = EventDrivenNetwork(network)

    def run(self, observations: NDArray[np.float32], count: int) -> tuple[Tensor, Tensor]:
        """Policy logits ``[n, A]`` and value logits of the observations alone, for here no size of a batch costs more
        than its rows.
        """
        return self._network(observations)


class ModuleRuntime:
    """Any network on any device, through torch; with ``graphs``, as one captured CUDA graph per batch size."""

    def __init__(
        self, network: nn.Module, game: Game, device: torch.device, dtype: torch.dtype, *, graphs: bool
    ) -> None:
        self._network = network.to(device=device, dtype=dtype, memory_format=torch.channels_last)  # type: ignore[call-overload]
        self._shape, self._device, self._dtype = game.observation_shape, device, dtype
        # Graphs share their memory: one runs at a time, and its answers are copied before the next.
        self._pool = torch.cuda.graph_pool_handle() if graphs else None
        self._programs: dict[int, Program] = {}

    def describe(self) -> str:
        """For people and logs."""
        name = str(self._dtype).removeprefix("torch.")
        return f"torch {name} on {self._device}{' with graphs' if self._pool else ''}"

    def load(self, network: nn.Module) -> None:
        """Copy the weights to where captured graphs read them."""
        self._network.load_state_dict(network.state_dict())

    def run(self, observations: NDArray[np.float32], count: int) -> tuple[Tensor, Tensor]:
        """Policy logits ``[count, A]`` and value logits ``[count]``, float32 on the CPU."""
        if count not in self._programs:
            inputs = torch.zeros((count, *self._shape), device=self._device, dtype=self._dtype)
            self._programs[count] = Program(
                self._network, inputs.contiguous(memory_format=torch.channels_last), self._pool
            )
        logits, value_logits = self._programs[count](torch.from_numpy(observations))
        return logits.float().cpu(), value_logits.float().cpu()


class Program:
    """A network at one batch size: always the same memory for its input, and with a memory pool for it a captured CUDA
    graph.
    """

    def __init__(self, network: nn.Module, inputs: Tensor, pool: Any) -> None:
        self._network, self._inputs = network, inputs
        self._graph = self._capture(pool) if pool else None

    def _capture(self, pool: Any) -> torch.cuda.CUDAGraph:
        side = torch.cuda.Stream(self._inputs.device)
        side.wait_stream(torch.cuda.current_stream(self._inputs.device))
        with torch.cuda.stream(
            side
        ):  # libraries allocate and choose algorithms in the first calls, which a graph must not hold
            for _ in range(3):
                self._network(self._inputs)
        torch.cuda.current_stream(self._inputs.device).wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool):
            self._outputs = self._network(self._inputs)
        return graph

    def __call__(self, observations: Tensor) -> tuple[Tensor, Tensor]:
        """Logits of all rows; those beyond the observations are of older positions."""
        self._inputs[: len(observations)] = observations.to(self._inputs.device)
        if self._graph is None:
            return self._network(self._inputs)
        self._graph.replay()
        return self._outputs
