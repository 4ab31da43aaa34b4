"""A worker in a run's files, which earlier and later versions read."""

from pydantic import TypeAdapter

from keima.base.reports.worker_records import RecordedWorker, worker_record
from keima.base.reports.worker_status import WorkerState, WorkerStatus

RECORDED = TypeAdapter(RecordedWorker)
AS_EVER = {  # what versions before this one have written
    "name": "far-2",
    "state": "playing",
    "model_version": 12,
    "games": 600,
    "games_per_second": 6.1,
    "evaluations_per_second": 5900.0,
    "outstanding": 20,
    "waiting": 3,
    "error": "",
    "core_hours": 1.5,
    "standing": {"mark": "Offline", "share": 0.25, "last_batch": 90.0},
}


def test_a_record_has_the_keys_that_records_have_always_had() -> None:
    worker = RECORDED.validate_python(AS_EVER)
    assert (worker.activity, worker.state, worker.share, worker.last_batch) == (
        "playing",
        WorkerState.OFFLINE,
        0.25,
        90.0,
    )
    assert worker_record(worker) == AS_EVER


def test_a_worker_on_this_machine_has_no_standing() -> None:
    record = worker_record(WorkerStatus(name="local-1", activity="waiting"))
    assert record["standing"] is None and record["state"] == "waiting"
    assert RECORDED.validate_python(record) == WorkerStatus(name="local-1", activity="waiting")


def test_records_of_earlier_versions_without_core_hours_are_read() -> None:
    earlier = {key: value for key, value in AS_EVER.items() if key not in ("core_hours", "waiting", "standing")}
    assert RECORDED.validate_python(earlier) == WorkerStatus(
        name="far-2",
        activity="playing",
        model_version=12,
        games=600,
        games_per_second=6.1,
        evaluations_per_second=5900.0,
        outstanding=20,
    )
