"""Each training without a named folder gets its own."""

from pathlib import Path

import pytest

from keima.learning.ranks.process_group import ALONE, Ranks
from keima.learning.ranks.save_folder import choose_folder


def holds(folder: Path) -> bool:
    return (folder / "checkpoint").exists()


def choose(default: Path, *, resume: bool = False, ranks: Ranks = ALONE) -> str:
    return choose_folder(default, ranks, holds=holds, resume=resume).name


def train(folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "checkpoint").touch()


def test_the_first_training_gets_the_folder_itself_and_later_ones_are_numbered(tmp_path: Path) -> None:
    default = tmp_path / "saved"
    assert choose(default) == "saved"
    default.mkdir()
    assert choose(default) == "saved"  # nothing has been saved there
    train(default)
    assert choose(default) == "saved_2"
    train(tmp_path / "saved_2")
    train(tmp_path / "saved_10")
    assert choose(default) == "saved_11"


def test_resuming_continues_the_newest_folder_with_a_training(tmp_path: Path) -> None:
    default = tmp_path / "saved"
    assert choose(default, resume=True) == "saved" and not default.exists()
    train(default)
    train(tmp_path / "saved_2")
    (tmp_path / "saved_3").mkdir()  # of a training that ended before it saved anything
    assert choose(default, resume=True) == "saved_2"


def test_a_restart_of_the_same_training_gets_the_same_folder_whether_it_has_saved_anything_or_not(
    tmp_path: Path,
) -> None:
    default = tmp_path / "saved"
    train(default)
    again = Ranks(restarts=1)
    assert choose(default) == "saved_2"
    (tmp_path / "saved_2").mkdir()
    assert choose(default, ranks=again) == "saved_2"
    train(tmp_path / "saved_2")
    assert choose(default, ranks=again) == "saved_2"


@pytest.mark.parametrize("name", ["saved_x", "saved_1", "saved_old_2"])
def test_other_folders_next_to_it_do_not_matter(tmp_path: Path, name: str) -> None:
    train(tmp_path / "saved")
    train(tmp_path / name)
    assert choose(tmp_path / "saved") == "saved_2"
