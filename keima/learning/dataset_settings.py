"""The settings of ``train_distributed.py``: an experiment's, and a section for training on files of games.

``configs/20x256.yaml`` explains every key to users.
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

    data: Line | None = None  # a run's folder, or files of games; None: the newest run with games, else the samples
    epochs: Count = 1
    batch_size: Annotated[int, Field(ge=2, le=65_536)] = 1024  # positions of a step, of all ranks together
    norm_batch: Annotated[int, Field(ge=2)] = 256  # positions in a group of batch norm, at most
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 1
    learning_rate: Annotated[float, Field(gt=0, le=10)] | None = None
    warmup_steps: CountOrZero | None = None
    schedule: Literal["constant", "cosine"] = "cosine"
    scale_learning_rate: Literal["none", "linear", "sqrt"] = "none"  # by the batch size
    mixed_precision: bool = False
    shuffle_positions: Count = 500_000  # positions in memory, which are mixed with one another
    checkpoint_every: Count = 500  # steps


class BigExperiment(Settings):
    """An experiment with an optional section for the big learner."""

    big_learner: BigLearnerSettings = BigLearnerSettings()

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
