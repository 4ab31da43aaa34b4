"""Self-play that keeps a device busy: groups of games, each on a thread of its own.

While the device evaluates one group's positions, other groups search. Compiled search runs without the GIL, so several
groups use several cores.
"""

import itertools
from collections.abc import Sequence
from typing import Protocol

from keima.base.system.threads import StepThreads
from keima.config.sections.search import SearchSettings
from keima.data.records import GameRecord
from keima.games.game import Actions, Game
from keima.search.puct import Evaluate
from keima.self_play.parallel_games import SelfPlay


class ParallelGames(Protocol):
    """Games that are played side by side; see ``SelfPlay``."""

    @property
    def parallel_games(self) -> int:
        """The number of games that can be in progress."""

    @property
    def evaluations(self) -> int:
        """The number of positions that have been evaluated."""

    @property
    def num_playing(self) -> int:
        """The number of games in progress, or finished and not collected."""

    def num_idle(self) -> int:
        """Return the number of idle slots, in which games could begin."""

    def begin(self, seeds: Sequence[int], openings: Sequence[Actions] | None = None) -> None:
        """Start a game for each of ``seeds``."""

    def advance(self) -> list[GameRecord]:
        """Advance the games; return those that have finished."""

    def change_model(self, model_version: int) -> None:
        """Handle the evaluator's change to another network."""


class GroupedSelfPlay:
    """Groups of games; each game is played as by ``SelfPlay``.

    Args:
        game: what is played.
        evaluate: the network; threads call it at the same time.
        settings: how it searches and moves.
        parallel_games: how many games are played side by side, in all groups.
        groups: how many groups; at most one for each game.
        cache_positions: how many evaluations are remembered, by all groups together.
    """

    def __init__(
        self,
        game: Game,
        evaluate: Evaluate,
        settings: SearchSettings,
        *,
        parallel_games: int,
        groups: int,
        cache_positions: int = 0,
    ) -> None:
        groups = min(groups, parallel_games)
        ends = [parallel_games * i // groups for i in range(groups + 1)]
        self._groups = [
            SelfPlay(game, evaluate, settings, parallel_games=end - first, cache_positions=cache_positions // groups)
            for first, end in itertools.pairwise(ends)
        ]
        self.parallel_games = parallel_games
        self.num_playing = 0
        self._finished: list[GameRecord] = []  # that were not handed over
        self._threads = StepThreads([group.advance for group in self._groups], name="search")

    @property
    def evaluations(self) -> int:
        """The number of positions that have been evaluated."""
        return sum(group.evaluations for group in self._groups)

    def num_idle(self) -> int:
        """Return the number of idle slots in resting groups, in which games could begin."""
        return sum(group.num_idle() for group in self._idle_groups())

    def begin(self, seeds: Sequence[int], openings: Sequence[Actions] | None = None) -> None:
        """Start a game for each of ``seeds``; see ``SelfPlay.begin``.

        Raises:
            ValueError: there are not so many idle slots.
        """
        if len(seeds) > self.num_idle():
            raise ValueError(f"{len(seeds)} games cannot begin in {self.num_idle()} idle slots")
        first = 0
        for group in sorted(self._idle_groups(), key=SelfPlay.num_idle, reverse=True):
            last = min(len(seeds), first + group.num_idle())
            group.begin(seeds[first:last], openings[first:last] if openings else None)
            first = last
        self.num_playing += len(seeds)

    def advance(self) -> list[GameRecord]:
        """Advance all groups, and wait for one evaluation of one of them; return the games that it finished.

        Raises:
            ValueError: see ``SelfPlay.advance``.
        """
        for number, group in enumerate(self._groups):
            if number not in self._threads.busy and group.num_playing:
                self._threads.begin_step(number)
        self._collect_finished()
        records, self._finished = self._finished, []
        self.num_playing -= len(records)
        return records

    def change_model(self, model_version: int) -> None:
        """See ``SelfPlay.change_model``; it waits for the evaluations that are under way."""
        while self._threads.busy:
            self._collect_finished()
        for group in self._groups:
            group.change_model(model_version)

    def _collect_finished(self) -> None:
        for records in self._threads.take_results():
            self._finished += records

    def _idle_groups(self) -> list[SelfPlay]:
        return [group for number, group in enumerate(self._groups) if number not in self._threads.busy]


def make_parallel_games(
    game: Game,
    evaluate: Evaluate,
    settings: SearchSettings,
    *,
    parallel_games: int,
    threads: int = 1,
    cache_positions: int = 0,
) -> ParallelGames:
    """Make self-play on one thread or several.

    Args:
        game: what is played.
        evaluate: the network; several threads call it at the same time.
        settings: how it searches and moves.
        parallel_games: how many games are played side by side.
        threads: that search; more than one pays where the network has a device of its own.
        cache_positions: how many evaluations are remembered, 0 for none.
    """
    if threads == 1:
        return SelfPlay(game, evaluate, settings, parallel_games=parallel_games, cache_positions=cache_positions)
    return GroupedSelfPlay(
        game, evaluate, settings, parallel_games=parallel_games, groups=threads, cache_positions=cache_positions
    )
