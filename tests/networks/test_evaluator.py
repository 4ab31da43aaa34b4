import logging
import os
import platform
import resource
import subprocess
import sys
from typing import Any, cast

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

import keima.networks.architectures.fused
from keima.games import Game
from keima.learning.learner import Learner, copy_to_device
from keima.networks.architectures.fused import Float32, FusedRuntime
from keima.networks.architectures.layers import Tower
from keima.networks.inference.evaluator import Evaluator, fold_network, pad_batch_size, pick_device
from tests.small_networks import (
    CONNECT_FOUR,
    TIC_TAC_TOE,
    board_with_pass,
    positions,
    random_batch,
    trained_network,
)
from tests.sources import ROOT

BOARD = board_with_pass()
GAMES = [CONNECT_FOUR, TIC_TAC_TOE, BOARD]
RUNTIMES = [("float32", True), ("float32", False), ("bfloat16", True), ("bfloat16", False)]
BFLOAT16 = 0.02  # the largest difference of a value, and of a logit relative to the largest


def plain(network: nn.Module, observations: NDArray[np.float32]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return the network's answers in float32, one torch call after the other."""
    with torch.inference_mode():
        logits, value_logits = network.eval()(torch.from_numpy(observations))
    return logits.numpy(), torch.tanh(value_logits / 2).numpy()


def evaluator(game: Game, dtype: str, fused: bool, *, max_batch: int = 64) -> Evaluator:
    return Evaluator(trained_network(game, blocks=3), game, device="cpu", dtype=dtype, fused=fused, max_batch=max_batch)


@pytest.mark.parametrize("game", GAMES, ids=lambda game: game.name)
@pytest.mark.parametrize(("dtype", "fused"), RUNTIMES)
def test_an_evaluator_gives_its_network_s_answers(game: Game, dtype: str, fused: bool) -> None:
    observations = positions(game, 64)
    wanted, wanted_values = plain(trained_network(game, blocks=3), observations)
    logits, values = evaluator(game, dtype, fused)(observations)
    tolerance = 1e-4 if dtype == "float32" else BFLOAT16
    np.testing.assert_allclose(logits, wanted, rtol=0, atol=tolerance * np.abs(wanted).max())
    np.testing.assert_allclose(values, wanted_values, rtol=0, atol=tolerance)
    assert logits.dtype == values.dtype == np.float32


@pytest.mark.parametrize("options", [{"channels": 6}, {"channels": 33}, {"global_pooling": False}])
@pytest.mark.parametrize("game", GAMES, ids=lambda game: game.name)
def test_the_fused_operators_serve_every_network(game: Game, options: dict[str, Any]) -> None:
    network = trained_network(game, **options)
    observations = positions(game, 7)
    found = Evaluator(network, game, device="cpu", dtype="float32")
    assert found.describe() == "fused float32 on cpu"
    for ours, wanted in zip(found(observations), plain(network, observations), strict=True):
        np.testing.assert_allclose(ours, wanted, rtol=0, atol=1e-4)


@pytest.mark.parametrize("winograd", [True, False])
def test_both_ways_to_convolve_in_float32_give_the_network_s_answers(winograd: bool) -> None:
    network, observations = trained_network(BOARD, blocks=3, channels=48), positions(BOARD, 40)
    runtime = FusedRuntime(cast(Tower, fold_network(network)), Float32(winograd=winograd), BOARD.observation_shape[1:])
    with torch.inference_mode():
        logits, value_logits = runtime.run(observations, 40)
    wanted, wanted_values = plain(network, observations)
    np.testing.assert_allclose(logits.numpy(), wanted, rtol=0, atol=1e-4)
    np.testing.assert_allclose(torch.tanh(value_logits / 2).numpy(), wanted_values, rtol=0, atol=1e-4)


@pytest.mark.parametrize(("dtype", "fused"), RUNTIMES)
def test_no_row_depends_on_another(dtype: str, fused: bool) -> None:
    evaluate = evaluator(BOARD, dtype, fused)
    observations = positions(BOARD, 40)
    logits, values = evaluate(observations)
    order = np.random.default_rng(3).permutation(40)
    permuted_logits, permuted_values = evaluate(observations[order])
    np.testing.assert_allclose(permuted_logits, logits[order], rtol=0, atol=1e-5)
    np.testing.assert_allclose(permuted_values, values[order], rtol=0, atol=1e-5)
    tolerance = 1e-4 if dtype == "float32" else BFLOAT16
    for n in (0, 17, 39):
        alone_logits, alone_values = evaluate(observations[n : n + 1])
        np.testing.assert_allclose(alone_logits[0], logits[n], rtol=0, atol=tolerance * np.abs(logits[n]).max())
        np.testing.assert_allclose(alone_values[0], values[n], rtol=0, atol=tolerance)


@pytest.mark.medium
@pytest.mark.parametrize("fused", [True, False])
def test_every_batch_size_up_to_the_largest_is_evaluated(fused: bool) -> None:
    evaluate = evaluator(TIC_TAC_TOE, "float32", fused, max_batch=70)
    observations = positions(TIC_TAC_TOE, 70)
    wanted, wanted_values = evaluate(observations)
    for count in range(71):
        logits, values = evaluate(observations[:count])
        assert logits.shape == (count, 9) and values.shape == (count,)
        np.testing.assert_allclose(logits, wanted[:count], rtol=0, atol=1e-4)
        np.testing.assert_allclose(values, wanted_values[:count], rtol=0, atol=1e-4)


def test_batches_are_padded_to_few_sizes_and_by_little() -> None:
    assert [pad_batch_size(count) for count in (1, 63, 64, 65, 127, 128, 129, 257)] == [
        1,
        63,
        64,
        66,
        128,
        128,
        132,
        264,
    ]
    assert all(count <= pad_batch_size(count) <= count * 33 / 32 for count in range(1, 5000))
    assert len({pad_batch_size(count) for count in range(1, 4097)}) <= 63 + 6 * 32 + 1


def test_answers_stay_unchanged_when_the_next_ones_come() -> None:
    evaluate = evaluator(CONNECT_FOUR, "auto", True)
    first, second = positions(CONNECT_FOUR, 2)[:, None]
    logits, values = evaluate(first)
    kept = logits.copy(), values.copy()
    evaluate(second)
    assert np.array_equal(logits, kept[0]) and np.array_equal(values, kept[1])


@pytest.mark.parametrize(
    "observations",
    [np.zeros((65, 2, 6, 7), np.float32), np.zeros((1, 2, 7, 6), np.float32), np.zeros((1, 2, 6, 7), np.float64)],
)
def test_observations_of_another_game_are_refused(observations: NDArray[np.float32]) -> None:
    with pytest.raises(ValueError, match=r"float32 \[up to 64, 2, 6, 7\]"):
        evaluator(CONNECT_FOUR, "auto", True)(observations)


@pytest.mark.parametrize(("dtype", "fused"), RUNTIMES)
def test_a_value_stays_within_its_bounds(dtype: str, fused: bool) -> None:
    network = trained_network(CONNECT_FOUR, spread=1000)
    _, values = Evaluator(network, CONNECT_FOUR, device="cpu", dtype=dtype, fused=fused)(positions(CONNECT_FOUR, 32))
    assert np.abs(values).max() == 1


@pytest.mark.parametrize(("dtype", "fused"), RUNTIMES)
def test_new_weights_replace_the_old_ones(dtype: str, fused: bool) -> None:
    observations = positions(CONNECT_FOUR, 8)
    new = trained_network(CONNECT_FOUR, blocks=3, spread=0.9)
    evaluate = evaluator(CONNECT_FOUR, dtype, fused)
    old = evaluate(observations)
    evaluate.load(new.state_dict())
    wanted = Evaluator(new, CONNECT_FOUR, device="cpu", dtype=dtype, fused=fused)(observations)
    for ours, theirs, before in zip(evaluate(observations), wanted, old, strict=True):
        assert np.array_equal(ours, theirs) and not np.array_equal(ours, before)


def test_weights_of_another_network_are_refused_and_the_old_ones_stay() -> None:
    evaluate, observations = evaluator(CONNECT_FOUR, "auto", True), positions(CONNECT_FOUR, 3)
    before = evaluate(observations)
    with pytest.raises(ValueError, match="another network"):
        evaluate.load(trained_network(CONNECT_FOUR, channels=16).state_dict())
    assert all(np.array_equal(ours, old) for ours, old in zip(evaluate(observations), before, strict=True))


def test_training_a_network_does_not_change_its_evaluator() -> None:
    network, observations = trained_network(CONNECT_FOUR), positions(CONNECT_FOUR, 3)
    evaluate = Evaluator(network, CONNECT_FOUR, device="cpu")
    before = evaluate(observations)
    with torch.no_grad():
        for weight in network.parameters():
            weight.add_(1)
    assert all(np.array_equal(ours, old) for ours, old in zip(evaluate(observations), before, strict=True))


@pytest.mark.medium
@pytest.mark.parametrize(
    "game",
    [pytest.param(game, id=game.name, marks=[pytest.mark.slow] * (game is BOARD)) for game in GAMES],
)
def test_in_bfloat16_a_trained_network_chooses_the_same_moves(game: Game) -> None:
    network = trained_network(game)
    batch = random_batch(game, 256)
    learner = Learner(network, device="cpu", warmup_steps=0, learning_rate=3e-3, mixed_precision=False)
    for _ in range(30):
        learner.descend(copy_to_device(batch, learner.device))
    wanted, _ = plain(network, batch.observations)
    logits, _ = Evaluator(network, game, device="cpu", dtype="bfloat16")(batch.observations)
    assert (logits.argmax(1) == wanted.argmax(1)).mean() >= 0.99


def test_without_working_fused_operators_torch_evaluates_and_the_log_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def absent(*_: object) -> None:
        raise AttributeError("no such operator")

    monkeypatch.setattr(keima.networks.architectures.fused.Convolution, "__init__", absent)
    with caplog.at_level(logging.WARNING):
        evaluate = evaluator(CONNECT_FOUR, "bfloat16", True)
    assert evaluate.describe() == "torch bfloat16 on cpu"
    assert "no such operator" in caplog.text


def test_an_unknown_number_type_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"'int8'.*auto, float32, bfloat16, float16"):
        Evaluator(trained_network(CONNECT_FOUR), CONNECT_FOUR, dtype="int8")


@pytest.mark.parametrize("device", ["gpu", "cuda:99"])
def test_a_missing_device_is_refused(device: str) -> None:
    with pytest.raises(ValueError, match=f"no device '{device}' here"):
        Evaluator(trained_network(CONNECT_FOUR), CONNECT_FOUR, device=device)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc can be told to keep freed memory")
def test_an_evaluator_does_not_return_memory_to_the_system_only_to_request_it_again() -> None:
    Evaluator(trained_network(BOARD), BOARD, device="cpu")
    faults = []
    for _ in range(8):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        maps = [torch.ones(2**20) for _ in range(10)]  # 4 MiB each, like what a large batch leaves between layers
        del maps
        faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
    assert min(faults) < 100, faults  # pages of 4 KiB: ten thousand of them each time, if they went back


CALL = """
import torch
from keima.games import load_game
from tests.small_networks import positions
from keima.networks.inference.evaluator import Evaluator
from keima.networks.architectures.fused import PACKED_BATCH
from keima.networks.network import build_network

game = load_game("tic_tac_toe")
for channels in (16, 96):
    network = build_network(game, blocks=1, channels=channels)
    evaluate = Evaluator(network, game, device="cpu", dtype="float32")
    assert evaluate.describe() == "fused float32 on cpu"
    evaluate(positions(game, PACKED_BATCH))
    print("begin", flush=True)
    evaluate(positions(game, PACKED_BATCH))
    print("end", flush=True)
"""


@pytest.mark.medium
def test_weights_are_packed_once_and_not_in_each_call() -> None:
    """oneDNN tells what it does; with weights packed for another size it would pack them again in each call."""
    said = subprocess.run(
        [sys.executable, "-c", CALL],
        env={**os.environ, "ONEDNN_VERBOSE": "1"},
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    ).stdout
    calls = [part.partition("end")[0] for part in said.split("begin")[1:]]
    assert len(calls) == 2 and all("convolution" in call and "reorder" not in call for call in calls)


@pytest.mark.parametrize(
    ("build", "error", "said"),
    [
        (None, "Torch not compiled with CUDA enabled", "is built for processors alone; install a build with CUDA"),
        (
            "12.8",
            "The NVIDIA driver on your system is too old (found version 11040). Please update",
            "too old for PyTorch .*, which needs CUDA 12.8; update the driver",
        ),
        ("12.8", "Found no NVIDIA driver on your system. Please check", "no NVIDIA driver; install it"),
        ("12.8", "No CUDA GPUs are available", "no such GPU among those of CUDA_VISIBLE_DEVICES=7"),
        ("12.8", "CUDA error: invalid device ordinal\nCUDA kernel errors might", "no such GPU among"),
        ("12.8", "CUDA error: no kernel image is available for execution", "has no code for this kind of GPU"),
        ("12.8", "CUDA error: out of memory\nCUDA kernel errors might", "CUDA error: out of memory$"),
    ],
)
def test_what_a_missing_gpu_lacks_is_said(
    monkeypatch: pytest.MonkeyPatch, build: str | None, error: str, said: str
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError(error)

    monkeypatch.setattr(torch.version, "cuda", build)
    monkeypatch.setattr(torch, "ones", fail)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    with pytest.raises(ValueError, match=f"no device 'cuda' here; use auto or cpu: .*{said}"):
        pick_device("cuda")
