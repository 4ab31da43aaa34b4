import copy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import snntorch
import torch
from torch import nn

import keima.networks.architectures.spiking_layers
import keima.networks.inference.evaluator
from keima.base.reports.run_reports import SpikeReport
from keima.coach.summary import merge_reports
from keima.games import Game, load_game
from keima.learning.learner import Learner, copy_to_device
from keima.networks.architectures.resnet import ResNet
from keima.networks.architectures.spike_counts import measure_spikes
from keima.networks.architectures.spiking import SpikingResNet
from keima.networks.architectures.spiking_layers import Neurons
from keima.networks.files.model import Model, canary_positions, check_canary, decode_model, describe_model, encode_model
from keima.networks.inference.evaluator import Evaluator, fold_network
from keima.networks.network import build_network
from keima.networks.policy_value import as_policy_value_network
from keima.report.files.run_files import report_scalars
from keima.report.tables import history_columns
from keima.report.terminal.plain import iteration_line
from tests.example_reports import iteration
from tests.small_networks import (
    CONNECT_FOUR,
    TIC_TAC_TOE,
    FixedWindow,
    board_with_pass,
    look_trained,
    positions,
    random_batch,
)

TWENTY48 = load_game("twenty48")
GAMES = [CONNECT_FOUR, TIC_TAC_TOE, board_with_pass(), TWENTY48]
SMALL: dict[str, Any] = {"type": "spiking", "blocks": 2, "channels": 8, "global_pooling": True, "time_steps": 3}


def seen(game: Game, count: int) -> torch.Tensor:
    observations = canary_positions(game, count) if game is TWENTY48 else positions(game, count)
    return torch.from_numpy(observations)


def trained(game: Game = CONNECT_FOUR, **options: Any) -> SpikingResNet:
    """Return a network that looks trained."""
    torch.manual_seed(1)
    network = build_network(game, **SMALL | options)
    assert isinstance(network, SpikingResNet)
    look_trained(network, 0.3)
    return network.eval()


def answers(network: nn.Module, observations: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    with torch.inference_mode():
        return network.eval()(observations)


def test_a_neuron_leaks_accumulates_fires_above_its_threshold_and_is_then_lowered() -> None:
    currents = torch.tensor([[0.9, 1.5, 0.6, 3.0], [0.0, 0.0, 0.6, 0.0], [0.6, 0.0, 0.6, 0.0]])[
        :, :, None, None
    ]  # by step
    # Membranes: 0.9, 0.45, 0.825; 1.5, -0.25, -0.125; 0.6, 0.9, 1.05; 3, 0.5, 0.25.
    assert Neurons(3)(currents)[:, :, 0, 0].tolist() == [[0, 1, 0, 1], [0, 0, 0, 0], [0, 0, 1, 0]]


def by_the_library(currents: torch.Tensor) -> torch.Tensor:
    """Return the answers of snntorch's neurons to currents by time step ``[T, ...]``."""
    cell = snntorch.Leaky(beta=0.5, threshold=1.0)
    membrane, spikes = torch.zeros_like(currents[0]), []
    for current in currents:
        spike, membrane = cell(current, membrane)
        spikes.append(spike)
    return torch.stack(spikes)


KERNELS = pytest.mark.parametrize("kernels", [True, False], ids=["kernels", "torch"])
LAYOUT = pytest.mark.parametrize(
    "layout", [torch.contiguous_format, torch.channels_last], ids=["channels first", "channels last"]
)


@KERNELS
@LAYOUT
@pytest.mark.parametrize("steps", [1, 2, 5])
def test_neurons_and_their_gradients_are_those_of_the_library(
    monkeypatch: pytest.MonkeyPatch, steps: int, layout: torch.memory_format, kernels: bool
) -> None:
    monkeypatch.setattr(keima.networks.architectures.spiking_layers, "can_use_kernels", lambda currents: kernels)
    torch.manual_seed(1)
    currents = (1.5 * torch.randn(steps * 3, 5, 9, 11)).contiguous(memory_format=layout).requires_grad_()
    pull = torch.randn(steps * 3, 5, 9, 11)
    spikes = Neurons(steps)(currents)
    theirs = by_the_library(currents.unflatten(0, (steps, 3))).flatten(0, 1)
    assert torch.equal(spikes, theirs) and 0.1 < spikes.mean() < 0.5
    (gradient,) = torch.autograd.grad(spikes, currents, pull)
    (wanted,) = torch.autograd.grad(theirs, currents, pull)
    torch.testing.assert_close(gradient, wanted, rtol=1e-5, atol=1e-6)


@KERNELS
def test_16_bit_currents_meet_membranes_that_are_not_rounded(monkeypatch: pytest.MonkeyPatch, kernels: bool) -> None:
    monkeypatch.setattr(keima.networks.architectures.spiking_layers, "can_use_kernels", lambda currents: kernels)
    torch.manual_seed(1)
    short = (1.5 * torch.randn(4 * 3, 5, 9, 11)).to(torch.bfloat16).requires_grad_()
    wide = short.detach().float().requires_grad_()
    spikes, wanted = Neurons(4)(short), Neurons(4)(wide)
    assert spikes.dtype == torch.bfloat16 and torch.equal(spikes.float(), wanted)
    pull = torch.randn(4 * 3, 5, 9, 11).to(torch.bfloat16)
    (gradient,) = torch.autograd.grad(spikes, short, pull)
    (exact,) = torch.autograd.grad(wanted, wide, pull.float())
    assert torch.equal(gradient, exact.to(torch.bfloat16))


def test_a_neuron_s_slope_is_steepest_at_the_threshold_and_reaches_back_in_time() -> None:
    currents = torch.tensor([[1.0, 0.2], [0.0, 0.0]])[:, :, None, None].requires_grad_()
    Neurons(2)(currents).sum().backward()
    assert currents.grad is not None
    (near, far), (near_later, _) = currents.grad[:, :, 0, 0].tolist()
    assert near > far > 0 and near > near_later > 0


@pytest.mark.parametrize("game", GAMES, ids=lambda game: game.name)
@pytest.mark.parametrize("global_pooling", [True, False])
def test_a_spiking_network_answers_like_any_other(game: Game, global_pooling: bool) -> None:
    network = build_network(game, **SMALL | {"global_pooling": global_pooling})
    logits, value_logits = answers(network, seen(game, 5))
    assert logits.shape == (5, game.num_actions)
    assert as_policy_value_network(network).value.values(value_logits).shape == (5,)


@pytest.mark.medium
@pytest.mark.parametrize("game", [CONNECT_FOUR, TIC_TAC_TOE, board_with_pass()], ids=lambda game: game.name)
def test_a_new_spiking_network_has_hardly_any_preference(game: Game) -> None:
    torch.manual_seed(0)
    logits, value_logits = answers(build_network(game, type="spiking"), seen(game, 16))
    assert logits.softmax(1).max() < 1.5 / game.num_actions
    assert torch.tanh(value_logits / 2).abs().max() < 0.2


def test_it_has_the_weights_of_a_residual_network_and_four_time_steps_by_default() -> None:
    spiking, plain = (build_network(CONNECT_FOUR, type=kind, blocks=3, channels=8) for kind in ("spiking", "resnet"))
    assert isinstance(spiking, SpikingResNet) and isinstance(plain, ResNet)
    assert spiking.time_steps == 4
    assert sum(p.numel() for p in spiking.parameters()) == sum(p.numel() for p in plain.parameters())


def test_neurons_see_only_spikes_between_the_first_layer_and_the_heads() -> None:
    network = trained(blocks=3)
    inputs: list[torch.Tensor] = []
    for module in network.tower.modules():
        if isinstance(module, nn.Conv2d):
            module.register_forward_hook(lambda _, x, __: inputs.append(x[0]))
    answers(network, seen(CONNECT_FOUR, 4))
    assert len(inputs) == 7 and all(set(x.unique().tolist()) <= {0.0, 1.0} for x in inputs)


def test_no_position_depends_on_another_or_on_the_previous_call() -> None:
    network, observations = trained(), seen(CONNECT_FOUR, 12)
    together = answers(network, observations)
    for wanted, again in zip(together, answers(network, observations), strict=True):
        assert torch.equal(wanted, again)
    for row in (7, 0, 11):
        for wanted, alone in zip(together, answers(network, observations[row : row + 1]), strict=True):
            torch.testing.assert_close(alone[0], wanted[row], rtol=0, atol=1e-4)


def test_more_time_steps_change_the_answers() -> None:
    short, long = trained(time_steps=2), trained(time_steps=6)
    long.load_state_dict(short.state_dict())
    assert not torch.allclose(
        answers(short, seen(CONNECT_FOUR, 4))[0], answers(long, seen(CONNECT_FOUR, 4))[0], atol=0.01
    )


@pytest.mark.parametrize("game", [CONNECT_FOUR, TIC_TAC_TOE, TWENTY48], ids=lambda game: game.name)
def test_gradients_reach_all_parameters(game: Game) -> None:
    network = trained(game, blocks=3).train()
    logits, value_logits = network(seen(game, 8))
    (
        logits.square().sum() + as_policy_value_network(network).value.loss(value_logits, torch.full((8,), 0.7))
    ).backward()
    assert not [
        name
        for name, p in network.named_parameters()
        if p.grad is None or not p.grad.isfinite().all() or not p.grad.any()
    ]


def test_norms_take_their_statistics_over_positions_and_time_steps() -> None:
    network = trained().train()
    seen_by_norm: list[torch.Tensor] = []
    norm = network.get_submodule("tower.0.first.norm")
    assert isinstance(norm, nn.BatchNorm2d) and norm.running_mean is not None
    norm.register_forward_hook(lambda _, x, __: seen_by_norm.append(x[0]))
    before = norm.running_mean.clone()
    network(seen(CONNECT_FOUR, 8))
    assert len(seen_by_norm) == 1 and len(seen_by_norm[0]) == 3 * 8
    torch.testing.assert_close(norm.running_mean, 0.9 * before + 0.1 * seen_by_norm[0].mean((0, 2, 3)))


@pytest.mark.medium
@pytest.mark.parametrize("game", [TIC_TAC_TOE, CONNECT_FOUR], ids=lambda game: game.name)
def test_one_batch_can_be_memorized(game: Game) -> None:
    torch.manual_seed(0)
    network = build_network(game, **SMALL | {"blocks": 1, "channels": 16})
    taught = Learner(network, device="cpu", learning_rate=0.01, warmup_steps=10)
    batch = copy_to_device(random_batch(game, 16), taught.device)
    for _ in range(100):
        report = taught.descend(batch)
    assert report.metrics["policy_loss"] < 0.1 and report.metrics["value_loss"] < 0.1


def test_steps_are_reproducible_and_leave_nothing_behind() -> None:
    weights = []
    for _ in range(2):
        torch.manual_seed(0)
        taught = Learner(build_network(TIC_TAC_TOE, **SMALL), device="cpu", batch_size=16)
        taught.train(FixedWindow(TIC_TAC_TOE, 64), 3, 7)
        weights.append(taught.weights())
        copy.deepcopy(taught.network)  # which fails with what a step computed
    assert all(torch.equal(tensor, weights[1][name]) for name, tensor in weights[0].items())


@pytest.mark.medium
@pytest.mark.parametrize("game", GAMES, ids=lambda game: game.name)
def test_an_evaluator_gives_its_spiking_network_s_answers(game: Game) -> None:
    network, observations = trained(game), seen(game, 40)
    evaluate = Evaluator(network, game, device="cpu")
    assert evaluate.describe() == "event-driven float32 on cpu"  # with fewer bits, other neurons would fire
    logits, value_logits = answers(network, observations)
    for found, wanted in zip(
        evaluate(observations.numpy()),
        (logits, as_policy_value_network(network).value.values(value_logits)),
        strict=True,
    ):
        np.testing.assert_allclose(found, wanted.numpy(), rtol=1e-4, atol=1e-4)
    new = trained(game, blocks=2)
    with torch.no_grad():
        new.stem.norm.bias.add_(0.3)  # type: ignore[union-attr,operator]
    evaluate.load(new.state_dict())
    found, _ = evaluate(observations.numpy())
    np.testing.assert_allclose(found, answers(new, observations)[0].numpy(), rtol=1e-4, atol=1e-4)
    assert not np.allclose(found, logits.numpy(), atol=1e-2)


def test_all_norms_are_merged_for_play_except_on_a_cuda_device() -> None:
    network = trained()
    assert not any(isinstance(module, nn.BatchNorm2d) for module in fold_network(network).modules())
    kept = keima.networks.inference.evaluator.prepare_network(network, torch.device("cuda"))
    assert sum(isinstance(module, nn.BatchNorm2d) for module in kept.modules()) == 8


@pytest.mark.gpu
def test_a_captured_graph_gives_the_spiking_network_s_answers() -> None:
    network, observations = trained(blocks=3), seen(CONNECT_FOUR, 40)
    model = Model(description=describe_model(CONNECT_FOUR, SMALL | {"blocks": 3}, 1), weights=network.state_dict())
    received = decode_model(encode_model(model, CONNECT_FOUR))
    evaluate = Evaluator(received.build(CONNECT_FOUR), CONNECT_FOUR, device="cuda")
    assert evaluate.describe() == "torch float32 on cuda:0 with graphs"
    check_canary(received, CONNECT_FOUR, evaluate)
    logits, _ = answers(received.build(CONNECT_FOUR), observations)
    np.testing.assert_allclose(evaluate(observations.numpy())[0], logits.numpy(), rtol=1e-2, atol=1e-2)


def test_a_sent_spiking_model_plays_the_same() -> None:
    network = trained()
    sent = Model(
        description=describe_model(CONNECT_FOUR, as_policy_value_network(network).settings(), 7),
        weights=network.state_dict(),
    )
    data = encode_model(sent, CONNECT_FOUR)
    got = decode_model(data)
    assert got.description.network == SMALL and encode_model(got, CONNECT_FOUR) == data
    evaluate = Evaluator(got.build(CONNECT_FOUR), CONNECT_FOUR, device="cpu")
    check_canary(got, CONNECT_FOUR, evaluate)
    evaluate.load(got.weights)
    check_canary(got, CONNECT_FOUR, evaluate)


def test_time_steps_are_refused_for_other_networks() -> None:
    with pytest.raises(ValueError, match=r"network\.time_steps: a network of type resnet has no time steps"):
        build_network(CONNECT_FOUR, time_steps=4)


def three_points() -> SpikingResNet:
    """Return a network on a board of three points in a row, one channel, two steps; its block passes currents on and
    adds nothing.
    """
    network = SpikingResNet(
        observation_shape=(1, 1, 3),
        num_actions=3,
        policy_planes=1,
        blocks=1,
        channels=1,
        global_pooling=False,
        time_steps=2,
    ).eval()
    with torch.no_grad():
        for name, weight in (("stem", 1.0), ("tower.0.first", 2.0)):
            kernel = network.get_parameter(f"{name}.conv.weight")
            kernel.zero_()
            kernel[0, 0, 1, 1] = weight
    return network


def test_spikes_and_operations_agree_with_a_count_by_hand() -> None:
    report = measure_spikes(three_points(), torch.tensor([[0, 0.9, 1.5], [0, 0, 0]])[:, None, None])
    # Currents of 0.9 fire at the second step, those of 1.5 at both; the resulting currents of 2 fire at once. So each
    # of
    # the three layers fires once in the middle and twice on the right, where a spike passes 3 and 2 synapses of a
    # convolution.
    assert report.layers == {"tower.0.outer": 3 / 12, "tower.0.inner": 3 / 12, "last": 3 / 12}
    assert report.firing_rate == 9 / 36
    assert report.synaptic_operations == 2 * (3 + 2 * 2) / 2  # two convolutions; two positions, one of which is empty
    heads = 3 * 32 + 3 * 32 + 3 * 32 + 96 * 64 + 64  # pooled map, policy's map, its logits, value
    assert report.multiply_accumulates == 7 + heads
    assert report.without_spikes == 7 + 2 * 7 + heads


def test_pooled_boards_cost_multiplications_at_each_step() -> None:
    network, plain = trained(blocks=2), trained(blocks=2, global_pooling=False)
    pooled, bare = (measure_spikes(one, seen(CONNECT_FOUR, 6)) for one in (network, plain))
    weights = network.get_parameter("tower.1.bias.weight").numel()  # the block's; the policy head has 96 x 32
    assert pooled.multiply_accumulates - bare.multiply_accumulates == 3 * weights + 96 * 32


def test_if_all_neurons_always_fire_each_step_costs_as_much_as_without_spikes() -> None:
    network = trained(blocks=2, global_pooling=False)
    with torch.no_grad():
        for module in network.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.bias.fill_(100.0)
    report = measure_spikes(network, seen(CONNECT_FOUR, 2))
    assert report.firing_rate == 1
    assert report.synaptic_operations == pytest.approx(3 * (report.without_spikes - report.multiply_accumulates))


def test_the_learner_reports_spikes_only_for_spiking_networks() -> None:
    reports = []
    for options in (SMALL, {"blocks": 1, "channels": 4}):
        taught = Learner(build_network(TIC_TAC_TOE, **options), device="cpu", batch_size=16)
        before = taught.average.network.state_dict()
        reports.append(taught.train(FixedWindow(TIC_TAC_TOE, 64), 1, 0))
        assert all(torch.equal(tensor, before[name]) for name, tensor in taught.average.network.state_dict().items())
    spiking, plain = reports
    assert plain.spikes is None
    assert (
        spiking.spikes
        and 0 < spiking.spikes.firing_rate < 1
        and set(spiking.spikes.layers) > {"tower.1.watchers", "last"}
    )
    assert merge_reports([spiking, spiking]).spikes == spiking.spikes


def test_spikes_are_shown_everywhere_and_omitted_for_other_networks() -> None:
    spikes = SpikeReport(
        firing_rate=0.125,
        layers={"last": 0.25},
        synaptic_operations=1.23e6,
        multiply_accumulates=45_600.0,
        without_spikes=2.5e6,
    )
    plain = iteration(3)
    assert plain.learner
    spiking = replace(plain, learner=replace(plain.learner, spikes=spikes))
    assert (
        "firing 12.5 %: 1.23M synaptic + 45.6k dense operations a position (2.50M dense without spikes)"
        in iteration_line(spiking)
    )
    assert "firing" not in iteration_line(plain)
    metrics = {name: value for name, value in report_scalars(spiking).items() if name not in report_scalars(plain)}
    assert metrics == {
        "learner/firing_rate": 0.125,
        "learner/firing_rate/last": 0.25,
        "learner/synaptic_operations": 1.23e6,
        "learner/multiply_accumulates": 45_600.0,
        "learner/without_spikes": 2.5e6,
    }
    cells = {
        column.title: (column.cell(spiking), column.cell(plain))
        for column in history_columns([])
        if column.title in ("Firing", "Syn. ops")
    }
    assert cells == {"Firing": ("12.5 %", ""), "Syn. ops": ("1.23M", "")}
