"""Compiled functions that only other compiled code calls: their machine code is made within that of their callers.

numba optimizes the LLVM code of each function with everything that it calls, makes machine code of it, and then links
the LLVM code into each caller, where all of this happens again. A part is only simplified, which keeps it small;
what is compiled for Python, or for C, has it optimized in its place. That saves a third of the time of a first start.

A part cannot print, nor raise what is made at run time: for both, numba needs what it only stores with machine code.
"""

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numba
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler
from numba.core.compiler_machinery import LoweringPass, register_pass
from numba.core.registry import CPUDispatcher
from numba.core.typed_passes import AnnotateTypes


class PartLibrary(JITCodeLibrary):  # type: ignore[misc]
    """The LLVM code of a part, without machine code."""

    def _optimize_final_module(self) -> None:
        options = {"opt": 0, "loop_vectorize": False, "slp_vectorize": False, "cost": "cheap"}
        manager, builder = self._codegen._module_pass_manager(**options)
        manager.run(self._final_module, builder)

    def _finalize_final_module(self) -> None:
        self._finalize_dynamic_globals()
        self._finalized = True

    def get_pointer_to_function(self, name: str) -> int:
        """Return 0: there is no machine code."""
        self._ensure_finalized()
        return 0

    def serialize_using_object_code(self) -> tuple[str, str, bytes]:
        """Return what is cached on disk."""
        return self.serialize_using_bitcode()

    @property
    def codegen(self) -> "PartLibrary":
        """Itself, since numba only calls ``set_env`` of it."""
        return self

    def set_env(self, name: str, environment: Any) -> None:
        """Do nothing: an environment is stored beside machine code."""


@register_pass(mutates_CFG=False, analysis_only=False)
class _UsePartLibrary(LoweringPass):  # type: ignore[misc]
    _name = "keima_use_part_library"

    def __init__(self) -> None:
        super().__init__()

    def run_pass(self, state: Any) -> bool:
        state.library = PartLibrary(state.targetctx.codegen(), state.func_id.func_qualname)
        return False


class _PartCompiler(Compiler):  # type: ignore[misc]
    def define_pipelines(self) -> list[Any]:
        """See ``Compiler``."""
        (manager,) = super().define_pipelines()
        manager.add_pass_after(_UsePartLibrary, AnnotateTypes)
        manager.finalize()
        return [manager]


# For numba.njit. The compiled function has no entries for Python and C, which take half of the time to compile.
PART_OPTIONS = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True, "pipeline_class": _PartCompiler}


@contextmanager
def loading_parts(target_context: Any) -> Iterator[None]:
    """Let numba make no machine code of what it reads from the cache."""
    codegen = target_context.codegen()
    codegen._library_class = PartLibrary
    try:
        yield
    finally:
        del codegen._library_class  # that of its class is JITCodeLibrary


class Part(CPUDispatcher):  # type: ignore[misc]
    """A compiled function without an entry for Python, which would crash; a call from Python compiles one first."""

    def __call__(self, *arguments: Any) -> Any:
        """Call it from Python, as tests do."""
        return _make_entry(self)(*arguments)


@functools.cache
def _make_entry(function: Part) -> Any:
    return numba.njit(error_model="numpy")(lambda *arguments: function(*arguments))


def as_part(dispatcher: Any) -> Any:
    """Return a function that was compiled with ``PART_OPTIONS`` as a part."""
    if not numba.config.DISABLE_JIT:
        dispatcher.__class__ = Part
    return dispatcher
