"""The time at which a run was as strong as the mark, from its scores (benchmarks/strength/ablation.py)."""

import pytest

from benchmarks.strength.ablation import seconds_to_mark
from benchmarks.strength.curves import never_falling


def scores(**shares: float) -> dict[str, dict[str, float]]:
    """Return scores by version, of a hundred games each; ``at_60=0.3``: 30 points after 60 seconds."""
    return {
        name: {"seconds": float(name.removeprefix("at_")), "points": 100 * share, "games": 100}
        for name, share in shares.items()
    }


def test_a_monotone_fit_takes_the_mean_where_the_values_fall() -> None:
    assert never_falling([0.1, 0.5, 0.3, 0.9, 0.8, 0.7]) == pytest.approx([0.1, 0.4, 0.4, 0.8, 0.8, 0.8])
    assert never_falling([3.0, 2.0, 1.0]) == [2.0, 2.0, 2.0]


def test_the_time_is_between_the_scores_below_and_above_half() -> None:
    assert seconds_to_mark(scores(at_50=0.0, at_100=0.25, at_400=0.75, at_500=0.7)) == pytest.approx(
        (205, True), rel=0.1
    )
    assert seconds_to_mark(scores(at_100=0.4, at_400=0.6)) == pytest.approx((200, True))


def test_a_run_that_was_never_as_strong_gets_its_last_time() -> None:
    assert seconds_to_mark(scores(at_50=0.0, at_100=0.6, at_400=0.2)) == (400.0, False)
    assert seconds_to_mark(scores(at_50=0.5, at_100=0.6)) == (50.0, True)
