"""Which sources machine code depends on, and the folder of the compile cache that is named after them.

This file is imported before everything that takes long to import.
"""

import functools
import hashlib
import re
from pathlib import Path

from keima.config.older_imports import name_today
from keima.config.own_modules import OWN_PACKAGE
from keima.config.public_names import HOMES
from keima.paths import CACHE, CHECKOUT, PACKAGE, SOURCE

PROJECT = CHECKOUT or PACKAGE  # whose sources are read: also those of tests and benchmarks
OWN_PREFIX = f"{OWN_PACKAGE}."  # how the names of users' modules begin

# An import statement wherever one may begin. What looks like one in a string only adds a file that is not needed.
IMPORT = re.compile(
    r"(?:^|[;:])[ \t]*(?:from[ \t]+([\w.]+)[ \t]+import\b[ \t]*(\([^)]*\)|[^\n;]*)|import[ \t]+([^\n;]*))", re.MULTILINE
)
NOT_CODE = re.compile(r"#[^\n]*|\\\n")  # comments, and the ends of lines that go on


@functools.cache
def _direct_imports(path: Path) -> frozenset[Path]:
    """Return the project files that ``path`` imports directly, found without parsing: each start scans 80 files."""
    names = []
    for module, parts, modules in IMPORT.findall(NOT_CODE.sub("", path.read_text(encoding="utf-8"))):
        listed = re.findall(r"[\w.]+", modules or parts)
        names += listed if modules else [module, *(f"{module}.{part}" for part in listed)]
    present = (HOMES.get(name.removeprefix("keima."), name_today(name)) for name in names if name.strip("."))
    files = (SOURCE.joinpath(*name.split(".")).with_suffix(".py") for name in present)
    return frozenset(file for file in files if PROJECT in file.parents and file.is_file())


def imported_sources(path: Path) -> set[Path]:
    """Return the project files that machine code compiled from ``path`` can depend on: itself and its transitive
    imports.
    """
    found, waiting = {path}, [path]
    while waiting:
        new = _direct_imports(waiting.pop()) - found
        found |= new
        waiting += new
    return found


@functools.cache
def cache_folder(path: Path, *, module: str = "", maker: Path | None = None) -> Path:
    """Return the numba cache folder of the module at ``path``, keyed by all sources that it depends on.

    Args:
        module: the name of a user's module, which contains the file's content and is the same on every machine.
        maker: another file of the project, which makes functions for the module.
    """
    digest = hashlib.sha256(module.encode())
    for source in sorted(imported_sources(path) | (imported_sources(maker) if maker else set())):
        # Machine code contains the names of its modules.
        if PROJECT in source.parents and not (module and source == path):
            digest.update(f"{source.relative_to(SOURCE).as_posix()}\n".encode())
            digest.update(source.read_bytes())
    return CACHE / f"{module.removeprefix(OWN_PREFIX) or path.stem}-{digest.hexdigest()[:16]}"
