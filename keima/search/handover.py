"""Passing a game's kernels from Python to compiled code as bare addresses, which costs almost nothing.

numba looks up and unpickles the signature of a function value at each call from Python: 3 us for each of seven kernels,
and several times that after a network has flushed the processor's caches. That was a third of self-play's own time.
"""

from typing import Any

import numba
from numba.core import cgutils, types
from numba.experimental.function_type import FunctionModel
from numba.extending import NativeValue, register_model, typeof_impl, unbox

from keima.games.game import Rules


class AddressedKernel:
    """A compiled kernel and its address."""

    def __init__(self, kernel: Any) -> None:
        self.kernel, self.address = kernel, kernel.address  # the address is valid as long as the kernel is alive


class AddressedKernelType(types.FunctionType):
    """The type of an ``AddressedKernel`` in compiled code, where it behaves like any function."""


register_model(AddressedKernelType)(FunctionModel)


@typeof_impl.register(AddressedKernel)
def typeof_addressed_kernel(value: AddressedKernel, context: Any) -> AddressedKernelType:
    """Return the type of a kernel, by its signature."""
    return AddressedKernelType(numba.typeof(value.kernel).signature)


@unbox(AddressedKernelType)
def unbox_kernel_address(kind: AddressedKernelType, value: Any, compiler: Any) -> NativeValue:
    """Generate the code that reads the address."""
    address = compiler.pyapi.object_getattr_string(value, "address")
    function = cgutils.create_struct_proxy(kind)(compiler.context, compiler.builder)
    function.c_addr = compiler.pyapi.long_as_voidptr(address)
    compiler.pyapi.decref(address)
    return NativeValue(function._getvalue())


def pass_rules_by_address(rules: Rules) -> Rules:
    """Return the same rules in a form that is cheap to pass from Python to compiled code."""
    return Rules(*map(pass_kernel_by_address, rules))


def pass_kernel_by_address(kernel: Any) -> Any:
    """Return the same kernel in that form."""
    return kernel if numba.config.DISABLE_JIT else AddressedKernel(kernel)
