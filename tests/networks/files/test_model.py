"""Models with their weights: sent, built, compared by their canary, and saved."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from keima.games import Game
from keima.networks.files.container import CorruptModel
from keima.networks.files.model import (
    Model,
    canary_positions,
    check_canary,
    decode_model,
    describe_model,
    encode_model,
    load_safetensors,
    save_safetensors,
)
from keima.networks.inference.evaluator import Evaluator
from tests.networks.files.forged_files import DATA, HEADER, PLANES, SMALL, join, model
from tests.small_networks import CONNECT_FOUR, TIC_TAC_TOE, trained_network
from tests.sources import ROOT


@pytest.mark.parametrize("game", [CONNECT_FOUR, TIC_TAC_TOE], ids=lambda game: game.name)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_weights_arrive_rounded_to_16_bits_and_statistics_exactly(game: Game, dtype: Any) -> None:
    sent = model(game)
    got = decode_model(encode_model(sent, game, dtype=dtype))
    assert got.description == sent.description and list(got.weights) == list(sent.weights)
    for name, weight in sent.weights.items():
        rounded = weight.to(getattr(torch, dtype)).float() if weight.ndim > 1 else weight
        assert torch.equal(got.weights[name], rounded), name


def test_a_received_model_builds_a_network_that_plays() -> None:
    got = decode_model(DATA)
    evaluate = Evaluator(got.build(CONNECT_FOUR), CONNECT_FOUR, device="cpu")
    check_canary(got, CONNECT_FOUR, evaluate)


BUILD = """
import sys
import torch
from keima.games import load_game
from tests.small_networks import random_batch
from tests.small_run import GAME, NETWORK
from keima.learning.learner import Learner, copy_to_device
from keima.networks.files.model import Model, describe_model
from keima.networks.network import build_network

def compiler():
    return {"torch._dynamo", "sympy"} & set(sys.modules)

TOWERS = (
    {"type": "bottleneck", "blocks": 1, "channels": 8, "squeeze_excitation": True},
    {"type": "spiking", "blocks": 1, "channels": 8},
)
for game, shape in [(GAME, NETWORK), (load_game("twenty48"), NETWORK), *((GAME, tower) for tower in TOWERS)]:
    weights = build_network(game, **shape).state_dict()
    built = Model(description=describe_model(game, shape, 1), weights=weights).build(game).state_dict()
    assert all((built[name] == weights[name]).all() for name in weights) and built.keys() == weights.keys()
    assert not compiler(), (game.name, shape)

batch = copy_to_device(random_batch(GAME, 16), torch.device("cpu"))
for optimizer in ("adamw", "muon", "sgd"):
    learner = Learner(build_network(GAME, **NETWORK), device="cpu", batch_size=16, optimizer=optimizer)
    learner.descend(batch)
    learner.restore(learner.state())
    assert not compiler(), optimizer
"""


@pytest.mark.medium
def test_networks_are_built_and_trained_without_the_compiler_of_pytorch_whose_import_takes_seconds() -> None:
    subprocess.run([sys.executable, "-c", BUILD], cwd=ROOT, check=True, timeout=120)


def test_a_model_of_a_network_type_that_has_left_is_refused_with_the_types_that_there_are() -> None:
    network = {"type": "attention", "blocks": 1, "channels": 8, "global_pooling": True, "squeeze_excitation": False}
    old = replace(model(), description=describe_model(CONNECT_FOUR, network, 1))
    with pytest.raises(CorruptModel, match="no network called 'attention'; the networks are bottleneck, resnet, spik"):
        old.build(CONNECT_FOUR)


def test_a_model_without_a_head_that_has_left_is_read_and_one_with_it_is_refused() -> None:
    network = SMALL | {"type": "resnet", "predict_soft_policy": False}
    old = replace(model(), description=describe_model(CONNECT_FOUR, network, 1))
    assert "predict_soft_policy" not in old.description.network
    old.build(CONNECT_FOUR)
    soft = replace(old, description=describe_model(CONNECT_FOUR, network | {"predict_soft_policy": True}, 1))
    with pytest.raises(CorruptModel, match="a network of type resnet has no option predict_soft_policy"):
        soft.build(CONNECT_FOUR)


def test_a_built_network_has_copies_of_the_weights() -> None:
    got = decode_model(DATA)
    before = {name: tensor.clone() for name, tensor in got.weights.items()}
    with torch.no_grad():
        for weight in got.build(CONNECT_FOUR).parameters():
            weight.zero_()
    assert all(torch.equal(tensor, before[name]) for name, tensor in got.weights.items())


def test_encoding_a_model_again_gives_the_same_bytes() -> None:
    assert encode_model(decode_model(DATA), CONNECT_FOUR) == DATA


def changed(name: str, value: float) -> Model:
    whole = model()
    weights = dict(whole.weights)
    weights[name] = torch.full_like(weights[name], value)
    return replace(whole, weights=weights)


@pytest.mark.parametrize(("value", "dtype"), [(float("nan"), "bfloat16"), (float("inf"), "bfloat16"), (1e5, "float16")])
def test_weights_that_are_not_finite_are_not_sent(value: float, dtype: Any) -> None:
    with pytest.raises(CorruptModel, match=r"stem\.conv\.weight"):
        encode_model(changed("stem.conv.weight", value), CONNECT_FOUR, dtype=dtype)


def test_weights_that_are_not_finite_are_not_accepted() -> None:
    with pytest.raises(CorruptModel, match=r"stem\.conv\.weight has infinite"):
        decode_model(join(HEADER, b"\xff" * len(PLANES)))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"network": SMALL | {"blocks": 3}}, "not those of a network"),
        ({"network": SMALL | {"blocks": 4096}}, "fewer tensors than blocks"),  # building them all would take long
        ({"network": SMALL | {"blocks": "all"}}, "not those of a network"),
        ({"network": SMALL | {"channels": 16}}, "not those of a network"),
        ({"network": SMALL | {"heads": 2}}, "not those of a network"),
        ({"network": SMALL | {"type": "other"}}, "not those of a network"),
        ({"rules_version": 3}, "by rules version 3.*update the older program"),
        ({"game": "go"}, "it plays go"),
        ({"options": {"size": 9}}, r"connect_four \{'size': 9\}"),
    ],
)
def test_a_model_of_another_game_or_network_is_not_built(change: dict[str, Any], reason: str) -> None:
    sent = model()
    with pytest.raises(CorruptModel, match=reason):
        replace(sent, description=sent.description.model_copy(update=change)).build(CONNECT_FOUR)


def test_the_canary_detects_other_weights() -> None:
    got = decode_model(DATA)
    other = Evaluator(
        decode_model(encode_model(model(shift=0.05), CONNECT_FOUR)).build(CONNECT_FOUR), CONNECT_FOUR, device="cpu"
    )
    with pytest.raises(CorruptModel, match="times the allowed difference"):
        check_canary(got, CONNECT_FOUR, other)


def test_the_canary_detects_planes_in_another_order() -> None:
    got = decode_model(DATA)
    evaluate = Evaluator(got.build(CONNECT_FOUR), CONNECT_FOUR, device="cpu")
    with pytest.raises(CorruptModel, match="times the allowed difference"):
        check_canary(got, CONNECT_FOUR, lambda observations: evaluate(np.ascontiguousarray(observations[:, ::-1])))


def test_the_canary_detects_an_evaluator_with_wrong_answers() -> None:
    with pytest.raises(CorruptModel, match="nan times"):
        check_canary(
            decode_model(DATA),
            CONNECT_FOUR,
            lambda x: (np.full((len(x), 7), np.nan, np.float32), np.zeros(len(x), np.float32)),
        )


def test_a_network_that_is_sure_of_some_positions_may_be_rounded_in_balanced_ones() -> None:
    got = decode_model(DATA)
    assert got.canary
    value_logits = np.array([15.4, 0.47, 15.4, -9.4])
    sure = replace(
        got, canary=got.canary.model_copy(update={"values": tuple(np.tanh(value_logits / 2).round(5).tolist())})
    )
    rounded = value_logits + 0.008 * 15.4  # relative to the largest, as for sums of 16-bit numbers
    wrong = value_logits[::-1]
    logits = np.array(got.canary.policy_logits)
    check_canary(sure, CONNECT_FOUR, lambda observations: (logits, np.tanh(rounded / 2)))
    with pytest.raises(CorruptModel, match="times the allowed difference"):
        check_canary(sure, CONNECT_FOUR, lambda observations: (logits, np.tanh(wrong / 2)))


def test_canary_positions_come_from_several_games_and_never_change() -> None:
    positions = canary_positions(TIC_TAC_TOE, 12)
    assert np.array_equal(positions[:4], canary_positions(TIC_TAC_TOE))
    assert len(np.unique(positions, axis=0)) > 6


def test_a_saved_model_is_loaded_exactly(tmp_path: Path) -> None:
    saved = model()
    save_safetensors(tmp_path / "best.safetensors", saved)
    loaded = load_safetensors(tmp_path / "best.safetensors")
    assert loaded.description == saved.description
    assert loaded.weights.keys() == saved.weights.keys()
    assert all(torch.equal(loaded.weights[name], tensor) for name, tensor in saved.weights.items())


def test_a_damaged_model_file_is_refused_with_its_name(tmp_path: Path) -> None:
    path = tmp_path / "best.safetensors"
    save_safetensors(path, model())
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(
        CorruptModel, match=r"best\.safetensors is not a model file: it was cut short, .*; copy it again"
    ):
        load_safetensors(path)


def test_a_safetensors_file_of_another_program_is_refused_with_its_name(tmp_path: Path) -> None:
    save_file({"weight": torch.zeros(2)}, tmp_path / "other.safetensors")
    with pytest.raises(CorruptModel, match=r"other\.safetensors is not a model file: it does not name its game"):
        load_safetensors(tmp_path / "other.safetensors")


def test_a_model_file_has_at_most_two_fifths_of_the_weights_bytes() -> None:
    weights = trained_network(CONNECT_FOUR, channels=64).state_dict()
    sent = Model(description=describe_model(CONNECT_FOUR, SMALL | {"channels": 64}, 1), weights=weights)
    assert len(encode_model(sent, CONNECT_FOUR)) < 0.4 * sum(tensor.nbytes for tensor in weights.values())
