"""Play recorded games again by their seeds, with the same network and search: what a record claims can be checked.

A game depends on its seed and on the evaluations alone (keima/self_play/parallel_games.py). So whoever has the network
repeats the search of every move, noise included. Where processors round alike the games are the same to the last move.
Elsewhere an evaluation that differs in its last digits changes a few visits, until a move differs; from there on the
games are different ones, and nothing more is compared. The same holds where the worker changed its network.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from keima.config.sections.search import SearchSettings
from keima.data.records import FULL_SEARCH, RANDOM_MOVE, GameRecord
from keima.games import Game
from keima.search.puct import Evaluate
from keima.self_play.parallel_games import SelfPlay


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """How far a recorded game and the game that its seed gives agree."""

    plies: int  # of the recorded game
    same: int  # leading plies with the same move
    distances: tuple[float, ...]  # between policy targets in positions that both reach: total variation, from 0 to 1

    @property
    def distance(self) -> float | None:
        """The mean distance; None if no policy target can be compared."""
        return float(np.mean(self.distances)) if self.distances else None


def reproduce_games(
    game: Game, evaluate: Evaluate, settings: SearchSettings, records: Sequence[GameRecord]
) -> tuple[list[Agreement], int]:
    """Play games again that began with the network ``evaluate``, and compare them; return also the evaluations.

    Args:
        game: what is played.
        evaluate: the network.
        settings: how it searched.
        records: the games, which must begin at the start of the game.
    """
    self_play = SelfPlay(game, evaluate, settings, parallel_games=len(records))
    self_play.begin([record.seed for record in records])
    again = dict[int, GameRecord]()
    while self_play.num_playing:
        again.update({record.seed: record for record in self_play.advance()})
    return [compare_games(record, again[record.seed]) for record in records], self_play.evaluations


def compare_games(recorded: GameRecord, again: GameRecord) -> Agreement:
    """Compare two games with the same seed: moves, and policy targets up to the first position that differs."""
    plies = min(len(recorded.actions), len(again.actions))
    differ = np.flatnonzero(recorded.actions[:plies] != again.actions[:plies])
    same = int(differ[0]) if len(differ) else plies
    kinds = FULL_SEARCH | RANDOM_MOVE
    distances = list[float]()
    for ply in range(min(same + 1, plies)):  # where a move differs, both have searched the same position
        if (recorded.flags[ply] ^ again.flags[ply]) & kinds:
            distances.append(1.0)
            break
        if recorded.flags[ply] & FULL_SEARCH:
            first, second = (policy_at(record, _entries_at(record, ply)) for record in (recorded, again))
            distances.append(policy_distance(first, second))
    return Agreement(plies=len(recorded.actions), same=same, distances=tuple(distances))


def policy_at(record: GameRecord, entries: slice) -> dict[int, float]:
    """Return a policy target, by action; ``entries`` are its own among those of the game."""
    weights: NDArray[np.float64] = record.policy_weights[entries] / record.policy_weights[entries].sum(dtype=np.float64)
    return dict(zip(record.policy_actions[entries].tolist(), weights.tolist(), strict=True))


def policy_distance(first: dict[int, float], second: dict[int, float]) -> float:
    """Return the total variation distance of two policies: half the sum of |p - q|, from 0 to 1."""
    return sum(abs(first.get(action, 0.0) - second.get(action, 0.0)) for action in first.keys() | second.keys()) / 2


def _entries_at(record: GameRecord, ply: int) -> slice:
    first = int(record.policy_sizes[:ply].sum())
    return slice(first, first + int(record.policy_sizes[ply]))
