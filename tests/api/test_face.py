"""The public face: names for Python programs, and the examples that use them."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import keima
from examples import analyse, minimal, read_games
from keima.paths import SHIPPED
from tests.sources import ROOT


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


@pytest.mark.trial
def test_the_whole_loop_in_sixty_lines_makes_fewer_mistakes_from_the_first_iteration_on(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(minimal, "GAMES", 50)
    assert minimal.main(iterations=2) < 0.2  # of an untrained network, about 0.4
    first, second, end = capsys.readouterr().out.splitlines()
    assert first.startswith("iteration 1: 50 games, loss ") and second.startswith("iteration 2: 100 games, loss ")
    assert end.startswith("It has not learned it yet")


@pytest.mark.slow
@pytest.mark.trial
def test_the_whole_loop_in_sixty_lines_learns_tic_tac_toe(capsys: pytest.CaptureFixture[str]) -> None:
    assert minimal.main() < 0.03
    assert capsys.readouterr().out.endswith("It has learned tic-tac-toe.\n")


@pytest.mark.medium
def test_a_position_can_be_analysed_from_its_moves(capsys: pytest.CaptureFixture[str]) -> None:
    assert analyse.main(["--network", str(SHIPPED / "models/go7.safetensors"), "--simulations", "16", "D4"]) == 0
    heading, first, *_ = capsys.readouterr().out.splitlines()
    assert heading.split() == ["move", "visits", "value", "prior", "principal", "line"]
    assert first.split()[0] == first.split()[4]  # a principal line begins with its move
    assert analyse.main(["--network", str(SHIPPED / "models/go7.safetensors"), "D4", "D4"]) == 2
    assert "not legal" in capsys.readouterr().err


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
def test_a_run_can_be_trained_and_its_games_read_as_arrays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
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
    capsys.readouterr()
    assert read_games.main([str(tmp_path / "run")]) == 0
    assert f"{len(games):,} games of" in capsys.readouterr().out
    with pytest.raises(ValueError, match="holds a run already"):
        keima.train(ROOT / "configs/tic_tac_toe.yaml", run_dir=tmp_path / "run")
