"""The games of a worker in the order of their numbers, and which of them the run gave it.

Short games finish first. So of the games that have come, those at the end of a batch are not like the others; only when
all earlier ones are there, a game says something about the worker. A number that does not come, as its game died with
its process or was rejected, is given up after ``MOST_WAITING`` more games.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from keima.data.game_seeds import find_numbers

T = TypeVar("T")

# By how much the number of a game may differ from its place among the games delivered. A GPU plays up to some thousand
# games side by side, and a long one comes when several times as many others have come.
WINDOW = 32_768
NEAR = 4096  # the same in a process that has probably not played it: each number costs a hash
LIKELY = 2  # processes, and ends of batches, the newest ones
MOST_WAITING = 4096  # games, for one with a lower number
MOST_STARTS = 32  # that are tried: numbers of games at which processes may have begun


@dataclass(kw_only=True)
class KnownGames:
    """Which of a worker's games have come.

    Attributes:
        starts: of processes that have played, the newest first.
        ends: where batches begin and end, at which other processes may have begun, the newest first.
        seen: seeds of games that have come, with their numbers; only of the last ones.
    """

    starts: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    seen: dict[int, int] = field(default_factory=dict)

    def note_batch(self, first_game: int, games: int) -> None:
        """Note the place of a batch, received or not."""
        new = [place for place in (first_game + games, first_game) if place not in self.ends]
        self.ends = [*new, *self.ends][:MOST_STARTS]

    def place_games(
        self, seeds: Iterable[int], *, run_seeds: Iterable[int], worker: str, first_game: int, games: int
    ) -> dict[int, tuple[int, int]]:
        """Return the process and the number of each game that the run gave the worker and that comes first now.

        Args:
            seeds: of the games of a batch.
            run_seeds: the run's seed, and earlier ones.
            worker: who sent them.
            first_game: of the batch.
            games: in it.
        """
        new = [seed for seed in dict.fromkeys(seeds) if seed not in self.seen]
        found, tried = dict[int, tuple[int, int]](), dict.fromkeys(run_seeds)
        likely = dict.fromkeys([*self.starts[:LIKELY], *self.ends[:LIKELY], 0])
        others = [start for start in dict.fromkeys([*self.starts, *self.ends]) if start not in likely]
        for starts, width in ((list(likely), WINDOW), (others, NEAR)):
            numbers = range(max(0, first_game - width), first_game + games + width)
            for run_seed in tried:
                left = [seed for seed in new if seed not in found]
                found |= find_numbers(run_seed, worker, left, starts=starts, numbers=numbers, near=first_game)
        for seed, (start, number) in found.items():
            self.seen[seed] = number
            if start not in self.starts:
                self.starts = [start, *self.starts][:MOST_STARTS]
        self.seen = {seed: number for seed, number in self.seen.items() if number >= first_game - WINDOW}
        return found


@dataclass(kw_only=True)
class InOrder(Generic[T]):
    """Things of games in the order of their numbers."""

    start: int = -1  # of the process
    next: int = 0  # number
    waiting: dict[int, T] = field(default_factory=dict)

    def skip_to(self, start: int, number: int) -> None:
        """Leave out the games of a process up to ``number``, which is the first that counts."""
        self.start, self.next, self.waiting = start, number, {}

    def add(self, start: int, number: int, thing: T) -> list[T]:
        """Add the thing of a game; return those whose turn has come."""
        if start < self.start:
            return []
        if start > self.start:
            self.skip_to(start, start)
        if number < self.next:
            return []
        self.waiting[number] = thing
        if len(self.waiting) > MOST_WAITING:
            self.next = min(self.waiting)
        ready = list[T]()
        while self.next in self.waiting:
            ready.append(self.waiting.pop(self.next))
            self.next += 1
        return ready
