"""A run as tables and as one screen, from reports alone."""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from keima.base.reports.formats import (
    BAD,
    FAINT,
    GOOD,
    TITLE,
    Column,
    format_count,
    format_duration,
    format_percent,
    format_rate,
    format_time_left,
    games_so_far,
    progress_bar,
    sparkline,
    spread_line,
    table_lines,
)
from keima.base.reports.run_reports import IterationReport, ProgressReport, ScoreReport
from keima.base.reports.text import printable_line
from keima.base.reports.worker_columns import WORKER_COLUMNS
from keima.base.reports.worker_status import WorkerStatus
from keima.report.metrics import METRICS, Metric, MetricValues, make_columns, read_metric
from keima.report.terminal.plain import progress_metrics

# Lines for iterations, workers and events: the least for each, and how many are plenty; further lines are given in the
# same order.
LEAST_LINES, PLENTY_LINES = (4, 3, 2), (8, 8, 4)
TRENDS = (  # metrics with a sparkline
    "learner/loss",
    "evaluation/search_error",
    "evaluation/elo",
    "evaluation/random_return",
    "self_play/score_mean",
    "evaluation/score_mean",
)
HALF_WIDTH = 40  # columns


def history_columns(rows: Sequence[IterationReport]) -> tuple[Column[IterationReport], ...]:
    """Return the columns of iterations: the metrics, and the share of games that reach each milestone, measured or else
    in self-play.
    """
    scores = [score for row in rows if (score := measured_score(row) or row.self_play.score)]
    milestones = sorted({part.milestone for score in scores for part in score.milestones if part.share > 0})
    reached = (Column(title=str(milestone), cell=_milestone_text(milestone), rank=1) for milestone in milestones)
    return (*make_columns(METRICS), *reached)


def measured_score(row: IterationReport) -> ScoreReport | None:
    """Return the score that the evaluation measured, if it did."""
    return row.evaluation.score if row.evaluation else None


def _milestone_text(milestone: int) -> Callable[[IterationReport], str]:
    def cell(row: IterationReport) -> str:
        section = "evaluation" if measured_score(row) else "self_play"
        share = read_metric(row, f"{section}/reached_{milestone}")
        return "" if share is None else format_percent(share)

    return cell


def trend_lines(
    names: Sequence[str],
    metrics: Sequence[Metric],
    rows: Sequence[IterationReport] | Sequence[MetricValues],
    width: int,
) -> list[Text]:
    """Return sparklines, over the whole run, of what has been measured at least twice."""
    lines = []
    for metric in (metric for name in names for metric in metrics if metric.name == name):
        found = [read_metric(row, metric.name) for row in rows]
        known = [value for value in found if value is not None and math.isfinite(value)]
        if len(known) < 2:
            continue
        ends = f"{metric.format(known[0])} → {metric.format(known[-1])}"
        spark = sparkline(known, width - 12 - 18)
        lines.append(Text.assemble((f"{metric.title:<12}", FAINT), f"{ends:<18}", (spark, GOOD)))
    return lines


@dataclass(frozen=True, kw_only=True)
class ScreenFrame:
    """One screen; in a small space it leaves out what matters least."""

    name: str
    game: str
    now: ProgressReport | None = None
    rows: Sequence[IterationReport] = ()
    events: Sequence[str] = ()
    note: str = ""  # a warning about the metrics

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the lines that fit."""
        yield from self.lines(options.max_width, options.height or options.size.height)

    def lines(self, width: int, height: int) -> list[Text]:
        """Return at most ``height`` lines of at most ``width`` cells."""
        workers = self.now.workers if self.now else ()
        header, sparks = self._header(width), trend_lines(TRENDS, METRICS, self.rows, width)
        wants = (len(self.rows), len(workers), len(self.events))
        titles_and_blanks = sum(2 for want in wants[:2] if want) + bool(self.events)
        shown, played, logged = _allot_lines(height - len(header) - len(sparks) - titles_and_blanks, wants)
        sections = [
            header,
            (table_lines(history_columns(self.rows), self.rows[-shown:], width) if shown else []) + sparks,
            _worker_lines(workers, played, width) if played else [],
            [Text(printable_line(event)) for event in self.events[-logged:]] if logged else [],
        ]
        lines = [line for section in sections if section for line in [*section, Text()]]
        for line in lines:
            line.no_wrap = True
            line.truncate(width, overflow="ellipsis")
        return lines[:-1][:height]

    def _header(self, width: int) -> list[Text]:
        game = "" if self.game in ("", self.name) else f" · {printable_line(self.game)}"
        title = Text.assemble(("Keima  ", FAINT), (printable_line(self.name), TITLE), game)
        notes = [Text(printable_line(self.note), BAD)] if self.note else []
        now = self.now
        if now is None:
            return [title, *notes]
        left = "" if now.seconds_left is None else f" · {format_time_left(now.seconds_left)}"
        return [
            spread_line(title, Text(format_duration(now.seconds) + left), width),
            _progress_line(now, width),
            _rates_line(now),
            *_cluster_lines(now),
            *notes,
        ]


def _rates_line(now: ProgressReport) -> Text:
    metrics = (
        (format_rate(now.games_per_second), " games/s  "),
        (format_count(now.evaluations_per_second), " evals/s  "),
        (f"{now.total_games:,}", " games  window "),
        (format_count(now.window_positions), " positions  model "),
        (f"{now.model_version:,}", ""),
    )
    return Text.assemble(*(part for metric, unit in metrics for part in ((metric, TITLE), unit)))


def _cluster_lines(now: ProgressReport) -> list[Text]:
    """Return the metrics of a cluster, two in a line."""
    metrics = progress_metrics(now)
    return [
        Text("".join(f"{metric:{HALF_WIDTH}}" for metric in line).rstrip(), TITLE)
        for line in (metrics[:2], metrics[2:])
        if line
    ]


def _progress_line(now: ProgressReport, width: int) -> Text:
    planned = "" if now.iterations is None else f" of {now.iterations:,}"
    phase = Text(f"Iteration {now.iteration:,}{planned} · {printable_line(now.phase)}")
    if now.games_wanted <= 0:
        return phase
    games = Text(f" {games_so_far(now.games_here, now.games_wanted)}")
    room = min(width - phase.cell_len - games.cell_len - 2, 40)
    return spread_line(
        phase, progress_bar(now.games_here, now.games_wanted, room) + games if room >= 6 else games, width
    )


def _allot_lines(room: int, wants: tuple[int, int, int]) -> list[int]:
    given = [0] * len(wants)
    for enough in (LEAST_LINES, PLENTY_LINES, wants):
        for i, want in enumerate(wants):
            more = max(min(enough[i], want) - given[i], 0)
            given[i] += min(more, max(room - sum(given), 0))
    return given


def _worker_lines(workers: Sequence[WorkerStatus], room: int, width: int) -> list[Text]:
    """Return the workers, those with errors first; if there are too many, the last line counts the rest by state."""
    columns = [column for column in WORKER_COLUMNS if column.in_terminal]
    if len(workers) <= room:
        return table_lines(columns, workers, width)
    ordered = sorted(workers, key=lambda worker: worker.activity != "error" and not worker.error)
    shown, hidden = ordered[: room - 1], ordered[room - 1 :]
    states = ", ".join(
        f"{number} {printable_line(state)}" for state, number in Counter(worker.activity for worker in hidden).items()
    )
    return [*(table_lines(columns, shown, width) if shown else []), Text(f"{len(hidden)} more: {states}", FAINT)]
