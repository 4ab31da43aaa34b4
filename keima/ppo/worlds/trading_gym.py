"""The trading market as a Gymnasium environment: one account, stepped by the kernel that training uses.

Only this module needs gymnasium: ``pip install gymnasium``.
"""

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from keima.ppo.settings import TradingSettings
from keima.ppo.worlds.trading import TradingMarkets
from keima.ppo.worlds.trading_data import SimulatedMarket, read_history
from keima.ppo.worlds.trading_kernels import ACTIONS, EPISODE_METRICS, FEATURES, LIMIT

Observation = NDArray[np.float32]  # [F]


class TradingEnv(gymnasium.Env[Observation, np.int64]):
    """One account on a market; see ``keima/ppo/worlds/trading.py``.

    Actions are hold, buy and sell; an observation is ``FEATURES``.

    Args:
        history: a CSV or Parquet file of prices; None: a simulated market.
        settings: the rules of trading.
        market: what simulated markets are like.

    Raises:
        BadHistory, ValueError: the file is not a history, or is too short.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012  (as Gymnasium declares it)

    def __init__(
        self,
        history: Path | str | None = None,
        *,
        settings: TradingSettings | None = None,
        market: SimulatedMarket | None = None,
    ) -> None:
        self.action_space = spaces.Discrete(len(ACTIONS))
        self.observation_space = spaces.Box(-LIMIT, LIMIT, (len(FEATURES),), np.float32)
        self._options: dict[str, Any] = {"settings": settings, "market": market}
        self._options["history"] = None if history is None else read_history(Path(history))
        self._worlds = TradingMarkets(np.zeros(1, np.uint64), **self._options)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Begin an episode; the same seed begins the same one. There are no options."""
        super().reset(seed=seed)
        self._worlds = TradingMarkets(self.np_random.integers(2**64, size=1, dtype=np.uint64), **self._options)
        return self._worlds.moment.observations[0].copy(), self._info()

    def step(self, action: np.int64) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Execute an order at the next bar's open, and advance by that bar."""
        self._worlds.step(np.array([action], np.int64))
        now = self._worlds.moment
        terminated, truncated = bool(now.terminated[0]), bool(now.truncated[0])
        if not (terminated or truncated):
            return now.observations[0].copy(), float(now.rewards[0]), False, False, self._info()
        metrics = dict(zip(EPISODE_METRICS, now.metrics[0].tolist(), strict=True))
        return now.last_observations[0].copy(), float(now.rewards[0]), terminated, truncated, metrics

    def _info(self) -> dict[str, Any]:
        """Return information in addition to the observation."""
        worlds = self._worlds
        return {
            "worth": float(worlds.account_values[0]),
            "close": float(worlds.close[0]),
            "positions": int(worlds.positions[0]),
        }
