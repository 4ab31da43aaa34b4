import numpy as np
import pytest

from keima.ppo.settings import TradingSettings
from keima.ppo.worlds import trading
from keima.ppo.worlds.trading import TradingMarkets
from keima.ppo.worlds.trading_data import NO_HISTORY, Bars
from keima.ppo.worlds.trading_kernels import (
    BUY,
    EPISODE_METRICS,
    FEATURES,
    HOLD,
    LONG_CLOSED,
    LONG_OPENED,
    NOTHING,
    PAST,
    SELL,
    SHORT_OPENED,
)
from tests.ppo.worlds.simulated import simulated_history

FREE = {"fee": 0.0, "slippage": 0.0}


def seeds(count: int, first: int = 1) -> np.ndarray:
    return (np.arange(count) + first).astype(np.uint64) * np.uint64(7919)


def orders(*actions: int) -> np.ndarray:
    return np.array(actions, np.int64)


def flat_history(closes: list[float]) -> Bars:
    """Return quiet bars, and then bars that open and stay at these prices; long enough for exactly one window."""
    prices = np.concatenate([np.full(PAST, closes[0]), closes])
    return np.stack([prices, prices * 1.0001, prices * 0.9999, prices, np.full(len(prices), 1e3)], axis=1)


def on(closes: list[float], **rules: float) -> TradingMarkets:
    return TradingMarkets(seeds(1), TradingSettings(window=len(closes), **rules), history=flat_history(closes))  # type: ignore[arg-type]


def test_an_order_is_executed_at_the_next_open_and_pays_fee_and_slippage() -> None:
    worlds = on([100.0, 110.0, 110.0], fee=0.01, slippage=0.02, lot=0.2)
    worlds.step(orders(BUY))  # fills at 100 * 1.02
    units = 2000 / 102.0
    assert worlds.account_values[0] == pytest.approx(10_000 - 2000 - 20 + units * 100)
    worlds.step(orders(SELL))  # at 110 * 0.98
    assert worlds.account_values[0] == pytest.approx(10_000 - 2000 - 20 + units * 107.8 * 0.99)
    worlds.step(orders(HOLD))
    closed = dict(zip(EPISODE_METRICS, worlds.moment.metrics[0], strict=True))
    assert (closed["closed"], closed["won"], closed["open"]) == (1, 1, 0)
    assert closed["profit"] == pytest.approx(worlds.moment.metrics[0][0])
    assert closed["fees"] == pytest.approx(20 + units * 107.8 * 0.01)


def test_a_short_position_gains_when_the_price_falls() -> None:
    worlds = on([100.0, 90.0, 90.0], **FREE)
    worlds.step(orders(SELL))
    assert worlds.positions[0] == -1
    worlds.step(orders(BUY))
    assert worlds.positions[0] == 0
    assert worlds.account_values[0] == pytest.approx(10_000 + 2000 * 0.1)


def test_rewards_add_up_to_the_profit_in_per_cent_of_the_capital() -> None:
    worlds, rng = TradingMarkets(seeds(64), TradingSettings(window=50)), np.random.default_rng(1)
    total = np.zeros(64)
    for _ in range(50):
        worlds.step(rng.integers(0, 3, 64))
        total += worlds.moment.rewards
    assert worlds.moment.truncated.all()
    np.testing.assert_allclose(total, worlds.moment.metrics[:, 0] / 100, atol=1e-3)


def test_trading_itself_neither_makes_nor_loses_money() -> None:
    worlds, rng = on([100.0] * 40, **FREE), np.random.default_rng(1)
    for _ in range(39):
        worlds.step(rng.integers(0, 3, 1))
        assert worlds.account_values[0] == pytest.approx(10_000)


def test_an_account_opens_no_more_than_its_limits_allow() -> None:
    worlds = on([100.0] * 20, max_positions=3, **FREE)
    for _ in range(6):
        worlds.step(orders(BUY))
    assert worlds.positions[0] == 3
    worlds = on([100.0] * 20, max_positions=9, exposure=0.5, **FREE)
    for _ in range(6):
        worlds.step(orders(BUY))
    assert worlds.positions[0] == 2
    worlds = on([100.0] * 20, short=False, **FREE)
    worlds.step(orders(SELL))
    assert worlds.positions[0] == 0


def test_a_ruined_account_is_terminated_and_the_end_of_the_window_truncates() -> None:
    ruined = on([100.0, 100.0, 100.0, 100.0, 100.0, 30.0, 30.0], **FREE)
    for _ in range(5):
        ruined.step(orders(BUY))
        assert not ruined.moment.terminated[0]
    ruined.step(orders(HOLD))
    assert ruined.moment.terminated[0] and not ruined.moment.truncated[0]
    assert ruined.moment.metrics[0][3] == 5
    calm = on([100.0, 100.0], **FREE)
    calm.step(orders(HOLD))
    assert not calm.moment.truncated[0]
    calm.step(orders(HOLD))
    assert calm.moment.truncated[0] and not calm.moment.terminated[0]


def test_a_new_episode_begins_at_once_and_the_last_observation_is_kept() -> None:
    worlds = on([100.0, 100.0, 101.0], **FREE)
    for _ in range(3):
        worlds.step(orders(BUY))
    elapsed, position = FEATURES.index("elapsed"), FEATURES.index("position")
    assert worlds.moment.last_observations[0, elapsed] == 1.0
    assert worlds.moment.last_observations[0, position] > 0
    assert worlds.moment.observations[0, elapsed] == worlds.moment.observations[0, position] == 0.0
    assert worlds.account_values[0] == 10_000


def test_future_prices_cannot_reach_an_observation_of_a_history() -> None:
    """Two histories that are the same up to a bar give the same observations up to that bar, whatever comes later."""
    rng, window = np.random.default_rng(3), 40
    history = simulated_history(PAST + window, seed=5)  # one window, so that both begin in the same row
    for known in (1, 7, 30):
        other = history.copy()
        other[PAST + known :] *= rng.uniform(0.2, 5.0, (window - known, 1))
        settings = TradingSettings(window=window, ruin=0.0)
        one, two = (TradingMarkets(seeds(1), settings, history=bars) for bars in (history, other))
        for _ in range(known):
            action = rng.integers(0, 3, 1)
            one.step(action)
            two.step(action)
            np.testing.assert_array_equal(one.moment.observations, two.moment.observations)
            np.testing.assert_array_equal(one.moment.rewards, two.moment.rewards)
        one.step(orders(HOLD))
        two.step(orders(HOLD))
        assert (one.moment.observations != two.moment.observations).any()


def test_the_future_of_a_simulated_market_is_not_drawn_before_it_is_needed() -> None:
    worlds = TradingMarkets(seeds(8))
    for _ in range(10):
        worlds.step(np.ones(8, np.int64))
    shown, state = worlds.moment.observations.copy(), worlds.state()
    state["streams"] = seeds(8, first=99)
    worlds.restore(state)
    np.testing.assert_array_equal(worlds.moment.observations, shown)
    worlds.step(np.zeros(8, np.int64))
    other = worlds.moment.observations.copy()
    worlds.restore(state | {"streams": seeds(8, first=77)})
    worlds.step(np.zeros(8, np.int64))
    assert (worlds.moment.observations != other).any(1).all()


def test_worlds_continue_from_a_saved_state_bit_for_bit() -> None:
    rng = np.random.default_rng(2)
    one, two = (
        TradingMarkets(seeds(16), TradingSettings(window=20)),
        TradingMarkets(seeds(16, first=50), TradingSettings(window=20)),
    )
    for _ in range(30):
        one.step(rng.integers(0, 3, 16))
    two.restore(one.state())
    for _ in range(30):
        actions = rng.integers(0, 3, 16)
        one.step(actions)
        two.step(actions)
        for name, array in one.moment._asdict().items():
            if name in ("observations", "rewards", "terminated", "truncated"):
                np.testing.assert_array_equal(array, getattr(two.moment, name))


def test_a_saved_state_of_other_worlds_is_refused() -> None:
    with pytest.raises(ValueError, match="differ from these"):
        TradingMarkets(seeds(3)).restore(TradingMarkets(seeds(4)).state())


def test_a_world_does_not_depend_on_its_neighbours() -> None:
    many, alone = TradingMarkets(seeds(5)), TradingMarkets(seeds(1, first=3))
    for _ in range(20):
        many.step(np.ones(5, np.int64))
        alone.step(np.ones(1, np.int64))
    np.testing.assert_array_equal(many.moment.observations[2], alone.moment.observations[0])


def test_threads_step_worlds_as_one_thread_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trading, "LEAST_PART", 2)
    settings, random = TradingSettings(window=6), np.random.default_rng(1)
    alone, together = (TradingMarkets(seeds(7), settings, threads=threads) for threads in (1, 5))
    for _ in range(20):
        actions = random.integers(0, 3, 7)
        alone.step(actions)
        together.step(actions)
        for name, array in alone.moment._asdict().items():
            np.testing.assert_array_equal(getattr(together.moment, name), array)
    one, other = alone.last_episode(), together.last_episode()
    assert one is not None and other is not None
    np.testing.assert_array_equal(one.account_values, other.account_values)


def test_a_simulated_market_has_realistic_statistics() -> None:
    bars = simulated_history(20_000, seed=4)
    changes = np.diff(np.log(bars[:, 3]))
    assert (bars[:, 1] >= bars[:, [0, 3]].max(1)).all() and (bars[:, 2] <= bars[:, [0, 3]].min(1)).all()
    assert 0.005 < changes.std() < 0.04
    kurtosis = ((changes - changes.mean()) ** 4).mean() / changes.var() ** 2
    assert kurtosis > 4  # jumps and regimes: more extreme than a normal distribution's 3
    assert np.corrcoef(np.abs(changes[1:]), np.abs(changes[:-1]))[0, 1] > 0.05  # volatility is clustered


@pytest.mark.parametrize("rules", [{"window": 1}, {"fee": -0.1}, {"lot": 0.0}, {"max_positions": 0}, {"ruin": 1.0}])
def test_impossible_rules_are_refused(rules: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(rules))):
        TradingSettings(**rules)  # type: ignore[arg-type]


def test_a_history_that_is_too_short_is_refused() -> None:
    with pytest.raises(ValueError, match="too short: episodes of 256 bars need 320"):
        TradingMarkets(seeds(1), history=simulated_history(319))
    assert len(NO_HISTORY) == 0


def test_the_last_whole_episode_of_the_first_account_is_kept_for_viewing() -> None:
    worlds = on([100.0, 110.0, 120.0, 90.0], slippage=0.01)
    assert worlds.last_episode() is None
    for action in (BUY, HOLD, SELL, SELL):
        worlds.step(orders(action))
    seen = worlds.last_episode()
    assert seen is not None
    assert seen.closes.tolist() == [100.0, 110.0, 120.0, 90.0]
    assert seen.trades.tolist() == [LONG_OPENED, NOTHING, LONG_CLOSED, SHORT_OPENED]
    assert seen.prices[[0, 2, 3]].tolist() == pytest.approx([101.0, 118.8, 89.1])
    assert seen.account_values[-1] == pytest.approx(10_000 + worlds.moment.metrics[0, 0])
    worlds.step(orders(HOLD))
    again = worlds.last_episode()
    assert again is not None and again.closes.tolist() == seen.closes.tolist()


def test_an_episode_that_began_elsewhere_is_not_kept() -> None:
    worlds, other = (TradingMarkets(seeds(2), TradingSettings(window=4)) for _ in range(2))
    for _ in range(5):
        worlds.step(orders(BUY, SELL))
    other.restore(worlds.state())
    for _ in range(3):
        other.step(orders(HOLD, HOLD))
    assert other.moment.truncated.all() and other.last_episode() is None
    for _ in range(4):
        other.step(orders(SELL, HOLD))
    seen = other.last_episode()
    assert seen is not None and len(seen.closes) == 4
