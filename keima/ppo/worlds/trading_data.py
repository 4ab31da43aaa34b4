"""Prices: validated histories from CSV and Parquet files, and simulated markets.

A *bar* is what a market did in one span of time: the open, high, low and close price, and the volume traded. The
simulated market is a geometric Brownian motion whose drift and volatility depend on a regime that changes at random
(Hamilton, "A new approach to the economic analysis of nonstationary time series", 1989), with jumps (Merton, "Option
pricing when underlying stock returns are discontinuous", 1976), pulled back to a fair value that follows the drift
alone. Nothing in it can be sold to anybody.
"""

import csv
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from keima.compilation.decorators import compiled
from keima.compilation.random import Streams, normal, random_below, uniform

Bars = NDArray[np.float64]  # [N, 5]: open, high, low, close, volume

OPEN, HIGH, LOW, CLOSE, VOLUME = range(5)
BAR_COLUMNS = ("open", "high", "low", "close", "volume")
TIMES = ("timestamp", "time", "datetime", "date")  # accepted names of the column of times
NO_HISTORY: Bars = np.empty((0, 5), np.float64)
MAX_GAP = 6.0  # times the usual interval of two rows; weekends stay below

# Words of a simulated market.
REGIME, FAIR, PRICE = range(3)
MARKET_WORDS = 3

# Parameters of a simulated market, as compiled code receives them.
# From DRIFT on: for each regime its drift, and then its volatility.
SWITCH, REVERSION, JUMPS, JUMP_SIZE, START, DRIFT = range(6)
REGIMES = 3
PARTS = 4  # steps within a bar, which determine its high and low
YEAR = 252.0  # bars, if one is a day


class Bar(NamedTuple):
    """A bar: its prices and its volume."""

    open: float
    high: float
    low: float
    close: float
    volume: float


class BadHistory(ValueError):
    """A file of prices cannot be used; the message names the file, the row and what is wrong there."""


@dataclass(frozen=True, kw_only=True)
class SimulatedMarket:
    """The parameters of the simulated market, per bar; a bar of the defaults resembles a day."""

    # Of the fair value's logarithm: rising, idle, falling.
    drifts: tuple[float, float, float] = (
        0.20 / YEAR,
        0.0,
        -0.30 / YEAR,
    )
    volatilities: tuple[float, float, float] = (0.010, 0.008, 0.022)
    switch: float = 0.02  # the probability of a new regime
    reversion: float = 0.05  # the share of the distance from the fair value that is recovered
    jumps: float = 0.01  # the probability of a jump
    jump_size: float = 0.04  # its standard deviation, of the price's logarithm
    start: float = 100.0  # the first price of each episode's past

    def __post_init__(self) -> None:
        """Reject impossible parameters.

        Raises:
            ValueError: a number is out of range.
        """
        shares = {"switch": self.switch, "reversion": self.reversion, "jumps": self.jumps}
        for name, value in shares.items():
            if not 0 <= value <= 1:
                raise ValueError(f"{name} must be from 0 to 1, not {value}")
        if not (min(self.volatilities) > 0 and self.start > 0 and self.jump_size >= 0):
            raise ValueError("volatilities and the start must be above 0, and jump_size must not be negative")

    def parameters(self) -> NDArray[np.float64]:
        """Return the parameters for compiled code."""
        pairs = [value for pair in zip(self.drifts, self.volatilities, strict=True) for value in pair]
        return np.array([self.switch, self.reversion, self.jumps, self.jump_size, self.start, *pairs], np.float64)


@compiled
def begin_market(parameters: NDArray[np.float64], market: NDArray[np.float64], streams: Streams, b: int) -> None:
    """Reset world ``b``'s market ``[B, MARKET_WORDS]`` to the start, in a random regime."""
    market[b, REGIME] = random_below(streams, b, REGIMES)
    market[b, FAIR] = market[b, PRICE] = math.log(parameters[START])


@compiled
def simulate_bar(parameters: NDArray[np.float64], market: NDArray[np.float64], streams: Streams, b: int) -> Bar:
    """Return the next bar of world ``b``'s market; later bars are not drawn yet."""
    if uniform(streams, b) < parameters[SWITCH]:
        market[b, REGIME] = (int(market[b, REGIME]) + 1 + random_below(streams, b, REGIMES - 1)) % REGIMES
    regime = DRIFT + 2 * int(market[b, REGIME])
    drift, volatility = parameters[regime], parameters[regime + 1]
    before = market[b, PRICE]
    price = before + 0.2 * volatility * normal(streams, b)
    if uniform(streams, b) < parameters[JUMPS]:
        # A jump of the logarithm, normal around 0 (jump diffusion, Merton 1976)
        price += parameters[JUMP_SIZE] * normal(streams, b)
    first = highest = lowest = price
    # d log p = (reversion * (log F - log p) + drift - volatility**2 / 2) dt + volatility dW: geometric Brownian motion
    # that reverts to the fair value F (after Schwartz 1997), in PARTS steps of 1 / PARTS of a bar
    pull = (parameters[REVERSION] * (market[b, FAIR] - before) + drift - 0.5 * volatility * volatility) / PARTS
    for _ in range(PARTS):
        price += pull + volatility / math.sqrt(PARTS) * normal(streams, b)
        highest, lowest = max(highest, price), min(lowest, price)
    market[b, FAIR] += drift
    market[b, PRICE] = price
    volume = 1e6 * math.exp(0.3 * normal(streams, b)) * (1.0 + abs(price - before) / volatility)
    return Bar(math.exp(first), math.exp(highest), math.exp(lowest), math.exp(price), volume)


def read_history(path: Path, *, max_gap: float = MAX_GAP) -> Bars:
    """Read bars from a CSV or Parquet file with the columns timestamp, open, high, low, close and volume, in any order
    and case.

    Args:
        path: ends in .csv, or in .parquet, which needs pyarrow.
        max_gap: the longest interval of two rows, as a multiple of the file's usual one; 0: no limit.

    Raises:
        BadHistory: rows are out of order, missing or duplicated; a price is missing, not finite or not above 0; high
            and low do not enclose open and close. The message names the row, as an editor counts the lines of a CSV
            file.
        OSError: the file is missing or unreadable.
    """
    readers = {".csv": (_read_csv, 2), ".parquet": (_read_parquet, 1)}
    if path.suffix.lower() not in readers:
        raise BadHistory(f"{path}: prices are read from .csv and .parquet files")
    reader, first_row = readers[path.suffix.lower()]
    times, bars = reader(path)
    if len(bars) < 2:
        raise BadHistory(f"{path} has {len(bars)} rows of prices, which is too few")
    problem = find_first_fault(times, bars, max_gap=max_gap)
    if problem:
        row, text = problem
        raise BadHistory(f"{path}, row {row + first_row}: {text}")
    return bars


def find_first_fault(times: NDArray[np.float64], bars: Bars, *, max_gap: float = MAX_GAP) -> tuple[int, str] | None:
    """Return the first faulty row, from 0, of bars at ``times`` ``[N]`` in seconds, and its fault."""
    finite = np.isfinite(bars)
    steps = np.diff(times, prepend=-np.inf)
    usual = float(np.median(np.diff(times))) if len(times) > 1 else 0.0
    with np.errstate(invalid="ignore"):
        body = bars[:, [OPEN, CLOSE]]
        wrong = {
            "a number is missing or not finite": ~(finite.all(1) & np.isfinite(times)),
            "a price is not above 0": (bars[:, :VOLUME] <= 0).any(1),
            "the volume is negative": bars[:, VOLUME] < 0,
            "the high is below the low": bars[:, HIGH] < bars[:, LOW],
            "the high is below the open or the close": bars[:, HIGH] < body.max(1),
            "the low is above the open or the close": bars[:, LOW] > body.min(1),
            "its time is not after that of the previous row": steps <= 0,
        }
        if max_gap:
            gap = f"rows are missing before it: the step from the previous row is over {max_gap:g} times the usual one"
            wrong[f"{gap}; if that is intended, allow it with --max-gap 0"] = (
                np.isfinite(steps) & (steps > max_gap * usual) & (usual > 0)
            )
    found = [(int(rows.argmax()), text) for text, rows in wrong.items() if rows.any()]
    return min(found, key=lambda problem: problem[0]) if found else None


def _read_csv(path: Path) -> tuple[NDArray[np.float64], Bars]:
    with path.open(newline="", encoding="utf-8-sig") as file:
        try:
            rows = [row for row in csv.reader(file) if row]
        except (csv.Error, UnicodeDecodeError) as error:
            raise BadHistory(f"{path} is not a CSV file: {error}") from error
    if not rows:
        raise BadHistory(f"{path} is empty")
    places = _column_numbers(path, rows[0])
    width = len(rows[0])
    times, bars = [], []
    for number, row in enumerate(rows[1:], 2):
        if len(row) != width:
            raise BadHistory(f"{path}, row {number}: it has {len(row)} fields, and the first row has {width}")
        try:
            times.append(_parse_time(row[places[0]]))
            bars.append([float(row[place] or "nan") for place in places[1:]])
        except ValueError as error:
            raise BadHistory(f"{path}, row {number}: {error}") from error
    return np.array(times, np.float64), np.array(bars, np.float64).reshape(-1, len(BAR_COLUMNS))


def _read_parquet(path: Path) -> tuple[NDArray[np.float64], Bars]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise BadHistory(
            f"{path}: reading Parquet files needs pyarrow: pip install pyarrow, or write the prices as CSV"
        ) from None
    try:
        table: Any = pyarrow.parquet.read_table(path)
        columns = [table.column(place).to_numpy() for place in _column_numbers(path, table.column_names)]
        times = (
            columns[0].astype("datetime64[ns]").astype(np.float64) / 1e9
            if columns[0].dtype.kind == "M"
            else _parse_numbers(columns[0])
        )
        return times, np.stack([column.astype(np.float64) for column in columns[1:]], axis=1)
    except (pyarrow.ArrowException, ValueError, TypeError) as error:
        raise BadHistory(f"{path}: {error}") from error


def _parse_numbers(column: Iterable[Any]) -> NDArray[np.float64]:
    return np.array([_parse_time(str(value)) for value in column], np.float64)


def _column_numbers(path: Path, names: Sequence[str]) -> list[int]:
    """Return the column numbers of the times and of each of ``BAR_COLUMNS``."""
    known = [name.strip().lower() for name in names]
    time = next((name for name in TIMES if name in known), None)
    missing = ([TIMES[0]] if time is None else []) + [name for name in BAR_COLUMNS if name not in known]
    if time is None or missing:
        raise BadHistory(f"{path}: there is no column {', '.join(missing)}; it has {', '.join(known)}")
    return [known.index(name) for name in (time, *BAR_COLUMNS)]


def _parse_time(text: str) -> float:
    """Parse a time as seconds since 1970: a number of seconds (or of milliseconds), or an ISO date.

    Raises:
        ValueError: it is neither.
    """
    try:
        number = float(text)
    except ValueError:
        try:
            moment = datetime.fromisoformat(text.strip())
        except ValueError:
            raise ValueError(
                f"{text!r} is not a time: write seconds since 1970 or a date such as 2024-01-31 09:30:00"
            ) from None
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    return number / 1e3 if number > 1e11 else number
