"""Compare PPO with an LSTM to sb3-contrib's RecurrentPPO: same market, network and hyper-parameters, in one run.

    pip install gymnasium; pip install --no-deps stable-baselines3 sb3-contrib cloudpickle
    export PYTHONPATH=FOLDER                             (if they were installed with --target FOLDER)
    python benchmarks/speed/ppo.py [--network shared|separate] [--num-envs 8] [--cores 2]
    python benchmarks/speed/ppo.py --sweep [--cores 2]   each with its fastest number of worlds
    python benchmarks/speed/ppo.py --returns             what both earn after the same number of steps

Both step the same compiled market; theirs runs as one vectorized environment without a Python loop over worlds, so the
market makes no difference. On one core, times are processor times. On several, ours runs as ranks and theirs as
threads, and times are wall times: run nothing else then. With --returns both train for the same number of steps from
several seeds and then trade, sampling their actions, on the same unseen markets. The mean rewards of an episode are
compared with 95 % intervals over the seeds. Without sb3-contrib, only our own figures follow.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.harness import Clock, Parser, Ratio, Report, divide_rounds, import_if_installed, take_turns, time_call
from keima.base.random import seed_stream
from keima.base.reports.intervals import mean_margin
from keima.config.flags import whole
from keima.learning.ranks.process_group import ALONE, RankInfo, Ranks, join_ranks, make_file_store
from keima.ppo.actor_critic import ActorCritic
from keima.ppo.reports import RoundReport
from keima.ppo.rollout import Collector
from keima.ppo.settings import PPOSettings, TradingSettings
from keima.ppo.trainer import PPOTrainer
from keima.ppo.worlds.trading import TradingMarkets
from keima.ppo.worlds.trading_kernels import ACTIONS, FEATURES, LIMIT

LSTM_SIZES = {"separate": 256, "shared": 128}  # the LSTM's size; the first is RecurrentPPO's default
NUM_STEPS, MINIBATCHES, PPO_EPOCHS = 128, 8, 10  # its defaults with 8 worlds: minibatches of 128 steps
RATE = 3e-4
EPISODE_BARS = 128
SWEPT = (32, 128, 512, 1024, 2048, 4096)  # numbers of worlds
UNSEEN, UNSEEN_SEED = 512, 10**6  # worlds for the returns


def make_markets(count: int, seed: int, *, first: int = 0) -> TradingMarkets:
    """Make the worlds of both trainers, numbered from ``first``."""
    seeds = [seed_stream(seed, "market", b) for b in range(first, first + count)]
    return TradingMarkets(np.array(seeds, np.uint64), TradingSettings(window=EPISODE_BARS))


class Ours:
    """Our trainer, one round at a time; each of several ``ranks`` has its own ``count`` worlds."""

    def __init__(
        self, kind: str, count: int, seed: int, *, mixed_precision: bool = False, ranks: Ranks = ALONE
    ) -> None:
        torch.manual_seed(seed)
        worlds = make_markets(count, seed, first=ranks.rank * count)
        network = ActorCritic(len(FEATURES), len(ACTIONS), lstm_size=LSTM_SIZES[kind], shared=kind == "shared")
        settings = PPOSettings(
            learning_rate_actor=RATE,
            learning_rate_critic=RATE,
            num_steps=NUM_STEPS,
            sequence_length=16,
            epochs=PPO_EPOCHS,
            minibatches=MINIBATCHES,
            ent_coef=0.0,
            target_kl=0,
        )
        self.trainer = PPOTrainer(
            network,
            worlds,
            settings,
            seed=seed,
            episodes=10**9,
            observers=[self],
            mixed_precision=mixed_precision,
            ranks=ranks,
        )
        self.steps = count * NUM_STEPS

    def round(self, report: RoundReport) -> None:
        """Stop after the round."""
        self.trainer.stop_requested = True

    def close(self) -> None:
        """Nothing is open."""

    def learn(self) -> None:
        """Take one round."""
        self.trainer.stop_requested = False
        self.trainer.run()

    def mean_reward(self) -> float:
        """Return the mean reward of an episode on unseen markets."""
        worlds = make_markets(UNSEEN, UNSEEN_SEED)
        streams = np.array([seed_stream("actions", b) for b in range(UNSEEN)], np.uint64)
        settings = PPOSettings(num_steps=EPISODE_BARS, sequence_length=EPISODE_BARS)
        acting = Collector(self.trainer.network, worlds, streams, settings)
        return fmean(episode.reward for episode in acting.collect().episodes)


class OursOnRanks:
    """Our trainer on several ranks of this machine: processes of one thread that share the worlds evenly."""

    def __init__(self, kind: str, count: int, seed: int, *, ranks: int, mixed_precision: bool = False) -> None:
        context = get_context("spawn")
        self._ends, self.steps = ExitStack(), count * NUM_STEPS
        folder = self._ends.enter_context(tempfile.TemporaryDirectory())
        pipes = [context.Pipe() for _ in range(ranks)]
        self._ranks = [ours for ours, _ in pipes]
        for rank, (_, theirs) in enumerate(pipes):
            given = (folder, rank, ranks, theirs, kind, count // ranks, seed, mixed_precision)
            process = context.Process(target=run_rank, args=given, daemon=True)
            process.start()
            self._ends.callback(process.join)

    def learn(self) -> None:
        """Take one round."""
        for rank in self._ranks:
            rank.send(True)
        for rank in self._ranks:
            rank.recv()

    def close(self) -> None:
        """End the processes."""
        for rank in self._ranks:
            rank.send(False)
        self._ends.close()


def run_rank(
    folder: str, rank: int, ranks: int, orders: Connection, kind: str, count: int, seed: int, mixed_precision: bool
) -> None:
    """Take a round for each order, in one process of ``OursOnRanks``."""
    torch.set_num_threads(1)
    place = RankInfo(rank=rank, world_size=ranks, local_rank=rank)
    with join_ranks(place, device="cpu", store=make_file_store(Path(folder), ranks)) as group:
        ours = Ours(kind, count, seed, mixed_precision=mixed_precision, ranks=group)
        while orders.recv():
            ours.learn()
            orders.send(True)


class Theirs:
    """RecurrentPPO, one round at a time."""

    def __init__(self, kind: str, count: int, seed: int) -> None:
        from sb3_contrib import RecurrentPPO
        from stable_baselines3.common.vec_env import VecNormalize

        environments = VecNormalize(vectorize_markets(make_markets(count, seed)))
        shared: dict[str, Any] = {"shared_lstm": True, "enable_critic_lstm": False} if kind == "shared" else {}
        self.model = RecurrentPPO(
            "MlpLstmPolicy",
            environments,
            learning_rate=RATE,
            n_steps=NUM_STEPS,
            batch_size=count * NUM_STEPS // MINIBATCHES,
            n_epochs=PPO_EPOCHS,
            seed=seed,
            device="cpu",
            policy_kwargs={"lstm_hidden_size": LSTM_SIZES[kind], **shared},
        )
        self.steps = count * NUM_STEPS
        self._scaled = environments

    def close(self) -> None:
        """Nothing is open."""

    def learn(self) -> None:
        """Take one round."""
        self.model.learn(self.steps, reset_num_timesteps=False)

    def mean_reward(self) -> float:
        """Return the mean reward of an episode on unseen markets."""
        worlds = vectorize_markets(make_markets(UNSEEN, UNSEEN_SEED))
        shown, memories, starts = worlds.reset(), None, np.ones(UNSEEN, bool)
        for _ in range(EPISODE_BARS):
            actions, memories = self.model.predict(self._scaled.normalize_obs(shown), memories, starts)
            shown, _, starts, _ = worlds.step(actions)
        return fmean(worlds.finished)


def vectorize_markets(worlds: TradingMarkets) -> Any:
    """Return the same worlds as a vectorized environment of Stable-Baselines3."""
    from gymnasium import spaces
    from stable_baselines3.common.vec_env import VecEnv

    class Market(VecEnv):  # type: ignore[misc]
        def __init__(self) -> None:
            space = spaces.Box(-LIMIT, LIMIT, (len(FEATURES),), np.float32)
            super().__init__(worlds.num_envs, space, spaces.Discrete(len(ACTIONS)))
            self.finished: list[float] = []
            self._sums = np.zeros(worlds.num_envs)
            self._nothing: list[dict[str, Any]] = [{} for _ in range(worlds.num_envs)]

        def reset(self) -> Any:
            return worlds.moment.observations.copy()

        def step_async(self, actions: Any) -> None:
            self._actions = actions

        def step_wait(self) -> Any:
            worlds.step(np.asarray(self._actions, np.int64))
            now = worlds.moment
            ended = now.terminated | now.truncated
            self._sums += now.rewards
            infos = self._nothing
            if ended.any():
                infos = [{} for _ in range(worlds.num_envs)]
                for b in np.flatnonzero(ended):
                    cut = bool(now.truncated[b])
                    infos[b] = {"terminal_observation": now.last_observations[b].copy(), "TimeLimit.truncated": cut}
                self.finished += self._sums[ended].tolist()
                self._sums[ended] = 0.0
            return now.observations.copy(), now.rewards.copy(), ended, infos

        def close(self) -> None:
            pass

        def get_attr(self, name: str, indices: Any = None) -> list[Any]:
            return [None] * worlds.num_envs

        def set_attr(self, name: str, value: Any, indices: Any = None) -> None:
            pass

        def env_method(self, name: str, *arguments: Any, indices: Any = None, **options: Any) -> list[Any]:
            return [None] * worlds.num_envs

        def env_is_wrapped(self, wrapper: Any, indices: Any = None) -> list[bool]:
            return [False] * worlds.num_envs

    return Market()


def choose_trainer(cores: int) -> tuple[Callable[..., Ours | OursOnRanks], Clock]:
    """Return the constructor of our trainer for a number of cores, and the clock to time it."""
    return (partial(OursOnRanks, ranks=cores), time.perf_counter) if cores > 1 else (Ours, time.process_time)


def compare_speed(report: Report, arguments: argparse.Namespace, *, with_theirs: bool) -> None:
    """Let both take turns, and print their speeds."""
    make, clock = choose_trainer(arguments.cores)
    kind, trainers = arguments.network, list[Any]()
    trainers.append(make(kind, arguments.num_envs, 1, mixed_precision=arguments.mixed_precision))
    if with_theirs:
        trainers.append(Theirs(kind, arguments.their_envs, 1))
    for each in trainers:
        each.learn()  # compile, allocate
    found = take_turns([partial(time_call, each.learn, clock) for each in trainers], arguments.rounds)
    rates = [[each.steps / seconds for seconds in turns] for each, turns in zip(trainers, found, strict=True)]
    trainers[0].close()
    title = f"LSTM of {LSTM_SIZES[kind]}, {arguments.cores} cores: steps/s"
    table = report.table(title, "network", "worlds, ours", "theirs", "ours", "RecurrentPPO", "ratio")
    other: tuple[float | None, Ratio | None] = (None, None)
    if with_theirs:
        other = median(rates[1]), divide_rounds(*rates)
    table.add(kind, arguments.num_envs, arguments.their_envs, median(rates[0]), *other)


def compare_best_speeds(report: Report, arguments: argparse.Namespace, *, with_theirs: bool) -> None:
    """Compare all at their best number of worlds: the better of two rounds after a warm-up."""
    ours, clock = choose_trainer(arguments.cores)
    makers: dict[str, Callable[..., Ours | OursOnRanks | Theirs]] = {
        "ours": ours,
        "ours in 16 bits": partial(ours, mixed_precision=True),
        **({"RecurrentPPO": Theirs} if with_theirs else {}),
    }
    title = f"{arguments.network} LSTM of {LSTM_SIZES[arguments.network]}, {arguments.cores} cores: steps/s"
    table, rows = report.table(title, "worlds", *makers), list[list[float]]()
    for count in arguments.worlds:
        rows.append([])
        for make in makers.values():
            one = make(arguments.network, count, 1)
            one.learn()
            rows[-1].append(one.steps / min(time_call(one.learn, clock) for _ in range(2)))
            one.close()
        table.add(str(count), *rows[-1])
    best = [max(column) for column in zip(*rows, strict=True)]
    table.add("best", *best)
    if with_theirs:
        table.add("best / RecurrentPPO's best", *(rate / best[-1] for rate in best))


def compare_returns(report: Report, arguments: argparse.Namespace) -> None:
    """Train both for the same number of steps from the same seeds, and print what they earn on unseen markets."""
    title = f"Mean reward of an episode after {arguments.steps:,} steps, per cent of the capital"
    table, pairs = report.table(title, "seed", "ours", "RecurrentPPO", "difference"), list[list[float]]()
    for seed in range(1, arguments.seeds + 1):
        both: list[Ours | Theirs] = [
            Ours(arguments.network, arguments.num_envs, seed, mixed_precision=arguments.mixed_precision),
            Theirs(arguments.network, arguments.num_envs, seed),
        ]
        for one in both:
            for _ in range(max(1, arguments.steps // one.steps)):
                one.learn()
        pairs.append([one.mean_reward() for one in both])
        table.add(str(seed), *pairs[-1], pairs[-1][0] - pairs[-1][1])
    ours, theirs = np.array(pairs).T
    columns = ours, theirs, ours - theirs
    table.add("mean", *(float(ends.mean()) for ends in columns))
    table.add("±", *(mean_margin(ends) for ends in columns))


def main() -> None:
    """Measure and print."""
    parser = Parser(__doc__, rounds=3)
    parser.option("--network", LSTM_SIZES, "shared", help="whether actor and critic share an LSTM")
    parser.option("--num-envs", whole(), 8, help="worlds of ours")
    parser.option("--their-envs", whole(), 8, help="worlds of theirs")
    parser.option("--cores", whole(), 1, help="for each: ours uses ranks, theirs uses threads")
    parser.add_argument("--mixed-precision", action="store_true", help="ours learns in 16 bits")
    parser.add_argument("--sweep", action="store_true", help="compare both at their best number of worlds")
    parser.option("--worlds", whole(), SWEPT, quick=(8, 32), help="with --sweep")
    parser.add_argument("--returns", action="store_true", help="compare what both earn")
    parser.option("--steps", whole(), 20_000, quick=1_000, help="with --returns")
    parser.option("--seeds", whole(), 5, quick=2, help="with --returns")
    arguments = parser.parse()
    torch.set_num_threads(arguments.cores)
    with_theirs = import_if_installed("sb3_contrib", "sb3-contrib") is not None
    if arguments.returns and not with_theirs:
        parser.error("--returns: it needs sb3-contrib")
    with Report(arguments) as report:
        if arguments.sweep:
            compare_best_speeds(report, arguments, with_theirs=with_theirs)
        elif arguments.returns:
            compare_returns(report, arguments)
        else:
            compare_speed(report, arguments, with_theirs=with_theirs)


if __name__ == "__main__":
    main()
