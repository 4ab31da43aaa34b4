"""Observations as bytes, for the transfer to a device: nearly all planes of nearly all games are whole numbers."""

import numpy as np
from numpy.typing import NDArray

from keima.compilation.decorators import compiled


@compiled
def pack_bytes(numbers: NDArray[np.float32], out: NDArray[np.uint8]) -> bool:
    """Write ``numbers`` ``[N]`` as bytes; return whether all of them are whole numbers from 0 to 255."""
    exact = True
    for i in range(numbers.size):
        number = numbers[i]
        byte = np.uint8(min(max(number, np.float32(0)), np.float32(255)))
        out[i] = byte
        exact &= np.float32(byte) == number
    return exact
