"""Events as TensorBoard's own reader sees them."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader

from keima.base.reports.run_reports import IterationReport
from keima.report.files.run_files import EventFile, report_scalars
from keima.report.metrics import METRICS
from tests.example_reports import evaluation, iteration
from tests.report.disk import full_disk
from tests.sources import ROOT

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the reader


def write(folder: Path, reports: Sequence[IterationReport]) -> None:
    """Write a session's iterations."""
    file = EventFile(folder)
    for report in reports:
        file.iteration(report)


def losses(folder: Path) -> dict[int, float]:
    """Return the loss of each iteration."""
    found = EventAccumulator(str(folder)).Reload()
    return {event.step: event.value for event in found.Scalars("learner/loss")} if found.scalars.Keys() else {}


def test_every_metric_of_every_iteration_is_read(tmp_path: Path) -> None:
    reports = [iteration(number, measured=evaluation(number)) for number in (1, 2, 3)]
    write(tmp_path, reports)
    found = EventAccumulator(str(tmp_path)).Reload()
    assert set(found.Tags()["scalars"]) == report_scalars(reports[0]).keys()
    for name in found.Tags()["scalars"]:
        events = [(event.step, event.value) for event in found.Scalars(name)]
        assert events == [(report.iteration, pytest.approx(report_scalars(report)[name])) for report in reports], name


def test_the_first_value_of_a_metric_comes_with_its_description(tmp_path: Path) -> None:
    write(tmp_path, [iteration(1), iteration(2)])
    (file,) = tmp_path.iterdir()
    values = [value for event in LegacyEventFileLoader(str(file)).Load() for value in event.summary.value]
    texts = [value.metadata.summary_description for value in values if value.tag == "learner/loss"]
    assert texts == [next(metric.help for metric in METRICS if metric.name == "learner/loss"), ""]


def test_a_resumed_run_s_repeated_iterations_replace_the_earlier_ones(tmp_path: Path) -> None:
    write(tmp_path, [iteration(number, loss=1.0) for number in (1, 2, 3, 4)])
    write(tmp_path, [iteration(number, loss=0.5) for number in (3, 4, 5)])
    assert len(list(tmp_path.iterdir())) == 2
    assert losses(tmp_path) == {1: 1.0, 2: 1.0, 3: 0.5, 4: 0.5, 5: 0.5}


@pytest.mark.medium
def test_what_was_reported_before_a_kill_is_read_and_the_run_goes_on_from_there(tmp_path: Path) -> None:
    program = f"""
import itertools, pathlib
from tests.example_reports import iteration
from keima.report.files.run_files import EventFile
file = EventFile(pathlib.Path({str(tmp_path)!r}))
for number in itertools.count(1):
    file.iteration(iteration(number, loss=1.0))
    print(number, flush=True)
"""
    with subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        while (last := int(process.stdout.readline())) < 20:
            pass
        process.kill()
    assert set(range(1, last + 1)) <= losses(tmp_path).keys()
    write(tmp_path, [iteration(number, loss=0.5) for number in (19, 20, 21)])
    assert losses(tmp_path) == {**dict.fromkeys(range(1, 19), 1.0), **dict.fromkeys(range(19, 22), 0.5)}


def test_a_torn_last_event_hides_neither_earlier_ones_nor_the_next_session(tmp_path: Path) -> None:
    write(tmp_path, [iteration(number, loss=1.0) for number in (1, 2, 3)])
    (file,) = tmp_path.iterdir()
    file.write_bytes(file.read_bytes()[:-10])
    assert losses(tmp_path) == {1: 1.0, 2: 1.0}
    write(tmp_path, [iteration(3, loss=0.5)])
    assert losses(tmp_path) == {1: 1.0, 2: 1.0, 3: 0.5}


def test_a_full_disk_neither_tears_nor_loses_an_event(tmp_path: Path) -> None:
    observer = EventFile(tmp_path)
    observer.iteration(iteration(1, loss=1.0))
    (file,) = tmp_path.iterdir()
    with full_disk(file.stat().st_size + 100), pytest.raises(OSError):
        observer.iteration(iteration(2, loss=1.0))
    assert losses(tmp_path) == {1: 1.0}
    observer.iteration(iteration(3, loss=1.0))
    assert losses(tmp_path) == {1: 1.0, 2: 1.0, 3: 1.0}
