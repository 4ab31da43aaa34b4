"""The cluster's status, for people and programs."""

import json
import logging
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len

from keima.base.reports.formats import format_short_duration
from keima.base.reports.worker_status import ClusterNetwork, ClusterStatus, WorkerState, WorkerStatus
from keima.cluster.control.status import (
    JSON_NAME,
    TEXT_NAME,
    StatusFile,
    stale_since,
    status_text,
    wrap_text,
)

LONG = "writing ~/keima/workers/worker3/inbox/model-000011.model: No space left on device; free space on its disk " * 3


def worker(name: str, state: WorkerState = WorkerState.ACTIVE, **changes: Any) -> WorkerStatus:
    values = {
        "machine": name,
        "since": 75.0,
        "reason": "" if state == WorkerState.ACTIVE else "its disk is full",
        "model_version": 12,
        "games_per_second": 12.34,
        "evaluations_per_second": 10_000.0,
        "outstanding": 250,
        "share": 0.25,
        "last_batch": 33.0,
    }
    return WorkerStatus(name=name, state=state, **{**values, **changes})


def fleet(*workers: WorkerStatus, **changes: Any) -> ClusterStatus:
    values = {"sync_seconds": 1.24, "network_mb_per_minute": 31.25, "model_version": 12}
    return ClusterStatus(workers=workers, network=ClusterNetwork(**{**values, **changes}))


def text_of(view: ClusterStatus) -> str:
    return status_text(view, title="connect-four", when="2026-11-21 13:53:26")


def line_of(text: str, name: str) -> str:
    return next(line for line in text.splitlines() if name in line.split())


def test_the_header_has_each_metric_with_its_unit() -> None:
    text = text_of(fleet(worker("worker1"), worker("worker2", WorkerState.OFFLINE)))
    header = " ".join(text.split("\n\n")[0].split())
    for metric in ("Games/second: 24.7", "Workers active: 1/2", "Model sync time: 1.2s", "Network usage: 31.2 MB/min"):
        assert metric in header


def test_workers_that_are_sent_a_model_are_counted_beside_the_active_ones() -> None:
    text = text_of(fleet(worker("worker1"), *(worker(f"worker{index}", WorkerState.SYNCING) for index in (2, 3))))
    assert "Workers active: 1/3, 2 syncing" in text


def test_before_the_first_sync_no_time_is_shown_for_it() -> None:
    assert "Model sync time: -" in text_of(fleet(sync_seconds=None))


@pytest.mark.parametrize(
    ("state", "shown"),
    [
        (WorkerState.ACTIVE, "🟢 Active"),
        (WorkerState.SYNCING, "🟡 Syncing"),
        (WorkerState.ERROR, "🔴 Error"),
        (WorkerState.OFFLINE, "⚪ Offline"),
    ],
)
def test_every_worker_has_its_state(state: WorkerState, shown: str) -> None:
    assert line_of(text_of(fleet(worker("worker1", state))), "worker1").startswith(shown)


def test_a_worker_has_its_share_rate_model_last_batch_and_grant() -> None:
    assert line_of(text_of(fleet(worker("worker1"))), "worker1").split()[3:] == [
        "25.0%",
        "12.3",
        "12",
        "33s",
        "ago",
        "250",
    ]


def test_missing_metrics_are_shown_as_a_dash() -> None:
    new = worker(
        "worker1", WorkerState.SYNCING, model_version=0, last_batch=None, outstanding=0, share=0.0, games_per_second=0.0
    )
    assert line_of(text_of(fleet(new)), "worker1").split()[3:] == ["0.0%", "0.0", "-", "-", "0"]


@pytest.mark.parametrize("state", [WorkerState.ERROR, WorkerState.OFFLINE, WorkerState.SYNCING])
def test_a_worker_that_does_not_play_says_since_when_and_why_in_full(state: WorkerState) -> None:
    text = text_of(fleet(worker("worker1", state, since=3 * 3600 + 120, reason=LONG)))
    assert "for 3h02m: writing" in text
    assert " ".join(LONG.split()) in " ".join(text.split())


def test_a_note_is_shown_even_if_the_worker_plays() -> None:
    assert "its clock is 2 min behind" in text_of(fleet(worker("worker1", note="its clock is 2 min behind")))


def test_trouble_comes_first() -> None:
    text = text_of(fleet(*(worker(f"is-{state.value}", state) for state in WorkerState)))
    places = [text.index(f"is-{name}") for name in ("Error", "Offline", "Syncing", "Active")]
    assert places == sorted(places)


def test_a_cluster_without_workers_says_how_to_add_one() -> None:
    assert "cluster add HOST USER" in text_of(fleet())


@pytest.mark.parametrize("count", [1, 12, 13, 50])
@pytest.mark.parametrize("state", list(WorkerState))
@pytest.mark.parametrize("name", ["w{}", "a-name-of-sixty-four-characters-{:032d}", "囲碁囲碁囲碁囲碁囲碁囲碁囲碁{}"])
def test_no_line_is_wider_than_80_columns(count: int, state: WorkerState, name: str) -> None:
    metrics = {"games_per_second": 12_345.6, "since": 1e7, "last_batch": 1e7, "share": 1.0, "outstanding": 1_000_000}
    workers = [
        worker(name.format(number), state, reason="囲碁" * 100 + " x" * 100, **metrics) for number in range(count)
    ]
    text = text_of(fleet(*workers, network_mb_per_minute=1e5))
    assert max(cell_len(line) for line in text.splitlines()) <= 80


def test_fifty_workers_fit_on_a_screen_with_the_reasons_of_trouble() -> None:
    active = [worker(f"worker{number}") for number in range(48)]
    text = text_of(
        fleet(*active, worker("broken", WorkerState.ERROR, reason=LONG), worker("gone", WorkerState.OFFLINE))
    )
    assert text.count("\n") <= 29
    assert "free space" in text and "its disk is full" in text
    assert all(f" {each.name} " in text for each in active)


def test_each_of_fifty_workers_in_trouble_takes_one_line() -> None:
    text = text_of(fleet(*(worker(f"worker{number}", WorkerState.OFFLINE, reason=LONG) for number in range(50))))
    assert text.count("⚪ Offline") == text.count("for 1m: writing") == 50
    assert text.count("\n") <= 55


def test_shortened_names_can_still_be_told_apart() -> None:
    names = [f"node-of-the-big-cluster-in-the-cellar-{number}" for number in range(3)]
    text = text_of(fleet(*map(worker, names)))
    assert len({line.split()[2] for line in text.splitlines() if "🟢" in line}) == 3


def test_text_from_a_machine_cannot_control_the_terminal() -> None:
    text = text_of(fleet(worker("worker1", WorkerState.ERROR, reason="\x1b[2J\x07beep\nnext\u202eline")))
    assert all(letter.isprintable() for letter in text.replace("\n", ""))


def test_json_has_the_same_status_for_programs(tmp_path: Path) -> None:
    StatusFile(tmp_path, title="go", wall=lambda: 1000.0).write_if_due(
        lambda: fleet(worker("worker1", WorkerState.ERROR, last_batch=None))
    )
    found = json.loads((tmp_path / JSON_NAME).read_text())
    assert (found["time"], found["title"], found["ended"], found["total"]) == (1000.0, "go", False, 1)
    assert found["workers"][0]["state"] == found["workers"][0]["mark"] == "Error"
    assert found["workers"][0]["last_batch"] is None


def test_the_files_are_written_once_a_second_at_most(tmp_path: Path) -> None:
    now, asked = [0.0], []

    def view() -> ClusterStatus:
        asked.append(now[0])
        return fleet()

    file = StatusFile(tmp_path, title="go", clock=lambda: now[0])
    for tenth in range(31):
        now[0] = tenth / 10
        file.write_if_due(view)
    assert asked == [0.0, 1.0, 2.0, 3.0]


def test_the_end_of_a_run_is_visible(tmp_path: Path) -> None:
    StatusFile(tmp_path, title="go").close(fleet())
    assert "ended 2" in (tmp_path / TEXT_NAME).read_text()
    assert json.loads((tmp_path / JSON_NAME).read_text())["ended"]


def test_the_status_has_the_core_hours_of_each_worker_and_of_all(tmp_path: Path) -> None:
    view = fleet(worker("worker1", core_hours=1.25), worker("worker2", WorkerState.OFFLINE, core_hours=0.5))
    assert "Core hours: 1.75" in text_of(view)
    StatusFile(tmp_path, title="go").write_if_due(lambda: view)
    values = json.loads((tmp_path / JSON_NAME).read_text())
    assert values["core_hours"] == 1.75 and [each["core_hours"] for each in values["workers"]] == [1.25, 0.5]


def test_the_status_shows_its_time_and_how_often_it_is_written(tmp_path: Path) -> None:
    StatusFile(tmp_path, title="go " * 40, wall=lambda: 1.7e9).write_if_due(lambda: fleet(worker("worker1")))
    first = (tmp_path / TEXT_NAME).read_text().splitlines()[0]
    assert (
        first.endswith(f"as of {time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(1.7e9))}, every 1 s")
        and cell_len(first) <= 80
    )


def test_the_status_of_a_killed_coach_is_stale_and_that_of_a_coach_that_ended_is_not(tmp_path: Path) -> None:
    assert stale_since(tmp_path) is None
    file = StatusFile(tmp_path, title="go", wall=lambda: 1.7e9)
    file.write_if_due(fleet)
    assert stale_since(tmp_path) == time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(1.7e9))
    file.close(fleet())
    assert stale_since(tmp_path) is None


@pytest.mark.parametrize(
    "content", ["", "[]", "{}", '{"ended": false, "time": "soon"}', '{"ended": false, "time": 1e99}']
)
def test_an_unreadable_status_is_not_called_stale(tmp_path: Path, content: str) -> None:
    (tmp_path / JSON_NAME).write_text(content)
    assert stale_since(tmp_path) is None


def test_other_users_may_read_the_status(tmp_path: Path) -> None:
    StatusFile(tmp_path, title="go").write_if_due(fleet)
    assert (tmp_path / TEXT_NAME).stat().st_mode & 0o777 == 0o644


def test_a_disk_that_rejects_the_status_is_reported_once_and_stops_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    now = [0.0]
    file = StatusFile(tmp_path / "missing", title="go", clock=lambda: now[0])
    with caplog.at_level(logging.WARNING):
        for second in range(3):
            now[0] = float(second)
            file.write_if_due(fleet)
    assert len(caplog.records) == 1
    (tmp_path / "missing").mkdir()
    now[0] = 4.0
    file.write_if_due(fleet)
    assert (tmp_path / "missing" / TEXT_NAME).exists()


READER = """
import sys
from pathlib import Path

path, reads = Path(sys.argv[1]), 0
print("reads", flush=True)
while not path.with_name("enough").exists():
    text = path.read_text()
    first, last = text.split()[1], text.split()[-1]
    assert text.endswith("\\n") and text.count("\\n") == 205 and f"end-{first}" == last, text
    reads += 1
    if reads == 101:
        path.with_name("plenty").touch()
print(reads)
"""


@pytest.mark.medium
def test_a_reader_never_sees_a_half_written_status(tmp_path: Path) -> None:
    """The first and last line of every status identify it."""

    def write(number: int) -> None:
        workers = [worker(f"worker{each}", WorkerState.ERROR) for each in range(199)]
        file = StatusFile(tmp_path, title=f"n{number}")
        file.write_if_due(lambda: fleet(*workers, worker("last", WorkerState.SYNCING, reason=f"end-n{number}")))

    write(0)
    reader = subprocess.Popen(
        [sys.executable, "-c", READER, str(tmp_path / TEXT_NAME)], stdout=subprocess.PIPE, text=True
    )
    assert reader.stdout is not None and reader.stdout.readline() == "reads\n"
    number = 0
    while number <= 20 or (reader.poll() is None and not (tmp_path / "plenty").exists()):
        number += 1
        write(number)
    (tmp_path / "enough").touch()
    reads, _ = reader.communicate(timeout=120)
    assert reader.returncode == 0
    assert number > 20 and int(reads) > 100


def test_a_time_is_short() -> None:
    assert [format_short_duration(seconds) for seconds in (0, 59.9, 60, 3599, 3600, 12_000, 359_999, 1e6)] == [
        "0s",
        "59s",
        "1m",
        "59m",
        "1h00m",
        "3h20m",
        "99h59m",
        "11d",
    ]


def test_a_word_that_is_too_long_for_a_line_is_broken() -> None:
    assert wrap_text("aa " + "b" * 12, 5) == ["aa", "bbbbb", "bbbbb", "bb"]
