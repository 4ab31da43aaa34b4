"""The benchmark of games for two and more players: a network against every opponent of a ladder, and these against
their neighbours.

Without games among the opponents a network that wins all games against one and loses all against the next would tell
nothing of how far the two are apart; with them its own few games place it between them. The games of a match are cut
into slices, one a process.
"""

import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from keima.base.reports.intervals import wilson_interval
from keima.evaluation.elo import PairResult, Rating, rate_players
from keima.evaluation.match import MatchResult
from keima.evaluation.strength import first_player_mean_return
from keima.games import Game
from keima.play.arena.match_slice import MatchJob, MatchLine, play_match_job
from keima.play.arena.players import AnyPlayerSpec
from keima.play.arena.slices import play_jobs


@dataclass(frozen=True, kw_only=True)
class Entrant:
    """A named player of a benchmark."""

    name: str
    spec: AnyPlayerSpec


@dataclass(frozen=True, kw_only=True)
class Tally:
    """The progress of a match."""

    ended: int
    moves: int
    wins: int  # of the first player
    draws: int
    losses: int


OnProgress = Callable[[Tally], None]


@dataclass(frozen=True, kw_only=True)
class Match:
    """The games between two players, one per seat from each opening (keima/evaluation/match.py)."""

    first: str
    second: str
    players: int  # of the game
    seed: int
    opening_plies: int
    scores: NDArray[np.float64]  # [games] as ``MatchResult`` has them
    games: tuple[tuple[int, ...], ...]  # the moves of each, including its opening
    move_seconds: tuple[float, float]  # each player's mean per move
    seconds: float  # until all processes were done

    @cached_property
    def result(self) -> PairResult:
        """Wins, draws and losses."""
        counted = self._match_result
        return PairResult(
            first=self.first, second=self.second, wins=counted.wins, draws=counted.draws, losses=counted.losses
        )

    @property
    def score(self) -> float:
        """The first player's share of the points."""
        return float(self.scores.mean())

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % interval of that share, as if each point had been won or lost: somewhat too wide where games are
        drawn.
        """
        return wilson_interval(float(self.scores.sum()), len(self.scores))

    @property
    def mean_return(self) -> tuple[float, float | None]:
        """The first player's mean return, and half the width of its 95 % interval."""
        return first_player_mean_return([self._match_result])

    @property
    def _match_result(self) -> MatchResult:
        return MatchResult(scores=self.scores.reshape(-1, self.players))

    @property
    def mean_plies(self) -> float:
        """The mean length of a game, its opening included."""
        return self.opening_plies + float(np.mean([len(moves) for moves in self.games]))

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            **vars(self.result),
            "score": self.score,
            "interval": self.interval,
            "mean_plies": self.mean_plies,
            "move_seconds": self.move_seconds,
            "seconds": self.seconds,
            "scores": self.scores.tolist(),
            "plies": [self.opening_plies + len(moves) for moves in self.games],
        }


def play_pairs(
    game: Game,
    first: Entrant,
    second: Entrant,
    *,
    games: int,
    opening_plies: int,
    seed: int,
    processes: int,
    on_progress: OnProgress = lambda tally: None,
) -> Match:
    """Play a multiple of ``game.num_players`` games between two players, in several processes.

    Raises:
        SliceFailed: a process ended before its games did.
    """
    started, pairs = time.monotonic(), games // game.num_players
    bounds = np.linspace(0, pairs, min(processes, pairs) + 1).astype(int).tolist()
    jobs = [
        MatchJob(
            game=game.name,
            options=game.options,
            first=first.spec,
            second=second.spec,
            match_pairs=pairs,
            first_pair=begin,
            pairs=end - begin,
            opening_plies=opening_plies,
            seed=seed,
        )
        for begin, end in itertools.pairwise(bounds)
    ]
    parts = play_jobs(play_match_job, jobs, MatchLine(ended=0, moves=0), lambda lines: on_progress(sum_progress(lines)))
    return Match(
        first=first.name,
        second=second.name,
        players=game.num_players,
        seed=seed,
        opening_plies=opening_plies,
        scores=np.array([score for part in parts for score in part.scores]),
        games=tuple(moves for part in parts for moves in part.games),
        move_seconds=(mean_seconds(parts, 0), mean_seconds(parts, 1)),
        seconds=time.monotonic() - started,
    )


def sum_progress(lines: Sequence[MatchLine]) -> Tally:
    """Return the progress of all slices together."""
    return Tally(
        **{key: sum(getattr(line, key) for line in lines) for key in ("ended", "moves", "wins", "draws", "losses")}
    )


def mean_seconds(parts: Sequence[MatchLine], side: int) -> float:
    """Return the mean seconds per move of the first or second player."""
    return sum(part.seconds[side] for part in parts) / max(1, sum(part.chosen[side] for part in parts))


def compute_ratings(matches: Sequence[Match], anchor: str) -> dict[str, Rating]:
    """Return all players' Elo, with the anchor at 0."""
    return rate_players([match.result for match in matches], anchor)
