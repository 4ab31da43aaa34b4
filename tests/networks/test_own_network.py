"""A network in a user's own file is built, evaluated, saved and restored like a shipped one."""

from pathlib import Path

import numpy as np
import pytest
import torch

from keima.config.own_modules import keep_module
from keima.games import load_game
from keima.learning.muon import hidden_matrices
from keima.networks.files.model import Model, decode_model, describe_model, encode_model
from keima.networks.inference.evaluator import Evaluator
from keima.networks.network import build_network

NETWORK = """
import torch
from torch import nn

from keima.networks.policy_value import OwnNetwork
from keima.networks.value_heads import make_value_head


class Small(OwnNetwork):
    def __init__(self, game, width):
        super().__init__()
        planes, height, columns = game.observation_shape
        self.body = nn.Linear(planes * height * columns, width)
        self.policy = nn.Linear(width, game.num_actions)
        self.value = make_value_head(width, game.max_return if game.num_players == 1 else None, game.num_values)

    def forward(self, observations):
        x = torch.relu(self.body(observations.flatten(1)))
        return self.policy(x), self.value(x)


def network(game, width=16):
    return Small(game, width)
"""


def written(path: Path, text: str = NETWORK) -> str:
    path.write_text(text, encoding="utf-8")
    return keep_module(path)


def test_it_evaluates_positions_and_travels_as_a_model(tmp_path: Path) -> None:
    game, name = load_game("tic_tac_toe"), written(tmp_path / "small.py")
    network = build_network(game, type=name, width=8)
    assert network.settings() == {"type": name, "width": 8}
    weights = {key: tensor.to(torch.bfloat16).float() for key, tensor in network.state_dict().items()}
    model = Model(description=describe_model(game, network.settings(), 3), weights=weights)
    again = decode_model(encode_model(model, game)).build(game)
    planes = game.observe(game.initial_state())[None]
    ours, theirs = (Evaluator(each, game, dtype="float32")(planes) for each in (model.build(game), again))
    assert all(np.array_equal(first, second) for first, second in zip(ours, theirs, strict=True))


def test_tensors_of_it_that_are_no_weights_have_memory_when_a_model_is_read(tmp_path: Path) -> None:
    buffer = '        self.register_buffer("scale", torch.ones(1), persistent=False)\n'
    text = NETWORK.replace("        self.body =", f"{buffer}        self.body =")
    text = text.replace("torch.relu(", "self.scale * torch.relu(")
    game = load_game("tic_tac_toe")
    network = build_network(game, type=written(tmp_path / "scaled.py", text))
    model = Model(description=describe_model(game, network.settings(), 3), weights=network.state_dict())
    again = decode_model(encode_model(model, game)).build(game)
    assert again(torch.zeros(1, *game.observation_shape))[0].shape == (1, game.num_actions)


def test_muon_needs_a_tower(tmp_path: Path) -> None:
    network = build_network(load_game("tic_tac_toe"), type=written(tmp_path / "small.py"))
    with pytest.raises(ValueError, match=r"training\.optimizer: muon .* use adamw"):
        hidden_matrices(network)


@pytest.mark.parametrize(
    ("text", "options", "problem"),
    [
        ("answer = 42\n", {}, r"small\.py: define a function network\(game\)"),
        ("def network(game):\n    return 42\n", {}, r"network\(\) must return a keima.OwnNetwork"),
        ("def network(game):\n    return game.nothing\n", {}, r"small\.py, line 2: AttributeError"),
        (NETWORK, {"depth": 3}, r"network 'small' has no option depth"),
    ],
)
def test_a_file_without_a_network_is_refused(tmp_path: Path, text: str, options: dict[str, int], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        build_network(load_game("tic_tac_toe"), type=written(tmp_path / "small.py", text), **options)


def test_a_shipped_network_takes_no_options() -> None:
    with pytest.raises(ValueError, match="a network of type resnet has no option width"):
        build_network(load_game("tic_tac_toe"), width=8)
