"""The benchmark as a program, with a tiny network for two-player games."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from keima.base.files import sha256_hex
from keima.cli.playing import benchmark, progress
from keima.data.ledger import open_ledger
from keima.data.ledger_rows import ModelRow
from keima.games import load_game
from keima.games.go.sgf import SgfGame, read_sgf
from keima.networks.files.model import decode_model
from keima.networks.files.weights_file import save_weights
from keima.play.arena import ladder
from keima.play.arena.match_benchmark import Match, play_pairs
from keima.play.network_loader import make_file_entrants
from tests.programs import needs_gnu_go
from tests.small_run import GAME, NETWORK, model_bytes, saved_model, small_settings

FEW = ("--games", "4", "--simulations", "2", "--processes", "1")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run that has published two models."""
    folder = tmp_path / "run"
    (folder / "models").mkdir(parents=True)
    with open_ledger(folder, GAME) as ledger:
        for version in (1, 2):
            path, data = Path("models") / f"{version}.model", model_bytes(version)
            (folder / path).write_bytes(data)
            ledger.add_model(
                ModelRow(
                    version=version,
                    iteration=0,
                    accepted=True,
                    path=str(path),
                    bytes=len(data),
                    sha256=sha256_hex(data),
                )
            )
    return folder


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert benchmark.main(arguments) == 2
    return capsys.readouterr().err


@pytest.mark.medium
def test_without_a_terminal_a_line_reports_progress_now_and_then(
    run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "LINE_SECONDS", 0.0)
    assert benchmark.main(["--run", str(run), "--opponents", "mcts:100", *FEW]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("network – mcts:100: ")]
    assert lines and all(
        re.fullmatch(r".*: \d of 4 games, \d won, \d drawn, \d lost, [\d,]+ moves", line) for line in lines
    )
    monkeypatch.setattr(progress, "LINE_SECONDS", 3600.0)
    assert benchmark.main(["--run", str(run), "--opponents", "random", *FEW]) == 0
    assert "games, " not in capsys.readouterr().out


@pytest.mark.medium
def test_a_network_is_rated_together_with_a_random_player_and_earlier_models(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, who = run / "results", ("--opponents", "random", "--against-version", "1")
    assert benchmark.main(["--run", str(run), *who, "--save", str(folder), *FEW]) == 0
    shown = capsys.readouterr().out
    assert "tic_tac_toe, model 2, 2 simulations" in shown and "Elo: random is 0." in shown
    found = json.loads((folder / "benchmark.json").read_text(encoding="utf-8"))
    assert (found["kind"], found["anchor"], found["whole"]) == ("elo", "random", True)
    assert [(match["first"], match["second"]) for match in found["matches"]] == [
        ("network", "random"),
        ("network", "version-1"),
        ("random", "version-1"),
    ]
    assert all(
        match["wins"] + match["draws"] + match["losses"] == len(match["scores"]) == 4 for match in found["matches"]
    )
    assert found["players"]["random"]["elo"] == 0 and set(found["players"]) == {"network", "random", "version-1"}
    assert (folder / "ratings.png").read_bytes().startswith(b"\x89PNG")
    assert not (folder / "games.pgn").exists()


@pytest.mark.medium
def test_tree_search_with_any_number_of_playouts_is_an_opponent(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = run / "results"
    assert benchmark.main(["--run", str(run), "--opponents", "mcts:50", "--save", str(folder), *FEW]) == 0
    assert "Elo: mcts:50 is 0." in capsys.readouterr().out
    found = json.loads((folder / "benchmark.json").read_text(encoding="utf-8"))
    assert found["players"]["mcts:50"]["elo"] == 0 > found["players"]["network"]["elo"]


def test_the_playouts_that_a_network_is_worth_are_found_by_doubling_them(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    quick = ["--simulations", "2", "--games", "2", "--processes", "1"]
    assert benchmark.main(["--run", str(run), "--equal-mcts", *quick, "--save", str(tmp_path)]) == 0
    assert re.search(r"MCTS with [\d,]+ playouts a move", capsys.readouterr().out)
    saved = json.loads((tmp_path / "benchmark.json").read_text())
    assert saved["kind"] == "equal_playouts" and saved["low"] < saved["playouts"] < saved["high"]
    assert benchmark.main(["--run", str(run), "--equal-mcts", "--opponents", "random"]) == 2
    assert "takes no --opponents" in capsys.readouterr().err


@pytest.mark.medium
def test_ctrl_c_shows_the_finished_matches(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    played: list[Any] = []

    def play_one(*arguments: Any, **options: Any) -> Match:
        if played:
            raise KeyboardInterrupt
        played.append(play_pairs(*arguments, **options))
        return played[0]

    monkeypatch.setattr(benchmark, "play_pairs", play_one)
    folder, who = run / "results", ("--opponents", "random", "--against-version", "1")
    assert benchmark.main(["--run", str(run), *who, "--save", str(folder), *FEW]) == 130
    shown = capsys.readouterr().out
    assert "Stopped." in shown and "random" in shown
    found = json.loads((folder / "benchmark.json").read_text(encoding="utf-8"))
    assert not found["whole"] and len(found["matches"]) == 1


@pytest.mark.slow
def test_other_runs_and_models_in_files_also_play(run: Path, tmp_path: Path) -> None:
    file = run / "models" / "1.model"
    who = ("--opponents", "random", "--against", str(file))
    assert benchmark.main(["--run", str(run), *who, "--save", str(tmp_path / "results"), *FEW]) == 0
    found = json.loads((tmp_path / "results" / "benchmark.json").read_text(encoding="utf-8"))
    assert set(found["players"]) == {"network", "random", str(file)}
    (other,) = make_file_entrants([run], GAME, 2, None)
    assert other.name == str(run)


@pytest.fixture
def go_model(tmp_path: Path) -> Path:
    """Return a new network for Go on the smallest board."""
    return saved_model(tmp_path / "go.safetensors", load_game("go", size=5, komi=0.5))


@pytest.mark.medium
@needs_gnu_go
@pytest.mark.slow
def test_gnu_go_is_an_opponent_and_all_games_are_kept(
    go_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, opponents = tmp_path / "results", ("--opponent", "gnugo:1", "--opponent", "random")
    assert benchmark.main(["--model", str(go_model), *opponents, "--save", str(folder), *FEW]) == 0
    assert "Elo: random is 0." in capsys.readouterr().out
    found = json.loads((folder / "benchmark.json").read_text(encoding="utf-8"))
    assert [(match["first"], match["second"]) for match in found["matches"]] == [
        ("network", "random"),
        ("network", "gnugo:1"),
        ("random", "gnugo:1"),
    ]
    assert found["matches"][2]["losses"] >= 3
    games = list(read_sgf(folder / "games.sgf"))
    assert len(games) == 12 and all(isinstance(game, SgfGame) and game.size == 5 for game in games)


@pytest.mark.medium
def test_without_gnu_go_the_other_opponents_play(
    go_model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for place in (benchmark, ladder):
        monkeypatch.setattr(place, "find_program", lambda name: None)
    assert benchmark.main(["--model", str(go_model), *FEW]) == 0
    shown = capsys.readouterr().out
    assert (
        "GNU Go was not found: install it (Debian: apt install gnugo). Its levels are left out." in shown
        and "random" in shown
    )
    assert "--opponent: GNU Go was not found: install it" in refused(
        capsys, "--model", str(go_model), "--opponent", "gnugo:10", *FEW
    )


def checkpoint(folder: Path, settings: dict[str, Any] | None) -> Path:
    """Return a file of weights, with these settings next to it."""
    folder.mkdir()
    save_weights(folder / "model_final.pt", decode_model(model_bytes(1)).weights)
    if settings:
        (folder / "config.yaml").write_text(yaml.safe_dump(settings), encoding="utf-8")
    return folder / "model_final.pt"


def settings_with(tmp_path: Path, **network: object) -> dict[str, Any]:
    return json.loads(small_settings(tmp_path, network={**NETWORK, **network}).model_dump_json())


@pytest.mark.medium
def test_the_settings_next_to_a_checkpoint_name_its_network(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = checkpoint(tmp_path / "a", settings_with(tmp_path))
    assert benchmark.main(["--checkpoint", str(path), "--opponents", "random", *FEW]) == 0
    assert "tic_tac_toe" in capsys.readouterr().out


def test_a_checkpoint_of_an_unknown_network_is_refused_with_the_remedy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    alone = checkpoint(tmp_path / "a", None)
    assert "give its run's settings as --config FILE" in refused(capsys, "--checkpoint", str(alone), *FEW)
    other = checkpoint(tmp_path / "b", settings_with(tmp_path, channels=16))
    assert f"does not fit the network that {other.parent / 'config.yaml'} describes" in refused(
        capsys, "--checkpoint", str(other), *FEW
    )
    missing = str(tmp_path / "none.yaml")
    assert missing in refused(capsys, "--checkpoint", str(alone), "--config", missing, *FEW)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--games", "3"], "--games 3: tic_tac_toe is played in pairs"),
        (["--opponents", "greedy"], "--opponents: there is no 'greedy' here; there are random, mcts:100, mcts:1000"),
        (["--opponents", "alphabeta:2"], "tic_tac_toe has none: use mcts:1000"),
        (["--against-version", "9"], "has no model 9"),
        (["--against", "nowhere.model"], "nowhere.model"),
    ],
)
def test_impossible_options_are_refused(
    run: Path, arguments: Sequence[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert complaint in refused(capsys, "--run", str(run), *arguments)


def test_a_game_for_one_has_no_opponents(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = saved_model(tmp_path / "small.safetensors", load_game("twenty48", height=2, width=2))
    said = refused(capsys, "--model", str(model), "--opponents", "mcts:50", *FEW)
    assert "--opponents: twenty48 has one player: omit the option" in said


def test_options_that_need_another_one_name_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        benchmark.main(["--model", "a.model", "--against-version", "1"])
    assert "--against-version needs --run" in capsys.readouterr().err
