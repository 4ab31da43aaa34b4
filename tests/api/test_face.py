"""The public face: names for Python programs, and the examples that use them."""

import runpy
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import keima
from examples import analysis, training_loop
from tests.sources import ROOT
from tests.web.small_models import small_model


def test_importing_it_imports_nothing_heavy() -> None:
    heavy = ("torch", "numba", "numpy", "pydantic", "paramiko")
    code = f"import sys, keima; print(*(name for name in {heavy} if name in sys.modules))"
    assert (
        subprocess.run(
            [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
        ).stdout.strip()
        == ""
    )


@pytest.mark.medium
def test_every_name_exists_and_is_documented() -> None:
    for name in keima.__all__:
        assert getattr(keima, name).__doc__, name
    assert set(keima.__all__) <= set(dir(keima))
    with pytest.raises(AttributeError, match="it has Assignment, Evaluate"):
        _ = keima.nothing


@pytest.mark.slow
@pytest.mark.trial
def test_the_training_loop_of_the_examples_learns_tic_tac_toe() -> None:
    assert training_loop.main() > 0.9  # of 100 games from random openings of two moves, some of which are lost


@pytest.mark.medium
def test_a_position_can_be_analysed_from_its_moves(capsys: pytest.CaptureFixture[str]) -> None:
    analysis.main("D4", network="go7", simulations=16)
    heading, first, *_ = capsys.readouterr().out.splitlines()
    assert heading.split() == ["move", "visits", "value", "prior", "principal", "line"]
    assert first.split()[0] == first.split()[4]  # a principal line begins with its move
    with pytest.raises(ValueError, match="not legal"):
        keima.load_network("go7").analyse(["D4", "D4"])


@pytest.mark.medium
def test_where_chance_is_to_move_or_nothing_is_to_be_chosen_it_is_said(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="chance is to move"):
        keima.load_network(small_model(tmp_path, "twenty48")).analyse()
    with pytest.raises(ValueError, match="version selects a model of a run"):
        keima.load_network("go7", version=3)


def test_the_page_of_the_names_is_made_from_their_docstrings() -> None:
    tool = runpy.run_path(str(ROOT / "tools" / "api_page.py"))
    assert (ROOT / "docs" / "api.md").read_text(encoding="utf-8") == tool["page"](), "run: python tools/api_page.py"


@pytest.mark.medium
def test_players_play_single_games_from_openings() -> None:
    game = keima.load_game("connect_four")
    played = keima.play_game(game, keima.RandomPlayer(game, 1), keima.RandomPlayer(game, 2), opening=["4", "4"])
    assert played.moves[:2] == ("4", "4") and len(played.moves) == len(played.actions)
    assert played.returns.sum() == 0
    searched = keima.play_game(game, keima.UctPlayer(game, playouts=200, seed=1), keima.RandomPlayer(game, 2))
    assert searched.returns[0] == 1
    with pytest.raises(ValueError, match="has 2 players; 1 were given"):
        keima.play_game(game, keima.RandomPlayer(game, 1))


@pytest.mark.trial
def test_a_run_can_be_trained_and_its_games_read_as_arrays(tmp_path: Path) -> None:
    overrides = {
        "run.iterations": 1,
        "training.games_per_iteration": 20,
        "search.num_simulations": 8,
        "evaluation.every": 0,
    }
    report = keima.train(ROOT / "configs/tic_tac_toe.yaml", run_dir=tmp_path / "run", overrides=overrides)
    assert report is not None and report.iteration == 1
    games = list(keima.read_games(tmp_path / "run"))
    assert len(games) >= 20
    for game in games[:5]:
        plies = len(game.actions)
        assert game.policies().shape == (plies, 9) and game.observations().shape == (
            plies,
            *game.game.observation_shape,
        )
        searched = game.record.policy_sizes > 0  # not the random moves of the opening
        np.testing.assert_allclose(game.policies().sum(1), searched, rtol=1e-6)
        assert searched.any()
        assert len(game.moves()) == len(game.values) == plies
    network = keima.load_network(tmp_path / "run")
    assert len(network.analyse(simulations=8, most=3)) == 3
    with pytest.raises(ValueError, match="holds a run already"):
        keima.train(ROOT / "configs/tic_tac_toe.yaml", run_dir=tmp_path / "run")
