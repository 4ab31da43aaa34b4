"""The settings of ``keima big-learner``: an experiment's, and a section for training on files of games.

Each setting of that section has a flag of its name. ``configs/20x256.yaml`` is made from the descriptions here.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Field

from keima.config.schema import Settings
from keima.config.sections.types import Count, CountOrZero, Line, Section


class BigLearnerSettings(Section):
    """How a network is trained on files of games. A setting that is None has its value in the experiment's
    ``training``.
    """

    data: Line | None = None
    """A run's folder, or files of games (.games, PGN, SGF); null: the newest run with games, else samples."""
    epochs: Count = 1
    """Passes over the data in total."""
    batch_size: Annotated[int, Field(ge=2, le=65_536)] = 1024
    """Positions per step, over all ranks together."""
    norm_batch: Annotated[int, Field(ge=2)] = 256
    """Positions per group of batch norm, at most."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 1
    """Seed of weights, order and symmetries."""
    learning_rate: Annotated[float, Field(gt=0, le=10)] | None = None
    """Peak learning rate; null: training.learning_rate."""
    warmup_steps: CountOrZero | None = None
    """Steps of linear warmup; null: training.warmup_steps."""
    schedule: Literal["constant", "cosine"] = "cosine"
    """Learning rate over all epochs: constant, or cosine, which decays to nearly zero."""
    scale_learning_rate: Literal["none", "linear", "sqrt"] = "none"
    """Factor of the learning rate: batch_size / 256 (linear), its root (sqrt), or none."""
    mixed_precision: bool = False
    """Compute in bfloat16 if the device supports it, else in float16 with a scaled loss."""
    shuffle_positions: Count = 500_000
    """Positions in memory, which are mixed with one another."""
    checkpoint_every: Count = 500
    """Steps between checkpoints; each epoch also ends with one."""


class BigExperiment(Settings):
    """An experiment with an optional section for the big learner."""

    big_learner: BigLearnerSettings = BigLearnerSettings()
    """Training on files of games: keima big-learner."""

    def to_plain_values(self) -> dict[str, Any]:
        """Return plain values for a checkpoint: those of the big learner, and the experiment under "settings"."""
        return {**self.big_learner.model_dump(), "settings": self.model_dump(mode="json", exclude={"big_learner"})}

    @classmethod
    def from_plain_values(cls, values: Mapping[str, Any]) -> Self:
        """Return the experiment from the result of ``to_plain_values``.

        Raises:
            ValueError: a value is out of bounds.
        """
        numbers = {name: values[name] for name in BigLearnerSettings.model_fields if name in values}
        return cls.model_validate({**values["settings"], "big_learner": numbers})
