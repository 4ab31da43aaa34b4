"""PNG pictures as tests look at them."""

import io

import numpy as np
from numpy.typing import NDArray


def pixels(content: bytes) -> NDArray[np.uint8]:
    """Return the picture's pixels, rows of red, green and blue."""
    from matplotlib.image import imread

    assert content.startswith(b"\x89PNG")
    return np.rint(255 * imread(io.BytesIO(content))[..., :3]).astype(np.uint8)


def count_of(colour: str, picture: NDArray[np.uint8]) -> int:
    """Return how many pixels have exactly this colour, written as #rrggbb."""
    return int((picture == np.frombuffer(bytes.fromhex(colour[1:]), np.uint8)).all(axis=-1).sum())
