"""The networks in models/ are small, describe themselves, and play in a fresh clone."""

import re
import subprocess
from pathlib import Path

import pytest

from keima.games import load_game
from keima.paths import SHIPPED
from keima.play.arena.players import read_model
from tests.programs import command

MODELS = sorted((SHIPPED / "models").glob("*.safetensors"))
MAX_BYTES = 2_000_000

for_each = pytest.mark.parametrize("path", MODELS, ids=[path.stem for path in MODELS])


def test_two_networks_for_go_are_shipped() -> None:
    assert {path.stem for path in MODELS} >= {"go7", "go9"}


@for_each
def test_it_is_small_and_fits_its_game(path: Path) -> None:
    assert path.stat().st_size <= MAX_BYTES
    model = read_model(path)
    game = load_game(model.description.game, **model.description.options)
    model.build(game)


@for_each
def test_its_card_says_how_it_was_trained_and_how_strong_it_is(path: Path) -> None:
    card = path.with_suffix(".md").read_text(encoding="utf-8")
    version = read_model(path).description.model_version
    assert f"Model {version} of the run {path.stem}." in card
    assert "## How it was trained" in card
    assert "## How strong it is" in card
    assert "/tmp" not in card


@pytest.mark.slow
@pytest.mark.trial
@for_each
def test_it_answers_as_a_go_engine(path: Path) -> None:
    game = load_game(read_model(path).description.game, **read_model(path).description.options)
    size = game.observation_shape[-1]
    said = subprocess.run(
        command("gtp", path, "--simulations", 32),
        input=f"boardsize {size}\nclear_board\ngenmove b\nquit\n",
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert said.returncode == 0, said.stderr
    assert re.fullmatch(r"= ?\n\n= ?\n\n= [A-T]\d+\n\n= ?\n\n", said.stdout), said.stdout
