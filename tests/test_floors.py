"""Which rooms may import which stands in pyproject.toml, where import-linter reads it; these tests check the rest."""

from pathlib import Path

import pytest

from tests.sources import imported_modules, library, programs, python_files, relative

# The rooms with tensors, and the single files elsewhere that use them.
TORCH = {"keima/networks", "keima/learning", "keima/ppo", "examples/own_network.py", "examples/training_loop.py"}

EVERYTHING = [*library(), *programs()]
OUTSIDE_BENCHMARKS = [path for path in EVERYTHING if path not in python_files("benchmarks")]


def names(paths: list[Path]) -> list[str]:
    return [relative(path) for path in paths]


def imports(path: Path, package: str) -> bool:
    return any(module == package or module.startswith(f"{package}.") for module in imported_modules(path))


def test_torch_is_imported_only_where_tensors_are() -> None:
    found = [relative(path) for path in OUTSIDE_BENCHMARKS if imports(path, "torch")]
    assert {"/".join(name.split("/")[:2]) for name in found} == TORCH


@pytest.mark.medium
@pytest.mark.parametrize("package", ["threading", "multiprocessing", "paramiko"])
def test_each_risky_module_is_imported_by_at_most_one_file(package: str) -> None:
    assert len(names([path for path in OUTSIDE_BENCHMARKS if imports(path, package)])) <= 1


@pytest.mark.medium
@pytest.mark.parametrize("package", ["concurrent", "asyncio", "pickle", "dill", "marshal", "shelve"])
def test_banned_modules_are_imported_nowhere(package: str) -> None:
    assert not names([path for path in EVERYTHING if imports(path, package)])


def test_every_folder_of_the_package_is_a_package() -> None:
    folders = {path.parent for path in python_files("keima")}
    assert not names(sorted(folder for folder in folders if not (folder / "__init__.py").is_file()))
