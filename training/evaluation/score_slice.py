"""A part of a benchmark's games for one player, in a process of its own: ``python -m training.evaluation.score_slice``.

The job comes as JSON on the standard input; lines of JSON go to the standard output: how far it is, and at the end the games.
"""

import sys
import time
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from configs.schema import SearchSettings
from games import Game, load_game
from games.game import Actions, States
from games.twenty48_expectimax import expectimax_move
from training.evaluation.guest import search_for_strength
from training.evaluation.match import Player, RandomPlayer, SearchPlayer
from training.evaluation.score import SIDE_BY_SIDE, ScoredGames, play_for_score
from training.evaluation.strength import load_model
from training.evaluator import pick_device, use_threads
from training.model_file import Model, load_safetensors

TELL_SECONDS = 0.5  # between two lines on how far it is
WARM_UP_SEED = 2**40  # of games that nobody counts


class Part(BaseModel):
    """What goes between the processes: nothing unknown, nothing guessed at."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class NetworkContender(Part):
    """A network that searches."""

    kind: Literal["network"] = "network"
    model: Path  # a file for the way, or safetensors
    search: SearchSettings
    num_simulations: int


class ExpectimaxContender(Part):
    """Searches to a fixed depth and learns nothing; only for 2048 on 4 x 4."""

    kind: Literal["expectimax"] = "expectimax"
    depth: int


class RandomContender(Part):
    """Plays any legal move."""

    kind: Literal["random"] = "random"


Contender = Annotated[NetworkContender | ExpectimaxContender | RandomContender, Field(discriminator="kind")]


class Job(Part):
    """Games ``first`` to ``first + games - 1`` of a contender's."""

    game: str
    options: dict[str, Any]
    contender: Contender
    games: int
    first: int
    seed: int


class Line(Part):
    """What is said of a job: how far it is, and at the end the games."""

    ended: int
    moves: int
    seconds: float = 0.0  # of the processor, or of the clock where a GPU works
    scores: tuple[float, ...] = ()
    reached: tuple[int, ...] = ()
    plies: tuple[int, ...] = ()


class ExpectimaxPlayer:
    """Expectimax as one who chooses moves."""

    def __init__(self, depth: int) -> None:
        self._depth = depth

    def choose(self, states: States) -> Actions:
        """The best action to the player's depth."""
        return np.array([expectimax_move(state, depth=self._depth) for state in states], np.int32)


def read_model(path: Path) -> Model:
    """The model in a file for the way, or in a safetensors file.

    Raises:
        CorruptModel: it is neither.
        OSError: it is missing or unreadable.
    """
    return load_safetensors(path) if path.suffix == ".safetensors" else load_model(path)


def make_player(game: Game, contender: NetworkContender | ExpectimaxContender | RandomContender, seed: int) -> Player:
    """The one who plays."""
    if isinstance(contender, NetworkContender):
        model = read_model(contender.model)
        return SearchPlayer(search_for_strength(game, model, contender.search, num_simulations=contender.num_simulations))
    return ExpectimaxPlayer(contender.depth) if isinstance(contender, ExpectimaxContender) else RandomPlayer(game, seed)


def play_slice(job: Job) -> tuple[ScoredGames, float]:
    """Play the games of a job; returns them and the seconds that they took, after a warm-up. Tells the standard output how far it is."""
    game = load_game(job.game, **job.options)
    player = make_player(game, job.contender, job.seed + job.first)
    warm_up(game, player)
    clock = time.perf_counter if job.contender.kind == "network" and pick_device("auto").type != "cpu" else time.process_time
    told, started = time.monotonic(), clock()

    def watch(ended: int, moves: int) -> None:
        nonlocal told
        if time.monotonic() - told >= TELL_SECONDS:
            told = time.monotonic()
            say(Line(ended=ended, moves=moves, seconds=clock() - started))

    played = play_for_score(game, player, games=job.games, seed=job.seed, first=job.first, watch=watch)
    return played, clock() - started


def warm_up(game: Game, player: Player) -> None:
    """Let everything be compiled and loaded before the time counts: a first move in as many games as are played at once."""

    class Enough(Exception):
        pass

    def watch(ended: int, moves: int) -> None:
        if moves > 0:
            raise Enough

    try:
        play_for_score(game, player, games=SIDE_BY_SIDE, seed=WARM_UP_SEED, watch=watch)
    except Enough:
        return


def say(line: Line) -> None:
    """Write a line."""
    sys.stdout.write(line.model_dump_json() + "\n")
    sys.stdout.flush()


def main() -> None:
    """Play the job on the standard input."""
    use_threads(1)
    job = Job.model_validate_json(sys.stdin.read())
    played, seconds = play_slice(job)
    figures = {name: tuple(getattr(played, name).tolist()) for name in ("scores", "reached", "plies")}
    say(Line(ended=job.games, moves=played.moves, seconds=seconds, **figures))


if __name__ == "__main__":
    main()
