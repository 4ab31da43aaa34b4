"""The compiled part of ``trading.py``, which explains the rules: many accounts at once."""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from keima.compilation.decorators import compiled, compiled_part
from keima.compilation.random import Streams, random_below
from keima.ppo.worlds.trading_data import CLOSE, HIGH, LOW, OPEN, VOLUME, Bar, Bars, begin_market, simulate_bar
from keima.ppo.worlds.world import StepResult

Doubles = NDArray[np.float64]
Counts = NDArray[np.int64]

HOLD, BUY, SELL = range(3)
ACTIONS = ("hold", "buy", "sell")
# Of an episode: profit, positions closed, those with profit, positions still open, fees.
EPISODE_METRICS = (
    "profit",
    "closed",
    "won",
    "open",
    "fees",
)

# What an observation shows. Prices are as logarithms, in units of the market's recent volatility; the account is as
# shares.
FEATURES = (
    "last_return",  # of the last bar, from close to close
    "bar_range",  # from low to high
    "bar_close",  # where the close lies between them, from -1 to 1
    "trend_5",  # mean return of about this many bars
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

# Words of an account, and of its market's features.
CASH, VALUE, FEES = range(3)
ACCOUNT_WORDS = 3
LAST, RANGE, PLACE, FAST, MIDDLE, SLOW, MEAN, SQUARE, LOG_VOLUME, VOLUME_CHANGE, LOG_CLOSE, OPENED, CLOSED_AT = range(
    13
)
KNOWN_WORDS = 13
# Bars of this episode, next row of the history, positions open, closed, won.
TIME, ROW, LOTS, CLOSED, WON = range(5)
COUNTER_WORDS = 5
# Of a position: units, negative if short, and the money that it cost or brought, including fees.
UNITS, PAID = range(2)

LIMIT = 100.0  # nothing that is observed is larger
PAST = 64  # bars before an episode, which are only observed
CAPITAL, LOT, FEE, SLIPPAGE, EXPOSURE, RUIN = range(6)  # of the rules, as compiled code receives them
WINDOW, MAX_POSITIONS, SHORT = range(3)  # of the rules that are whole numbers
NOTHING, LONG_OPENED, SHORT_OPENED, LONG_CLOSED, SHORT_CLOSED = range(5)  # what an order has come to
TRADES = ("nothing", "long opened", "short opened", "long closed", "short closed")
# Of a recorded bar; the last one is the price of the trade, if there was one.
CLOSE_WAS, VALUE_WAS, TRADE, FILLED_AT = range(4)
TAPE_WORDS = 4


class TradingRules(NamedTuple):
    """The rules and market of all accounts."""

    history: Bars  # empty for simulated markets
    market: Doubles  # what these are like
    shares: Doubles  # [6]: CAPITAL and those after it
    counts: Counts  # [3]: WINDOW and those after it


class Accounts(NamedTuple):
    """B accounts and their markets."""

    streams: Streams  # [B]
    markets: Doubles  # [B, MARKET_WORDS], of simulated markets
    accounts: Doubles  # [B, ACCOUNT_WORDS]
    known: Doubles  # [B, KNOWN_WORDS]
    counters: Counts  # [B, COUNTER_WORDS]
    lots: Doubles  # [B, max_positions, 2], the oldest first


class Tape(NamedTuple):
    """The bars of world 0, for people: those of its current episode, and of the last whole one."""

    bars: Doubles  # [2, window, TAPE_WORDS]
    lengths: Counts  # [2]


class TapeEntry(NamedTuple):
    """A bar as it is recorded."""

    close: float
    value: float  # of the account
    trade: int  # which of ``TRADES``
    price: float  # of the trade, if there was one


@compiled_part
def next_bar(rules: TradingRules, worlds: Accounts, b: int) -> Bar:
    """Advance by a bar."""
    history = rules.history
    if len(history) == 0:
        return simulate_bar(rules.market, worlds.markets, worlds.streams, b)
    row = worlds.counters[b, ROW]
    worlds.counters[b, ROW] = row + 1
    return Bar(history[row, OPEN], history[row, HIGH], history[row, LOW], history[row, CLOSE], history[row, VOLUME])


@compiled_part
def update_features(known: Doubles, b: int, bar: Bar) -> None:
    """Update the features with a closed bar, with moving averages over about 5, 20 and 60 bars."""
    high, low, close = bar.high, bar.low, bar.close
    logarithm = math.log(close)
    change = logarithm - known[b, LOG_CLOSE]
    log_volume = math.log(bar.volume + 1.0)
    known[b, OPENED], known[b, CLOSED_AT] = bar.open, close
    known[b, LAST], known[b, LOG_CLOSE] = change, logarithm
    known[b, RANGE] = math.log(high / low)
    known[b, PLACE] = 2.0 * (close - low) / (high - low) - 1.0 if high > low else 0.0
    # Exponential moving averages over n bars: m += (x - m) * 2 / (n + 1), for n = 5, 20 and 60
    known[b, FAST] += (change - known[b, FAST]) / 3.0
    known[b, MIDDLE] += (change - known[b, MIDDLE]) / 10.5
    known[b, SLOW] += (change - known[b, SLOW]) / 30.5
    known[b, MEAN] += (logarithm - known[b, MEAN]) / 30.5
    known[b, SQUARE] += (change * change - known[b, SQUARE]) / 30.5
    known[b, VOLUME_CHANGE] = log_volume - known[b, LOG_VOLUME]
    known[b, LOG_VOLUME] += known[b, VOLUME_CHANGE] / 30.5


@compiled_part
def begin_episode(rules: TradingRules, worlds: Accounts, b: int) -> None:
    """Begin an episode on a new window of the history or a new simulated market, including its past."""
    accounts, known, counters = worlds.accounts, worlds.known, worlds.counters
    counters[b], worlds.lots[b], known[b] = 0, 0.0, 0.0
    accounts[b, CASH] = accounts[b, VALUE] = rules.shares[CAPITAL]
    accounts[b, FEES] = 0.0
    if len(rules.history) == 0:
        begin_market(rules.market, worlds.markets, worlds.streams, b)
    else:
        counters[b, ROW] = random_below(worlds.streams, b, len(rules.history) - PAST - rules.counts[WINDOW] + 1)
    bar = next_bar(rules, worlds, b)
    known[b, LOG_CLOSE] = known[b, MEAN] = math.log(bar.open)
    known[b, SQUARE] = (0.5 * math.log(bar.high / bar.low)) ** 2  # of half the range, until there are returns
    known[b, LOG_VOLUME] = math.log(bar.volume + 1.0)
    update_features(known, b, bar)
    for _ in range(PAST - 1):
        update_features(known, b, next_bar(rules, worlds, b))


@compiled_part
def net_units(lots: Doubles, held: int, b: int) -> tuple[float, float]:
    """Return the net and gross units of all open positions."""
    net = gross = 0.0
    for i in range(held):
        net += lots[b, i, UNITS]
        gross += abs(lots[b, i, UNITS])
    return net, gross


@compiled_part
def close_oldest(worlds: Accounts, b: int, price: float, fee: float) -> None:
    """Close the oldest position at this price."""
    accounts, counters, lots = worlds.accounts, worlds.counters, worlds.lots
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


@compiled_part
def execute_order(rules: TradingRules, worlds: Accounts, b: int, action: int, market_price: float) -> tuple[int, float]:
    """Buy or sell at this price plus slippage; returns which of ``TRADES`` was made, and its price.

    What the rules do not allow is refused.
    """
    if action == HOLD:
        return NOTHING, market_price
    shares, accounts, lots = rules.shares, worlds.accounts, worlds.lots
    side = 1.0 if action == BUY else -1.0
    price = market_price * (1.0 + side * shares[SLIPPAGE])
    held = worlds.counters[b, LOTS]
    if held > 0 and lots[b, 0, UNITS] * side < 0.0:
        close_oldest(worlds, b, price, shares[FEE])
        return SHORT_CLOSED if side > 0.0 else LONG_CLOSED, price
    net, gross = net_units(lots, held, b)
    size = shares[LOT] * shares[CAPITAL]
    # Gross exposure after the order is at most EXPOSURE times the equity: cash + net units * price
    room = shares[EXPOSURE] * (accounts[b, CASH] + net * market_price) - gross * market_price
    if held == rules.counts[MAX_POSITIONS] or (side < 0.0 and rules.counts[SHORT] == 0) or size > room * (1.0 + 1e-9):
        return NOTHING, market_price
    units, charge = side * size / price, size * shares[FEE]
    paid = side * size + charge
    accounts[b, CASH] -= paid
    accounts[b, FEES] += charge
    lots[b, held, UNITS], lots[b, held, PAID] = units, paid
    worlds.counters[b, LOTS] = held + 1
    return LONG_OPENED if side > 0.0 else SHORT_OPENED, price


@compiled_part
def write_observation(rules: TradingRules, worlds: Accounts, b: int, out: NDArray[np.float32]) -> None:
    """Write the ``FEATURES`` of world ``b``, limited to ``LIMIT``, into its row of ``out`` ``[B, F]``."""
    known, capital = worlds.known, rules.shares[CAPITAL]
    volatility = math.sqrt(known[b, SQUARE]) + 1e-6
    held = worlds.counters[b, LOTS]
    paid = 0.0
    for i in range(held):
        paid += worlds.lots[b, i, PAID]
    net, _ = net_units(worlds.lots, held, b)
    # A return in volatilities; the mean of n returns has a standard deviation of volatility / sqrt(n)
    out[b, 0] = known[b, LAST] / volatility
    out[b, 1] = known[b, RANGE] / volatility
    out[b, 2] = known[b, PLACE]
    out[b, 3] = known[b, FAST] / volatility * math.sqrt(5.0)
    out[b, 4] = known[b, MIDDLE] / volatility * math.sqrt(20.0)
    out[b, 5] = known[b, SLOW] / volatility * math.sqrt(60.0)
    out[b, 6] = (known[b, LOG_CLOSE] - known[b, MEAN]) / (volatility * math.sqrt(60.0))
    out[b, 7] = math.log(100.0 * volatility)
    out[b, 8] = known[b, VOLUME_CHANGE]
    out[b, 9] = (held if net > 0.0 else -held) / rules.counts[MAX_POSITIONS]
    out[b, 10] = 10.0 * (net * known[b, CLOSED_AT] - paid) / capital
    out[b, 11] = 10.0 * (worlds.accounts[b, VALUE] / capital - 1.0)
    out[b, 12] = worlds.counters[b, TIME] / rules.counts[WINDOW]
    for i in range(out.shape[1]):
        out[b, i] = min(max(out[b, i], -LIMIT), LIMIT)


@compiled
def begin_episodes(rules: TradingRules, worlds: Accounts, observations: NDArray[np.float32]) -> None:
    """Begin an episode in every world."""
    for b in range(len(worlds.streams)):
        begin_episode(rules, worlds, b)
        write_observation(rules, worlds, b, observations)


@compiled
def step_accounts(rules: TradingRules, worlds: Accounts, tape: Tape, actions: Counts, now: StepResult) -> None:
    """Advance every world by a bar; where an episode ends, another begins."""
    accounts, counters, capital = worlds.accounts, worlds.counters, rules.shares[CAPITAL]
    for b in range(len(worlds.streams)):
        bar = next_bar(rules, worlds, b)
        trade, price = execute_order(rules, worlds, b, actions[b], bar.open)
        net, _ = net_units(worlds.lots, counters[b, LOTS], b)
        value = accounts[b, CASH] + net * bar.close
        now.rewards[b] = 100.0 * (value - accounts[b, VALUE]) / capital
        accounts[b, VALUE] = value
        update_features(worlds.known, b, bar)
        counters[b, TIME] += 1
        now.terminated[b] = value <= rules.shares[RUIN] * capital
        now.truncated[b] = not now.terminated[b] and counters[b, TIME] == rules.counts[WINDOW]
        ended = now.terminated[b] or now.truncated[b]
        if b == 0:
            record_bar(tape, counters[0, TIME], ended, TapeEntry(bar.close, value, trade, price))
        write_observation(rules, worlds, b, now.observations)
        if ended:
            now.last_observations[b] = now.observations[b]
            now.metrics[b, 0] = value - capital
            now.metrics[b, 1], now.metrics[b, 2], now.metrics[b, 3] = (
                counters[b, CLOSED],
                counters[b, WON],
                counters[b, LOTS],
            )
            now.metrics[b, 4] = accounts[b, FEES]
            begin_episode(rules, worlds, b)
            write_observation(rules, worlds, b, now.observations)


@compiled_part
def record_bar(tape: Tape, time: int, ended: bool, entry: TapeEntry) -> None:
    """Write bar ``time`` of an episode, from 1, on the tape; an episode without its first bar is never whole."""
    lengths = tape.lengths
    if time == 1:
        lengths[0] = 0
    if lengths[0] != time - 1:
        return
    now, last = tape.bars[0], tape.bars[1]
    now[time - 1, CLOSE_WAS], now[time - 1, VALUE_WAS] = entry.close, entry.value
    now[time - 1, TRADE], now[time - 1, FILLED_AT] = entry.trade, entry.price
    lengths[0] = time
    if ended:
        for i in range(time):
            for word in range(TAPE_WORDS):
                last[i, word] = now[i, word]
        lengths[1] = time
