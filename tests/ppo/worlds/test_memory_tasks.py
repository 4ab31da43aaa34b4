import numpy as np
import pytest

from keima.ppo.worlds.memory_tasks import FORWARD, LEFT, RIGHT, BlindCartPole, TMaze


def seeds(count: int) -> np.ndarray:
    return np.arange(count).astype(np.uint64) * np.uint64(7919)


def test_the_side_shown_by_the_sign_has_the_reward() -> None:
    worlds = TMaze(seeds(64), length=5)
    sides = worlds.moment.observations[:, 0].copy()
    assert set(sides) == {-1.0, 1.0}
    for _ in range(5):
        worlds.step(np.full(64, FORWARD))
        assert (worlds.moment.observations[:, 0] == 0).all() and (worlds.moment.rewards == 0).all()
    worlds.step(np.where(sides == 1, RIGHT, LEFT))
    assert (worlds.moment.rewards == 4).all() and worlds.moment.terminated.all() and (worlds.moment.metrics == 1).all()


def test_the_other_side_has_no_reward_and_dawdling_costs() -> None:
    worlds = TMaze(seeds(8), length=2)
    worlds.step(np.full(8, LEFT))
    assert worlds.moment.rewards == pytest.approx(-0.1)
    assert (worlds.moment.observations[:, 0] != 0).all()
    sides = worlds.moment.observations[:, 0].copy()
    for _ in range(2):
        worlds.step(np.full(8, FORWARD))
    worlds.step(np.where(sides == 1, LEFT, RIGHT))
    assert worlds.moment.terminated.all() and worlds.moment.rewards == pytest.approx(-0.1)
    for _ in range(4):
        assert not worlds.moment.truncated.any()
        worlds.step(np.full(8, LEFT))
    assert worlds.moment.truncated.all()


def test_the_pole_falls_like_gymnasium_s() -> None:
    gymnasium = pytest.importorskip("gymnasium")
    env = gymnasium.make("CartPole-v1").unwrapped
    worlds = BlindCartPole(seeds(1))
    env.reset(seed=1)
    env.state = worlds.state()["bodies"][0]
    rng = np.random.default_rng(1)
    for _ in range(200):
        action = int(rng.integers(0, 2))
        seen, reward, terminated, _, _ = env.step(action)
        worlds.step(np.array([action]))
        assert terminated == worlds.moment.terminated[0] and reward == worlds.moment.rewards[0]
        shown = worlds.moment.last_observations if terminated else worlds.moment.observations
        np.testing.assert_allclose(shown[0], seen[[0, 2]], rtol=1e-5, atol=1e-7)
        if terminated:
            return
    pytest.fail("a random player holds no pole for 200 steps")


def test_a_standing_pole_is_truncated_at_the_limit() -> None:
    worlds = BlindCartPole(seeds(1), limit=3)
    for _ in range(3):
        assert not worlds.moment.truncated[0]
        worlds.step(np.array([0]))
    assert worlds.moment.truncated[0] and not worlds.moment.terminated[0]
