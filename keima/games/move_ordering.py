"""Moves in the order in which alpha-beta tries them."""

from typing import Any

from keima.compilation.decorators import inlined_by_llvm


@inlined_by_llvm
def bring_best_forward(moves: Any, keys: Any, first: int, count: int) -> None:
    """Swap the move of the highest key among those from ``first`` to ``count`` to the front, with its key.

    Moves are sorted one at a time, since a cutoff makes the others needless.
    """
    best = first
    for other in range(first + 1, count):
        if keys[other] > keys[best]:
            best = other
    moves[first], moves[best] = moves[best], moves[first]
    keys[first], keys[best] = keys[best], keys[first]
