"""The archive: positions of finished games from which other games begin.

A game that begins where an earlier one was surprised makes the network look again at what it does not know yet, instead
of following the course that all games follow (Go-Exploit, arXiv 2302.12359). Surprising is a position whose full search
found another policy than the network has, or another value than the game's outcome.

Games of one model begin from positions that were archived under earlier models. So where one model plays all games of
an iteration, the order in which they end has no influence on any of them.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from configs.schema import SearchSettings
from games.compiled import compiled
from games.game import Actions, Game, Rules, States
from training.common.random import seed_stream
from training.data.records import FULL_SEARCH, RANDOM_MOVE, GameRecord

Floats = NDArray[np.float32]
NO_MOVES = np.empty(0, np.int32)


class Entry(NamedTuple):
    """A position in the archive."""

    seed: int  # of its game
    surprise: float
    actions: Actions  # the moves and chance outcomes that lead to it


class Archive:
    """The most surprising position of each of the newest games.

    Args:
        game: what is played.
        share: of the games that begin from a position in the archive, once it has any.
        capacity: the most positions.
    """

    def __init__(self, game: Game, *, share: float, capacity: int) -> None:
        self._game, self._share, self._capacity = game, share, capacity
        self._new: list[Entry] = []  # under the current model
        self._entries: list[Entry] = []  # oldest model first
        self._cumulative = np.empty(0)  # of their surprises

    def __len__(self) -> int:
        """The positions from which games may begin now."""
        return len(self._entries)

    def add(self, record: GameRecord) -> None:
        """Note the most surprising position of a finished game, if it has one after the start and its random moves."""
        surprises = np.zeros(len(record.actions), np.float32)
        columns = (record.actions, record.flags, record.root_values, record.surprise, record.returns)
        write_surprises(self._game.rules, self._game.start, *columns, surprises)
        ply = int(surprises[1:].argmax()) + 1 if len(surprises) > 1 else 0
        if ply == 0 or surprises[ply] <= 0:
            return
        self._new.append(Entry(record.seed, float(surprises[ply]), record.actions[:ply].copy()))
        if len(self._new) >= 2 * self._capacity:
            self._new = self._newest(self._new)

    def renew(self) -> None:
        """A new model plays: let its games begin from what was noted under the last one."""
        self._entries = (self._entries + self._newest(self._new))[-self._capacity :]
        self._new = []
        self._cumulative = np.cumsum([entry.surprise for entry in self._entries])

    def openings(self, seeds: Sequence[int]) -> list[Actions]:
        """The moves with which the games of these seeds begin; none for those that begin at the start."""
        return [self._opening(seed) for seed in seeds]

    def _opening(self, seed: int) -> Actions:
        random = np.random.default_rng(seed_stream(seed, "archive"))
        if not self._entries or random.random() >= self._share:
            return NO_MOVES
        drawn = int(np.searchsorted(self._cumulative, random.random() * self._cumulative[-1], side="right"))
        return self._entries[min(drawn, len(self._entries) - 1)].actions

    def _newest(self, entries: list[Entry]) -> list[Entry]:
        """As many as there is room for, by their games' seeds: the order of games of one model means nothing."""
        return sorted(entries, key=lambda entry: entry.seed)[-self._capacity :]


def make_archive(game: Game, settings: SearchSettings) -> Archive | None:
    """An empty archive; None where no game begins from one."""
    share, capacity = settings.archive_share, settings.archive_positions
    return Archive(game, share=share, capacity=capacity) if share > 0 else None


@compiled
def write_surprises(
    rules: Rules,
    start: States,
    actions: Actions,
    flags: NDArray[np.uint8],
    root_values: Floats,
    of_policies: Floats,
    returns: Floats,
    surprises: Floats,
) -> None:
    """Write how surprising each position of a game was to ``surprises`` ``[T]``.

    It is the divergence of the search's policy from the network's plus the difference of the search's value and the
    outcome; 0 without a full search, and up to the last random move, after which the outcome says nothing of what was
    before. Points are no values, and tell no surprise.
    """
    step, current_player = rules.step, rules.current_player
    state = start.copy()
    for ply in range(actions.size):
        player = current_player(state)
        if (flags[ply] & RANDOM_MOVE) != 0:
            surprises[: ply + 1] = 0
        elif (flags[ply] & FULL_SEARCH) != 0:
            surprises[ply] = of_policies[ply]
            if returns.size > 1:
                surprises[ply] += abs(returns[player] - root_values[ply])
        step(state, np.int64(actions[ply]))
