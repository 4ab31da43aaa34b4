"""The results of a PPO run, as lines, curves, and a page."""

from collections.abc import Sequence
from pathlib import Path

from rich.text import Text

from training.ppo.worlds.trading_kernels import LONG_CLOSED, LONG_OPENED, SHORT_CLOSED, SHORT_OPENED, TRADES
from views.charts import FAINT, TITLE, count, duration, table
from views.metrics import PPO_CHARTS, PPO_METRICS, columns, metric_chart, money
from views.page import as_html, filled
from views.ppo_files import LastEpisode, read_episode
from views.ppo_rounds import Round
from views.svg import ChartLayout, Marks, Series, laid_out
from views.views import trends

PART_AT_END = 10  # the summary's means are over the last tenth of the rounds
GREEN, RED = 2, 4  # of the page's colours
TRADE_MARKS = (  # purchases point upwards; closing trades are hollow
    (TRADES[LONG_OPENED], GREEN, True, False),
    (TRADES[LONG_CLOSED], GREEN, False, True),
    (TRADES[SHORT_OPENED], RED, False, False),
    (TRADES[SHORT_CLOSED], RED, True, True),
)

Rounds = Sequence[Round]


PPO_COLUMNS = columns(PPO_METRICS)
SUMMARY_MEANS = ("episodes/reward", "episodes/profit", "episodes/win_rate")  # of the summary
TRENDS = ("episodes/reward", "learning/entropy", "learning/value_loss")  # with a sparkline


def mean_at_end(rounds: Rounds, name: str) -> float | None:
    """The mean of a figure over the last tenth of the rounds that have it."""
    known = [row[name] for row in rounds if row.get(name) is not None]
    last = known[-max(1, len(known) // PART_AT_END) :]
    return sum(last) / len(last) if last else None


def summary(rounds: Rounds, folder: Path, episode: LastEpisode | None) -> list[tuple[str, str]]:
    """The results of the run, as titles and texts."""
    last = rounds[-1]
    lines = [("Run", str(folder)), ("Episodes", f"{last['run/episodes_over']:,.0f} in {duration(last['run/seconds'])}")]
    lines.append(("Steps", f"{last['run/total_steps']:,.0f} of all worlds"))
    for metric in (metric for metric in PPO_METRICS if metric.name in SUMMARY_MEANS):
        mean = mean_at_end(rounds, metric.name)
        if mean is not None:
            shown = f"{metric.format(mean)}, the mean over the last tenth of the rounds"
            lines.append((f"{metric.title} at the end", shown))
    if episode:
        market = episode.capital * (episode.closes[-1] / episode.closes[0] - 1)
        own = money(episode.worths[-1] - episode.capital)
        lines.append(("Last whole episode", f"{own}; who had bought and held: {money(market)}"))
    return lines


def training_curves(rounds: Rounds) -> list[ChartLayout]:
    """All curves that have two points, over the steps of all environments."""
    steps = [row["run/total_steps"] for row in rounds]
    return metric_chart(PPO_CHARTS, PPO_METRICS, rounds, steps, x_name="steps", show_x=count)


def episode_curves(episode: LastEpisode) -> list[ChartLayout]:
    """The account's worth, and its trades on the prices; empty for an episode of one bar."""

    def series(name: str, values: Sequence[float]) -> Series:
        return Series(name=name, points=[(float(bar), value) for bar, value in enumerate(values, 1)])

    held = [episode.capital * close / episode.closes[0] for close in episode.closes]
    marks = [
        Marks(
            name=kind,
            points=[(trade.bar, trade.price) for trade in episode.trades if trade.kind == kind],
            colour=colour,
            up=up,
            hollow=hollow,
        )
        for kind, colour, up, hollow in TRADE_MARKS
    ]
    drawn = [
        laid_out(
            "Worth",
            [series("account", episode.worths), series("buy and hold", held)],
            x_name="bar",
            show="${:,.0f}".format,
        ),
        laid_out("Price", [series("", episode.closes)], x_name="bar", show="{:,.4g}".format, marks=marks),
    ]
    return [curve for curve in drawn if curve]


def curves(rounds: Rounds, folder: Path) -> list[ChartLayout]:
    """All curves."""
    episode = read_episode(folder)
    return [*training_curves(rounds), *(episode_curves(episode) if episode else [])]


def page(rounds: Rounds, folder: Path) -> str:
    """The run as one self-contained page."""
    episode = read_episode(folder)
    drawn = episode_curves(episode) if episode else []
    sections = [("The last whole episode", drawn), ("Training", training_curves(rounds))]
    return filled(
        folder.resolve().name, summary(rounds, folder, episode), sections, as_html("Rounds", PPO_COLUMNS, rounds)
    )


def report(rounds: Rounds, folder: Path, *, last: int, width: int) -> list[Text]:
    """The table of the ``last`` rounds, sparklines over all of them, and the summary."""
    lines = [Text(f"The last {last} of {len(rounds):,} rounds:", FAINT)] if len(rounds) > last else []
    lines += [*table(PPO_COLUMNS, rounds[-last:], width), Text()]
    lines += trends(TRENDS, PPO_METRICS, rounds, width)
    titles = summary(rounds, folder, read_episode(folder))
    return [*lines, Text(), *(Text.assemble((f"{title:<20}", FAINT), (text, TITLE)) for title, text in titles)]
