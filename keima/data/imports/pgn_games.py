"""Training games from PGN files."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from keima.data.imports.imported_games import ImportedGame, infer_resigned, play_to_end
from keima.games.authoring.bad_game import BadGame
from keima.games.chess.notation import describe_ending
from keima.games.chess.pgn import PgnGame, pgn_lines, read_pgn
from keima.games.game import Game

RESULT_RETURNS = {"1-0": (1.0, -1.0), "0-1": (-1.0, 1.0), "1/2-1/2": (0.0, 0.0)}
CERTAIN = ("checkmate", "stalemate", "insufficient material")  # ends with only one possible result


def read_pgn_games(path: Path, game: Game) -> Iterator[ImportedGame | BadGame]:
    """Yield the games of a PGN file of any size, one by one, under the rules of ``game``.

    A game that continued after these rules end it, for example by threefold repetition or its length, is cut there and
    gets the result of the rules. Games from other positions, without moves or without a result are bad.

    Args:
        path: the file; .zst is decompressed.
        game: chess, with any options.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is compressed and damaged, or the game is not chess.
    """
    if game.name != "chess":
        raise ValueError(f"{path}: PGN files hold games of chess, not of {game.name}")
    for found in read_pgn(pgn_lines(path)):
        yield found if isinstance(found, BadGame) else _convert_game(found, game)


def _convert_game(found: PgnGame, game: Game) -> ImportedGame | BadGame:
    if found.start_fen is not None:
        return BadGame(found.line, "it does not begin in the standard position")
    if found.result not in RESULT_RETURNS:
        return BadGame(found.line, "it has no result")
    if not found.actions.size:
        return BadGame(found.line, "it has no moves")
    state, returns = game.initial_state(), np.array(RESULT_RETURNS[found.result], np.float32)
    plies = play_to_end(game.rules, state, found.actions)
    resigned = 0
    if not game.terminal(state):
        resigned = infer_resigned(returns)
    elif not np.array_equal(game.returns(state), returns):
        if describe_ending(state) in CERTAIN:
            return BadGame(found.line, f"its result is {found.result}, but it ends by {describe_ending(state)}")
        returns = game.returns(state)
    return ImportedGame(actions=found.actions[:plies], returns=returns, resigned=resigned, line=found.line)
