"""The observers of a PPO run: lines and a live view for people, and files for programs (``ppo_files.py``)."""

import logging
import math
from pathlib import Path

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from keima.base.reports.formats import format_duration, format_rate, progress_bar
from keima.base.run_folder import STATS_NAME
from keima.ppo.files import EPISODE_NAME, EpisodeFile, PPOEvents, PPOStats
from keima.ppo.reports import EpisodesReport, PPOObserver, RoundReport
from keima.ppo.worlds.trading import TradingMarkets
from keima.report import shield_observer
from keima.report.files.run_files import EVENTS_FOLDER
from keima.report.metrics import format_money

log = logging.getLogger(__name__)


def episode_line(report: RoundReport, episodes: EpisodesReport, device: str) -> str:
    """Return the means over some episodes, in the guide's words; trades are per episode, too.

    Args:
        device: what the ranks are called where there are several, "GPUs" or "Ranks".
    """
    metrics, count = episodes.metrics, max(1, episodes.count)
    parts = [f"Reward: {episodes.mean():.2f}"]
    if "profit" in metrics:
        share = metrics["won"] / metrics["closed"] if metrics["closed"] else 0.0
        trades = f"({metrics['closed'] / count:.0f} closed, {metrics['open'] / count:.0f} open)"
        parts += [f"Return: {format_money(episodes.mean('profit'))}", f"Win Rate: {share:.1%} {trades}"]
    parts.append(f"Steps: {episodes.steps / count:.0f}")
    several = f" | {device}: {report.world_size}" if report.world_size > 1 else ""
    return f"Episode {report.episodes_over}/{report.episodes_planned} - {', '.join(parts)}{several}"


class EpisodeLines:
    """Prints and logs a line every ``every`` episodes; on a terminal it shows the run's state below them.

    Args:
        console: where.
        every: episodes.
        device: what the ranks are called.
    """

    def __init__(self, console: Console, *, every: int, device: str) -> None:
        self._console, self._every, self._device = console, every, device
        self._since: EpisodesReport | None = None
        self._reported = 0
        self._live = Live(console=console, auto_refresh=False, transient=True) if console.is_terminal else None

    def round(self, report: RoundReport) -> None:
        """Print a line if one is due."""
        self._since = report.episodes if self._since is None else self._since + report.episodes
        if self._live:
            self._live.start()
            self._live.update(status_table(report), refresh=True)
        due = report.episodes_over // self._every > self._reported or report.episodes_over == report.episodes_planned
        if due and self._since.count:
            line = episode_line(report, self._since, self._device)
            log.info(line)
            self._console.print(line, markup=False, highlight=False, soft_wrap=True)
            self._since, self._reported = None, report.episodes_over // self._every

    def close(self) -> None:
        """Remove the live view; the lines stay."""
        if self._live:
            self._live.stop()


def status_table(report: RoundReport) -> Table:
    """Return the state of the run, as a few lines."""
    share = report.episodes_over / max(1, report.episodes_planned)
    left = report.seconds * (1 - share) / share if share else math.inf
    learning = report.learning
    view = Table.grid(padding=(0, 2))
    view.add_row("run", progress_bar(share, 1.0, 30) + Text(f" {share:.0%}, about {format_duration(left)} left"))
    view.add_row(
        "speed",
        f"{format_rate(report.steps_per_second)} steps/s, {report.total_steps:,} steps, "
        f"{report.acting_share:.0%} acting",
    )
    losses = (
        f"policy {learning['policy_loss']:.4f}, value {learning['value_loss']:.4f}, entropy {learning['entropy']:.3f}"
    )
    view.add_row("losses", f"{losses}, gradients {learning['grad_norm']:.2f}")
    moved = f"KL {learning['approx_kl']:.4f}, clipped {learning['clip_fraction']:.1%}"
    view.add_row("policy", f"{moved}; values explain {report.explained_variance:.0%} of returns")
    return view


def ppo_observers(
    folder: Path, console: Console, markets: TradingMarkets, *, every: int, device: str
) -> list[PPOObserver]:
    """Return the observers of a run whose files go to ``folder``; their failures never stop it."""
    folder.mkdir(parents=True, exist_ok=True)
    observers: list[PPOObserver] = [
        PPOStats(folder / STATS_NAME),
        PPOEvents(folder / EVENTS_FOLDER),
        EpisodeFile(folder / EPISODE_NAME, markets),
        EpisodeLines(console, every=every, device=device),
    ]
    return [shield_observer(observer) for observer in observers]
