from pathlib import Path

import pytest

from tests.cluster.http.campaign import run_campaign

pytestmark = [pytest.mark.slow, pytest.mark.trial]


def test_faults_between_machines_door_and_fleet_lose_nothing(tmp_path: Path) -> None:
    campaign = run_campaign(tmp_path, faults=150, seed=7)
    assert len(campaign.seen) > 50
