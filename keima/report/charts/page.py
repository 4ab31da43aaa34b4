"""A run, or several over each other, as one self-contained HTML page: curves, the table of iterations, and games to
step through.
"""

import html
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from keima.base.reports.formats import Column, Row
from keima.base.reports.run_reports import IterationReport
from keima.report.charts.calibration import CalibrationBin
from keima.report.charts.run_charts import AXES, RunCharts, make_calibration_charts, make_run_charts
from keima.report.charts.viewer import ASSETS, BOARDS, CHARTS, VIEWER, game_to_json
from keima.report.charts.worker_charts import make_worker_charts
from keima.report.files.run_files import report_scalars
from keima.report.games.game_view import GameView
from keima.report.tables import history_columns

TEMPLATE, SCRIPT = ASSETS / "page.html", ASSETS / "page.js"
STYLES = (CHARTS["library css"], CHARTS["css"], BOARDS["css"], VIEWER["css"])
SCRIPTS = (CHARTS["library"], CHARTS["js"], BOARDS["js"], VIEWER["js"], SCRIPT)
PLACEHOLDER = re.compile("@(TITLE|STYLE|SUMMARY|CURVES|TABLE|VIEWER|GAMES|LICENCE|SCRIPT)@")
ROWS_SHOWN = 200  # of the table

Rows = Sequence[IterationReport]
Summary = Sequence[tuple[str, str]]  # titles and texts


def make_run_page(
    title: str, summary: Summary, rows: Rows, games: Sequence[GameView], calibration: Sequence[CalibrationBin] = ()
) -> str:
    """Return the page of a run.

    Args:
        title: above all.
        summary: what the run has reached.
        rows: its iterations.
        games: to step through.
        calibration: of what search expected in the newest games.
    """
    runs = [make_report_charts(title, rows, calibration)] if rows else []
    table = rows_to_html("Iterations", history_columns(rows), rows) if rows else ""
    return fill_page(title, summary_to_html(summary), runs, AXES, table, games)


def make_comparison_page(runs: Sequence[RunCharts], summaries: Sequence[Summary], axes: Mapping[str, str]) -> str:
    """Return the page of several runs, whose curves lie over each other.

    Args:
        summaries: what each run has reached.
        axes: what curves may be drawn over, as ``AXES``.
    """
    names = [run.name for run in runs]
    return fill_page(" and ".join(names), summaries_to_html(names, summaries), runs, axes, "")


def fill_page(
    title: str,
    summary: str,
    runs: Sequence[RunCharts],
    axes: Mapping[str, str],
    table: str,
    games: Sequence[GameView] = (),
) -> str:
    """Return the page of runs of any kind.

    Args:
        summary: as HTML.
        runs: what is drawn of them, over each other.
        axes: what curves may be drawn over, as ``AXES``.
        table: as HTML.
    """
    choices = [{"metric": metric, "name": name} for metric, name in axes.items()]
    parts = {
        "TITLE": html.escape(title),
        "SUMMARY": summary,
        "CURVES": to_script_json({"axes": choices, "runs": [run.as_json() for run in runs]}),
        "TABLE": table,
        "GAMES": to_script_json([game_to_json(view) for view in games]),
        "VIEWER": VIEWER["html"].read_text(encoding="utf-8"),
        "STYLE": _join_files(STYLES),
        "LICENCE": CHARTS["licence"].read_text(encoding="utf-8"),
        "SCRIPT": _join_files(SCRIPTS),
    }
    # In one pass, so that a placeholder within a text is left alone.
    return PLACEHOLDER.sub(lambda mark: parts[mark[1]], TEMPLATE.read_text(encoding="utf-8"))


def to_script_json(content: Any) -> str:
    """Return the content as JSON in which nothing can end the script that contains it."""
    return json.dumps(content, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


def _join_files(paths: Sequence[Path]) -> str:
    return "\n".join(path.read_text(encoding="utf-8") for path in paths)


def summary_to_html(summary: Summary) -> str:
    """Return what a run has reached, as HTML."""
    return (
        "<dl>"
        + "".join(f"<dt>{html.escape(title)}</dt><dd>{html.escape(text)}</dd>" for title, text in summary)
        + "</dl>"
    )


def summaries_to_html(names: Sequence[str], summaries: Sequence[Summary]) -> str:
    """Return what several runs have reached, a column for each, as HTML."""
    titles = dict.fromkeys(title for summary in summaries for title, _ in summary)
    texts = [dict(summary) for summary in summaries]
    head = "".join(f"<th scope=col>{html.escape(name)}</th>" for name in ("", *names))
    rows = "".join(
        f"<tr><th scope=row>{html.escape(title)}</th>"
        + "".join(f"<td>{html.escape(text.get(title, ''))}</td>" for text in texts)
        + "</tr>"
        for title in titles
    )
    return f'<div class="scroll"><table class="words"><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'


def rows_to_html(heading: str, columns: Sequence[Column[Row]], rows: Sequence[Row]) -> str:
    """Return the last rows as a table, newest first, without empty columns."""
    shown = rows[-ROWS_SHOWN:]
    columns = [column for column in columns if any(column.cell(row) for row in shown)]
    titles = "".join(f'<th title="{html.escape(column.help)}">{html.escape(column.title)}</th>' for column in columns)
    lines = [
        "<tr>" + "".join(f"<td>{html.escape(column.cell(row))}</td>" for column in columns) + "</tr>"
        for row in reversed(shown)
    ]
    left_out = (
        f"<p class=faint>The last {len(shown)} of {len(rows):,}, newest first.</p>" if len(rows) > len(shown) else ""
    )
    head = f"<thead><tr>{titles}</tr></thead>"
    body = f"<table>{head}<tbody>{''.join(lines)}</tbody></table>"
    return f'<h2>{html.escape(heading)}</h2>{left_out}<div class="scroll">{body}</div>'


def make_report_charts(name: str, rows: Rows, calibration: Sequence[CalibrationBin] = ()) -> RunCharts:
    """Return all charts of a run.

    Args:
        name: the run's name.
        rows: its iterations, at least one.
        calibration: of what search expected in the newest games.
    """
    found = make_run_charts(name, [report_scalars(row) | {"iteration": row.iteration} for row in rows])
    wins = make_calibration_charts(name, calibration)
    return RunCharts(
        name=name,
        charts=[*found.charts, *wins.charts],
        metrics={**found.metrics, **wins.metrics},
        rows=make_worker_charts(rows),
    )
