"""Losses and gradients by a captured CUDA graph.

A step of a small network is some hundred kernels, each of which takes a GPU less time than a processor needs to start
it. A graph starts them all at once.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from keima.learning.update_step import Losses
from keima.networks.architectures.resnet import ResNet
from keima.networks.policy_value import as_policy_value_network
from keima.networks.value_heads import WinHead


def can_be_captured(network: nn.Module) -> bool:
    """Return whether the losses of a network are known to be computed entirely on the GPU."""
    return isinstance(network, ResNet) and type(as_policy_value_network(network).value) is WinHead


class CapturedGradients:
    """The losses and gradients of batches of one size.

    Args:
        network: in training mode, without gradients.
        losses: of a batch; called while the graph is captured.
        batch: an example, by name; nothing is learned from it.

    Raises:
        torch.OutOfMemoryError: the memory is too small; the network is unchanged.
    """

    def __init__(
        self, network: nn.Module, losses: Callable[[dict[str, Tensor]], Losses], batch: dict[str, Tensor]
    ) -> None:
        self._batch = {name: tensor.clone() for name, tensor in batch.items()}
        self._parameters = [parameter for parameter in network.parameters() if parameter.requires_grad]
        buffers = [(buffer, buffer.clone()) for buffer in network.buffers()]
        device = self._parameters[0].device
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.device(device):
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            try:
                with torch.cuda.stream(stream):
                    for _ in range(2):  # libraries allocate memory and choose algorithms, which must not be captured
                        self._compute_gradients(losses)
                        self._drop_graph()
                # Another thread may pin the memory of the next batch meanwhile.
                with torch.cuda.graph(self._graph, stream=stream, capture_error_mode="thread_local"):
                    self._metrics = self._compute_gradients(losses)
                self._gradients = [parameter.grad for parameter in self._parameters]
            finally:
                self._drop_graph()
                torch.cuda.current_stream().wait_stream(stream)
                for buffer, before in buffers:
                    buffer.copy_(before)

    def __call__(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        """Set the gradients of the network; return the metrics of the losses, including "loss"."""
        for name, tensor in batch.items():
            self._batch[name].copy_(tensor)
        self._graph.replay()
        for parameter, gradient in zip(self._parameters, self._gradients, strict=True):
            parameter.grad = gradient
        return {name: metric.clone() for name, metric in self._metrics.items()}

    def _compute_gradients(self, losses: Callable[[dict[str, Tensor]], Losses]) -> dict[str, Tensor]:
        found = losses(self._batch)
        found.loss.backward()
        return {"loss": found.loss.detach(), **found.metrics}

    def _drop_graph(self) -> None:
        for parameter in self._parameters:
            parameter.grad = None
