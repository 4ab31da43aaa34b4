"""The stages of a run on smaller boards: which they are, which are left, and which no network can learn together."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from keima.coach.stages import Stage, begin_run_folder, check_growth, check_stages, explain_misfit, stages_left
from keima.config.load import load_settings
from keima.config.schema import Settings
from keima.games import load_game
from tests.small_run import NETWORK, small_settings

GO = {"name": "go", "options": {"size": 9, "komi": 7.0}, "smaller": ["size=5 komi=24.5@0.1", "size=7@0.3"]}


def settings(folder: Path, **changes: Any) -> Settings:
    return small_settings(folder, **{"run": {"minutes": 10.0}, "game": GO, **changes})


def begin(stage: Stage) -> None:
    (stage.folder / "checkpoints" / "checkpoint-000001").mkdir(parents=True)


def test_each_smaller_board_is_a_run_of_its_own_and_the_last_stage_is_the_run_itself(tmp_path: Path) -> None:
    wanted = settings(tmp_path, network={"growth": ["2x8@0.3"]}, evaluation={"every": 3})
    first, second, own = stages_left(tmp_path, wanted)
    assert (own.folder, own.settings) == (tmp_path, wanted)
    assert [stage.folder for stage in (first, second)] == [
        tmp_path / "smaller" / name for name in ("size-5_komi-24.5", "size-7")
    ]
    assert first.settings.game.options == {"size": 5, "komi": 24.5}
    assert second.settings.game.options == {"size": 7, "komi": 7.0}
    assert [stage.settings.run.minutes for stage in (first, second, own)] == [1.0, 3.0, 10.0]
    assert [stage.run_minutes for stage in (first, second, own)] == [10.0, 10.0, 10.0]
    assert len({stage.settings.run.name for stage in (first, second, own)}) == 3, "their games have different run ids"
    for stage in (first, second):
        assert stage.settings.run.iterations is None and not stage.settings.network.growth
        assert stage.settings.evaluation.every == 0
        assert Settings.model_validate(stage.settings.model_dump()) == stage.settings
    assert "size=5 komi=24.5 until 1 minutes" in first.news and "then size=7" in first.news
    assert "size=7 until 3 minutes" in second.news and "its own board" in second.news


def test_what_has_begun_is_left_and_what_came_before_is_not(tmp_path: Path) -> None:
    wanted = settings(tmp_path)
    stages = stages_left(tmp_path, wanted)
    begin(stages[0])
    assert stages_left(tmp_path, wanted) == stages
    begin(stages[1])
    assert stages_left(tmp_path, wanted) == stages[1:]
    begin(stages[2])
    (own,) = stages_left(tmp_path, wanted)
    assert own.folder == tmp_path and not own.news


def test_a_run_that_goes_on_by_its_own_settings_has_the_same_boards(tmp_path: Path) -> None:
    wanted = settings(tmp_path)
    before = stages_left(tmp_path, wanted)
    begin_run_folder(before[-1])
    after = stages_left(tmp_path, load_settings(tmp_path / "config.yaml"))
    boards = [
        [load_game("go", **stage.settings.game.options).options for stage in stages] for stages in (before, after)
    ]
    assert boards[0] == boards[1] and [board["size"] for board in boards[0]] == [5, 7, 9]


@pytest.mark.medium
@pytest.mark.parametrize(("kind", "channels"), [("resnet", (128, 144, 192)), ("bottleneck", (256, 288, 320))])
def test_growth_to_a_size_that_cannot_hold_the_one_before_is_told(
    tmp_path: Path, kind: str, channels: tuple[int, int, int]
) -> None:
    def check(last: int) -> None:
        growth = [f"3x{channels[0]}@0.2", f"3x{last}@0.5"]
        network = {"type": kind, "blocks": 2, "channels": channels[0], "global_pooling": True, "growth": growth}
        check_growth(load_game("go", size=9), settings(tmp_path, network=network, game={"smaller": []}).network)

    with pytest.raises(ValueError, match=rf"3x{channels[0]} cannot become 3x{channels[1]}: .* would not fit"):
        check(channels[1])
    check(channels[2])


def test_a_run_without_smaller_boards_has_one_stage(tmp_path: Path) -> None:
    wanted = small_settings(tmp_path)
    assert stages_left(tmp_path, wanted) == [Stage(folder=tmp_path, settings=wanted, run_minutes=wanted.run.minutes)]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"game": {"smaller": ["size=5@0.3", "size=7@0.3"]}}, "must ascend from 0, but 0.3 follows 0.3"),
        ({"game": {"smaller": ["size=5@0.0"]}}, "must ascend from 0, but 0 follows 0"),
        ({"game": {"smaller": ["size=5@1.5"]}}, "expected OPTION=NUMBER@SHARE"),
        ({"game": {"smaller": ["5@0.5"]}}, "expected OPTION=NUMBER@SHARE"),
        ({"run": {"minutes": None}}, "it needs run.minutes"),
        ({"network": {"growth": ["2x8@0.2"]}}, "may grow when the game has its own board, from 0.3"),
    ],
)
def test_smaller_boards_that_cannot_be_are_told(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    sections: dict[str, dict[str, Any]] = {"run": {"minutes": 10.0}, "game": GO}
    merged = {name: {**sections.get(name, {}), **changes.get(name, {})} for name in (*sections, *changes)}
    with pytest.raises(ValidationError, match=message):
        small_settings(tmp_path, **merged)


@pytest.mark.parametrize(
    ("game", "message"),
    [
        ({"name": "go", "smaller": ["sise=5@0.5"]}, "'go' has no option 'sise'"),
        ({"name": "go", "smaller": ["size=4@0.5"]}, "size must be from 5 to 19, not 4"),
        ({"name": "go", "smaller": ["size=9@0.5"]}, "9 x 9 points follow 9 x 9"),
        ({"name": "go", "smaller": ["size=7@0.2", "size=5@0.5"]}, "5 x 5 points follow 7 x 7"),
        ({"name": "tic_tac_toe", "smaller": ["size=2@0.5"]}, "'tic_tac_toe' has no option 'size'"),
        ({"name": "twenty48", "smaller": ["height=3@0.5"]}, "both 3 x 4 and 4 x 4 points: the network's values are"),
    ],
)
def test_a_game_without_the_board_is_refused_before_the_run_begins(
    tmp_path: Path, game: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        check_stages(stages_left(tmp_path, settings(tmp_path, game=game)))


@pytest.mark.parametrize("kind", ["resnet", "bottleneck", "spiking"])
def test_every_architecture_learns_go_on_all_boards_together(kind: str) -> None:
    arguments = {**NETWORK, "type": kind, "global_pooling": True}
    assert explain_misfit(load_game("go", size=5), load_game("go", size=9), arguments) == ""


def test_a_game_whose_moves_are_not_points_has_weights_for_each_board() -> None:
    large = load_game("connect_four")
    planes, height, width = large.observation_shape
    small = replace(large, observation_shape=(planes, height - 1, width))
    assert "moves are not points of its board" in explain_misfit(small, large, NETWORK)
