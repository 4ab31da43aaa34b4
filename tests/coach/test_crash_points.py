"""A run is killed at every operation on its files and its ledger, and continues from each as if nothing had
happened.
"""

import json
import shutil
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from keima.cli.reports.audit import audit
from keima.coach.loop import Coach
from keima.config.schema import Settings
from keima.data.ledger import read_ledger
from keima.data.receive import recover_batches
from tests.coach.coaching import Listener, coaching
from tests.coach.crash_points import Snapshots, before_each_operation, refused_at
from tests.small_run import GAME, small_settings
from tests.trials.kill import RECOVERABLE

pytestmark = pytest.mark.medium

TRIFLES = frozenset({"worker.json", "worker.lock"})  # written by the worker about itself
ITERATIONS = 2


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """The folder of a run that has completed one iteration and could do more."""
    folder = tmp_path / "run"
    folder.mkdir()
    with coaching(folder, settings(tmp_path, 1)) as coach:
        coach.run()
    return folder


def settings(folder: Path, iterations: int = ITERATIONS) -> Settings:
    training = {"checkpoint_every": 1, "keep_checkpoints": 2, "games_per_iteration": 20}
    return small_settings(folder, run={"iterations": iterations}, training=training)


def go_on(folder: Path, iterations: int = ITERATIONS) -> None:
    """Resume the run as the program does, and let it end."""
    with coaching(folder, settings(folder.parent, iterations)) as coach:
        recover_batches(coach.ledger, GAME)
        seen = [row for row in coach.ledger.received_batches() if row.sequence <= coach.state.window_sequence]
        assert coach.state.total_games == sum(row.games for row in seen)  # the rest is counted as new
        coach.run()


def check_whole(folder: Path, iterations: int = ITERATIONS) -> None:
    """Assert that nothing is lost, nothing counts twice, and every iteration was done once."""
    assert audit(folder).problems == []
    with read_ledger(folder) as ledger:
        rows, reports = ledger.batches(), ledger.iterations()
    assert all(row.state == "received" for row in rows)
    assert [report["iteration"] for report in reports] == list(range(1, iterations + 1))
    newest = max((folder / "checkpoints").glob("checkpoint-*[0-9]"))
    state = json.loads(json.loads((newest / "checkpoint.json").read_bytes())["content"])["coach"]
    assert state["total_games"] == sum(row.games for row in rows)
    assert not list(folder.rglob("*.games.part")) and not list(folder.glob("workers/*/outbox/*.games"))


def complete_batches(folder: Path) -> Counter[str]:
    return Counter(
        path.stem for pattern in ("workers/*/outbox/*.games", "games/*.games") for path in folder.glob(pattern)
    )


def test_operations_of_another_thread_hide_none(tmp_path: Path) -> None:
    folder, end = tmp_path / "run", threading.Event()
    folder.mkdir()
    snapshots = Snapshots(folder)

    def poll() -> None:
        snapshots.poll()
        time.sleep(0.01)

    def trouble() -> None:
        while not end.is_set():
            (tmp_path / "elsewhere").mkdir()
            (tmp_path / "elsewhere").rmdir()

    with before_each_operation(poll):
        thread = threading.Thread(target=trouble)
        thread.start()
        for number in range(10):
            (folder / str(number)).mkdir()
        end.set()
        thread.join()
    assert len(snapshots.states) >= 10


def check_state(state: Path, *, to_its_end: bool = True) -> None:
    """Check a killed run's folder: its ledger balances except for files that the next start receives, which loses
    nothing.
    """
    assert [problem for problem in audit(state).problems if RECOVERABLE not in problem] == []
    finished = complete_batches(state)
    if to_its_end:
        go_on(state)
        check_whole(state)
    else:
        check_start(state)
    with read_ledger(state) as ledger:
        received = Counter(row.id for row in ledger.batches())
    taken = finished if to_its_end else {path.stem for path in state.glob("games/*.games")}
    assert {batch: received[batch] for batch in taken if received[batch] != 1} == {}


def check_start(state: Path) -> None:
    """Check the state of a resumed run at its start: everything received counts once, and the newest accepted model
    plays.
    """
    with coaching(state, settings(state.parent, ITERATIONS + 1)) as coach:
        recover_batches(coach.ledger, GAME)
        coach.start()
        assert coach.state.total_games == sum(row.games for row in coach.ledger.received_batches())
        assert coach.model is not None and coach.model.model_version == coach.state.model_version
        coach.save()
    assert audit(state).problems == []


def killed_at_each_operation(
    folder: Path, action: Callable[[Coach], object], *, before: Callable[[Coach], object]
) -> list[Path]:
    """Return what kills within ``action`` leave of the run."""
    snapshots = Snapshots(folder, trifles=TRIFLES)
    with coaching(folder, settings(folder.parent)) as coach:
        before(coach)
        with before_each_operation(snapshots.poll):
            action(coach)
        snapshots.poll()
    return snapshots.states


def play_an_iteration(coach: Coach) -> None:
    coach.start()
    coach.gather()
    coach.learn()


def conclude(coach: Coach) -> None:
    coach.conclude(coach.receiving.tally.report(coach.clock()), None, None)


def end_an_iteration(coach: Coach) -> None:
    coach.publish()
    conclude(coach)


@pytest.mark.parametrize(
    ("action", "before", "least"),
    [
        pytest.param(Coach.publish, play_an_iteration, 8, marks=pytest.mark.slow),
        pytest.param(conclude, play_an_iteration, 10, marks=pytest.mark.slow),
        (Coach.save, Coach.start, 10),
    ],
    ids=["publish", "conclude", "save"],
)
def test_a_kill_at_any_operation_of_it_loses_nothing(
    run: Path, action: Callable[[Coach], object], before: Callable[[Coach], object], least: int
) -> None:
    states = killed_at_each_operation(run, action, before=before)
    assert len(states) >= least
    for state in states:
        check_state(state, to_its_end=state is states[len(states) // 2])


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_kill_at_any_operation_of_a_whole_run_loses_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    states = killed_at_each_operation(folder, Coach.run, before=lambda coach: None)
    assert len(states) > 100
    for state in states:
        check_state(state)
        shutil.rmtree(state)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_kill_at_any_operation_of_a_resume_loses_nothing(run: Path) -> None:
    snapshots = Snapshots(run, trifles=TRIFLES)
    with before_each_operation(snapshots.poll):
        go_on(run)
    for state in snapshots.states:
        check_state(state)
        shutil.rmtree(state)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_disk_that_is_full_at_any_operation_of_an_iteration_s_end_is_waited_for(run: Path) -> None:
    number, refused = 0, 0
    while True:
        number += 1
        folder = run.with_name(f"full-{number}")
        shutil.copytree(run, folder)
        listener = Listener()
        with coaching(folder, settings(run.parent), listeners=[listener]) as coach:
            play_an_iteration(coach)
            try:
                assert refused_at(number, partial(end_an_iteration, coach)) is None
            except IndexError:
                break
            refused += any("no space left" in text for text in listener.events)
            coach.run()
        check_whole(folder)
        shutil.rmtree(folder)
    assert number > 20 and refused > 10


def test_a_full_disk_ends_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listener = Listener()
    folder = tmp_path / "run"
    folder.mkdir()
    with coaching(folder, settings(tmp_path), listeners=[listener]) as coach:
        add = coach.ledger.add_iteration
        tries: list[int] = []

        def full(number: int, report: dict[str, object]) -> None:
            tries.append(number)
            if len(tries) < 5:
                raise sqlite3.OperationalError("database or disk is full")
            add(number, report)

        monkeypatch.setattr(coach.ledger, "add_iteration", full)
        coach.run()
    assert tries == [1, 1, 1, 1, 1, 2]
    assert sum("disk is full" in text for text in listener.events) == 1  # it is reported once
    check_whole(folder)
