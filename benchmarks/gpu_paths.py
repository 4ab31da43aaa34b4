"""Every path of the code that differs on a GPU, once: ``PATHS`` of ``benchmarks/gpu.py`` and of ``tests/test_gpu.py``.

A path is a function of a device and a temporary folder. It returns what it has found, in words, and raises if something
is wrong. With the device "cpu" it runs here, which shows that the path itself works.
"""

import copy
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from keima.base.random import seed_stream
from keima.config.sections.search import SearchSettings
from keima.data.imports.game_files import SAMPLE
from keima.games import Game, load_game
from keima.learning.learner import Learner, TensorBatch, copy_to_device
from keima.learning.ranks.process_group import RankInfo, abort_nccl, join_ranks, make_file_store
from keima.networks.files.model import Model, canary_positions, decode_model, describe_model, encode_model
from keima.networks.inference.evaluator import Evaluator, count_gpus, pick_device
from keima.networks.network import build_network, seed_weights
from keima.networks.policy_value import as_policy_value_network
from keima.ppo.actor_critic import ActorCritic
from keima.ppo.settings import PPOSettings, TradingSettings
from keima.ppo.trainer import PPOTrainer
from keima.ppo.worlds.trading import TradingMarkets
from keima.replay.window import ALL_ROWS, Batch
from keima.self_play.groups import make_parallel_games

ROOT = Path(__file__).resolve().parents[1]
PROGRAM_SECONDS = 240.0
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
TOLERANCES = {"float32": 0.01, "bfloat16": 0.06, "float16": 0.01}  # of the largest logit; float32 may be TF32
GIBIBYTE = 2**30

Check = Callable[[str, Path], str]  # (device, folder) -> what was found


class NotHere(Exception):
    """The path needs what this machine does not have; the text says what."""


def positions(game: Game, count: int) -> Batch:
    """Positions with one right move and one outcome each, which can be learned by heart."""
    batch, few = Batch.empty(game, count), canary_positions(game)
    which = np.arange(count) % len(few)
    batch.observations[:] = few[which]
    batch.legal[:], batch.policy_mask[:] = True, 1
    batch.policies[:] = np.eye(game.num_actions, dtype=np.float32)[which % game.num_actions]
    batch.values[:] = 1 - 2 * (which % 2)
    return batch


class SameBatch:
    """A window that always returns the same positions."""

    def __init__(self, game: Game, count: int) -> None:
        self.batch = positions(game, count)

    def sample(self, count: int, rng_seed: int, *, rows: slice = ALL_ROWS) -> Batch:
        """The first ``count`` positions."""
        return Batch(**{name: array[:count][rows] for name, array in vars(self.batch).items()})


@contextmanager
def learning_in(dtype: str) -> Iterator[bool]:
    """Within the block, learners in mixed precision compute in this type; whether they are in mixed precision."""
    with patch("keima.learning.update_step.fastest_dtype", lambda device: DTYPES[dtype]):
        yield dtype != "float32"


def evaluator(device: str, folder: Path, *, network: str, dtype: str, graphs: bool) -> str:
    """The evaluator agrees with float32 on the CPU, at several batch sizes, also after new weights."""
    game = load_game("connect_four")
    observations = canary_positions(game, 100)
    seed_weights(1)
    shape: dict[str, Any] = {"type": network, "blocks": 3, "channels": 32}
    first, second = (as_sent(build_network(game, **shape), game) for _ in range(2))
    here = Evaluator(first, game, device="cpu", dtype="float32", max_batch=100)
    there = Evaluator(first, game, device=device, dtype=dtype, max_batch=100, graphs=graphs)
    worst = 0.0
    for weights in (None, second.state_dict()):
        if weights is not None:
            here.load(weights)
            there.load(weights)
        wanted, wanted_values = here(observations)
        for count in (100, 7, 64, 100):
            logits, values = there(observations[:count])
            scale = max(float(np.abs(wanted).max()), 1e-3)
            worst = max(worst, float(np.abs(logits - wanted[:count]).max()) / scale)
            worst = max(worst, float(np.abs(values - wanted_values[:count]).max()))
    # A rounded current of a spiking network changes which neurons fire.
    most = TOLERANCES[dtype] if network == "resnet" or dtype == "float32" else 1.0
    if not worst < most:
        raise AssertionError(f"differs from the CPU by {worst:.3g}, more than {most}")
    return f"{there.describe()}; differs from the CPU by {worst:.1e}"


def as_sent(network: nn.Module, game: Game) -> nn.Module:
    """A network as a worker has it: its weights have 16 bits."""
    description = describe_model(game, as_policy_value_network(network).settings(), 1)
    model = Model(description=description, weights=network.state_dict())
    return decode_model(encode_model(model, game)).build(game).eval()


def learner(device: str, folder: Path, *, network: str, dtype: str) -> str:
    """The learner learns a batch by heart."""
    game = load_game("connect_four")
    seed_weights(1)
    with learning_in(dtype) as mixed:
        taught = Learner(
            build_network(game, type=network, blocks=1, channels=16),
            device=device,
            batch_size=64,
            learning_rate=1e-2,
            warmup_steps=1,
            mixed_precision=mixed,
        )
    window = SameBatch(game, 64)
    first = taught.train(window, 5, 1)
    taught.train(window, 20, 1)
    last = taught.train(window, 5, 1)
    if not last.loss < 0.7 * first.loss:
        raise AssertionError(f"the loss went from {first.loss:.3f} to {last.loss:.3f}")
    return (
        f"loss {first.loss:.2f} to {last.loss:.2f} in {taught.update_step.dtype}, {first.skipped_steps} steps skipped"
    )


def captured(device: str, folder: Path) -> str:
    """A captured step has the gradients of a plain one, also after other steps, and for another batch."""
    game = load_game("connect_four")
    seed_weights(1)
    network = build_network(game, blocks=3, channels=16)
    plain, fast = (Learner(copy.deepcopy(network), device=device, mixed_precision=False) for _ in range(2))
    plain.update_step.shortcut = lambda batch: None
    batches = [copy_to_device(positions(game, 96), plain.device).select_rows(slice(i, i + 64)) for i in (0, 16, 32)]
    worst = 0.0
    for batch in batches:
        found = [noted(learner, batch) for learner in (plain, fast)]
        for ours, wanted in zip(*found, strict=True):
            worst = max(worst, float((ours - wanted).abs().max()) / max(float(wanted.abs().max()), 1e-3))
    if not worst < TOLERANCES["float32"]:
        raise AssertionError(f"gradients differ by {worst:.3g}")
    return f"{len(fast._captured)} graphs; gradients differ by {worst:.1e}"


def noted(learner: Learner, batch: TensorBatch) -> list[torch.Tensor]:
    """The gradients of a step, and batch norm's statistics after it."""
    gradients: list[torch.Tensor] = []

    def keep(*_: object) -> None:
        gradients.extend(p.grad.clone() for p in learner.network.parameters() if p.grad is not None)

    hook = learner.optimizer.register_step_pre_hook(keep)
    learner.descend(batch)
    hook.remove()
    return [*gradients, *(buffer.float() for buffer in learner.network.buffers())]


def too_little_memory(device: str, folder: Path) -> str:
    """A batch that does not fit the memory is split: while it is learned, and by several ranks in advance."""
    where = pick_device(device)
    if where.type != "cuda":
        raise NotHere("only GPUs can be given less memory")
    game = load_game("go", size=9)
    taught = Learner(build_network(game, blocks=6, channels=64), device=device, batch_size=64, norm_batch=64)
    whole = copy_to_device(positions(game, 4096), where)
    taught.descend(part_of(whole, 64))
    total = torch.cuda.get_device_properties(where).total_memory
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(
        min(1.0, (torch.cuda.memory_reserved(where) + GIBIBYTE // 2) / total), where
    )
    try:
        taught.descend(whole)
        in_a_step, taught.micro_batch = taught.micro_batch, None
        torch.cuda.empty_cache()
        taught.find_micro_batch(whole, 4096)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, where)
    if not in_a_step or not taught.micro_batch:
        raise AssertionError("4096 positions did fit half a gibibyte")
    return f"4096 positions in parts of {in_a_step}; found in advance: {taught.micro_batch}"


def part_of(batch: TensorBatch, count: int) -> TensorBatch:
    """The first rows of a batch."""
    return batch.select_rows(slice(0, count))


def ranks(device: str, folder: Path) -> str:
    """NCCL adds up tensors on GPUs, gloo others, and what NCCL waits for can be ended."""
    on_gpu = pick_device(device).type == "cuda"
    program = [sys.executable, str(Path(__file__).resolve()), "nccl" if on_gpu else "gloo", str(folder)]
    run(program)
    gpus = count_gpus() if on_gpu else 2
    if gpus < 2:
        return "one rank with NCCL; several need several GPUs"
    words = ["--world-size", gpus, "--device", "cuda" if on_gpu else "cpu", "--blocks", 1, "--channels", 8]
    sizes = ["--batch-size", 256, "--save-dir", folder / "ranks", "--data", SAMPLE, "--mixed-precision"]
    run([sys.executable, ROOT / "train_distributed.py", *words, *sizes])
    return f"{gpus} ranks have trained"


def one_rank(backend: str, folder: Path) -> None:
    """Add tensors up in a group of one, and end the group as after the loss of a rank."""
    device = torch.device("cuda" if backend == "nccl" else "cpu")
    dist.init_process_group(
        "cpu:gloo,cuda:nccl" if backend == "nccl" else "gloo", store=make_file_store(folder, 1), rank=0, world_size=1
    )
    on_device, here = torch.ones(1000, device=device), torch.ones(3)
    dist.all_reduce(on_device)
    dist.all_reduce(here)
    assert on_device.sum().item() == 1000 and here.sum().item() == 3
    if backend == "nccl":
        abort_nccl()
        assert torch.ones(2, device=device).sum().item() == 2
    else:
        dist.destroy_process_group()
    with join_ranks(RankInfo(), device=device.type) as alone:
        alone.raise_if_lost()


def moving(device: str, folder: Path, *, optimizer: str, dtype: str) -> str:
    """A learner's state moves from the CPU to the device and back, and learns on."""
    game, window = load_game("tic_tac_toe"), SameBatch(load_game("tic_tac_toe"), 32)

    def made(where: str) -> Learner:
        seed_weights(1)
        return Learner(
            build_network(game, blocks=1, channels=16),
            device=where,
            batch_size=32,
            optimizer=optimizer,
            mixed_precision=mixed and where == device,
        )

    with learning_in(dtype) as mixed:
        begun, there, back = made("cpu"), made(device), made("cpu")
        begun.train(window, 3, 1)
        there.restore(begun.state())
        there.train(window, 3, 1)
        back.restore(there.state())
        same = all(
            torch.equal(tensor, back.state().tensors[group][name])
            for group, tensors in there.state().tensors.items()
            for name, tensor in tensors.items()
        )
        report = back.train(window, 3, 1)
    if not same or back.step != 9 or not np.isfinite(report.loss):
        raise AssertionError(f"step {back.step}, loss {report.loss}, the same state: {same}")
    return f"nine steps with {optimizer}, three of them in {dtype}"


def ppo(device: str, folder: Path, *, mixed: bool) -> str:
    """PPO acts and learns, and its state moves to the CPU."""

    def made(where: str) -> PPOTrainer:
        worlds = TradingMarkets(
            np.array([seed_stream("world", b) for b in range(8)], np.uint64), TradingSettings(window=16)
        )
        seed_weights(1)
        network = ActorCritic(worlds.observation_size, worlds.num_actions, lstm_size=32).to(pick_device(where))
        settings = PPOSettings(num_steps=32, sequence_length=8)
        return PPOTrainer(network, worlds, settings, seed=1, episodes=32, mixed_precision=mixed)

    trained, again = made(device), made("cpu")
    report = trained.run()
    assert report is not None
    if not all(np.isfinite(list(report.learning.values()))):
        raise AssertionError(f"the figures are {report.learning}")
    again.restore(trained.state())
    return f"{report.total_steps} steps, {report.episodes_over} episodes; resumed on the CPU"


def self_play(device: str, folder: Path) -> str:
    """Self-play on several threads that share the device, with a new network in the middle of games."""
    game, settings = load_game("tic_tac_toe"), SearchSettings(num_simulations=8, full_search_probability=1.0)
    seed_weights(1)
    first, second = (build_network(game, blocks=1, channels=16).eval() for _ in range(2))
    evaluate = Evaluator(first, game, device=device, max_batch=16)
    games = make_parallel_games(game, evaluate, settings, parallel_games=64, threads=6)
    games.begin(range(64))
    records = [record for _ in range(20) for record in games.advance()]
    evaluate.load(second.state_dict())
    games.change_model(1)
    while games.num_playing:
        records += games.advance()
    if len(records) != 64 or records[-1].last_model != 1:
        raise AssertionError(f"{len(records)} games have ended")
    return f"64 games on 6 threads, {games.evaluations} evaluations"


def check_test_games(device: str, folder: Path) -> str:
    """A worker's test games, which compile the search if that has not been done here."""
    gpu = ["--gpu", gpu_number(device)] if device != "cpu" else []
    run([sys.executable, ROOT / "start_worker.py", "--test-games", "tic_tac_toe", *gpu], seconds=2 * PROGRAM_SECONDS)
    return "a worker can play"


def local_workers(device: str, folder: Path) -> str:
    """``train_parallel.py``: worker processes on the devices, and a resume."""
    where = device.partition(":")[0]
    program = [sys.executable, ROOT / "train_parallel.py", "--smoke", "--device", where, "--run-dir", folder / "run"]
    run([*program, "--height", 2, "--width", 2])
    return "2048 has been trained"


def named_gpus(device: str, folder: Path) -> str:
    """``train_multi_gpu.py``: a worker process on a named GPU, and the learner on it."""
    gpu = "cpu" if device == "cpu" else gpu_number(device)
    words = ["--gpus", gpu, "--smoke", "--game", "connect_four", "--save-dir", folder / "run"]
    run([sys.executable, ROOT / "scripts" / "train_multi_gpu.py", *words])
    return "Connect Four has been trained by a spiking network"


def missing_gpu(device: str, folder: Path) -> str:
    """A worker that is to play on a GPU that does not exist plays nothing, and says so."""
    words = ["--test-games", "tic_tac_toe", "--gpu", "999"]
    ended = subprocess.run(
        [sys.executable, ROOT / "start_worker.py", *words], capture_output=True, text=True, timeout=PROGRAM_SECONDS
    )
    said = ended.stderr.strip().splitlines()[-1]
    if ended.returncode != 2 or "there is no device 'cuda' here" not in said:
        raise AssertionError(f"exit code {ended.returncode}: {said}")
    return said.partition("; use auto or cpu: ")[2]


def gpu_number(device: str) -> str:
    """The number of a GPU in the name of a device."""
    return device.partition(":")[2] or "0"


def run(line: Sequence[object], *, seconds: float = PROGRAM_SECONDS) -> None:
    """Run a program of the checkout.

    Raises:
        RuntimeError: it failed; with its last lines.
    """
    ended = subprocess.run(
        [str(word) for word in line],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=seconds,
    )
    if ended.returncode:
        raise RuntimeError(f"exit code {ended.returncode}: {' | '.join(ended.stdout.strip().splitlines()[-6:])}")


def all_paths() -> dict[str, Check]:
    """Every path by its name."""
    paths: dict[str, Check] = {"test games": check_test_games}

    def add(name: str, path: Callable[..., str], **options: Any) -> None:
        paths[name] = lambda device, folder: path(device, folder, **options)

    for network in ("resnet", "spiking"):
        for dtype in DTYPES:
            for graphs in (True, False):
                name = f"evaluator, {network}, {dtype}, {'with' if graphs else 'without'} graphs"
                add(name, evaluator, network=network, dtype=dtype, graphs=graphs)
            add(f"learner, {network}, {dtype}", learner, network=network, dtype=dtype)
    paths |= {"captured steps": captured, "too little memory": too_little_memory}
    for optimizer in ("adamw", "muon", "sgd"):
        add(f"resume on another device, {optimizer}", moving, optimizer=optimizer, dtype="float32")
    add("resume on another device, float16", moving, optimizer="adamw", dtype="float16")
    for mixed in (False, True):
        add(f"PPO, {'16 bits' if mixed else 'float32'}", ppo, mixed=mixed)
    paths |= {
        "self-play on threads": self_play,
        "ranks": ranks,
        "a missing GPU": missing_gpu,
        "train_multi_gpu.py": named_gpus,
        "train_parallel.py": local_workers,
    }
    return paths


PATHS = all_paths()


if __name__ == "__main__":
    one_rank(sys.argv[1], Path(sys.argv[2]))
    os._exit(0)  # NCCL's group, which was ended, is not taken down once more
