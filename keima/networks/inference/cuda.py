"""A network on a CUDA device: a captured graph for each batch size, and copies that overlap with computation.

Observations go to the device as bytes where they are whole numbers, which takes a quarter of the time. They and the
answers go by way of pinned memory, in a stream of the call's own, so that one call's copies overlap with another's
computation. Threads may call at the same time: up to ``LANES`` calls are on the device together, and fill it where the
batch of one is too small for that.

In 16 bits a ``ResNet`` computes a convolution, its bias, the skip connection and the ReLU in one kernel of cuDNN; plain
torch takes three.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from queue import Empty, LifoQueue
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from keima.base.system.threads import new_lock
from keima.networks.architectures.fused import FoldedConvolution, FusedResNet
from keima.networks.architectures.layers import ConvNorm, pooling_width_scale
from keima.networks.architectures.resnet import ResNet
from keima.networks.inference.compact import pack_bytes

LANES = 4
MOST_COPIED = 2**20  # bytes of answers; to copy more takes the processor longer than fetching them to new pinned memory
FLOAT_BYTES = 4
CHANNEL_MULTIPLE = 8  # of the maps that cuDNN's fused kernels read and write in 16 bits

Forward = Callable[[Tensor], tuple[Tensor, Tensor]]  # maps [N, C, H, W] -> policy logits [N, A], value logits

log = logging.getLogger(__name__)


class CudaRuntime:
    """Runs a network on a CUDA device; see ``keima.networks.policy_value.Runtime``.

    Args:
        network: in evaluation mode, folded if it folds there; it is moved to the device.
        shape: of an observation: C, H, W.
        device: the CUDA device.
        dtype: the number type of the computation.
        graphs: whether to capture graphs, which save the start of each kernel.
        fused: whether to use cuDNN's fused kernels where they work.
    """

    def __init__(
        self,
        network: nn.Module,
        shape: tuple[int, int, int],
        device: torch.device,
        dtype: torch.dtype,
        *,
        graphs: bool,
        fused: bool,
    ) -> None:
        self._network, self._device, self._dtype, self._graphs = network.to(device), device, dtype, graphs
        self._shape = shape
        own = make_fused_forward(self._network, shape, device, dtype) if fused else None
        if own is None:
            self._network.to(dtype=dtype, memory_format=torch.channels_last)  # type: ignore[call-overload]
        self._forward: Forward = own or self._network
        self._fused = own is not None
        self._free: LifoQueue[CallLane] = LifoQueue()  # the lane that was used last has what it needs in the caches
        self._lanes = 0
        self._adding, self._capturing = new_lock(), new_lock()

    def describe(self) -> str:
        """See ``Runtime``."""
        name = str(self._dtype).removeprefix("torch.")
        how = "fused" if self._fused else "torch"
        return f"{how} {name} on {self._device}{' with graphs' if self._graphs else ''}"

    def load(self, network: nn.Module) -> None:
        """Copy the weights to the memory that captured graphs read, once all calls in progress have finished."""
        with self._adding:
            lanes = [self._free.get() for _ in range(self._lanes)]
            try:
                self._network.load_state_dict(network.state_dict())
                torch.cuda.synchronize(self._device)
            finally:
                for lane in lanes:
                    self._free.put(lane)

    def run(self, observations: NDArray[np.float32], count: int) -> tuple[Tensor, Tensor]:
        """Return policy logits ``[count, A]`` and value logits ``[count]``, float32 on the CPU, in new memory."""
        with self._borrow_lane() as lane:
            return lane.run(observations, count)

    @contextmanager
    def _borrow_lane(self) -> Iterator["CallLane"]:
        lane = self._take_lane()
        try:
            yield lane
        finally:
            self._free.put(lane)

    def _take_lane(self) -> "CallLane":
        with self._adding:  # nobody adds a lane while weights are copied
            try:
                return self._free.get_nowait()
            except Empty:
                if self._lanes < LANES:
                    lane = CallLane(
                        self._forward, self._shape, self._device, self._dtype, self._capturing if self._graphs else None
                    )
                    self._lanes += 1
                    return lane
        return self._free.get()


class CallLane:
    """The stream and the memory of one call at a time.

    Args:
        forward: the network.
        shape: of an observation: C, H, W.
        device: the CUDA device.
        dtype: the number type of the network's maps.
        capturing: is held while a graph is captured, by one lane at a time; None: without graphs.
    """

    def __init__(
        self,
        forward: Forward,
        shape: tuple[int, int, int],
        device: torch.device,
        dtype: torch.dtype,
        capturing: AbstractContextManager[object] | None,
    ) -> None:
        self._forward, self._shape, self._device, self._dtype = forward, shape, device, dtype
        self._capturing = capturing
        with torch.cuda.device(device):
            self._stream = torch.cuda.Stream()
            self._done = torch.cuda.Event(blocking=True)  # a thread that waits leaves the core to others
        # Graphs of a lane share their memory: one runs at a time, and its answers are copied before the next.
        self._pool = torch.cuda.graph_pool_handle() if capturing else None
        self._programs: dict[tuple[int, torch.dtype], BatchProgram] = {}

    def run(self, observations: NDArray[np.float32], count: int) -> tuple[Tensor, Tensor]:
        """See ``CudaRuntime.run``."""
        with torch.cuda.stream(self._stream):
            program = self._program_for(count, torch.uint8)
            if not pack_bytes(observations.reshape(-1), program.words):
                program = self._program_for(count, torch.float32)
                program.words[: observations.size] = observations.reshape(-1)
            answers = program.run()
            self._done.record()
            self._done.synchronize()
        return program.split_answers(answers)

    def _program_for(self, count: int, sent: torch.dtype) -> "BatchProgram":
        key = count, sent
        if key not in self._programs:
            self._programs[key] = BatchProgram(
                self._forward,
                (count, *self._shape),
                self._device,
                self._dtype,
                sent=sent,
                stream=self._stream,
                pool=self._pool,
                capturing=self._capturing,
            )
        return self._programs[key]


class BatchProgram:
    """A network at one batch size, from observations to answers in pinned memory; with ``capturing``, a captured graph.

    Args:
        forward: the network.
        shape: ``[N, C, H, W]`` of its observations; rows that a call does not write hold older ones.
        device: the CUDA device.
        dtype: the number type of the network's maps.
        sent: the number type of the observations.
        stream: in which it is captured and run.
        pool: the memory of the graph.
        capturing: is held during the capture.

    Attributes:
        words: the observations, to be written before a run.
    """

    def __init__(
        self,
        forward: Forward,
        shape: tuple[int, ...],
        device: torch.device,
        dtype: torch.dtype,
        *,
        sent: torch.dtype,
        stream: torch.cuda.Stream,
        pool: Any,
        capturing: AbstractContextManager[object] | None,
    ) -> None:
        self._forward, self._device, self._dtype = forward, device, dtype
        self._sent = allocate_pinned(*shape, dtype=sent).zero_()
        self.words = self._sent.view(-1).numpy()
        self._graph: torch.cuda.CUDAGraph | None = None
        # Memory of a capture is that of the current device.
        with torch.cuda.device(device), torch.cuda.stream(stream), capturing or nullcontext():
            for _ in range(3 if capturing else 1):  # libraries allocate memory and choose algorithms
                logits, value_logits = self._compute()
            self._shapes = logits.shape, value_logits.shape
            few = FLOAT_BYTES * (logits.numel() + value_logits.numel()) <= MOST_COPIED
            self._here = allocate_pinned(logits.numel() + value_logits.numel(), dtype=torch.float32) if few else None
            stream.synchronize()
            if capturing:
                graph = torch.cuda.CUDAGraph()
                # Other threads go on with their calls.
                with torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"):
                    self._answers = self._compute_answers()
                self._graph = graph

    def run(self) -> Tensor:
        """Begin to send the observations, to compute, and to send the answers back; return where they will be."""
        if self._graph is None:
            self._answers = self._compute_answers()
        else:
            self._graph.replay()
        if self._here is not None:
            return self._here
        return allocate_pinned(self._answers.numel(), dtype=torch.float32).copy_(self._answers, non_blocking=True)

    def split_answers(self, answers: Tensor) -> tuple[Tensor, Tensor]:
        """Return the logits and value logits of all rows of complete answers, in memory that no run overwrites."""
        if answers is self._here:
            answers = answers.clone()
        logits, value_logits = self._shapes
        return answers[: logits.numel()].view(logits), answers[logits.numel() :].view(value_logits)

    def _compute_answers(self) -> Tensor:
        answers = torch.cat([answer.flatten() for answer in self._compute()])
        if self._here is not None:
            self._here.copy_(answers, non_blocking=True)
        return answers

    def _compute(self) -> tuple[Tensor, Tensor]:
        inputs = self._sent.to(self._device, non_blocking=True)
        maps = torch.empty_like(inputs, dtype=self._dtype, memory_format=torch.channels_last)
        logits, value_logits = self._forward(maps.copy_(inputs))
        return logits.float(), value_logits.float()


def allocate_pinned(*shape: int, dtype: torch.dtype) -> Tensor:
    """Allocate memory that the device reads and writes directly; torch caches freed memory."""
    return torch.empty(shape, dtype=dtype, pin_memory=True)


def make_fused_forward(
    network: nn.Module, shape: tuple[int, int, int], device: torch.device, dtype: torch.dtype
) -> Forward | None:
    """Make a ``ResNet`` of fused kernels, tested with some positions; None for other networks and types, or where they
    do not work.

    Its convolutions are converted to ``dtype``; what follows the last one stays in float32.
    """
    if not isinstance(network, ResNet) or not network.has_fused_operators or dtype == torch.float32:
        return None
    convolutions = [module.conv for module in network.modules() if isinstance(module, ConvNorm)]
    try:
        for convolution in convolutions:
            convolution.to(dtype=dtype, memory_format=torch.channels_last)  # type: ignore[call-overload]
        forward = FusedResNet(network, CudnnArithmetic(dtype), shape[1:])
        with torch.inference_mode(), torch.cuda.device(device):
            some = torch.zeros(2, *shape, device=device, dtype=dtype)
            forward(some.contiguous(memory_format=torch.channels_last))
            torch.cuda.synchronize()
    except (AttributeError, RuntimeError, TypeError) as error:  # another torch or cuDNN, or a device without them
        for convolution in convolutions:
            convolution.float()
        log.warning("cuDNN's fused kernels do not work here; the network runs in plain torch, slower: %s", error)
        return None
    return forward


class CudnnArithmetic:
    """The operations of ``FusedResNet`` on a CUDA device, in 16 bits. Maps are ``[N, C, H, W]``, channels last."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype

    def make_convolution(self, layer: ConvNorm, board: tuple[int, int]) -> FoldedConvolution:
        """See ``Arithmetic``; it reads the layer's own weights, so that new ones can be copied to their place."""
        return CudnnConvolution(layer.conv)

    def pool(self, x: Tensor) -> Tensor:
        """See ``Arithmetic``."""
        mean = x.mean((2, 3), dtype=torch.float32)
        return torch.cat([mean, mean * pooling_width_scale(x.shape[2], x.shape[3]), x.amax((2, 3)).float()], 1)

    def add_bias_relu(self, x: Tensor, bias: Tensor) -> None:
        """See ``Arithmetic``."""
        x.add_(bias.to(self.dtype)[:, :, None, None]).relu_()

    def point_features(self, x: Tensor, bias: Tensor) -> Tensor:
        """See ``Arithmetic``."""
        return torch.relu(x.float() + bias[:, :, None, None]).permute(0, 2, 3, 1).flatten(1, 2)


class CudnnConvolution:
    """A folded convolution."""

    def __init__(self, conv: nn.Conv2d) -> None:
        self._conv = conv
        self._padding = [int(side) for side in conv.padding]
        self._fuses = conv.in_channels % CHANNEL_MULTIPLE == conv.out_channels % CHANNEL_MULTIPLE == 0

    def __call__(self, x: Tensor, activation: str) -> Tensor:
        """See ``FoldedConvolution``."""
        conv = self._conv
        if activation == "relu" and self._fuses:
            return torch.cudnn_convolution_relu(x, conv.weight, conv.bias, [1, 1], self._padding, [1, 1], 1)
        out: Tensor = conv(x)
        return out.relu_() if activation == "relu" else out

    def convolve_add_relu(self, residual: Tensor, x: Tensor) -> Tensor:
        """See ``FoldedConvolution``."""
        conv = self._conv
        if not self._fuses:
            return residual.add_(conv(x)).relu_()
        return torch.cudnn_convolution_add_relu(
            x, conv.weight, residual, 1.0, conv.bias, [1, 1], self._padding, [1, 1], 1
        )
