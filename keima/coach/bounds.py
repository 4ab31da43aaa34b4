"""The limits of a run, its progress towards them, and the Coach's state in a checkpoint."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

from keima.config.sections.run import RunSettings
from keima.config.sections.training import TrainingSettings, WindowSettings

FEWEST_POSITIONS = 32  # of an optimizer step whose size is chosen
BUSY, HALF_BUSY = 0.7, 0.5  # shares of the time that a learner takes


@dataclass
class CoachState:
    """The Coach's state that a checkpoint stores besides the learner's."""

    iteration: int = 0  # finished ones
    model_version: int = 0
    window_sequence: int = 0  # sequence number of the last batch in the window
    iteration_sequence: int = 0  # sequence number of the last batch counted by a finished iteration
    seconds: float = 0.0  # of running, including earlier sessions
    began: float = 0.0  # the seconds of the run that were over when its present board began
    total_games: int = 0
    total_positions: int = 0
    total_samples: int = 0  # training positions among them
    owed_samples: float = 0.0  # allowed by new positions and not drawn yet
    grown: int = 0  # steps of the network's growth
    measuring: int = 0  # version of the model whose strength is being measured, 0 for none


def window_capacity(settings: WindowSettings, total_samples: int) -> int:
    """Return the size of the window after so many training positions: KataGo's power law, within the bounds."""
    grown = settings.min_positions * max(1.0, total_samples / settings.min_positions) ** settings.growth_exponent
    return min(int(grown), settings.max_positions)


def batch_size_now(training: TrainingSettings, *, total_samples: int, share: float, least: int = 0) -> int:
    """Return the positions of an optimizer step.

    Args:
        training: with ``steps_per_run``, the rest of the run is expected to play as fast as it has so far; the machines
            may change. In synchronous mode batches do not depend on time.
        total_samples: training positions so far, on the run's present board.
        share: of the run, in which they were played.
        least: the fewest that are worth it (``least_batch_size``).
    """
    if training.steps_per_run is None or not training.asynchronous:
        return training.batch_size
    expected = total_samples * training.samples_per_position / max(share, 0.01)
    size = choose_batch_size(expected, steps=training.steps_per_run, most=training.batch_size)
    return min(training.batch_size, max(size, least))


def least_batch_size(size: int, learning: float) -> int:
    """Return the fewest positions of the next steps, after steps of this size took a share of the time.

    Small batches cost more for each position. A learner that takes most of the time leaves less of it for games, and
    fewer games would make its batches smaller still.
    """
    return 2 * size if learning > BUSY else size if learning > HALF_BUSY else 0


def choose_batch_size(samples: float, *, steps: int, most: int) -> int:
    """Return the positions of an optimizer step, a power of two or ``most``, so that about so many steps learn so many
    samples.
    """
    best = 2 ** round(math.log2(max(1.0, samples) / steps))
    return min(most, max(FEWEST_POSITIONS, int(best)))


class Bounds:
    """The limits of a run in iterations and minutes, either of which may be missing, and the time used.

    Args:
        settings: the run's.
        seconds: of earlier sessions.
        began: of them, what was over when the present board began.
        clock: seconds that never go back.
    """

    def __init__(
        self,
        settings: RunSettings,
        *,
        seconds: float,
        began: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.iterations, self.minutes = settings.iterations, settings.minutes
        self.schedule_minutes = settings.minutes  # of the whole, where this is a part of a run
        self._before, self._began, self._clock, self._started = seconds, began, clock, clock()

    def seconds(self) -> float:
        """Return the running time, including earlier sessions."""
        return self._before + self._clock() - self._started

    def is_time_up(self) -> bool:
        """Return whether the time limit has been reached."""
        return self.minutes is not None and self.seconds() >= self.minutes * 60

    def is_reached_after(self, iteration: int) -> bool:
        """Return whether the run ends after ``iteration`` iterations or because its time is up."""
        return self.is_time_up() or (self.iterations is not None and iteration >= self.iterations)

    def share_done(self, iteration: int) -> float:
        """Return the completed share of the whole run, for schedules; 0 without limits."""
        return self._share(iteration, self.seconds())

    def share_of_part(self, iteration: int) -> float:
        """Return the share of the whole run that its present board has taken so far."""
        return self._share(iteration, self._seconds_here())

    def _share(self, iteration: int, seconds: float) -> float:
        by_iterations = iteration / self.iterations if self.iterations else 0.0
        by_minutes = seconds / 60 / self.schedule_minutes if self.schedule_minutes else 0.0
        return min(1.0, max(by_iterations, by_minutes))

    def _seconds_here(self) -> float:
        return self.seconds() - self._began

    def total_seconds(self, iteration: int) -> float | None:
        """Return how long the run probably takes in all; None without an estimate."""
        left = self.seconds_left(iteration)
        return None if left is None else self.seconds() + left

    def seconds_left(self, iteration: int) -> float | None:
        """Return the estimated time until the whole run reaches a limit; None without an estimate."""
        estimates = []
        if self.schedule_minutes is not None:
            estimates.append(self.schedule_minutes * 60 - self.seconds())
        if self.iterations is not None and iteration:
            estimates.append(self._seconds_here() / iteration * (self.iterations - iteration))
        return max(min(estimates), 0.0) if estimates else None
