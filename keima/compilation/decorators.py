"""Compilation: decorators over numba, and an on-disk cache that notices every edit.

``compiled`` makes an ordinary compiled function. ``kernel(signature)`` makes a C function with a fixed signature, which
compiled code accepts as a value: so one compiled search serves every game and is still cached on disk.

numba's own cache notices edits only in the function's own file. Here each module has a cache folder named after a hash
of its source *and of all project sources that it imports*, so that an edit never leaves stale machine code. A game in a
user's file (``keima.config.own_modules``) is cached in the same way, once a machine; the same file builds different
games for different options, so its machine code is also keyed by every value that it was compiled with. Set
``NUMBA_DISABLE_JIT=1`` to run everything as plain Python under a debugger.

Two habits keep kernels fast (both measured): read ``rules.step`` and its siblings into local names before a loop, and
do not pass arrays to small compiled helpers within one (about 20 ns a call for reference counts) unless they are
inlined.
"""

import functools
import hashlib
import secrets
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any, TypeVar

import numba
import numpy as np
from numba.core.bytecode import FunctionIdentity
from numba.core.caching import UserProvidedCacheLocator
from numba.core.ccallback import CFunc
from numba.core.errors import NumbaExperimentalFeatureWarning
from numba.core.serialize import dumps
from numba.core.sigutils import normalize_signature
from numba.core.targetconfig import TargetConfig

from keima.compilation.parts import PART_OPTIONS, as_part
from keima.compilation.shared_cache import SharedCache
from keima.compilation.sources import OWN_PREFIX, PROJECT, cache_folder

# Function values are documented, but numba warns at every use that they are experimental.
warnings.simplefilter("ignore", NumbaExperimentalFeatureWarning)

# numba numbers functions from 1 in each process, and these numbers are in the names of machine code. What two processes
# have compiled, such as a user's game on two boards, could have the same names, and a third process that loads both
# from the cache would call one for the other. So the numbers are random.
FunctionIdentity._unique_ids = iter(functools.partial(secrets.randbits, 62), None)


# numba hashes the options of a function at each look for an overload, and asks for each of them. Here the values that
# were set replace the others at once, which saves a twelfth of the time of compiling.
@functools.cache
def _default_options(kind: Any) -> dict[str, Any]:
    return {name: option.default for name, option in kind.options.items()}


TargetConfig.values = lambda self: {**_default_options(type(self)), **self._values}  # type: ignore[arg-type]

Function = TypeVar("Function", bound=Callable[..., Any])


class CacheByContent(UserProvidedCacheLocator):  # type: ignore[misc]
    """Makes numba cache a function in the folder named after its sources, which copies of the project share."""

    def __init__(self, function: Any, file: str) -> None:
        super().__init__(function, file)
        self._cache_path = numba.config.CACHE_DIR  # numba itself adds a folder named after the source's path

    @classmethod
    def from_function(cls, function: Any, file: str) -> Any:
        """Return the locator of the function, whose source need not exist: a user's game keeps its source elsewhere."""
        locator = cls(function, file)
        try:
            locator.ensure_cache_path()
        except OSError:
            return None
        return locator

    def get_source_stamp(self) -> str:
        """Return a constant, since another source has another folder."""
        return ""


class CacheByCapture(SharedCache):
    """Distinguishes versions of one function by everything that they refer to, in closures and globals.

    numba considers closures only, and treats two functions in them as different in each process.
    """

    def _index_key(self, signature: Any, codegen: Any) -> Any:
        return signature, codegen.magic_tuple(), captured_digest(self._py_func)


def captured_digest(function: Callable[..., Any]) -> str:
    """Return a digest of the function's code and of the values that it refers to: the same in every process."""
    digest = hashlib.sha256()
    _write_value(function, function.__module__, digest.update, {})
    return digest.hexdigest()


def _write_value(value: Any, module: str, write: Callable[[bytes], None], seen: dict[int, int]) -> None:
    value = getattr(value, "py_func", getattr(value, "_pyfunc", value))  # what a dispatcher, or a kernel, compiles
    if isinstance(value, FunctionType):
        _write_function(value, module, write, seen)
    elif isinstance(value, np.ndarray) and not value.dtype.hasobject:
        write(f"{value.dtype.str}{value.shape}".encode() + value.tobytes())
    elif isinstance(value, (tuple, list)):
        write(f"{type(value).__name__}{len(value)}".encode())
        for part in value:
            _write_value(part, module, write, seen)
    elif isinstance(value, (ModuleType, type)) or callable(value):
        write(f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', repr(value))}".encode())
    elif isinstance(value, (bool, int, float, complex, str, bytes, np.generic, np.dtype, type(None))):
        write(f"{type(value).__name__}{value!r};".encode())
    else:
        write(dumps(value))  # as numba does


def _write_function(function: FunctionType, module: str, write: Callable[[bytes], None], seen: dict[int, int]) -> None:
    write(f"{function.__module__}.{function.__qualname__}".encode())
    if id(function) in seen:
        return
    seen[id(function)] = len(seen)
    for cell in function.__closure__ or ():
        _write_value(cell.cell_contents, module, write, seen)
    if function.__module__ == module:  # that of others is in the sources that name the folder
        for defaults in (function.__defaults__ or (), tuple(sorted((function.__kwdefaults__ or {}).items()))):
            _write_value(defaults, module, write, seen)
        for name in _write_code(function.__code__, write):
            if name in function.__globals__:
                write(f"{name}=".encode())
                _write_value(function.__globals__[name], module, write, seen)


def _write_code(code: CodeType, write: Callable[[bytes], None]) -> list[str]:
    """Write the code; return the names that it refers to."""
    write(code.co_code)
    names = list(code.co_names)
    write(repr(names).encode())
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names += _write_code(constant, write)
        else:
            write(repr(sorted(constant) if isinstance(constant, frozenset) else constant).encode())
    return sorted(set(names))


def _source_file(function: Callable[..., Any]) -> Path:
    return Path(sys.modules[function.__module__].__file__ or "").resolve()


def _is_users_module(function: Callable[..., Any]) -> bool:
    return function.__module__.startswith(OWN_PREFIX)


@contextmanager
def _numba_cache_in(folder: Path) -> Iterator[None]:
    previous = numba.config.CACHE_DIR, numba.config.CACHE_LOCATOR_CLASSES
    numba.config.CACHE_DIR = str(folder)
    numba.config.CACHE_LOCATOR_CLASSES = f"{__name__}.{CacheByContent.__name__}"
    try:
        yield
    finally:
        numba.config.CACHE_DIR, numba.config.CACHE_LOCATOR_CLASSES = previous


def _make_cache(function: Callable[..., Any], *, by_capture: bool, is_part: bool = False) -> SharedCache:
    file, maker = _source_file(function), Path(function.__code__.co_filename).resolve()
    folder = cache_folder(
        file,
        module=function.__module__ if _is_users_module(function) else "",
        maker=maker if PROJECT in maker.parents and maker != file else None,
    )
    with _numba_cache_in(folder):
        return (CacheByCapture if by_capture else SharedCache)(function, is_part=is_part)


def _is_cached(function: Callable[..., Any]) -> bool:
    return _is_users_module(function) or PROJECT in _source_file(function).parents


def _make_dispatcher(function: Callable[..., Any], *, is_part: bool = False, **options: Any) -> Any:
    dispatcher: Any = numba.njit(nogil=True, error_model="numpy", **options)(function)
    if dispatcher is not function and _is_cached(function):  # it is the function under NUMBA_DISABLE_JIT
        dispatcher._cache = _make_cache(function, by_capture=_is_users_module(function), is_part=is_part)
    return dispatcher


def compiled(function: Function) -> Function:
    """Compile ``function`` on first use, without the GIL, and cache the machine code on disk."""
    return _make_dispatcher(function)


def compiled_without_refcounts(function: Function) -> Function:
    """Compile a ``function`` that allocates no array, without reference counting, to be called in hot loops."""
    return _make_dispatcher(function, _nrt=False)


def compiled_part(function: Function) -> Function:
    """Compile a ``function`` that compiled code calls in hot loops, likewise without reference counting.

    It takes a quarter of the time to compile; see ``keima.compilation.parts``.
    """
    return as_part(_make_dispatcher(function, is_part=True, _nrt=False, **PART_OPTIONS))


def inlined(function: Function) -> Function:
    """Inline ``function`` into each of its callers, for the small helpers of hot loops."""
    return numba.njit(inline="always", error_model="numpy")(function)


def inlined_by_llvm(function: Function) -> Function:
    """Inline a ``function`` that neither allocates nor returns an array into its callers' machine code.

    The code is as fast as that of ``inlined``, and compiled in a quarter of the time: numba copies no source into
    callers, and it is a part (``keima.compilation.parts``).
    """
    return as_part(numba.njit(forceinline=True, _nrt=False, error_model="numpy", **PART_OPTIONS)(function))


def compile_for_types(function: Callable[..., Any], *arguments: Any) -> Callable[..., Any]:
    """Compile ``function`` for the types of these ``arguments``, without numba's type dispatch at each call.

    Dispatch costs 0.2 ms for tuples of kernels and records. The result must only be called with the same types.
    """
    if numba.config.DISABLE_JIT:
        return function
    dispatcher: Any = function
    signature = tuple(numba.typeof(argument) for argument in arguments)
    dispatcher.compile(signature)
    return dispatcher.get_overload(signature)


def kernel(signature: Any, about: str = "") -> Callable[[Function], Function]:
    """Compile a function of exactly this ``signature``, which can be passed to ``compiled`` functions as a value.

    ``about`` becomes the docstring of the decorator.
    """

    def decorate(function: Function) -> Function:
        return _compile_kernel(signature, function, by_capture=_is_users_module(function))

    decorate.__doc__ = about
    return decorate


def compile_captured_kernel(signature: Any, function: Callable[..., Any], *, counted: bool = True) -> Any:
    """Return a kernel that is cached for everything that ``function`` refers to, with the sources of its module.

    It is for functions that are made while a program runs, many from one piece of code. Where the module is neither the
    project's nor a user's, nothing is cached.

    Args:
        counted: whether it counts references to arrays. It is faster without, and cannot allocate any; code that is
            cached is used as it is.

    Raises:
        NumbaError: numba cannot compile it.
    """
    return _compile_kernel(signature, function, by_capture=True, counted=counted)


def _compile_kernel(signature: Any, function: Callable[..., Any], *, by_capture: bool, counted: bool = True) -> Any:
    if numba.config.DISABLE_JIT:
        return function
    options = {} if counted else {"_nrt": False}
    result: Any = CFunc(function, normalize_signature(signature), locals={}, options=options)
    if not _is_cached(function):
        result.compile()
        return result
    result._cache = _make_cache(function, by_capture=by_capture)
    try:
        result.compile()
    finally:
        result._cache.unlock()  # also if it cannot be compiled
    return result
