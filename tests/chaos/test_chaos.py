"""A short campaign of faults; tests/chaos/run.py runs longer ones."""

from pathlib import Path

import pytest
from rich.console import Console

from tests.chaos.faults import KINDS, MACHINE, MAIN, WORKER
from tests.chaos.run import campaign
from tests.lab.hosts import why_not

CHEAP = (
    "cut_link",
    "freeze_machine",
    "freeze_worker",
    "damage_outbox",
    "illegal_games",
    "nonsense_heartbeats",
    "worker_clock",
)
DEAR = ("kill_worker", "delete_folder", "kill_coach", "kill_fleet", "damage_games", "fill_main_disk")


@pytest.mark.slow  # tests/cluster has each fault by itself
@pytest.mark.trial
@pytest.mark.timeout(600)
def test_under_any_faults_a_cluster_loses_no_game_and_recovers(tmp_path: Path) -> None:
    if reason := why_not():
        pytest.skip(reason)
    report = campaign(
        hosts=1, seed=2, most_faults=5, seconds=30.0, log_event=Console(), kinds=[*CHEAP, *DEAR], keep=tmp_path / "kept"
    )
    assert not report.problems
    assert report.events
    assert report.totals["received"] > 0
    assert (report.totals["lost"], report.totals["twice"]) == (0, 0)


def test_every_part_of_a_cluster_has_its_faults() -> None:
    assert {kind.of for kind in KINDS.values()} == {MACHINE, WORKER, MAIN}
    assert {*CHEAP, *DEAR} < KINDS.keys()
