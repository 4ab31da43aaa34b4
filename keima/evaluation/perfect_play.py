"""Errors against perfect play, on positions in which the value of every move is known.

tools/make_perfect_play_positions.py made those of Connect Four, which lie next to this file: one position each from
games of mixed strength, none from the first six plies and few from the next two, so they do not test the opening. Those
of tic-tac-toe are all positions that can arise, up to symmetry. Other games have none.
"""

import io
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from keima.base.files import read_limited
from keima.base.reports.intervals import wilson_interval
from keima.compilation.decorators import compiled
from keima.games import Game, IllegalAction
from keima.games.exact import ILLEGAL, solve_all_positions
from keima.games.game import Actions, Planes, Rules, States
from keima.search.puct import Evaluate

POSITIONS_FILE = Path(__file__).with_name("connect_four_positions.npz")
MAX_FILE_BYTES = 1_000_000


@dataclass(frozen=True)
class SolvedPositions:
    """Positions with the exact value of every move."""

    states: States  # [N, S]
    observations: Planes  # [N, C, H, W]
    values: NDArray[np.int8]  # [N, A] for the player to move: 1 won, 0 drawn, -1 lost, or keima.games.exact.ILLEGAL

    @property
    def best_values(self) -> NDArray[np.int8]:
        """The value of each position for the player to move, ``[N]``."""
        return self.values.max(1)

    def select(self, rows: NDArray[np.bool_] | NDArray[np.int64]) -> "SolvedPositions":
        """Return the positions selected by a mask ``[N]`` or by indices, which may repeat."""
        return SolvedPositions(self.states[rows], self.observations[rows], self.values[rows])


@dataclass(frozen=True, kw_only=True)
class PlayErrors:
    """The number of choices that lost game value, by kind."""

    positions: int
    win_to_draw: int
    win_to_loss: int
    draw_to_loss: int

    @property
    def num_errors(self) -> int:
        """The number of choices that lost game value."""
        return self.win_to_draw + self.win_to_loss + self.draw_to_loss

    @property
    def share(self) -> float:
        """The share of errors among all positions."""
        return self.num_errors / max(1, self.positions)

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % interval of ``share``."""
        return wilson_interval(self.num_errors, self.positions)

    @property
    def margin(self) -> float:
        """Half the width of ``interval``."""
        low, high = self.interval
        return (high - low) / 2


def load_positions(game: Game, *, count: int | None = None) -> SolvedPositions | None:
    """Return the solved positions of ``game``, at most ``count``, always the same; None for games without any."""
    if game.name not in {"connect_four", "tic_tac_toe"}:
        return None
    states, values = (
        _read_states_and_values(game, POSITIONS_FILE) if game.name == "connect_four" else _solve_every_position(game)
    )
    if count is not None and count < len(states):
        chosen = np.sort(np.random.default_rng(0).permutation(len(states))[:count])
        states, values = states[chosen], values[chosen]
    return _observe_positions(game, states, values)


def read_positions(game: Game, path: Path) -> SolvedPositions:
    """Return the positions in a file of tools/make_perfect_play_positions.py, replayed through the rules.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is no such file.
    """
    return _observe_positions(game, *_read_states_and_values(game, path))


def read_moves(game: Game, path: Path) -> list[Actions]:
    """Return the moves that lead from the start to each position in such a file.

    Raises:
        OSError, ValueError: see ``read_positions``.
    """
    with _name_file_in_errors(game, path):
        return _read_columns(path)[0]


def _observe_positions(game: Game, states: States, values: NDArray[np.int8]) -> SolvedPositions:
    observations = np.empty((len(states), *game.observation_shape), np.float32)
    observe_states(game.rules, states, observations)
    return SolvedPositions(states, observations, values)


@contextmanager
def _name_file_in_errors(game: Game, path: Path) -> Iterator[None]:
    """Turn errors in the block into a ValueError that names the file."""
    try:
        yield
    except (EOFError, KeyError, ValueError, zipfile.BadZipFile) as error:
        raise ValueError(f"{path} is not a file of solved positions of {game.name}: {error}") from error


def _read_columns(path: Path) -> tuple[list[Actions], NDArray[np.int8]]:
    """Return the moves to each position, and the value of every action there, ``[N, A]``."""
    with np.load(io.BytesIO(read_limited(path, MAX_FILE_BYTES)), allow_pickle=False) as file:
        actions, plies, values = file["actions"].astype(np.int32), file["plies"], file["values"]
    return np.split(actions, np.cumsum(plies[:-1], dtype=np.int64)), values


def _read_states_and_values(game: Game, path: Path) -> tuple[States, NDArray[np.int8]]:
    with _name_file_in_errors(game, path):
        games, values = _read_columns(path)
        states, legal = game.initial_states(len(games)), np.zeros((len(games), game.num_actions), np.bool_)
        actions, lengths = np.concatenate([*games, np.zeros(0, np.int32)]), np.array([len(moves) for moves in games])
        bad = play_to_positions(game.rules, states, legal, actions, lengths)
        if bad >= 0:
            raise ValueError(f"the moves to position {bad + 1} are not legal")
        if values.shape != legal.shape or not np.where(legal, abs(values) <= 1, values == ILLEGAL).all():
            raise ValueError("a legal move has no value, or one that is not legal has")
        return states, values


@compiled
def play_to_positions(
    rules: Rules, states: States, legal: NDArray[np.bool_], actions: Actions, lengths: NDArray[np.int64]
) -> int:
    """Play the moves to each position on its row of ``states``, and mark what is legal there in ``legal`` ``[N, A]``.

    ``actions`` are those of all positions, one after the other. Return the first position that is not reached by legal
    moves, or -1.
    """
    legal_actions, step = rules.legal_actions, rules.step
    out = np.empty(legal.shape[1], np.int32)
    first = 0
    for row in range(len(states)):
        state = states[row]
        for action in actions[first : first + lengths[row]]:
            if not (out[: legal_actions(state, out)] == action).any():
                return row
            step(state, np.int64(action))
        first += lengths[row]
        for action in out[: legal_actions(state, out)]:
            legal[row, action] = True
    return -1


@compiled
def observe_states(rules: Rules, states: States, observations: Planes) -> None:
    """Write what the player to move sees in each of the states ``[N, S]`` to ``observations`` ``[N, C, H, W]``."""
    observe = rules.observe
    for row in range(len(states)):
        observe(states[row], observations[row])


def _solve_every_position(game: Game) -> tuple[States, NDArray[np.int8]]:
    """Return all positions of a tiny game, up to symmetry."""
    found: dict[bytes, tuple[States, NDArray[np.int8]]] = {}
    for state, values in solve_all_positions(game):
        points = game.observe(state).reshape(game.observation_shape[0], -1)
        found.setdefault(min(points[:, symmetry].tobytes() for symmetry in game.point_symmetries), (state, values))
    return np.stack([state for state, _ in found.values()]), np.stack([values for _, values in found.values()])


def choose_policy_actions(positions: SolvedPositions, evaluate: Evaluate, *, batch_size: int = 64) -> Actions:
    """Return the action with the largest legal logit in each position, ``[N]``: the policy's choice without search."""
    parts = range(0, len(positions.states), batch_size)
    logits = np.concatenate([evaluate(positions.observations[i : i + batch_size])[0] for i in parts])  # [N, A]
    return np.where(positions.values == ILLEGAL, -np.inf, logits).argmax(1).astype(np.int32)


def count_errors(positions: SolvedPositions, actions: Actions) -> PlayErrors:
    """Return the errors of a player that chooses ``actions`` ``[N]``.

    Raises:
        IllegalAction: an action is illegal.
    """
    chosen = np.take_along_axis(positions.values, np.asarray(actions, np.int64)[:, None], 1)[:, 0]
    if (chosen == ILLEGAL).any():
        first = int((chosen == ILLEGAL).argmax())
        raise IllegalAction(f"position {first}: action {int(actions[first])} is illegal")
    return PlayErrors(
        positions=len(chosen),
        win_to_draw=int(((positions.best_values == 1) & (chosen == 0)).sum()),
        win_to_loss=int(((positions.best_values == 1) & (chosen == -1)).sum()),
        draw_to_loss=int(((positions.best_values == 0) & (chosen == -1)).sum()),
    )
