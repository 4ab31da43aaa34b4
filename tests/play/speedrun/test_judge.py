"""Targets are files; the judge finds the first model that meets one."""

from pathlib import Path

import pytest

from keima.base.named import find_target
from keima.config.load import ConfigError
from keima.games import load_game
from keima.play.speedrun.judge import Judgement, find_first_that_meets, find_opponent, goal_text, judgement_text
from keima.play.speedrun.target import list_targets, load_target


def judged(*, met: bool) -> Judgement:
    return Judgement(value=0.02, low=0.014, high=0.026, count=2000, met=met)


@pytest.mark.parametrize(("first", "judgements"), [(1, 4), (4, 4), (8, 4), (9, 1)])
def test_the_first_version_that_meets_the_target_is_found_by_bisection(first: int, judgements: int) -> None:
    asked = list[int]()

    def judge(version: int) -> Judgement:
        asked.append(version)
        return judged(met=version >= first)

    found, known = find_first_that_meets(range(1, 9), judge)
    assert found == (first if first <= 8 else None)
    assert len(asked) == len(set(asked)) <= judgements and set(known) == set(asked)


def test_shipped_targets_are_valid_and_say_what_they_ask_for() -> None:
    targets = list_targets()
    assert {"connect_four", "go9_gnugo", "othello_rhino", "tic_tac_toe"} <= targets.keys()
    assert goal_text(targets["connect_four"]) == "the whole 95 % interval below 2.0 % errors"
    assert "above 50.0 % against gnugo:10" in goal_text(targets["go9_gnugo"])
    assert judgement_text(targets["connect_four"], judged(met=True)) == "2.0 % (1.4 to 2.6) errors in 2,000 positions"


def test_a_target_has_one_goal(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("title: mine\nconfig: go9\nsimulations: 8\n")
    with pytest.raises(ConfigError, match="give either errors or match"):
        load_target(path)


def test_a_name_that_is_nearly_right_is_corrected() -> None:
    with pytest.raises(ValueError, match="did you mean connect_four"):
        find_target("conect_four")


def test_an_opponent_is_a_rung_of_the_game_s_ladder_or_knows_only_the_rules() -> None:
    go9, hex_like = load_game("go", size=9, komi=7.0), load_game("connect_four")
    assert find_opponent(go9, "mcts:1000").name == "mcts:1000"
    assert find_opponent(hex_like, "mcts:123").name == "mcts:123"
    with pytest.raises(ValueError, match="there is no opponent nobody for connect_four"):
        find_opponent(hex_like, "nobody")
    with pytest.raises(ValueError, match=r"katago:100 cannot play: there is no program katago here; to install it"):
        find_opponent(go9, "katago:100")
