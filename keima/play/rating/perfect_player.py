"""Connect Four against perfect play, by BitBully (M. Thill; PyPI: bitbully), which has an opening book of 12 plies.

BitBully is optional: who rates Connect Four installs it. Where its book ends, Keima's own solver is faster.
"""

import functools
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

from keima.base.random import seed_stream
from keima.evaluation.match import Player, draw_opening_moves, play_match_from
from keima.evaluation.perfect_play import PlayErrors, SolvedPositions, count_errors
from keima.games import Game
from keima.games.connect_four.solver import solve_action_values
from keima.games.exact import ILLEGAL
from keima.games.game import Actions, States

INSTALL = "pip install bitbully"
OPENINGS = (9, 8)  # games of the network with itself: from openings of 0 to 7 random plies, so many of each
BOOK_PLIES = 12  # positions with fewer stones are in the book with all their moves
BANDS = ((0, BOOK_PLIES - 1), (BOOK_PLIES, 23), (24, 41))  # plies

OnProgress = Callable[[str], None]
Chosen = dict[bytes, tuple[tuple[int, ...], int]]  # by the state: the moves to it, and the action there


@dataclass(frozen=True, kw_only=True)
class OwnPositions:
    """The positions of a network's games with itself, each once, with the action that it chose and its exact values.

    Attributes:
        plies: of each position, ``[N]``.
        actions: that the network chose, ``[N]``.
    """

    positions: SolvedPositions
    plies: NDArray[np.int64]
    actions: Actions

    def count_errors(self, first_ply: int = 0, last_ply: int = 41) -> PlayErrors:
        """Return the errors in the positions of these plies."""
        rows = (first_ply <= self.plies) & (self.plies <= last_ply)
        return count_errors(self.positions.select(rows), self.actions[rows])


@dataclass(frozen=True, kw_only=True)
class PerfectGames:
    """A network's games as first player against a perfect one: it wins if it plays perfectly, too.

    The network plays the same in the same position, so games differ only where several moves are perfect: there is no
    interval.
    """

    wins: int
    draws: int
    losses: int


def has_perfect_player() -> bool:
    """Return whether BitBully is installed."""
    return find_spec("bitbully") is not None


class PerfectPlayer:
    """Plays perfectly: it wins as soon and loses as late as possible. Among equal moves it draws one."""

    def __init__(self, game: Game, seed: int) -> None:
        self._game = game
        self._random = np.random.default_rng(seed_stream(seed, "perfect player"))

    def choose(self, states: States) -> Actions:
        """Raise a ValueError: the moves of each game are needed."""
        raise ValueError("a perfect player needs the moves of each game so far")

    def choose_with_history(self, states: States, starts: States, moves: Sequence[Sequence[int]]) -> Actions:
        """Return perfect moves in ``states``, which came from ``starts``, where the game begins, by ``moves``."""
        return np.array([self._choose(played) for played in moves], np.int32)

    def _choose(self, moves: Sequence[int]) -> int:
        scores = score_moves(tuple(moves))
        best = [action for action, score in scores.items() if score == max(scores.values())]
        return int(self._random.choice(best))


@functools.cache
def _load_solver() -> Any:
    """Return BitBully with its book, which takes a second to load."""
    from bitbully import BitBully

    return BitBully()


@functools.cache  # the games of a deterministic network have many positions in common
def score_moves(moves: tuple[int, ...]) -> dict[int, int]:
    """Return BitBully's score of each legal action after these moves from the start.

    It is positive for a win, 0 for a draw and negative for a loss of the player to move; the sooner a win, the greater.
    """
    from bitbully import Board

    board = Board(list(map(int, moves)))
    return {int(action): int(score) for action, score in _load_solver().score_all_moves(board).items()}


def solve_positions(
    game: Game, moves: Sequence[Sequence[int]], on_progress: OnProgress = lambda what: None
) -> SolvedPositions:
    """Return the positions after these moves from the start, with the exact value of every move."""
    values = np.full((len(moves), game.num_actions), ILLEGAL, np.int8)
    states = np.stack([_play_moves(game, played) for played in moves])
    for row, played in enumerate(moves):
        on_progress(f"solving position {row + 1} of {len(moves)}")
        if len(played) >= BOOK_PLIES:
            values[row] = solve_action_values(states[row])
            continue
        for action, score in score_moves(tuple(played)).items():
            values[row, action] = np.sign(score)
    observations = np.stack([game.observe(state) for state in states])
    return SolvedPositions(states, observations, values)


def _play_moves(game: Game, moves: Sequence[int]) -> States:
    """Return the state ``[S]`` after these moves from the start."""
    state = game.initial_state()
    for action in moves:
        game.play(state, action)
    return state


def find_own_positions(
    game: Game, player: Player, *, seed: int, least: int = 1, on_progress: OnProgress = lambda what: None
) -> OwnPositions:
    """Let a player play against itself, and return the positions in which it chose, with their exact values.

    Args:
        game: Connect Four.
        player: who plays.
        seed: of the openings.
        least: so many positions, as far as new openings lead to new ones.
        on_progress: is told what is done.
    """
    chosen: Chosen = {}
    for turn in itertools.count():
        known = len(chosen)
        _play_own_games(game, player, chosen, seed=seed, turn=turn, on_progress=on_progress)
        if len(chosen) >= least or len(chosen) == known:
            break
    return OwnPositions(
        positions=solve_positions(game, [played for played, _ in chosen.values()], on_progress),
        plies=np.array([len(played) for played, _ in chosen.values()]),
        actions=np.array([action for _, action in chosen.values()], np.int32),
    )


def _play_own_games(
    game: Game, player: Player, chosen: Chosen, *, seed: int, turn: int, on_progress: OnProgress
) -> None:
    """Let a player play against itself from the openings of this turn, and enter the new positions."""
    (count, lengths), name = OPENINGS, ("own games", turn) if turn else ("own games",)
    moves = [
        opening
        for plies in range(lengths)
        for opening in draw_opening_moves(game, count, plies, seed_stream(seed, *name, plies)).tolist()
    ]
    states = np.stack([_play_moves(game, opening) for opening in moves])
    while len(rows := np.flatnonzero([not game.terminal(state) for state in states])):
        on_progress(f"games with itself: {len(chosen):,} positions")
        for row, action in zip(rows.tolist(), player.choose(states[rows]).tolist(), strict=True):
            chosen.setdefault(states[row].tobytes(), (tuple(moves[row]), action))
            game.play(states[row], action)
            moves[row].append(action)


def play_perfect_player(game: Game, player: Player, *, seed: int, games: int) -> PerfectGames:
    """Let a player begin games against perfect play."""
    opened = np.empty((games, 0), np.int32)
    perfect = PerfectPlayer(game, seed)
    scores = play_match_from(game, game.initial_states(games), player, perfect, opening_moves=opened).scores[:, 0]
    return PerfectGames(
        wins=int((scores == 1).sum()), draws=int((scores == 0.5).sum()), losses=int((scores == 0).sum())
    )
