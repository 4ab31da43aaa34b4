"""A network that grows answers as before, and learns with all of its new weights."""

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor, nn

from keima.config.sections.network import NetworkSettings
from keima.games import load_game
from keima.learning.learner import Learner
from keima.learning.ranks.process_group import Ranks
from keima.networks.growth import enlarge_weights
from keima.networks.network import build_network
from keima.play.network_loader import find_arguments
from keima.replay.window import ReplayWindow
from tests.small_run import GAME
from tests.synthetic import synthetic_batch

FOUR = load_game("connect_four")


def trained(network: nn.Module) -> None:
    """Change batch norms as training does."""
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias, std=0.3)
            assert module.running_mean is not None and module.running_var is not None
            module.running_mean.normal_(std=0.2)
            module.running_var.uniform_(0.5, 2.0)


def answers(network: nn.Module, observations: Tensor) -> Tensor:
    with torch.no_grad():
        logits, values = network(observations)
    return torch.cat([logits.flatten(), values.flatten()])


@pytest.mark.parametrize("kind", ["resnet", "bottleneck"])
@pytest.mark.parametrize("squeeze_excitation", [False, True])
@pytest.mark.parametrize("sizes", [((2, 16), (4, 32)), ((3, 48), (3, 64)), ((2, 32), (5, 32))])
def test_a_larger_network_gives_the_same_answers(
    kind: str, squeeze_excitation: bool, sizes: tuple[tuple[int, int], ...]
) -> None:
    torch.manual_seed(1)
    options = {"predict_ownership": True, "predict_score": True, "squeeze_excitation": squeeze_excitation}
    small, large = (
        build_network(FOUR, type=kind, blocks=blocks, channels=channels, **options) for blocks, channels in sizes
    )
    trained(small)
    large.load_state_dict(enlarge_weights(small.state_dict(), large))
    observations = torch.randn(8, *FOUR.observation_shape)
    for networks in ((small.eval(), large.eval()), (small.train(), large.train())):
        before, after = (answers(network, observations) for network in networks)
        torch.testing.assert_close(before, after, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("optimizer", ["muon", "adamw", "sgd"])
def test_a_learner_goes_on_with_a_larger_network(optimizer: str) -> None:
    torch.manual_seed(1)
    window = ReplayWindow(GAME, capacity_positions=10_000)
    window.add(synthetic_batch(GAME, games=50))
    small = Learner(build_network(GAME, blocks=2, channels=8), device="cpu", batch_size=64, optimizer=optimizer)
    small.train(window, 5, 1)
    large = small.grow(build_network(GAME, blocks=4, channels=12))
    observations = torch.from_numpy(window.sample(32, 1).observations)
    torch.testing.assert_close(
        answers(small.average.network, observations), answers(large.average.network, observations)
    )
    assert large.step == small.step
    before = {name: parameter.detach().clone() for name, parameter in large.network.named_parameters()}
    large.train(window, 10, 1)
    if optimizer != "sgd":  # the first steps of which are too small to be seen
        for name, parameter in large.network.named_parameters():
            changed = parameter != before[name]
            assert changed.any(), name
            for dimension, old in enumerate(small.network.state_dict().get(name, parameter).shape):
                new = changed.narrow(dimension, old, parameter.shape[dimension] - old)
                assert new.any() or not new.numel(), name
    again = Learner(build_network(GAME, blocks=4, channels=12), device="cpu", batch_size=64, optimizer=optimizer)
    again.restore(large.state())
    assert large.train(window, 2, 1).loss == again.train(window, 2, 1).loss


def test_a_larger_network_is_trained_by_the_same_ranks_in_the_same_parts() -> None:
    ranks = Ranks()
    small = Learner(build_network(GAME, blocks=1, channels=8), device="cpu", ranks=ranks, norm_batch=16, micro_batch=32)
    large = small.grow(build_network(GAME, blocks=2, channels=8))
    assert (large.ranks, large.norm_batch, large.micro_batch) == (ranks, 16, 32)
    assert large.settings == small.settings


@pytest.mark.slow
def test_the_first_steps_of_new_weights_are_no_longer_than_those_of_the_others() -> None:
    torch.manual_seed(1)
    window = ReplayWindow(GAME, capacity_positions=10_000)
    window.add(synthetic_batch(GAME, games=50))
    small = Learner(build_network(GAME, blocks=2, channels=8), device="cpu", batch_size=64, optimizer="adamw")
    small.train(window, 200, 1)
    large = small.grow(build_network(GAME, blocks=2, channels=16))
    name, old = next((name, each) for name, each in small.network.named_parameters() if each.ndim == 4)
    weights = dict(large.network.named_parameters())[name]
    before = weights.detach().clone()
    large.train(window, 5, 1)
    steps = (weights - before).abs()
    steps_of_old = steps[: old.shape[0], : old.shape[1]].mean()
    assert steps[old.shape[0] :].mean() < 3 * steps_of_old, "with squared gradients of 0 they are five times as long"


@pytest.mark.medium
def test_the_statistics_of_new_channels_are_those_of_the_window_at_once() -> None:
    torch.manual_seed(1)
    window = ReplayWindow(GAME, capacity_positions=10_000)
    window.add(synthetic_batch(GAME, games=50))
    small = Learner(build_network(GAME, blocks=2, channels=8), device="cpu", batch_size=64)
    small.train(window, 50, 1)
    large = small.grow(build_network(GAME, blocks=2, channels=16))
    large.settle_statistics(window, 1)
    observations = torch.from_numpy(window.sample(500, 2).observations)
    for network in (large.average.network, large.network):
        norm = network.get_submodule("stem.norm")
        assert isinstance(norm, nn.BatchNorm2d) and norm.running_mean is not None and norm.running_var is not None
        with torch.no_grad():
            seen = network.get_submodule("stem.conv")(observations)
        torch.testing.assert_close(norm.running_mean, seen.mean((0, 2, 3)), rtol=0.2, atol=0.05)
        torch.testing.assert_close(norm.running_var, seen.var((0, 2, 3)), rtol=0.3, atol=0.02)
        assert norm.momentum == 0.1
    assert not large.average.network.training and large.network.training


def test_a_network_does_not_become_smaller_or_another() -> None:
    small, large = (build_network(GAME, blocks=1, channels=channels) for channels in (8, 16))
    with pytest.raises(ValueError, match="grows only by blocks and channels"):
        enlarge_weights(large.state_dict(), small)
    other = build_network(GAME, type="bottleneck", blocks=1, channels=16)
    with pytest.raises(ValueError, match="grows only by blocks and channels"):
        enlarge_weights(small.state_dict(), other)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"type": "spiking"}, "only networks of type resnet and bottleneck grow"),
        ({"growth": ["4x32@0.5", "5x32@0.5"]}, "later and larger"),
        ({"growth": ["2x48@0.5"]}, "but 2x48@0.5 follows 3x32@0 "),
        ({"growth": ["3x32@0.5"]}, "later and larger"),
        ({"growth": ["4x32@1.5"]}, "expected BLOCKSxCHANNELS@SHARE"),
        ({"growth": ["4x32@0.0"]}, "later and larger"),
        ({"growth": ["4x4096@0.5"]}, "at most 100 blocks and 2048 channels"),
    ],
)
def test_growth_that_is_none_is_told(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        NetworkSettings.model_validate({"blocks": 3, "channels": 32, "growth": ["4x32@0.5"], **settings})


def test_weights_alone_are_known_as_those_of_a_size_that_the_network_has_had() -> None:
    settings = NetworkSettings.model_validate({"blocks": 3, "channels": 32, "growth": ["4x32@0.5"]})
    for steps in (0, 1):
        weights = build_network(GAME, **settings.arguments(steps)).state_dict()
        assert find_arguments(settings, weights) == settings.arguments(steps)
