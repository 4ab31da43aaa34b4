"""How this project compiles Python: two decorators over numba, and a cache that sees every edit.

``compiled`` makes an ordinary compiled function. ``kernel(signature)`` makes a C function with a fixed signature, which
can be handed to compiled code as a value: this is how one compiled search serves every game and is still cached on
disk.

numba's own cache notices an edit only in the file of the function itself. Here each module gets a cache folder named
after a hash of its source *and of all project sources that it imports*, so that a changed helper never leaves stale
machine code. Set ``NUMBA_DISABLE_JIT=1`` to run everything as plain Python under a debugger.

Two habits keep kernels fast (both measured): unpack ``rules.step`` and its siblings into local names before a loop, and
do not pass arrays to small compiled helpers inside one (about 20 ns a call for reference counts) unless they are
inlined.
"""

import ast
import functools
import hashlib
import os
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numba
from numba.core.caching import UserProvidedCacheLocator
from numba.core.errors import NumbaExperimentalFeatureWarning

# Function values as arguments are the documented way to do this; numba calls them experimental at every use.
warnings.simplefilter("ignore", NumbaExperimentalFeatureWarning)

Function = TypeVar("Function", bound=Callable[..., Any])

PROJECT = Path(__file__).resolve().parent.parent
CACHE = Path(os.environ.get("KEIMA_CACHE", Path.home() / ".cache" / "keima"))


@functools.cache
def _imports(path: Path) -> frozenset[Path]:
    """The project files that the file at ``path`` imports directly."""
    names = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            names += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        elif isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
    files = (PROJECT.joinpath(*name.split(".")).with_suffix(".py") for name in names)
    return frozenset(file for file in files if file.is_file())


def imported_sources(path: Path) -> set[Path]:
    """The project files whose code can end up in machine code compiled from ``path``: itself and its imports,
    transitively.
    """
    found, waiting = {path}, [path]
    while waiting:
        new = _imports(waiting.pop()) - found
        found |= new
        waiting += new
    return found


@functools.cache
def cache_folder(path: Path) -> Path:
    """The numba cache folder of the module at ``path``, keyed by everything that it is compiled from."""
    digest = hashlib.sha256()
    for source in sorted(imported_sources(path)):
        digest.update(
            f"{source.relative_to(PROJECT).as_posix()}\n".encode()
        )  # machine code names the modules that it is from
        digest.update(source.read_bytes())
    return CACHE / f"{path.stem}-{digest.hexdigest()[:16]}"


class CacheByContent(UserProvidedCacheLocator):  # type: ignore[misc]
    """Where numba keeps a function: in the folder named after its sources, wherever these lie, so that a copy compiles
    nothing again.
    """

    def __init__(self, function: Any, file: str) -> None:
        super().__init__(function, file)
        self._cache_path = numba.config.CACHE_DIR  # instead of one within it that is named after the path of the source

    def get_source_stamp(self) -> str:
        """Nothing to compare: another source has another folder."""
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
    """Compile ``function`` on first use, release the GIL inside it, and keep the machine code on disk."""
    decorator = functools.partial(numba.njit, nogil=True, error_model="numpy")
    return _decorate(function, decorator)


def lean(function: Function) -> Function:
    """Compile a ``function`` that allocates no array, without reference counting: for what a hot loop calls with
    arrays.
    """
    decorator = functools.partial(numba.njit, nogil=True, error_model="numpy", _nrt=False)
    return _decorate(function, decorator)


def inlined(function: Function) -> Function:
    """Compile ``function`` into each of its callers: for the small helpers of a hot loop."""
    return numba.njit(inline="always", error_model="numpy")(function)


def specialized(function: Callable[..., Any], *arguments: Any) -> Callable[..., Any]:
    """``function`` compiled for the types of these ``arguments``, without the look at the types at each call.

    That look costs some 0.2 ms where tuples of kernels and records are passed; the result must only be given the same
    types again.
    """
    if numba.config.DISABLE_JIT:
        return function
    dispatcher: Any = function
    signature = tuple(numba.typeof(argument) for argument in arguments)
    dispatcher.compile(signature)
    return dispatcher.get_overload(signature)


def kernel(signature: Any) -> Callable[[Function], Function]:
    """Compile a function of exactly ``signature`` that can be passed to ``compiled`` functions as a value."""

    def decorate(function: Function) -> Function:
        if numba.config.DISABLE_JIT:
            return function
        decorator = functools.partial(numba.cfunc, signature)
        return _decorate(function, decorator)

    return decorate
