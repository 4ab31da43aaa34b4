"""The files of a PPO run for other programs: training_stats.json, TensorBoard's events, and the last whole episode."""

import json
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import Field, TypeAdapter, ValidationError

from keima.base.files import FileTooLarge, read_limited, write_atomically
from keima.ppo.reports import RoundReport
from keima.ppo.worlds.trading import TradingMarkets
from keima.ppo.worlds.trading_kernels import NOTHING, TRADES
from keima.report.files.row_file import MODE, ROW_LIMIT, RowFile
from keima.report.files.tensorboard import EventsWriter
from keima.report.metrics import PPO_METRICS

EPISODE_NAME = "last_episode.json"
WRITE_SECONDS = 5.0  # between two writes of the last episode


@dataclass(frozen=True, kw_only=True)
class Trade:
    """An executed order."""

    bar: int  # of the episode, from 1
    kind: str  # one of ``TRADES``
    price: float


@dataclass(frozen=True, kw_only=True)
class LastEpisode:
    """One account and its market, bar by bar."""

    episodes_over: int  # of all accounts, at the time of writing
    capital: float
    closes: tuple[float, ...]
    # At these prices; the key is that of all versions.
    account_values: Annotated[tuple[float, ...], Field(validation_alias="worths", serialization_alias="worths")]
    trades: tuple[Trade, ...]


_EPISODE = TypeAdapter(LastEpisode)


def read_episode(folder: Path) -> LastEpisode | None:
    """Read the episode that a run has saved; None if there is none, or it cannot be read."""
    try:
        return _EPISODE.validate_json(read_limited(folder / EPISODE_NAME, ROW_LIMIT))
    except (OSError, FileTooLarge, ValidationError):
        return None


class PPOStats:
    """Writes training_stats.json: a list of rounds, one per line, each a flat object."""

    def __init__(self, path: Path) -> None:
        """Continue the list at ``path``, if there is one."""
        self._rows = RowFile(path, key="round")

    def round(self, report: RoundReport) -> None:
        """Add the round, replacing it and later ones that a crashed session has written."""
        metrics = {name: value if math.isfinite(value) else None for name, value in report.scalars().items()}
        self._rows.write_row(report.round, json.dumps({"round": report.round, **metrics}).encode())

    def close(self) -> None:
        """Do nothing: no file is left open."""


class PPOEvents:
    """Writes every metric for TensorBoard, by environment steps."""

    def __init__(self, folder: Path) -> None:
        self._events = EventsWriter(folder, PPO_METRICS)

    def round(self, report: RoundReport) -> None:
        """Append the round."""
        self._events.write(report.total_steps, report.scalars())

    def close(self) -> None:
        """Do nothing: no file is left open."""


class EpisodeFile:
    """Saves the last whole episode of the first account, for the run's page."""

    def __init__(self, path: Path, markets: TradingMarkets, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._path, self._markets, self._clock = path, markets, clock
        self._written, self._episodes_over = -math.inf, 0

    def round(self, report: RoundReport) -> None:
        """Write the episode, from time to time."""
        self._episodes_over = report.episodes_over
        if self._clock() - self._written >= WRITE_SECONDS:
            self._write()

    def close(self) -> None:
        """Write the last episode."""
        self._write()

    def _write(self) -> None:
        seen = self._markets.last_episode()
        if seen is None:
            return
        self._written = self._clock()
        made = [i for i, trade in enumerate(seen.trades) if trade != NOTHING]
        episode = LastEpisode(
            episodes_over=self._episodes_over,
            capital=self._markets.settings.capital,
            closes=tuple(seen.closes.tolist()),
            account_values=tuple(seen.account_values.tolist()),
            trades=tuple(Trade(bar=i + 1, kind=TRADES[seen.trades[i]], price=float(seen.prices[i])) for i in made),
        )
        write_atomically(self._path, _EPISODE.dump_json(episode, by_alias=True), mode=MODE, durable=False)
