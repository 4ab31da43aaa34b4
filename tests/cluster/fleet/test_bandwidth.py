"""A limit for the bytes that a connection moves."""

from keima.cluster.fleet.bandwidth import BURST_SECONDS, BandwidthLimit


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def test_a_long_transfer_keeps_to_the_limit_on_average() -> None:
    clock = Clock()
    limit = BandwidthLimit(1e6, clock=clock, sleep=clock.sleep)
    for chunk in range(1, 1001):
        limit.wait(chunk * 32768)
    assert 32.768 - BURST_SECONDS - 0.1 <= clock.now - 100.0 <= 32.768


def test_a_pause_saves_up_no_more_than_a_burst() -> None:
    clock = Clock()
    limit = BandwidthLimit(1e6, clock=clock, sleep=clock.sleep)
    clock.now += 3600.0
    assert limit.seconds_due(1_000_000) == 0.0
    assert limit.seconds_due(2_000_000) == 1.0


def test_without_a_limit_nothing_waits() -> None:
    assert BandwidthLimit(None).seconds_due(10**12) == 0.0
