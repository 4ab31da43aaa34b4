"""A game in progress between a person and a network, and how moves are written for people."""

from collections.abc import Sequence

import numpy as np

from keima.games import CHANCE, Game
from keima.games.game import IllegalAction, States

PLAYERS = {"go": ("Black", "White"), "chess": ("White", "Black")}  # by game; others have players 1, 2, ...


class GameSession:
    """A game in progress. Chance events happen by themselves.

    Args:
        game: the game.
        person: the player that a person plays; None: the network plays all. In a one-player game both play together.
        actions: of an unfinished game, chance outcomes included.
        resigned: the player who has given up.
        seed: of chance events.

    Attributes:
        actions: the game so far, chance outcomes included.
        moves: the players' moves, as text.

    Raises:
        IllegalAction: the actions are not a game.
    """

    def __init__(
        self,
        game: Game,
        *,
        person: int | None,
        actions: Sequence[int] = (),
        resigned: int | None = None,
        seed: int | None = None,
    ) -> None:
        self.game, self.person, self.resigned = game, person, resigned
        self._random = np.random.default_rng(seed)
        self.actions: list[int] = []
        self.moves: list[str] = []
        self._turns: list[tuple[States, int]] = []  # the position before each of the moves, and its ply
        self._state = game.initial_state()
        for action in actions:
            self._apply_action(action)
        self._play_chance_events()

    @property
    def state(self) -> States:
        """The position."""
        return self._state

    @property
    def previous_state(self) -> States | None:
        """The position before the last move."""
        return self._turns[-1][0] if self._turns else None

    @property
    def last_action(self) -> int | None:
        """The action of the last move."""
        return self.actions[self._turns[-1][1]] if self._turns else None

    def play(self, action: int) -> None:
        """Make a move.

        Raises:
            IllegalAction: the rules forbid it.
        """
        self._apply_action(action)
        self._play_chance_events()

    def _apply_action(self, action: int) -> None:
        state = self._state.copy()
        self.game.play(state, action)
        if self.game.current_player(self._state) != CHANCE:
            self._turns.append((self._state, len(self.actions)))
            self.moves.append(move_name(self.game, self._state, action))
        self.actions.append(action)
        self._state = state

    def _play_chance_events(self) -> None:
        """Let chance events happen until a player is to move."""
        while not self.game.terminal(self._state) and self.game.current_player(self._state) == CHANCE:
            outcomes, chances = self.game.chance_outcomes(self._state)
            self._apply_action(int(self._random.choice(outcomes, p=chances / chances.sum(dtype=np.float64))))

    def undo(self) -> None:
        """Take back the person's last move and the answer to it, or a resignation; nothing at the start."""
        if self.resigned is not None:
            self.resigned = None
            return
        while self._turns:
            self._state, ply = self._turns.pop()
            self.moves.pop()
            del self.actions[ply:]
            if self.person is None or self.game.current_player(self._state) == self.person:
                return

    @property
    def is_over(self) -> bool:
        """Whether the game has ended or a player has resigned."""
        return self.resigned is not None or self.game.terminal(self._state)

    def result(self) -> str:
        """Return the result: from the person's view, if one plays."""
        game = self.game
        returns = game.returns(self._state)
        if game.num_players == 1:
            return f"The game is over: score {returns[0]:,.0f}."
        if self.person is None:
            return describe_result(game, returns.tolist(), self.resigned)
        if self.resigned is not None:
            return "You resign: it wins." if self.resigned == self.person else "It resigns: you win!"
        won = returns[self.person]
        if game.num_players > 2:
            return f"The game is over: your return is {won:+g}."
        return "You win!" if won > 0 else "You lose." if won < 0 else "A draw."


def describe_result(game: Game, returns: Sequence[float], resigned: int | None) -> str:
    """Describe the result of a game for two or more, from no player's view."""
    if resigned is not None:
        return f"{player_name(game, resigned)} resigns."
    if game.num_players > 2:
        return f"The game is over: returns {', '.join(f'{each:+g}' for each in returns)}."
    return "A draw." if returns[0] == 0 else f"{player_name(game, 0 if returns[0] > 0 else 1)} wins."


def player_name(game: Game, player: int) -> str:
    """Return what people call a player."""
    return PLAYERS[game.name][player] if game.name in PLAYERS else f"Player {player + 1}"


def move_name(game: Game, state: States, action: int) -> str:
    """Return a move's name for people; in chess by the board's squares, although actions are named from the mover's
    view.
    """
    if game.name == "chess":
        from keima.games.chess.notation import uci_of  # compiles chess

        return uci_of(state, action)
    return game.action_name(action)


def parse_move(game: Game, state: States, text: str) -> int:
    """Return the action with this ``move_name``.

    Raises:
        ValueError: it is not a move.
        IllegalAction: it is not legal here.
    """
    if game.name == "chess":
        from keima.games.chess.notation import action_of_uci

        return action_of_uci(state, text.lower())
    action = game.parse_action(text)
    if action not in game.legal_actions(state):
        raise IllegalAction(f"{text} is not legal here")
    return action
