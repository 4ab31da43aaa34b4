"""A part of a one-player benchmark's games, in a separate process (``slices``)."""

import time
from contextlib import ExitStack
from typing import Any

from keima.evaluation.match import Player
from keima.evaluation.score import SIDE_BY_SIDE, ScoredGames, play_for_score
from keima.games import Game, load_game
from keima.networks.inference.evaluator import pick_device
from keima.play.arena.players import PlayerSpec, make_player
from keima.play.arena.slices import JobMessage, JobStatus, ProgressReporter, Report

WARM_UP_SEED = 2**40  # of the warm-up games


class ScoreJob(JobMessage):
    """Games ``first`` to ``first + games - 1`` of a player."""

    game: str
    options: dict[str, Any]
    spec: PlayerSpec
    games: int
    first: int
    seed: int


class ScoreLine(JobStatus):
    """The status of a job, and at the end its games."""

    seconds: float = 0.0  # of the processor, or wall time on a GPU
    scores: tuple[float, ...] = ()
    reached: tuple[int, ...] = ()
    plies: tuple[int, ...] = ()


def play_slice(job: ScoreJob, report: Report) -> tuple[ScoredGames, float]:
    """Play the games of a job after a warm-up and report their progress; returns them and their seconds."""
    game = load_game(job.game, **job.options)
    clock = time.perf_counter if job.spec.kind == "network" and pick_device("auto").type != "cpu" else time.process_time
    with ExitStack() as stack:
        player = make_player(game, job.spec, job.seed + job.first, stack)
        warm_up(game, player)
        reporter, started = ProgressReporter(report), clock()
        played = play_for_score(
            game,
            player,
            games=job.games,
            seed=job.seed,
            first=job.first,
            on_progress=lambda ended, moves: reporter.report_if_due(
                lambda: ScoreLine(ended=ended, moves=moves, seconds=clock() - started)
            ),
        )
        return played, clock() - started


def warm_up(game: Game, player: Player) -> None:
    """Compile and load everything before timing, by a first move in as many games as are played at once."""

    class Enough(Exception):
        pass

    def watch(ended: int, moves: int) -> None:
        if moves > 0:
            raise Enough

    try:
        play_for_score(game, player, games=SIDE_BY_SIDE, seed=WARM_UP_SEED, on_progress=watch)
    except Enough:
        return


def play_score_job(job: ScoreJob, report: Report) -> ScoreLine:
    """Play a job; returns the line that has its games."""
    played, seconds = play_slice(job, report)
    columns = {name: tuple(getattr(played, name).tolist()) for name in ("scores", "reached", "plies")}
    return ScoreLine(ended=job.games, moves=played.moves, complete=True, seconds=seconds, **columns)
