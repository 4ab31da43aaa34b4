"""Tuning at the start of a worker: the number of parallel games, and the size of network calls."""

import hashlib
import inspect
import json
import os
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
from llvmlite.binding import get_host_cpu_name  # type: ignore[import-untyped]
from numpy.typing import NDArray

from configs.cache import CACHE
from configs.schema import SearchSettings
from games import Game
from games.compiled import cache_folder
from games.game import Planes
from training.search.puct import Evaluate
from training.self_play.self_play import SelfPlay

AUTO_SIZES = (16, 32, 64, 128, 256)
TRIAL_SECONDS = 0.5  # of play for each size, after a warm-up
MEASUREMENTS = CACHE / "parallel_games"  # what was measured on this machine
KNOWN_SECONDS = 7 * 24 * 3600.0  # so long it counts: the machine may have been busy with something else
NEARLY_AS_FAST = 0.95  # a smaller size that is nearly as fast finishes games sooner, with newer models


def measure_parallel_games(game: Game, evaluate: Evaluate, settings: SearchSettings) -> tuple[int, str]:
    """Measure the best number of parallel games.

    Returns:
        The number, and a log line with the measurements.
    """
    rates = {size: evaluations_per_second(game, evaluate, settings, size) for size in AUTO_SIZES}
    best = max(rates.values())
    chosen = min(size for size, rate in rates.items() if rate >= NEARLY_AS_FAST * best)
    found = ", ".join(f"{size}: {rate:,.0f}" for size, rate in rates.items())
    return chosen, f"{chosen} parallel games (evaluations/s by parallel games: {found})"


def known_parallel_games(
    game: Game, evaluate: Evaluate, settings: SearchSettings, *, network: str, folder: Path = MEASUREMENTS
) -> tuple[int, str]:
    """Like ``measure_parallel_games``, but at most once a week on the same machine, so that workers start sooner.

    Args:
        network: describes the network and its runtime.
        folder: of the saved results.
    """
    code = cache_folder(Path(inspect.getfile(SelfPlay))).name
    what = [game.name, str(game.options), network, settings.model_dump(mode="json"), get_host_cpu_name(), code]
    file = folder / f"{hashlib.sha256(json.dumps(what).encode()).hexdigest()[:32]}.json"
    with suppress(OSError, ValueError, KeyError, TypeError):
        known = json.loads(file.read_text(encoding="utf-8"))
        if known["parallel_games"] in AUTO_SIZES and 0 <= time.time() - file.stat().st_mtime < KNOWN_SECONDS:
            return known["parallel_games"], f"{known['found']}, as measured before ({file})"
    chosen, found = measure_parallel_games(game, evaluate, settings)
    with suppress(OSError):  # it is measured again next time
        folder.mkdir(parents=True, exist_ok=True)
        part = file.with_suffix(f".{os.getpid()}")  # other workers of this machine measure at the same time
        part.write_text(json.dumps({"parallel_games": chosen, "found": found}), encoding="utf-8")
        part.replace(file)
    return chosen, found


def evaluations_per_second(game: Game, evaluate: Evaluate, settings: SearchSettings, parallel_games: int) -> float:
    """The speed of self-play with this many parallel games."""
    self_play = SelfPlay(game, evaluate, settings, parallel_games=parallel_games)
    next_seed = 0
    started, done = time.perf_counter(), 0
    warm = False
    while time.perf_counter() - started < TRIAL_SECONDS:
        if idle := self_play.num_idle():
            self_play.begin(range(next_seed, next_seed + idle))
            next_seed += idle
        self_play.advance()
        if not warm and self_play.evaluations >= 4 * parallel_games:
            warm, started, done = True, time.perf_counter(), self_play.evaluations
    return (self_play.evaluations - done) / (time.perf_counter() - started)


def in_parts(evaluate: Evaluate, most: int) -> Evaluate:
    """``evaluate``, split into calls of at most ``most`` positions."""

    def evaluate_in_parts(observations: Planes) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        answers = [evaluate(observations[i : i + most]) for i in range(0, len(observations), most)]
        return np.concatenate([logits for logits, _ in answers]), np.concatenate([values for _, values in answers])

    return evaluate_in_parts


def search_is_compiled() -> bool:
    """Whether the compilation cache on this machine has the search."""
    return any(cache_folder(Path(inspect.getfile(SelfPlay))).rglob("*.nbi"))
