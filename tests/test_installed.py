"""What users without a checkout have: one package, and one command."""

import json
import os
import re
import shutil
import zipfile
from pathlib import Path

import pytest

from tests.installed import Installation, build_wheel, install
from tests.sources import ROOT

pytestmark = pytest.mark.medium


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the wheel of this checkout."""
    return build_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def installation(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installation:
    """Install the wheel."""
    return install(wheel, tmp_path_factory.mktemp("installed") / "environment")


def test_the_environment_gets_one_package_and_nothing_else_of_ours(installation: Installation) -> None:
    found = {path.name for path in installation.site_packages.iterdir() if path.suffix != ".pth"}
    assert found == {"keima", "keima-0.1.0.dist-info"}


def test_the_wheel_has_what_is_shipped_and_nothing_compiled(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    for name in ("configs/quickstart.yaml", "models/go9.safetensors", "samples/README.md"):
        assert f"keima/shipped/{name}" in names
    assert not [name for name in names if name.endswith(".pyc")]


def test_it_is_imported_from_the_environment_and_works_in_the_present_folder(
    installation: Installation, tmp_path: Path
) -> None:
    program = "import json, keima.paths as p; print(json.dumps([str(p.PACKAGE), str(p.workspace()), str(p.CHECKOUT)]))"
    answer = installation.run("python", "-c", program, folder=tmp_path)
    assert json.loads(answer.stdout) == [str(installation.site_packages / "keima"), str(tmp_path), "None"]


EXAMPLES = {  # what each prints, and the words that it is called with
    "analysis.py": (r"principal line\n +\w\d ", "E5"),
    "match.py": (r"(?m)^uct 200 +\+\d+ ± \d+ Elo$",),
    "own_evaluator.py": (r"after 7: .*\n[\d,]+ positions were evaluated in \d+ batches",),
    "own_game.py": (r"It keeps the contract of games\.",),
    "own_network.py": (r"[2-9]00 games are in runs/own-network",),
    "own_worker.py": (r"[2-9]00 games are in runs/own-worker",),
    "self_play_arrays.py": (r"4 games, \d+ positions: float32\[\d+, 14, 7, 7\] float32\[\d+, 50\] float32\[\d+\]",),
    "training_loop.py": (r"iteration 2: 400 games, loss [\d.]+, \d+% against random moves", "2"),
}


def test_every_example_is_tried_and_fits_on_a_screen() -> None:
    examples = list((ROOT / "examples").glob("*.py"))
    assert {path.name for path in examples} == set(EXAMPLES)
    assert all(len(path.read_text().splitlines()) <= 40 for path in examples)


@pytest.mark.slow
@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_works_in_any_folder_of_an_installation(
    installation: Installation, tmp_path: Path, name: str
) -> None:
    shutil.copy(ROOT / "examples" / name, tmp_path)
    said, *words = EXAMPLES[name]
    ended = installation.run("python", name, *words, folder=tmp_path)
    assert re.search(said, ended.stdout), ended.stdout + ended.stderr


@pytest.mark.slow
def test_dask_and_a_module_called_web_live_beside_it(installation: Installation, tmp_path: Path) -> None:
    """Names that were ours once belong to others: dask.distributed, web.py, games, training."""
    for name in ("distributed", "web", "games", "training", "zero", "scripts"):
        (tmp_path / f"{name}.py").write_text(f"MINE = {name!r}\n")
    program = "import distributed, web, games, training, zero, scripts, keima; from keima import train, SSHConnector\n"
    program += "print([each.MINE for each in (distributed, web, games, training, zero, scripts)])"
    ended = installation.run("python", "-c", program, folder=tmp_path)
    assert ended.stdout == "['distributed', 'web', 'games', 'training', 'zero', 'scripts']\n", ended.stderr


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_game_of_one_s_own_is_made_checked_trained_audited_and_shown(
    installation: Installation, tmp_path: Path
) -> None:
    def keima(*words: str, **options: object) -> str:
        ended = installation.run("keima", *words, folder=tmp_path, **options)
        assert ended.returncode == 0, ended.stdout + ended.stderr
        return ended.stdout

    assert "keima check-game four.py" in keima("new-game", "four")
    assert "four" in keima("check-game", "four.py", "--rules-only", "--games", "4")
    said = keima("train", "four.py", "--smoke", "--set", "search.num_simulations=24")
    assert "keima audit runs/four-smoke" in said
    assert "num_simulations: 8" in (tmp_path / "runs/four-smoke/config.yaml").read_text()
    assert "balance" in keima("audit", "runs/four-smoke")
    assert "four-smoke" in keima("results", "four-smoke")
    assert "its card" in keima("export", "four-smoke", "four.safetensors")
    assert "four, model " in keima("play", "four.safetensors", input="quit\n")
    ended = installation.run("keima", "train", "four.py", "--smoke", folder=tmp_path)
    assert "holds a run already: continue it with --resume" in ended.stderr and ended.returncode == 2
    said = keima("resume", "runs/four-smoke", "--iterations", "3")
    assert "3/3" in said


def test_wrong_use_is_told_in_one_sentence(installation: Installation, tmp_path: Path) -> None:
    (tmp_path / "quickstart.yaml").write_text("run: {name: mine}\n")
    (tmp_path / "numpy.py").write_text("def game(): ...\n")
    for words, sentence in {
        ("train", "quickstart"): "quickstart names more than one experiment: ./quickstart.yaml and the shipped one, /",
        ("train", "numpy.py"): "numpy.py would hide the package numpy from every program in its folder: ",
        ("cluster", "check"): "/configs/config.yaml: go to the folder of your run, name a file with --config, or ",
        ("resume", "nowhere"): "there is no run in runs/nowhere to continue; runs here: none",
        ("dashboard",): "there are no runs in runs/: name a run's folder",
    }.items():
        ended = installation.run("keima", *words, folder=tmp_path)
        assert sentence in ended.stderr and ended.returncode in (1, 2), (words, ended.stdout, ended.stderr)
        assert "Traceback" not in ended.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["numpy.py", "quickstart.yaml"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_may_not_be_written_is_named(installation: Installation, tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    ended = installation.run("keima", "train", "tic_tac_toe", "--smoke", folder=tmp_path)
    assert "runs" in ended.stderr and "Permission denied" in ended.stderr and ended.returncode == 2
