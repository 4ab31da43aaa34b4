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
    from keima.config.schema import SearchSettings
    from keima.data.records import GameBatch, GameRecord
    from keima.evaluation.match import Player, RandomPlayer
    from keima.games import Game, load_game
    from keima.learning.learner import Learner
    from keima.networks.inference.evaluator import Evaluator
    from keima.networks.network import build_network
    from keima.replay.window import ReplayWindow
    from keima.search.baselines.uct import UctPlayer
    from keima.self_play.parallel_games import SelfPlay
    from keima.trainers.local_run import train
    from keima.trainers.parallel_zero import ParallelZeroTrainer

__version__ = "0.1.0"

__all__ = [
    "Evaluator",
    "Game",
    "GameBatch",
    "GameRecord",
    "Learner",
    "Line",
    "LoadedNetwork",
    "ParallelZeroTrainer",
    "PlayedGame",
    "Player",
    "RandomPlayer",
    "RecordedGame",
    "ReplayWindow",
    "SSHConnector",
    "SearchSettings",
    "SelfPlay",
    "UctPlayer",
    "batch_of",
    "build_network",
    "load_game",
    "load_network",
    "play_game",
    "read_games",
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
