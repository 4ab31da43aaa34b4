"""A training over files ends with the same weights however often it was interrupted, and however little memory there
is.
"""

import logging
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from keima.base.files import write_atomically
from keima.base.system.processes import prepare_fork_server
from keima.data.records import encode_batch
from keima.learning.big_learner import BigLearner, FinishedEpoch, StepProgress, load_newest_checkpoint
from keima.learning.dataset_settings import BigExperiment
from keima.learning.feed import EpochFeed
from keima.learning.learner import Learner, TensorBatch, copy_to_device
from keima.learning.ranks.process_group import ALONE, Ranks
from keima.learning.update_step import Losses
from keima.networks.files.weights_file import CorruptWeights
from keima.networks.network import build_network, seed_weights
from keima.play.arena.players import read_model
from keima.replay.epochs import Epochs
from tests.learning import memory_program
from tests.small_networks import CONNECT_FOUR, FixedWindow, random_batch
from tests.sources import ROOT
from tests.synthetic import synthetic_batch

NETWORK: dict[str, Any] = {"blocks": 1, "channels": 8}
EXPERIMENT = {
    "run": {"name": "big"},
    "game": {"name": "connect_four"},
    "network": NETWORK,
    "big_learner": {"epochs": 2, "checkpoint_every": 3},
}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    for seed in range(3):
        write_atomically(
            folder / f"batch{seed}.games", encode_batch(synthetic_batch(CONNECT_FOUR, games=10, seed=seed))
        )
    return folder


def training(
    data: Path, save_dir: Path, *, stop_after: int = 0, watched: list[Any] | None = None, **options: Any
) -> BigLearner:
    """Return a small training, which stops after this many steps if that is more than none."""
    seed_weights(1)
    told: list[Any] = [] if watched is None else watched

    def watch(what: StepProgress | FinishedEpoch) -> None:
        told.append(what)
        if isinstance(what, StepProgress) and what.step == stop_after:
            made.stop_requested = True

    options = {"mixed_precision": False, "learning_rate_schedule": "cosine"} | options
    learner = Learner(build_network(CONNECT_FOUR, **NETWORK), device="cpu", batch_size=64, norm_batch=32, **options)
    feed = EpochFeed(
        Epochs(game=CONNECT_FOUR, files=(), batch_size=64, seed=5, shuffle_positions=400), rows=ALONE.own_rows
    )
    made = BigLearner(
        learner,
        feed,
        BigExperiment.model_validate(EXPERIMENT),
        data=data,
        save_dir=save_dir,
        name="net",
        watch=watch,
    )
    return made


def weights(trained: BigLearner) -> dict[str, Tensor]:
    return trained.learner.network.state_dict()


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.medium
@pytest.mark.parametrize("stop_after", [2, 15])
def test_an_interrupted_training_ends_as_if_it_had_not_been(data: Path, tmp_path: Path, stop_after: int) -> None:
    seen: list[Any] = []
    whole = training(data, tmp_path / "whole")
    assert whole.train()
    first = training(data, tmp_path / "parts", stop_after=stop_after)
    assert not first.train()
    torch.manual_seed(99)
    second = training(data, tmp_path / "parts", watched=seen)
    tree = load_newest_checkpoint(ALONE, second.path)
    assert tree is not None
    second.restore(tree)
    assert second.train()
    assert seen[0].step == stop_after + 1
    assert same(weights(second), weights(whole)) and same(second.learner.weights(), whole.learner.weights())
    assert [type(each) for each in seen].count(FinishedEpoch) == (2 if stop_after == 2 else 1)


@pytest.mark.medium
def test_the_report_of_an_epoch_is_the_mean_over_all_its_positions(data: Path, tmp_path: Path) -> None:
    told: list[Any] = []
    training(data, tmp_path, watched=told).train()
    ends = [index for index, what in enumerate(told) if isinstance(what, FinishedEpoch)]
    steps, epoch = told[: ends[0]], told[ends[0]]
    assert sum(step.report.samples for step in steps) == epoch.positions
    assert sum(step.report.loss * step.report.samples for step in steps) / epoch.positions == pytest.approx(epoch.loss)
    assert [step.epoch for step in steps] == [1] * len(steps) and steps[-1].share_done == 1
    assert all(step.samples_per_second > 0 for step in steps) and told[-2].seconds_left == pytest.approx(0, abs=1e-6)


@pytest.mark.medium
def test_the_checkpoint_has_everything_needed_as_tensors_and_plain_values(data: Path, tmp_path: Path) -> None:
    trained = training(data, tmp_path)
    trained.train()
    tree = torch.load(trained.path, weights_only=True)
    assert tree.keys() >= {"model", "average", "optimizer", "scheduler", "scaler", "sampler", "random", "told"}
    assert tree["sampler"]["epoch"] == 2 and tree["sampler"]["done"] == 0 and len(tree["sampler"]["files"]) == 3
    assert tree["random"]["torch"].shape[0] == 1
    build_network(CONNECT_FOUR, **NETWORK).load_state_dict(tree["model"])
    assert not list(tmp_path.glob("*.part"))


@pytest.mark.medium
def test_each_rank_gets_its_own_random_state_back(data: Path, tmp_path: Path) -> None:
    trained = training(data, tmp_path)
    trained.train()
    tree = load_newest_checkpoint(ALONE, trained.path)
    assert tree is not None
    states = [torch.Generator().manual_seed(seed).get_state() for seed in range(3)]
    tree["random"]["torch"] = torch.stack(states)
    for rank in range(3):
        again = training(data, tmp_path)
        again.ranks = Ranks(rank=rank, world_size=3)
        again.restore(tree)
        assert torch.equal(torch.get_rng_state(), states[rank])


@pytest.mark.medium
def test_the_averaged_weights_are_saved_next_to_it_for_play(data: Path, tmp_path: Path) -> None:
    trained = training(data, tmp_path)
    trained.train()
    model = read_model(tmp_path / "net.safetensors")
    assert model.model_version == trained.learner.step
    assert same(model.build(CONNECT_FOUR).state_dict(), trained.learner.weights())


@pytest.mark.medium
def test_the_scale_of_float16_is_kept(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("keima.learning.update_step.fastest_dtype", lambda device: torch.float16)
    trained = training(data, tmp_path, stop_after=3, mixed_precision=True)
    trained.learner.update_step.scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    trained.train()
    again = training(data, tmp_path, mixed_precision=True)
    tree = load_newest_checkpoint(ALONE, again.path)
    assert tree is not None and tree["scaler"]["scale"] == 8.0
    again.restore(tree)
    assert again.learner.update_step.scaler.get_scale() == 8.0


def test_a_damaged_checkpoint_is_named(tmp_path: Path) -> None:
    (tmp_path / "net.pt").write_bytes(b"no checkpoint")
    with pytest.raises(CorruptWeights, match=r"net\.pt"):
        load_newest_checkpoint(ALONE, tmp_path / "net.pt")
    assert load_newest_checkpoint(ALONE, tmp_path / "other.pt") is None


def test_files_that_change_during_an_epoch_are_named(data: Path, tmp_path: Path) -> None:
    copy = tmp_path / "data"
    copy.mkdir()
    for path in data.glob("*.games"):
        (copy / path.name).write_bytes(path.read_bytes())
    training(copy, tmp_path, stop_after=2).train()
    (copy / "batch1.games").unlink()
    again = training(copy, tmp_path)
    tree = load_newest_checkpoint(ALONE, again.path)
    assert tree is not None
    again.restore(tree)
    with pytest.raises(ValueError, match=r"batch1\.games has changed"):
        again.train()


NO_MEMORY = (
    torch.OutOfMemoryError("CUDA out of memory"),
    RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 4194304 bytes"),
    RuntimeError("could not create a primitive"),  # oneDNN's message when its own allocation fails
)


def with_memory_for(learner: Learner, positions: int, error: RuntimeError = NO_MEMORY[0]) -> Learner:
    """Return the learner on a device with memory for this many positions at once, which raises this error beyond."""
    losses = learner.losses

    def limited(batch: TensorBatch) -> Losses:
        if len(batch.values) > positions:
            raise error
        return losses(batch)

    learner.losses = limited  # type: ignore[method-assign]
    return learner


def small_learner(**options: Any) -> Learner:
    seed_weights(1)
    return Learner(
        build_network(CONNECT_FOUR, **NETWORK),
        device="cpu",
        batch_size=64,
        mixed_precision=False,
        norm_batch=16,
        **options,
    )


@pytest.mark.parametrize("error", NO_MEMORY, ids=["cuda", "torch", "onednn"])
def test_a_batch_too_large_for_the_memory_is_split_with_the_same_result(
    error: RuntimeError, caplog: pytest.LogCaptureFixture
) -> None:
    gentle = {"optimizer": "sgd", "learning_rate": 1e-3}
    rich, poor = small_learner(**gentle), with_memory_for(small_learner(**gentle), 20, error)
    window = FixedWindow(CONNECT_FOUR, 200)
    with caplog.at_level(logging.WARNING):
        reports = [learner.train(window, 5, 3) for learner in (rich, poor)]
    assert poor.micro_batch == 16 and reports[0].loss == pytest.approx(reports[1].loss, rel=1e-5)
    for name, wanted in rich.network.state_dict().items():
        torch.testing.assert_close(poor.network.state_dict()[name], wanted, rtol=1e-5, atol=1e-5)
    assert [record.args for record in caplog.records] == [(64, 32), (32, 16)]


@pytest.mark.slow
@pytest.mark.medium
def test_a_process_that_really_lacks_memory_splits_with_the_same_result() -> None:
    line = [sys.executable, "-m", "tests.learning.memory_program", "200"]
    ended = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
    assert ended.returncode == 0, ended.stderr
    at_once, loss = ended.stdout.split()
    assert "out of memory with 4096 positions at once: reduced to 2048" in ended.stderr and int(at_once) <= 2048
    assert float(loss) == pytest.approx(memory_program.train(None)[1], rel=1e-5)


def test_a_group_too_large_for_the_memory_ends_the_training() -> None:
    with pytest.raises(torch.OutOfMemoryError):
        with_memory_for(small_learner(), 10).train(FixedWindow(CONNECT_FOUR, 200), 1, 3)


def test_the_largest_possible_part_is_determined_beforehand_without_a_trace() -> None:
    learner = with_memory_for(small_learner(), 40)
    before = {name: tensor.clone() for name, tensor in learner.network.state_dict().items()}
    learner.find_micro_batch(copy_to_device(random_batch(CONNECT_FOUR, 64), learner.device), 64)
    assert learner.micro_batch == 32 and same(learner.network.state_dict(), before)
    assert all(parameter.grad is None for parameter in learner.network.parameters())


def test_while_it_is_determined_a_rank_norms_alone_and_afterwards_with_the_others() -> None:
    learner = small_learner(ranks=Ranks())
    seen, losses = [], learner.losses

    def noting(batch: TensorBatch) -> Losses:
        seen.append(learner.layout.ranks)
        return losses(batch)

    learner.losses = noting  # type: ignore[method-assign]
    learner.find_micro_batch(copy_to_device(random_batch(CONNECT_FOUR, 64), learner.device), 64)
    assert seen == [ALONE] and learner.layout.ranks is learner.ranks is not ALONE


def test_an_error_that_is_not_for_want_of_memory_is_raised() -> None:
    learner = with_memory_for(small_learner(), 40, RuntimeError("the shapes do not fit"))
    with pytest.raises(RuntimeError, match="the shapes do not fit"):
        learner.find_micro_batch(copy_to_device(random_batch(CONNECT_FOUR, 64), learner.device), 64)


@pytest.mark.slow
def test_mixed_precision_learns_what_float32_learns() -> None:
    losses = []
    for mixed_precision in (False, True):
        seed_weights(1)
        learner = Learner(
            build_network(CONNECT_FOUR, blocks=2, channels=16),
            device="cpu",
            batch_size=64,
            mixed_precision=mixed_precision,
        )
        window = FixedWindow(
            CONNECT_FOUR, 2048
        )  # with few positions, which the network soon overfits, any rounding changes the losses
        learner.train(window, 180, 3)
        losses.append(learner.train(window, 20, 3).loss)
    assert losses[1] == pytest.approx(losses[0], rel=0.01)


@pytest.mark.medium
@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_processes_that_make_batches_can_be_started_in_either_way(
    data: Path, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python forks them up to 3.13; from 3.14 on a server does, to which a data set has to be sent."""
    prepare_fork_server("keima.cluster.local.preload")  # the server that other tests of this process expect
    files = [(path, path.stat().st_size) for path in sorted(data.glob("*.games"))]
    epochs = Epochs(game=CONNECT_FOUR, files=files, batch_size=128, seed=5, shuffle_positions=400)
    wanted = [ready.batch().observations for ready in EpochFeed(epochs).batches(0)]
    monkeypatch.setattr("keima.learning.feed.DataLoader", partial(DataLoader, multiprocessing_context=method))
    found = [ready.batch().observations for ready in EpochFeed(epochs, num_workers=1).batches(0)]
    assert len(found) > 2 and all(np.array_equal(*pair) for pair in zip(found, wanted, strict=True))
