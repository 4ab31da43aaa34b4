"""The results of a PPO run, as lines, curves, and a page."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rich.text import Text

from keima.base.reports.formats import FAINT, TITLE, format_duration, table_lines
from keima.ppo.files import LastEpisode, read_episode
from keima.ppo.rounds import Round
from keima.ppo.worlds.trading_kernels import LONG_CLOSED, LONG_OPENED, SHORT_CLOSED, SHORT_OPENED, TRADES
from keima.report.charts.page import fill_page, rows_to_html, summary_to_html
from keima.report.charts.png import draw_picture
from keima.report.charts.run_charts import AXES as ALL_AXES
from keima.report.charts.run_charts import Curve, DrawnChart, RunCharts, make_ppo_charts, round_value
from keima.report.metrics import PPO_METRICS, format_money, make_columns
from keima.report.tables import trend_lines

PART_AT_END = 10  # the summary's means are over the last tenth of the rounds
GREEN, RED = 2, 4  # colours of charts
TRADE_MARKS = (  # purchases point upwards; closing trades are hollow
    (TRADES[LONG_OPENED], GREEN, "up", False),
    (TRADES[LONG_CLOSED], GREEN, "down", True),
    (TRADES[SHORT_OPENED], RED, "down", False),
    (TRADES[SHORT_CLOSED], RED, "up", True),
)
AXES = {"run/total_steps": "steps"} | ALL_AXES  # steps first
EPISODE, BAR = "The last whole episode", "episode/bar"

Rounds = Sequence[Round]


PPO_COLUMNS = make_columns(PPO_METRICS)
SUMMARY_MEANS = ("episodes/reward", "episodes/profit", "episodes/win_rate")  # of the summary
TRENDS = ("episodes/reward", "learning/entropy", "learning/value_loss")  # with a sparkline


def mean_at_end(rounds: Rounds, name: str) -> float | None:
    """Return the mean of a metric over the last tenth of the rounds that have it."""
    known = [row[name] for row in rounds if row.get(name) is not None]
    last = known[-max(1, len(known) // PART_AT_END) :]
    return sum(last) / len(last) if last else None


def summarize_run(rounds: Rounds, folder: Path) -> list[tuple[str, str]]:
    """Return the results of the run, as titles and texts."""
    last, episode = rounds[-1], read_episode(folder)
    lines = [
        ("Run", str(folder)),
        ("Episodes", f"{last['run/episodes_over']:,.0f} in {format_duration(last['run/seconds'])}"),
    ]
    lines.append(("Steps", f"{last['run/total_steps']:,.0f} of all worlds"))
    for metric in (metric for metric in PPO_METRICS if metric.name in SUMMARY_MEANS):
        mean = mean_at_end(rounds, metric.name)
        if mean is not None:
            shown = f"{metric.format(mean)}, the mean over the last tenth of the rounds"
            lines.append((f"{metric.title} at the end", shown))
    if episode:
        market = episode.capital * (episode.closes[-1] / episode.closes[0] - 1)
        own = format_money(episode.account_values[-1] - episode.capital)
        lines.append(("Last whole episode", f"{own}; buy and hold: {format_money(market)}"))
    return lines


def make_episode_charts(episode: LastEpisode) -> tuple[list[DrawnChart], dict[str, list[float | None]]]:
    """Draw the account's value, and its trades on the prices, with their metrics; empty for an episode of one bar."""
    if len(episode.closes) < 2:
        return [], {}
    kinds = {trade.kind for trade in episode.trades}
    marks = [
        Curve(name=kind, metric=f"episode/{kind}", mark=mark, hollow=hollow, colour=colour)
        for kind, colour, mark, hollow in TRADE_MARKS
        if kind in kinds
    ]
    value = (Curve(name="account", metric="episode/account"), Curve(name="buy and hold", metric="episode/held"))
    price = (Curve(name="", metric="episode/price"), *marks)
    charts = [
        DrawnChart(section=EPISODE, title=title, unit=unit, curves=curves, over=BAR, over_name="bar")
        for title, unit, curves in (("Account value", "money", value), ("Price", "", price))
    ]
    traded = {kind: {trade.bar: trade.price for trade in episode.trades if trade.kind == kind} for kind in kinds}
    bars = range(1, len(episode.closes) + 1)
    return charts, {
        BAR: list(map(float, bars)),
        "episode/account": [round_value(value) for value in episode.account_values],
        "episode/held": [round_value(episode.capital * close / episode.closes[0]) for close in episode.closes],
        "episode/price": [round_value(close) for close in episode.closes],
        **{f"episode/{kind}": [round_value(prices.get(bar)) for bar in bars] for kind, prices in traded.items()},
    }


def make_charts(rounds: Rounds, folder: Path) -> RunCharts:
    """Return all charts."""
    training, episode = make_ppo_charts(folder.resolve().name, rounds), read_episode(folder)
    drawn, metrics = make_episode_charts(episode) if episode else ([], {})
    return replace(training, charts=[*drawn, *training.charts], metrics={**metrics, **training.metrics})


def make_page(rounds: Rounds, folder: Path) -> str:
    """Return the run as one self-contained page."""
    name, table_of_rounds = folder.resolve().name, rows_to_html("Rounds", PPO_COLUMNS, rounds)
    return fill_page(
        name, summary_to_html(summarize_run(rounds, folder)), [make_charts(rounds, folder)], AXES, table_of_rounds
    )


def draw_png(rounds: Rounds, folder: Path) -> bytes:
    """Draw the run's charts as a PNG file."""
    return draw_picture(folder.resolve().name, [make_charts(rounds, folder)], next(iter(AXES.items())))


def make_report(rounds: Rounds, folder: Path, *, last: int, width: int) -> list[Text]:
    """Return the table of the ``last`` rounds, sparklines over all of them, and the summary."""
    lines = [Text(f"The last {last} of {len(rounds):,} rounds:", FAINT)] if len(rounds) > last else []
    lines += [*table_lines(PPO_COLUMNS, rounds[-last:], width), Text()]
    lines += trend_lines(TRENDS, PPO_METRICS, rounds, width)
    titles = summarize_run(rounds, folder)
    return [*lines, Text(), *(Text.assemble((f"{title:<20}", FAINT), (text, TITLE)) for title, text in titles)]
