"""Single games between players, and positions reached by given moves."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from keima.evaluation.match import Player
from keima.games import CHANCE, Game
from keima.games.game import States


@dataclass(frozen=True, kw_only=True, eq=False)
class PlayedGame:
    """A finished game of L plies; in games of chance, chance outcomes are plies too."""

    moves: tuple[str, ...]  # L, in the game's notation
    actions: NDArray[np.int32]  # [L]
    returns: NDArray[np.float32]  # [players] in [-1, 1], or points


def state_after(game: Game, moves: Sequence[str | int]) -> States:
    """Return the state ``[S]`` after ``moves`` from the start; ``game.parse_action`` reads text.

    Raises:
        IllegalAction, ValueError: a move is illegal or unreadable.
    """
    state = game.initial_state()
    for move in moves:
        game.play(state, _parse_action(game, move))
    return state


def play_game(game: Game, *players: Player, opening: Sequence[str | int] = (), seed: int = 0) -> PlayedGame:
    """Play one game to its end.

    Args:
        game: the game.
        players: one for each player of the game, the first to move first.
        opening: the first moves of the game.
        seed: of chance outcomes.

    Raises:
        IllegalAction, ValueError: the opening or a player's move is illegal, or the number of players is wrong.
    """
    if len(players) != game.num_players:
        raise ValueError(f"{game.name} has {game.num_players} players; {len(players)} were given")
    nature = np.random.default_rng(seed)
    state, moves, actions = game.initial_state(), list[str](), list[int]()
    given = [_parse_action(game, move) for move in reversed(opening)]
    while not game.terminal(state):
        mover = game.current_player(state)
        if mover == CHANCE:
            outcomes, probabilities = game.chance_outcomes(state)
            action = int(nature.choice(outcomes, p=probabilities / probabilities.sum()))
        else:
            action = given.pop() if given else int(players[mover].choose(state[None])[0])
        moves.append(game.outcome_name(action) if mover == CHANCE else game.action_name(action))
        actions.append(action)
        game.play(state, action)
    return PlayedGame(moves=tuple(moves), actions=np.array(actions, np.int32), returns=game.returns(state))


def _parse_action(game: Game, move: str | int) -> int:
    return game.parse_action(move) if isinstance(move, str) else int(move)
