"""Choose a folder for a training run's files if the user has named none: the next one that holds no run yet."""

from collections.abc import Callable
from pathlib import Path

from keima.learning.ranks.process_group import Ranks


def choose_folder(default: Path, ranks: Ranks, *, holds: Callable[[Path], bool], resume: bool) -> Path:
    """Return ``default``, or ``default`` with ``_2``, ``_3`` ... appended; the same on all ranks, even if machines
    differ.

    A new run gets the folder after the last one that holds a run. It must create the folder at once, so that it gets
    the same one when torchrun restarts it. With ``resume``, the newest folder that holds a run is chosen.

    Args:
        default: the first folder.
        ranks: all of them call this.
        holds: whether a folder holds a run.
        resume: whether to continue a run.
    """
    there = [number for number in _existing_numbers(default) if not resume or holds(numbered_folder(default, number))]
    number = max(there, default=1)
    if not resume and not ranks.restarts and holds(numbered_folder(default, number)):
        number += 1
    return numbered_folder(default, ranks.all_reduce_max(number))


def numbered_folder(default: Path, number: int) -> Path:
    """Return the folder of this number, from 1."""
    return default if number == 1 else default.with_name(f"{default.name}_{number}")


def _existing_numbers(default: Path) -> list[int]:
    """Return the numbers of the folders that exist."""
    first = [1] if default.is_dir() else []
    endings = [
        path.name.removeprefix(f"{default.name}_") for path in default.parent.glob(f"{default.name}_*") if path.is_dir()
    ]
    return first + [int(ending) for ending in endings if ending.isdecimal() and int(ending) > 1]
