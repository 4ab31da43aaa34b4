"""A simulated market to trade on: many accounts at once, stepped by one compiled kernel.

In each bar an account may *hold*, *buy* or *sell*. The observation ends with the close of the last bar; the order is
executed at the open of the next one, plus slippage and a fee. A buy closes the oldest short position or opens a long
one; a sell does the opposite. Each opened position takes a fixed share of the capital, and an order beyond the
account's means is refused. An episode is a window of bars: it is *truncated* at its end, where positions may still be
open, and *terminated* when the account is ruined. The reward is the change of the account's value, in per cent of the
capital.

Prices come from a history, of which each episode is a random window, or are simulated bar by bar, so that no future
price exists yet. No kernel reads a history beyond the bar that has just closed.
"""

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from keima.base.system.threads import StepThreads
from keima.compilation.decorators import compile_for_types
from keima.ppo.settings import TradingSettings
from keima.ppo.worlds.trading_data import MARKET_WORDS, NO_HISTORY, Bars, SimulatedMarket
from keima.ppo.worlds.trading_kernels import (
    ACCOUNT_WORDS,
    ACTIONS,
    CLOSE_WAS,
    CLOSED_AT,
    COUNTER_WORDS,
    EPISODE_METRICS,
    FEATURES,
    FILLED_AT,
    KNOWN_WORDS,
    PAST,
    TAPE_WORDS,
    TRADE,
    UNITS,
    VALUE,
    VALUE_WAS,
    Accounts,
    Tape,
    TradingRules,
    begin_episodes,
    step_accounts,
)
from keima.ppo.worlds.world import ArrayWorlds, Seeds, StepResult, empty_step_result

LEAST_PART = 256  # worlds, whose step takes several times as long as telling a thread


@dataclass(frozen=True)
class TradedEpisode:
    """One account in an episode of T bars."""

    closes: NDArray[np.float64]  # [T]
    account_values: NDArray[np.float64]  # [T]: of the account, at these prices
    trades: NDArray[np.int64]  # [T]: the trade of ``TRADES`` in the bar
    prices: NDArray[np.float64]  # [T]: of the trades


class TradingMarkets(ArrayWorlds):
    """B accounts, each on its own market; see ``keima.ppo.worlds.world.Worlds``.

    Args:
        seeds: uint64 ``[B]``: where the random numbers of each world start.
        settings: the rules of trading.
        history: bars ``[N, 5]`` as ``read_history`` gives them; None: simulated markets.
        market: what simulated markets are like.
        threads: at most this many step the worlds, in parts of at least ``LEAST_PART``.

    Raises:
        ValueError: the history is shorter than an episode and the bars observed before it.
    """

    num_actions = len(ACTIONS)
    metric_names: tuple[str, ...] = EPISODE_METRICS

    def __init__(
        self,
        seeds: Seeds,
        settings: TradingSettings | None = None,
        *,
        history: Bars | None = None,
        market: SimulatedMarket | None = None,
        threads: int = 1,
    ) -> None:
        rules = self.settings = settings or TradingSettings()
        needed = PAST + rules.window
        if history is not None and len(history) < needed:
            raise ValueError(
                f"a history of {len(history)} bars is too short: episodes of {rules.window} bars need {needed}"
            )
        count = len(seeds)
        self._rules = TradingRules(
            np.ascontiguousarray(NO_HISTORY if history is None else history, np.float64),
            (market or SimulatedMarket()).parameters(),
            np.array([rules.capital, rules.lot, rules.fee, rules.slippage, rules.exposure, rules.ruin], np.float64),
            np.array([rules.window, rules.max_positions, rules.short], np.int64),
        )
        self._worlds = Accounts(
            np.array(seeds, np.uint64),
            np.zeros((count, MARKET_WORDS)),
            np.zeros((count, ACCOUNT_WORDS)),
            np.zeros((count, KNOWN_WORDS)),
            np.zeros((count, COUNTER_WORDS), np.int64),
            np.zeros((count, rules.max_positions, 2)),
        )
        self._tape = Tape(np.zeros((2, rules.window, TAPE_WORDS)), np.zeros(2, np.int64))
        super().__init__(empty_step_result(count, len(FEATURES), len(EPISODE_METRICS)), self._worlds._asdict())
        begin_episodes(self._rules, self._worlds, self.moment.observations)
        self._actions = np.zeros(count, np.int64)
        parts = self._split_worlds(max(1, min(threads, count // LEAST_PART)))
        step = compile_for_types(step_accounts, *parts[0])
        self._steps = [partial(step, *part) for part in parts]
        self._threads = StepThreads(self._steps[1:], name="worlds")

    def _split_worlds(self, number: int) -> list[tuple[TradingRules, Accounts, Tape, NDArray[np.int64], StepResult]]:
        """Divide the worlds into parts: the arguments of ``step_accounts`` for each, with a tape of its first world."""
        ends = [self.num_envs * i // number for i in range(number + 1)]
        tapes = [self._tape, *(Tape._make(map(np.zeros_like, self._tape)) for _ in range(number - 1))]
        return [
            (
                self._rules,
                Accounts._make(array[first:end] for array in self._worlds),
                tape,
                self._actions[first:end],
                StepResult._make(array[first:end] for array in self.moment),
            )
            for tape, (first, end) in zip(tapes, itertools.pairwise(ends), strict=True)
        ]

    def step(self, actions: NDArray[np.int64]) -> None:
        """Execute each account's order, from ``ACTIONS``; the result is in ``moment``."""
        self._actions[:] = actions
        for number in range(len(self._steps) - 1):
            self._threads.begin_step(number)
        self._steps[0]()
        while self._threads.busy:
            self._threads.take_results()

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Resume from ``state``; see ``ArrayWorlds``. Earlier episodes are forgotten."""
        super().restore(state)
        self._tape.lengths[:] = 0

    def last_episode(self) -> "TradedEpisode | None":
        """Return the last whole episode of world 0."""
        bars = self._tape.bars[1, : self._tape.lengths[1]].copy()
        if not len(bars):
            return None
        return TradedEpisode(
            bars[:, CLOSE_WAS], bars[:, VALUE_WAS], bars[:, TRADE].astype(np.int64), bars[:, FILLED_AT]
        )

    @property
    def close(self) -> NDArray[np.float64]:
        """The last price of each market, ``[B]``."""
        return self._worlds.known[:, CLOSED_AT].copy()

    @property
    def account_values(self) -> NDArray[np.float64]:
        """Each account's total value at that price, ``[B]``."""
        return self._worlds.accounts[:, VALUE].copy()

    @property
    def positions(self) -> NDArray[np.int64]:
        """Long less short positions of each account, ``[B]``."""
        return np.sign(self._worlds.lots[:, :, UNITS]).sum(1).astype(np.int64)
