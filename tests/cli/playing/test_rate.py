"""The rating as a program, with tiny networks."""

import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from keima.base.system.signals import INTERRUPTED
from keima.cli.playing import progress, rate
from keima.evaluation.perfect_play import POSITIONS_FILE, SolvedPositions, load_positions, read_moves
from keima.games import Game, load_game
from keima.games.game import Actions, States
from keima.play.rating import game_cache, perfect_player, rate_any_game, rate_games
from tests.small_run import GAME, saved_model

QUICK = ("--simulations", "2", "--processes", "1", "--minutes", "0.02")
LADDER = {
    "game": "tic_tac_toe",
    "scale": "a random player is 0",
    "opening_plies": 1,
    "engines": [
        {"name": "random", "protocol": "built-in", "rungs": [{"elo": 0}]},
        {"name": "mcts", "protocol": "built-in", "rungs": [{"level": 5}]},
        {
            "name": "other",
            "protocol": "gtp",
            "programs": ["no-such-program"],
            "install": "build it",
            "rungs": [{"level": 3, "elo": 500}],
        },
    ],
}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of games of the test's own."""
    folder = tmp_path / "cache"
    monkeypatch.setattr(game_cache, "RATINGS", folder)
    monkeypatch.setattr(progress, "LINE_SECONDS", 1e9)
    return folder


def play_few_games(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let equal playouts be found by two games and 64 playouts at most."""
    monkeypatch.setattr(rate_any_game, "GAMES", 2)
    monkeypatch.setattr(rate_any_game, "MOST_PLAYOUTS", 64)


def write_ladder(folder: Path, **changes: Any) -> Path:
    path = folder / "mine.yaml"
    path.write_text(json.dumps(LADDER | changes, indent=1))
    return path


def rated(capsys: pytest.CaptureFixture[str], *arguments: object, code: int = 0) -> str:
    assert rate.main([str(word) for word in arguments]) == code
    shown = capsys.readouterr()
    return shown.err if code == 2 else shown.out


@pytest.mark.medium
def test_a_ladder_of_ones_own_gives_a_rating_a_table_and_what_is_missing(
    tmp_path: Path, cache: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rate_games, "UNKNOWN_SHARE", 1.0)
    monkeypatch.setattr(rate_games, "time", SimpleNamespace(monotonic=lambda: 0.0))  # however slow the machine is
    model, ladder = saved_model(tmp_path / "a.safetensors", GAME), write_ladder(tmp_path)
    shown = rated(capsys, model, "--ladder", ladder, *QUICK).splitlines()
    assert shown[0].startswith("Rating: ") and "95 %; tic_tac_toe, model 1, 2 simulations a move: Gumbel" in shown[0]
    assert shown[1] == "Scale: a random player is 0."
    assert shown[2].split() == ["Opponent", "Elo", "Games", "Won", "Drawn", "Lost", "Score", "Estimate"]
    assert {line.split()[0]: line.split()[1] for line in shown[3:5]} == {"random": "0", "mcts:5": "?"}
    assert shown[5] == "Skipped other: there is no program no-such-program here (to install it: build it)."
    assert len(list(cache.iterdir())) == 2
    found = json.loads(rated(capsys, model, "--ladder", ladder, *QUICK, "--json"))
    assert found["kind"] == "elo" and found["margin"] > 0 and not found["interrupted"]
    assert [each["name"] for each in found["rungs"]] == ["random", "mcts:5"]
    assert all(each["wins"] + each["draws"] + each["losses"] == each["games"] > 0 for each in found["rungs"])
    assert [each["name"] for each in found["skipped"]] == ["other"]


@pytest.mark.medium
def test_without_an_engine_of_known_strength_a_network_plays_tree_search(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    play_few_games(monkeypatch)
    alone = write_ladder(tmp_path, engines=LADDER["engines"][2:])  # type: ignore[index]
    monkeypatch.setattr(rate, "find_shipped_ladder", lambda game: rate.load_ladder(alone))
    shown = rated(capsys, saved_model(tmp_path / "a.safetensors", GAME), *QUICK)
    assert "None of the engines whose strength is known can play here: other: there is no program" in shown
    assert "MCTS with" in shown


def test_wrong_inputs_are_refused_with_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = saved_model(tmp_path / "a.safetensors", GAME)
    other = write_ladder(tmp_path, game="chess")
    assert "mine.yaml: the ladder is for chess, and the network plays tic_tac_toe" in rated(
        capsys, model, "--ladder", other, code=2
    )
    alone = write_ladder(tmp_path, engines=LADDER["engines"][2:])  # type: ignore[index]
    assert "none of the engines whose strength is known can play here: other: there is no program" in rated(
        capsys, model, "--ladder", alone, code=2
    )
    wrong = write_ladder(tmp_path, engines=[{"name": "random", "protocol": "built-in", "rungs": [{"Elo": 0}]}])
    assert "engines[0].rungs[0].Elo is not a setting; did you mean engines[0].rungs[0].elo?" in rated(
        capsys, model, "--ladder", wrong, code=2
    )


def test_ctrl_c_before_the_first_games_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*arguments: Any, **options: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(rate_games, "play_pairs", stop)
    model, ladder = saved_model(tmp_path / "a.safetensors", GAME), write_ladder(tmp_path)
    assert "No game against an engine of known strength has ended" in rated(
        capsys, model, "--ladder", ladder, *QUICK, code=INTERRUPTED
    )


@pytest.mark.medium
def test_solved_games_are_measured_by_errors(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = saved_model(tmp_path / "a.safetensors", GAME)
    assert rated(capsys, model, *QUICK).startswith("Errors: ")
    found = json.loads(rated(capsys, model, *QUICK, "--json"))
    assert found["kind"] == "errors" and 0 < found["errors"]["share"] < 1


@pytest.mark.medium
def test_connect_four_without_bitbully_uses_the_shipped_positions_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rate, "has_perfect_player", lambda: False)
    model = saved_model(tmp_path / "a.safetensors", load_game("connect_four"))
    shown = rated(capsys, model, *QUICK)
    assert "BitBully is not installed (pip install bitbully), so shipped positions are used" in shown
    assert "of 2,000 positions" in shown


@pytest.mark.medium
def test_a_game_for_one_player_is_measured_by_score_and_not_twice(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rate_any_game, "FIRST_SCORES", 4)
    model = saved_model(tmp_path / "a.safetensors", load_game("twenty48", height=2, width=2))
    assert rated(capsys, model, *QUICK).startswith("Mean score: ")
    found = json.loads(rated(capsys, model, *QUICK, "--json"))
    assert found["kind"] == "score" and found["games"] >= 4

    def fail(*arguments: Any, **options: Any) -> None:
        raise AssertionError("these games were played before")

    monkeypatch.setattr(rate_any_game, "play_scored", fail)
    assert json.loads(rated(capsys, model, *QUICK, "--json")) == found


@pytest.mark.medium
def test_any_other_game_is_measured_by_playouts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    play_few_games(monkeypatch)
    model = saved_model(tmp_path / "a.safetensors", load_game("openspiel", game="tic_tac_toe()"))
    assert "MCTS with" in rated(capsys, model, *QUICK)
    found = json.loads(rated(capsys, model, *QUICK, "--json"))
    assert found["kind"] == "equal_playouts" and found["low"] < found["playouts"] < found["high"]


@pytest.mark.medium
def test_perfect_play_wins_all_games_as_first_player() -> None:
    pytest.importorskip("bitbully", reason="BitBully is not installed (pip install bitbully)")
    game = load_game("connect_four")
    player = perfect_player.PerfectPlayer(game, 2)
    found = perfect_player.play_perfect_player(game, player, seed=1, games=2)
    assert (found.wins, found.draws, found.losses) == (2, 0, 0)


def test_more_positions_come_from_more_openings(monkeypatch: pytest.MonkeyPatch) -> None:
    game = load_game("connect_four")

    class FirstMove:
        def choose(self, states: States) -> Actions:
            return np.array([game.legal_actions(state)[0] for state in states], np.int32)

    def keep(game: Game, moves: Sequence[Sequence[int]], on_progress: object) -> SolvedPositions:
        assert len({tuple(each) for each in moves}) == len(moves)
        return SolvedPositions(np.empty(0), np.empty(0), np.empty(0))  # nothing is solved here

    monkeypatch.setattr(perfect_player, "solve_positions", keep)
    few, same, many = (
        perfect_player.find_own_positions(game, FirstMove(), seed=1, least=least).plies for least in (1, 2, 2000)
    )
    assert len(few) == len(same) < 2000 <= len(many) and (many[: len(few)] == few).all()


@pytest.mark.medium
def test_bitbully_and_the_solver_agree() -> None:
    pytest.importorskip("bitbully", reason="BitBully is not installed (pip install bitbully)")
    game = load_game("connect_four")
    known = load_positions(game)
    assert known is not None
    moves: Sequence[Sequence[int]] = [each.tolist() for each in read_moves(game, POSITIONS_FILE)][:50]
    solved = perfect_player.solve_positions(game, moves)
    assert (solved.values == known.values[:50]).all() and (solved.states == known.states[:50]).all()
