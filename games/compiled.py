"""Compilation: decorators over numba, and an on-disk cache that notices every edit.

``compiled`` makes an ordinary compiled function. ``kernel(signature)`` makes a C function with a fixed signature, which
compiled code accepts as a value: so one compiled search serves every game and is still cached on disk.

numba's own cache notices edits only in the function's own file. Here each module has a cache folder named after a hash
of its source *and of all project sources that it imports*, so that an edit never leaves stale machine code. Set
``NUMBA_DISABLE_JIT=1`` to run everything as plain Python under a debugger.

Two habits keep kernels fast (both measured): read ``rules.step`` and its siblings into local names before a loop, and
do not pass arrays to small compiled helpers within one (about 20 ns a call for reference counts) unless they are
inlined.
"""

import ast
import functools
import hashlib
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numba
from numba.core.caching import UserProvidedCacheLocator
from numba.core.errors import NumbaExperimentalFeatureWarning

from configs.cache import CACHE

# Function values are documented, but numba warns at every use that they are experimental.
warnings.simplefilter("ignore", NumbaExperimentalFeatureWarning)

Function = TypeVar("Function", bound=Callable[..., Any])

PROJECT = Path(__file__).resolve().parent.parent


@functools.cache
def _imports(path: Path) -> frozenset[Path]:
    """The project files that ``path`` imports directly."""
    names = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            names += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        elif isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
    files = (PROJECT.joinpath(*name.split(".")).with_suffix(".py") for name in names)
    return frozenset(file for file in files if file.is_file())


def imported_sources(path: Path) -> set[Path]:
    """The project files that machine code compiled from ``path`` can depend on: itself and its transitive imports."""
    found, waiting = {path}, [path]
    while waiting:
        new = _imports(waiting.pop()) - found
        found |= new
        waiting += new
    return found


@functools.cache
def cache_folder(path: Path) -> Path:
    """The numba cache folder of the module at ``path``, keyed by all sources that it depends on."""
    digest = hashlib.sha256()
    for source in sorted(imported_sources(path)):
        # Machine code contains the names of its modules.
        digest.update(f"{source.relative_to(PROJECT).as_posix()}\n".encode())
        digest.update(source.read_bytes())
    return CACHE / f"{path.stem}-{digest.hexdigest()[:16]}"


class CacheByContent(UserProvidedCacheLocator):  # type: ignore[misc]
    """Makes numba cache a function in the folder named after its sources, which copies of the project share."""

    def __init__(self, function: Any, file: str) -> None:
        super().__init__(function, file)
        self._cache_path = numba.config.CACHE_DIR  # numba itself adds a folder named after the source's path

    def get_source_stamp(self) -> str:
        """A constant: another source has another folder."""
        return ""


def _decorate(function: Callable[..., Any], decorator: Callable[..., Any]) -> Any:
    file = Path(sys.modules[function.__module__].__file__ or "").resolve()
    if PROJECT not in file.parents:
        return decorator(cache=False)(function)
    previous = numba.config.CACHE_DIR, numba.config.CACHE_LOCATOR_CLASSES
    numba.config.CACHE_DIR = str(cache_folder(file))
    numba.config.CACHE_LOCATOR_CLASSES = f"{__name__}.{CacheByContent.__name__}"
    try:
        return decorator(cache=True)(function)
    finally:
        numba.config.CACHE_DIR, numba.config.CACHE_LOCATOR_CLASSES = previous


def compiled(function: Function) -> Function:
    """Compile ``function`` on first use, without the GIL, and cache the machine code on disk."""
    decorator = functools.partial(numba.njit, nogil=True, error_model="numpy")
    return _decorate(function, decorator)


def lean(function: Function) -> Function:
    """Compile a ``function`` that allocates no array, without reference counting, to be called in hot loops."""
    decorator = functools.partial(numba.njit, nogil=True, error_model="numpy", _nrt=False)
    return _decorate(function, decorator)


def inlined(function: Function) -> Function:
    """Inline ``function`` into each of its callers, for the small helpers of hot loops."""
    return numba.njit(inline="always", error_model="numpy")(function)


def specialized(function: Callable[..., Any], *arguments: Any) -> Callable[..., Any]:
    """``function`` compiled for the types of these ``arguments``, without numba's type dispatch at each call.

    Dispatch costs 0.2 ms for tuples of kernels and records. The result must only be called with the same types.
    """
    if numba.config.DISABLE_JIT:
        return function
    dispatcher: Any = function
    signature = tuple(numba.typeof(argument) for argument in arguments)
    dispatcher.compile(signature)
    return dispatcher.get_overload(signature)


def kernel(signature: Any) -> Callable[[Function], Function]:
    """Compile a function of exactly this ``signature``, which can be passed to ``compiled`` functions as a value."""

    def decorate(function: Function) -> Function:
        if numba.config.DISABLE_JIT:
            return function
        decorator = functools.partial(numba.cfunc, signature)
        return _decorate(function, decorator)

    return decorate
