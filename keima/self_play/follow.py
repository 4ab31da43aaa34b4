"""Search the positions of recorded games again: with their seeds, a network, and the moves that the records have.

``keima.self_play.reproduce`` plays a game again by its seed, until a move differs. Here the recorded move is made
whatever search prefers, so every position of the game is searched, each with the noise of its seed. The random numbers
of a game depend on the numbers drawn before, not on the network's answers, except that some are not drawn in positions
that search has proven. In games of chance the searches draw too, and a search that differs leads to other outcomes:
positions after the first outcome that the seed does not give are not compared.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from keima.compilation.decorators import compile_for_types, compiled_part, compiled_without_refcounts
from keima.config.sections.search import SearchSettings
from keima.data.records import CHANCE_OUTCOME, FULL_SEARCH, RANDOM_MOVE, GameRecord
from keima.games import Game
from keima.games.chance import sample_chance_outcome
from keima.games.game import CHANCE, Actions
from keima.search.decide import root_value, write_move_weights
from keima.search.puct import Evaluate
from keima.search.simulate import (
    NOT_FINITE,
    are_finite,
    back_up_answers,
    collect_leaves,
    has_simulations_left,
    prepare_root,
)
from keima.search.tree import AWAITED, NONE, OVER, Floats, find_child_by_action, make_node_root, reset_tree
from keima.self_play.game_log import FINISHED, PLAYING
from keima.self_play.parallel_games import (
    GamesInPlay,
    SelfPlay,
    begin_move_search,
    choose_move,
    play_searched_move,
    play_unsearched_move,
)
from keima.self_play.reproduce import policy_at, policy_distance

WRONG_RESIGNATION = 0.4  # root value above that of resigning at which a resignation is as wrong as can be


class Paths(NamedTuple):
    """The recorded games that B slots follow, and what their searches would have done."""

    lengths: NDArray[np.int32]  # [B] moves of each record
    actions: Actions  # [B, T] of the records
    chosen: Actions  # [B, T] that search chose, or NONE
    compared: NDArray[np.int32]  # [B] moves before the first chance outcome that the seed does not give
    players: NDArray[np.int32]  # [B] to move after the last move, or NONE where the game is over
    values: Floats  # [B] of the search after the last move, for that player


@dataclass(frozen=True, kw_only=True, eq=False)
class Followed:
    """The searches of a recorded game's positions."""

    record: GameRecord  # with the recorded moves, and the policies, values and flags of these searches
    chosen: Actions  # [L] the moves that these searches would have made; -1 for chance outcomes
    compared: int  # leading positions whose random numbers are those of the seed
    may_resign: bool  # whether the seed lets a player resign
    player: int  # to move at the end of the record; -1 where the game is over
    value: float  # of the position there, for this player; 0 where the game is over


class FollowedGames(SelfPlay):
    """Recorded games of one network, side by side: every position is searched again, and the recorded move made.

    Args:
        game: what is played.
        evaluate: the network.
        settings: how it searches and moves.
        records: the games, which must begin at the start of the game and follow its rules.
    """

    def __init__(self, game: Game, evaluate: Evaluate, settings: SearchSettings, records: Sequence[GameRecord]) -> None:
        super().__init__(game, evaluate, settings, parallel_games=len(records))
        count = len(records)
        lengths = np.array([len(record.actions) for record in records], np.int32)
        self._found = dict[int, Followed]()  # by slot
        self._paths = paths = Paths(
            lengths=lengths,
            actions=np.zeros((count, game.max_plies), np.int32),
            chosen=np.full((count, game.max_plies), NONE, np.int32),
            compared=lengths.copy(),
            players=np.full(count, NONE, np.int32),
            values=np.zeros(count, np.float32),
        )
        for row, record in zip(paths.actions, records, strict=True):
            row[: len(record.actions)] = record.actions
        follow: Any = compile_for_types(follow_games, self._games, paths, *self._empty_answers)
        self._advance_games = lambda games, logits, values: follow(games, paths, logits, values)
        self.begin([record.seed for record in records])
        for b, slot in enumerate(self._log.slots):  # those that were idle, in order
            if (self._log.actions[b, : slot.ply] != paths.actions[b, : slot.ply]).any():
                paths.compared[b] = paths.lengths[b] = 0  # another game, from its first chance outcome on

    def follow(self) -> list[Followed]:
        """Search all positions; return the games in the order of the records.

        Raises:
            ValueError: the network returned NaN or infinity, or too few rows.
        """
        while self.num_playing:
            self.advance()
        return [followed for _, followed in sorted(self._found.items())]

    def _read_game_record(self, b: int) -> GameRecord:
        record = super()._read_game_record(b)
        self._found[b] = Followed(
            record=record,
            chosen=self._paths.chosen[b, : len(record.actions)].copy(),
            compared=int(self._paths.compared[b]),
            may_resign=bool(self._log.slots[b].may_resign),
            player=int(self._paths.players[b]),
            value=float(self._paths.values[b]),
        )
        return record


@compiled_without_refcounts
def follow_games(games: GamesInPlay, paths: Paths, logits: Floats, values: Floats) -> tuple[int, int]:
    """Do what ``advance_games`` does, with recorded moves.

    Returns:
        The number n of positions to evaluate, ``games.search.leaves.observations[:n]``, or NOT_FINITE; and how many
        games were finished.
    """
    if not are_finite(logits, values):
        return NOT_FINITE, 0
    search, trees = games.search, games.search.trees
    answered = asked = int(np.int64(0))
    finished = 0
    for b in range(len(games.log.slots)):
        slot = games.log.slots[b]
        if slot.status != PLAYING:
            continue
        answered = back_up_answers(search, b, logits, values, answered)
        while slot.status == PLAYING and trees.searches[b].waiting == 0:
            if trees.nodes[b, 0].stage == AWAITED or has_simulations_left(search.params, trees, b):
                asked = collect_leaves(search, b, asked)
                continue
            if not trees.searches[b].ready:
                prepare_root(search.params, trees, b, search.streams, search.leaves.scratch)
            follow_move(games, paths, b)
            if slot.status == PLAYING:
                begin_move_search(games, b)
            else:
                finished += 1
    return asked, finished


@compiled_part
def follow_move(games: GamesInPlay, paths: Paths, b: int) -> None:
    """Record the search of game ``b``'s position and the move that it would make, and make the recorded one."""
    search, moves, log = games.search, games.moves, games.log
    rules, params, trees, state = search.rules, search.params, search.trees, search.states[b]
    slot, weights = log.slots[b], search.leaves.scratch[0]
    write_move_weights(params, trees, b, weights)
    value = root_value(params, trees, b, weights)
    if slot.ply >= paths.lengths[b]:
        paths.players[b] = trees.nodes[b, 0].player
        paths.values[b] = value
        slot.status = FINISHED
        return
    chosen, astray = choose_move(games, b, weights)
    paths.chosen[b, slot.ply] = chosen
    child = play_searched_move(games, b, paths.actions[b, slot.ply], value, astray)
    while slot.ply < paths.lengths[b] and rules.current_player(state) == CHANCE:
        outcome = paths.actions[b, slot.ply]
        if sample_chance_outcome(rules, state, search.leaves.moves, search.streams, b) != outcome:
            paths.compared[b] = min(paths.compared[b], slot.ply)
        play_unsearched_move(games, b, outcome, CHANCE_OUTCOME)
        child = find_child_by_action(trees, b, child, outcome) if child != NONE else NONE
    if rules.terminal(state) != 0 or slot.ply >= moves.max_plies or rules.current_player(state) == CHANCE:
        slot.status = FINISHED
    elif params.subtree_reuse and child != NONE and trees.nodes[b, child].stage != OVER:
        make_node_root(trees, b, child, games.renumbered)
    else:
        reset_tree(trees, b, rules.current_player(state))


# What a record says of each position, against these searches.


@dataclass(frozen=True, kw_only=True, eq=False)
class Differences:
    """How much a recorded game differs from the searches of its positions, each from 0 to 1; NaN: not compared."""

    policies: NDArray[np.float64]  # [L] total variation distance of the policy targets
    values: NDArray[np.float64]  # [L] half the difference of the root values, or the relative one of points
    moves: NDArray[np.float64]  # [L] 1 where another move was made than the search chose
    end: float  # of a resigned game: 1 if another than the player to move resigned, else how wrong its value makes it


def measure_differences(recorded: GameRecord, again: Followed, *, resign_below: float) -> Differences:
    """Compare a recorded game with the searches of its positions.

    Args:
        recorded: the game.
        again: its searches.
        resign_below: the root value at or below which players resign.
    """
    length, record = len(recorded.actions), again.record
    policies, values, moves = (np.full(length, np.nan) for _ in range(3))
    if again.compared == 0:
        policies[0] = values[0] = moves[0] = 1.0
        return Differences(policies=policies, values=values, moves=moves, end=0.0)
    entries = [np.concatenate(([0], np.cumsum(game.policy_sizes))) for game in (recorded, record)]
    points = len(recorded.returns) == 1
    for ply in range(again.compared):
        if (recorded.flags[ply] | record.flags[ply]) & CHANCE_OUTCOME:
            continue
        moves[ply] = recorded.actions[ply] != again.chosen[ply]
        first, second = float(recorded.root_values[ply]), float(record.root_values[ply])
        scale = max(abs(first), abs(second), 1.0) if points else 2.0
        values[ply] = min(1.0, abs(first - second) / scale)
        if (recorded.flags[ply] ^ record.flags[ply]) & (FULL_SEARCH | RANDOM_MOVE):
            policies[ply] = 1.0
        elif recorded.flags[ply] & FULL_SEARCH:
            policies[ply] = policy_distance(
                policy_at(recorded, slice(*entries[0][ply : ply + 2])),
                policy_at(record, slice(*entries[1][ply : ply + 2])),
            )
    end = 0.0
    if recorded.resigned and again.compared == length:
        allowed = again.may_resign and recorded.resigned == 1 + again.player
        end = min(1.0, max(0.0, (again.value - resign_below) / WRONG_RESIGNATION)) if allowed else 1.0
    return Differences(policies=policies, values=values, moves=moves, end=end)
