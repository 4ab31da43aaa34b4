"""Games of PGN files as this program learns from them."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from configs.schema import PGN_FILES
from games.chess_notation import ending_of
from games.compiled import compiled
from games.game import Actions, Game, Rules, States
from games.pgn import BadGame, PgnGame, pgn_lines, read_pgn
from training.records import AGREED, FULL_SEARCH, GameBatch

RETURNS = {"1-0": (1.0, -1.0), "0-1": (-1.0, 1.0), "1/2-1/2": (0.0, 0.0)}
CERTAIN = ("checkmate", "stalemate", "insufficient material")  # ends about which no result can differ
GAMES, POSITIONS = 1_000, 100_000  # in a batch, at most; but for its last game


@dataclass(frozen=True, kw_only=True, eq=False)
class PlayedGame:
    """A game that somebody played, to be learned from: a move and a result for each position, and nothing else."""

    actions: Actions  # [L], at least one
    returns: NDArray[np.float32]  # [players]
    resigned: int  # as in ``training.records``
    line: int  # of the file, where it begins


def games_of_pgn(path: Path, game: Game) -> Iterator[PlayedGame | BadGame]:
    """The games of a PGN file of any size, one by one, as the rules of ``game`` have them.

    A game with which people went on after these rules have ended it, as by threefold repetition or by its length, is cut there, and
    its result is that of the rules. Games from other positions, without moves or without a result are not to be learned from.

    Args:
        path: the file; .zst is unpacked on the way.
        game: chess, with any options.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is packed, and damaged; or the game is not chess.
    """
    if game.name != "chess":
        raise ValueError(f"{path}: PGN files have games of chess, not of {game.name}")
    for found in read_pgn(pgn_lines(path)):
        yield found if isinstance(found, BadGame) else _played(found, game)


def _played(found: PgnGame, game: Game) -> PlayedGame | BadGame:
    if found.start_fen is not None:
        return BadGame(found.line, "it does not begin in the usual position")
    if found.result not in RETURNS:
        return BadGame(found.line, "it has no result")
    if not found.actions.size:
        return BadGame(found.line, "it has no moves")
    state, returns = game.initial_state(), np.array(RETURNS[found.result], np.float32)
    plies = played_until_the_end(game.rules, state, found.actions)
    resigned = 0
    if not game.terminal(state):
        resigned = AGREED if returns[0] == 0 else 1 + int(np.argmin(returns))
    elif not np.array_equal(game.returns(state), returns):
        if ending_of(state) in CERTAIN:
            return BadGame(found.line, f"its result is {found.result}, but it ends by {ending_of(state)}")
        returns = game.returns(state)
    return PlayedGame(actions=found.actions[:plies], returns=returns, resigned=resigned, line=found.line)


@compiled
def played_until_the_end(rules: Rules, state: States, actions: Actions) -> int:
    """Play legal actions in place until the game is over or there are no more; returns how many were played."""
    step, terminal = rules.step, rules.terminal
    for ply in range(actions.size):
        if terminal(state):
            return ply
        step(state, np.int64(actions[ply]))
    return actions.size


def batch_of(games: Sequence[PlayedGame], game: Game, *, first_game: int = 0, batch_id: str = "pgn", run_id: str = "pgn") -> GameBatch:
    """The games as a batch: the move that was played is the whole policy target, and the result is every position's value."""
    lengths = np.array([each.actions.size for each in games], np.int32)
    returns = np.stack([each.returns for each in games])
    actions = np.concatenate([each.actions for each in games])
    movers = np.concatenate([np.arange(length) % 2 for length in lengths])  # chess from its start: White, Black, White, ...
    ones, zeros = np.ones(actions.size, np.int32), np.zeros(len(games), np.int32)
    return GameBatch(
        batch_id=batch_id,
        run_id=run_id,
        worker=PGN_FILES,
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


def in_batches(games: Iterable[PlayedGame]) -> Iterator[list[PlayedGame]]:
    """The games, as many at a time as make a batch; the same games in the same batches, whenever this is asked."""
    waiting: list[PlayedGame] = []
    positions = 0
    for each in games:
        waiting.append(each)
        positions += each.actions.size
        if len(waiting) == GAMES or positions >= POSITIONS:
            yield waiting
            waiting, positions = [], 0
    if waiting:
        yield waiting
