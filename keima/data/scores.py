"""Scores and milestones of one-player games."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from keima.base.reports.intervals import mean_margin, wilson_interval
from keima.base.reports.run_reports import MilestoneReport, ScoreReport
from keima.compilation.decorators import compiled
from keima.data.records import GameBatch
from keima.games import Game
from keima.games.game import Actions, States


def make_score_report(game: Game, scores: Sequence[float], reached: Sequence[int]) -> ScoreReport | None:
    """Return the report of games with these scores and milestones (``Game.milestone_of``); None without games."""
    if not scores:
        return None
    values, highest = np.array(scores, np.float64), np.array(reached, np.int64)
    return ScoreReport(
        games=len(values),
        mean=float(values.mean()),
        margin=mean_margin(values),
        median=float(np.median(values)),
        best=float(values.max()),
        milestones=tuple(
            _make_milestone_report(milestone, int((highest >= milestone).sum()), len(values))
            for milestone in game.milestones
        ),
    )


def _make_milestone_report(milestone: int, hits: int, games: int) -> MilestoneReport:
    low, high = wilson_interval(hits, games)
    return MilestoneReport(milestone=milestone, share=hits / games, low=low, high=high)


def milestones_of(game: Game, batch: GameBatch) -> list[int]:
    """Return the milestone of each game of a verified batch; 0 in games without milestones."""
    if not game.milestones:
        return [0] * batch.num_games
    return [
        game.milestone_of(state) for state in replay_to_end(game.rules.step, game.start, batch.lengths, batch.actions)
    ]


@compiled
def replay_to_end(step: Any, start: States, lengths: NDArray[np.int32], actions: Actions) -> States:
    """Return the final states ``[G, S]`` of games with these numbers of plies ``[G]``."""
    states = np.empty((lengths.size, start.size), np.int64)
    ply = 0
    for game in range(lengths.size):
        state = states[game]
        state[:] = start
        for _ in range(lengths[game]):
            step(state, np.int64(actions[ply]))
            ply += 1
    return states
