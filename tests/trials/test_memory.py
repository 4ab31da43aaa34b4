"""The Coach's memory does not grow with the received games; tests/trials/memory.py feeds it as many as you like."""

from pathlib import Path

import pytest

from tests.trials.memory import measure


@pytest.mark.slow
@pytest.mark.trial
def test_the_memory_of_a_coach_stays_constant_once_its_window_is_full(tmp_path: Path) -> None:
    found = measure(tmp_path, games=6_000)
    assert found["games"] == 6_000 > 10 * found["window_games"]
    assert found["last_mb"] < 1.05 * found["first_mb"]
