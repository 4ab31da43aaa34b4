"""Tune a worker at its start: how many games and threads play side by side, and the size of network calls."""

import fcntl
import hashlib
import inspect
import json
import math
import os
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
from llvmlite.binding import get_host_cpu_name  # type: ignore[import-untyped]
from numpy.typing import NDArray

from keima.compilation.sources import cache_folder
from keima.config.sections.search import SearchSettings
from keima.games import Game
from keima.games.game import Planes
from keima.paths import CACHE
from keima.search.puct import Evaluate
from keima.self_play.parallel_games import SelfPlay

AUTO_SIZES = (16, 32, 64, 128, 256)
DEVICE_SIZES = (64, 128, 256, 512, 1024)  # for a network on a device of its own, for each thread
FEWEST_THREADS = 2  # with a device: one searches while the device evaluates for the other
TURNS, TURN_SECONDS = 5, 0.1  # of play for each size, once trees have grown:
GROWN_SHARE = 0.75  # simulations that the mean tree has had by then, of those of a search; or as many as ...
GROWING_SECONDS = 2.0  # ... this time allows
RANDOM_ANSWERS = 4096  # different ones
MEASUREMENTS = CACHE / "parallel_games"  # what was measured on this machine
PLAN_LIFETIME_SECONDS = 7 * 24 * 3600.0  # so long it counts: the machine may have been busy with something else
NEARLY_AS_FAST = 0.95  # a smaller size that is nearly as fast finishes games sooner, with newer models


Clock = Callable[[], float]  # seconds that never go back


class SpeedTrial:
    """Self-play with some number of parallel games, whose speed is measured turn by turn.

    Args:
        game: what is played.
        evaluate: the network.
        settings: how it searches.
        parallel_games: how many games are played side by side.
        clock: the time that counts.
    """

    def __init__(
        self, game: Game, evaluate: Evaluate, settings: SearchSettings, parallel_games: int, *, clock: Clock
    ) -> None:
        self._self_play = SelfPlay(game, evaluate, settings, parallel_games=parallel_games)
        self._next_seed, self._clock = 0, clock
        self._rates: list[float] = []
        self._grow_trees(GROWN_SHARE * settings.num_simulations * parallel_games)
        self._self_play.evaluate = evaluate
        self._advance()

    def take_turn(self) -> None:
        """Play for a short time, but at least one evaluation of all games."""
        started, before = self._clock(), self._self_play.evaluations
        seconds = 0.0
        while seconds < TURN_SECONDS:
            self._advance()
            seconds = self._clock() - started
        self._rates.append((self._self_play.evaluations - before) / seconds)

    def evaluations_per_second(self) -> float:
        """Return evaluations per second: the median of the turns, which ignores brief load on the machine."""
        return statistics.median(self._rates)

    def _grow_trees(self, evaluations: float) -> None:
        """Play until trees are as large as in a long run: more games have more trees, which leave the caches."""
        self._self_play.evaluate = make_random_network(self._self_play.game)
        began = self._clock()
        while self._self_play.evaluations < evaluations and self._clock() - began < GROWING_SECONDS:
            self._advance()

    def _advance(self) -> None:
        if idle := self._self_play.num_idle():
            self._self_play.begin(range(self._next_seed, self._next_seed + idle))
            self._next_seed += idle
        self._self_play.advance()


def make_random_network(game: Game) -> Evaluate:
    """Return a random evaluator that costs nothing."""
    random = np.random.default_rng(0)
    logits = random.normal(size=(RANDOM_ANSWERS, game.num_actions)).astype(np.float32)
    shape = RANDOM_ANSWERS if game.num_values == 1 else (RANDOM_ANSWERS, game.num_values)
    values = np.tanh(random.normal(size=shape)).astype(np.float32)

    def evaluate(observations: Planes) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        rows = random.integers(RANDOM_ANSWERS, size=len(observations))
        return logits[rows], values[rows]

    return evaluate


@dataclass(frozen=True, kw_only=True)
class SelfPlayPlan:
    """How a worker plays."""

    parallel_games: int  # in all
    threads: int  # that search
    found: str  # a log line with the measurements


def measure_plan(
    game: Game,
    evaluate: Evaluate,
    settings: SearchSettings,
    *,
    clock: Clock = time.perf_counter,
    own_device: bool,
    max_threads: int,
) -> SelfPlayPlan:
    """Measure the best number of parallel games, and of threads. All sizes take turns, so that disturbances affect all
    alike.

    Args:
        clock: processor time where the network runs on this processor, which other processes hardly change.
        own_device: whether the network runs on a device of its own, so that threads can search meanwhile.
        max_threads: that may search then.
    """
    sizes = DEVICE_SIZES if own_device else AUTO_SIZES
    trials = {size: SpeedTrial(game, evaluate, settings, size, clock=clock) for size in sizes}
    for _ in range(TURNS):
        for trial in trials.values():
            trial.take_turn()
    rates = {size: trial.evaluations_per_second() for size, trial in trials.items()}
    best = max(rates.values())
    chosen = min(size for size, rate in rates.items() if rate >= NEARLY_AS_FAST * best)
    found = ", ".join(f"{size}: {rate:,.0f}" for size, rate in rates.items())
    found = f"{chosen} parallel games (evaluations/s by parallel games: {found})"
    if not own_device:
        return SelfPlayPlan(parallel_games=chosen, threads=1, found=found)
    share = measure_device_share(game, evaluate, settings, chosen)
    threads = count_search_threads(share, max_threads)
    found = f"{threads} threads, each with {found}; a thread waits for the device {share:.0%} of the time"
    return SelfPlayPlan(parallel_games=chosen * threads, threads=threads, found=found)


def count_search_threads(share: float, max_threads: int) -> int:
    """Return how many threads keep a device busy, at most ``max_threads`` but at least two.

    Args:
        share: of a single thread's time in which it waits for the device, in (0, 1].
    """
    busy = math.ceil(1 / max(share, 1e-3)) + 1  # one more prepares positions while the device works for the others
    return max(FEWEST_THREADS, min(busy, max_threads))


def load_or_measure_plan(
    game: Game,
    evaluate: Evaluate,
    settings: SearchSettings,
    *,
    network: str,
    folder: Path = MEASUREMENTS,
    clock: Clock = time.perf_counter,
    own_device: bool = False,
    max_threads: int = 1,
) -> SelfPlayPlan:
    """Load a plan that is at most a week old and of the same machine, so that workers start sooner; else call
    ``measure_plan``.

    Workers that start together wait for the first one's measurement, and all use its result.

    Args:
        network: describes the network and its runtime.
        folder: of the saved results.
        clock: see ``measure_plan``.
        own_device: see ``measure_plan``.
        max_threads: see ``measure_plan``.
    """
    code = cache_folder(Path(inspect.getfile(SelfPlay))).name
    what = [game.name, str(game.options), network, settings.model_dump(mode="json"), get_host_cpu_name(), code]
    what += [max_threads] if own_device else []
    file = folder / f"{hashlib.sha256(json.dumps(what).encode()).hexdigest()[:32]}.json"
    with _hold_lock(folder):
        with suppress(OSError, ValueError, KeyError, TypeError):
            plan = SelfPlayPlan(**json.loads(file.read_text(encoding="utf-8")))
            sound = plan.threads >= 1 and plan.parallel_games / plan.threads in (*AUTO_SIZES, *DEVICE_SIZES)
            if sound and 0 <= time.time() - file.stat().st_mtime < PLAN_LIFETIME_SECONDS:
                return replace(plan, found=f"{plan.found}, as measured before ({file})")
        plan = measure_plan(game, evaluate, settings, clock=clock, own_device=own_device, max_threads=max_threads)
        with suppress(OSError):  # it is measured again next time
            part = file.with_suffix(f".{os.getpid()}")
            part.write_text(json.dumps(asdict(plan)), encoding="utf-8")
            part.replace(file)
    return plan


@contextmanager
def _hold_lock(folder: Path) -> Iterator[None]:
    """Hold a lock against other processes of this machine within the block, if the folder can be made and locked."""
    with ExitStack() as stack:
        with suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(folder, os.O_RDONLY)
            stack.callback(os.close, descriptor)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield


def measure_self_play_speed(
    game: Game,
    evaluate: Evaluate,
    settings: SearchSettings,
    parallel_games: int,
    *,
    clock: Clock = time.perf_counter,
) -> float:
    """Return the speed of self-play with this many parallel games, in evaluations per second of ``clock``."""
    trial = SpeedTrial(game, evaluate, settings, parallel_games, clock=clock)
    for _ in range(TURNS):
        trial.take_turn()
    return trial.evaluations_per_second()


def measure_device_share(game: Game, evaluate: Evaluate, settings: SearchSettings, parallel_games: int) -> float:
    """Return the share of self-play's time in which the network computes and the search waits, in (0, 1]."""
    waited = 0.0

    def timed(observations: Planes) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        nonlocal waited
        began = time.perf_counter()
        answers = evaluate(observations)
        waited += time.perf_counter() - began
        return answers

    trial = SpeedTrial(game, timed, settings, parallel_games, clock=time.perf_counter)
    trial.take_turn()  # the first calls take longer
    waited, began = 0.0, time.perf_counter()
    for _ in range(TURNS):
        trial.take_turn()
    return waited / (time.perf_counter() - began)


def split_into_batches(evaluate: Evaluate, batch_size: int) -> Evaluate:
    """Split the calls of ``evaluate`` into calls of at most ``batch_size`` positions."""

    def evaluate_in_parts(observations: Planes) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        answers = [evaluate(observations[i : i + batch_size]) for i in range(0, len(observations), batch_size)]
        return np.concatenate([logits for logits, _ in answers]), np.concatenate([values for _, values in answers])

    return evaluate_in_parts
