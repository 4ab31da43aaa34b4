"""The settings of a run as a whole."""

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from keima.config.sections.types import Count, CountOrZero, Line, Name, Positive, Section, as_tuple


class RunSettings(Section):
    """The run as a whole. It ends at the first of its limits; without any, when it is stopped."""

    name: Name
    """Name of the run, required; it writes to <directory>/<name>; letters, digits, '.', '_' and '-'."""
    directory: Line = "runs"
    """The folder of all runs."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 1
    """Seed of all random choices."""
    iterations: Count | None = None
    """Cycles of self-play, training and evaluation until the run ends; null: no limit."""
    minutes: Positive | None = None
    """Minutes until the run ends, if the iterations do not end sooner; null: no limit."""
    auto: bool = False
    """Choose what the config does not give, by the game, this machine and the time (docs/add_a_game.md)."""
    keep_models: CountOrZero = 500
    """Files of models that stay: the newest half, and others evenly over the run; 0: all."""
    trackers: Annotated[tuple[Literal["wandb", "mlflow"], ...], BeforeValidator(as_tuple)] = ()
    """Trackers that also receive the metrics of iterations: wandb, mlflow (docs/reference.md#trackers)."""

    @property
    def folder(self) -> Path:
        """The folder of the run."""
        return Path(self.directory) / self.name

    @model_validator(mode="after")
    def _check(self) -> Self:
        if len(set(self.trackers)) < len(self.trackers):
            raise ValueError("trackers: list each at most once")
        return self
