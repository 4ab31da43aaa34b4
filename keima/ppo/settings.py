"""The settings of ``train_ppo_lstm.py``: a trader with a memory, trained by PPO on histories or simulated markets.

Each setting has a flag of its name. Names are unique over all sections, so that checkpoints keep them as one flat
mapping. ``configs/ppo_lstm.yaml`` is made from the descriptions here.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from keima.config.sections.types import Count, Line, NotNegative, Positive, Section, Share

Fee = Annotated[float, Field(ge=0, lt=1)]


class PPORunSettings(Section):
    """The run as a whole."""

    episodes: Count = 1000
    """Episodes until the run ends, over all ranks together."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 1
    """Seed of all random choices."""


class HistorySettings(Section):
    """The prices of a file."""

    data: Line | None = None
    """A .csv or .parquet file of prices: timestamp,open,high,low,close,volume; null: simulated markets only."""
    max_gap: NotNegative = 6.0
    """Largest step between two rows, in usual steps; 0: any."""


class TradingSettings(Section):
    """The rules of trading."""

    window: Annotated[int, Field(ge=2)] = 256
    """Bars per episode."""
    capital: Positive = 10_000.0
    """Dollars at the start of an episode."""
    max_positions: Count = 5
    """Positions that may be open at once."""
    lot: Positive = 0.2
    """Value of a new position, as a share of the capital."""
    fee: Fee = 0.0005
    """Fee, as a share of the traded value."""
    slippage: Fee = 0.0002
    """Slippage, as a share of the price; always against the trader."""
    short: bool = True
    """Allow short positions."""
    exposure: Positive = 1.0
    """Largest total value of all positions when one is opened, as a multiple of the account's value."""
    ruin: Fee = 0.5
    """End an episode when the account falls to this share of the capital."""


class LSTMSettings(Section):
    """The network."""

    lstm_size: Count = 128
    """Units of each LSTM."""
    shared_lstm: bool = False
    """Use one LSTM for actor and critic."""


class PPOLearningSettings(Section):
    """PPO's hyper-parameters. The defaults suit some dozens of environments."""

    learning_rate_actor: Positive = 3e-4
    """Learning rate of the policy, and of a shared LSTM."""
    learning_rate_critic: Positive = 1e-3
    """Learning rate of the value function."""
    epochs: Count = 4
    """Passes over the steps of each update."""
    minibatches: Count = 4
    """Minibatches per pass; the sequences of all ranks are divided among them."""
    sequence_length: Count = 16
    """Steps of backpropagation through time."""
    gamma: Share = 0.99
    """Discount per step."""
    gae_lambda: Share = 0.95
    """Lambda of generalized advantage estimation."""
    clip_coef: Positive = 0.2
    """PPO's clipping range around a ratio of 1."""
    clip_values: bool = False
    """Keep values within clip_coef of the old ones."""
    ent_coef: NotNegative = 0.01
    """Weight of the policy's entropy, which keeps it exploring."""
    vf_coef: NotNegative = 0.5
    """Weight of the value loss."""
    clip_norm: Positive = 0.5
    """Norm to which gradients are clipped."""
    target_kl: NotNegative = 0.03
    """End an update at 1.5 times this Kullback-Leibler divergence; 0: no limit."""
    scale_observations: bool = True
    """Scale observations to mean 0 and variance 1."""
    scale_rewards: bool = True
    """Scale rewards by the standard deviation of the returns."""


class PPOSettings(PPOLearningSettings):
    """What ``PPOTrainer`` takes: ``sequence_length`` divides ``num_steps``."""

    num_steps: Count = 128
    """Steps of each environment between two updates."""

    @model_validator(mode="after")
    def _check_sequence_length(self) -> Self:
        if self.num_steps % self.sequence_length:
            raise ValueError(
                f"num_steps ({self.num_steps}) must be a multiple of sequence_length ({self.sequence_length})"
            )
        return self


class PPOTrainingSettings(PPOLearningSettings):
    """How a run learns, whatever the number of its ranks."""

    num_envs: Count = 8
    """Environments per rank."""
    update_interval: Count = 128
    """Steps between two updates, over all environments of all ranks."""
    mixed_precision: bool = False
    """Learn in 16 bits."""

    def for_ranks(self, world_size: int) -> PPOSettings:
        """Return the settings of each trainer among ``world_size`` ranks.

        Each environment takes its part of the update interval, rounded up to whole sequences.
        """
        steps = -(-self.update_interval // (world_size * self.num_envs))
        length = min(self.sequence_length, steps)
        shared = self.model_dump(include=set(PPOLearningSettings.model_fields))
        return PPOSettings(**{**shared, "sequence_length": length, "num_steps": -(-steps // length) * length})


class TraderSettings(Section):
    """All settings of ``train_ppo_lstm.py``."""

    run: PPORunSettings = PPORunSettings()
    """The run as a whole."""
    history: HistorySettings = HistorySettings()
    """Prices from a file."""
    trading: TradingSettings = TradingSettings()
    """The rules of trading."""
    network: LSTMSettings = LSTMSettings()
    """The architecture."""
    training: PPOTrainingSettings = PPOTrainingSettings()
    """Proximal policy optimization (PPO)."""

    def to_flat(self, *, only_given: bool = False) -> dict[str, Any]:
        """Return the settings without their sections, as checkpoints keep them; ``only_given``: without defaults."""
        sections = self.model_dump(exclude_unset=only_given).values()
        return {name: value for section in sections for name, value in section.items()}

    @classmethod
    def from_flat(cls, values: Mapping[str, Any]) -> Self:
        """Return the settings that ``to_flat`` returned. Missing ones take their defaults; unknown names are ignored.

        Raises:
            ValueError: a value is out of bounds.
        """
        sections = {name: type(section).model_fields for name, section in cls()}
        document = {
            section: {name: values[name] for name in fields if name in values} for section, fields in sections.items()
        }
        return cls.model_validate(document)
