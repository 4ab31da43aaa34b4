"""Games and networks of users: one Python file each, named by its content.

``othello.py`` is called ``othello-1a2b3c4d5e6f``: the file's stem and the first digits of its SHA-256. Settings,
models, batches, ledgers and assignments carry this name, so a changed file is another game, and a difference is refused
by name. Each machine has a store of such files, from which every process loads them; a worker gets them with its
assignment, and a run's folder has a copy.
"""

import ast
import hashlib
import os
import re
import sys
import traceback
from collections.abc import Iterable
from importlib.machinery import PathFinder
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

from keima.config.older_imports import accept_older_names
from keima.paths import CACHE

NAME = re.compile(r"([A-Za-z_][A-Za-z0-9_]{0,47})-([0-9a-f]{12})")
OWN_PACKAGE = "keima_own"  # modules of users are called ``keima_own.othello_1a2b3c4d5e6f``
MOST_BYTES = 256 * 2**10
PACKAGE_FOLDERS = ("site-packages", "dist-packages")
FOLDER = "modules"  # in a run's folder, and in the store

_paths: dict[str, Path] = {}  # by name, the file as its user knows it


class ModuleProblem(ValueError):
    """A user's file is missing, is not the one that is meant, or fails."""


def is_own(name: str) -> bool:
    """Return whether this is the name of a user's file."""
    return NAME.fullmatch(name) is not None


def stem_of(name: str) -> str:
    """Return the name without the hash of the content, for people."""
    match = NAME.fullmatch(name)
    return match[1] if match else name


def keep_module(path: Path, *, expected: str = "") -> str:
    """Put a user's file into this machine's store, and return its name.

    Args:
        path: the file; its name is ``othello.py``, or that of a copy, ``othello-1a2b3c4d5e6f.py``.
        expected: the name that it must have; empty: any.

    Raises:
        ModuleProblem: it cannot be read or kept, is not Python, is not the expected one, or has the name of a package.
    """
    if path.suffix != ".py":
        raise ModuleProblem(f"{path}: expected a Python file, such as my_game.py")
    if not path.is_file():
        raise ModuleProblem(f"there is no file {path}")
    if path.stat().st_size > MOST_BYTES:
        raise ModuleProblem(f"{path} is larger than {MOST_BYTES // 1024} KiB: a game or network is one small file")
    stem = stem_of(path.stem)
    if not NAME.fullmatch(f"{stem}-{'0' * 12}"):
        raise ModuleProblem(f"{path}: name the file with letters, digits and underscores, such as my_game.py")
    if not is_own(path.stem):
        refuse_package_name(path)
    source = path.read_bytes()
    name = f"{stem}-{hashlib.sha256(source).hexdigest()[:12]}"
    if expected not in ("", name) or (is_own(path.stem) and path.stem != name):
        raise ModuleProblem(f"{path} was changed: it should be {expected or path.stem}, and its content is {name}")
    try:
        ast.parse(source.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise ModuleProblem(f"{path} is not UTF-8 text (byte {error.start})") from None
    except (SyntaxError, ValueError) as error:
        line = f", line {error.lineno}" if isinstance(error, SyntaxError) else ""
        raise ModuleProblem(f"{path}{line}: {error.args[0]}") from None
    if not is_own(path.stem):
        _paths[name] = path.resolve()
    keep_source(name, source)
    return name


def refuse_package_name(path: Path) -> None:
    """Refuse a file that programs in its folder would import in place of an installed package of its name.

    Raises:
        ModuleProblem: it has such a name.
    """
    name = path.stem
    found = PathFinder.find_spec(name, [folder for folder in sys.path if Path(folder).name in PACKAGE_FOLDERS])
    if name == "keima" or name in sys.stdlib_module_names or (found is not None and found.origin is not None):
        raise ModuleProblem(
            f"{path} would hide the package {name} from every program in its folder: call it my_{name}.py, for example"
        )


def keep_source(name: str, source: bytes) -> None:
    """Put the content of the user's file ``name`` into this machine's store.

    Raises:
        ModuleProblem: the name is not that of the content, or the store cannot be written.
    """
    match = NAME.fullmatch(name)
    if match is None or not hashlib.sha256(source).hexdigest().startswith(match[2]):
        raise ModuleProblem(f"{name} is not the name of this file: it is damaged")
    path = _stored(name)
    try:
        if path.is_file() and path.read_bytes() == source:
            return
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        part = path.with_suffix(f".{os.getpid()}.part")
        part.write_bytes(source)
        part.replace(path)
    except OSError as error:
        raise ModuleProblem(
            f"{name} cannot be kept in {path.parent}: {error.strerror}; set KEIMA_CACHE to a writable folder"
        ) from error


def source_of(name: str) -> bytes:
    """Return the content of the user's file ``name``.

    Raises:
        ModuleProblem: this machine does not have it.
    """
    try:
        source = _stored(name).read_bytes()
    except OSError:
        raise ModuleProblem(
            f"{name} is a user's own file, and this machine does not have it: name the file {stem_of(name)}.py, or its "
            f"run's folder, which has a copy in {FOLDER}/"
        ) from None
    keep_source(name, source)  # which checks it
    return source


def copy_modules(names: Iterable[str], folder: Path) -> None:
    """Copy the users' files among ``names`` into ``folder``, under their whole names.

    Raises:
        ModuleProblem: this machine does not have one.
        OSError: the folder cannot be written.
    """
    for name in filter(is_own, names):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        copy = folder / f"{name}.py"
        if not copy.exists():
            copy.write_bytes(source_of(name))


def keep_copies(folder: Path) -> None:
    """Put the copies in a run's ``folder`` into this machine's store; damaged ones are left out."""
    for path in sorted(folder.glob("*-*.py")):
        if is_own(path.stem) and not _stored(path.stem).is_file():
            try:
                keep_module(path)
            except ModuleProblem:
                continue


def load_module(name: str) -> ModuleType:
    """Import the user's file ``name`` from the store.

    Raises:
        ModuleProblem: this machine does not have it, or it fails; the text has the file and the line.
    """
    module_name = f"{OWN_PACKAGE}.{name.replace('-', '_')}"
    if module_name in sys.modules:
        return sys.modules[module_name]
    source_of(name)  # fails if it is missing or damaged
    spec = spec_from_file_location(module_name, path_of(name))
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[module_name] = module
    accept_older_names()
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[module_name]
        raise ModuleProblem(describe_error(error, name)) from error
    return module


def describe_error(error: BaseException, name: str) -> str:
    """Describe what went wrong in the user's file ``name``: file, line, error, and the remedy if it is known."""
    shown = path_of(name)
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(shown)]
    where = f"{shown}, line {lines[-1]}" if lines else str(shown)
    if isinstance(error, ModuleNotFoundError):
        return (
            f"{where}: there is no installed package {error.name!r}: install it, or, if it is a file of yours, move "
            "what you need of it into this one, which alone is sent to workers"
        )
    text = str(error) or "no reason given"
    if isinstance(error, ValueError) and shown.name in text:  # it says itself where it is
        return text
    return f"{where}: {text}" if isinstance(error, ValueError) else f"{where}: {type(error).__name__}: {text}"


def _stored(name: str) -> Path:
    return CACHE / FOLDER / f"{name}.py"


def path_of(name: str) -> Path:
    """Return the path of the user's file while it still has this content, else of the one in the store."""
    path = _paths.get(name)
    try:
        return path if path and path.read_bytes() == _stored(name).read_bytes() else _stored(name)
    except OSError:
        return _stored(name)
