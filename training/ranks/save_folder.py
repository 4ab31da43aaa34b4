"""The folder that a training's files go to where the user has named none: the next one that holds no training yet."""

from collections.abc import Callable
from pathlib import Path

from training.ranks.ranks import Ranks


def chosen_folder(default: Path, ranks: Ranks, *, holds: Callable[[Path], bool], resume: bool) -> Path:
    """``default``, or it with ``_2``, ``_3`` ... after its name; the same on all ranks, whatever each finds on its
    machine.

    A training that begins gets the first folder after all that hold one, and is to make it at once, so that torchrun's
    later starts of it get that one again. With ``resume`` it is the newest that holds one.

    Args:
        default: the first.
        ranks: all call this.
        holds: whether there is a training in a folder.
        resume: whether to go on with a training.
    """
    there = [number for number in _numbers(default) if not resume or holds(numbered(default, number))]
    number = max(there, default=1)
    if not resume and not ranks.restarts and holds(numbered(default, number)):
        number += 1
    return numbered(default, ranks.largest(number))


def numbered(default: Path, number: int) -> Path:
    """The folder of this number, from 1."""
    return default if number == 1 else default.with_name(f"{default.name}_{number}")


def _numbers(default: Path) -> list[int]:
    """Those of the folders that are there."""
    first = [1] if default.is_dir() else []
    endings = [
        path.name.removeprefix(f"{default.name}_") for path in default.parent.glob(f"{default.name}_*") if path.is_dir()
    ]
    return first + [int(ending) for ending in endings if ending.isdecimal() and int(ending) > 1]
