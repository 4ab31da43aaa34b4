"""The contract between a game and everything else.

A game is a set of compiled kernels over one contiguous row of 64-bit words per state, so that B states are one ``[B,
S]`` array and copying a state is a memory copy. Games that need smaller fields view a slice of the row
(``state[2:].view(np.int16)``). ``keima.games.authoring.contract.check_game`` tests what every game must satisfy.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numba import types
from numpy.typing import NDArray

from keima.compilation.decorators import compiled, kernel

States = NDArray[np.int64]  # [S] one state, or [B, S]
Actions = NDArray[np.int32]
Planes = NDArray[np.float32]  # [C, H, W] one observation, or [N, C, H, W]
Returns = NDArray[np.float32]  # [players]
Floats = NDArray[np.float32]

MOST_PLAYERS = 16
MOST_CHANCE_EVENTS = 32  # that may follow each other
CHANCE = -1  # the player to move at a *chance state*, where nature moves: at an afterstate and before a random start

_state = types.Array(types.int64, 1, "C")
_actions = types.Array(types.int32, 1, "C")
_planes = types.Array(types.float32, 3, "C")
_floats = types.Array(types.float32, 1, "C")

LEGAL_ACTIONS = types.int64(_state, _actions)
STEP = types.void(_state, types.int64)
QUERY = types.int64(_state)
RETURNS = types.void(_state, _floats)
OBSERVE = types.void(_state, _planes)
FINAL_SCORE = types.int64(_state, _actions)
CHANCE_OUTCOMES = types.int64(_state, _actions, _floats)

legal_actions_kernel = kernel(LEGAL_ACTIONS, "Compile ``(state, out [A]) -> n``: see ``Rules.legal_actions``.")
step_kernel = kernel(STEP, "Compile ``(state, action)``: see ``Rules.step``.")
query_kernel = kernel(QUERY, "Compile ``(state) -> number``: see ``Rules.current_player``, ``terminal`` and ``hash``.")
returns_kernel = kernel(RETURNS, "Compile ``(state, out [players])``: see ``Rules.returns``.")
observe_kernel = kernel(OBSERVE, "Compile ``(state, planes [C, H, W])``: see ``Rules.observe``.")
final_score_kernel = kernel(FINAL_SCORE, "Compile ``(state, ownership [H * W]) -> score``: see ``Game.final_score``.")
chance_outcomes_kernel = kernel(
    CHANCE_OUTCOMES, "Compile ``(state, outcomes [O], probabilities [O]) -> n``: see ``Rules.chance_outcomes``."
)


class Rules(NamedTuple):
    """The kernels of a game, as compiled code receives them. Read them into local names before a loop."""

    # (state, out [A]) -> n: writes the legal actions in ascending order; 0 when the game is over or chance is to move
    legal_actions: Any
    # (state, action): plays a legal action, or a possible outcome at a chance state, in place; else undefined
    step: Any
    current_player: Any  # (state) -> a player from 0, or CHANCE; arbitrary when the game is over
    terminal: Any  # (state) -> 1 when the game is over, else 0
    # (state, out [players]): each player's return so far, in [-1, 1]; in a one-player game, the score
    returns: Any
    observe: Any  # (state, planes [C, H, W]): writes the observation of the player to move, every element
    hash: Any  # (state) -> 64 bits, equal for states with equal observations: the key of the position cache
    # (state, outcomes [O], probabilities [O]) -> n: writes the possible outcomes, ascending; 0 if chance is not to move
    chance_outcomes: Any


class MoveScratch(NamedTuple):
    """Scratch space for the legal actions of a state, or for its chance outcomes."""

    actions: Actions  # [max(A, O)] legal actions, or outcomes
    chances: Floats  # [O] the outcomes' probabilities


@chance_outcomes_kernel
def no_chance(state: States, outcomes: Actions, probabilities: Floats) -> int:
    """Return the ``chance_outcomes`` of a game without chance."""
    return 0


class IllegalAction(ValueError):
    """The rules forbid the action."""


@dataclass(frozen=True, kw_only=True)
class Game:
    """A game's kernels, constants and notation.

    A ply is a step: an action or a chance outcome. Two-player games are won and lost; a one-player game has a score,
    whose increments are the rewards. With three and more players each wants the largest return for itself.
    """

    name: str
    options: dict[str, Any]  # ``load_game(name, **options)`` builds the same game again
    rules_version: int  # increased when the same moves could mean another game, or the observation changes
    rules: Rules
    start: States  # [S]
    num_players: int
    num_actions: int
    observation_shape: tuple[int, int, int]  # C, H, W
    policy_planes: int  # the first policy_planes * H * W actions are (plane, row, column); the rest belong to no point
    # The first 2 * piece_planes planes of the observation mark the pieces on the board, by their kinds: those of the
    # player to move, then the opponent's; 0: it does not begin with pieces.
    piece_planes: int = 0
    max_plies: int  # no game is longer
    # [Y, H * W]: under symmetry y, new point p shows old point point_symmetries[y, p]
    point_symmetries: NDArray[np.int32]
    action_symmetries: NDArray[np.int32]  # [Y, A]: under symmetry y, old action a becomes action_symmetries[y, a]
    # [Y, S]: the start as symmetry y shows it; without rows, `start` for each symmetry: it is its own mirror image
    symmetric_starts: States = field(default_factory=lambda: np.empty((0, 0), np.int64))
    action_name: Callable[[int], str]
    parse_action: Callable[[str], int]  # raises ValueError for text that names no action
    render: Callable[[States], str]  # the board as text, for people
    num_outcomes: int = 0  # chance outcomes are numbered from 0; a game without chance has none
    # [Y, O], like action_symmetries
    outcome_symmetries: NDArray[np.int32] = field(default_factory=lambda: np.empty((0, 0), np.int32))
    outcome_name: Callable[[int], str] = str
    most_legal_actions: int = 0  # in any position, for which searches reserve memory; 0 stands for num_actions
    max_return: float = 1.0  # the upper bound of returns; in a one-player game, of the score
    # In a one-player game: results whose frequency people report, such as tiles, ascending.
    milestones: tuple[int, ...] = ()
    milestone_of: Callable[[States], int] = int  # the result of a state on the scale of ``milestones``
    # In games with a score on the last board, a kernel: (state, ownership [H * W]) -> twice player 0's lead in points;
    # writes 1 where a point is player 0's, -1 where it is player 1's, else 0.
    final_score: Any = None
    won_by_area: bool = False  # whether the owner of more points wins
    # The board as whole numbers, row by row from the top, for pages that draw it: 0 is an empty cell, 1 a stone of the
    # first player, -1 of the second; of three and more players, k of player k - 1. Other numbers are shown as they are.
    cells: Callable[[States], NDArray[Any]] | None = None  # (state) -> [H, W]
    # A drawing in SVG, in place of one of the cells. A click on an element with data-move="NAME" makes that move. Pages
    # allow no scripts and no styles: colours are attributes, such as fill="#d33".
    svg: Callable[[States], str] | None = None

    def __post_init__(self) -> None:
        """Fill in the defaults that depend on other fields; without chance, outcome_symmetries is ``[Y, 0]``."""
        if self.most_legal_actions == 0:
            object.__setattr__(self, "most_legal_actions", self.num_actions)
        if self.num_outcomes == 0:
            object.__setattr__(self, "outcome_symmetries", np.empty((len(self.action_symmetries), 0), np.int32))

    @property
    def num_values(self) -> int:
        """V, the values of a position: one, for the player to move; with three and more players one for each, of which
        the first is for the player to move, the second for the player whose number is one higher, and so on.
        """
        return self.num_players if self.num_players > 2 else 1

    @property
    def height(self) -> int:
        """The number of rows of the observation."""
        return self.observation_shape[1]

    @property
    def width(self) -> int:
        """The number of columns of the observation."""
        return self.observation_shape[2]

    def initial_state(self) -> States:
        """Return a new state ``[S]`` at the start of the game."""
        return self.start.copy()

    def initial_states(self, count: int) -> States:
        """Return ``count`` new states, ``[count, S]``."""
        return np.tile(self.start, (count, 1))

    def make_move_scratch(self) -> MoveScratch:
        """Scratch space for the moves of one state."""
        return MoveScratch(
            actions=np.empty(max(self.num_actions, self.num_outcomes), np.int32),
            chances=np.empty(self.num_outcomes, np.float32),
        )

    def mirrored_initial_states(self) -> States:
        """Return the start as each symmetry shows it, ``[Y, S]``."""
        if len(self.symmetric_starts) == 0:
            return self.initial_states(len(self.action_symmetries))
        return self.symmetric_starts.copy()

    def legal_actions(self, state: States) -> Actions:
        """Return the legal actions ``[n]`` in ascending order; empty when the game is over or chance is to move."""
        out = np.empty(self.num_actions, np.int32)
        return out[: call_legal_actions(self.rules.legal_actions, state, out)]

    def chance_outcomes(self, state: States) -> tuple[Actions, Floats]:
        """Return the outcomes possible at a chance state, ascending, and their probabilities, ``[n]``; else empty."""
        outcomes, probabilities = np.empty(self.num_outcomes, np.int32), np.empty(self.num_outcomes, np.float32)
        count = call_chance_outcomes(self.rules.chance_outcomes, state, outcomes, probabilities)
        return outcomes[:count], probabilities[:count]

    def play(self, state: States, action: int) -> None:
        """Play ``action``, an outcome at a chance state, in place.

        Raises:
            IllegalAction: the action is not legal, or the outcome not possible.
        """
        if self.current_player(state) == CHANCE:
            if action not in self.chance_outcomes(state)[0]:
                raise IllegalAction(f"{self.name}: outcome {action} is not possible here")
        elif action not in self.legal_actions(state):
            raise IllegalAction(f"{self.name}: action {action} is not legal here")
        call_step(self.rules.step, state, action)

    def current_player(self, state: States) -> int:
        """Return the player to move, from 0, or ``CHANCE``."""
        return int(call_query(self.rules.current_player, state))

    def terminal(self, state: States) -> bool:
        """Return whether the game is over."""
        return bool(call_query(self.rules.terminal, state))

    def returns(self, state: States) -> NDArray[np.float32]:
        """Return each player's return so far, ``[players]``."""
        out = np.zeros(self.num_players, np.float32)
        call_returns(self.rules.returns, state, out)
        return out

    def observe(self, state: States) -> Planes:
        """Return the observation of the player to move, ``[C, H, W]``."""
        planes = np.empty(self.observation_shape, np.float32)
        call_observe(self.rules.observe, state, planes)
        return planes

    def hash(self, state: States) -> int:
        """Return the position's 64-bit key for caches."""
        return int(call_query(self.rules.hash, state)) & (2**64 - 1)


# The functions through which Python calls a kernel.


@compiled
def call_legal_actions(function: Any, state: States, out: Actions) -> int:
    """Call a kernel of signature ``LEGAL_ACTIONS``."""
    return function(state, out)


@compiled
def call_step(function: Any, state: States, action: int) -> None:
    """Call a kernel of signature ``STEP``."""
    function(state, np.int64(action))


@compiled
def call_query(function: Any, state: States) -> int:
    """Call a kernel of signature ``QUERY``."""
    return function(state)


@compiled
def call_returns(function: Any, state: States, out: NDArray[np.float32]) -> None:
    """Call a kernel of signature ``RETURNS``."""
    function(state, out)


@compiled
def call_observe(function: Any, state: States, planes: Planes) -> None:
    """Call a kernel of signature ``OBSERVE``."""
    function(state, planes)


@compiled
def call_chance_outcomes(function: Any, state: States, outcomes: Actions, probabilities: Floats) -> int:
    """Call a kernel of signature ``CHANCE_OUTCOMES``."""
    return function(state, outcomes, probabilities)


def board_symmetries(height: int, width: int | None = None) -> NDArray[np.int32]:
    """Return the symmetries of a rectangle as point tables ``[Y, height * width]``: eight of a square, else four.

    The first is the identity. Without ``width`` the board is square.
    """
    width = height if width is None else width
    board = np.arange(height * width, dtype=np.int32).reshape(height, width)
    turned = [np.rot90(board, turns) for turns in range(4)]
    views = [view for board in turned for view in (board, board.T) if view.shape == (height, width)]
    return np.stack([view.ravel() for view in views]).astype(np.int32)


def mirror_symmetries(height: int, width: int) -> NDArray[np.int32]:
    """Return the point tables ``[2, height * width]`` of a board that may only be mirrored from left to right."""
    board = np.arange(height * width, dtype=np.int32).reshape(height, width)
    return np.stack([board.ravel(), board[:, ::-1].ravel()])


def action_table(points: NDArray[np.int32], *, planes: int, extra: int) -> NDArray[np.int32]:
    """Return the action symmetries ``[Y, planes * P + extra]`` of actions that are points of planes, and ``extra``
    others.
    """
    symmetries, num_points = points.shape
    table = np.tile(np.arange(planes * num_points + extra, dtype=np.int32), (symmetries, 1))
    for y in range(symmetries):
        for plane in range(planes):
            table[y, plane * num_points + points[y]] = plane * num_points + np.arange(num_points)
    return table
