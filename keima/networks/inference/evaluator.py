"""The network as search calls it: ``evaluate(observations [N, C, H, W]) -> (policy_logits [N, A], values [N])``;
with three and more players the values are ``[N, V]``.

An ``Evaluator`` takes any batch up to its ``max_batch``; rows are independent of each other. On a CPU it uses the
network's own ``runtime`` where there is one (keima/networks/architectures/fused.py,
keima/networks/architectures/event_driven.py), else plain torch; on a CUDA device a captured graph per batch size
(keima/networks/inference/cuda.py). There threads may call at the same time.
"""

import copy
import ctypes
import os
from collections.abc import Mapping
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from keima.games.game import Game
from keima.networks.architectures.layers import ConvNorm
from keima.networks.inference.cuda import CudaRuntime
from keima.networks.policy_value import Runtime, as_policy_value_network

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # glibc's malloc.h
EVALUATION_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


class Evaluator:
    """A network, ready to evaluate positions.

    Args:
        network: a ``PolicyValueNetwork``; its weights are copied.
        game: the game that it plays.
        device: "auto" (a CUDA device if there is one), "cpu", "cuda", "cuda:1", ...
        dtype: "auto" (the fastest of the device that suits the network), "float32", "bfloat16" or "float16".
        max_batch: the largest batch.
        fused: whether to use the network's own runtime on a CPU, or fused kernels on a CUDA device, where they work.
        graphs: whether to capture CUDA graphs on a CUDA device.

    Raises:
        ValueError: the device or the number type does not exist.
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
        if dtype != "auto" and dtype not in EVALUATION_DTYPES:
            raise ValueError(f"there is no dtype {dtype!r} for evaluation; use auto, {', '.join(EVALUATION_DTYPES)}")
        keep_freed_memory()
        where = pick_device(device)
        what = (
            (as_policy_value_network(network).runtime_dtype or fastest_dtype(where))
            if dtype == "auto"
            else EVALUATION_DTYPES[dtype]
        )
        self.game = game
        self.max_batch = max_batch
        self._device = where
        self._pick_runtime = partial(pick_runtime, game=game, device=where, dtype=what, fused=fused, graphs=graphs)
        self.change_network(network)

    def change_network(self, network: nn.Module) -> None:
        """Switch to another network for the same game, such as a larger one; its weights are copied."""
        self._network: nn.Module = copy.deepcopy(network).cpu().eval().requires_grad_(False)
        self._runtime: Runtime = self._pick_runtime(prepare_network(self._network, self._device))

    def describe(self) -> str:
        """Return the runtime, such as "fused bfloat16 on cpu"."""
        return self._runtime.describe()

    def load(self, weights: Mapping[str, Tensor]) -> None:
        """Switch to these weights, a state dictionary of the network.

        Raises:
            ValueError: they belong to another network; the old weights stay.
        """
        network = copy.deepcopy(self._network)
        try:
            network.load_state_dict(weights)
        except RuntimeError as error:
            raise ValueError(f"these weights belong to another network: {error}") from error
        self._network = network
        self._runtime.load(prepare_network(network, self._device))

    def has_shapes_of(self, weights: Mapping[str, Tensor]) -> bool:
        """Return whether ``weights`` have the names and shapes of the present ones."""
        own = self._network.state_dict()
        return own.keys() == weights.keys() and all(own[name].shape == weights[name].shape for name in own)

    def __call__(self, observations: NDArray[np.float32]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Evaluate positions.

        Args:
            observations: float32 ``[N, C, H, W]``, N from 0 to ``max_batch``.

        Returns:
            Newly allocated policy logits float32 ``[N, A]`` and values float32 ``[N]`` for the player to move, in
            [-1, 1] or in points; ``[N, V]`` where V > 1 (``Game.num_values``).

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
            many = self.game.num_values > 1
            values = np.empty((0, self.game.num_values) if many else 0, np.float32)
            return np.empty((0, self.game.num_actions), np.float32), values
        with torch.inference_mode():
            logits, value_logits = self._runtime.run(observations, pad_batch_size(count))
            return logits[:count].numpy(), as_policy_value_network(self._network).value.values(
                value_logits[:count]
            ).numpy()


def pad_batch_size(count: int) -> int:
    """Return the batch size for ``count`` rows: rounded up to six binary digits, at most 3 % more.

    The first batch of a size costs some 10 ms (oneDNN, CUDA graphs); with rounding there are only 32 sizes between a
    power of two and the next.
    """
    step: int = 2 ** max(0, count.bit_length() - 6)
    return -(-count // step) * step


def keep_freed_memory() -> None:
    """Make glibc keep up to a gigabyte of freed memory.

    A network allocates and frees the same megabytes at each call. Returning them to the system and getting them back
    page by page costs a tenth of a training step and of the evaluation of a large batch.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, 32 * 2**20)
        mallopt(M_TRIM_THRESHOLD, 2**30)


def use_threads(count: int) -> None:
    """Set the number of threads for networks on the CPU in this process."""
    torch.set_num_threads(count)


def pick_device(name: str) -> torch.device:
    """Return the device called ``name``; "auto" is a CUDA device if there is one, else the CPU.

    Raises:
        ValueError: the device does not exist here or cannot compute; the message says what is missing.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
        torch.ones(2, device=device).sum().item()  # a GPU that this build has no code for fails only now
    except (RuntimeError, AssertionError) as error:
        missing = explain_missing_cuda(error) if name.startswith("cuda") else str(error)
        raise ValueError(f"there is no device {name!r} here; use auto or cpu: {missing}") from error
    if device.type == "cuda" and device.index is None:
        return torch.device("cuda", torch.cuda.current_device())
    return device


def explain_missing_cuda(error: Exception) -> str:
    """Return what is missing for a CUDA device, from torch's error, and how to fix it."""
    text = str(error).strip().partition("\n")[0]
    build, seen = f"PyTorch {torch.__version__}", os.environ.get("CUDA_VISIBLE_DEVICES")
    if torch.version.cuda is None and torch.version.hip is None:
        return f"{build} is built for processors alone; install a build with CUDA"
    if "too old" in text and "driver" in text:
        return f"NVIDIA's driver is too old for {build}, which needs CUDA {torch.version.cuda}; update the driver"
    if "no NVIDIA driver" in text:
        return "there is no NVIDIA driver; install it, until nvidia-smi lists the GPU"
    if "No CUDA GPUs" in text or "invalid device ordinal" in text:
        which = "" if seen is None else f" among those of CUDA_VISIBLE_DEVICES={seen}"
        return f"there is no such GPU{which}; nvidia-smi lists those that there are"
    if "no kernel image" in text:
        return f"{build} has no code for this kind of GPU; install a build that has"
    return text


def count_gpus() -> int:
    """Return the number of CUDA devices that this process sees."""
    return torch.cuda.device_count()


def fastest_dtype(device: torch.device) -> torch.dtype:
    """Return the shortest number type in which ``device`` multiplies fast."""
    if device.type == "cuda":
        with torch.cuda.device(device):
            return torch.bfloat16 if torch.cuda.is_bf16_supported(including_emulation=False) else torch.float16
    names = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    fast = any(getattr(torch.cpu, name, bool)() for name in names)
    return torch.bfloat16 if fast and device.type == "cpu" else torch.float32


def prepare_network(network: nn.Module, device: torch.device) -> nn.Module:
    """Return a copy of a network in evaluation mode as it runs on ``device``: folded, if it folds there."""
    if device.type == "cuda" and not as_policy_value_network(network).folds_on_cuda:
        return copy.deepcopy(network)
    return fold_network(network)


def fold_network(network: nn.Module) -> nn.Module:
    """Return a copy of a network in evaluation mode whose batch norms are merged into their convolutions."""
    network = copy.deepcopy(network)
    for module in network.modules():
        if isinstance(module, ConvNorm):
            module.fold()
    return network


def pick_runtime(
    network: nn.Module, game: Game, device: torch.device, dtype: torch.dtype, *, fused: bool, graphs: bool
) -> Runtime:
    """Return the fastest way to run a ``prepared`` network on ``device`` in ``dtype``."""
    if device.type == "cuda":
        return CudaRuntime(network, game.observation_shape, device, dtype, graphs=graphs, fused=fused)
    own = (
        as_policy_value_network(network).runtime(game.observation_shape, dtype)
        if device.type == "cpu" and fused
        else None
    )
    return own or ModuleRuntime(network, game, device, dtype)


class ModuleRuntime:
    """Any network in plain torch."""

    def __init__(self, network: nn.Module, game: Game, device: torch.device, dtype: torch.dtype) -> None:
        self._network = network.to(device=device, dtype=dtype, memory_format=torch.channels_last)  # type: ignore[call-overload]
        self._shape, self._device, self._dtype = game.observation_shape, device, dtype

    def describe(self) -> str:
        """See ``Runtime``."""
        return f"torch {str(self._dtype).removeprefix('torch.')} on {self._device}"

    def load(self, network: nn.Module) -> None:
        """See ``Runtime``."""
        self._network.load_state_dict(network.state_dict())

    def run(self, observations: NDArray[np.float32], count: int) -> tuple[Tensor, Tensor]:
        """Return policy logits ``[count, A]`` and value logits ``[count]``, float32 on the CPU."""
        inputs = torch.zeros((count, *self._shape), device=self._device, dtype=self._dtype)
        inputs = inputs.contiguous(memory_format=torch.channels_last)
        inputs[: len(observations)] = torch.from_numpy(observations).to(self._device)
        logits, value_logits = self._network(inputs)
        return logits.float().cpu(), value_logits.float().cpu()
