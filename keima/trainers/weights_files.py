"""Files of weights for other PyTorch programs, written during a run."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from keima.base.reports.run_reports import IterationReport, ProgressReport
from keima.networks.files.weights_file import save_weights

EVERY = 10  # iterations between two files


class WeightsFiles:
    """An observer that writes the learner's weights to a file every few iterations.

    Args:
        path_of: returns the file for an iteration; its folder is created.
        weights: returns the weights.
        every: iterations between two files.
    """

    def __init__(
        self, path_of: Callable[[int], Path], weights: Callable[[], Mapping[str, Any]], *, every: int = EVERY
    ) -> None:
        self._path_of, self._weights, self._every = path_of, weights, every
        self._iteration = 0
        self.path: Path | None = None  # of the last one

    def progress(self, report: ProgressReport) -> None:
        """See ``Observer``."""

    def iteration(self, report: IterationReport) -> None:
        """See ``Observer``."""
        if report.iteration % self._every == 0:
            self.write(report.iteration)

    def event(self, text: str) -> None:
        """See ``Observer``."""

    def close(self) -> None:
        """See ``Observer``."""

    def write(self, iteration: int) -> None:
        """Write the weights of an iteration, unless they are written already.

        Raises:
            OSError: the file cannot be written.
        """
        if iteration > self._iteration:
            path = self._path_of(iteration)
            path.parent.mkdir(parents=True, exist_ok=True)
            save_weights(path, self._weights())
            self._iteration, self.path = iteration, path
