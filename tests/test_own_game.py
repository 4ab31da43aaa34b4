"""A game and a network outside the checkout train, resume, play and are audited like shipped ones."""

import shutil
from pathlib import Path

import pytest
import yaml

from keima.cli.training import train
from keima.config.own_modules import stem_of
from tests.networks.test_own_network import NETWORK
from tests.own_game import own_game
from tests.programs import printed, run
from tests.sources import ROOT


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a game, a network and a config that names both."""
    own_game(tmp_path / "mine.py")
    (tmp_path / "small.py").write_text(NETWORK, encoding="utf-8")
    settings = yaml.safe_load((ROOT / "configs" / "tic_tac_toe.yaml").read_text(encoding="utf-8"))
    settings |= {"game": {"module": "mine.py"}, "network": {"module": "small.py", "options": {"width": 32}}}
    settings["evaluation"]["perfect_play"] = False
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(settings), encoding="utf-8")
    return tmp_path


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_run_continues_with_its_copies_after_the_files_have_changed_and_moved(folder: Path) -> None:
    printed("start_main.py", "--config", "mine.yaml", "--smoke", "--run-dir", "run", cwd=folder, seconds=300)
    copies = {stem_of(path.stem) for path in (folder / "run" / "modules").iterdir()}
    assert copies == {"mine", "small"}
    assert printed("audit", folder / "run")

    with (folder / "mine.py").open("a", encoding="utf-8") as file:
        file.write("# other rules\n")
    refused = run("start_main.py", "--config", "mine.yaml", "--smoke", "--run-dir", "run", cwd=folder)
    assert refused.returncode == 2 and "--resume" in refused.stderr
    resumed = ("start_main.py", "--config", "mine.yaml", "--smoke", "--iterations", "3", "--run-dir", "run", "--resume")
    said = printed(*resumed, cwd=folder, seconds=300)
    assert "mine.py has changed since this run began" in said

    shutil.move(folder / "run", folder / "elsewhere")
    (folder / "mine.py").unlink()
    (folder / "small.py").unlink()
    assert "Best model" in printed("scripts/view_results.py", folder / "elsewhere")
    match = ("--opponent", "random", "--games", "2", "--simulations", "4", "--save", "results")
    assert "random" in printed("scripts/benchmark.py", "--run", folder / "elsewhere", *match, cwd=folder)


def test_a_fault_in_the_game_ends_the_program_before_anything_is_written(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "mine.py").write_text("def game():\n    return size\n", encoding="utf-8")
    words = ["--config", str(folder / "mine.yaml"), "--smoke", "--run-dir", str(folder / "run")]
    assert train.main(words) == 2
    said = capsys.readouterr().err
    assert "mine.py, line 2: NameError: name 'size' is not defined" in said and "Traceback" not in said
    assert not (folder / "run").exists()


@pytest.mark.slow
@pytest.mark.trial
def test_every_program_that_trains_refuses_a_game_that_breaks_the_contract(folder: Path) -> None:
    rules = (folder / "mine.py").read_text(encoding="utf-8")
    (folder / "mine.py").write_text(rules.replace("out[loser] = -won", "out[loser] = won"), encoding="utf-8")
    words = ("--game", "mine.py", "--gpus", "cpu", "--smoke", "--save-dir", "run")
    refused = run("scripts/train_multi_gpu.py", *words, cwd=folder)
    assert refused.returncode == 2
    assert "do not add up to zero" in refused.stderr + refused.stdout and "Traceback" not in refused.stderr
