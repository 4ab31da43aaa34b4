"""Thinking about a position in short slices, each one network call, so that input can interrupt it."""

import gc
import time

import numpy as np

from keima.config.sections.search import SearchSettings
from keima.games.game import Game
from keima.search.analysis import Analysis, AnalysisTrees, make_analysis_settings
from keima.search.puct import Evaluate

SLICE_SECONDS = 0.025  # the most for a call of the network, unless a single position takes longer
DOUBLING_GAIN = 1.1  # a batch of double size must evaluate at least this many times the positions per second
VISITS_A_LEAF = 8  # a small tree with more leaves per call is driven to bad ones by virtual losses
SMOOTHING = 0.2  # the weight of the latest call in the average time of a call
TRIALS = 3


class Thinker:
    """An analysis that knows how long a slice takes. Its constructor compiles everything.

    Args:
        evaluate: a network that takes up to ``max_batch`` positions.
        search: of the network's run.
        max_simulations: the number at which the tree is full.
        score_utility: the most that points count (``make_workspace``).
    """

    def __init__(
        self,
        game: Game,
        evaluate: Evaluate,
        *,
        search: SearchSettings = SearchSettings(),
        max_batch: int,
        max_simulations: int,
        score_utility: float = 0.0,
    ) -> None:
        self.evaluate, self._seconds = evaluate, measure_batch_seconds(game, evaluate, max_batch)
        settings = make_analysis_settings(search, leaves=max(self._seconds))
        self.analysis = Analysis(
            AnalysisTrees(game, evaluate, settings, max_simulations=max_simulations, score_utility=score_utility)
        )
        self._warm_up(game)

    def _warm_up(self, game: Game) -> None:
        """Do everything once, so that code is compiled or loaded, and freeze long-lived objects for the garbage
        collector.
        """
        while self.analysis.visits < VISITS_A_LEAF * max(self._seconds) and not self.analysis.is_finished:
            self.think_slice()
        self.analysis.play(self.analysis.best_moves()[0].action)
        self.analysis.consider_only(game.legal_actions(self.analysis.state)[:1].tolist())
        self.think_slice()
        self.analysis.best_moves()
        self.analysis.begin(game.initial_state())
        gc.collect()
        gc.freeze()

    def can_think_within(self, seconds: float) -> bool:
        """Return whether the shortest slice usually fits into this time."""
        return seconds >= self._seconds[1]

    def think_slice(self, *, seconds: float = np.inf, simulations: int | None = None) -> None:
        """Think for one network call: at most ``simulations``, and within ``seconds`` if possible."""
        most = (
            self.analysis.visits // VISITS_A_LEAF
            if simulations is None
            else min(self.analysis.visits // VISITS_A_LEAF, simulations)
        )
        size = max((n for n, time_taken in self._seconds.items() if n <= most and time_taken <= seconds), default=1)
        began = time.monotonic()
        self.analysis.run_simulations(size)
        taken = time.monotonic() - began
        self._seconds[size] += SMOOTHING * (taken - self._seconds[size])


def measure_batch_seconds(game: Game, evaluate: Evaluate, max_batch: int) -> dict[int, float]:
    """Return the network's seconds for batches of 1, 2, 4 ... positions, up to where more is too slow or useless."""
    found: dict[int, float] = {}
    size = 1
    while size <= max_batch:
        observations = np.tile(game.observe(game.initial_state()), (size, 1, 1, 1))
        for count in range(size // 2 + 1, size + 1):  # the first call of each size takes longer
            evaluate(observations[:count])
        seconds = min(_time_evaluation(evaluate, observations) for _ in range(TRIALS))
        if found and (seconds > SLICE_SECONDS or 2 * found[size // 2] < DOUBLING_GAIN * seconds):
            break
        found[size] = seconds
        size *= 2
    return found


def _time_evaluation(evaluate: Evaluate, observations: np.ndarray[tuple[int, ...], np.dtype[np.float32]]) -> float:
    began = time.monotonic()
    evaluate(observations)
    return time.monotonic() - began
