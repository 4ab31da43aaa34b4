"""Several ranks of PPO learn what one rank learns with all their worlds."""

import subprocess
import sys
from pathlib import Path

import pytest

from keima.learning.ranks.process_group import ALONE
from keima.networks.files.weights_file import load_weights
from tests.learning.ranks.test_ranks import free_port, largest_difference
from tests.ppo.ppo_rank_program import train
from tests.sources import ROOT


@pytest.mark.slow  # tests/learning/ranks has the same of the other learner
@pytest.mark.trial
@pytest.mark.timeout(1000)
@pytest.mark.parametrize("count", [2, 3])
def test_ranks_end_with_the_weights_of_one_rank_with_all_their_worlds(tmp_path: Path, count: int) -> None:
    line = [sys.executable, "-m", "tests.ppo.ppo_rank_program", str(tmp_path), str(count), str(free_port())]
    ended = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, timeout=900, check=False)
    assert ended.returncode == 0, ended.stderr
    several = [load_weights(tmp_path / f"rank{rank}.pth") for rank in range(count)]
    assert all(largest_difference(other, several[0]) == 0 for other in several)
    assert largest_difference(several[0], train(ALONE)) < 1e-4
