"""Verify batches: every game is replayed through the rules before it is trained on."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from keima.compilation.decorators import compiled
from keima.data.records import AGREED, CHANCE_OUTCOME, CorruptBatch, GameBatch
from keima.games.authoring.kept_errors import raise_kept_error
from keima.games.game import CHANCE, Actions, Game, MoveScratch, Rules, States

FINE, TOO_LONG, ILLEGAL_MOVE, ILLEGAL_POLICY, UNFINISHED, OVER_BEFORE, WRONG_RETURNS, IMPOSSIBLE_OUTCOME, WRONG_TURN = (
    range(9)
)
FAULTS = {
    TOO_LONG: "the game is longer than its rules allow",
    ILLEGAL_MOVE: "the move is illegal",
    ILLEGAL_POLICY: "the policy has an illegal move",
    UNFINISHED: "the moves end before the game does",
    OVER_BEFORE: "a player resigned, or the players agreed on a draw, after the game was over",
    WRONG_RETURNS: "the returns are not those of the rules",
    IMPOSSIBLE_OUTCOME: "the chance outcome is impossible",
    WRONG_TURN: "a chance outcome stands where a player is to move, or vice versa",
}


class MoveColumns(NamedTuple):
    """The columns of M positions that are verified, with E policy entries: those of a batch, or of one of its games."""

    actions: Actions  # [M]
    flags: NDArray[np.uint8]  # [M]
    policy_sizes: NDArray[np.int32]  # [M]
    policy_actions: Actions  # [E]


class GameColumns(NamedTuple):
    """The columns of a batch of G games that are verified."""

    lengths: NDArray[np.int32]  # [G]
    returns: NDArray[np.float32]  # [G, players]
    resigned: NDArray[np.uint8]  # [G]
    moves: MoveColumns


def verify_batch(batch: GameBatch, game: Game) -> None:
    """Replay every game of a decoded batch.

    Raises:
        CorruptBatch: it is of another game, a move or a policy is illegal, a game neither ends by the rules nor by
            resignation or agreement, or the returns are wrong; the message names the game and the number of moves.
    """
    played, known = (batch.game, batch.options, batch.rules_version), (game.name, game.options, game.rules_version)
    if played != known:
        raise CorruptBatch(
            f"it holds games of {_describe_rules(*played)}, not of {_describe_rules(*known)}: "
            "run the same version on both sides"
        )
    if batch.returns.shape[1] != game.num_players:
        raise CorruptBatch(
            f"it has returns for {batch.returns.shape[1]} players, and {game.name} has {game.num_players}"
        )
    games = GameColumns(
        lengths=batch.lengths,
        returns=batch.returns,
        resigned=batch.resigned,
        moves=MoveColumns(
            actions=batch.actions,
            flags=batch.flags,
            policy_sizes=batch.policy_sizes,
            policy_actions=batch.policy_actions,
        ),
    )
    fault, index, ply = find_faulty_game(game.rules, game.start, game.max_plies, games, game.make_move_scratch())
    raise_kept_error()
    if fault != FINE:
        raise CorruptBatch(f"game {index} after {ply} moves: {FAULTS[fault]}")


def _describe_rules(name: str, options: dict[str, Any], rules_version: int) -> str:
    return f"{name} {options} by rules version {rules_version}"


@compiled
def find_faulty_game(
    rules: Rules, start: States, max_plies: int, games: GameColumns, scratch: MoveScratch
) -> tuple[int, int, int]:
    """Return the first fault, its game and the number of moves before it."""
    moves = games.moves
    first, entry = 0, 0
    for game in range(games.lengths.size):
        last = first + games.lengths[game]
        if games.lengths[game] > max_plies:
            return TOO_LONG, game, max_plies
        entries = moves.policy_sizes[first:last].sum()
        state = start.copy()
        of_game = MoveColumns(
            moves.actions[first:last],
            moves.flags[first:last],
            moves.policy_sizes[first:last],
            moves.policy_actions[entry : entry + entries],
        )
        fault, ply = find_faulty_move(rules, state, of_game, scratch)
        if fault == FINE:
            fault = check_end(rules, state, games.returns[game], games.resigned[game])
        if fault != FINE:
            return fault, game, ply
        first, entry = last, entry + entries
    return FINE, 0, 0


@compiled
def find_faulty_move(rules: Rules, state: States, moves: MoveColumns, scratch: MoveScratch) -> tuple[int, int]:
    """Play the moves of one game on ``state`` up to the first fault; returns the fault and the number of moves."""
    legal_actions, step, current_player = rules.legal_actions, rules.step, rules.current_player
    actions, legal, chances = moves.actions, scratch.actions, scratch.chances
    entry = 0
    for ply in range(actions.size):
        chance = chances.size > 0 and current_player(state) == CHANCE
        if chance != ((moves.flags[ply] & CHANCE_OUTCOME) != 0):
            return WRONG_TURN, ply
        count = rules.chance_outcomes(state, legal, chances) if chance else legal_actions(state, legal)
        if chance and not is_subset(actions[ply : ply + 1], legal[:count]):
            return IMPOSSIBLE_OUTCOME, ply
        entries = moves.policy_sizes[ply]
        if not is_subset(moves.policy_actions[entry : entry + entries], legal[:count]):
            return ILLEGAL_POLICY, ply
        if not chance and not is_subset(actions[ply : ply + 1], legal[:count]):
            return ILLEGAL_MOVE, ply
        step(state, np.int64(actions[ply]))
        entry += entries
    return FINE, actions.size


@compiled
def is_subset(some: Actions, legal: Actions) -> bool:
    """Return whether all of ``some`` are in ``legal``; both are ascending."""
    place = 0
    for action in some:
        while place < legal.size and legal[place] < action:
            place += 1
        if place == legal.size or legal[place] != action:
            return False
    return True


@compiled
def check_end(rules: Rules, state: States, returns: NDArray[np.float32], resigned: int) -> int:
    """Return the fault of a game that ended in ``state``, if there is one."""
    terminal, returns_of = rules.terminal, rules.returns
    if resigned == 0 and not terminal(state):
        return UNFINISHED
    if resigned != 0 and terminal(state):
        return OVER_BEFORE
    expected = np.empty_like(returns)
    returns_of(state, expected)
    for player in range(expected.size):
        if resigned == AGREED:
            expected[player] = np.float32(0.0)
        elif resigned != 0:
            expected[player] = np.float32(-1.0) if player == resigned - 1 else np.float32(1.0)
        if returns[player] != expected[player]:
            return WRONG_RETURNS
    return FINE
