"""The figures of ``benchmarks/gpu.py``: how fast a device evaluates, plays and learns."""

import itertools
import os
import shutil
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from benchmarks.gpu_paths import positions
from benchmarks.speed.self_play import Session
from keima.base.random import seed_stream
from keima.base.system.threads import run_in_parallel
from keima.config.sections.search import SearchSettings
from keima.games import Game, load_game
from keima.games.game import Planes
from keima.learning.learner import Learner, copy_to_device, is_out_of_memory
from keima.networks.files.model import canary_positions
from keima.networks.inference.evaluator import Evaluator, pick_device
from keima.networks.network import build_network
from keima.ppo.actor_critic import ActorCritic
from keima.ppo.settings import PPOSettings, TradingSettings
from keima.ppo.trainer import PPOTrainer
from keima.ppo.worlds.trading import TradingMarkets

GAMES: dict[str, dict[str, Any]] = {"go": {"size": 9}, "chess": {}}


@dataclass(frozen=True, kw_only=True)
class Effort:
    """How much is measured."""

    networks: dict[str, dict[str, Any]]  # name -> shape
    games: tuple[str, ...]
    evaluated: tuple[int, ...]  # positions in one call of the network
    side_by_side: int  # games of each thread
    threads: tuple[int, ...]  # that search, of which the fastest number counts
    simulations: int  # for each move
    learned: tuple[int, ...]  # positions in one step of the learner
    worlds: tuple[int, ...]  # of PPO
    lstm_size: int
    seconds: float  # of each measurement


FULL = Effort(
    networks={"6x64": {"blocks": 6, "channels": 64}, "20x256": {"blocks": 20, "channels": 256}},
    games=("go", "chess"),
    evaluated=(64, 256, 1024, 4096),
    side_by_side=1024,
    threads=(4, 8, 12),
    simulations=64,
    learned=(256, 1024, 4096),
    worlds=(256, 4096, 16384),
    lstm_size=128,
    seconds=2.0,
)
QUICK = Effort(
    networks={"1x16": {"blocks": 1, "channels": 16}},
    games=("go",),
    evaluated=(16, 64),
    side_by_side=16,
    threads=(1, 2),
    simulations=8,
    learned=(64,),
    worlds=(8,),
    lstm_size=16,
    seconds=0.2,
)


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One measurement."""

    what: str
    value: float
    unit: str
    note: str = ""


def figures(device: str, effort: Effort) -> Iterator[Figure]:
    """Measure one after the other, the most important first."""
    for game_name, network in itertools.product(effort.games, effort.networks):
        game = load_game(game_name, **GAMES[game_name])
        yield from self_play_figures(device, game, network, effort)
    peak = product_rate(device, effort)
    for network in effort.networks:
        yield from learner_figures(device, load_game("go", **GAMES["go"]), network, effort, peak)
    yield from ppo_figures(device, effort)


def rate(step: Callable[[], int], seconds: float, synchronize: Callable[[], None] = lambda: None) -> float:
    """What ``step`` counts, per second; the first calls are not measured."""
    for _ in range(2):
        step()
    synchronize()
    began, done = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        done += step()
    synchronize()
    return done / (time.perf_counter() - began)


def self_play_figures(device: str, game: Game, network: str, effort: Effort) -> Iterator[Figure]:
    """The bare evaluator at each batch size, self-play of one process, their ratio, and how busy the device is."""
    built = build_network(game, **effort.networks[network]).eval()
    largest = max(*effort.evaluated, effort.side_by_side)
    evaluate = Evaluator(built, game, device=device, max_batch=largest)
    observations = np.resize(canary_positions(game), (largest, *game.observation_shape)).astype(np.float32)
    what, how = f"{game.name} {network}", evaluate.describe()

    def call(size: int) -> Callable[[], int]:
        return lambda: len(evaluate(observations[:size])[1])

    for size in effort.evaluated:
        yield Figure(
            what=f"{what}, evaluator, batch {size}",
            value=rate(call(size), effort.seconds),
            unit="evaluations/s",
            note=how,
        )
    batch = observations[: effort.side_by_side]
    bare = max(calls_rate(evaluate, batch, threads=threads, seconds=effort.seconds) for threads in (1, 4))
    yield Figure(
        what=f"{what}, evaluator, batch {effort.side_by_side}, calls at the same time",
        value=bare,
        unit="evaluations/s",
        note=how,
    )
    best, threads, busy = max(
        played_rate(game, evaluate, effort, threads, device)
        for threads in effort.threads
        if threads <= len(os.sched_getaffinity(0))
    )
    games = f"{threads} threads, each with {effort.side_by_side} games"
    yield Figure(what=f"{what}, self-play", value=best, unit="evaluations/s", note=games)
    yield Figure(what=f"{what}, self-play against the evaluator", value=best / bare, unit="of its rate", note=games)
    if busy:
        yield Figure(what=f"{what}, GPU busy in self-play", value=busy, unit="%", note="by nvidia-smi")


def calls_rate(evaluate: Evaluator, observations: Planes, *, threads: int, seconds: float) -> float:
    """Evaluations per second of threads that call the evaluator again and again."""

    def calls(until: float) -> Iterator[int]:
        while time.perf_counter() < until:
            yield len(evaluate(observations)[1])

    def called(seconds: float) -> int:
        until = time.perf_counter() + seconds
        return sum(count for _, count in run_in_parallel(lambda _: calls(until), range(threads), at_once=threads))

    called(seconds / 4)
    began = time.perf_counter()
    return called(seconds) / (time.perf_counter() - began)


def played_rate(game: Game, evaluate: Evaluator, effort: Effort, threads: int, device: str) -> tuple[float, int, float]:
    """Evaluations per second of self-play, on so many threads, and how busy the GPU was, in per cent; 0: not known."""
    settings = SearchSettings(num_simulations=effort.simulations, full_search_probability=1.0)
    session = Session(game, evaluate, settings, effort.side_by_side * threads, threads=threads)
    rate(session.step, effort.seconds)  # trees grow, and graphs are captured
    with watched_gpu(device) as busy:
        played = rate(session.step, effort.seconds)
    return played, threads, statistics.mean(busy) if busy else 0.0


@contextmanager
def watched_gpu(device: str) -> Iterator[list[float]]:
    """A list that has, after the block, how busy the GPU was in it, in per cent; empty if nvidia-smi cannot say."""
    busy: list[float] = []
    tool = shutil.which("nvidia-smi")
    if tool is None or device == "cpu":
        yield busy
        return
    number = device.partition(":")[2] or "0"
    query = [tool, "-i", number, "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits", "--loop-ms=200"]
    with subprocess.Popen(query, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as watch:
        try:
            yield busy
        finally:
            watch.terminate()
            said, _ = watch.communicate()
    busy += [float(line) for line in said.split() if line.isdigit()]


def product_rate(device: str, effort: Effort) -> float:
    """The operations per second of a large product of matrices in bfloat16: what the learner's are compared with."""
    where = pick_device(device)
    size = 8192 if effort is FULL and where.type == "cuda" else 512
    a, b = (torch.randn(size, size, device=where, dtype=torch.bfloat16) for _ in range(2))

    def multiply() -> int:
        torch.mm(a, b)
        return 2 * size**3

    return rate(multiply, effort.seconds / 2, lambda: synchronize(where))


def synchronize(device: torch.device) -> None:
    """Wait for the device."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def learner_figures(device: str, game: Game, network: str, effort: Effort, peak: float) -> Iterator[Figure]:
    """The learner's steps on a batch that is on the device already."""
    where = pick_device(device)
    for size in effort.learned:
        learner = Learner(build_network(game, **effort.networks[network]), device=device, batch_size=size)
        batch = copy_to_device(positions(game, size), where)

        def step(learner: Learner = learner, batch: Any = batch) -> int:
            learner.descend(batch)
            return learner.batch_size

        what = f"{game.name} {network}, learner, batch {size}"
        try:
            samples = rate(step, effort.seconds, lambda: synchronize(where))
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            yield Figure(what=what, value=0.0, unit="samples/s", note="out of memory")
            continue
        # Forwards and backwards: each product of the convolutions three times.
        share = samples * 3 * operations(learner.network, game) / peak
        kind = str(learner.update_step.dtype).removeprefix("torch.")
        split = f", in parts of {learner.micro_batch}" if learner.micro_batch else ""
        yield Figure(what=what, value=samples, unit="samples/s", note=kind + split)
        yield Figure(
            what=f"{what}, of a matrix product's rate", value=100 * share, unit="%", note=f"{peak / 1e12:.0f} TFLOP/s"
        )


def operations(network: torch.nn.Module, game: Game) -> int:
    """The operations of the convolutions in one evaluation: two for each product and its sum."""
    _, height, width = game.observation_shape
    sizes = (module.weight.numel() for module in network.modules() if isinstance(module, torch.nn.Conv2d))
    return 2 * height * width * sum(sizes)


def ppo_figures(device: str, effort: Effort) -> Iterator[Figure]:
    """Whole rounds of PPO: act and learn."""
    where = pick_device(device)
    for count in effort.worlds:
        seeds = np.array([seed_stream("world", b) for b in range(count)], np.uint64)
        worlds = TradingMarkets(seeds, TradingSettings(), threads=len(os.sched_getaffinity(0)))
        network = ActorCritic(worlds.observation_size, worlds.num_actions, lstm_size=effort.lstm_size)
        settings = PPOSettings(num_steps=64, target_kl=0)
        trainer = PPOTrainer(
            network.to(where), worlds, settings, seed=1, episodes=10**9, mixed_precision=where.type == "cuda"
        )

        def round_of_steps(trainer: PPOTrainer = trainer, count: int = count) -> int:
            trainer.learn(trainer.collector.collect())
            trainer.round += 1
            return trainer.settings.num_steps * count

        steps = rate(round_of_steps, effort.seconds, lambda: synchronize(where))
        yield Figure(what=f"PPO, LSTM of {effort.lstm_size}, {count} worlds", value=steps, unit="steps/s")
