"""A run as plain lines, for logs and simple terminals."""

import time
from collections import Counter
from collections.abc import Callable
from datetime import datetime
from typing import TextIO

from keima.base.reports.formats import (
    cluster_metrics,
    format_count,
    format_duration,
    format_percent,
    format_rate,
    format_time_left,
    games_so_far,
)
from keima.base.reports.run_reports import IterationReport, LearnerReport, ProgressReport, SpikeReport, WaitReport
from keima.base.reports.text import printable_line
from keima.base.reports.worker_status import WorkerState
from keima.report.strength import score_report_text, strength_fields

HEARTBEAT_SECONDS = 30.0


def iteration_line(report: IterationReport, iterations: int | None = None) -> str:
    """Return an iteration as one line of metrics with their units; unmeasured metrics are left out."""
    play = report.self_play
    parts = [
        _iteration_text(report.iteration, iterations, report.seconds),
        f"{report.total_games:>9,} games (+{play.games:,})",
        f"{format_rate(play.games_per_second):>5} games/s",
        f"window {format_count(report.window_positions):>5} positions",
        f"model {report.model_version:>4}",
    ]
    if play.score:
        parts.append(f"score {score_report_text(play.score)}")
    if report.learner:
        parts.append(f"loss {_losses_text(report.learner)}")
        parts += [_spikes_text(report.learner.spikes)] if report.learner.spikes else []
    if report.evaluation:
        parts += strength_fields(report.evaluation)
    if report.waits:
        parts.append(_waits_text(report.waits))
    return "  ".join(parts)


def _iteration_text(iteration: int, iterations: int | None, seconds: float) -> str:
    planned = f"/{iterations}" if iterations else ""
    return f"iteration {f'{iteration}{planned}':>7}  {format_duration(seconds):>12}"


def _losses_text(learner: LearnerReport) -> str:
    skipped = f", {learner.skipped_steps} of {learner.steps} steps skipped" if learner.skipped_steps else ""
    heads = f", auxiliary {learner.auxiliary_loss:.3f}" if learner.auxiliary_loss else ""
    return f"{learner.loss:.3f} (policy {learner.policy_loss:.3f}, value {learner.value_loss:.3f}{heads}){skipped}"


def _waits_text(waits: WaitReport) -> str:
    waited = [
        f"learner {format_duration(waits.games)} for games",
        f"workers {format_duration(waits.learner)} for the Coach",
        f"both {format_duration(waits.evaluation)} for strength",
    ]
    seconds = (waits.games, waits.learner, waits.evaluation)
    return "waited: " + (", ".join(text for text, long in zip(waited, seconds, strict=True) if long >= 1) or "nobody")


def _spikes_text(spikes: SpikeReport) -> str:
    synaptic, dense = format_count(spikes.synaptic_operations), format_count(spikes.multiply_accumulates)
    operations = f"{synaptic} synaptic + {dense} dense operations a position"
    without = format_count(spikes.without_spikes)
    return f"firing {format_percent(spikes.firing_rate)}: {operations} ({without} dense without spikes)"


def progress_metrics(report: ProgressReport) -> tuple[str, ...]:
    """Return the metrics of a cluster; none if this machine plays."""
    return cluster_metrics(report.cluster) if report.cluster else ()


def heartbeat_line(report: ProgressReport) -> str:
    """Return the current state of the run, in one line."""
    states = Counter(
        "offline" if worker.state is WorkerState.OFFLINE else printable_line(worker.activity)
        for worker in report.workers
    )
    parts = [
        _iteration_text(report.iteration, report.iterations, report.seconds),
        printable_line(report.phase),
    ]
    if report.games_wanted:
        parts.append(games_so_far(report.games_here, report.games_wanted))
    parts += [f"{format_rate(report.games_per_second)} games/s"] if report.network is None else []
    parts += [f"{format_count(report.evaluations_per_second)} evaluations/s"]
    if states:
        parts.append("workers: " + ", ".join(f"{number} {state}" for state, number in states.items()))
    parts += progress_metrics(report)
    if report.seconds_left is not None:
        parts.append(format_time_left(report.seconds_left))
    return "  ".join(parts)


class PlainLines:
    """Writes a line per iteration and event, and a heartbeat if there was no line for a while.

    A cluster's metrics are only in the heartbeat, so its time counts from the last heartbeat.
    """

    def __init__(
        self,
        stream: TextIO,
        *,
        heartbeat_seconds: float = HEARTBEAT_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._stream = stream
        self._heartbeat_seconds = heartbeat_seconds
        self._clock = clock
        self._last = self._last_heartbeat = clock()
        self._iterations: int | None = None

    def progress(self, report: ProgressReport) -> None:
        """Write a line if the last one is old."""
        self._iterations = report.iterations
        since = self._last_heartbeat if report.network else self._last
        if self._clock() - since >= self._heartbeat_seconds:
            self._write(heartbeat_line(report))
            self._last_heartbeat = self._last

    def iteration(self, report: IterationReport) -> None:
        """Write the iteration."""
        self._write(iteration_line(report, self._iterations))

    def event(self, text: str) -> None:
        """Write the event."""
        self._write(printable_line(text))

    def close(self) -> None:
        """Do nothing: the owner closes the stream."""

    def _write(self, line: str) -> None:
        self._last = self._clock()
        self._stream.write(f"{datetime.now():%Y-%m-%d %H:%M:%S}  {line}\n")
        self._stream.flush()
