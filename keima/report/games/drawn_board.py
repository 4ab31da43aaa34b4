"""A position as pages draw it: its cells or its own drawing, and the points that moves are made on.

``boards.js`` draws what stands here, in the viewer of recorded games and where people play.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from keima.games import Game
from keima.games.game import States, call_step

Cells = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, kw_only=True)
class DrawnBoard:
    """What of a position is drawn: ``svg``, or else ``cells``, or else the text."""

    text: str
    cells: Cells = ()  # [H, W]; see ``Game.cells``
    svg: str = ""


def draw_board(game: Game, state: States) -> DrawnBoard:
    """Return the position for ``boards.js``."""
    if game.svg is not None:
        return DrawnBoard(text=game.render(state), svg=str(game.svg(state)))
    found = read_cells(game, state)
    cells = () if found is None else tuple(map(tuple, found.tolist()))
    return DrawnBoard(text=game.render(state), cells=cells)


def board_kind(game: Game) -> str:
    """Return how ``boards.js`` draws the board: "go", "chess", "connect_four", "twenty48", or "grid" for any other."""
    return game.name if game.name in ("go", "chess", "connect_four", "twenty48") else "grid"


def read_cells(game: Game, state: States) -> NDArray[np.int64] | None:
    """Return the cells ``[H, W]`` of a position, from the game or else read from its observation."""
    return game.cells(state) if game.cells is not None else read_stones(game, state)


def read_stones(game: Game, state: States) -> NDArray[np.int64] | None:
    """Return the stones that a game for two shows the network, ``[H, W]``, if its first two planes are the mover's and
    the other's.
    """
    if game.num_players != 2 or game.observation_shape[0] < 2 or min(game.observation_shape[1:]) < 2:
        return None
    mine, theirs = game.observe(state)[:2]
    if not (np.isin(mine, (0, 1)) & np.isin(theirs, (0, 1)) & (mine * theirs == 0)).all():
        return None
    return ((mine - theirs) * (1 - 2 * game.current_player(state))).astype(np.int64)


def is_drop_game(game: Game) -> bool:
    """Return whether a move is a column, into which a stone falls."""
    return game.num_players > 1 and game.policy_planes == 0 and game.num_actions == game.width


def points_of_move(game: Game, state: States, action: int) -> tuple[int, ...]:
    """Return the points ``row * W + column`` that a legal move is made on: from and to, or one, or none.

    In chess they are squares as White sees them. The move of a column is made on the cell that it fills.
    """
    if game.name == "chess":
        from keima.games.chess.notation import parse_square, uci_of  # compiles chess

        text = uci_of(state, action)
        return parse_square(text[:2]), parse_square(text[2:4])
    size = game.height * game.width
    plane, point = divmod(action, size)
    if plane < game.policy_planes:
        return (plane, point) if game.policy_planes == size > 1 else (point,)
    return cells_filled_by_move(game, state, action) if is_drop_game(game) else ()


def cells_filled_by_move(game: Game, state: States, action: int) -> tuple[int, ...]:
    """Return the cell that a move fills, if it changes no other."""
    after, before = state.copy(), read_cells(game, state)
    call_step(game.rules.step, after, action)
    now = read_cells(game, after)
    changed = () if before is None or now is None else np.flatnonzero(before != now).tolist()
    return tuple(changed) if len(changed) == 1 else ()
