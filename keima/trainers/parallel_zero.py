"""The guide's trainer: a network of the user's own, trained by worker processes of this machine.

It only wires; the loop is the Coach's.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from keima.base.files import write_atomically
from keima.base.reports.run_reports import IterationReport, Observer
from keima.base.run_folder import LEDGER_NAME
from keima.cluster.local.worker_devices import spread_local_workers
from keima.coach.session import make_run_folder
from keima.config.schema import Settings
from keima.games import Game
from keima.networks.files.model import Model, describe_model
from keima.networks.policy_value import as_policy_value_network
from keima.report.files.trackers import require_trackers
from keima.trainers.run import local_backend_maker, train_run
from keima.trainers.settings import WINDOW_GROWTH, settings_for_workers, trainer_settings, validate_settings

__all__ = ["ParallelZeroTrainer", "trainer_settings"]

EPOCHS_BEFORE = "epochs_before"  # in a run's folder: how many epochs its first weights had behind them


class ParallelZeroTrainer:
    """Trains ``model`` to play by ``rules``: worker processes play against themselves, and this process learns.

    Args:
        model: made by ``ZeroNetwork`` or ``build_network`` for this game. Training starts from its weights and puts the
            trained ones into it.
        rules: the game, such as ``GameRules(4, 4)``.
        num_workers: processes in all, spread evenly over the GPUs; by default two per GPU, without GPUs one per core.
        settings: of the run: its name and folder, its seed, devices, search, window and minutes. By default
            ``trainer_settings(rules)``. The network is that of ``model``; ``train`` sets what its arguments name.
        workers_per_gpu: processes per GPU, instead of ``num_workers``.
        resume: continue the run in its folder instead of starting one from the weights of ``model``.
        checkpoint_dir: where ``model_epoch_N.pth`` is written every ten epochs and at the end.
        epochs_before: epochs that the weights of ``model`` were trained for; N counts on from there.
        observers: returns the observers for a run's folder; by default the terminal, and files in that folder.

    Attributes:
        run_dir: the run's folder.
        stopped: whether Ctrl-C has ended the last call of ``train``.
        weights_file: the last ``model_epoch_N.pth``.
    """

    def __init__(
        self,
        model: Any,
        rules: Game,
        num_workers: int | None = None,
        *,
        settings: Settings | None = None,
        workers_per_gpu: int | None = None,
        resume: bool = False,
        checkpoint_dir: str | Path | None = None,
        epochs_before: int = 0,
        observers: Callable[[Path], Sequence[Observer]] | None = None,
    ) -> None:
        self.model, self.rules = model, rules
        self.settings = settings or trainer_settings(rules)
        self.num_workers, self.workers_per_gpu = num_workers, workers_per_gpu
        self.run_dir = self.settings.run.folder
        self.resume, self.stopped = resume, False
        self.checkpoint_dir = Path(checkpoint_dir) if checkpoint_dir is not None else None
        self.epochs_before = epochs_before
        self.weights_file: Path | None = None
        self._make_observers = observers

    def train(
        self,
        epochs: int | None = 100,
        games_per_epoch: int = 32,
        batch_size: int = 64,
        lr: float = 0.001,
        simulations: int = 50,
    ) -> IterationReport | None:
        """Train, and put the trained weights into ``model``. Called again, it continues the same run.

        Args:
            epochs: the total number, including earlier calls and sessions; None: until it is stopped,
                or the minutes in the settings have passed.
            games_per_epoch: the exact number of games in each epoch, played with one network before it learns.
            batch_size: positions in an optimizer step.
            lr: the learning rate, or its highest value if it follows a schedule.
            simulations: of the search for each move.

        Returns:
            The last epoch's report; None when no epoch was finished.

        Raises:
            ValueError: the model is not for these rules, a number is out of range, there is no such device, or the
                folder holds a run.
            RunLocked: another process works on this run.
            NobodyPlays: all workers have failed.
            TrainingDiverged: losses or gradients are not finite.
        """
        network = as_policy_value_network(self.model).settings()
        description = describe_model(self.rules, network, 0)
        Model(description=description, weights=self.model.state_dict()).build(self.rules)  # raises if it does not fit
        document = self.settings.model_dump() | {"network": network}
        document["game"] |= {"name": self.rules.name, "options": self.rules.options}
        document["run"]["iterations"] = epochs
        document["search"] |= {"num_simulations": simulations, "cheap_simulations": simulations}
        document["training"] |= {
            "asynchronous": False,
            "steps_per_model": None,
            "batch_size": batch_size,
            "learning_rate": lr,
            "games_per_iteration": games_per_epoch,
            "window": {**document["training"]["window"], "min_positions": batch_size, "growth_exponent": WINDOW_GROWTH},
        }
        if epochs is None and self.settings.run.minutes is None:
            document["training"]["learning_rate_schedule"] = "constant"  # a run without an end has no schedule
        document["self_play"]["workers"] = "auto" if self.num_workers is None else self.num_workers
        spread = spread_local_workers(validate_settings(document), per_gpu=self.workers_per_gpu)
        settings = settings_for_workers(document, spread)
        require_trackers(settings.run.trackers)
        make_run_folder(self.run_dir, resume=self.resume)
        try:
            end = train_run(
                self.run_dir,
                settings,
                make_backend=local_backend_maker(spread=spread),
                resume=self.resume,
                observers=self._make_observers(self.run_dir) if self._make_observers else None,
                weights=self.model.state_dict(),
                weights_path=self._weights_path(),
            )
        finally:
            self.resume = (self.run_dir / LEDGER_NAME).exists()
        self.stopped = end.stopped
        self.model.load_state_dict(end.coach.learner.weights())
        if end.files:
            end.files.write(end.coach.state.iteration)
            self.weights_file = end.files.path
        return end.report

    def _weights_path(self) -> Callable[[int], Path] | None:
        """Return what names the file of an epoch's weights, if they are wanted; its numbers continue those of the first
        weights.
        """
        folder = self.checkpoint_dir
        if folder is None:
            return None
        mark = self.run_dir / EPOCHS_BEFORE
        if not mark.exists():
            write_atomically(mark, str(self.epochs_before).encode())
        before = int(mark.read_text(encoding="utf-8"))
        return lambda epoch: folder / f"model_epoch_{before + epoch}.pth"
