"""Games that people or other programs played, independent of the file format that they come from."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from keima.compilation.decorators import compiled
from keima.config.sections.training import SEED_ACCOUNTS
from keima.data.records import AGREED, FULL_SEARCH, GameBatch
from keima.games.game import Actions, Game, Rules, States

MOST_GAMES, MOST_POSITIONS = 1_000, 100_000  # in a batch, at most; its last game may exceed the positions


@dataclass(frozen=True, kw_only=True, eq=False)
class ImportedGame:
    """A training game from a file: moves and a result, without search."""

    actions: Actions  # [L], at least one
    returns: NDArray[np.float32]  # [players]
    resigned: int  # as in ``keima.data.records``
    line: int  # of the file, where the game begins


def infer_resigned(returns: NDArray[np.float32]) -> int:
    """Return the ``resigned`` entry of a game that the rules did not end: the loser resigned, or a draw was agreed."""
    return AGREED if returns[0] == 0 else 1 + int(np.argmin(returns))


@compiled
def play_to_end(rules: Rules, state: States, actions: Actions) -> int:
    """Play legal actions in place until the game is over; return how many were played."""
    step, terminal = rules.step, rules.terminal
    for ply in range(actions.size):
        if terminal(state):
            return ply
        step(state, np.int64(actions[ply]))
    return actions.size


def state_after_actions(game: Game, actions: Sequence[int] | Actions) -> States:
    """Return the state after legal actions from the start."""
    state = game.initial_state()
    play_to_end(game.rules, state, np.asarray(actions, np.int32))
    return state


def make_imported_batch(
    games: Sequence[ImportedGame], game: Game, *, first_game: int = 0, batch_id: str = "files", run_id: str = "files"
) -> GameBatch:
    """Return a batch of imported games: the policy target is the move played, the value of each position is the result.

    Args:
        games: two-player games with alternating moves.
        game: one of ``SEED_ACCOUNTS``.
    """
    lengths = np.array([each.actions.size for each in games], np.int32)
    returns = np.stack([each.returns for each in games])
    actions = np.concatenate([each.actions for each in games])
    movers = np.concatenate([np.arange(length) % 2 for length in lengths])
    ones, zeros = np.ones(actions.size, np.int32), np.zeros(len(games), np.int32)
    return GameBatch(
        batch_id=batch_id,
        run_id=run_id,
        worker=SEED_ACCOUNTS[game.name],
        game=game.name,
        options=game.options,
        rules_version=game.rules_version,
        first_game=first_game,
        lengths=lengths,
        returns=returns,
        first_model=zeros,
        last_model=zeros,
        seeds=zeros.astype(np.uint64),
        resigned=np.array([each.resigned for each in games], np.uint8),
        actions=actions,
        root_values=np.repeat(returns, lengths, axis=0)[np.arange(actions.size), movers],
        flags=(FULL_SEARCH * ones).astype(np.uint8),
        surprise=np.zeros(actions.size, np.float32),
        policy_sizes=ones,
        policy_actions=actions,
        policy_weights=ones.astype(np.uint16),
    )


def group_into_batches(games: Iterable[ImportedGame]) -> Iterator[list[ImportedGame]]:
    """Group games into batches, always in the same way."""
    waiting: list[ImportedGame] = []
    positions = 0
    for each in games:
        waiting.append(each)
        positions += each.actions.size
        if len(waiting) == MOST_GAMES or positions >= MOST_POSITIONS:
            yield waiting
            waiting, positions = [], 0
    if waiting:
        yield waiting
