"""Opening a run, new or left by an earlier session."""

import logging
from pathlib import Path

import pytest

from keima.coach.loop import Coach
from keima.coach.opening import open_coach, repeatable_run_id
from keima.config.schema import Settings
from keima.learning.checkpoint import Checkpoints
from tests.coach.coaching import coaching, inline
from tests.small_run import small_settings


def opened(folder: Path, settings: Settings) -> Coach:
    return open_coach(
        folder, settings, make_backend=lambda game, run_id: inline(folder, settings, run_id), observers=[]
    )


@pytest.mark.medium
def test_a_run_is_resumed_with_the_same_learner_and_window(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    coach = opened(tmp_path, small_settings(tmp_path))
    coach.run()
    coach.ledger.close()
    resumed = opened(tmp_path, small_settings(tmp_path, run={"iterations": 3}))
    assert vars(resumed.state) == vars(coach.state)
    resumed.run()
    resumed.ledger.close()
    assert resumed.state.iteration == 3
    saved, again = (
        [text.split(": ", 1)[1] for text in caplog.messages if text.startswith(start)]
        for start in ("checkpoint-", "resumed")
    )
    assert again == [saved[2]]


@pytest.mark.medium
def test_a_run_with_a_changed_network_is_not_resumed(tmp_path: Path) -> None:
    with coaching(tmp_path, small_settings(tmp_path)) as coach:
        coach.run()
    with pytest.raises(ValueError, match="was the network changed"):
        opened(tmp_path, small_settings(tmp_path, network={"channels": 16}))


def test_a_run_whose_network_has_grown_is_not_resumed_without_its_steps(tmp_path: Path) -> None:
    with coaching(tmp_path, small_settings(tmp_path)) as coach:
        Checkpoints(tmp_path / "checkpoints").save(coach.learner.state(), {"grown": 2})
    with pytest.raises(ValueError, match=r"network.growth: the network of .* has grown 2 times"):
        opened(tmp_path, small_settings(tmp_path, network={"growth": ["2x8@0.5"]}))


def test_a_checkpoint_of_another_version_is_refused_by_name(tmp_path: Path) -> None:
    with coaching(tmp_path, small_settings(tmp_path)) as coach:
        Checkpoints(tmp_path / "checkpoints").save(coach.learner.state(), {"iteration": 1, "unheard_of": 2})
    with pytest.raises(ValueError, match="checkpoint-000001 was written by another version"):
        opened(tmp_path, small_settings(tmp_path))


def test_in_synchronous_mode_a_seed_gives_the_same_run_id(tmp_path: Path) -> None:
    def settings(seed: int) -> Settings:
        return small_settings(tmp_path, run={"seed": seed}, training={"asynchronous": False})

    assert repeatable_run_id(settings(1)) == repeatable_run_id(settings(1)) != repeatable_run_id(settings(2))
    assert repeatable_run_id(small_settings(tmp_path)) is None
