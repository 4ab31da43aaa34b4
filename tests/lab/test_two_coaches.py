"""Two Coaches on the same machines, for a short time; tests/lab/two_coaches.py runs for longer."""

from pathlib import Path

import pytest

from tests.lab.hosts import Hosts
from tests.lab.two_coaches import meet


@pytest.mark.slow
@pytest.mark.trial
@pytest.mark.timeout(1800)
def test_two_coaches_take_hosts_from_each_other_without_losing_or_mixing_up_games(hosts: Hosts, tmp_path: Path) -> None:
    meeting = meet(tmp_path, hosts, seconds=60.0, log_event=lambda text: None)
    assert meeting.takeovers == 3
    assert (meeting.lost, meeting.foreign, meeting.problems) == ([], [], [])
    assert meeting.batches_seen > 0 and all(games > 0 for games in meeting.games.values()) and len(meeting.games) == 2
