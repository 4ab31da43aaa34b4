"""The games of a run, as arrays."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from keima.data.ledger import read_ledger
from keima.data.receive import load_received
from keima.data.records import CHANCE_OUTCOME, GameBatch, GameRecord
from keima.games import CHANCE, Game
from keima.games.game import Planes
from keima.report.games.game_view import load_game_of_run
from keima.worker import batching


@dataclass(frozen=True, kw_only=True, eq=False)
class RecordedGame:
    """A game of self-play with L plies, A actions and P players."""

    game: Game
    number: int  # in the run, from 1, in the order of receipt
    worker: str
    record: GameRecord

    @property
    def actions(self) -> NDArray[np.int32]:
        """The actions ``[L]``, including chance outcomes."""
        return self.record.actions

    @property
    def returns(self) -> NDArray[np.float32]:
        """The result for each player ``[P]``: in [-1, 1], or points."""
        return self.record.returns

    @property
    def values(self) -> NDArray[np.float32]:
        """The search's value before each ply, for the player to move ``[L]``."""
        return self.record.root_values

    def policies(self) -> NDArray[np.float32]:
        """Return the search's policy before each ply ``[L, A]``; rows of zeros where there was no full search."""
        out = np.zeros((len(self.actions), self.game.num_actions), np.float32)
        plies = np.repeat(np.arange(len(self.actions)), self.record.policy_sizes)
        out[plies, self.record.policy_actions] = self.record.policy_weights
        return out / np.maximum(out.sum(1, keepdims=True), 1)

    def observations(self) -> Planes:
        """Return the mover's observation before each ply ``[L, C, H, W]``; zeros before chance outcomes."""
        out = np.zeros((len(self.actions), *self.game.observation_shape), np.float32)
        state = self.game.initial_state()
        for planes, action in zip(out, self.actions, strict=True):
            if self.game.current_player(state) != CHANCE:
                planes[:] = self.game.observe(state)
            self.game.play(state, int(action))
        return out

    def moves(self) -> list[str]:
        """Return the actions in the game's notation."""
        outcome = self.record.flags & CHANCE_OUTCOME
        return [
            self.game.outcome_name(int(a)) if o else self.game.action_name(int(a))
            for a, o in zip(self.actions, outcome, strict=True)
        ]


def read_games(run: str | Path) -> Iterator[RecordedGame]:
    """Yield the games that a run has received, in the order of receipt; one batch at a time is in memory.

    Raises:
        ValueError: the folder has no run, or a file of games is damaged.
        OSError: a file of games is missing or unreadable.
    """
    folder = Path(run)
    with read_ledger(folder) as ledger:
        game, rows = load_game_of_run(ledger), ledger.received_batches()
    number = 0
    for row in rows:
        batch = load_received(folder, row)
        for index in range(batch.num_games):
            number += 1
            yield RecordedGame(game=game, number=number, worker=batch.worker, record=batch.game_record(index))


def batch_of(
    game: Game, records: Sequence[GameRecord], *, run_id: str = "run", worker: str = "python", first_game: int = 0
) -> GameBatch:
    """Return finished games of ``SelfPlay`` as a batch for ``ReplayWindow.add``.

    Args:
        game: the game.
        records: of ``SelfPlay``.
        run_id: the name of the run.
        worker: the name of the worker.
        first_game: the number of the first game among all games of this worker.
    """
    return batching.make_batch(
        records,
        run_id=run_id,
        worker=worker,
        game=game.name,
        options=game.options,
        rules_version=game.rules_version,
        first_game=first_game,
    )
