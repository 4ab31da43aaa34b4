"""bfloat16 numbers in compiled code: 16-bit words, the upper halves of float32 numbers."""

import numpy as np
from numpy.typing import NDArray

from keima.compilation.decorators import inlined_by_llvm

Words = NDArray[np.uint16]


@inlined_by_llvm
def bfloat16_to_float32(word: int) -> float:
    """Return the float32 number that a bfloat16 word stands for."""
    return np.uint32(np.uint32(word) << np.uint32(16)).view(np.float32)  # type: ignore[return-value]


@inlined_by_llvm
def float32_to_bfloat16(number: float) -> int:
    """Return the nearest bfloat16 word, ties to even."""
    # Adding 0x7FFF, or 0x8000 where the last kept bit is 1, carries into that bit above a half, and at a half to even
    bits = np.float32(number).view(np.uint32)
    return np.uint16(np.uint32(bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16))  # type: ignore[return-value]
