"""Bars of a simulated market as a history."""

import numpy as np

from keima.ppo.worlds.trading_data import MARKET_WORDS, Bars, SimulatedMarket, begin_market, simulate_bar


def simulated_history(count: int, *, seed: int = 0) -> Bars:
    """``count`` bars of a simulated market."""
    parameters = SimulatedMarket().parameters()
    words, streams = np.zeros((1, MARKET_WORDS)), np.array([seed], np.uint64)
    begin_market(parameters, words, streams, 0)
    return np.array([simulate_bar(parameters, words, streams, 0) for _ in range(count)], np.float64).reshape(-1, 5)
