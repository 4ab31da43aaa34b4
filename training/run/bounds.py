"""How far a run has come between its beginning and its bounds, and where it stands when it is put to rest."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from configs.schema import RunSettings, WindowSettings


@dataclass
class CoachState:
    """Where the run stands; what a checkpoint keeps beside the learner."""

    iteration: int = 0  # finished ones
    model_version: int = 0
    window_sequence: int = 0  # the ledger's last batch in the window
    iteration_sequence: int = 0  # the ledger's last batch that finished iterations have counted
    seconds: float = 0.0  # of running, earlier sessions included
    total_games: int = 0
    total_positions: int = 0
    total_samples: int = 0  # of the positions, those to learn from
    owed_samples: float = 0.0  # that new positions allow and no step has drawn yet


def window_capacity(settings: WindowSettings, total_samples: int) -> int:
    """How many positions the window holds when so many have been played: KataGo's power law, within the bounds."""
    grown = settings.min_positions * max(1.0, total_samples / settings.min_positions) ** settings.growth_exponent
    return min(int(grown), settings.max_positions)


class Bounds:
    """The run's iterations and minutes, either of which may be unlimited, and the time that it has taken.

    Args:
        settings: the run's.
        seconds: of earlier sessions.
        clock: seconds that never go back.
    """

    def __init__(self, settings: RunSettings, *, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.iterations, self.minutes = settings.iterations, settings.minutes
        self._before, self._clock, self._started = seconds, clock, clock()

    def seconds(self) -> float:
        """Of running, earlier sessions included."""
        return self._before + self._clock() - self._started

    def time_is_up(self) -> bool:
        """Whether the minutes are over."""
        return self.minutes is not None and self.seconds() >= self.minutes * 60

    def reached(self, iteration: int) -> bool:
        """Whether the run is over after ``iteration`` iterations, or because its minutes are."""
        return self.time_is_up() or (self.iterations is not None and iteration >= self.iterations)

    def share(self, iteration: int) -> float:
        """The share of the run that is over, for schedules; 0 when it has no bounds."""
        by_iterations = iteration / self.iterations if self.iterations else 0.0
        by_minutes = self.seconds() / 60 / self.minutes if self.minutes else 0.0
        return min(1.0, max(by_iterations, by_minutes))

    def seconds_left(self, iteration: int) -> float | None:
        """Until a bound is reached, as far as can be told."""
        estimates = []
        if self.minutes is not None:
            estimates.append(self.minutes * 60 - self.seconds())
        if self.iterations is not None and iteration:
            estimates.append(self.seconds() / iteration * (self.iterations - iteration))
        return max(min(estimates), 0.0) if estimates else None
