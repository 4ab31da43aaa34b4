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


@pytest.mark.parametrize(
    ("state", "job", "playing", "idle"),
    [
        ("playing", "", 64, 0.0),
        ("playing", "", 16, 0.75),
        ("waiting", "", 0, 1.0),
        ("playing", "", -50, 1.0),  # as nobody says who tells the truth
        ("playing", "match-1", 0, 0.0),
        ("compiling", "", 0, 0.0),
    ],
)
def test_a_worker_is_as_idle_as_its_places_for_games_are_empty(state: str, job: str, playing: int, idle: float) -> None:
    values = {"run_id": "run", "worker": "w", "beat": 1, "pid": 1, "state": state, "order": job}
    counts = {"begun": 100 + playing, "finished": 100, "parallel_games": 64}
    (status,) = worker_statuses({"w": Heartbeat.model_validate(values | counts)}, {}, None, {})
    assert status.idle == idle


def test_a_worker_without_a_heartbeat_is_starting() -> None:
    (status,) = worker_statuses({"w": None}, {}, None, {})
    assert status.activity == "starting"
