"""A market to trade on with the money of nobody: many accounts at once, stepped by one compiled kernel.

In each bar an account may *hold*, *buy* or *sell*. Who decides has seen bars up to the close of the last one; the order is carried out
at the open of the next, worsened by the slippage and charged the fee. A buy closes the oldest short position, or opens a long one; a
sell the other way round. Each opened position is worth a fixed share of the capital, and an order that would need more than the
account can bear is refused. An episode is a window of bars: it is *truncated* at its end, where positions may still be open, and
*terminated* when the account is ruined. The reward is the change of the account's worth, in per cent of the capital.

Prices come from a history, of which each episode is a window at random, or are simulated as they are needed: what is not drawn yet
cannot be seen. Of a history, no kernel reads a row after the bar that has just closed.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from games.compiled import compiled
from games.random import Streams, below
from games.trading_data import (
    CLOSE,
    HIGH,
    LOW,
    MARKET_WORDS,
    NO_HISTORY,
    OPEN,
    VOLUME,
    Bars,
    SimulatedMarket,
    begin_market,
    simulated_bar,
)
from games.worlds import ArrayWorlds, Seeds, empty_moment

HOLD, BUY, SELL = range(3)
ACTIONS = ("hold", "buy", "sell")
FIGURES = ("profit", "closed", "won", "open", "fees")  # of an episode: money, positions closed, of those with profit, still open, money

# What an observation shows. Prices are as logarithms, in units of the market's recent volatility; the account is as shares.
FEATURES = (
    "last_return",  # of the last bar, from close to close
    "bar_range",  # from low to high
    "bar_close",  # where the close lies between them, from -1 to 1
    "trend_5",  # mean return of about so many bars
    "trend_20",
    "trend_60",
    "from_mean",  # the close from its mean of about 60 bars
    "volatility",  # how large it is, as the logarithm of per cent
    "volume",  # of the last bar, as the logarithm of its ratio to what is usual
    "position",  # long less short positions, of the most that are allowed
    "open_profit",  # of the open positions, ten times the share of the capital
    "profit",  # of the account since the episode began, likewise
    "elapsed",  # how much of the window is over
)

# Words of an account, and of what is known of its market.
CASH, WORTH, FEES = range(3)
ACCOUNT_WORDS = 3
LAST, RANGE, PLACE, FAST, MIDDLE, SLOW, MEAN, SQUARE, LOG_VOLUME, VOLUME_CHANGE, LOG_CLOSE, OPENED, CLOSED_AT = range(13)
KNOWN_WORDS = 13
TIME, ROW, LOTS, CLOSED, WON = range(5)  # bars of this episode, the row of the history that comes next, positions open, closed, won
COUNTER_WORDS = 5
UNITS, PAID = range(2)  # of a position: the units, negative if short, and the money it has cost or brought, fees counted

LIMIT = 100.0  # nothing that is observed is larger
PAST = 64  # bars before an episode that are only looked at
CAPITAL, LOT, FEE, SLIPPAGE, EXPOSURE, RUIN = range(6)  # of the rules, as compiled code receives them
WINDOW, MAX_POSITIONS, SHORT = range(3)  # of the rules that are whole numbers


@dataclass(frozen=True, kw_only=True)
class TradingSettings:
    """The rules of trading."""

    window: int = 256  # bars in an episode
    capital: float = 10_000.0  # money at the start of each
    max_positions: int = 5  # open at once
    lot: float = 0.2  # of the capital, that each position is worth when it is opened
    fee: float = 0.0005  # of what is traded
    slippage: float = 0.0002  # of the price, always to the worse
    short: bool = True  # whether selling may open positions
    exposure: float = 1.0  # all positions together may be worth so many times the account, when one is opened
    ruin: float = 0.5  # of the capital: at so little, an episode is terminated

    def __post_init__(self) -> None:
        """Refuse rules that cannot be.

        Raises:
            ValueError: a number is out of range.
        """
        if self.window < 2 or self.max_positions < 1:
            raise ValueError("a window needs 2 bars and max_positions must be 1 at least")
        if not (self.capital > 0 and self.lot > 0 and self.exposure > 0):
            raise ValueError("capital, lot and exposure must be above 0")
        for name, value in (("fee", self.fee), ("slippage", self.slippage), ("ruin", self.ruin)):
            if not 0 <= value < 1:
                raise ValueError(f"{name} is a share, from 0 to below 1, not {value}")


class TradingMarkets(ArrayWorlds):
    """B accounts, each on a market of its own; see ``games.worlds.Worlds``.

    Args:
        seeds: uint64 ``[B]``: where the random numbers of each world start.
        settings: the rules of trading.
        history: bars ``[N, 5]`` as ``read_history`` gives them; None: simulated markets.
        market: what simulated markets are like.

    Raises:
        ValueError: the history is shorter than what is looked at before an episode and its window.
    """

    num_actions = len(ACTIONS)
    figure_names: tuple[str, ...] = FIGURES

    def __init__(
        self,
        seeds: Seeds,
        settings: TradingSettings | None = None,
        *,
        history: Bars | None = None,
        market: SimulatedMarket | None = None,
    ) -> None:
        rules = settings or TradingSettings()
        needed = PAST + rules.window
        if history is not None and len(history) < needed:
            raise ValueError(f"a history of {len(history)} bars is too short: episodes of {rules.window} bars need {needed}")
        count = len(seeds)
        self._rules = (
            np.ascontiguousarray(NO_HISTORY if history is None else history, np.float64),
            (market or SimulatedMarket()).parameters(),
            np.array([rules.capital, rules.lot, rules.fee, rules.slippage, rules.exposure, rules.ruin], np.float64),
            np.array([rules.window, rules.max_positions, rules.short], np.int64),
        )
        world: dict[str, NDArray[Any]] = {
            "streams": np.array(seeds, np.uint64),
            "markets": np.zeros((count, MARKET_WORDS)),
            "accounts": np.zeros((count, ACCOUNT_WORDS)),
            "known": np.zeros((count, KNOWN_WORDS)),
            "counters": np.zeros((count, COUNTER_WORDS), np.int64),
            "lots": np.zeros((count, rules.max_positions, 2)),
        }
        super().__init__(empty_moment(count, len(FEATURES), len(FIGURES)), world)
        self._accounts, self._known, self._lots = world["accounts"], world["known"], world["lots"]
        self._world: list[Any] = [*self._rules, *world.values()]
        arguments = [*self._world, self.moment.observations]
        begin_all(*arguments)

    def step(self, actions: NDArray[np.int64]) -> None:
        """Carry out the order of each account, from ``ACTIONS``; ``moment`` says what came of it."""
        arguments = [*self._world, actions, *self._shown]
        step_all(*arguments)

    @property
    def close(self) -> NDArray[np.float64]:
        """The last price of each market, ``[B]``."""
        return self._known[:, CLOSED_AT].copy()

    @property
    def worth(self) -> NDArray[np.float64]:
        """What each account is worth at that price, ``[B]``."""
        return self._accounts[:, WORTH].copy()

    @property
    def positions(self) -> NDArray[np.int64]:
        """Long less short positions of each account, ``[B]``."""
        return np.sign(self._lots[:, :, UNITS]).sum(1).astype(np.int64)


@compiled
def next_bar(
    history: Bars,
    market: NDArray[np.float64],
    streams: Streams,
    markets: NDArray[np.float64],
    counters: NDArray[np.int64],
    b: int,
) -> tuple[float, float, float, float, float]:
    """Let a bar go by: open, high, low, close, volume."""
    if len(history) == 0:
        return simulated_bar(market, markets, streams, b)
    row = counters[b, ROW]
    counters[b, ROW] = row + 1
    return history[row, OPEN], history[row, HIGH], history[row, LOW], history[row, CLOSE], history[row, VOLUME]


@compiled
def take_in(known: NDArray[np.float64], b: int, first: float, high: float, low: float, close: float, volume: float) -> None:
    """Know a bar that has closed; means forget as if they were of the last 5, 20 and 60 bars."""
    logarithm = math.log(close)
    change = logarithm - known[b, LOG_CLOSE]
    log_volume = math.log(volume + 1.0)
    known[b, OPENED], known[b, CLOSED_AT] = first, close
    known[b, LAST], known[b, LOG_CLOSE] = change, logarithm
    known[b, RANGE] = math.log(high / low)
    known[b, PLACE] = 2.0 * (close - low) / (high - low) - 1.0 if high > low else 0.0
    known[b, FAST] += (change - known[b, FAST]) / 3.0
    known[b, MIDDLE] += (change - known[b, MIDDLE]) / 10.5
    known[b, SLOW] += (change - known[b, SLOW]) / 30.5
    known[b, MEAN] += (logarithm - known[b, MEAN]) / 30.5
    known[b, SQUARE] += (change * change - known[b, SQUARE]) / 30.5
    known[b, VOLUME_CHANGE] = log_volume - known[b, LOG_VOLUME]
    known[b, LOG_VOLUME] += known[b, VOLUME_CHANGE] / 30.5


@compiled
def begin_one(
    history: Bars,
    market: NDArray[np.float64],
    shares: NDArray[np.float64],
    counts: NDArray[np.int64],
    streams: Streams,
    markets: NDArray[np.float64],
    accounts: NDArray[np.float64],
    known: NDArray[np.float64],
    counters: NDArray[np.int64],
    lots: NDArray[np.float64],
    b: int,
) -> None:
    """Begin an episode: another window of the history, or another simulated market, of which the past is looked at."""
    counters[b], lots[b], known[b] = 0, 0.0, 0.0
    accounts[b, CASH] = accounts[b, WORTH] = shares[CAPITAL]
    accounts[b, FEES] = 0.0
    if len(history) == 0:
        begin_market(market, markets, streams, b)
    else:
        counters[b, ROW] = below(streams, b, len(history) - PAST - counts[WINDOW] + 1)
    first, high, low, close, volume = next_bar(history, market, streams, markets, counters, b)
    known[b, LOG_CLOSE] = known[b, MEAN] = math.log(first)
    known[b, SQUARE] = (0.5 * math.log(high / low)) ** 2
    known[b, LOG_VOLUME] = math.log(volume + 1.0)
    take_in(known, b, first, high, low, close, volume)
    for _ in range(PAST - 1):
        first, high, low, close, volume = next_bar(history, market, streams, markets, counters, b)
        take_in(known, b, first, high, low, close, volume)


@compiled
def net_units(lots: NDArray[np.float64], held: int, b: int) -> tuple[float, float]:
    """The units of all open positions added up, with their signs and without."""
    net = gross = 0.0
    for i in range(held):
        net += lots[b, i, UNITS]
        gross += abs(lots[b, i, UNITS])
    return net, gross


@compiled
def close_oldest(
    accounts: NDArray[np.float64], counters: NDArray[np.int64], lots: NDArray[np.float64], b: int, price: float, fee: float
) -> None:
    """Close the position that was opened first, at this price."""
    units = lots[b, 0, UNITS]
    charge = abs(units) * price * fee
    proceeds = units * price - charge
    accounts[b, CASH] += proceeds
    accounts[b, FEES] += charge
    counters[b, CLOSED] += 1
    counters[b, WON] += proceeds > lots[b, 0, PAID]
    for i in range(counters[b, LOTS] - 1):
        lots[b, i, UNITS], lots[b, i, PAID] = lots[b, i + 1, UNITS], lots[b, i + 1, PAID]
    counters[b, LOTS] -= 1
    lots[b, counters[b, LOTS], UNITS] = lots[b, counters[b, LOTS], PAID] = 0.0


@compiled
def carry_out(
    shares: NDArray[np.float64],
    counts: NDArray[np.int64],
    accounts: NDArray[np.float64],
    counters: NDArray[np.int64],
    lots: NDArray[np.float64],
    b: int,
    action: int,
    market_price: float,
) -> None:
    """Buy or sell at this price, worsened; what the rules do not allow is refused, and nothing happens."""
    if action == HOLD:
        return
    side = 1.0 if action == BUY else -1.0
    price = market_price * (1.0 + side * shares[SLIPPAGE])
    held = counters[b, LOTS]
    if held > 0 and lots[b, 0, UNITS] * side < 0.0:
        close_oldest(accounts, counters, lots, b, price, shares[FEE])
        return
    net, gross = net_units(lots, held, b)
    size = shares[LOT] * shares[CAPITAL]
    room = shares[EXPOSURE] * (accounts[b, CASH] + net * market_price) - gross * market_price
    if held == counts[MAX_POSITIONS] or (side < 0.0 and counts[SHORT] == 0) or size > room * (1.0 + 1e-9):
        return
    units, charge = side * size / price, size * shares[FEE]
    paid = side * size + charge
    accounts[b, CASH] -= paid
    accounts[b, FEES] += charge
    lots[b, held, UNITS], lots[b, held, PAID] = units, paid
    counters[b, LOTS] = held + 1


@compiled
def observe(
    shares: NDArray[np.float64],
    counts: NDArray[np.int64],
    accounts: NDArray[np.float64],
    known: NDArray[np.float64],
    counters: NDArray[np.int64],
    lots: NDArray[np.float64],
    b: int,
    out: NDArray[np.float32],
) -> None:
    """Write ``FEATURES`` of world ``b`` into its row of ``out`` ``[B, F]``, none beyond ``LIMIT``."""
    volatility = math.sqrt(known[b, SQUARE]) + 1e-6
    held = counters[b, LOTS]
    paid = 0.0
    for i in range(held):
        paid += lots[b, i, PAID]
    net, _ = net_units(lots, held, b)
    out[b, 0] = known[b, LAST] / volatility
    out[b, 1] = known[b, RANGE] / volatility
    out[b, 2] = known[b, PLACE]
    out[b, 3] = known[b, FAST] / volatility * math.sqrt(5.0)
    out[b, 4] = known[b, MIDDLE] / volatility * math.sqrt(20.0)
    out[b, 5] = known[b, SLOW] / volatility * math.sqrt(60.0)
    out[b, 6] = (known[b, LOG_CLOSE] - known[b, MEAN]) / (volatility * math.sqrt(60.0))
    out[b, 7] = math.log(100.0 * volatility)
    out[b, 8] = known[b, VOLUME_CHANGE]
    out[b, 9] = (held if net > 0.0 else -held) / counts[MAX_POSITIONS]
    out[b, 10] = 10.0 * (net * known[b, CLOSED_AT] - paid) / shares[CAPITAL]
    out[b, 11] = 10.0 * (accounts[b, WORTH] / shares[CAPITAL] - 1.0)
    out[b, 12] = counters[b, TIME] / counts[WINDOW]
    for i in range(out.shape[1]):
        out[b, i] = min(max(out[b, i], -LIMIT), LIMIT)


@compiled
def begin_all(
    history: Bars,
    market: NDArray[np.float64],
    shares: NDArray[np.float64],
    counts: NDArray[np.int64],
    streams: Streams,
    markets: NDArray[np.float64],
    accounts: NDArray[np.float64],
    known: NDArray[np.float64],
    counters: NDArray[np.int64],
    lots: NDArray[np.float64],
    observations: NDArray[np.float32],
) -> None:
    """Begin an episode in every world."""
    for b in range(len(streams)):
        begin_one(history, market, shares, counts, streams, markets, accounts, known, counters, lots, b)
        observe(shares, counts, accounts, known, counters, lots, b, observations)


@compiled
def step_all(
    history: Bars,
    market: NDArray[np.float64],
    shares: NDArray[np.float64],
    counts: NDArray[np.int64],
    streams: Streams,
    markets: NDArray[np.float64],
    accounts: NDArray[np.float64],
    known: NDArray[np.float64],
    counters: NDArray[np.int64],
    lots: NDArray[np.float64],
    actions: NDArray[np.int64],
    observations: NDArray[np.float32],
    last_observations: NDArray[np.float32],
    rewards: NDArray[np.float32],
    terminated: NDArray[np.bool_],
    truncated: NDArray[np.bool_],
    figures: NDArray[np.float64],
) -> None:
    """A bar in every world; where an episode ends, another begins."""
    for b in range(len(streams)):
        first, high, low, close, volume = next_bar(history, market, streams, markets, counters, b)
        carry_out(shares, counts, accounts, counters, lots, b, actions[b], first)
        net, _ = net_units(lots, counters[b, LOTS], b)
        worth = accounts[b, CASH] + net * close
        rewards[b] = 100.0 * (worth - accounts[b, WORTH]) / shares[CAPITAL]
        accounts[b, WORTH] = worth
        take_in(known, b, first, high, low, close, volume)
        counters[b, TIME] += 1
        terminated[b] = worth <= shares[RUIN] * shares[CAPITAL]
        truncated[b] = not terminated[b] and counters[b, TIME] == counts[WINDOW]
        observe(shares, counts, accounts, known, counters, lots, b, observations)
        if terminated[b] or truncated[b]:
            last_observations[b] = observations[b]
            figures[b, 0] = worth - shares[CAPITAL]
            figures[b, 1], figures[b, 2], figures[b, 3] = counters[b, CLOSED], counters[b, WON], counters[b, LOTS]
            figures[b, 4] = accounts[b, FEES]
            begin_one(history, market, shares, counts, streams, markets, accounts, known, counters, lots, b)
            observe(shares, counts, accounts, known, counters, lots, b, observations)
