"""Which steps a graph computes; what graphs compute is for GPUs: see benchmarks/gpu_paths.py."""

from typing import Any

import pytest
import torch
from torch import Tensor

import keima.learning.learner
from keima.games import load_game
from keima.learning.captured import can_be_captured
from keima.learning.learner import Learner, copy_to_device
from keima.networks.network import build_network
from tests.small_networks import CONNECT_FOUR, random_batch

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("game", "network", "can"),
    [
        ("connect_four", {"type": "resnet"}, True),
        ("connect_four", {"type": "spiking"}, False),
        ("twenty48", {"type": "resnet"}, False),  # its loss reads numbers from the processor's memory
    ],
)
def test_networks_of_two_player_games_can_be_captured(game: str, network: dict[str, Any], can: bool) -> None:
    assert can_be_captured(build_network(load_game(game), blocks=1, channels=8, **network)) is can


class Graph:
    """A stand-in that computes as the learner does without graphs, and counts."""

    made, used = 0, 0

    def __init__(self, network: torch.nn.Module, losses: Any, batch: dict[str, Tensor]) -> None:
        self.losses = losses
        Graph.made += 1

    def __call__(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        """The losses and gradients."""
        Graph.used += 1
        found = self.losses(batch)
        found.loss.backward()
        return {"loss": found.loss.detach(), **found.metrics}


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> type[Graph]:
    monkeypatch.setattr(Graph, "made", 0)
    monkeypatch.setattr(Graph, "used", 0)
    monkeypatch.setattr(keima.learning.learner, "CapturedGradients", Graph)
    return Graph


def on_gpu(**options: Any) -> Learner:
    """A learner on the CPU that takes its device for a GPU when it looks for a graph."""
    torch.manual_seed(1)
    learner = Learner(build_network(CONNECT_FOUR, blocks=1, channels=8), device="cpu", **options)
    learner.captures = True
    return learner


def test_whole_batches_are_computed_by_one_graph_for_each_size(graphs: type[Graph]) -> None:
    torch.manual_seed(1)
    plain = Learner(build_network(CONNECT_FOUR, blocks=1, channels=8), device="cpu")
    learner = on_gpu()
    for size in (8, 8, 4, 8):
        batch = copy_to_device(random_batch(CONNECT_FOUR, size), CPU)
        wanted, found = plain.descend(batch), learner.descend(batch)
        assert found.metrics.keys() == wanted.metrics.keys()
        assert all(torch.equal(found.metrics[name], wanted.metrics[name]) for name in wanted.metrics)
    assert (graphs.made, graphs.used) == (2, 4)
    assert all(
        torch.equal(ours, theirs)
        for ours, theirs in zip(learner.weights().values(), plain.weights().values(), strict=True)
    )


@pytest.mark.parametrize("options", [{"norm_batch": 4}, {"norm_batch": 4, "micro_batch": 4}])
def test_batches_in_parts_or_groups_are_computed_without_graphs(graphs: type[Graph], options: dict[str, int]) -> None:
    learner = on_gpu(**options)
    learner.descend(copy_to_device(random_batch(CONNECT_FOUR, 8), CPU))
    assert graphs.made == 0


def test_a_new_size_beyond_the_most_is_computed_without_a_graph(graphs: type[Graph]) -> None:
    learner = on_gpu()
    for size in (2, 4, 6, 8):
        learner.descend(copy_to_device(random_batch(CONNECT_FOUR, size), CPU))
    assert (graphs.made, graphs.used) == (3, 3)
