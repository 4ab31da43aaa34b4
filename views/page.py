"""A run as one page of HTML that loads nothing: curves over time, the table of iterations, and games to step through."""

import html
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from training.common.reports import IterationReport, ScoreReport
from views.calibration import Bin
from views.charts import Column, Row, count, percent, points, rate, rating
from views.game_view import GameView
from views.svg import Layout, Series, laid_out, svg
from views.views import history
from views.worker_charts import worker_charts

TEMPLATE = Path(__file__).with_name("page.html")
MARK = re.compile("@(TITLE|SUMMARY|CHARTS|TABLE|GAMES)@")
ROWS_SHOWN = 200  # of the table
WORKERS = "Workers, as each stood at the ends of iterations"

Rows = Sequence[IterationReport]
Figure = Callable[[IterationReport], float | None]


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
    sections = [("Curves", curves(rows, calibration)), (WORKERS, worker_charts(rows, *time_unit(rows)))] if rows else []
    return filled(title, summary, sections, as_html("Iterations", history(rows), rows) if rows else "", games)


def filled(
    title: str,
    summary: Sequence[tuple[str, str]],
    sections: Sequence[tuple[str, Sequence[Layout]]],
    table: str,
    games: Sequence[GameView] = (),
) -> str:
    """The page of any run.

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
        # Nothing in the text can end the script that it stands in.
        "GAMES": json.dumps([_shown(view) for view in games], separators=(",", ":")).replace("<", "\\u003c"),
    }
    # In one pass, so that a mark within a text stays a text.
    return MARK.sub(lambda mark: parts[mark[1]], TEMPLATE.read_text(encoding="utf-8"))


def _shown(view: GameView) -> dict[str, Any]:
    """The game as the page's script reads it; a board that is drawn needs no text."""
    moments = [replace(moment, board="") if moment.cells else moment for moment in view.moments]
    return asdict(replace(view, moments=tuple(moments)))


def _list(summary: Sequence[tuple[str, str]]) -> str:
    return (
        "<dl>"
        + "".join(f"<dt>{html.escape(title)}</dt><dd>{html.escape(text)}</dd>" for title, text in summary)
        + "</dl>"
    )


def as_html(heading: str, columns: Sequence[Column[Row]], rows: Sequence[Row]) -> str:
    """The last rows as a table, the newest first, without the columns that are empty."""
    shown = rows[-ROWS_SHOWN:]
    columns = [column for column in columns if any(column.cell(row) for row in shown)]
    titles = "".join(f"<th>{html.escape(column.title)}</th>" for column in columns)
    lines = [
        "<tr>" + "".join(f"<td>{html.escape(column.cell(row))}</td>" for column in columns) + "</tr>"
        for row in reversed(shown)
    ]
    left_out = (
        f"<p class=faint>The last {len(shown)} of {len(rows):,}, newest first.</p>" if len(rows) > len(shown) else ""
    )
    head = f"<thead><tr>{titles}</tr></thead>"
    return f'<h2>{html.escape(heading)}</h2>{left_out}<div class="scroll"><table>{head}<tbody>{"".join(lines)}</tbody></table></div>'


def charts(rows: Rows, calibration: Sequence[Bin] = ()) -> list[Layout]:
    """Everything that can be drawn of a run."""
    return [*curves(rows, calibration), *worker_charts(rows, *time_unit(rows))]


def time_unit(rows: Rows) -> tuple[float, str]:
    """In which a run is told: its seconds and its name."""
    return (3600.0, "hours") if rows[-1].seconds >= 7200 else (60.0, "minutes")


def curves(rows: Rows, calibration: Sequence[Bin]) -> list[Layout]:
    """All curves of which there are two points."""
    size, unit = time_unit(rows)

    def series(name: str, figure: Figure, margin: Figure | None = None) -> Series:
        known = [row for row in rows if figure(row) is not None]
        margins = [(margin(row) if margin else None) or 0.0 for row in known]
        return Series(
            name=name,
            points=[(row.seconds / size, figure(row) or 0.0) for row in known],
            margins=margins if margin else (),
        )

    def draw(title: str, show: Callable[[float], str], *curves: Series) -> Layout | None:
        return laid_out(title, curves, x_name=unit, show=show)

    def learned(name: str) -> Figure:
        return lambda row: getattr(row.learner, name, None)

    def generalized(name: str) -> Figure:
        return lambda row: getattr(getattr(row.learner, "generalization", None), name, None)

    def measured(name: str) -> Figure:
        return lambda row: getattr(row.evaluation, name, None)

    def mean(score: Callable[[IterationReport], ScoreReport | None], name: str) -> Figure:
        return lambda row: getattr(score(row), name, None)

    searched, bare = (
        series("search", measured("search_error"), measured("search_error_margin")),
        series("policy", measured("policy_error")),
    )
    played = series("self-play", mean(_self_played, "mean"), mean(_self_played, "margin"))
    tested = series("measured", mean(_measured, "mean"), mean(_measured, "margin"))
    reached = [series(str(milestone), _reached(milestone)) for milestone in _milestones(rows)]
    drawn = [
        draw("Loss", "{:.3g}".format, *(series(name, learned(field)) for name, field in LOSSES)),
        draw(
            "Policy, nats from the search's",
            "{:.3g}".format,
            *(series(name, generalized(f"policy_{part}")) for name, part in KNOWN),
        ),
        draw("Value, not explained", percent, *(series(name, generalized(f"value_{part}")) for name, part in KNOWN)),
        draw("Score", points, played, tested),
        draw("Games that reach a tile", percent, *reached[-5:]),
        draw("Elo", rating, series("", measured("elo"), measured("elo_margin"))),
        draw("Moves that throw away game value", percent, searched, bare),
        draw("Games per second", rate, series("", lambda row: row.self_play.games_per_second)),
        draw("Plies a game", count, series("", lambda row: row.self_play.mean_plies)),
        draw("Positions in the window", count, series("", lambda row: row.window_positions)),
        calibrated(calibration),
    ]
    return [curve for curve in drawn if curve]


def calibrated(bins: Sequence[Bin]) -> Layout | None:
    """The wins that there were over those that search expected: the nearer to the diagonal, the better it knows what it
    knows.
    """
    points = [(each.expected, each.won) for each in bins]
    found = Series(name="won", points=points, margins=[each.margin for each in bins])
    even = Series(name="as expected", points=[(0.0, 0.0), (1.0, 1.0)])
    share = "{:.0%}".format
    return (
        laid_out("Wins by what was expected", [found, even], x_name="expected", show=share, show_x=share)
        if len(points) > 1
        else None
    )


KNOWN = (("new positions", "new"), ("learned positions", "learned"))
LOSSES = (("all", "loss"), ("policy", "policy_loss"), ("value", "value_loss"))


def _self_played(row: IterationReport) -> ScoreReport | None:
    return row.self_play.score


def _measured(row: IterationReport) -> ScoreReport | None:
    return row.evaluation.score if row.evaluation else None


def _milestones(rows: Rows) -> list[int]:
    """Those that somebody has reached."""
    parts = [part for row in rows if row.self_play.score for part in row.self_play.score.milestones]
    return sorted({part.milestone for part in parts if part.share > 0})


def _reached(milestone: int) -> Figure:
    """The share of self-play's games."""

    def figure(row: IterationReport) -> float | None:
        shares: dict[int, Any] = (
            {part.milestone: part.share for part in row.self_play.score.milestones} if row.self_play.score else {}
        )
        return shares.get(milestone)

    return figure
