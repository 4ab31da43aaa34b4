"""Experiments and networks are found by their names, and names that mean two things are refused."""

from argparse import ArgumentTypeError
from pathlib import Path

import pytest

from keima.base.named import CONFIGS, MODELS, find_experiment, find_network, flag_type
from keima.data.ledger import open_ledger
from tests.small_run import GAME


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, in which an installed Keima works."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("keima.paths.CHECKOUT", None)
    return tmp_path


def test_a_shipped_experiment_and_network_are_found_by_name() -> None:
    assert find_experiment("quickstart") == CONFIGS / "quickstart.yaml"
    assert find_network("go9") == MODELS / "go9.safetensors"


@pytest.mark.parametrize("own", ["mine.yaml", "configs/mine.yaml"])
def test_an_experiment_of_one_s_own_is_found_by_name(folder: Path, own: str) -> None:
    (folder / own).parent.mkdir(exist_ok=True)
    (folder / own).touch()
    assert find_experiment("mine").resolve() == folder / own


def test_a_path_means_its_file_even_if_something_shipped_has_the_same_name(folder: Path) -> None:
    (folder / "go9.yaml").touch()
    assert find_experiment("./go9.yaml") == Path("./go9.yaml") == find_experiment("go9.yaml")
    assert find_experiment("configs/go9.yaml") == CONFIGS / "go9.yaml"
    assert find_network("models/go9.safetensors") == MODELS / "go9.safetensors"


def test_a_name_of_a_shipped_experiment_and_of_a_file_here_is_refused(folder: Path) -> None:
    (folder / "quickstart.yaml").touch()
    with pytest.raises(ValueError, match=r"^quickstart names more than one experiment: ./quickstart.yaml and the s"):
        find_experiment("quickstart")


def test_the_name_of_a_run_is_its_network_unless_something_shipped_has_it_too(folder: Path) -> None:
    for name in ("mine", "go9"):
        (folder / "runs" / name).mkdir(parents=True)
        open_ledger(folder / "runs" / name, GAME).close()
    assert find_network("mine") == Path("runs/mine")
    with pytest.raises(ValueError, match=r"^go9 names more than one network: runs/go9 and the shipped one, /.*go9.saf"):
        find_network("go9")


def test_what_is_nowhere_is_named_with_what_was_meant() -> None:
    with pytest.raises(ValueError, match=r"there is no experiment called quikstart; did you mean quickstart\?"):
        find_experiment("quikstart")
    with pytest.raises(ValueError, match=r"there is no network called mine; shipped are go7, go9; or name a file"):
        find_network("mine")
    with pytest.raises(ArgumentTypeError, match="there is no experiment called nothing"):
        flag_type(find_experiment)("nothing")
