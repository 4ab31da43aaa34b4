"""What the reports say of a worker, from its heartbeat and its account."""

import pytest

from keima.coach.summary import worker_statuses
from keima.worker.worker_folder import Heartbeat


@pytest.mark.parametrize(
    ("state", "job", "shown"),
    [("playing", "", "playing"), ("playing", "match-1", "evaluating"), ("error", "match-1", "error")],
)
def test_a_worker_that_plays_evaluation_games_is_shown_so(state: str, job: str, shown: str) -> None:
    values = {"run_id": "run", "worker": "w", "beat": 1, "pid": 1, "state": state, "order": job}
    (status,) = worker_statuses({"w": Heartbeat.model_validate(values)}, {}, None, {})
    assert status.activity == shown


def test_a_worker_without_a_heartbeat_is_starting() -> None:
    (status,) = worker_statuses({"w": None}, {}, None, {})
    assert status.activity == "starting"
