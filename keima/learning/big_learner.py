"""Training on files of games, on one or several ranks; it can be killed at any moment.

Rank 0 saves checkpoints: single files for PyTorch's restricted reader, with everything that an exact resume needs:
weights, their average, optimizer, learning rate, gradient scale, the position in the epoch, and the random state of
every rank. The rank with the newest checkpoint sends it to the others, so machines need no shared folder.
"""

import json
import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from keima.base.reports.run_reports import LearnerReport
from keima.data.imports.game_files import file_size, find_game_files
from keima.learning.dataset_settings import BigExperiment
from keima.learning.feed import EpochFeed, LoadedBatch
from keima.learning.learner import Learner, LearnerState
from keima.learning.ranks.process_group import Ranks
from keima.networks.files.model import Model, describe_model, save_safetensors
from keima.networks.files.weights_file import CorruptWeights, decode_tree, save_tree

FORMAT = 1

Files = list[tuple[Path, int]]


@dataclass(frozen=True)
class StepProgress:
    """One step, for observers."""

    epoch: int  # from 1
    epochs: int
    share_done: float  # completed share of the epoch
    step: int  # from 1
    report: LearnerReport
    samples_per_second: float  # of all ranks, including reading
    seconds_left: float
    left_out: tuple[str, ...]  # games left out since the last step


@dataclass(frozen=True)
class FinishedEpoch:
    """A finished epoch, for observers."""

    epoch: int
    epochs: int
    positions: int
    loss: float  # the mean over all its positions, of all ranks
    num_left_out: int  # games and files left out


class BigLearner:
    """Trains a learner on files of games.

    Args:
        learner: takes the steps.
        feed: makes the batches.
        experiment: its settings are saved with every checkpoint.
        data: the folder of the files on this machine.
        save_dir: the folder of checkpoints.
        name: of the checkpoints, without endings.
        watch: called with each step and each epoch, on every rank.
    """

    def __init__(
        self,
        learner: Learner,
        feed: EpochFeed,
        experiment: BigExperiment,
        *,
        data: Path,
        save_dir: Path,
        name: str,
        watch: Callable[[StepProgress | FinishedEpoch], None],
    ) -> None:
        self.learner, self.feed, self.ranks, self.experiment = learner, feed, learner.ranks, experiment
        self.data, self.save_dir, self.name, self.watch = data, save_dir, name, watch
        self.epochs = experiment.big_learner.epochs
        self.epoch = self.done = 0  # finished epochs, and positions of the current one
        self.over = 0.0  # completed share of the current epoch
        self.bad = 0  # games left out of the current epoch; a resumed epoch meets them again
        self.loss_sum = 0.0  # over the positions of the current epoch
        self.stop_requested = False
        self.files: Files | None = None  # of the current epoch

    @property
    def path(self) -> Path:
        """The checkpoint."""
        return checkpoint_path(self.save_dir, self.name)

    def train(self) -> bool:
        """Train to the end of the last epoch; return False if ``stop_requested`` on any rank ended it earlier.

        Raises:
            TrainingDiverged: losses or gradients are not finite for many steps in a row.
            ValueError: the files have changed since the epoch began, or differ between ranks.
            OSError: the checkpoint cannot be written.
        """
        pace = SpeedMeter(self.epochs)
        while self.epoch < self.epochs:
            self.files = agree_on_files(self.ranks, self.data, self.files if self.done else None)
            self.feed.epochs = replace(self.feed.epochs, files=self.files)
            for ready in self.feed.batches(self.epoch, done=self.done):
                report = self._train_on_batch(ready)
                rate, left = pace.add_step(self.epoch + self.over, ready.total)
                if report:
                    self.watch(
                        StepProgress(
                            self.epoch + 1,
                            self.epochs,
                            ready.share_done,
                            self.learner.step,
                            report,
                            rate,
                            left,
                            ready.left_out,
                        )
                    )
                if self.ranks.all_reduce_max(int(self.stop_requested)):
                    self.save()
                    return False
                if self.learner.step % self.experiment.big_learner.checkpoint_every == 0:
                    self.save()
            self._finish_epoch()
        return True

    def _train_on_batch(self, ready: LoadedBatch) -> LearnerReport | None:
        """Take a step on a batch; return None if it was skipped because numbers were not finite."""
        progress = (self.epoch + self.over) / self.epochs
        self.bad += len(ready.left_out)
        self.done, self.over = self.done + ready.total, ready.share_done
        report = self.learner.train(self.feed, 1, self.feed.epochs.seed, batch_size=ready.total, progress=progress)
        if report.skipped_steps:
            return None
        self.loss_sum += report.loss * ready.total
        return report

    def _finish_epoch(self) -> None:
        """End the current epoch."""
        if not self.done:
            raise ValueError(f"--data {self.data} has no training positions: {self.bad} games or files were left out")
        self.watch(FinishedEpoch(self.epoch + 1, self.epochs, self.done, self.loss_sum / self.done, self.bad))
        self.epoch, self.done, self.over, self.loss_sum, self.bad = self.epoch + 1, 0, 0.0, 0.0, 0
        self.save()

    def save(self) -> None:
        """Save a checkpoint and the weights for play; all ranks call this at the same step."""
        state = self.learner.state()
        random = {"torch": torch.stack(self.ranks.all_gather_tensor(state.tensors["random"]["torch"]))}
        if self.learner.device.type == "cuda":
            random["cuda"] = torch.stack(self.ranks.all_gather_tensor(torch.cuda.get_rng_state(self.learner.device)))
        if not self.ranks.is_main:
            return
        self.save_dir.mkdir(parents=True, exist_ok=True)
        game, weights = self.feed.epochs.game, state.tensors["average"]
        tree = {
            "format": FORMAT,
            "model": state.tensors["network"],
            "average": weights,
            "optimizer": state.tensors["optimizer"],
            "scheduler": {"step": self.learner.step, "learning_rate": self.learner.optimizer.param_groups[0]["lr"]},
            "scaler": state.counters["scaler"],
            "counters": state.counters,
            "random": random,  # [ranks, bytes]
            "sampler": {
                "epoch": self.epoch,
                "done": self.done,
                "over": self.over,
                "loss_sum": self.loss_sum,
                "seed": self.feed.epochs.seed,
                "files": [[str(path), size] for path, size in self.files or []],
            },
            "told": self.experiment.to_plain_values(),
        }
        save_tree(self.path, tree)
        description = describe_model(game, self.experiment.network.arguments(), self.learner.step)
        save_safetensors(self.path.with_suffix(".safetensors"), Model(description=description, weights=weights))

    def restore(self, tree: dict[str, Any]) -> None:
        """Resume from a checkpoint, with any number of ranks.

        Raises:
            ValueError: it belongs to another network, optimizer or program.
        """
        try:
            random, sampler = tree["random"], tree["sampler"]
            as_many = len(random["torch"]) == self.ranks.world_size
            # A copy: given a view, torch.set_rng_state reads from the start of its storage (PyTorch 2.13), rank 0's
            # state.
            own = random["torch"][self.ranks.rank].clone() if as_many else torch.get_rng_state()
            tensors = {
                "network": tree["model"],
                "average": tree["average"],
                "optimizer": tree["optimizer"],
                "random": {"torch": own},
            }
            self.learner.restore(LearnerState(tensors, tree["counters"]))
            if as_many and "cuda" in random and self.learner.device.type == "cuda":
                torch.cuda.set_rng_state(random["cuda"][self.ranks.rank], self.learner.device)
            self.epoch, self.done, self.over, self.loss_sum = (
                sampler[key] for key in ("epoch", "done", "over", "loss_sum")
            )
            self.files = [(Path(path), size) for path, size in sampler["files"]]
            if sampler["seed"] != self.feed.epochs.seed and self.done:
                raise ValueError(
                    f"the epoch began with --seed {sampler['seed']}, which determines its order: resume with that seed"
                )
        except KeyError as error:
            raise ValueError(f"{self.path} lacks {error}: another program wrote it") from error


class SpeedMeter:
    """Measures the speed and estimates the remaining time."""

    def __init__(self, epochs: int) -> None:
        self.epochs = epochs
        # The time and the completed epochs after the first and the last step of this session.
        self.marks: list[tuple[float, float]] = []
        self._last = time.perf_counter()

    def add_step(self, over: float, positions: int) -> tuple[float, float]:
        """Return the positions per second of a step, and the remaining seconds, infinite while unknown.

        Args:
            over: completed epochs.
            positions: of the step, of all ranks.
        """
        now, last = time.perf_counter(), self._last
        self._last = now
        self.marks = [*self.marks[:1], (now, over)]
        (began, begin), end = self.marks[0], self.marks[-1][1]
        left = (now - began) * (self.epochs - end) / (end - begin) if end > begin else math.inf
        return positions / (now - last), left


def checkpoint_path(save_dir: Path, name: str) -> Path:
    """Return the file of a training's checkpoint."""
    return save_dir / f"{name}.pt"


def load_newest_checkpoint(ranks: Ranks, path: Path) -> dict[str, Any] | None:
    """Return the checkpoint at ``path`` of the rank that has the newest; None if no rank has one.

    Raises:
        CorruptWeights: a rank's file is damaged.
        OSError: a rank's file cannot be read.
    """
    data = path.read_bytes() if path.exists() else b""
    tree = _parse_checkpoint(data, path) if data else None
    steps = ranks.all_gather(tree["scheduler"]["step"] if tree else -1)
    if max(steps) < 0:
        return None
    source = steps.index(max(steps))
    sent = ranks.broadcast_bytes(data, source=source)
    return tree if ranks.rank == source else _parse_checkpoint(sent, path)


def _parse_checkpoint(data: bytes, path: Path) -> dict[str, Any]:
    tree = decode_tree(data, path=path)
    if tree.get("format") != FORMAT or not isinstance(tree.get("scheduler"), dict):
        raise CorruptWeights(f"{path} is not a checkpoint of this program, or another version wrote it")
    return tree


def agree_on_files(ranks: Ranks, data: Path, begun: Files | None) -> Files:
    """Return the files of an epoch: those in ``begun``, or all that rank 0 finds; every rank must have the same files.

    Raises:
        ValueError: there are none, or they have changed, or differ between ranks.
    """
    message = ""
    if ranks.is_main:
        try:
            files = begun or [(path, file_size(path)) for path in find_game_files(data)]
            # Relative paths, because each machine may have the files in another folder.
            message = json.dumps([[os.path.relpath(path, data), size] for path, size in files])
        except ValueError as error:
            message = json.dumps(str(error))
    found = json.loads(ranks.broadcast_text(message))
    if isinstance(found, str):
        raise ValueError(found)
    here = [(Path(os.path.normpath(data / path)), size) for path, size in found]
    wrong = [path for path, size in here if file_size(path) != size]
    if ranks.all_reduce_max(len(wrong)):
        which = wrong[0] if wrong else "of another rank"
        raise ValueError(
            f"--data {data}: the file {which} has changed, or differs from rank 0's: every machine needs the same files"
        )
    return here
