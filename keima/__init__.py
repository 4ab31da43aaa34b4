"""Keima for Python programs: load games and networks, analyse positions, play, read a run's games, train.

    import keima

    network = keima.load_network("models/go9.safetensors")
    for line in network.analyse(["E5", "C3"], simulations=400):
        print(line.move, line.visits, line.value)

`examples/` has whole programs. Names are imported on first use, so ``import keima`` takes no time.
"""

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if sys.version_info < (3, 11):  # noqa: UP036 - the block exists for older versions
    raise SystemExit(
        f"Keima needs Python 3.11 or newer, and this is Python {'.'.join(map(str, sys.version_info[:3]))} "
        f"({sys.executable}): create an environment with a newer one, for example by "
        "conda create -n keima python=3.11, or run make setup in the checkout"
    )

from keima.config.public_names import HOMES

if TYPE_CHECKING:
    from keima.api.network import Line, LoadedNetwork, load_network
    from keima.api.playing import PlayedGame, play_game
    from keima.api.recorded import RecordedGame, batch_of, read_games
    from keima.cluster.connector import SSHConnector
    from keima.compilation.decorators import inlined
    from keima.config.sections.search import SearchSettings
    from keima.data.records import GameBatch, GameRecord
    from keima.evaluation.elo import PairResult, Rating, elo_difference, rate_players
    from keima.evaluation.match import MatchResult, Player, RandomPlayer, SearchPlayer, play_match
    from keima.games import load_game
    from keima.games.authoring.contract import check_game
    from keima.games.authoring.plain import mirror_symmetries, plain_game
    from keima.games.boards import has_line, has_line_through, is_full
    from keima.games.game import (
        Game,
        IllegalAction,
        Rules,
        action_table,
        board_symmetries,
        chance_outcomes_kernel,
        final_score_kernel,
        legal_actions_kernel,
        no_chance,
        observe_kernel,
        query_kernel,
        returns_kernel,
        step_kernel,
    )
    from keima.learning.learner import Learner
    from keima.networks.inference.evaluator import Evaluator
    from keima.networks.network import build_network
    from keima.networks.policy_value import OwnNetwork
    from keima.networks.value_heads import make_value_head
    from keima.replay.window import ReplayWindow
    from keima.search.baselines.uct import UctPlayer
    from keima.search.move_search import Search
    from keima.search.puct import Evaluate
    from keima.self_play.groups import ParallelGames
    from keima.self_play.parallel_games import SelfPlay
    from keima.trainers.local_run import train
    from keima.trainers.parallel_zero import ParallelZeroTrainer
    from keima.worker.loop import Worker
    from keima.worker.worker_folder import Assignment

__version__ = "0.1.0"

__all__ = [
    "Assignment",
    "Evaluate",
    "Evaluator",
    "Game",
    "GameBatch",
    "GameRecord",
    "IllegalAction",
    "Learner",
    "Line",
    "LoadedNetwork",
    "MatchResult",
    "OwnNetwork",
    "PairResult",
    "ParallelGames",
    "ParallelZeroTrainer",
    "PlayedGame",
    "Player",
    "RandomPlayer",
    "Rating",
    "RecordedGame",
    "ReplayWindow",
    "Rules",
    "SSHConnector",
    "Search",
    "SearchPlayer",
    "SearchSettings",
    "SelfPlay",
    "UctPlayer",
    "Worker",
    "action_table",
    "batch_of",
    "board_symmetries",
    "build_network",
    "chance_outcomes_kernel",
    "check_game",
    "elo_difference",
    "final_score_kernel",
    "has_line",
    "has_line_through",
    "inlined",
    "is_full",
    "legal_actions_kernel",
    "load_game",
    "load_network",
    "make_value_head",
    "mirror_symmetries",
    "no_chance",
    "observe_kernel",
    "plain_game",
    "play_game",
    "play_match",
    "query_kernel",
    "rate_players",
    "read_games",
    "returns_kernel",
    "step_kernel",
    "train",
]


if not TYPE_CHECKING:  # with this function, a type checker would accept any name

    def __getattr__(name: str) -> Any:
        """Import a name from its room, once."""
        if name not in HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it has {', '.join(__all__)}")
        value = globals()[name] = getattr(import_module(HOMES[name]), name)
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
