"""The settings of training and of the replay window."""

from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from keima.config.sections.types import (
    Auto,
    Count,
    CountOrZero,
    Device,
    Line,
    NotNegative,
    Positive,
    Section,
    Share,
    as_tuple,
)

SEED_ACCOUNTS = {"chess": "pgn-files", "go": "sgf-files"}  # by game: the ledger's account of training.window.seed_games


SEED_FILES = {"chess": (".pgn", ".pgn.zst"), "go": (".sgf",)}  # by game: endings of these files


class WindowSettings(Section):
    """The replay window: min_positions * (positions / min_positions) ** growth_exponent, at most max_positions."""

    min_positions: Count = 20_000
    """Positions before the first step."""
    max_positions: Count = 1_000_000
    """Largest size; the oldest games are dropped."""
    growth_exponent: Share = 0.65
    """Growth of the window; 0: constant size; 1: drop nothing until it is full."""
    seed_games: Annotated[tuple[Line, ...], BeforeValidator(as_tuple)] = ()
    """PGN (.pgn, .pgn.zst) or SGF files, or folders: learned first, once each."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.min_positions > self.max_positions:
            raise ValueError(
                f"min_positions ({self.min_positions}) must not exceed max_positions ({self.max_positions})"
            )
        return self


class LearnerSettings(Section):
    """The processes that train."""

    ranks: Annotated[int, Field(ge=1, le=1024)] = 1
    """Processes here; each has a share of a batch, and its own GPU if there is one."""


class TrainingSettings(Section):
    """Training: batches, optimizer, replay window, checkpoints."""

    asynchronous: bool = True
    """Train while games are played, instead of alternating."""
    device: Device = "auto"
    """Device of the learner, the evaluations and the workers here: cpu, cuda, cuda:1; auto: GPUs, if any."""
    batch_size: Annotated[int, Field(ge=2, le=65_536)] = 256
    """Positions per optimizer step."""
    learning_rate: Annotated[float, Field(gt=0, le=10)] = 1e-3
    """Peak learning rate."""
    learning_rate_schedule: Literal["constant", "cosine"] = "constant"
    """Learning rate over time: constant, or cosine, which decays to nearly zero over the run."""
    warmup_steps: CountOrZero = 100
    """Steps of linear warmup."""
    optimizer: Literal["adamw", "muon", "sgd"] = "adamw"
    """Optimizer: adamw; muon, which is more sample-efficient in Connect Four; or sgd."""
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.9
    """Momentum of sgd."""
    weight_decay: Share = 1e-4
    """Weight decay of the optimizer."""
    clip_norm: Positive = 1.0
    """Norm to which gradients are clipped."""
    ema_decay: Annotated[float, Field(ge=0, lt=1)] = 0.999
    """Self-play uses an average of the weights with this decay per step; 0: the weights."""
    value_weight: NotNegative = 1.0
    """Weight of the value loss against the policy loss."""
    ownership_weight: NotNegative = 1.5
    """Weight of the loss of network.predict_ownership."""
    future_weight: NotNegative = 1.5
    """Weight of the loss of network.predict_future."""
    future_plies: Annotated[int, Field(ge=1, le=1000)] = 6
    """Plies that network.predict_future looks ahead; fewer at the end of a game."""
    td_lambda: Share = 1.0
    """Mixture of value targets; 1: the outcome; less: also the values of later searches."""
    mixed_precision: Auto | bool = "auto"
    """Compute in 16 bits; auto: where it is faster."""
    symmetries: bool = True
    """Augment positions with random symmetries."""
    policy_surprise_weight: Share = 0.5
    """Share of samples drawn in proportion to how much search changed the policy."""
    samples_per_position: Annotated[float, Field(gt=0, le=100)] = 4.0
    """Mean number of times that each new position is sampled."""
    games_per_iteration: Count = 500
    """New games per iteration."""
    steps_per_run: Count | None = None
    """About how many optimizer steps a run takes: batches have 32 to batch_size positions, by how fast games come.
    null: all have batch_size."""
    steps_per_model: Count | None = None
    """Also publish a model after this many steps; null: once per iteration."""
    window: WindowSettings = WindowSettings()
    """min_positions * (positions so far / min_positions) ** growth_exponent."""
    checkpoint_every: Count = 1
    """Iterations between checkpoints, from which --resume continues."""
    keep_checkpoints: Count = 3
    """Number of checkpoints on disk."""
    threads: Auto | Annotated[int, Field(ge=1, le=1024)] = "auto"
    """CPU threads of the learner, shared by its ranks."""
    learner: LearnerSettings = LearnerSettings()
    """Processes that train."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.batch_size > self.window.min_positions:
            raise ValueError(
                f"batch_size ({self.batch_size}) must not exceed window.min_positions ({self.window.min_positions})"
            )
        if self.learner.ranks > self.batch_size:
            raise ValueError(f"learner.ranks ({self.learner.ranks}) must not exceed batch_size ({self.batch_size})")
        if self.learner.ranks > 1 and ":" in self.device:
            raise ValueError(
                f"device ({self.device}) is one GPU, but learner.ranks ({self.learner.ranks}) need one each"
            )
        if self.steps_per_model and not self.asynchronous:
            raise ValueError(
                "steps_per_model needs asynchronous: true; otherwise one model plays all games of an iteration"
            )
        return self


def check_seed_games(sources: tuple[str, ...], game: str) -> None:
    """Reject files of other games than ``game``."""
    if game not in SEED_ACCOUNTS:
        raise ValueError(
            f"training.window.seed_games: only for {' and '.join(SEED_ACCOUNTS)}, and this run plays {game}"
        )
    for source in sources:
        for other in SEED_FILES.keys() - {game}:
            if source.lower().endswith(SEED_FILES[other]):
                raise ValueError(
                    f"training.window.seed_games: {source} holds games of {other}, and this run plays {game}"
                )
