import numpy as np
import pytest

from keima.ppo.settings import TradingSettings
from keima.ppo.worlds.trading import TradingMarkets
from keima.ppo.worlds.trading_kernels import EPISODE_METRICS

gymnasium = pytest.importorskip("gymnasium")


def test_gymnasium_finds_nothing_wrong() -> None:
    from gymnasium.utils.env_checker import check_env

    from keima.ppo.worlds.trading_gym import TradingEnv

    check_env(TradingEnv(), skip_render_check=True)


def test_it_is_the_market_that_training_uses() -> None:
    from keima.ppo.worlds.trading_gym import TradingEnv

    settings = TradingSettings(window=20)
    env = TradingEnv(settings=settings)
    seen, _ = env.reset(seed=5)
    worlds = TradingMarkets(
        np.random.default_rng(np.random.PCG64(5)).integers(2**64, size=1, dtype=np.uint64), settings
    )
    np.testing.assert_array_equal(seen, worlds.moment.observations[0])
    rng = np.random.default_rng(1)
    for _ in range(19):
        action = rng.integers(0, 3)
        seen, reward, terminated, truncated, info = env.step(action)
        worlds.step(np.array([action]))
        np.testing.assert_array_equal(seen, worlds.moment.observations[0])
        assert (
            reward == worlds.moment.rewards[0]
            and not (terminated or truncated)
            and info["worth"] == worlds.account_values[0]
        )
    seen, _, terminated, truncated, info = env.step(np.int64(0))
    worlds.step(np.array([0]))
    np.testing.assert_array_equal(seen, worlds.moment.last_observations[0])
    assert truncated and not terminated and set(info) == set(EPISODE_METRICS)
