"""Four functions that numba compiles to a few machine instructions only with help.

``view_as``: ``state[a:b].view(np.int16)`` counts references, an atomic operation wherever the view is passed on, and
divides by item sizes known only at run time; Go ran at half its speed with it. ``view_as`` makes the same view from the
bare address. It does not keep the memory alive, so it is for kernels, which borrow their arguments from their caller.

``lowest_bit``: for iterating over the set bits of a mask.

``byte_swap``: flips a chess bitboard vertically.

``bit_count``: the number of squares in a bitboard.
"""

from typing import Any

import numpy as np
from numba.core import types
from numba.cpython.unsafe.numbers import trailing_zeros
from numba.extending import intrinsic, overload
from numba.np.arrayobj import make_array, populate_array
from numpy.typing import NDArray

from keima.compilation.parts import PART_OPTIONS


def view_as(array: NDArray[Any], first: int, length: int, dtype: Any) -> NDArray[Any]:
    """Return a flat view of ``length`` numbers of ``dtype`` in a contiguous array, beginning with number ``first``."""
    return array.reshape(-1).view(dtype)[first : first + length]


def lowest_bit(mask: int) -> int:
    """Return the index of the lowest set bit of ``mask``, which is not 0."""
    return (int(mask) & -int(mask)).bit_length() - 1


def byte_swap(word: Any) -> Any:
    """Return a 64-bit word with its eight bytes in reverse order."""
    return np.int64(word).byteswap()


def bit_count(word: Any) -> int:
    """Return the number of set bits of a 64-bit word."""
    return (int(word) & (1 << 64) - 1).bit_count()


@intrinsic
def _view_as(context: Any, array: Any, first: Any, length: Any, dtype: Any) -> Any:
    view = types.Array(dtype.dtype, 1, "C")

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        source, offset, count, _ = arguments
        item = context.get_value_type(view.dtype).as_pointer()
        start = builder.bitcast(make_array(signature.args[0])(context, builder, source).data, item)
        width = context.get_constant(types.intp, view.dtype.bitwidth // 8)
        result = make_array(view)(context, builder)
        populate_array(
            result, data=builder.gep(start, [offset]), shape=[count], strides=[width], itemsize=width, meminfo=None
        )
        return result._getvalue()

    return view(array, types.intp, types.intp, dtype), build


@overload(view_as, strict=False, jit_options=PART_OPTIONS)
def _compiled_view_as(array: Any, first: Any, length: Any, dtype: Any) -> Any:
    return lambda array, first, length, dtype: _view_as(array, first, length, dtype)


@overload(lowest_bit, strict=False, jit_options=PART_OPTIONS)
def _compiled_lowest_bit(mask: Any) -> Any:
    return lambda mask: trailing_zeros(mask)


@intrinsic
def _byte_swap(context: Any, word: Any) -> Any:
    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bswap(arguments[0])

    return types.int64(types.int64), build


@overload(byte_swap, strict=False, jit_options=PART_OPTIONS)
def _compiled_byte_swap(word: Any) -> Any:
    return lambda word: _byte_swap(word)


@intrinsic
def _bit_count(context: Any, word: Any) -> Any:
    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.ctpop(arguments[0])

    return types.int64(types.int64), build


@overload(bit_count, strict=False, jit_options=PART_OPTIONS)
def _compiled_bit_count(word: Any) -> Any:
    return lambda word: _bit_count(word)
