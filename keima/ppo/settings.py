"""The settings of ``train_ppo_lstm.py``: a trader with a memory, trained by PPO on histories or simulated markets.

``configs/ppo_lstm.yaml`` explains every key to users. Each key has a flag of the same name, except for those that the
class says have none. Keys are unique over all sections, so that checkpoints keep them as one flat mapping.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from keima.config.sections.types import Count, Line, NotNegative, Positive, Section, Share

Fee = Annotated[float, Field(ge=0, lt=1)]


class PPORunSettings(Section):
    """The run as a whole."""

    episodes: Count = 1000  # of all ranks together
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 1


class HistorySettings(Section):
    """The prices of a file."""

    data: Line | None = None  # .csv or .parquet; None: simulated markets only
    max_gap: NotNegative = 6.0  # largest step between two rows, in usual steps; 0: any


class TradingSettings(Section):
    """The rules of trading. ``exposure`` and ``ruin`` have no flags."""

    window: Annotated[int, Field(ge=2)] = 256  # bars in an episode
    capital: Positive = 10_000.0  # money at the start of each
    max_positions: Count = 5  # open at once
    lot: Positive = 0.2  # value of a position when it is opened, as a share of the capital
    fee: Fee = 0.0005  # share of the traded value
    slippage: Fee = 0.0002  # share of the price, always against the trader
    short: bool = True  # whether selling may open positions
    exposure: Positive = 1.0  # largest total value of all positions when one is opened, in account values
    ruin: Fee = 0.5  # share of the capital at which an episode is terminated


class LSTMSettings(Section):
    """The network."""

    lstm_size: Count = 128  # units of each LSTM
    shared_lstm: bool = False  # one LSTM for actor and critic


class PPOLearningSettings(Section):
    """PPO's hyper-parameters. The defaults suit some dozens of environments.

    ``scale_observations`` and ``scale_rewards`` have no flags.
    """

    learning_rate_actor: Positive = 3e-4  # of the policy, and of a shared LSTM
    learning_rate_critic: Positive = 1e-3
    epochs: Count = 4  # passes over the steps of each update
    minibatches: Count = 4  # in each pass; sequences of all ranks are dealt out to them
    sequence_length: Count = 16  # steps that gradients go back through time
    gamma: Share = 0.99
    gae_lambda: Share = 0.95
    clip_coef: Positive = 0.2
    clip_values: bool = False  # whether to keep values within clip_coef of the old ones
    ent_coef: NotNegative = 0.01
    vf_coef: NotNegative = 0.5
    clip_norm: Positive = 0.5
    target_kl: NotNegative = 0.03  # an update ends at one and a half times this; 0: no limit
    scale_observations: bool = True
    scale_rewards: bool = True


class PPOSettings(PPOLearningSettings):
    """What ``PPOTrainer`` takes: ``sequence_length`` divides ``num_steps``."""

    num_steps: Count = 128  # of each environment between two updates

    @model_validator(mode="after")
    def _check_sequence_length(self) -> Self:
        if self.num_steps % self.sequence_length:
            raise ValueError(
                f"num_steps ({self.num_steps}) must be a multiple of sequence_length ({self.sequence_length})"
            )
        return self


class PPOTrainingSettings(PPOLearningSettings):
    """How a run learns, whatever the number of its ranks."""

    num_envs: Count = 8  # of each rank
    update_interval: Count = 128  # steps between two updates, of all environments of all ranks
    mixed_precision: bool = False

    def for_ranks(self, world_size: int) -> PPOSettings:
        """The settings of the trainer of each of so many ranks.

        Each environment takes its part of the update interval, rounded up to whole sequences.
        """
        steps = -(-self.update_interval // (world_size * self.num_envs))
        length = min(self.sequence_length, steps)
        shared = self.model_dump(include=set(PPOLearningSettings.model_fields))
        return PPOSettings(**{**shared, "sequence_length": length, "num_steps": -(-steps // length) * length})


class TraderSettings(Section):
    """All settings of ``train_ppo_lstm.py``."""

    run: PPORunSettings = PPORunSettings()
    history: HistorySettings = HistorySettings()
    trading: TradingSettings = TradingSettings()
    network: LSTMSettings = LSTMSettings()
    training: PPOTrainingSettings = PPOTrainingSettings()

    def to_flat(self, *, only_given: bool = False) -> dict[str, Any]:
        """The settings without their sections, as checkpoints keep them; ``only_given``: without what is by default."""
        sections = self.model_dump(exclude_unset=only_given).values()
        return {name: value for section in sections for name, value in section.items()}

    @classmethod
    def from_flat(cls, values: Mapping[str, Any]) -> Self:
        """The settings that ``to_flat`` returned. Missing ones take their defaults; unknown names are ignored.

        Raises:
            ValueError: a value is out of bounds.
        """
        sections = {name: type(section).model_fields for name, section in cls()}
        document = {
            section: {name: values[name] for name in fields if name in values} for section, fields in sections.items()
        }
        return cls.model_validate(document)
