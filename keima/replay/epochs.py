"""Epochs over files of games: every position once, in an order that depends only on the seed.

Games are small; positions with their planes are not. So every rank reads all games and makes only its share of the
positions. The order does not depend on the number of ranks, and an epoch can be resumed at any position.

Files are read in random order until there are ``shuffle_positions`` positions, which are then shuffled. This bounds the
memory, however large the files are.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from keima.config.sections.network import NetworkSettings
from keima.config.sections.search import SearchSettings
from keima.config.sections.training import TrainingSettings
from keima.data.imports.game_files import read_game_file
from keima.games import Game, load_game
from keima.replay.window import Batch, ReplayWindow


@dataclass(frozen=True, eq=False)
class ShuffledPositions:
    """Positions of one window, in training order."""

    window: ReplayWindow
    positions: NDArray[np.int64]  # [N] indices in the window
    symmetries: NDArray[np.int64]  # [N]
    completed_share: NDArray[np.float64]  # [N] completed share of the epoch after each

    def __getitem__(self, rows: slice) -> "ShuffledPositions":
        return ShuffledPositions(self.window, self.positions[rows], self.symmetries[rows], self.completed_share[rows])


@dataclass(frozen=True, eq=False)
class PlannedBatch:
    """A batch whose samples are not made yet."""

    pieces: list[ShuffledPositions]
    bad: tuple[str, ...]  # games or files left out before it

    @property
    def num_positions(self) -> int:
        """The number of positions of all ranks."""
        return sum(len(piece.positions) for piece in self.pieces)

    @property
    def completed_share(self) -> float:
        """The completed share of the epoch after it, by the bytes of the files."""
        return float(self.pieces[-1].completed_share[-1])

    def make_batch(self, rows: slice) -> Batch:
        """Make the samples of these rows."""
        batches, first = [], 0
        for piece in self.pieces:
            chosen = np.arange(first + len(piece.positions))[rows]
            chosen = chosen[chosen >= first] - first
            batches.append(piece.window.take(piece.positions[chosen], piece.symmetries[chosen]))
            first += len(piece.positions)
        if len(batches) == 1:
            return batches[0]
        return Batch(**{name: np.concatenate([getattr(batch, name) for batch in batches]) for name in vars(batches[0])})


@dataclass(frozen=True, kw_only=True)
class Epochs:
    """A data set.

    Args:
        game: what is played.
        files: all of them, with the number of bytes of each.
        batch_size: positions of a batch. The last two of an epoch share what is left, so every batch has at least half
            as many, unless there are fewer in all.
        seed: of the order and the symmetries.
        shuffle_positions: number of positions that are shuffled together.
        training, search, network: what is learned from a position, as in ``ReplayWindow``.
    """

    game: Game
    files: Sequence[tuple[Path, int]]
    batch_size: int
    seed: int
    shuffle_positions: int = 500_000
    training: TrainingSettings = TrainingSettings()
    search: SearchSettings = SearchSettings()
    network: NetworkSettings = NetworkSettings()

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for another process, which loads the game itself: compiled rules cannot be pickled."""
        return {**vars(self), "game": (self.game.name, self.game.options)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        name, options = state["game"]
        vars(self).update({**state, "game": load_game(name, **options)})

    def batches(self, epoch: int, *, done: int = 0) -> Iterator[PlannedBatch]:
        """Yield the batches of an epoch after its first ``done`` positions."""
        pieces: list[ShuffledPositions] = []
        waiting, bad = 0, []
        for piece, left_out in self._read_pieces(epoch):
            bad += left_out
            skipped = min(done, len(piece.positions))
            done, piece = done - skipped, piece[skipped:]
            if len(piece.positions):
                pieces.append(piece)
                waiting += len(piece.positions)
            while waiting >= 2 * self.batch_size:
                yield PlannedBatch(_pop_positions(pieces, self.batch_size), tuple(bad))
                waiting, bad = waiting - self.batch_size, []
        for count in [waiting] if waiting <= self.batch_size else [waiting - waiting // 2, waiting // 2]:
            if count:
                yield PlannedBatch(_pop_positions(pieces, count), tuple(bad))
                bad = []

    def _read_pieces(self, epoch: int) -> Iterator[tuple[ShuffledPositions, list[str]]]:
        """Yield the positions of the epoch, one piece per shuffle; the last may be empty."""
        order = np.random.default_rng([self.seed, epoch]).permutation(len(self.files))
        read, total, number = 0, max(1, sum(size for _, size in self.files)), 0
        window, bad, begin = self._make_window(), list[str](), 0.0
        for index in order:
            path, size = self.files[index]
            for chunk in read_game_file(path, self.game):
                bad += chunk.bad
                if chunk.games is not None:
                    window.add(chunk.games)
                if window.num_positions >= self.shuffle_positions:
                    end = (read + chunk.read * size) / total
                    yield self._shuffle_positions(window, [self.seed, epoch, number], begin, end), bad
                    window, bad, begin, number = self._make_window(), [], end, number + 1
            read += size
        yield self._shuffle_positions(window, [self.seed, epoch, number], begin, 1.0), bad

    def _make_window(self) -> ReplayWindow:
        return ReplayWindow(
            self.game,
            capacity_positions=2**62,
            training=self.training.model_copy(update={"policy_surprise_weight": 0.0}),  # every position counts once
            search=self.search,
            network=self.network,
        )

    def _shuffle_positions(self, window: ReplayWindow, seed: list[int], begin: float, end: float) -> ShuffledPositions:
        random = np.random.default_rng(seed)
        positions = random.permutation(window.to_learn_from())
        turns = len(self.game.action_symmetries) if self.training.symmetries else 1
        symmetries = random.integers(0, turns, len(positions))
        return ShuffledPositions(window, positions, symmetries, np.linspace(begin, end, len(positions) + 1)[1:])


def _pop_positions(pieces: list[ShuffledPositions], count: int) -> list[ShuffledPositions]:
    """Remove the first ``count`` positions from the pieces and return them."""
    taken = []
    while count:
        first = pieces[0]
        taken.append(first[:count])
        count -= len(taken[-1].positions)
        pieces[0] = first[len(taken[-1].positions) :]
        if not len(pieces[0].positions):
            pieces.pop(0)
    return taken
