"""What the reports say of a worker, from its heartbeat and its account."""

import pytest

from keima.coach.summary import worker_report
from keima.data.ledger_rows import WorkerAccount
from keima.worker.worker_folder import Heartbeat


@pytest.mark.parametrize(
    ("state", "order", "shown"),
    [("playing", "", "playing"), ("playing", "match-1", "evaluating"), ("error", "match-1", "error")],
)
def test_a_worker_that_plays_evaluation_games_is_shown_so(state: str, order: str, shown: str) -> None:
    values = {"run_id": "run", "worker": "w", "beat": 1, "pid": 1, "state": state, "order": order}
    report = worker_report("w", Heartbeat.model_validate(values), WorkerAccount(name="w"))
    assert report.state == shown


def test_a_worker_without_a_heartbeat_is_starting() -> None:
    assert worker_report("w", None, WorkerAccount(name="w")).state == "starting"
