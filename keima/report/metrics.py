"""The metrics of runs: one list for each kind of run, which tables, curves, sparklines and TensorBoard read.

A metric's name is ``section/name``, as ``metrics.jsonl`` and TensorBoard have it. To show a new number of a report,
add it to ``METRICS``.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from keima.base.reports.formats import (
    BAD,
    GOOD,
    Column,
    format_count,
    format_duration,
    format_elo,
    format_elo_gain,
    format_percent,
    format_rate,
    format_return,
    format_score,
)
from keima.base.reports.run_reports import IterationReport

Format = Callable[..., str]  # of a value, and of its margin if the metric has one
MetricValues = Mapping[str, float]  # by name: an iteration's line of metrics.jsonl
NESTED = {  # metrics of a report within a section's report, by the beginning of their names
    "score_": "score",
    "generalization_": "generalization",
    "firing_rate": "spikes",
    "synaptic_operations": "spikes",
    "multiply_accumulates": "spikes",
    "without_spikes": "spikes",
}


@dataclass(frozen=True, kw_only=True)
class Metric:
    """A number of a run, and how people see it."""

    name: str  # section/name
    title: str
    format: Format
    help: str
    margin: str = ""  # the metric with half the width of its 95 % interval
    rank: int | None = None  # of its column: see ``Column``; None: no column
    style: Callable[[float], str] | None = None  # of its cell

    def format_value(self, row: "MetricRow") -> str:
        """Return the value of a row as people read it; empty if it was not measured."""
        value = read_metric(row, self.name)
        if value is None:
            return ""
        return self.format(value, read_metric(row, self.margin)) if self.margin else self.format(value)

    def make_column(self) -> Column[Any]:
        """Return the column of a table."""
        style = self._style if self.style else None
        return Column(title=self.title, cell=self.format_value, rank=self.rank or 0, style=style, help=self.help)

    def _style(self, row: "MetricRow") -> str:
        value = read_metric(row, self.name)
        return self.style(value) if self.style and value is not None else ""


@dataclass(frozen=True, kw_only=True)
class Chart:
    """Curves of metrics in one picture."""

    title: str
    curves: tuple[tuple[str, str], ...]  # (name in the picture, name of the metric)
    format: Format | None = None  # of the axis; None: that of the first metric


MetricRow = IterationReport | Mapping[str, float | None]  # the latter of a PPO run's statistics


def make_columns(metrics: Sequence[Metric]) -> tuple[Column[Any], ...]:
    """Return the columns of a table."""
    return tuple(metric.make_column() for metric in metrics if metric.rank is not None)


def read_metric(row: MetricRow, name: str) -> float | None:
    """Return the value of the metric of that name; None if it was not measured."""
    if not isinstance(row, IterationReport):
        return row.get(name)
    section, _, key = name.partition("/")
    part: Any = row if section == "run" else getattr(row, section)
    for prefix, field in NESTED.items():
        if key.startswith(prefix):
            part = getattr(part, field, None)
            key = key.removeprefix(prefix) if prefix.endswith("_") else key
    if key.startswith("reached_"):
        score = getattr(part, "score", None)
        return {f"reached_{part.milestone}": part.share for part in score.milestones}.get(key) if score else None
    value: float | None = getattr(part, key, None)
    return value


def _format_with_digits(number: int) -> Format:
    return f"{{:.{number}f}}".format


def _format_excess(ratio: float) -> str:
    return f"{100 * ratio:+.0f} %"


def format_money(amount: float) -> str:
    """Return dollars and cents, as text."""
    return f"{'-' if amount < 0 else ''}${abs(amount):,.2f}"


def _format_score(mean: float, margin: float | None = None) -> str:
    """Return a mean without its margin, which a table has no space for."""
    return format_score(mean)


def _format_verdict(accepted: float) -> str:
    return "accepted" if accepted else "refused"


def _verdict_style(accepted: float) -> str:
    return GOOD if accepted else BAD


METRICS: tuple[Metric, ...] = (
    # The run.
    Metric(name="run/iteration", title="Iter.", format="{:,}".format, help="iteration of the Coach", rank=0),
    Metric(name="run/seconds", title="Time", format=format_duration, help="time since the run began", rank=4),
    # Self-play.
    Metric(name="self_play/games", title="Games", format=format_count, help="games of the iteration", rank=3),
    Metric(
        name="self_play/games_per_second",
        title="Games/s",
        format=format_rate,
        help="games per second, of all workers",
        rank=6,
    ),
    Metric(name="self_play/mean_plies", title="Plies", format="{:.1f}".format, help="mean length of a game", rank=8),
    Metric(
        name="self_play/first_player_wins",
        title="1st wins",
        format=format_percent,
        help="share of games that the first player won",
        rank=9,
    ),
    Metric(name="self_play/draws", title="Draws", format=format_percent, help="share of games drawn", rank=9),
    Metric(
        name="self_play/score_mean",
        title="Score",
        format=_format_score,
        help="mean score of one-player games in self-play",
        margin="self_play/score_margin",
        rank=0,
    ),
    Metric(
        name="self_play/score_median", title="Median", format=format_score, help="median score in self-play", rank=5
    ),
    Metric(name="self_play/score_best", title="Best", format=format_score, help="best score in self-play", rank=2),
    # Learning.
    Metric(name="learner/loss", title="Loss", format="{:.3f}".format, help="total loss", rank=0),
    Metric(
        name="learner/policy_loss",
        title="Policy",
        format="{:.3f}".format,
        help="cross-entropy with search's policy, in nats",
        rank=1,
    ),
    Metric(
        name="learner/value_loss",
        title="Value",
        format="{:.3f}".format,
        help="loss of the value, in nats",
        rank=1,
    ),
    Metric(
        name="learner/generalization_excess",
        title="Overfit",
        format=_format_excess,
        help="how much larger errors are on new games than on learned ones",
        rank=6,
    ),
    Metric(
        name="learner/generalization_policy_new",
        title="Policy on new games",
        format="{:.3g}".format,
        help="divergence from search's policy on positions not learned from yet, in nats",
    ),
    Metric(
        name="learner/generalization_policy_learned",
        title="Policy on learned games",
        format="{:.3g}".format,
        help="divergence from search's policy on learned positions, in nats",
    ),
    Metric(
        name="learner/generalization_value_new",
        title="Value on new games",
        format=format_percent,
        help="unexplained variance of the value on positions not learned from yet",
    ),
    Metric(
        name="learner/generalization_value_learned",
        title="Value on learned games",
        format=format_percent,
        help="unexplained variance of the value on learned positions",
    ),
    Metric(
        name="learner/firing_rate",
        title="Firing",
        format=format_percent,
        help="spikes per neuron and time step",
        rank=3,
    ),
    Metric(
        name="learner/synaptic_operations",
        title="Syn. ops",
        format=format_count,
        help="additions per position: a spike counts once per synapse",
        rank=5,
    ),
    Metric(
        name="learner/learning_rate",
        title="Step size",
        format="{:.1e}".format,
        help="learning rate at the last step",
        rank=10,
    ),
    # Who waits for whom.
    Metric(
        name="waits/games",
        title="Waited for games",
        format=format_duration,
        help="time that the learner waited for games",
    ),
    Metric(
        name="waits/learner",
        title="Idle workers",
        format=format_duration,
        help="time that the average place for a game was empty: the learner is behind, or grants too few games",
    ),
    Metric(
        name="waits/evaluation",
        title="Waited for strength",
        format=format_duration,
        help="time that the learner waited for a measurement of strength",
    ),
    Metric(
        name="run/window_positions", title="Window", format=format_count, help="positions in the replay window", rank=2
    ),
    # Strength.
    Metric(
        name="evaluation/accepted",
        title="Gate",
        format=_format_verdict,
        help="whether the gate accepted the model",
        rank=5,
        style=_verdict_style,
    ),
    Metric(
        name="evaluation/random_not_lost",
        title="vs random",
        format=format_percent,
        help="share of games against a random player that were not lost",
        rank=7,
    ),
    Metric(
        name="evaluation/elo",
        title="Elo",
        format=format_elo,
        help="Elo; a random player stands at 0",
        margin="evaluation/elo_margin",
        rank=0,
    ),
    Metric(
        name="evaluation/elo_gain",
        title="Gain",
        format=format_elo_gain,
        help="Elo above the rated version of a tenth of the run so far ago, in games against it and others",
        margin="evaluation/elo_gain_margin",
        rank=2,
    ),
    Metric(
        name="evaluation/elo_progress",
        title="Progress",
        format=format_elo_gain,
        help="Elo above the first version that beat a random player; its margin has no share of that player's",
        margin="evaluation/elo_progress_margin",
        rank=3,
    ),
    Metric(
        name="evaluation/expected_gain",
        title="Ahead",
        format=format_elo_gain,
        help="Elo that the run is expected to gain on this version until its end",
        margin="evaluation/expected_gain_margin",
        rank=4,
    ),
    Metric(
        name="evaluation/random_return",
        title="Return",
        format=format_return,
        help="mean return against random players in all other seats, with three and more players",
        margin="evaluation/random_return_margin",
        rank=0,
    ),
    Metric(
        name="evaluation/earlier_return",
        title="vs earlier",
        format=format_return,
        help="mean return against earlier versions in all other seats, with three and more players",
        margin="evaluation/earlier_return_margin",
        rank=1,
    ),
    Metric(
        name="evaluation/search_error",
        title="Search err",
        format=format_percent,
        help="share of solved positions in which search's move throws away game value",
        margin="evaluation/search_error_margin",
        rank=0,
    ),
    Metric(
        name="evaluation/policy_error",
        title="Policy err",
        format=format_percent,
        help="share of solved positions in which the policy's first choice throws away game value",
        rank=1,
    ),
    Metric(
        name="evaluation/expected_error",
        title="Err at end",
        format=format_percent,
        help="search error to expect at the end of the run",
        margin="evaluation/expected_error_margin",
        rank=4,
    ),
    Metric(
        name="evaluation/expected_score",
        title="Score at end",
        format=_format_score,
        help="mean score to expect at the end of the run",
        margin="evaluation/expected_score_margin",
        rank=4,
    ),
    Metric(
        name="evaluation/score_mean",
        title="Measured",
        format=format_score,
        help="mean score of one-player games played to measure it",
        margin="evaluation/score_margin",
        rank=0,
    ),
)

CHARTS = (
    Chart(
        title="Loss",
        curves=(("all", "learner/loss"), ("policy", "learner/policy_loss"), ("value", "learner/value_loss")),
        format="{:.3g}".format,
    ),
    Chart(
        title="Policy: divergence from search, in nats",
        curves=(
            ("new positions", "learner/generalization_policy_new"),
            ("learned positions", "learner/generalization_policy_learned"),
        ),
    ),
    Chart(
        title="Value: unexplained variance",
        curves=(
            ("new positions", "learner/generalization_value_new"),
            ("learned positions", "learner/generalization_value_learned"),
        ),
    ),
    Chart(title="Score", curves=(("self-play", "self_play/score_mean"), ("measured", "evaluation/score_mean"))),
    Chart(title="Elo", curves=(("", "evaluation/elo"),)),
    Chart(
        title="Mean return",
        curves=(("against random", "evaluation/random_return"), ("against earlier", "evaluation/earlier_return")),
    ),
    Chart(
        title="Moves that throw away game value",
        curves=(("search", "evaluation/search_error"), ("policy", "evaluation/policy_error")),
    ),
    Chart(title="Games per second", curves=(("", "self_play/games_per_second"),)),
    Chart(title="Plies per game", curves=(("", "self_play/mean_plies"),), format=format_count),
    Chart(title="Positions in the window", curves=(("", "run/window_positions"),)),
)

PPO_METRICS: tuple[Metric, ...] = (
    Metric(name="round", title="Round", format=str, help="round of acting and learning", rank=0),
    Metric(name="run/episodes_over", title="Episodes", format="{:,.0f}".format, help="episodes so far", rank=0),
    Metric(name="run/total_steps", title="Steps", format=format_count, help="steps of all environments so far", rank=0),
    Metric(
        name="episodes/reward",
        title="Reward",
        format="{:.2f}".format,
        help="mean reward of an episode, in percent of the capital",
        rank=0,
    ),
    Metric(name="episodes/profit", title="Return", format=format_money, help="mean profit of an episode", rank=0),
    Metric(
        name="episodes/win_rate",
        title="Win rate",
        format=format_percent,
        help="share of closed positions that made a profit",
        rank=0,
    ),
    Metric(name="episodes/closed", title="Closed", format=format_rate, help="positions closed per episode", rank=2),
    Metric(name="episodes/fees", title="Fees", format=format_money, help="fees paid per episode", rank=3),
    Metric(
        name="learning/entropy",
        title="Entropy",
        format="{:.3f}".format,
        help="entropy of the policy, in nats",
        rank=1,
    ),
    Metric(
        name="learning/approx_kl",
        title="KL",
        format="{:.4f}".format,
        help="how far the round moved the policy (Kullback-Leibler divergence)",
        rank=1,
    ),
    Metric(
        name="learning/value_loss",
        title="Value loss",
        format="{:.3f}".format,
        help="squared error of the values, in scaled returns",
        rank=2,
    ),
    Metric(
        name="learning/policy_loss",
        title="Policy loss",
        format="{:.3g}".format,
        help="PPO's clipped objective",
    ),
    Metric(
        name="learning/explained_variance",
        title="Explained",
        format=format_percent,
        help="share of the returns' variance that the values predict",
        rank=2,
    ),
    Metric(
        name="run/steps_per_second",
        title="steps/s",
        format=format_count,
        help="steps per second, of all environments",
        rank=0,
    ),
)

PPO_CHARTS = (
    Chart(title="Reward per episode", curves=(("", "episodes/reward"),), format=format_rate),
    Chart(title="Return per episode", curves=(("", "episodes/profit"),)),
    Chart(title="Win rate", curves=(("", "episodes/win_rate"),)),
    Chart(title="Trades closed per episode", curves=(("", "episodes/closed"),)),
    Chart(title="Loss", curves=(("policy", "learning/policy_loss"), ("value", "learning/value_loss"))),
    Chart(title="Entropy of the policy", curves=(("", "learning/entropy"),), format="{:.2f}".format),
    Chart(title="KL divergence per round", curves=(("", "learning/approx_kl"),), format="{:.2g}".format),
    Chart(title="Explained variance of the returns", curves=(("", "learning/explained_variance"),)),
    Chart(title="Steps per second", curves=(("", "run/steps_per_second"),)),
)
