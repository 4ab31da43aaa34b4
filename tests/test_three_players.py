"""A game for three players trains, is measured, played and audited like others."""

import json
import subprocess
from pathlib import Path

import pytest

from tests.programs import command, printed
from tests.sources import ROOT

CONFIG = ROOT / "games" / "three_player_connect_four.yaml"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_connect_four_for_three_trains_and_is_measured_and_played(tmp_path: Path) -> None:
    said = printed("start_main.py", "--config", CONFIG, "--smoke", "--run-dir", "run", cwd=tmp_path, seconds=500)
    assert "return vs random" in said
    assert printed("audit", tmp_path / "run")
    assert "Highest mean return" in printed("scripts/view_results.py", tmp_path / "run")

    match = ("--opponents", "random,mcts:5", "--games", 6, "--simulations", 4, "--processes", 1, "--save", "results")
    table = printed("scripts/benchmark.py", "--run", tmp_path / "run", *match, cwd=tmp_path)
    assert "Mean return" in table and "mcts:5" in table
    saved = json.loads((tmp_path / "results" / "benchmark.json").read_text(encoding="utf-8"))
    assert [len(match["scores"]) for match in saved["matches"]] == [6, 6]

    play = command("play", tmp_path / "run", "--simulations", 2)
    game = subprocess.run(play, input="hint\n4\nresign\nn\n", capture_output=True, text=True, timeout=200, check=False)
    assert game.returncode == 0 and "Player 2 plays" in game.stdout and "Player 3 plays" in game.stdout
