"""The contract between a game and everything else.

A game is a set of compiled kernels over one contiguous row of 64-bit words per state, so that B states are one ``[B,
S]`` array and copying a state is a memory copy. Games that want smaller fields view a slice of the row
(``state[2:].view(np.int16)``). ``games.contract.check_game`` tests what every game must satisfy.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numba import types
from numpy.typing import NDArray

from games.compiled import compiled, kernel

States = NDArray[np.int64]  # [S] one state, or [B, S]
Actions = NDArray[np.int32]
Planes = NDArray[np.float32]  # [C, H, W] one observation, or [N, C, H, W]
Returns = NDArray[np.float32]  # [players]
Floats = NDArray[np.float32]

CHANCE = -1  # the player to move at a *chance state*, where nature is: after an afterstate, and before a random start

_state = types.Array(types.int64, 1, "C")
_actions = types.Array(types.int32, 1, "C")
_planes = types.Array(types.float32, 3, "C")
_floats = types.Array(types.float32, 1, "C")

LEGAL_ACTIONS = types.int64(_state, _actions)
STEP = types.void(_state, types.int64)
QUERY = types.int64(_state)
RETURNS = types.void(_state, _floats)
OBSERVE = types.void(_state, _planes)
SETTLE = types.int64(_state, _actions)
CHANCE_OUTCOMES = types.int64(_state, _actions, _floats)

legal_actions_kernel = kernel(LEGAL_ACTIONS)
step_kernel = kernel(STEP)
query_kernel = kernel(QUERY)
returns_kernel = kernel(RETURNS)
observe_kernel = kernel(OBSERVE)
settle_kernel = kernel(SETTLE)
chance_outcomes_kernel = kernel(CHANCE_OUTCOMES)


class Rules(NamedTuple):
    """The kernels of a game, as compiled code receives them. Unpack them into local names before a loop."""

    legal_actions: Any  # (state, out [A]) -> n; writes the legal actions in ascending order; 0 when the game is over or chance is to move
    step: Any  # (state, action): plays a legal action, or a possible outcome at a chance state, in place; anything else is undefined
    current_player: Any  # (state) -> 0, 1 or CHANCE; arbitrary when the game is over
    terminal: Any  # (state) -> 1 when the game is over, else 0
    returns: Any  # (state, out [players]): what each player has won so far, in [-1, 1] for a two-player game; of one player, the score
    observe: Any  # (state, planes [C, H, W]): what the player to move sees; writes every element
    hash: Any  # (state) -> 64 bits that agree for states equal to the network: the key of the position cache
    chance_outcomes: Any  # (state, outcomes [O], probabilities [O]) -> n; writes what can happen, ascending; 0 where chance is not to move


@chance_outcomes_kernel
def no_chance(state: States, outcomes: Actions, probabilities: Floats) -> int:
    """The ``chance_outcomes`` of every game without chance."""
    return 0


class IllegalAction(ValueError):
    """An action was played that the rules forbid."""


@dataclass(frozen=True, kw_only=True)
class Game:
    """A game's kernels, constants and notation.

    A ply is a step: an action or a chance outcome. Games of two players are won and lost; a game of one has a score,
    whose differences are the rewards along the way.
    """

    name: str
    options: dict[str, Any]  # what ``load_game(name, **options)`` needs to build the same game again
    rules_version: int  # raised when the same moves could mean another game, or the observation changes
    rules: Rules
    start: States  # [S]
    num_players: int
    num_actions: int
    observation_shape: tuple[int, int, int]  # C, H, W
    policy_planes: int  # the first policy_planes * H * W actions are (plane, row, column); the rest belong to no point
    max_plies: int  # no game is longer
    point_symmetries: NDArray[
        np.int32
    ]  # [Y, H * W]: under symmetry y, new point p shows old point point_symmetries[y, p]
    action_symmetries: NDArray[np.int32]  # [Y, A]: under symmetry y, old action a becomes action_symmetries[y, a]
    action_name: Callable[[int], str]
    parse_action: Callable[[str], int]  # raises ValueError for text that names no action
    render: Callable[[States], str]  # the board as text, for people
    num_outcomes: int = 0  # chance outcomes are numbered from 0; a game without chance has none
    outcome_symmetries: NDArray[np.int32] = field(
        default_factory=lambda: np.empty((0, 0), np.int32)
    )  # [Y, O], as action_symmetries
    outcome_name: Callable[[int], str] = str
    most_legal_actions: int = 0  # that any position has, for which searches reserve memory; 0 stands for num_actions
    max_return: float = 1.0  # no return is larger; of a one-player game, no score
    milestones: tuple[
        int, ...
    ] = ()  # of a one-player game: what people count how many games reach, such as tiles, ascending
    milestone_of: Callable[[States], int] = (
        int  # what a state has reached, on the same scale; only where there are milestones
    )
    # Of games whose last board tells how they were won, a kernel: (state, owners [H * W]) -> twice player 0's lead in
    # points; writes 1 where a point is player 0's, -1 where it is player 1's, else 0.
    settle: Any = None
    won_by_area: bool = False  # whether owning points is what wins

    def __post_init__(self) -> None:
        """A game without chance needs to say nothing of outcomes: its table of them is ``[Y, 0]``."""
        if self.most_legal_actions == 0:
            object.__setattr__(self, "most_legal_actions", self.num_actions)
        if self.num_outcomes == 0:
            object.__setattr__(self, "outcome_symmetries", np.empty((len(self.action_symmetries), 0), np.int32))

    @property
    def height(self) -> int:
        """Rows of the board, as the network sees it."""
        return self.observation_shape[1]

    @property
    def width(self) -> int:
        """Columns of the board, as the network sees it."""
        return self.observation_shape[2]

    def initial_state(self) -> States:
        """A new state ``[S]`` at the start of the game."""
        return self.start.copy()

    def initial_states(self, count: int) -> States:
        """``count`` new states, ``[count, S]``."""
        return np.tile(self.start, (count, 1))

    def legal_actions(self, state: States) -> Actions:
        """The legal actions ``[n]`` in ascending order; empty when the game is over or chance is to move."""
        out = np.empty(self.num_actions, np.int32)
        return out[: call_legal_actions(self.rules.legal_actions, state, out)]

    def chance_outcomes(self, state: States) -> tuple[Actions, Floats]:
        """What can happen at a chance state, ``[n]`` in ascending order, and how likely each is, ``[n]``; both are
        empty elsewhere.
        """
        outcomes, probabilities = np.empty(self.num_outcomes, np.int32), np.empty(self.num_outcomes, np.float32)
        count = call_chance_outcomes(self.rules.chance_outcomes, state, outcomes, probabilities)
        return outcomes[:count], probabilities[:count]

    def play(self, state: States, action: int) -> None:
        """Play ``action`` in place; at a chance state it is an outcome.

        Raises:
            IllegalAction: the rules forbid it here, or it cannot happen here.
        """
        if self.current_player(state) == CHANCE:
            if action not in self.chance_outcomes(state)[0]:
                raise IllegalAction(f"{self.name}: outcome {action} is not possible here")
        elif action not in self.legal_actions(state):
            raise IllegalAction(f"{self.name}: action {action} is not legal here")
        call_step(self.rules.step, state, action)

    def current_player(self, state: States) -> int:
        """Who is to move: 0, 1 or ``CHANCE``."""
        return int(call_query(self.rules.current_player, state))

    def terminal(self, state: States) -> bool:
        """Whether the game is over."""
        return bool(call_query(self.rules.terminal, state))

    def returns(self, state: States) -> NDArray[np.float32]:
        """What each player has won so far, ``[players]``."""
        out = np.zeros(self.num_players, np.float32)
        call_returns(self.rules.returns, state, out)
        return out

    def observe(self, state: States) -> Planes:
        """What the player to move sees, ``[C, H, W]``."""
        planes = np.empty(self.observation_shape, np.float32)
        call_observe(self.rules.observe, state, planes)
        return planes

    def hash(self, state: States) -> int:
        """The position's key in caches."""
        return int(call_query(self.rules.hash, state)) & (2**64 - 1)


# The doors through which Python calls a kernel.


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
    """The symmetries of a board, square without ``width``, as point tables ``[Y, height * width]``; the first is the
    identity.

    A square has eight, another rectangle four.
    """
    width = height if width is None else width
    board = np.arange(height * width, dtype=np.int32).reshape(height, width)
    turned = [np.rot90(board, turns) for turns in range(4)]
    views = [view for board in turned for view in (board, board.T) if view.shape == (height, width)]
    return np.stack([view.ravel() for view in views]).astype(np.int32)


def action_table(points: NDArray[np.int32], *, planes: int, extra: int) -> NDArray[np.int32]:
    """The action symmetries ``[Y, planes * P + extra]`` of actions that are points of the board (plane by plane), then
    ``extra`` others.
    """
    symmetries, num_points = points.shape
    table = np.tile(np.arange(planes * num_points + extra, dtype=np.int32), (symmetries, 1))
    for y in range(symmetries):
        for plane in range(planes):
            table[y, plane * num_points + points[y]] = plane * num_points + np.arange(num_points)
    return table
