"""The players of a benchmark: as specs that are sent to the playing processes, and as players."""

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from keima.base.random import Streams, random_below, seed_stream
from keima.compilation.decorators import compiled
from keima.config.sections.search import SearchSettings
from keima.evaluation.match import Player, RandomPlayer, SearchPlayer
from keima.evaluation.match_worker import make_match_search
from keima.evaluation.strength import load_model_file
from keima.games import Game
from keima.games.game import Actions, States
from keima.networks.files.container import CorruptModel
from keima.networks.files.model import Model, load_safetensors
from keima.play.arena.slices import JobMessage
from keima.play.engines.gtp_client import GtpClient, GtpPlayer
from keima.play.engines.nboard_client import NboardClient, NboardPlayer
from keima.play.engines.uci_client import UciClient, UciPlayer
from keima.search.baselines.alpha_beta import find_best_moves
from keima.search.baselines.uct import UctPlayer


class NetworkSpec(JobMessage):
    """A network that searches."""

    kind: Literal["network"] = "network"
    model: Path  # a transfer file or safetensors
    search: SearchSettings
    num_simulations: int
    device: str = "auto"


class ExpectimaxSpec(JobMessage):
    """Expectimax search to a fixed depth; only for 2048 on 4 x 4."""

    kind: Literal["expectimax"] = "expectimax"
    depth: int


class RandomSpec(JobMessage):
    """Plays any legal move."""

    kind: Literal["random"] = "random"


class GreedySpec(JobMessage):
    """Mates, or captures the most valuable piece; only for chess."""

    kind: Literal["greedy"] = "greedy"


class AlphaBetaSpec(JobMessage):
    """Alpha-beta search to a fixed depth: on material in chess, by the score on the board in other games."""

    kind: Literal["alpha-beta"] = "alpha-beta"
    depth: int


class MctsSpec(JobMessage):
    """Monte-Carlo tree search with random playouts."""

    kind: Literal["mcts"] = "mcts"
    playouts: int  # for a move


class EngineSpec(JobMessage):
    """An external engine."""

    files: tuple[str, ...] = ()  # that it reads without being told, and on which its play depends


class UciSpec(EngineSpec):
    """A UCI engine; only for chess."""

    kind: Literal["uci"] = "uci"
    command: tuple[str, ...]  # the program and its arguments
    setup: tuple[str, ...] = ()  # lines that it gets once
    go: str  # the limit of a search, such as "nodes 20000"
    move_seconds: float  # at most, on a busy machine


class GtpSpec(EngineSpec):
    """A GTP engine."""

    kind: Literal["gtp"] = "gtp"
    # The program and its arguments, with all rules that are not GTP commands.
    command: tuple[str, ...]
    setup: tuple[str, ...] | None = None  # commands that choose the game; None: the size and komi of Go
    move_seconds: float  # at most, on a busy machine


class NboardSpec(EngineSpec):
    """An NBoard engine; only for Othello."""

    kind: Literal["nboard"] = "nboard"
    command: tuple[str, ...]  # the program and its arguments
    setup: tuple[str, ...] = ()  # lines that it gets once
    move_seconds: float  # at most, on a busy machine


AnyPlayerSpec = (
    NetworkSpec | ExpectimaxSpec | RandomSpec | GreedySpec | AlphaBetaSpec | MctsSpec | UciSpec | GtpSpec | NboardSpec
)
PlayerSpec = Annotated[AnyPlayerSpec, Field(discriminator="kind")]


class ExpectimaxPlayer:
    """Expectimax as a player."""

    def __init__(self, depth: int) -> None:
        self._depth = depth

    def choose(self, states: States) -> Actions:
        """Return the best action to the player's depth."""
        from keima.games.twenty48.expectimax import choose_expectimax_move  # imported here, because it compiles 2048

        return np.array([choose_expectimax_move(state, depth=self._depth) for state in states], np.int32)


class BestOfPlayer:
    """Plays one of several equally good actions.

    Args:
        find: for states ``[N, S]`` these actions, first in each row of ``[N, ...]``, and how many they are, ``[N]``.
        seed: of the choice among them.
    """

    def __init__(self, find: Callable[[States], tuple[Actions, NDArray[np.int64]]], seed: int) -> None:
        self._find = find
        self._streams = np.array([seed_stream(seed, "best of")], np.uint64)

    def choose(self, states: States) -> Actions:
        """Return one of the best actions, all equally likely."""
        return sample_one_per_row(*self._find(states), self._streams)


@compiled
def sample_one_per_row(actions: Actions, counts: NDArray[np.int64], streams: Streams) -> Actions:
    """Sample one of the first ``counts[i]`` actions in each row of ``[N, ...]``, from stream 0."""
    chosen = np.empty(len(actions), np.int32)
    for i in range(len(actions)):
        chosen[i] = actions[i, random_below(streams, 0, counts[i])]
    return chosen


def make_greedy_player(game: Game, seed: int) -> Player:
    """Return the greedy player of chess."""
    from keima.games.chess.material import choose_greedy_actions

    return BestOfPlayer(lambda states: choose_greedy_actions(game, states), seed)


def make_alpha_beta_player(game: Game, depth: int, seed: int) -> Player:
    """Return alpha-beta to this depth: on material in chess, by the score on the board in other games."""

    def by_material(states: States) -> tuple[Actions, NDArray[np.int64]]:
        from keima.games.chess.alpha_beta import find_best_chess_moves  # only where it is played: it compiles chess

        found = find_best_chess_moves(game, states, depth=depth)
        return found.actions, found.counts

    def by_score(states: States) -> tuple[Actions, NDArray[np.int64]]:
        found = find_best_moves(game, states, depth=depth)
        return found.actions, found.counts

    return BestOfPlayer(by_material if game.name == "chess" else by_score, seed)


def make_uci_player(game: Game, spec: UciSpec, stack: ExitStack) -> Player:
    """Return a UCI engine; it ends with ``stack``."""
    engine = stack.enter_context(UciClient(spec.command, spec.setup, start_seconds=spec.move_seconds))
    return UciPlayer(game, engine, spec.go, seconds=spec.move_seconds)


def make_gtp_player(game: Game, spec: GtpSpec, seed: int, stack: ExitStack) -> Player:
    """Return a GTP engine; it ends with ``stack``."""
    engine = stack.enter_context(GtpClient(spec.command, start_seconds=spec.move_seconds))
    return GtpPlayer(game, engine, setup=spec.setup, seed=seed, seconds=spec.move_seconds)


def make_nboard_player(game: Game, spec: NboardSpec, stack: ExitStack) -> Player:
    """Return an NBoard engine; it ends with ``stack``."""
    engine = stack.enter_context(NboardClient(spec.command, spec.setup, start_seconds=spec.move_seconds))
    return NboardPlayer(game, engine, seconds=spec.move_seconds)


def read_model(path: Path) -> Model:
    """Read the model in a .model or .safetensors file.

    Raises:
        CorruptModel: it is neither.
        OSError: it is missing or unreadable.
    """
    try:
        return load_safetensors(path) if path.suffix == ".safetensors" else load_model_file(path)
    except CorruptModel as error:
        if str(path) in str(error):
            raise
        raise CorruptModel(f"{path} is not a model file: {error}") from error


def make_player(game: Game, spec: AnyPlayerSpec, seed: int, stack: ExitStack) -> Player:
    """Return the player of a spec; what must be closed after the games is pushed onto ``stack``."""
    match spec:
        case NetworkSpec():
            model = read_model(spec.model)
            search = make_match_search(
                game, model, spec.search, num_simulations=spec.num_simulations, device=spec.device
            )
            return SearchPlayer(search)
        case ExpectimaxSpec():
            return ExpectimaxPlayer(spec.depth)
        case GreedySpec():
            return make_greedy_player(game, seed)
        case AlphaBetaSpec():
            return make_alpha_beta_player(game, spec.depth, seed)
        case MctsSpec():
            return UctPlayer(game, playouts=spec.playouts, seed=seed)
        case UciSpec():
            return make_uci_player(game, spec, stack)
        case GtpSpec():
            return make_gtp_player(game, spec, seed, stack)
        case NboardSpec():
            return make_nboard_player(game, spec, stack)
        case RandomSpec():
            return RandomPlayer(game, seed)
