"""2048 by regular expressions: the rules as one explains them, on lines written as letters, for comparison with
``keima.games.twenty48.rules``.

An empty cell is a dot, a tile of 2 is ``a``, of 4 ``b`` and so on. Only the calls are vectorized: each line that occurs
slides once.
"""

import re

import numpy as np
from numpy.typing import NDArray

Boards = NDArray[np.int64]  # [N, H, W] exponents; 0 is an empty cell

UP, RIGHT, DOWN, LEFT = range(4)


def slid(line: str) -> tuple[str, int]:
    """Return the line after a slide to the left, and the sum of the new tiles."""
    made = 0

    def merge(pair: re.Match[str]) -> str:
        nonlocal made
        letter = chr(ord(pair[1]) + 1)
        made += 2 ** (ord(letter) - ord("a") + 1)
        return letter

    return re.sub(r"(.)\1", merge, line.replace(".", "")).ljust(len(line), "."), made


def letters(line: list[int]) -> str:
    return "".join("." if exponent == 0 else chr(ord("a") + exponent - 1) for exponent in line)


def exponents(line: str) -> list[int]:
    return [0 if letter == "." else ord(letter) - ord("a") + 1 for letter in line]


def slid_left(boards: Boards) -> tuple[Boards, NDArray[np.int64]]:
    """Return all boards after a slide to the left, and the rewards ``[N]``."""
    numbers = boards @ 32 ** np.arange(boards.shape[2])  # one for each line
    _, first, which = np.unique(numbers, return_index=True, return_inverse=True)
    results = [slid(letters(line)) for line in boards.reshape(-1, boards.shape[2])[first].tolist()]
    moved = np.array([exponents(line) for line, _ in results])[which.ravel()].reshape(boards.shape)
    return moved, np.array([made for _, made in results])[which.ravel()].reshape(boards.shape[:2]).sum(axis=1)


def slid_to(boards: Boards, action: int) -> tuple[Boards, NDArray[np.int64]]:
    """Return all boards after the action, and the rewards ``[N]``: the board is turned until the action is a slide to
    the left.
    """
    turns = {LEFT: 0, UP: 1, RIGHT: 2, DOWN: 3}[action]  # counter-clockwise
    moved, rewards = slid_left(np.rot90(boards, turns, axes=(1, 2)))
    return np.rot90(moved, -turns, axes=(1, 2)), rewards
