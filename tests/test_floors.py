"""Which rooms may import which: ``tests/rooms.py`` has the table, docs/architecture.md draws it, and these tests check
it.
"""

from pathlib import Path

import pytest

from tests.rooms import MAY_IMPORT, allowed, circle, forbidden, library, room_of, without_room
from tests.sources import PROGRAMS, ROOMS, imported_files, imported_modules, programs, python_files, relative

# The rooms with tensors, and the single files elsewhere that use them.
TORCH = {"training/networks", "training/ranks", "training/learning", "training/ppo"}

EVERYTHING = [*python_files(*ROOMS), *programs()]
OUTSIDE_BENCHMARKS = [path for path in EVERYTHING if path not in python_files("benchmarks")]


def names(paths: list[Path]) -> list[str]:
    return [relative(path) for path in paths]


def test_every_file_has_a_room() -> None:
    assert not without_room()


def test_every_room_of_the_table_exists() -> None:
    assert set(MAY_IMPORT) <= {room_of(path) for path in library()}


@pytest.mark.medium
def test_a_file_imports_only_what_the_table_allows_its_room() -> None:
    assert not forbidden()


def test_rooms_are_above_those_that_they_import() -> None:
    order = list(MAY_IMPORT)
    assert not [
        (room, other) for room in order for other in allowed(room) - {room} if order.index(other) > order.index(room)
    ]


@pytest.mark.medium
def test_library_code_imports_no_program() -> None:
    started = {*programs(), *python_files(*PROGRAMS)}
    assert not [names([path, file]) for path in library() for file in imported_files(path) & started]


@pytest.mark.medium
def test_there_are_no_import_cycles() -> None:
    assert not circle()


def imports(path: Path, package: str) -> bool:
    return any(module == package or module.startswith(f"{package}.") for module in imported_modules(path))


def test_torch_is_imported_only_where_tensors_are() -> None:
    assert {room_of(path) for path in OUTSIDE_BENCHMARKS if imports(path, "torch")} == TORCH


@pytest.mark.medium
@pytest.mark.parametrize("package", ["threading", "multiprocessing", "paramiko"])
def test_each_risky_module_is_imported_by_at_most_one_file(package: str) -> None:
    assert len(names([path for path in OUTSIDE_BENCHMARKS if imports(path, package)])) <= 1


@pytest.mark.medium
@pytest.mark.parametrize("package", ["concurrent", "asyncio", "pickle", "dill", "marshal", "shelve"])
def test_banned_modules_are_imported_nowhere(package: str) -> None:
    assert not names([path for path in EVERYTHING if imports(path, package)])


def test_every_room_is_a_package() -> None:
    folders = {path.parent for path in python_files(*ROOMS)}
    assert not names(sorted(folder for folder in folders if not (folder / "__init__.py").is_file()))
