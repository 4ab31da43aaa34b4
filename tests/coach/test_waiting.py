from dataclasses import replace

import pytest

from keima.coach.waiting import EVALUATING, GATHERING, TRAINING, Waiting
from tests.example_reports import worker


def test_seconds_of_each_phase_and_of_workers_without_games_are_added_up_once() -> None:
    now = 0.0
    waiting = Waiting(lambda: now)
    for phase, seconds in ((GATHERING, 5.0), (TRAINING, 3.0), (EVALUATING, 2.0), (TRAINING, 1.0)):
        waiting.enter_phase(phase)
        now += seconds
    report = waiting.report()
    assert (report.games, report.learning, report.evaluation, report.learner) == (5.0, 4.0, 2.0, 0.0)
    now += 1.0
    assert waiting.report().learning == 1.0  # the phase goes on


def test_empty_places_for_games_count_by_their_share() -> None:
    now = 0.0
    waiting = Waiting(lambda: now)
    workers = [replace(worker(), idle=idle) for idle in (1.0, 0.0, 0.5, 0.5)]
    now += 3.0
    waiting.count_waiting(workers)
    now += 1.0
    waiting.count_waiting(workers[1:2])
    assert waiting.report().learner == pytest.approx(1.5)
