"""Those who play in a benchmark, as they are named to the processes that play, and as players."""

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from configs.schema import SearchSettings
from engines.gtp_client import GtpEngine, GtpPlayer
from engines.slices import Part
from engines.uci_client import Engine, EnginePlayer
from games import Game
from games.compiled import compiled
from games.game import Actions, States
from training.common.random import Streams, below, seed_stream
from training.evaluation.match import Player, RandomPlayer, SearchPlayer
from training.evaluation.match_worker import search_for_strength
from training.evaluation.strength import load_model
from training.networks.model_file import Model, load_safetensors

HASH_MIB = 4  # of an engine, which forgets after each move
NODES_SECONDS = 60.0  # for a move that is limited by positions, on a busy machine


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


class GreedyContender(Part):
    """Mates or takes the most it can; only for chess."""

    kind: Literal["greedy"] = "greedy"


class AlphaBetaContender(Part):
    """Searches to a fixed depth for material; only for chess."""

    kind: Literal["alpha-beta"] = "alpha-beta"
    depth: int


class EngineContender(Part):
    """A program that is no part of this one."""


class StockfishContender(EngineContender):
    """Stockfish, held to a level: UCI_Elo, the scale of its makers; only for chess."""

    kind: Literal["stockfish"] = "stockfish"
    path: Path
    level: int
    movetime: int | None  # milliseconds for a move; None: it is limited by positions instead
    nodes: int  # positions for a move


class GtpContender(EngineContender):
    """A program that speaks GTP; only for Go."""

    kind: Literal["gtp"] = "gtp"
    command: tuple[
        str, ...
    ]  # the program, and what it is started with: all rules but the board's size and the komi, which it is told
    move_seconds: float  # at most, on a busy machine


AnyContender = (
    NetworkContender
    | ExpectimaxContender
    | RandomContender
    | GreedyContender
    | AlphaBetaContender
    | StockfishContender
    | GtpContender
)
Contender = Annotated[AnyContender, Field(discriminator="kind")]


class ExpectimaxPlayer:
    """Expectimax as one who chooses moves."""

    def __init__(self, depth: int) -> None:
        self._depth = depth

    def choose(self, states: States) -> Actions:
        """The best action to the player's depth."""
        from games.twenty48.expectimax import expectimax_move  # only where it is played: it compiles 2048

        return np.array([expectimax_move(state, depth=self._depth) for state in states], np.int32)


class BestOfPlayer:
    """Plays any of the actions that are equally good.

    Args:
        find: for states ``[N, S]`` these actions, first in each row of ``[N, ...]``, and how many they are, ``[N]``.
        seed: of the choice among them.
    """

    def __init__(self, find: Callable[[States], tuple[Actions, NDArray[np.int64]]], seed: int) -> None:
        self._find = find
        self._streams = np.array([seed_stream(seed, "best of")], np.uint64)

    def choose(self, states: States) -> Actions:
        """One of the best, each as likely as the others."""
        return one_of_each(*self._find(states), self._streams)


@compiled
def one_of_each(actions: Actions, counts: NDArray[np.int64], streams: Streams) -> Actions:
    """One of the first ``counts[i]`` actions in each row of ``[N, ...]``, from stream 0."""
    chosen = np.empty(len(actions), np.int32)
    for i in range(len(actions)):
        chosen[i] = actions[i, below(streams, 0, counts[i])]
    return chosen


def greedy_player(game: Game, seed: int) -> Player:
    """Takes what it can, in chess."""
    from games.chess.material import greedy_actions

    return BestOfPlayer(lambda states: greedy_actions(game, states), seed)


def alpha_beta_player(game: Game, depth: int, seed: int) -> Player:
    """Searches so many plies ahead for material, in chess."""
    from games.chess.alpha_beta import search

    def find(states: States) -> tuple[Actions, NDArray[np.int64]]:
        found = search(game, states, depth=depth)
        return found.actions, found.counts

    return BestOfPlayer(find, seed)


def stockfish_player(game: Game, contender: StockfishContender, stack: ExitStack) -> Player:
    """Stockfish at a level, in one thread; it ends with ``stack``."""
    options: dict[str, str | int] = {
        "Threads": 1,
        "Hash": HASH_MIB,
        "UCI_LimitStrength": "true",
        "UCI_Elo": contender.level,
    }
    engine = stack.enter_context(Engine(contender.path, options))
    if contender.movetime is None:
        return EnginePlayer(game, engine, f"nodes {contender.nodes}", seconds=NODES_SECONDS)
    return EnginePlayer(game, engine, f"movetime {contender.movetime}", seconds=contender.movetime / 1000)


def gtp_player(game: Game, contender: GtpContender, seed: int, stack: ExitStack) -> Player:
    """A program that speaks GTP; it ends with ``stack``."""
    engine = stack.enter_context(GtpEngine(contender.command))
    return GtpPlayer(game, engine, seed=seed, seconds=contender.move_seconds)


def read_model(path: Path) -> Model:
    """The model in a file for the way, or in a safetensors file.

    Raises:
        CorruptModel: it is neither.
        OSError: it is missing or unreadable.
    """
    return load_safetensors(path) if path.suffix == ".safetensors" else load_model(path)


def make_player(game: Game, contender: AnyContender, seed: int, stack: ExitStack) -> Player:
    """The one who plays; what must be closed after the games goes onto ``stack``."""
    match contender:
        case NetworkContender():
            model = read_model(contender.model)
            return SearchPlayer(
                search_for_strength(game, model, contender.search, num_simulations=contender.num_simulations)
            )
        case ExpectimaxContender():
            return ExpectimaxPlayer(contender.depth)
        case GreedyContender():
            return greedy_player(game, seed)
        case AlphaBetaContender():
            return alpha_beta_player(game, contender.depth, seed)
        case StockfishContender():
            return stockfish_player(game, contender, stack)
        case GtpContender():
            return gtp_player(game, contender, seed, stack)
        case RandomContender():
            return RandomPlayer(game, seed)
