"""The state of a run as the page shows it: metrics, what limits it, workers, accounts and events, as JSON."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

from keima.base.file_stamp import FileStamp
from keima.base.reports.formats import (
    format_count,
    format_duration,
    format_percent,
    format_rate,
    format_size,
    format_time_left,
    game_title,
    games_so_far,
)
from keima.base.reports.run_reports import ProgressReport
from keima.base.reports.worker_columns import WORKER_COLUMNS, displayed_state
from keima.base.reports.worker_status import WorkerState, WorkerStatus
from keima.data.ledger import Ledger
from keima.data.ledger_rows import WorkerAccount
from keima.report.cost import CORE_HOURS, Cost
from keima.report.limits import NO_LONGER_PLAYS, compute_time_shares, find_limits
from keima.report.metrics import MetricValues
from keima.report.strength import forecast_texts
from keima.report.terminal.plain import progress_metrics

EVENTS_SHOWN = 50
SAME_MOMENT = 2.0  # seconds between two records of one event
REMEDIES = {  # of states whose reason names none
    WorkerState.ERROR: "read its log (keima cluster logs {0}), fix the cause, then keima cluster restart {0}",
    WorkerState.OFFLINE: "Keima retries by itself; keima cluster check shows what is wrong",
    WorkerState.SYNCING: "nothing: it plays as soon as this is done",
}

Event = tuple[float, str]  # seconds since 1970, and what happened
Pairs = list[list[str]]  # titles and texts


def describe_ledger(ledger: Ledger) -> dict[str, Any]:
    """Describe the ledger: the game, each worker's account, and what happened last."""
    newest = ledger.events(last=EVENTS_SHOWN)
    return {
        "game": game_title(ledger.game, ledger.options),
        "accounts": [describe_account(account) for account in ledger.accounts().values()],
        "events": [(when, f"{worker}: {text}" if worker else text) for _, worker, text, when in newest],
    }


def describe_account(account: WorkerAccount) -> dict[str, Any]:
    """Describe a worker's account; granted games are the sum of all others."""
    return {
        name: getattr(account, name)
        for name in ("name", "granted", "received", "quarantined", "missing", "discarded", "outstanding")
    }


def newest_events(recorded: Sequence[Event], logged: Sequence[Event]) -> list[Event]:
    """Return the last events of the ledger and of the Coach's log, in order; events in both appear as the Coach logged
    them.

    Args:
        recorded: those of the ledger, each beginning with its worker's name and a colon, if it has one.
        logged: those of the Coach.
    """
    kept = [event for event in recorded if not any(is_same_event(event, other) for other in logged)]
    return sorted([*kept, *logged])[-EVENTS_SHOWN:]


def is_same_event(recorded: Event, logged: Event) -> bool:
    """Return whether both are one event: at the same time, about the same batch or number of games of one worker."""
    (when, text), (then, said) = recorded, logged
    worker, _, rest = text.partition(": ")
    subject = rest.split(":")[0].split()[:2]
    return abs(when - then) < SAME_MOMENT and (text == said or (worker in said and said.split()[:2] == subject))


def describe_progress(
    report: ProgressReport, rows: Sequence[MetricValues], cost: Cost, *, running: bool, disk_free: int | None
) -> dict[str, Any]:
    """Describe the Coach's last progress report.

    Args:
        report: its report.
        rows: the iterations so far.
        cost: of these iterations.
        running: whether the run still runs.
        disk_free: bytes on the run's disk; None: unknown.
    """
    planned = "" if report.iterations is None else f" of {report.iterations:,}"
    metrics = [
        ("Iteration", f"{report.iteration:,}{planned}"),
        ("Games", f"{report.total_games:,}"),
        ("Games/s", format_rate(report.games_per_second) if running else ""),
        ("Evaluations/s", format_count(report.evaluations_per_second) if running else ""),
        ("Window", f"{format_count(report.window_positions)} positions"),
        ("Model", f"{report.model_version:,}{describe_models_in_flight(report) if running else ''}"),
        ("Disk free", format_size(disk_free) if disk_free is not None else ""),
    ]
    return {
        "phase": report.phase if running else "ended",
        "games_so_far": games_so_far(report.games_here, report.games_wanted) if report.games_wanted > 0 else "",
        "metrics": [[title, text] for title, text in metrics if text],
        "time": describe_time_and_cost(report, rows, cost, running=running),
        "cluster": [text.split(": ", 1) for text in progress_metrics(report)],
        "shares": describe_time_shares(rows) if running else "",
        "limits": [vars(each) for each in find_limits(report, rows, disk_free=disk_free)] if running else [],
        "workers": [describe_worker(worker) for worker in report.workers],
    }


def describe_models_in_flight(report: ProgressReport) -> str:
    """Describe how many workers that can play do not have the newest model yet; empty if none."""
    playing = [worker for worker in report.workers if worker.activity not in NO_LONGER_PLAYS]
    behind = sum(worker.model_version < report.model_version for worker in playing)
    return f", on its way to {behind} of {len(playing)} workers" if behind else ""


def describe_time_and_cost(report: ProgressReport, rows: Sequence[MetricValues], cost: Cost, *, running: bool) -> Pairs:
    """Return elapsed time, time left, core hours, and the core hours of 100 Elo points."""
    working = sum(worker.activity not in NO_LONGER_PLAYS for worker in report.workers)
    used = sum(worker.core_hours for worker in report.workers)
    hours = cost.core_hours + max(0.0, used - (rows[-1].get(CORE_HOURS, 0.0) if rows else 0.0))
    left = (
        format_time_left(report.seconds_left).removesuffix(" left")
        if running and report.seconds_left is not None
        else ""
    )
    found = [
        ("Elapsed", format_duration(report.seconds)),
        ("Left", left),
        ("Core hours of workers", f"{format_rate(hours)} ({working} now)" if running else format_rate(hours)),
        ("Core hours for 100 Elo", describe_cost_of_elo(cost)),
        ("Expected at the end", describe_forecast(rows) if running else ""),
    ]
    return [[title, text] for title, text in found if text]


def describe_forecast(rows: Sequence[MetricValues]) -> str:
    """Describe what to expect at the end, as the last evaluation sees it; empty without one."""
    texts = (forecast_texts(row, "evaluation/") for row in reversed(rows))
    return ", ".join(next((each for each in texts if each), []))


def describe_cost_of_elo(cost: Cost) -> str:
    """Describe what 100 Elo points took in the whole run, and lately; empty if nothing was gained."""
    if cost.per_100_elo is None:
        return ""
    lately = (
        ""
        if cost.recent_per_100_elo is None
        else f", {format_rate(cost.recent_per_100_elo)} in the second half of the evaluations"
    )
    return f"{format_rate(cost.per_100_elo)}{lately}"


def describe_time_shares(rows: Sequence[MetricValues]) -> str:
    """Describe how the main node spent the last iterations; empty before there are two."""
    shares = compute_time_shares(rows)
    if shares is None:
        return ""
    parts = (
        f"waited for games {format_percent(shares.games)}",
        f"learned {format_percent(shares.learning)}",
        f"measured strength {format_percent(shares.evaluating)} of the time",
    )
    return f"The main node {', '.join(parts)}, in iterations of {format_duration(shares.seconds)}."


def describe_worker(worker: WorkerStatus) -> dict[str, Any]:
    """Describe a worker: its state, its metrics, what is wrong, and the remedy."""
    metrics = [(column.title, column.cell(worker)) for column in WORKER_COLUMNS if column.in_card]
    reason, remedy = reason_and_remedy(worker)
    return {
        "name": worker.name,
        "machine": worker.machine if worker.machine != worker.name else "",
        "state": displayed_state(worker),
        "since": format_duration(worker.since) if worker.state and reason else "",
        "metrics": [[title, text] for title, text in metrics if text],
        "reason": reason,
        "remedy": remedy,
        "note": worker.note,
    }


def reason_and_remedy(worker: WorkerStatus) -> tuple[str, str]:
    """Return why a worker does not play, and what to do; both empty if it plays."""
    if worker.state is None:
        return worker.error, ""
    if not worker.reason:
        return "", ""
    reason, _, remedy = worker.reason.partition("; ")
    return reason, remedy or REMEDIES.get(worker.state, "").format(worker.machine)


def describe_last_iteration(row: MetricValues) -> Pairs:
    """Describe the last iteration of a run that has left no progress file."""
    shown = (
        ("Iteration", "iteration", format_count),
        ("Elapsed", "run/seconds", format_duration),
        ("Games", "run/total_games", format_count),
    )
    return [[title, show(row[name])] for title, name, show in shown if name in row]


def describe_ppo_run(name: str, rounds: Sequence[Mapping[str, Any]], stamp: FileStamp | None) -> dict[str, Any]:
    """Describe the last round of a PPO run; it reports nothing between two rounds.

    Args:
        name: the run's.
        rounds: one or more.
        stamp: of the file that they are in.
    """
    last = rounds[-1]
    shown = (
        ("Round", "round", format_count),
        ("Episodes", "run/episodes_over", format_count),
        ("Steps", "run/total_steps", format_count),
        ("Steps/s", "run/steps_per_second", format_count),
        ("Elapsed", "run/seconds", format_duration),
    )
    ended = f"last round: {time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(stamp.written))}" if stamp else ""
    return {
        "name": name,
        "running": False,
        "phase": ended,
        "game": "PPO",
        "metrics": [[title, show(last[key])] for title, key, show in shown if last.get(key) is not None],
        "accounts": [],
        "events": [],
        "problems": [],
    }
