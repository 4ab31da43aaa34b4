"""The one-player benchmark: a network and reference players each play many games for the score.

The games of a contender are cut into slices, one a process. The chance events of a game follow from the seed and the
number of the game; a network's answers may differ in the last digit with the number of positions in a batch, and so its
moves with that of processes.
"""

import itertools
import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from keima.base.reports.run_reports import ScoreReport
from keima.evaluation.score import SIDE_BY_SIDE, ScoredGames, summarize_scores
from keima.games import CHANCE, Game
from keima.games.game import States
from keima.networks.architectures.layers import HEAD_CHANNELS
from keima.networks.files.model import Model, describe_model
from keima.play.arena.players import ExpectimaxPlayer, PlayerSpec
from keima.play.arena.score_slice import ScoreJob, ScoreLine, play_score_job
from keima.play.arena.slices import play_jobs

MOST_DEPTH = 4  # of expectimax, when its depth follows from the time
PROBES = 40  # positions on which that time is measured

OnProgress = Callable[[int, int], None]  # (games that have ended, moves made)


@dataclass(frozen=True, kw_only=True)
class ScoreResult:
    """The games of one player."""

    name: str
    games: ScoredGames
    report: ScoreReport
    move_seconds: float  # of one processor, or wall time on a GPU
    seconds: float  # until all processes were done

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        report = {key: value for key, value in vars(self.report).items() if key != "milestones"}
        games = {key: getattr(self.games, key).tolist() for key in ("scores", "reached", "plies")}
        milestones = [vars(part) for part in self.report.milestones]
        return (
            {"name": self.name, "seconds": self.seconds, "move_seconds": self.move_seconds}
            | report
            | {"milestones": milestones}
            | games
        )


def play_scored(
    game: Game,
    name: str,
    spec: PlayerSpec,
    *,
    games: int,
    seed: int,
    processes: int,
    on_progress: OnProgress = lambda ended, moves: None,
) -> ScoreResult:
    """Let a player play ``games`` games in several processes.

    Raises:
        SliceFailed: a process ended before its games did.
    """
    started = time.monotonic()
    bounds = np.linspace(0, games, min(processes, games) + 1).astype(int).tolist()
    jobs = [
        ScoreJob(game=game.name, options=game.options, spec=spec, games=last - first, first=first, seed=seed)
        for first, last in itertools.pairwise(bounds)
    ]
    parts = play_jobs(
        play_score_job,
        jobs,
        ScoreLine(ended=0, moves=0),
        lambda lines: on_progress(sum(line.ended for line in lines), sum(line.moves for line in lines)),
    )
    played = ScoredGames(
        scores=np.array([score for part in parts for score in part.scores]),
        reached=np.array([reached for part in parts for reached in part.reached]),
        plies=np.array([plies for part in parts for plies in part.plies]),
        moves=sum(part.moves for part in parts),
    )
    report = summarize_scores(game, played)
    assert report is not None
    move_seconds = sum(part.seconds for part in parts) / max(1, played.moves)
    return ScoreResult(
        name=name, games=played, report=report, move_seconds=move_seconds, seconds=time.monotonic() - started
    )


def find_affordable_depth(game: Game, seconds: float) -> int:
    """Return the greatest expectimax depth at which a move takes at most ``seconds``, at least 0."""
    positions = sample_positions(game)
    depth = 0
    while depth < MOST_DEPTH and time_a_move(positions, depth + 1) <= seconds:
        depth += 1
    return depth


def sample_positions(game: Game) -> list[States]:
    """Return positions from games of shallow expectimax, late enough for the board to be as full as usual."""
    random, player, state = np.random.default_rng(0), ExpectimaxPlayer(0), game.initial_state()
    positions: list[States] = []
    while len(positions) < PROBES:
        if game.terminal(state):
            state = game.initial_state()
        elif game.current_player(state) == CHANCE:
            outcomes, chances = game.chance_outcomes(state)
            game.play(state, int(random.choice(outcomes, p=chances / chances.sum())))
        else:
            if random.random() < 1 / SIDE_BY_SIDE:
                positions.append(state.copy())
            game.play(state, int(player.choose(state[None])[0]))
    return positions


def time_a_move(positions: Iterable[States], depth: int) -> float:
    """Return the mean processor seconds per move."""
    player, states = ExpectimaxPlayer(depth), np.stack(list(positions))
    player.choose(states[:1])
    started = time.process_time()
    player.choose(states)
    return (time.process_time() - started) / len(states)


def make_model_from_weights(game: Game, weights: Mapping[str, Any]) -> Model:
    """Return a state dictionary of a network for ``game`` as a model; the network's size follows from the shapes.

    Raises:
        ValueError: they are not of such a network, or are for another game.
    """
    try:
        filters, planes = weights["stem.conv.weight"].shape[:2]
        cells = weights["policy.others.weight"].shape[1] // HEAD_CHANNELS
    except (KeyError, AttributeError, ValueError) as error:
        raise ValueError(f"it is not a state dictionary of a network for {game.name}: {error!r} is missing") from error
    shape = (game.observation_shape[0], math.prod(game.observation_shape[1:]))
    if (planes, cells) != shape:
        raise ValueError(
            f"the network takes {planes} planes of {cells} cells, {game.name} {game.options} has {shape[0]} of "
            f"{shape[1]}"
        )
    network = {
        "type": "resnet",
        "blocks": len({name.split(".")[1] for name in weights if name.startswith("tower.")}),
        "channels": int(filters),
        "global_pooling": "policy.bias.weight" in weights,
    }
    model = Model(description=describe_model(game, network, 0), weights=dict(weights))
    model.build(game)
    return model
