"""The seeds of a worker's games: which games of the run's sequence a batch holds, if any.

Every process of a worker counts on from the games that its worker has handed over, and draws seeds of its own
(``Playing`` in keima/worker/playing.py). So the seed of a game names the process and the game's number.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import zip_longest

from keima.base.random import seed_stream


def find_numbers(
    seed: int, worker: str, wanted: Iterable[int], *, starts: Sequence[int], numbers: range, near: int = 0
) -> dict[int, tuple[int, int]]:
    """Return, for each of the ``wanted`` seeds that the run gives this worker, its process and its number.

    Args:
        seed: the run's.
        worker: who played the games.
        wanted: the games' seeds.
        starts: the numbers at which processes of the worker may have begun; the first ones are tried first.
        numbers: the numbers that the games may have.
        near: the number that they are probably near to.
    """
    found, left = dict[int, tuple[int, int]](), set(wanted)
    for start in starts:
        for number in _order_by_distance(range(max(start, numbers.start), numbers.stop), near):
            if not left:
                return found
            value = seed_stream(seed, worker, start, number)
            if value in left:
                left.remove(value)
                found[value] = (start, number)
    return found


def _order_by_distance(numbers: range, near: int) -> Iterator[int]:
    """Yield the numbers, beginning with the nearest to ``near``."""
    above = range(max(near, numbers.start), numbers.stop)
    below = range(min(near, numbers.stop) - 1, numbers.start - 1, -1)
    for pair in zip_longest(above, below):
        yield from (number for number in pair if number is not None)
