"""A run that is killed repeatedly loses nothing; tests/trials/kill.py kills it as often as you like."""

from pathlib import Path

import pytest

from tests.trials.kill import small_config, trial


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_run_that_is_killed_and_resumed_loses_no_game_and_counts_none_twice(tmp_path: Path) -> None:
    found = trial(small_config(tmp_path), tmp_path / "run", kills=1, seed=115)  # its Coach alone, while workers play
    assert not found.problems
    assert found.batches_received > 0
