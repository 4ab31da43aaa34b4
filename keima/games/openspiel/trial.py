"""Random games when a game of OpenSpiel's is loaded, to check its promises and to learn the names of its moves."""

import sys
from dataclasses import dataclass, field

import numpy as np

from keima.games.openspiel.positions import MOVE, OpenSpielAdapter, moves_of_key

TRIAL_PLIES, TRIAL_SEED = 300, 1
MoveNames = dict[int, str]  # by action or outcome, what OpenSpiel calls it


@dataclass
class ObservedNames:
    """The names observed in random games."""

    # What OpenSpiel called the moves: by player, or CHANCE for outcomes; None where one move had several names.
    names: dict[int, MoveNames | None] = field(default_factory=dict)

    def note_name(self, mover: int, move: int, name: str) -> None:
        """Record OpenSpiel's name for a move of a player, or of chance, at some position."""
        known = self.names.setdefault(mover, {})
        if known is not None and known.setdefault(move, name) != name:
            self.names[mover] = None


def play_random_moves(adapter: OpenSpielAdapter) -> ObservedNames:
    """Play random moves and query every position as a search would.

    Raises:
        ValueError: OpenSpiel failed, or contradicts what it says about the game.
    """
    random, trial, key = np.random.default_rng(TRIAL_SEED), ObservedNames(), adapter.start_key
    for _ in range(TRIAL_PLIES):
        try:
            moves = _check_openspiel_position(adapter, key, trial)
        except Exception as error:  # whatever a binding of C++ raises
            text = " ".join(str(error).split())
            raise ValueError(f"OpenSpiel's {adapter.game} fails after the moves {moves_of_key(key)}: {text}") from error
        key = key + int(random.choice(moves)).to_bytes(MOVE, sys.byteorder) if moves else adapter.start_key
    return trial


def _check_openspiel_position(adapter: OpenSpielAdapter, key: bytes, trial: ObservedNames) -> list[int]:
    """Query everything about a position; return the actions or outcomes, none when the game is over."""
    player, state = adapter.current_player(key), adapter.position(key).state
    moves = adapter.legal_actions(key) or [outcome for outcome, _ in adapter.chance_outcomes(key)]
    adapter.returns(key)
    if moves and not np.isfinite(adapter.observation(key)).all():
        raise ValueError("the observation has an element that is no finite number")
    for move in moves:
        trial.note_name(player, move, state.action_to_string(player, move))
    if moves and not 0 <= moves[0] <= moves[-1] < max(adapter.game.num_distinct_actions(), adapter.num_outcomes):
        raise ValueError(f"a legal action is out of range: {moves}")
    return moves
