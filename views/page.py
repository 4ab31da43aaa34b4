"""A run as one self-contained HTML page: curves over time, the table of iterations, and games to step through."""

import html
import json
import re
from collections.abc import Sequence
from pathlib import Path

from training.common.reports import IterationReport
from views.calibration import Bin
from views.charts import Column, Row, percent
from views.game_view import GameView
from views.metrics import CHARTS, METRICS, Chart, metric_chart
from views.svg import ChartLayout, Series, laid_out, svg
from views.viewer import BOARDS, VIEWER, shown_game
from views.views import history
from views.worker_charts import worker_charts

TEMPLATE = Path(__file__).with_name("page.html")
PLACEHOLDER = re.compile("@(TITLE|STYLE|SUMMARY|CHARTS|TABLE|VIEWER|GAMES|SCRIPT)@")
ROWS_SHOWN = 200  # of the table
WORKERS_TITLE = "Workers, as each stood at the ends of iterations"

Rows = Sequence[IterationReport]


def page(
    title: str,
    summary: Sequence[tuple[str, str]],
    rows: Rows,
    games: Sequence[GameView],
    calibration: Sequence[Bin] = (),
) -> str:
    """The page.

    Args:
        title: above all.
        summary: what the run has reached, as titles and texts.
        rows: its iterations.
        games: to step through.
        calibration: of what search expected in the newest games.
    """
    sections = (
        [("Curves", curves(rows, calibration)), (WORKERS_TITLE, worker_charts(rows, *time_unit(rows)))] if rows else []
    )
    return filled(title, summary, sections, as_html("Iterations", history(rows), rows) if rows else "", games)


def filled(
    title: str,
    summary: Sequence[tuple[str, str]],
    sections: Sequence[tuple[str, Sequence[ChartLayout]]],
    table: str,
    games: Sequence[GameView] = (),
) -> str:
    """The page of a run of any kind.

    Args:
        sections: curves, under headings; one without curves is left out.
        table: as HTML.
    """
    drawn = [
        f'<h2>{html.escape(name)}</h2>\n<div class="charts">{"".join(map(svg, curves))}</div>'
        for name, curves in sections
        if curves
    ]
    parts = {
        "TITLE": html.escape(title),
        "SUMMARY": _list(summary),
        "CHARTS": "\n".join(drawn),
        "TABLE": table,
        # So nothing in the text can end the script that contains it.
        "GAMES": json.dumps([shown_game(view) for view in games], separators=(",", ":")).replace("<", "\\u003c"),
        "VIEWER": VIEWER["html"].read_text(encoding="utf-8"),
        "STYLE": "".join(path.read_text(encoding="utf-8") for path in (BOARDS["css"], VIEWER["css"])),
        "SCRIPT": "".join(path.read_text(encoding="utf-8") for path in (BOARDS["js"], VIEWER["js"])),
    }
    # In one pass, so that a placeholder within a text is left alone.
    return PLACEHOLDER.sub(lambda mark: parts[mark[1]], TEMPLATE.read_text(encoding="utf-8"))


def _list(summary: Sequence[tuple[str, str]]) -> str:
    return (
        "<dl>"
        + "".join(f"<dt>{html.escape(title)}</dt><dd>{html.escape(text)}</dd>" for title, text in summary)
        + "</dl>"
    )


def as_html(heading: str, columns: Sequence[Column[Row]], rows: Sequence[Row]) -> str:
    """The last rows as a table, newest first, without empty columns."""
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


def charts(rows: Rows, calibration: Sequence[Bin] = ()) -> list[ChartLayout]:
    """All charts of a run."""
    return [*curves(rows, calibration), *worker_charts(rows, *time_unit(rows))]


def time_unit(rows: Rows) -> tuple[float, str]:
    """The unit of a run's time axis: its seconds and its name."""
    return (3600.0, "hours") if rows[-1].seconds >= 7200 else (60.0, "minutes")


def curves(rows: Rows, calibration: Sequence[Bin]) -> list[ChartLayout]:
    """All curves that have two points."""
    size, unit = time_unit(rows)
    tiles = tuple((str(milestone), f"self_play/reached_{milestone}") for milestone in _milestones(rows)[-5:])
    reached = (Chart(title="Games that reach a tile", curves=tiles, format=percent),) if tiles else ()
    found = metric_chart(
        (*CHARTS[:4], *reached, *CHARTS[4:]), METRICS, rows, [row.seconds / size for row in rows], x_name=unit
    )
    calibrated = calibration_chart(calibration)
    return [*found, calibrated] if calibrated else found


def calibration_chart(bins: Sequence[Bin]) -> ChartLayout | None:
    """The actual wins over those that search expected: on the diagonal, search is well calibrated."""
    points = [(each.expected, each.won) for each in bins]
    found = Series(name="won", points=points, margins=[each.margin for each in bins])
    even = Series(name="as expected", points=[(0.0, 0.0), (1.0, 1.0)])
    share = "{:.0%}".format
    return (
        laid_out("Wins by what was expected", [found, even], x_name="expected", show=share, show_x=share)
        if len(points) > 1
        else None
    )


def _milestones(rows: Rows) -> list[int]:
    """The milestones that some game has reached."""
    parts = [part for row in rows if row.self_play.score for part in row.self_play.score.milestones]
    return sorted({part.milestone for part in parts if part.share > 0})
