"""What the phases of a run say about themselves, and who listens.

Phases return these small frozen reports; observers (terminal, JSON, TensorBoard) read nothing else and can be taken
away without touching training. All times are seconds, all rates are per second, shares are between 0 and 1.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

LEAST = 1e-6  # what ratios are taken of


@dataclass(frozen=True, kw_only=True)
class WorkerReport:
    """One worker as the main node sees it."""

    name: str
    state: str  # starting, playing, waiting, error, ended
    model_version: int
    games: int  # received from it since the run began
    games_per_second: float
    evaluations_per_second: float
    outstanding: int  # games granted to it and not yet received
    waiting: int = 0  # of those, the ones that it has handed over
    error: str = ""
    standing: "RemoteStanding | None" = None  # of a worker on another machine


@dataclass(frozen=True, kw_only=True)
class RemoteStanding:
    """How a worker on another machine stands."""

    mark: str  # Active, Syncing, Error, Offline
    share: float  # of the games that are granted now
    last_batch: float | None  # seconds since its last batch came; None before the first


@dataclass(frozen=True, kw_only=True)
class ClusterReport:
    """The workers on other machines together."""

    active: int
    total: int
    sync_seconds: float | None  # that the last model took until all who are Active had it
    network_mb_per_minute: float  # megabytes (10^6 bytes), in both directions
    standings: dict[str, RemoteStanding]  # by worker


@dataclass(frozen=True, kw_only=True)
class MilestoneReport:
    """How many of some one-player games have reached something, such as a tile."""

    milestone: int
    share: float
    low: float  # the ends of its 95 % interval
    high: float


@dataclass(frozen=True, kw_only=True)
class ScoreReport:
    """What some one-player games have come to."""

    games: int
    mean: float
    margin: float | None  # half the width of the mean's 95 % interval; None of a single game
    median: float
    best: float
    milestones: tuple[MilestoneReport, ...] = ()


@dataclass(frozen=True, kw_only=True)
class SelfPlayReport:
    """The games received in one iteration. Nobody wins, draws or resigns a one-player game, and only it has a score."""

    games: int
    positions: int
    games_per_second: float
    mean_plies: float
    first_player_wins: float | None = None
    draws: float | None = None
    resigned: float | None = None
    false_resignations: float | None = (
        None  # of the games played on although a player would have resigned: the share he did not lose
    )
    bytes_per_game: float
    seconds: float = 0.0  # that they took
    score: ScoreReport | None = None


@dataclass(frozen=True, kw_only=True)
class SpikeReport:
    """What the neurons of a spiking network did on one of the learner's batches, and what it cost; operations are a
    position's.
    """

    firing_rate: float  # spikes per neuron and time step
    layers: dict[str, float]  # the same by layer
    synaptic_operations: float  # additions: each spike counts as often as it has synapses
    multiply_accumulates: float  # where there are numbers instead of spikes
    without_spikes: float  # multiply-accumulates of the same network if it had no spikes


@dataclass(frozen=True, kw_only=True)
class GeneralizationReport:
    """How well the averaged network does on positions that it has not learned from yet, beside some that it has learned
    from.
    """

    policy_new: float  # nats from the search's policy
    policy_learned: float
    value_new: float  # the share of the variance of the values to learn that it does not explain
    value_learned: float

    @property
    def excess(self) -> float:
        """By how much larger both are on new positions, on (geometric) average: 0.2 is a fifth; 0 where nothing is
        learned by heart.
        """
        ratios = (self.policy_new / max(self.policy_learned, LEAST)) * (self.value_new / max(self.value_learned, LEAST))
        return math.sqrt(ratios) - 1


@dataclass(frozen=True, kw_only=True)
class LearnerReport:
    """The learner's steps in one iteration; losses are means over the steps, in nats."""

    steps: int
    samples: int
    seconds: float
    samples_per_second: float
    loss: float
    policy_loss: float
    value_loss: float
    policy_entropy: float
    grad_norm: float
    learning_rate: float
    skipped_steps: int
    auxiliary_loss: float = 0.0  # of all auxiliary heads together, as weighted in the loss
    spikes: SpikeReport | None = None  # of a spiking network
    generalization: GeneralizationReport | None = None  # before these steps, once the window has enough positions


MEANS = ("loss", "policy_loss", "value_loss", "auxiliary_loss", "policy_entropy", "grad_norm")  # over a learner's steps


@dataclass(frozen=True, kw_only=True)
class EvaluationReport:
    """How strong the network is; a figure that was not measured is None."""

    model_version: int
    num_simulations: int
    search_error: float | None = None  # share of positions in which the search's move throws away game value
    search_error_margin: float | None = None  # half the width of its 95 % interval
    policy_error: float | None = None  # the same for the bare policy's first choice
    elo: float | None = None  # against the fixed anchor, the random player, at 0
    elo_margin: float | None = None  # half the width of its 95 % interval
    random_not_lost: float | None = None  # share of colour-swapped games against the random player that were not lost
    score: ScoreReport | None = None  # of a one-player game
    accepted: bool | None = None  # by gating, when there is any
    seconds: float = 0.0


@dataclass(frozen=True, kw_only=True)
class IterationReport:
    """One cycle of the coach."""

    iteration: int
    seconds: float  # since the run began, earlier sessions included
    total_games: int
    total_positions: int
    window_games: int
    window_positions: int
    model_version: int
    self_play: SelfPlayReport
    learner: LearnerReport | None
    evaluation: EvaluationReport | None
    workers: tuple[WorkerReport, ...]

    def as_dict(self) -> dict[str, Any]:
        """The report as JSON has it."""
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class ProgressReport:
    """A look at the running coach, about once a second."""

    phase: str  # "waiting for games", "training", "evaluating", ...
    iteration: int
    iterations: int | None  # planned
    seconds: float  # since the run began, earlier sessions included
    seconds_left: float | None  # until the run's own bounds, as far as can be told
    total_games: int
    games_wanted: int  # by the iteration under way
    games_here: int  # received for it so far
    games_per_second: float
    evaluations_per_second: float
    window_positions: int
    model_version: int
    workers: tuple[WorkerReport, ...]
    cluster: ClusterReport | None = None  # None when this machine plays
    self_play: SelfPlayReport | None = None  # the iteration's games, once all are here


class Observer(Protocol):
    """Somebody who watches a run."""

    def progress(self, report: ProgressReport) -> None:
        """About once a second."""

    def iteration(self, report: IterationReport) -> None:
        """At the end of each iteration."""

    def event(self, text: str) -> None:
        """Something worth a line in the log: a worker was restarted, a batch was quarantined."""

    def close(self) -> None:
        """The run is over."""


def report_progress(observers: Sequence[Observer], report: ProgressReport) -> None:
    """Show ``report`` to all."""
    for observer in observers:
        observer.progress(report)


def report_iteration(observers: Sequence[Observer], report: IterationReport) -> None:
    """Show ``report`` to all."""
    for observer in observers:
        observer.iteration(report)


def report_event(observers: Sequence[Observer], text: str) -> None:
    """Show ``text`` to all."""
    for observer in observers:
        observer.event(text)
