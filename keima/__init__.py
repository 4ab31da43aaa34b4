"""Keima for Python programs: load games and networks, analyse positions, play, read a run's games, train.

    import keima

    network = keima.load_network("models/go9.safetensors")
    for line in network.analyse(["E5", "C3"], simulations=400):
        print(line.move, line.visits, line.value)

`examples/` has whole programs. Names are imported on first use, so ``import keima`` takes no time.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from configs.schema import SearchSettings
    from distributed.local.parallel_zero import ParallelZeroTrainer
    from distributed.ssh_connector import SSHConnector
    from games import Game, load_game
    from keima.network import Line, LoadedNetwork, load_network
    from keima.playing import PlayedGame, play_game
    from keima.recorded import RecordedGame, batch_of, read_games
    from keima.training import train
    from training.data.records import GameBatch, GameRecord
    from training.evaluation.match import Player, RandomPlayer
    from training.learning.learner import Learner
    from training.networks.evaluator import Evaluator
    from training.networks.network import build_network
    from training.replay.replay import ReplayWindow
    from training.search.uct import UctPlayer
    from training.self_play.self_play import SelfPlay

_HOMES = {
    "configs.schema": ("SearchSettings",),
    "distributed.local.parallel_zero": ("ParallelZeroTrainer",),
    "distributed.ssh_connector": ("SSHConnector",),
    "games": ("Game", "load_game"),
    "keima.network": ("Line", "LoadedNetwork", "load_network"),
    "keima.playing": ("PlayedGame", "play_game"),
    "keima.recorded": ("RecordedGame", "batch_of", "read_games"),
    "keima.training": ("train",),
    "training.data.records": ("GameBatch", "GameRecord"),
    "training.evaluation.match": ("Player", "RandomPlayer"),
    "training.learning.learner": ("Learner",),
    "training.networks.evaluator": ("Evaluator",),
    "training.networks.network": ("build_network",),
    "training.replay.replay": ("ReplayWindow",),
    "training.search.uct": ("UctPlayer",),
    "training.self_play.self_play": ("SelfPlay",),
}
_HOME = {name: module for module, names in _HOMES.items() for name in names}

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
        if name not in _HOME:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it has {', '.join(__all__)}")
        value = globals()[name] = getattr(import_module(_HOME[name]), name)
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
