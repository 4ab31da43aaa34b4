"""The ranks of a Coach's learner besides rank 0: they carry out its commands."""

import signal
from contextlib import suppress
from pathlib import Path

from keima.coach.opening import make_window
from keima.coach.ranks.leading import next_command
from keima.coach.ranks.learners import grow_learner, make_learner
from keima.coach.session import learner_threads
from keima.config.own_modules import keep_source
from keima.config.schema import Settings
from keima.data.records import decode_batch
from keima.games import load_game
from keima.learning.learner import LearnerState
from keima.learning.ranks.process_group import Ranks
from keima.learning.update_step import TrainingDiverged
from keima.networks.files.weights_file import decode_tree
from keima.networks.inference.evaluator import use_threads


def follow_rank_zero(ranks: Ranks) -> None:
    """Train with rank 0 until it ends the run. Ctrl-C, SIGTERM and SIGHUP are left to rank 0.

    Raises:
        RankLost: rank 0 or another rank has ended.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    _, details, _ = next_command(ranks)
    for name, source in details["modules"].items():
        keep_source(name, source.encode())
    settings = Settings.model_validate(details["settings"])
    use_threads(learner_threads(settings, ranks))
    game = load_game(settings.game.name, **settings.game.options)
    learner, window = make_learner(game, settings, ranks=ranks), make_window(game, settings)
    while True:
        what, details, payload = next_command(ranks)
        match what:
            case "state":
                tree = decode_tree(payload, path=Path("rank 0's state"))
                learner.restore(LearnerState(tree["tensors"], tree["counters"]))
            case "grow":
                learner = grow_learner(learner, game, settings, **details)
            case "add":
                window.add(decode_batch(payload))
            case "clear":
                window.clear()
            case "resize":
                window.resize(**details)
            case "train":
                with suppress(TrainingDiverged):  # rank 0 raises it too, and handles it
                    learner.train(window, **details)
            case "end":
                return
