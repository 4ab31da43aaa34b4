"""The runtime of CUDA devices, with a stand-in for the device: its tensors are on the CPU, its streams do nothing."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from keima.games import Game
from keima.networks.inference import cuda
from keima.networks.inference.cuda import LANES, BatchProgram, CudaRuntime
from keima.networks.inference.evaluator import fold_network
from tests.small_networks import CONNECT_FOUR, TIC_TAC_TOE, board_with_pass, positions, trained_network

BOARD = board_with_pass()
CPU = torch.device("cpu")
SEVEN, EIGHT = (torch.device("cuda", number) for number in (7, 8))


class Device:
    """The current device, and what was captured: on which device, and in a stream of which device."""

    def __init__(self) -> None:
        self.current, self.captured = [SEVEN], list[tuple[torch.device, torch.device]]()

    @contextmanager
    def under(self, device: torch.device) -> Iterator[None]:
        self.current.append(device)
        yield
        self.current.pop()

    @contextmanager
    def capture(self, graph: "Graph", *, pool: object, stream: "Stream", capture_error_mode: str) -> Iterator[None]:
        assert capture_error_mode == "thread_local"  # other threads go on
        self.captured.append((self.current[-1], stream.device))
        yield


class Stream:
    def __init__(self, device: torch.device) -> None:
        self.device = device

    def synchronize(self) -> None: ...


class Event:
    def __init__(self, *, blocking: bool) -> None:
        assert blocking  # or a thread that waits takes a core from those that search

    def record(self) -> None: ...

    def synchronize(self) -> None: ...


class Graph:
    """A graph that computes nothing when it is replayed: programs without graphs are what these tests compute with."""


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    """Replace the device by stand-ins."""
    device = Device()
    stand_ins: dict[str, Any] = {
        "device": device.under,
        "Stream": lambda: Stream(device.current[-1]),
        "Event": Event,
        "stream": lambda stream: nullcontext(),
        "synchronize": lambda device=None: None,
        "CUDAGraph": Graph,
        "graph": device.capture,
        "graph_pool_handle": lambda: (0, 1),
    }
    for name, stand_in in stand_ins.items():
        monkeypatch.setattr(torch.cuda, name, stand_in)
    monkeypatch.setattr(cuda, "allocate_pinned", lambda *shape, dtype: torch.empty(shape, dtype=dtype))
    return device


def runtime(game: Game, dtype: torch.dtype = torch.float32, *, fused: bool = False, **shape: Any) -> CudaRuntime:
    network = fold_network(trained_network(game, **shape)).requires_grad_(False)
    return CudaRuntime(network, game.observation_shape, CPU, dtype, graphs=False, fused=fused)


def plain(game: Game, observations: NDArray[np.float32], **shape: Any) -> tuple[Tensor, Tensor]:
    """The network's answers in float32, one torch call after the other."""
    with torch.inference_mode():
        logits, value_logits = trained_network(game, **shape).eval()(torch.from_numpy(observations))
    return logits, value_logits


def assert_close(found: tuple[Tensor, Tensor], wanted: tuple[Tensor, Tensor], tolerance: float = 1e-4) -> None:
    for ours, theirs in zip(found, wanted, strict=True):
        scale = max(float(theirs.abs().max()), 1.0)
        np.testing.assert_allclose(ours[: len(theirs)].numpy(), theirs.numpy(), rtol=0, atol=tolerance * scale)


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("game", [CONNECT_FOUR, TIC_TAC_TOE, BOARD], ids=lambda game: game.name)
def test_it_gives_its_network_s_answers(game: Game) -> None:
    whole, halves = positions(game, 8), positions(game, 8) + np.float32(0.5)
    found = runtime(game)
    for observations in (whole, halves, whole[:3]):  # halves are no bytes
        with torch.inference_mode():
            assert_close(found.run(observations, 8), plain(game, observations))


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("most_copied", [0, 2**20])
def test_answers_stay_when_the_next_ones_come(monkeypatch: pytest.MonkeyPatch, most_copied: int) -> None:
    monkeypatch.setattr(cuda, "MOST_COPIED", most_copied)
    found, observations = runtime(CONNECT_FOUR), positions(CONNECT_FOUR, 2)
    with torch.inference_mode():
        first = found.run(observations[:1], 1)
        assert_close(first, plain(CONNECT_FOUR, observations[:1]))
        kept = [answer.clone() for answer in first]
        found.run(observations[1:], 1)
    assert all(torch.equal(answer, before) for answer, before in zip(first, kept, strict=True))


class Waiting(nn.Module):
    """A network whose calls are counted, and end when they may."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1), requires_grad=False)
        self.inside, self.most = 0, 0
        self.guard, self.entered, self.may_end = threading.Lock(), threading.Semaphore(0), threading.Event()

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The weight."""
        with self.guard:
            self.inside += 1
            self.most = max(self.most, self.inside)
        self.entered.release()
        assert self.may_end.wait(240)
        with self.guard:
            self.inside -= 1
        return x.flatten(1) * 0 + self.weight, x[:, 0, 0, 0] * 0 + self.weight


@pytest.mark.usefixtures("device")
def test_a_few_calls_are_on_the_device_together_and_new_weights_wait_for_them() -> None:
    network = Waiting()
    found = CudaRuntime(network, (1, 2, 2), CPU, torch.float32, graphs=False, fused=True)
    observations, answers = np.zeros((3, 1, 2, 2), np.float32), list[float]()

    def call() -> None:
        answers.append(float(found.run(observations, 3)[0][0, 0]))

    calls = [threading.Thread(target=call) for _ in range(2 * LANES)]
    for thread in calls:
        thread.start()
    for _ in range(LANES):
        assert network.entered.acquire(timeout=240)
    new = Waiting()
    new.weight.fill_(5)
    load = threading.Thread(target=found.load, args=(new,))
    load.start()
    load.join(0.05)
    assert load.is_alive() and float(network.weight) == 0
    network.may_end.set()
    for thread in (*calls, load):
        thread.join(240)
    assert network.most == LANES and float(network.weight) == 5
    assert len(answers) == 2 * LANES and set(answers) <= {0.0, 5.0}
    call()
    assert answers[-1] == 5.0


@pytest.mark.usefixtures("device")
def test_no_call_begins_while_weights_are_copied() -> None:
    copying, may_end = threading.Event(), threading.Event()

    class Slow(Waiting):
        def load_state_dict(self, *arguments: Any, **options: Any) -> Any:
            copying.set()
            assert may_end.wait(240)
            return super().load_state_dict(*arguments, **options)

    network = Slow()
    network.may_end.set()
    found = CudaRuntime(network, (1, 2, 2), CPU, torch.float32, graphs=False, fused=True)
    load = threading.Thread(target=found.load, args=(Waiting(),))
    load.start()
    assert copying.wait(240)
    call = threading.Thread(target=found.run, args=(np.zeros((1, 1, 2, 2), np.float32), 1))
    call.start()
    call.join(0.05)
    assert call.is_alive() and network.most == 0
    may_end.set()
    for thread in (load, call):
        thread.join(240)
    assert network.most == 1


@pytest.mark.parametrize(("blocks", "pooled"), [(3, True), (2, False)])
@pytest.mark.usefixtures("device")
def test_fused_kernels_give_the_network_s_answers(monkeypatch: pytest.MonkeyPatch, blocks: int, pooled: bool) -> None:
    """With a stand-in for cuDNN's two operators."""

    def convolve(x: Tensor, weight: Tensor, bias: Tensor, *geometry: Any) -> Tensor:
        return torch.convolution(x, weight, bias, geometry[0], geometry[1], geometry[2], False, [0, 0], geometry[3])

    def convolve_relu(x: Tensor, weight: Tensor, bias: Tensor, *geometry: Any) -> Tensor:
        return convolve(x, weight, bias, *geometry).relu()

    def convolve_add_relu(x: Tensor, weight: Tensor, z: Tensor, alpha: float, bias: Tensor, *geometry: Any) -> Tensor:
        return (convolve(x, weight, bias, *geometry) + alpha * z).relu()

    monkeypatch.setattr(torch, "cudnn_convolution_relu", convolve_relu)
    monkeypatch.setattr(torch, "cudnn_convolution_add_relu", convolve_add_relu)
    shape: dict[str, Any] = {"blocks": blocks, "channels": 16, "global_pooling": pooled}
    for game in (BOARD, CONNECT_FOUR):
        observations = positions(game, 8)
        found = runtime(game, torch.bfloat16, fused=True, **shape)
        assert found.describe() == "fused bfloat16 on cpu"
        with torch.inference_mode():
            assert_close(found.run(observations, 8), plain(game, observations, **shape), 0.03)
        found.load(fold_network(trained_network(game, spread=0.9, **shape)))
        with torch.inference_mode():
            assert_close(found.run(observations, 8), plain(game, observations, spread=0.9, **shape), 0.03)


@pytest.mark.usefixtures("device")
def test_without_fused_kernels_the_network_runs_in_plain_torch(caplog: pytest.LogCaptureFixture) -> None:
    found, observations = runtime(CONNECT_FOUR, torch.bfloat16, fused=True, channels=16), positions(CONNECT_FOUR, 8)
    assert found.describe() == "torch bfloat16 on cpu" and "fused kernels do not work here" in caplog.text
    with torch.inference_mode():
        assert_close(found.run(observations, 8), plain(CONNECT_FOUR, observations, channels=16), 0.03)


def test_graphs_are_captured_under_their_own_device(device: Device) -> None:
    with device.under(EIGHT):
        stream: Any = Stream(EIGHT)
    shape = (2, *TIC_TAC_TOE.observation_shape)
    memory: dict[str, Any] = {"sent": torch.uint8, "stream": stream, "pool": None, "capturing": threading.Lock()}
    BatchProgram(trained_network(TIC_TAC_TOE), shape, CPU, torch.float32, **memory)
    assert device.captured == [(CPU, EIGHT)]
