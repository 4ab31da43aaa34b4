"""The board of a Go engine: GTP allows setting it up, playing out of turn, and undoing moves."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from keima.games.authoring.bad_game import BadGame
from keima.games.game import Game, States
from keima.games.go.board import PASSES
from keima.games.go.playouts import estimate_ownership
from keima.games.go.rules import score_lead
from keima.games.go.setup import make_position, stones_on_board, with_komi, with_player
from keima.games.go.sgf import read_sgf, score_text
from keima.play.gtp.rules import GtpRules
from keima.play.gtp.syntax import GtpError

DEAD_OWNERSHIP = 0.5  # a chain is dead if playouts give its points to the other side with at least this ownership
SMALLEST_WITH_HANDICAP = 7


class GtpBoard:
    """A position and its history.

    Args:
        game: Go; its ``max_plies`` end any game, so they should be more than people play.
    """

    def __init__(self, game: Game) -> None:
        self._game = game
        self.size = int(game.options["size"])
        self.komi = float(game.options["komi"])
        self.rules = GtpRules(suicide=bool(game.options["suicide"]))
        self._handicap = 0  # stones
        self._resigned: int | None = None  # the player who resigned
        self._history = [game.initial_state()]

    @property
    def state(self) -> States:
        """The position; do not change it."""
        return self._history[-1]

    @property
    def player(self) -> int:
        """The player to move: the opponent of the one who moved last."""
        return self._game.current_player(self.state)

    def begin(self, state: States | None = None, *, handicap: int = 0) -> None:
        """Start from a position, or from the empty board, without history to undo.

        Args:
            handicap: the number of Black's handicap stones.
        """
        self._handicap, self._resigned = handicap, None
        points = self.komi + self.rules.white_points(handicap)
        self._history = [with_komi(self._game.initial_state() if state is None else state, points)]

    def set_komi(self, komi: float) -> None:
        """Set White's komi.

        Raises:
            Refused: it is out of the rules' range.
        """
        self.set_rules(self.rules, komi)

    def set_rules(self, rules: GtpRules, komi: float | None = None) -> None:
        """Set the rules, and the komi if given; both take effect at once.

        Raises:
            Refused: White would have more points than the rules allow.
        """
        komi = self.komi if komi is None else komi
        try:
            self._history = [with_komi(state, komi + rules.white_points(self._handicap)) for state in self._history]
        except ValueError as error:
            raise GtpError(f"syntax error: {error}") from error
        self.komi, self.rules = komi, rules

    def state_with_player_to_move(self, player: int) -> States:
        """Return the position with this player to move, even out of turn or after two passes.

        Raises:
            Refused: there have been more moves than can be played.
        """
        state = with_player(self.state, player)
        if self._game.terminal(state):
            raise GtpError("the game is too long")
        return state

    def play(self, player: int, action: int) -> None:
        """Make a move, possibly out of turn.

        Raises:
            Refused: it is illegal.
        """
        state = self.state_with_player_to_move(player)
        if action not in self._game.legal_actions(state):
            raise GtpError("illegal move")
        self._game.play(state, action)
        self._history.append(state)
        self._resigned = None

    def resign(self, player: int) -> None:
        """Resign; the next move revokes it."""
        self._resigned = player

    def undo(self) -> None:
        """Undo the last move or resignation.

        Raises:
            Refused: there is nothing to take back.
        """
        if self._resigned is not None:
            self._resigned = None
            return
        if len(self._history) == 1:
            raise GtpError("cannot undo")
        self._history.pop()

    def require_empty(self) -> None:
        """Require an empty board; raises GtpError otherwise."""
        if stones_on_board(self.state).any():
            raise GtpError("board not empty")

    def place_handicap(self, points: Sequence[int]) -> None:
        """Start with Black's handicap stones, White to move.

        Raises:
            Refused: the points are not valid for a handicap.
        """
        try:
            self.begin(make_position(self._game, points, [], player=1), handicap=len(points))
        except ValueError as error:
            raise GtpError("bad vertex list") from error

    def load(self, path: Path, before: int | None) -> None:
        """Set up the first game of an SGF file at its end, or before move ``before``, counted from 1.

        Its komi holds from then on.

        Raises:
            Refused: it cannot be read, is of another size, or has illegal moves; the board is then as it was.
        """
        kept = self.komi, self._history, self._handicap, self._resigned
        try:
            found = next(read_sgf(path))
            if isinstance(found, BadGame):
                raise ValueError(found.reason)
            if found.size != self.size:
                raise ValueError(f"its board is {found.size} x {found.size}")
            self.set_komi(found.komi)
            black, white = found.setup
            self.begin(
                make_position(self._game, black, white, player=found.player), handicap=0 if white else len(black)
            )
            for number, (player, action) in enumerate(
                found.moves if before is None else found.moves[: max(before - 1, 0)], 1
            ):
                try:
                    self.play(player, action)
                except GtpError as error:
                    raise ValueError(f"move {number}, {self._game.action_name(action)}: {error}") from error
        except (OSError, ValueError) as error:
            self.komi, self._history, self._handicap, self._resigned = kept
            raise GtpError(f"cannot load file: {' '.join(str(error).split())}") from error

    def final_score(self) -> str:
        """Return the result, such as B+3.5 or W+Resign: the board is counted as it stands or without dead stones, by
        the rules.
        """
        if self._resigned is not None:
            return f"{'WB'[self._resigned]}+Resign"
        return score_text(score_lead(self.state_without_dead_stones()))

    def state_without_dead_stones(self, player: int = 0) -> States:
        """Return the position that is counted at the end, with this player to move: without dead stones, if the rules
        say so.

        Its only history is a pass of the opponent.
        """
        if not self.rules.agree_on_dead:
            return with_player(self.state, player)
        board = stones_on_board(self.state).flatten()
        board[[point for chain in self.removed_chains() for point in chain]] = 0
        black, white = np.flatnonzero(board == 1).tolist(), np.flatnonzero(board == 2).tolist()
        passed = self.player == player and self.state[PASSES] == 1
        left = make_position(self._game, black, white, player=1 - player if passed else player)
        if passed:
            self._game.play(left, self.size**2)
        return with_komi(left, self.komi + self.rules.white_points(self._handicap))

    def is_ahead(self, player: int) -> bool:
        """Return whether this player wins if both pass."""
        return score_lead(self.state_without_dead_stones()) * (1 if player == 0 else -1) > 0

    def removed_chains(self) -> list[list[int]]:
        """Return the chains removed at the end of the game: those that playouts find dead, if the rules say so."""
        return [*self.find_dead_chains(0), *self.find_dead_chains(1)] if self.rules.agree_on_dead else []

    def find_chains(self) -> Iterator[list[int]]:
        """Yield the points of each chain of stones."""
        board, seen = stones_on_board(self.state), set[int]()
        for row, column in np.argwhere(board > 0).tolist():
            if row * self.size + column not in seen:
                chain, _ = self._flood_chain(row, column)
                seen.update(chain)
                yield chain

    def find_dead_chains(self, player: int) -> list[list[int]]:
        """Return the chains of a player that playouts find dead."""
        sign = 1 if player == 1 else -1
        lost = sign * estimate_ownership(self._game, self.state_with_player_to_move(1 - player)).ravel()
        return [
            chain
            for chain in self.find_chains()
            if stones_on_board(self.state).flat[chain[0]] == player + 1 and lost[chain].mean() >= DEAD_OWNERSHIP
        ]

    def liberties_of_dead(self, player: int) -> list[int]:
        """Return a player's legal moves on liberties of the opponent's dead chains."""
        found = {
            point
            for chain in self.find_dead_chains(1 - player)
            for point in self._flood_chain(*divmod(chain[0], self.size))[1]
        }
        return sorted(found & set(self._game.legal_actions(self.state_with_player_to_move(player)).tolist()))

    def _flood_chain(self, row: int, column: int) -> tuple[list[int], set[int]]:
        """Return the points of the chain with this stone, and its liberties."""
        board, size = stones_on_board(self.state), self.size
        color, chain, liberties = board[row, column], {row * size + column}, set[int]()
        waiting = [(row, column)]
        while waiting:
            row, column = waiting.pop()
            for y, x in ((row - 1, column), (row + 1, column), (row, column - 1), (row, column + 1)):
                if not (0 <= y < size and 0 <= x < size) or y * size + x in chain:
                    continue
                if board[y, x] == 0:
                    liberties.add(y * size + x)
                elif board[y, x] == color:
                    chain.add(y * size + x)
                    waiting.append((y, x))
        return sorted(chain), liberties


def handicap_points(size: int, count: int) -> list[int]:
    """Return the points of GTP's fixed handicap.

    Raises:
        Refused: there is no such handicap on a board of this size.
    """
    most = 0 if size < SMALLEST_WITH_HANDICAP else 4 if size % 2 == 0 or size == SMALLEST_WITH_HANDICAP else 9
    if not 2 <= count <= most:
        raise GtpError("invalid number of stones")
    near = 3 if size >= 12 else 2  # as in GNU Go
    far, middle = size - 1 - near, size // 2
    corners = [(far, near), (near, far), (near, near), (far, far)]  # row from above, column
    points = corners[: min(count, 4)]
    points += [(middle, near), (middle, far)] if count >= 6 else []
    points += [(far, middle), (near, middle)] if count >= 8 else []
    points += [(middle, middle)] if count in (5, 7, 9) else []
    return [row * size + column for row, column in points]
