"""The output of a run of workers on named devices, line by line."""

from dataclasses import replace

import pytest

from keima.base.reports.run_reports import IterationReport, ProgressReport, ScoreReport
from keima.base.reports.worker_status import WorkerStatus
from keima.report.terminal.devices import RULE, DeviceLines, games_line
from tests.example_reports import evaluation, iteration, progress, worker

TITLES = {"gpu-0": "GPU 0", "gpu-1": "GPU 1"}


class Desk:
    """A Coach whose workers have done what the test says, and the lines about it."""

    def __init__(self, titles: dict[str, str] | None = None) -> None:
        self.now, self.said = 0.0, list[str]()
        self.lines = DeviceLines(titles or TITLES, self.said.append, epochs=2.0, clock=lambda: self.now)

    def look(self, *workers: WorkerStatus, here: int = 0, complete: bool = False, number: int = 1) -> list[str]:
        """Return the lines after a poll of these workers."""
        before = len(self.said)
        report: ProgressReport = progress(number, iterations=2, workers=workers)
        played = replace(iteration(number).self_play, seconds=9.1, games_per_second=10.99)
        self.lines.progress(replace(report, games_here=0 if complete else here, self_play=played if complete else None))
        return self.said[before:]

    def conclude(self, report: IterationReport) -> list[str]:
        before = len(self.said)
        self.lines.iteration(report)
        return self.said[before:]


def worker_at(name: str, *, games: int = 0, outstanding: int = 0, waiting: int = 0, error: str = "") -> WorkerStatus:
    return replace(worker(0, error=error), name=name, games=games, outstanding=outstanding, waiting=waiting)


def test_an_iteration_is_reported_as_it_happens_in_the_guide_s_words() -> None:
    desk = Desk()
    assert desk.look(worker_at("gpu-0"), worker_at("gpu-1")) == [], "nothing is shared out yet"
    assert desk.look(worker_at("gpu-0", outstanding=50), worker_at("gpu-1", outstanding=50)) == [
        "=== Iteration 1 ===",
        "Generating 100 games...",
        "",
        "Generating 100 games across 2 GPUs...",
        "Games per GPU: [50, 50]",
        RULE,
    ]
    desk.now = 4.0
    assert (
        desk.look(worker_at("gpu-0", games=20, outstanding=30), worker_at("gpu-1", outstanding=50, waiting=10), here=20)
        == []
    )
    desk.now = 8.2
    finished = worker_at("gpu-0", games=20, outstanding=30, waiting=30), worker_at("gpu-1", outstanding=50, waiting=10)
    assert desk.look(*finished, here=20) == [
        "[    8.2s] GPU 0: Completed 50 games | Total: 1/2 GPUs done | Progress: 60/100 games"
    ]
    desk.now = 9.1
    assert desk.look(worker_at("gpu-0", games=50), worker_at("gpu-1", games=50), complete=True) == [
        "[    9.1s] GPU 1: Completed 50 games | Total: 2/2 GPUs done | Progress: 100/100 games",
        RULE,
        "Completed 100 games in 9.1s (11.0 games/sec)",
        "",
        "Game stats: {'total_games': 100, 'avg_moves': 23.0, 'white_win_rate': 0.55, 'draw_rate': 0.08}",
        "Adding games to replay buffer...",
        "Buffer size: 2300",
    ]
    assert desk.look(worker_at("gpu-0", games=50), worker_at("gpu-1", games=50), complete=True) == []
    assert desk.conclude(iteration(1, workers=(worker_at("gpu-0", games=50), worker_at("gpu-1", games=50)))) == [
        "Training for 2 epochs...",
        "Training losses: {'total_loss': 2.0, 'policy_loss': 1.5, 'value_loss': 0.5, 'entropy': 1.0}",
        "",
    ]


def test_the_next_iteration_starts_afresh() -> None:
    desk = Desk()
    workers = worker_at("gpu-0", games=50), worker_at("gpu-1", games=50)
    desk.conclude(iteration(1, workers=workers))
    desk.now = 100.0
    assert desk.look(
        worker_at("gpu-0", games=50, outstanding=51), worker_at("gpu-1", games=50, outstanding=50), number=2
    ) == [
        "=== Iteration 2 ===",
        "Generating 101 games...",
        "",
        "Generating 101 games across 2 GPUs...",
        "Games per GPU: [51, 50]",
        RULE,
    ]
    desk.now = 103.0
    assert desk.look(
        worker_at("gpu-0", games=50, outstanding=51, waiting=51), worker_at("gpu-1", games=50, outstanding=50), number=2
    ) == ["[    3.0s] GPU 0: Completed 51 games | Total: 1/2 GPUs done | Progress: 51/100 games"]


def test_a_device_that_gets_another_one_s_games_reports_it_when_it_has_finished_them() -> None:
    desk = Desk()
    desk.look(worker_at("gpu-0", outstanding=50), worker_at("gpu-1", outstanding=50))
    assert len(desk.look(worker_at("gpu-0", games=50), worker_at("gpu-1", outstanding=50, waiting=20), here=50)) == 1
    desk.lines.event("ERROR in GPU 1: ended with exit code -9 and is started again")
    assert desk.said[-1] == "ERROR in GPU 1: ended with exit code -9 and is started again"
    after = worker_at("gpu-0", games=50, outstanding=30), worker_at("gpu-1", outstanding=20, waiting=20)
    assert desk.look(*after, here=50) == [
        "[    0.0s] GPU 1: Completed 20 games | Total: 1/2 GPUs done | Progress: 70/100 games"
    ]
    last = worker_at("gpu-0", games=80), worker_at("gpu-1", games=20)
    assert (
        desk.look(*last, complete=True)[0]
        == "[    0.0s] GPU 0: Completed 80 games | Total: 2/2 GPUs done | Progress: 100/100 games"
    )


def test_a_worker_in_trouble_is_named_once_and_cannot_control_the_terminal() -> None:
    desk = Desk()
    told = desk.look(worker_at("gpu-0", error="model 3: \x1b[2Jdamaged"), worker_at("gpu-1"))
    assert told == ["ERROR in GPU 0: model 3: [2Jdamaged"]
    assert desk.look(worker_at("gpu-0", error="model 3: \x1b[2Jdamaged"), worker_at("gpu-1")) == []
    desk.lines.event("ERROR in GPU 1: ended 2 times")
    assert desk.look(worker_at("gpu-0"), worker_at("gpu-1", error="ended 2 times")) == [], "the event has said it"


def test_an_iteration_started_by_an_earlier_session_shows_its_received_games() -> None:
    desk = Desk()
    said = desk.look(
        worker_at("gpu-0", games=40, outstanding=30), worker_at("gpu-1", games=40, outstanding=30), here=40
    )
    assert said[3:5] == [
        "Generating 60 games across 2 GPUs... (40 of this iteration's 100 are here already)",
        "Games per GPU: [30, 30]",
    ]


def test_several_workers_of_a_gpu_are_counted_together() -> None:
    desk = Desk({"gpu-0-1": "GPU 0", "gpu-0-2": "GPU 0"})
    assert desk.look(worker_at("gpu-0-1", outstanding=50), worker_at("gpu-0-2", outstanding=50))[3:5] == [
        "Generating 100 games across 1 GPU...",
        "Games per GPU: [100]",
    ]
    assert (
        desk.look(worker_at("gpu-0-1", outstanding=50, waiting=50), worker_at("gpu-0-2", outstanding=50, waiting=49))
        == []
    )


def test_processes_on_the_cpu_are_named_after_it() -> None:
    desk = Desk({"cpu-0": "CPU 0", "cpu-1": "CPU 1"})
    assert desk.look(worker_at("cpu-0", outstanding=1), worker_at("cpu-1", outstanding=1))[4] == "Games per CPU: [1, 1]"


@pytest.mark.parametrize("learned", [True, False])
def test_unreported_results_are_reported_at_the_end(learned: bool) -> None:
    said = Desk().conclude(iteration(2, learned=learned, measured=evaluation(2)))
    assert said[0] == "Completed 100 games in 0.0s (12.3 games/sec)"
    assert said[4] == "Buffer size: 4600"
    trained = [
        "Training for 2 epochs...",
        "Training losses: {'total_loss': 1.0, 'policy_loss': 0.75, 'value_loss': 0.25, 'entropy': 1.0}",
    ]
    assert said[5:-2] == (trained if learned else ["Training losses: none, with too few positions yet or no time left"])
    assert said[-2:] == ["Strength of model 2: elo=200 ± 40, not_lost_to_random=0.990", ""]


def test_training_is_announced_when_it_begins() -> None:
    desk = Desk()
    desk.look(worker_at("gpu-0", outstanding=50), worker_at("gpu-1", outstanding=50))
    desk.look(worker_at("gpu-0", games=50), worker_at("gpu-1", games=50), complete=True)
    desk.lines.progress(replace(progress(1), phase="training"))
    desk.lines.progress(replace(progress(1), phase="training"))
    assert desk.said.count("Training for 2 epochs...") == 1 and desk.said[-1] == "Training for 2 epochs..."


def test_in_a_game_of_chance_plies_are_called_plies() -> None:
    games = replace(
        iteration(1).self_play, score=ScoreReport(games=100, mean=2014.04, margin=None, median=1926.0, best=3592.0)
    )
    assert games_line(games) == "Game stats: {'total_games': 100, 'avg_plies': 23.0, 'avg_score': 2014.0}"
