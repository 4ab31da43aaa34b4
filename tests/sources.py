"""The project's own files, as the tests about the project see them."""

import ast
import functools
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ROOMS = ("configs", "games", "training", "engines", "views", "web", "distributed", "zero", "keima")  # library code
PROGRAMS = ("scripts", "benchmarks")
EXPERIMENTS = sorted(  # the shipped settings of start_main.py
    path for path in (ROOT / "configs").glob("*.yaml") if path.stem not in ("ppo_lstm", "20x256")
)


def python_files(*rooms: str) -> list[Path]:
    """Return the Python files of these rooms, sorted."""
    return sorted(path for room in rooms for path in (ROOT / room).rglob("*.py"))


def programs() -> list[Path]:
    """Return the files that are run rather than imported."""
    return [*sorted(ROOT.glob("*.py")), *python_files(*PROGRAMS)]


def relative(path: Path) -> str:
    """Return the path relative to the root."""
    return path.relative_to(ROOT).as_posix()


@functools.cache
def tree(path: Path) -> ast.Module:
    """Return the file's syntax tree."""
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


@functools.cache
def imported_modules(path: Path) -> tuple[str, ...]:
    """Return each module that the file imports anywhere in it, dotted; for ``from a import b`` both ``a`` and
    ``a.b``.
    """
    found: list[str] = []
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            found += (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0 and node.module, f"{relative(path)}: line {node.lineno}: imports are absolute"
            found += (node.module, *(f"{node.module}.{alias.name}" for alias in node.names))
    return tuple(found)


@functools.cache
def project_file(module: str) -> Path | None:
    """Return the file of a project module, or None for any other module."""
    path = ROOT.joinpath(*module.split("."))
    return next((file for file in (path.with_suffix(".py"), path / "__init__.py") if file.is_file()), None)


@functools.cache
def imported_files(path: Path) -> frozenset[Path]:
    """Return the project files that the file imports directly."""
    files = {project_file(module) for module in imported_modules(path)}
    return frozenset(file for file in files if file and file != path)
