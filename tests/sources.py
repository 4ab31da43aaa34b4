"""The project's own files, as the tests about the project see them."""

import ast
import functools
import shutil
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
EXPERIMENTS = sorted(  # the shipped settings of start_main.py
    path for path in (ROOT / "configs").glob("*.yaml") if path.stem not in ("ppo_lstm", "20x256")
)
DOORS = ("scripts", "distributed", "training", "zero")  # folders by whose names the guides reach the package


def python_files(*folders: str) -> list[Path]:
    """Return the Python files in these folders, sorted; not the templates, which are nobody's code yet."""
    found = (path for folder in folders for path in (ROOT / folder).rglob("*.py"))
    return sorted(path for path in found if "templates" not in path.parts)


def library() -> list[Path]:
    """Return the files of the package that are imported rather than run."""
    return [path for path in python_files("keima") if not is_program(path)]


def programs() -> list[Path]:
    """Return the files that are run rather than imported."""
    inside = [path for path in python_files("keima") if is_program(path)]
    return [*sorted(ROOT.glob("*.py")), *inside, *python_files(*DOORS, "benchmarks", "examples")]


def is_program(path: Path) -> bool:
    """Return whether a file of the package is run as a program of its own."""
    return path.is_relative_to(ROOT / "keima" / "cli")


def relative(path: Path) -> str:
    """Return the path relative to the root."""
    return path.relative_to(ROOT).as_posix()


def copy_checkout(target: Path, *more: str) -> None:
    """Make a checkout of what a run needs, and of the files named in ``more``, without what runs have left here."""
    left = shutil.ignore_patterns("control", "status.txt", "status.json")
    for name in ("configs", "distributed", "games", "keima", "scripts", "training"):
        shutil.copytree(ROOT / name, target / name, ignore=left if name == "distributed" else None)  # with its bytecode
    for name in ("start_main.py", "start_worker.py", "requirements.txt", *more):
        (target / name).parent.mkdir(exist_ok=True)
        shutil.copy2(ROOT / name, target / name)


@functools.cache
def tree(path: Path) -> ast.Module:
    """Return the file's syntax tree."""
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


@functools.cache
def imported_modules(path: Path, *, at_run_time: bool = False) -> tuple[str, ...]:
    """Return each module that the file imports anywhere in it, dotted; for ``from a import b`` both ``a`` and
    ``a.b``. At run time, what is for type checkers alone is not imported.
    """
    found: list[str] = []
    for node in nodes_at_run_time(tree(path)) if at_run_time else ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            found += (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0 and node.module, f"{relative(path)}: line {node.lineno}: imports are absolute"
            found += (node.module, *(f"{node.module}.{alias.name}" for alias in node.names))
    return tuple(found)


def nodes_at_run_time(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a tree, without those below ``if TYPE_CHECKING:``."""
    yield node
    for child in ast.iter_child_nodes(node):
        if not (isinstance(child, ast.If) and isinstance(child.test, ast.Name) and child.test.id == "TYPE_CHECKING"):
            yield from nodes_at_run_time(child)


@functools.cache
def project_file(module: str) -> Path | None:
    """Return the file of a project module, or None for any other module."""
    path = ROOT.joinpath(*module.split("."))
    return next((file for file in (path.with_suffix(".py"), path / "__init__.py") if file.is_file()), None)


@functools.cache
def imported_files(path: Path, *, at_run_time: bool = False) -> frozenset[Path]:
    """Return the project files that the file imports directly."""
    files = {project_file(module) for module in imported_modules(path, at_run_time=at_run_time)}
    return frozenset(file for file in files if file and file != path)
