"""The guide's network is one of ours, by another name."""

import pytest
import torch
from torch import nn

from keima.games import load_game
from keima.games.twenty48.rules import twenty48
from keima.networks.files.model import Model, decode_model, describe_model, encode_model
from keima.networks.network import build_network
from keima.networks.policy_value import as_policy_value_network
from keima.networks.zero_network import ZeroNetwork
from tests.small_networks import CONNECT_FOUR, positions

GAME = twenty48(height=3, width=4)


def small() -> nn.Module:
    return ZeroNetwork(3, 4, 16, filters=8, blocks=2)


def test_it_is_the_network_that_the_settings_build() -> None:
    network, built = small(), build_network(GAME, blocks=2, channels=8)
    built.load_state_dict(network.state_dict())
    with torch.inference_mode():
        for ours, theirs in zip(
            network.eval()(torch.ones(2, 16, 3, 4)), built.eval()(torch.ones(2, 16, 3, 4)), strict=True
        ):
            torch.testing.assert_close(ours, theirs)


def test_by_default_it_is_as_large_as_in_the_guide() -> None:
    assert as_policy_value_network(ZeroNetwork(4, 4, 16)).settings() == {
        "type": "resnet",
        "blocks": 5,
        "channels": 64,
        "global_pooling": True,
        "squeeze_excitation": False,
    }


def test_it_returns_a_logit_for_each_direction_and_points() -> None:
    with torch.inference_mode():
        network = small().eval()
        logits, value_logits = network(torch.from_numpy(positions(GAME, 5)))
    assert logits.shape == (5, 4)
    assert (as_policy_value_network(network).value.values(value_logits) >= 0).all()


def test_it_can_be_sent_as_a_model_file() -> None:
    network = small()
    model = Model(
        description=describe_model(GAME, as_policy_value_network(network).settings(), 3), weights=network.state_dict()
    )
    received = decode_model(encode_model(model, GAME))
    assert received.build(GAME).state_dict().keys() == network.state_dict().keys()


@pytest.mark.parametrize(
    "settings",
    [
        {"blocks": 1, "channels": 4, "global_pooling": False, "squeeze_excitation": False},
        {"blocks": 4, "channels": 12, "global_pooling": True, "squeeze_excitation": True},
    ],
)
@pytest.mark.parametrize("game", [GAME, CONNECT_FOUR, load_game("go", size=5)], ids=lambda game: game.name)
def test_the_settings_of_any_of_our_networks_can_be_read_from_it(game: object, settings: dict[str, object]) -> None:
    assert as_policy_value_network(build_network(game, **settings)).settings() == {"type": "resnet", **settings}  # type: ignore[arg-type]


def test_another_network_is_refused_by_name() -> None:
    with pytest.raises(
        ValueError, match="Linear is not a network that can be sent to workers: make one with ZeroNetwork"
    ):
        as_policy_value_network(nn.Linear(2, 2)).settings()


def test_an_impossible_board_is_refused() -> None:
    with pytest.raises(ValueError, match="height must be from 2 to 5, not 9"):
        ZeroNetwork(9, 4)
