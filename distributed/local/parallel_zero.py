"""The guide's trainer: a network of the user's own, trained by worker processes of this machine.

It only wires; the loop is the Coach's.
"""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

from configs.schema import Settings
from distributed.local.devices import Spread, spread_here
from distributed.local.learner_ranks import learner_ranks
from distributed.local.local import spread_processes
from distributed.local.wiring import (
    EVERY,
    WINDOW_GROWTH,
    WeightsFiles,
    default_settings,
    logged,
    validated,
    with_workers,
)
from games import Game
from training.common.files import write_atomically
from training.common.reports import IterationReport, Observer
from training.common.run_lock import RunLock
from training.networks.model_file import Model, describe_model
from training.networks.zero_network import settings_of_network
from training.ranks.ranks import Ranks
from training.run.backend import SelfPlayBackend
from training.run.coach import Coach
from training.run.session import event_logger, make_run_folder, session
from views import make_observers, shielded

EPOCHS_BEFORE = "epochs_before"  # in a run's folder: how many epochs its first weights had behind them


class ParallelZeroTrainer:
    """Trains ``model`` to play by ``rules``: worker processes play against themselves, and this process learns.

    Args:
        model: made by ``ZeroNetwork`` or ``build_network`` for this game. Training begins from its weights, and ends in
        it. rules: the game, such as ``GameRules(4, 4)``. num_workers: processes in all, spread evenly over the GPUs; by
        default one for each core, and at least two for each GPU. workers_per_gpu: processes for each GPU, instead of
        ``num_workers``. device: "cpu", "cuda", or "auto": the GPUs where there are any. self_play_device: "cpu" keeps
        the workers off the GPUs, while training uses one as ``device`` says. name: of the run, whose folder is
        ``directory``/``name``; by default the game's with the time of day. directory: where runs are kept. resume: go
        on with the run in that folder, where it ended, instead of beginning one from the weights of ``model``. seed: of
        everything random. checkpoint_dir: where ``model_epoch_N.pth`` is written every ten epochs and at the end,
        beside what the run itself keeps. epochs_before: that the weights of ``model`` have behind them: N is counted on
        from there. observers: those who watch, given the run's folder; by default the terminal, and files in the run's
        folder.

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
        workers_per_gpu: int | None = None,
        device: Literal["auto", "cpu", "cuda"] = "auto",
        self_play_device: Literal["auto", "cpu"] = "auto",
        name: str | None = None,
        directory: str | Path = "runs",
        resume: bool = False,
        seed: int = 1,
        checkpoint_dir: str | Path | None = None,
        epochs_before: int = 0,
        observers: Callable[[Path], Sequence[Observer]] | None = None,
    ) -> None:
        self.model, self.rules = model, rules
        self.num_workers, self.workers_per_gpu, self.seed = num_workers, workers_per_gpu, seed
        self.device, self.self_play_device = device, self_play_device
        self.run_dir = Path(directory) / (name or f"{rules.name}-{time.strftime('%Y%m%d-%H%M%S')}")
        self.resume, self.stopped = resume, False
        self.checkpoint_dir = Path(checkpoint_dir) if checkpoint_dir is not None else None
        self.epochs_before = epochs_before
        self.weights_file: Path | None = None
        self._make_observers = observers or (
            lambda run_dir: make_observers(run_dir, name=run_dir.name, game=rules.name)
        )

    def train(
        self,
        epochs: int | None = 100,
        games_per_epoch: int = 32,
        batch_size: int = 64,
        lr: float = 0.001,
        simulations: int = 50,
        *,
        minutes: float | None = None,
    ) -> IterationReport | None:
        """Train, and put the trained weights into ``model``. Called again, it goes on with the same run.

        Args:
            epochs: after so many in all, those of earlier calls and sessions included, the run ends; None: when it is
            stopped. games_per_epoch: exactly so many games are played in an epoch, all with one network, and then
            learned from. batch_size: positions in an optimizer step. lr: the learning rate; with a shipped experiment
            that has it fall towards the end, the highest. simulations: of the search for each move. minutes: after so
            many in all the run ends too.

        Returns:
            The last epoch's report; None when no epoch was finished.

        Raises:
            ValueError: the model is not for these rules, a number is out of range, there is no such device, or the
            folder holds a run. RunLocked: another process works on this run. NobodyPlays: all workers have failed.
            TrainingDiverged: losses or gradients are not finite.
        """
        network = settings_of_network(self.model)
        Model(description=describe_model(self.rules, network, 0), weights=self.model.state_dict()).build(
            self.rules
        )  # or says why not
        document = default_settings(self.rules) | {"network": network}
        document["run"] = {**self._run(), "iterations": epochs, "minutes": minutes}
        document["search"] |= {"num_simulations": simulations, "cheap_simulations": simulations}
        document["training"] |= {
            "asynchronous": False,
            "steps_per_model": None,
            "device": self.device,
            "batch_size": batch_size,
            "learning_rate": lr,
            "games_per_iteration": games_per_epoch,
            "window": {**document["training"]["window"], "min_positions": batch_size, "growth_exponent": WINDOW_GROWTH},
        }
        if epochs is None and minutes is None:
            document["training"]["learning_rate_schedule"] = "constant"  # there is no end towards which it could fall
        workers = "auto" if self.num_workers is None else self.num_workers
        document["self_play"] |= {"workers": workers, "device": self.self_play_device}
        spread = spread_here(validated(document), per_gpu=self.workers_per_gpu)
        settings = with_workers(document, spread)
        make_run_folder(self.run_dir, resume=self.resume)
        with RunLock(self.run_dir), logged(self.run_dir / "coach.log"), learner_ranks(settings, self.run_dir) as ranks:
            self.resume = True
            return self._sit(settings, spread, ranks)

    def _run(self) -> dict[str, Any]:
        """What the settings say of the run's folder and seed."""
        return {"name": self.run_dir.name, "directory": str(self.run_dir.parent), "seed": self.seed}

    def _sit(self, settings: Settings, spread: Spread, ranks: Ranks) -> IterationReport | None:
        """Run the Coach to its end, and take over what it has learned."""
        observers = list(self._make_observers(self.run_dir))
        log_event = event_logger(observers)

        def make_backend(game: Game, run_id: str) -> SelfPlayBackend:
            return spread_processes(
                self.run_dir / "workers",
                game=game,
                settings=settings,
                run_id=run_id,
                log_event=log_event,
                spread=spread,
            )

        weights = self.model.state_dict()
        with session(
            self.run_dir, settings, make_backend=make_backend, observers=observers, weights=weights, ranks=ranks
        ) as coach:
            files = self._epoch_files(coach)
            coach.observers = [*coach.observers, shielded(files)] if files else coach.observers
            report = coach.run()
        self.stopped = coach.stop_requested
        self.model.load_state_dict(coach.learner.weights())
        if files:
            files.write(coach.state.iteration)
            self.weights_file = files.path
        return report

    def _epoch_files(self, coach: Coach) -> WeightsFiles | None:
        """Who writes the files of weights, if they are wanted; their numbers go on where those of the run's first
        weights ended.
        """
        folder = self.checkpoint_dir
        if folder is None:
            return None
        mark = self.run_dir / EPOCHS_BEFORE
        if not mark.exists():
            write_atomically(mark, str(self.epochs_before).encode())
        before = int(mark.read_text(encoding="utf-8"))
        return WeightsFiles(
            lambda epoch: folder / f"model_epoch_{before + epoch}.pth", coach.learner.weights, every=EVERY
        )
