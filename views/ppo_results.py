"""What a PPO run has reached, as lines, as curves, and as a page."""

from collections.abc import Callable, Sequence
from pathlib import Path

from rich.text import Text

from training.ppo.worlds.trading_kernels import LONG_CLOSED, LONG_OPENED, SHORT_CLOSED, SHORT_OPENED, TRADES
from views.charts import FAINT, GOOD, TITLE, Column, count, duration, percent, rate, sparkline, table
from views.page import as_html, filled
from views.ppo import money
from views.ppo_files import LastEpisode, Round, read_episode
from views.svg import Layout, Marks, Series, laid_out

PART_AT_END = 10  # the summary's means are over the last tenth of the rounds
GREEN, RED = 2, 4  # of the page's colours
KINDS = (  # of trades: who buys points upwards, who closes is hollow
    (TRADES[LONG_OPENED], GREEN, True, False),
    (TRADES[LONG_CLOSED], GREEN, False, True),
    (TRADES[SHORT_OPENED], RED, False, False),
    (TRADES[SHORT_CLOSED], RED, True, True),
)

Rounds = Sequence[Round]


def _cell(name: str, show: Callable[[float], str]) -> Callable[[Round], str]:
    return lambda row: "" if row.get(name) is None else show(row[name])


COLUMNS: tuple[Column[Round], ...] = (
    Column(title="Round", cell=lambda row: str(row["round"])),
    Column(title="Episodes", cell=_cell("run/episodes_over", "{:,.0f}".format)),
    Column(title="Steps", cell=_cell("run/total_steps", count)),
    Column(title="Reward", cell=_cell("episodes/reward", "{:.2f}".format)),
    Column(title="Return", cell=_cell("episodes/profit", money)),
    Column(title="Win rate", cell=_cell("episodes/win_rate", percent)),
    Column(title="Closed", cell=_cell("episodes/closed", rate), rank=2),
    Column(title="Fees", cell=_cell("episodes/fees", money), rank=3),
    Column(title="Entropy", cell=_cell("learning/entropy", "{:.3f}".format), rank=1),
    Column(title="KL", cell=_cell("learning/approx_kl", "{:.4f}".format), rank=1),
    Column(title="Value loss", cell=_cell("learning/value_loss", "{:.3f}".format), rank=2),
    Column(title="Explained", cell=_cell("learning/explained_variance", percent), rank=2),
    Column(title="steps/s", cell=_cell("run/steps_per_second", count)),
)


def mean_at_end(rounds: Rounds, name: str) -> float | None:
    """The mean of a figure over the last tenth of the rounds that have it."""
    known = [row[name] for row in rounds if row.get(name) is not None]
    last = known[-max(1, len(known) // PART_AT_END) :]
    return sum(last) / len(last) if last else None


def summary(rounds: Rounds, folder: Path, episode: LastEpisode | None) -> list[tuple[str, str]]:
    """What the run has reached, as titles and texts."""
    last = rounds[-1]
    lines = [("Run", str(folder)), ("Episodes", f"{last['run/episodes_over']:,.0f} in {duration(last['run/seconds'])}")]
    lines.append(("Steps", f"{last['run/total_steps']:,.0f} of all worlds"))
    figures = (
        ("Reward", "episodes/reward", "{:.2f}".format),
        ("Return", "episodes/profit", money),
        ("Win rate", "episodes/win_rate", percent),
    )
    for title, name, show in figures:
        mean = mean_at_end(rounds, name)
        if mean is not None:
            lines.append((f"{title} at the end", f"{show(mean)}, the mean over the last tenth of the rounds"))
    if episode:
        market = episode.capital * (episode.closes[-1] / episode.closes[0] - 1)
        own = money(episode.worths[-1] - episode.capital)
        lines.append(("Last whole episode", f"{own}; who had bought and held: {money(market)}"))
    return lines


def training_curves(rounds: Rounds) -> list[Layout]:
    """All curves over the steps of the worlds of which there are two points."""

    def series(name: str, figure: str) -> Series:
        known = [(row["run/total_steps"], row[figure]) for row in rounds if row.get(figure) is not None]
        return Series(name=name, points=known)

    def draw(title: str, show: Callable[[float], str], *curves: Series) -> Layout | None:
        return laid_out(title, curves, x_name="steps", show=show, show_x=count)

    drawn = [
        draw("Reward of an episode", rate, series("", "episodes/reward")),
        draw("Return of an episode", money, series("", "episodes/profit")),
        draw("Win rate", percent, series("", "episodes/win_rate")),
        draw("Trades closed in an episode", rate, series("", "episodes/closed")),
        draw("Loss", "{:.3g}".format, series("policy", "learning/policy_loss"), series("value", "learning/value_loss")),
        draw("Entropy of the policy", "{:.2f}".format, series("", "learning/entropy")),
        draw("How far a round moves the policy (KL)", "{:.2g}".format, series("", "learning/approx_kl")),
        draw("Returns that the values explain", percent, series("", "learning/explained_variance")),
        draw("Steps per second", count, series("", "run/steps_per_second")),
    ]
    return [curve for curve in drawn if curve]


def episode_curves(episode: LastEpisode) -> list[Layout]:
    """What the account was worth, and its trades drawn on the prices; none of an episode of one bar."""

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
        for kind, colour, up, hollow in KINDS
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


def curves(rounds: Rounds, folder: Path) -> list[Layout]:
    """Everything that can be drawn."""
    episode = read_episode(folder)
    return [*training_curves(rounds), *(episode_curves(episode) if episode else [])]


def page(rounds: Rounds, folder: Path) -> str:
    """The run as one page that loads nothing."""
    episode = read_episode(folder)
    drawn = episode_curves(episode) if episode else []
    sections = [("The last whole episode", drawn), ("Training", training_curves(rounds))]
    return filled(folder.resolve().name, summary(rounds, folder, episode), sections, as_html("Rounds", COLUMNS, rounds))


def report(rounds: Rounds, folder: Path, *, last: int, width: int) -> list[Text]:
    """The table of the ``last`` rounds, sparklines over all of them, and the summary."""
    lines = [Text(f"The last {last} of {len(rounds):,} rounds:", FAINT)] if len(rounds) > last else []
    lines += [*table(COLUMNS, rounds[-last:], width), Text()]
    for title, name in (
        ("Reward", "episodes/reward"),
        ("Entropy", "learning/entropy"),
        ("Value loss", "learning/value_loss"),
    ):
        values = [row.get(name) for row in rounds]
        lines.append(Text.assemble((f"{title:<12}", FAINT), (sparkline(values, width - 12), GOOD)))
    titles = summary(rounds, folder, read_episode(folder))
    return [*lines, Text(), *(Text.assemble((f"{title:<20}", FAINT), (text, TITLE)) for title, text in titles)]
