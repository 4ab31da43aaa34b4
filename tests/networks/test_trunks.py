"""Networks with other towers than the residual network's, and squeeze-and-excitation."""

from typing import Any

import numpy as np
import pytest
import torch

from keima.games import Game, load_game
from keima.learning.learner import Learner, copy_to_device
from keima.networks.architectures.fused import Float32, FusedResNet
from keima.networks.architectures.layers import SqueezeExcitation
from keima.networks.architectures.resnet import ResNet
from keima.networks.files.model import Model, check_canary, decode_model, describe_model, encode_model
from keima.networks.inference.cuda import make_fused_forward
from keima.networks.inference.evaluator import Evaluator, fold_network
from keima.networks.network import build_network
from keima.networks.policy_value import as_policy_value_network
from keima.replay.window import Batch
from tests.small_networks import CONNECT_FOUR, TIC_TAC_TOE, board_with_pass, look_trained, positions

TRUNKS: dict[str, dict[str, Any]] = {
    "excited resnet": {"squeeze_excitation": True},
    "bottleneck": {"type": "bottleneck"},
    "excited bottleneck": {"type": "bottleneck", "squeeze_excitation": True},
}
GAMES = [CONNECT_FOUR, TIC_TAC_TOE, board_with_pass()]
every_trunk = pytest.mark.parametrize("trunk", TRUNKS.values(), ids=TRUNKS)


def built(game: Game, trunk: dict[str, Any], **others: Any) -> ResNet:
    torch.manual_seed(1)
    network = build_network(game, **{"blocks": 2, "channels": 24, **trunk, **others})
    assert isinstance(network, ResNet)
    return network.eval()


@every_trunk
@pytest.mark.parametrize("game", GAMES, ids=lambda game: game.name)
def test_a_trunk_returns_a_logit_for_each_action_and_one_for_the_value(game: Game, trunk: dict[str, Any]) -> None:
    logits, value_logits = built(game, trunk)(torch.from_numpy(positions(game, 5)))
    assert logits.shape == (5, game.num_actions) and value_logits.shape == (5,)


@every_trunk
def test_a_new_trunk_passes_its_input_through(trunk: dict[str, Any]) -> None:
    x = torch.rand(3, 24, 6, 7)
    torch.testing.assert_close(built(CONNECT_FOUR, trunk).tower(x), x)


@every_trunk
def test_an_answer_depends_on_no_number_that_must_be_read_from_the_device(trunk: dict[str, Any]) -> None:
    network = built(CONNECT_FOUR, trunk).to("meta")  # where there are no numbers to read
    logits, _ = network(torch.empty(3, *CONNECT_FOUR.observation_shape, device="meta"))
    assert logits.shape == (3, CONNECT_FOUR.num_actions)


@every_trunk
def test_a_model_file_describes_its_trunk_and_the_evaluator_plays_it(trunk: dict[str, Any]) -> None:
    network = built(CONNECT_FOUR, trunk)
    look_trained(network, 0.3)
    description = describe_model(CONNECT_FOUR, as_policy_value_network(network).settings(), 3)
    sent = decode_model(
        encode_model(Model(description=description, weights=network.state_dict()), CONNECT_FOUR, dtype="float16")
    )
    received = sent.build(CONNECT_FOUR)
    assert isinstance(received, ResNet) and received.shape == network.shape and type(received) is type(network)
    evaluator = Evaluator(received, CONNECT_FOUR, device="cpu", dtype="float32")
    check_canary(sent, CONNECT_FOUR, evaluator, tolerance=0.001)
    logits, _ = evaluator(positions(CONNECT_FOUR, 9))
    with torch.inference_mode():
        exact, _ = network(torch.from_numpy(positions(CONNECT_FOUR, 9)))
    np.testing.assert_allclose(logits, exact.numpy(), atol=0.05)


@every_trunk
def test_operators_for_plain_blocks_are_not_tried(trunk: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    network = built(CONNECT_FOUR, trunk)
    shape = CONNECT_FOUR.observation_shape
    assert network.runtime(shape, torch.float32) is None
    assert make_fused_forward(network, shape, torch.device("cpu"), torch.bfloat16) is None
    assert not caplog.text


def test_fused_operators_refuse_what_they_would_leave_out() -> None:
    network = fold_network(built(CONNECT_FOUR, {"squeeze_excitation": True}))
    assert isinstance(network, ResNet)
    with pytest.raises(TypeError, match="squeeze-and-excitation"):
        FusedResNet(network, Float32(), (6, 7))


@pytest.mark.medium
@every_trunk
def test_a_trunk_learns_which_move_goes_with_which_position(trunk: dict[str, Any]) -> None:
    batch = Batch.empty(TIC_TAC_TOE, 16)
    batch.observations[:] = positions(TIC_TAC_TOE, 16)
    batch.legal[:], batch.policy_mask[:] = True, 1
    batch.policies[:] = np.eye(9)[np.unique(batch.observations, axis=0, return_inverse=True)[1] % 9]
    batch.values[:] = 0
    learner = Learner(built(TIC_TAC_TOE, trunk), device="cpu", learning_rate=0.01, warmup_steps=1)
    losses = [float(learner.descend(copy_to_device(batch, learner.device)).metrics["policy_loss"]) for _ in range(40)]
    assert losses[-1] < 0.3 < losses[0]


def test_squeeze_and_excitation_sees_a_far_corner_without_global_pooling() -> None:
    game = board_with_pass(planes=2)
    network = built(game, TRUNKS["excited resnet"], global_pooling=False)
    look_trained(network, 0.3)
    observations = torch.from_numpy(positions(game, 8))
    before = network(observations)[0]
    observations[:, :, 8, 8] = 1 - observations[:, :, 8, 8]
    assert not torch.equal(before[:, 0], network(observations)[0][:, 0])


def test_excitation_scales_and_shifts_by_the_means_over_the_board() -> None:
    layer = SqueezeExcitation(4)
    x = torch.randn(2, 4, 3, 3)
    scale, bias = layer.scale_and_bias(torch.relu(layer.hidden(x.mean((2, 3))))).split(4, 1)
    torch.testing.assert_close(layer(x)[1, 2], torch.sigmoid(scale[1, 2]) * x[1, 2] + bias[1, 2])


def test_trunks_have_auxiliary_heads_too() -> None:
    heads = {"predict_ownership": True, "predict_score": True, "predict_reply": True}
    network = build_network(load_game("go", size=7), type="bottleneck", blocks=1, channels=16, **heads)
    assert set(network.auxiliary(*network.features(torch.rand(2, 14, 7, 7)))) == {"reply", "ownership", "score"}  # type: ignore[operator]


def test_squeeze_and_excitation_is_refused_where_there_are_no_residual_blocks_of_numbers() -> None:
    with pytest.raises(ValueError, match="squeeze_excitation: a network of type spiking has no such blocks"):
        build_network(CONNECT_FOUR, type="spiking", squeeze_excitation=True)
