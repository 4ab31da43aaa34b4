"""The contract between a game and everything else.

A game is a set of compiled kernels over one contiguous row of 64-bit words per state, so that B states are one ``[B, S]`` array
and copying a state is a memory copy. Games that want smaller fields view a slice of the row (``state[2:].view(np.int16)``).
``games.contract.check_game`` tests what every game must satisfy.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numba import types
from numpy.typing import NDArray

from games.compiled import compiled, kernel

States = NDArray[np.int64]  # [S] one state, or [B, S]
Actions = NDArray[np.int32]
Planes = NDArray[np.float32]  # [C, H, W] one observation, or [N, C, H, W]
Returns = NDArray[np.float32]  # [players]

_state = types.Array(types.int64, 1, "C")
_actions = types.Array(types.int32, 1, "C")
_planes = types.Array(types.float32, 3, "C")
_returns = types.Array(types.float32, 1, "C")

LEGAL_ACTIONS = types.int64(_state, _actions)
STEP = types.void(_state, types.int64)
QUERY = types.int64(_state)
RETURNS = types.void(_state, _returns)
OBSERVE = types.void(_state, _planes)

legal_actions_kernel = kernel(LEGAL_ACTIONS)
step_kernel = kernel(STEP)
query_kernel = kernel(QUERY)
returns_kernel = kernel(RETURNS)
observe_kernel = kernel(OBSERVE)


class Rules(NamedTuple):
    """The kernels of a game, as compiled code receives them. Unpack them into local names before a loop."""

    legal_actions: Any  # (state, out [A]) -> n; writes the legal actions in ascending order; 0 when the game is over
    step: Any  # (state, action): plays a legal action in place; anything else is undefined
    current_player: Any  # (state) -> 0 or 1; arbitrary when the game is over
    terminal: Any  # (state) -> 1 when the game is over, else 0
    returns: Any  # (state, out [players]): what each player has won so far, in [-1, 1] for a two-player game
    observe: Any  # (state, planes [C, H, W]): what the player to move sees; writes every element
    hash: Any  # (state) -> 64 bits that agree for states equal to the network: the key of the position cache


class IllegalAction(ValueError):
    """An action was played that the rules forbid."""


@dataclass(frozen=True, kw_only=True)
class Game:
    """A game's kernels, constants and notation."""

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
    point_symmetries: NDArray[np.int32]  # [Y, H * W]: under symmetry y, new point p shows old point point_symmetries[y, p]
    action_symmetries: NDArray[np.int32]  # [Y, A]: under symmetry y, old action a becomes action_symmetries[y, a]
    action_name: Callable[[int], str]
    parse_action: Callable[[str], int]  # raises ValueError for text that names no action
    render: Callable[[States], str]  # the board as text, for people

    def initial_state(self) -> States:
        """A new state ``[S]`` at the start of the game."""
        return self.start.copy()

    def initial_states(self, count: int) -> States:
        """``count`` new states, ``[count, S]``."""
        return np.tile(self.start, (count, 1))

    def legal_actions(self, state: States) -> Actions:
        """The legal actions ``[n]`` in ascending order; empty when the game is over."""
        out = np.empty(self.num_actions, np.int32)
        return out[: call_legal_actions(self.rules.legal_actions, state, out)]

    def play(self, state: States, action: int) -> None:
        """Play ``action`` in place.

        Raises:
            IllegalAction: the rules forbid it here.
        """
        if action not in self.legal_actions(state):
            raise IllegalAction(f"{self.name}: action {action} is not legal here")
        call_step(self.rules.step, state, action)

    def current_player(self, state: States) -> int:
        """Who is to move: 0 or 1."""
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


def board_symmetries(size: int) -> NDArray[np.int32]:
    """The eight symmetries of a square board as ``[8, size * size]`` point tables; the first is the identity."""
    board = np.arange(size * size, dtype=np.int32).reshape(size, size)
    turned = [np.rot90(board, turns) for turns in range(4)]
    return np.stack([view.ravel() for board in turned for view in (board, board.T)]).astype(np.int32)


def action_table(points: NDArray[np.int32], *, planes: int, extra: int) -> NDArray[np.int32]:
    """The action symmetries ``[Y, planes * P + extra]`` of actions that are points of the board (plane by plane), then ``extra`` others."""
    symmetries, num_points = points.shape
    table = np.tile(np.arange(planes * num_points + extra, dtype=np.int32), (symmetries, 1))
    for y in range(symmetries):
        for plane in range(planes):
            table[y, plane * num_points + points[y]] = plane * num_points + np.arange(num_points)
    return table
