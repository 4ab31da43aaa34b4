import numpy as np
import pytest
import torch
from torch import Tensor

from keima.games import Game
from keima.networks.architectures.layers import GlobalPooling, count_pooled_channels
from keima.networks.architectures.resnet import ResNet
from keima.networks.network import build_network
from tests.small_networks import CONNECT_FOUR, TIC_TAC_TOE, board_with_pass, positions, trained_network

GAMES = [CONNECT_FOUR, TIC_TAC_TOE, board_with_pass()]


def outputs(network: torch.nn.Module, observations: np.ndarray) -> tuple[Tensor, Tensor]:
    with torch.inference_mode():
        return network.eval()(torch.from_numpy(observations))


@pytest.mark.parametrize("game", GAMES, ids=lambda game: game.name)
@pytest.mark.parametrize("global_pooling", [True, False])
def test_a_network_returns_a_logit_for_each_action_and_one_for_the_value(game: Game, global_pooling: bool) -> None:
    network = build_network(game, blocks=2, channels=8, global_pooling=global_pooling)
    logits, value_logits = outputs(network, positions(game, 5))
    assert logits.shape == (5, game.num_actions) and value_logits.shape == (5,)


@pytest.mark.parametrize("game", GAMES, ids=lambda game: game.name)
def test_a_new_network_has_hardly_any_preference(game: Game) -> None:
    torch.manual_seed(0)
    logits, value_logits = outputs(build_network(game), positions(game, 16))
    most = 1.75 if game is CONNECT_FOUR else 1.5  # its input has numbers larger than 1
    assert logits.softmax(1).max() < most / game.num_actions
    assert torch.tanh(value_logits / 2).abs().max() < 0.2


def test_a_new_network_prefers_points_to_a_pass() -> None:
    torch.manual_seed(0)
    game = board_with_pass()
    policies = outputs(build_network(game), positions(game, 16))[0].softmax(1)
    assert policies[:, -1].max() < 0.6 * policies[:, :-1].min()


def test_a_new_tower_passes_its_input_through() -> None:
    network = build_network(CONNECT_FOUR, blocks=4, channels=16).eval()
    assert isinstance(network, ResNet)
    x = torch.rand(3, 16, 6, 7)
    torch.testing.assert_close(network.tower(x), x)


def test_logits_are_in_plane_row_column_order_with_the_other_actions_last() -> None:
    network = ResNet(observation_shape=(2, 3, 4), num_actions=2 * 12 + 3, policy_planes=2, blocks=1, channels=8)
    assert network.policy.points is not None and network.policy.others is not None
    with torch.no_grad():
        network.policy.points.weight.zero_()
        network.policy.points.weight[0, 0] = network.policy.points.weight[1, 1] = 1  # plane k reads channel k
        network.policy.others.weight.zero_()
        network.policy.others.bias.copy_(torch.tensor([-1.0, -2.0, -3.0]))
    features = torch.zeros(1, 12, 32)
    features[0, :, 0], features[0, :, 1] = torch.arange(12), 100 + torch.arange(12)  # point 4 * row + column
    logits = network.policy.logits(features, torch.zeros(1, 96))
    assert logits[0].tolist() == [*range(12), *range(100, 112), -1, -2, -3]


def test_pooling_gives_mean_scaled_mean_and_largest_element() -> None:
    x = torch.rand(2, 3, 9, 9)
    flat = x.flatten(2)
    torch.testing.assert_close(GlobalPooling()(x), torch.cat([flat.mean(2), -0.5 * flat.mean(2), flat.amax(2)], 1))


@pytest.mark.medium
@pytest.mark.parametrize("global_pooling", [True, False])
def test_a_far_corner_is_seen_only_through_global_pooling(global_pooling: bool) -> None:
    game = board_with_pass(planes=2)
    network = trained_network(game, blocks=2, channels=16, global_pooling=global_pooling)
    observations = positions(game, 8)
    before, _ = outputs(network, observations)
    observations[:, :, 8, 8] = 1 - observations[:, :, 8, 8]
    after, _ = outputs(network, observations)
    assert torch.equal(before[:, 0], after[:, 0]) is not global_pooling
    assert not torch.equal(before[:, 80], after[:, 80])


def test_the_weights_fit_every_board_whose_actions_are_points() -> None:
    small, large = (build_network(board_with_pass(size), blocks=2, channels=8) for size in (9, 13))
    large.load_state_dict(small.state_dict())


@pytest.mark.parametrize(("channels", "pooled"), [(4, 2), (32, 16), (64, 32), (96, 32), (128, 32), (256, 64)])
def test_about_a_quarter_of_the_channels_is_pooled(channels: int, pooled: int) -> None:
    assert count_pooled_channels(channels) == pooled


def test_an_unknown_network_type_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match="'perceiver'; the networks are bottleneck, resnet, spiking"):
        build_network(CONNECT_FOUR, type="perceiver")
