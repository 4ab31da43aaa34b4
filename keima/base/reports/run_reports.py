"""Reports of a run's phases, and the observers that read them.

Phases return these frozen reports. Observers (terminal, JSON, TensorBoard) read nothing else and can be removed without
touching training. Times are in seconds, rates per second, shares between 0 and 1.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from keima.base.reports.worker_records import RecordedWorker, worker_record
from keima.base.reports.worker_status import ClusterNetwork, ClusterStatus

SMALLEST_DENOMINATOR = 1e-6  # smallest denominator of a ratio


@dataclass(frozen=True, kw_only=True)
class MilestoneReport:
    """The share of one-player games that reached a milestone, such as a tile."""

    milestone: int
    share: float
    low: float  # bounds of its 95 % interval
    high: float


@dataclass(frozen=True, kw_only=True)
class ScoreReport:
    """The scores of some one-player games."""

    games: int
    mean: float
    margin: float | None  # half the width of the mean's 95 % interval; None for a single game
    median: float
    best: float
    milestones: tuple[MilestoneReport, ...] = ()


@dataclass(frozen=True, kw_only=True)
class SelfPlayReport:
    """The games received in one iteration. One-player games have a score instead of results and resignations."""

    games: int
    positions: int
    games_per_second: float
    mean_plies: float
    first_player_wins: float | None = None
    draws: float | None = None
    resigned: float | None = None
    false_resignations: float | None = None  # share not lost of the games played on after a would-be resignation
    bytes_per_game: float
    seconds: float = 0.0
    score: ScoreReport | None = None


@dataclass(frozen=True, kw_only=True)
class SpikeReport:
    """Activity and cost of a spiking network on one of the learner's batches; operations are per position."""

    firing_rate: float  # spikes per neuron and time step
    layers: dict[str, float]  # the same by layer
    synaptic_operations: float  # additions: one per spike and synapse
    multiply_accumulates: float  # in layers whose input is not spikes
    without_spikes: float  # multiply-accumulates of the same network without spikes


@dataclass(frozen=True, kw_only=True)
class GeneralizationReport:
    """Losses of the averaged network on positions that it has not trained on yet, and on positions that it has."""

    policy_new: float  # KL divergence from the policy target, in nats
    policy_learned: float
    value_new: float  # unexplained share of the variance of the value targets
    value_learned: float

    @property
    def excess(self) -> float:
        """The relative increase of the losses on new positions (geometric mean): 0.2 is 20 %; 0 without overfitting."""
        ratios = (self.policy_new / max(self.policy_learned, SMALLEST_DENOMINATOR)) * (
            self.value_new / max(self.value_learned, SMALLEST_DENOMINATOR)
        )
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
    auxiliary_loss: float = 0.0  # weighted sum over the auxiliary heads
    spikes: SpikeReport | None = None  # of a spiking network
    generalization: GeneralizationReport | None = None  # measured before these steps; None while the window is small


MEANS = ("loss", "policy_loss", "value_loss", "auxiliary_loss", "policy_entropy", "grad_norm")  # over a learner's steps


@dataclass(frozen=True, kw_only=True)
class EvaluationReport:
    """The strength of the network; None for values that were not measured."""

    model_version: int
    num_simulations: int
    search_error: float | None = None  # share of positions in which search throws away game value
    search_error_margin: float | None = None  # half the width of its 95 % interval
    policy_error: float | None = None  # the same for the policy alone
    elo: float | None = None  # the random player is at 0
    elo_margin: float | None = None  # half the width of its 95 % interval
    elo_gain: float | None = None  # Elo above the version ``gain_over``, which it has played: the random player's own
    elo_gain_margin: float | None = None  # rating, which is in the margin of ``elo``, is not in this one
    gain_over: int | None = None  # of a tenth of the run so far ago
    elo_progress: float | None = None  # Elo above ``progress_since``, the first version that beat the random player
    elo_progress_margin: float | None = None
    progress_since: int | None = None
    random_not_lost: float | None = None  # share of games against the random player not lost
    # Mean returns in a game for three and more players, where the network has each seat as often as the others: against
    # random players in all other seats, and against earlier versions there. Margins: half the 95 % interval.
    random_return: float | None = None
    random_return_margin: float | None = None
    earlier_return: float | None = None
    earlier_return_margin: float | None = None
    score: ScoreReport | None = None  # of a one-player game
    accepted: bool | None = None  # by gating; None without
    # What to expect of the run at its end, with half the widths of the 95 % intervals.
    expected_gain: float | None = None  # Elo to be gained on this version
    expected_gain_margin: float | None = None
    expected_error: float | None = None  # search_error
    expected_error_margin: float | None = None
    expected_score: float | None = None  # mean score
    expected_score_margin: float | None = None
    gain_of_hour: float | None = None  # Elo that another hour would add to it
    gain_of_machine: float | None = None  # and another machine, for the whole run
    seconds: float = 0.0


@dataclass(frozen=True, kw_only=True)
class WaitReport:
    """Who waited for whom in one iteration, in seconds."""

    games: float  # the learner waited for games
    learner: float  # the mean place for a game at a worker was empty
    evaluation: float  # the learner waited for a measurement of strength
    learning: float  # the learner learned


@dataclass(frozen=True, kw_only=True)
class IterationReport:
    """One iteration of the Coach."""

    iteration: int
    seconds: float  # since the run started, including earlier sessions
    total_games: int
    total_positions: int
    window_games: int
    window_positions: int
    model_version: int
    self_play: SelfPlayReport
    learner: LearnerReport | None
    evaluation: EvaluationReport | None
    workers: tuple[RecordedWorker, ...]
    waits: WaitReport | None = None  # None in files of earlier versions
    core_hours: float | None = None  # of a cluster's workers so far, with those that have left

    def as_dict(self) -> dict[str, Any]:
        """Return the report as a JSON object."""
        return asdict(self) | {"workers": [worker_record(worker) for worker in self.workers]}


@dataclass(frozen=True, kw_only=True)
class ProgressReport:
    """The state of the running Coach, about once a second."""

    phase: str  # "waiting for games", "training", "evaluating", ...
    iteration: int
    iterations: int | None  # planned
    seconds: float  # since the run started, including earlier sessions
    seconds_left: float | None  # estimate until the limits of the run
    total_games: int
    games_wanted: int  # by the current iteration
    games_here: int  # received for it so far
    games_per_second: float
    evaluations_per_second: float
    window_positions: int
    model_version: int
    workers: tuple[RecordedWorker, ...]
    network: ClusterNetwork | None = None  # None when this machine plays
    self_play: SelfPlayReport | None = None  # the iteration's games, once complete

    @property
    def cluster(self) -> ClusterStatus | None:
        """The workers and their network; None when this machine plays."""
        return ClusterStatus(workers=self.workers, network=self.network) if self.network else None


class Observer(Protocol):
    """Reads the reports of a run."""

    def progress(self, report: ProgressReport) -> None:
        """Handle a progress report, about once a second."""

    def iteration(self, report: IterationReport) -> None:
        """Handle the report of a finished iteration."""

    def event(self, text: str) -> None:
        """Handle an event worth a log line, such as a restarted worker or a quarantined batch."""

    def close(self) -> None:
        """Handle the end of the session."""


def report_progress(observers: Sequence[Observer], report: ProgressReport) -> None:
    """Pass ``report`` to all observers."""
    for observer in observers:
        observer.progress(report)


def report_iteration(observers: Sequence[Observer], report: IterationReport) -> None:
    """Pass ``report`` to all observers."""
    for observer in observers:
        observer.iteration(report)


def report_event(observers: Sequence[Observer], text: str) -> None:
    """Pass ``text`` to all observers."""
    for observer in observers:
        observer.event(text)
