"""Any of OpenSpiel's sequential games of perfect information for one or two players.

The row of a state is the length of the history, a word that names the game, and the history itself in 16-bit numbers.
Playing a move writes it there. All other kernels ask OpenSpiel's Python package through one C callback
(``keima.games.openspiel.positions``), which compiled code calls by its symbol: so they are compiled once for all games,
and cached like other kernels. docs/openspiel.md says how slow this is.
"""

import functools
import hashlib
import json
import math
import sys
from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from llvmlite import binding  # type: ignore[import-untyped]
from numba.core import types
from numpy.typing import NDArray

from keima.compilation.decorators import inlined
from keima.games.authoring.kept_errors import raise_kept_error
from keima.games.game import (
    Actions,
    Floats,
    Game,
    Planes,
    Returns,
    Rules,
    States,
    chance_outcomes_kernel,
    legal_actions_kernel,
    observe_kernel,
    query_kernel,
    returns_kernel,
    step_kernel,
)
from keima.games.openspiel import positions
from keima.games.openspiel.library import load_openspiel_game
from keima.games.openspiel.names import make_action_names, make_outcome_names
from keima.games.openspiel.positions import (
    ADAPTERS,
    ADDRESS,
    CHANCE_OUTCOMES,
    CURRENT_PLAYER,
    HASH,
    LEGAL_ACTIONS,
    MOVE,
    OBSERVATION,
    RETURNS,
    TERMINAL,
    UNANSWERED,
    WORD,
    OpenSpielAdapter,
)
from keima.games.openspiel.trial import play_random_moves

LENGTH, IDENTITY, HISTORY = range(3)  # words of a row; the history fills the rest
STATUS, VALUE = range(2)  # words of a receipt
TRIES = 100  # a question is put again when a signal interrupts the answer
SYMBOL = "keima_openspiel_answer"
Address = int | np.int64

binding.add_symbol(SYMBOL, ADDRESS)


def ask_python_directly(*numbers: int) -> None:
    """Ask without compiled code, where errors are raised at once."""
    positions.answer_question(*map(int, numbers))


ask: Any = types.ExternalFunction(SYMBOL, types.void(*[types.int64] * 7))
if numba.config.DISABLE_JIT:
    ask = ask_python_directly


@inlined
def get_answer(question: int, state: States, out: Address, size: int, more: Address) -> NDArray[np.int64]:
    """Ask a question about a state; return the receipt."""
    receipt = np.zeros(2, np.int64)
    receipt[VALUE] = 1 if question == TERMINAL else 0
    row, address, tries = np.int64(state.ctypes.data) + IDENTITY * WORD, np.int64(receipt.ctypes.data), 0
    while receipt[STATUS] == UNANSWERED and tries < TRIES:
        ask(question, row, state[LENGTH], out, size, more, address)
        tries += 1
    return receipt


@legal_actions_kernel
def legal_actions(state: States, out: Actions) -> int:
    return get_answer(LEGAL_ACTIONS, state, np.int64(out.ctypes.data), out.size, 0)[VALUE]


@step_kernel
def step(state: States, action: int) -> None:
    history = state[HISTORY:].view(np.uint16)
    if 0 <= state[LENGTH] < len(history):
        history[state[LENGTH]] = action
        state[LENGTH] += 1
    else:
        state[LENGTH] = -1  # an error as soon as somebody asks


@query_kernel
def current_player(state: States) -> int:
    return get_answer(CURRENT_PLAYER, state, 0, 0, 0)[VALUE]


@query_kernel
def terminal(state: States) -> int:
    return get_answer(TERMINAL, state, 0, 0, 0)[VALUE]


@returns_kernel
def returns(state: States, out: Returns) -> None:
    get_answer(RETURNS, state, np.int64(out.ctypes.data), out.size, 0)


@observe_kernel
def observe(state: States, planes: Planes) -> None:
    get_answer(OBSERVATION, state, np.int64(planes.ctypes.data), planes.size, 0)


@query_kernel
def position_hash(state: States) -> int:
    return get_answer(HASH, state, 0, 0, 0)[VALUE]


@chance_outcomes_kernel
def chance_outcomes(state: States, outcomes: Actions, probabilities: Floats) -> int:
    out, more = np.int64(outcomes.ctypes.data), np.int64(probabilities.ctypes.data)
    return get_answer(CHANCE_OUTCOMES, state, out, outcomes.size, more)[VALUE]


def openspiel(game: str = "", *, max_plies: int = 0, most_legal_actions: int = 0) -> Game:
    """Build a game of OpenSpiel's.

    Args:
        game: its name, with parameters if any: ``hex(board_size=5)``.
        max_plies: a game is over after so many plies, drawn or with the score so far; 0: as OpenSpiel's rules end it.
        most_legal_actions: in any position, to save memory in games with thousands of actions; 0: not known.

    Raises:
        ValueError: OpenSpiel is not installed or fails, there is no such game, or it does not fit the contract.
    """
    if not isinstance(game, str) or not game:
        raise ValueError('which one? Say, for example, options: {game: "hex(board_size=5)"}')
    for name, number in (("max_plies", max_plies), ("most_legal_actions", most_legal_actions)):
        if type(number) is not int or number < 0:
            raise ValueError(f"{name} is a whole number, 0 or more, not {number!r}")
    return build_openspiel_game(game, max_plies, most_legal_actions)


@functools.lru_cache(maxsize=8)  # a worker loads its game again with every model
def build_openspiel_game(game: str, max_plies: int, most_legal_actions: int) -> Game:
    """See ``openspiel``."""
    theirs = load_openspiel_game(game)
    options: dict[str, Any] = {"game": theirs.to_string()}
    options |= {"max_plies": max_plies} if max_plies else {}
    options |= {"most_legal_actions": most_legal_actions} if most_legal_actions else {}
    actions, outcomes = theirs.num_distinct_actions(), theirs.max_chance_outcomes()
    board = find_board_shape(theirs.observation_tensor_shape(), actions)
    adapter = make_adapter(theirs, options, board=board)
    trial = play_random_moves(adapter)
    names = make_action_names(theirs, trial)
    loaded = Game(
        name="openspiel",
        options=options,
        rules_version=1,
        rules=Rules(legal_actions, step, current_player, terminal, returns, observe, position_hash, chance_outcomes),
        start=make_start_state(adapter),
        num_players=adapter.players,
        num_actions=actions,
        observation_shape=adapter.shape,
        policy_planes=count_policy_planes(board, actions),
        max_plies=adapter.max_plies,
        point_symmetries=np.arange(board[1] * board[2], dtype=np.int32)[None],
        action_symmetries=np.arange(actions, dtype=np.int32)[None],
        action_name=names.__getitem__,
        parse_action=make_action_parser(names, options["game"]),
        render=render_state,
        num_outcomes=outcomes,
        outcome_symmetries=np.arange(outcomes, dtype=np.int32)[None],
        outcome_name=make_outcome_names(theirs, trial).__getitem__,
        most_legal_actions=most_legal_actions,
        max_return=adapter.max_return,
    )
    check_callback(loaded, adapter)
    return loaded


def make_adapter(theirs: Any, options: dict[str, Any], *, board: tuple[int, int, int]) -> OpenSpielAdapter:
    """Return the adapter of a game with these options, which every state's row names."""
    digest = hashlib.blake2b(json.dumps(options, sort_keys=True).encode(), digest_size=WORD).digest()
    identity = int.from_bytes(digest, sys.byteorder, signed=True)
    longest = theirs.max_history_length()
    adapter = OpenSpielAdapter(
        theirs,
        identity=identity,
        shape=(board[0] + (theirs.num_players() == 2), *board[1:]),
        max_plies=min(options.get("max_plies", longest), longest),
        cut=options.get("max_plies", longest) < longest,
        most_legal_actions=options.get("most_legal_actions", theirs.num_distinct_actions()),
    )
    ADAPTERS[identity] = adapter
    return adapter


def make_start_state(adapter: OpenSpielAdapter) -> States:
    """Return the row of the start, with room for the longest history."""
    row = np.zeros(HISTORY + -(-adapter.max_plies * MOVE // WORD), np.int64)
    row[IDENTITY] = int.from_bytes(adapter.start_key, sys.byteorder, signed=True)
    return row


def find_board_shape(tensor: list[int], num_actions: int) -> tuple[int, int, int]:
    """Return the shape ``[C, H, W]`` of OpenSpiel's observation tensor as planes.

    The last two of three or more sides are the board. Two sides are one board; or if the second one is longer, and the
    actions are its points and make a square, planes of that square (Gomoku). n numbers are n planes of one point.
    """
    if len(tensor) > 2:
        return math.prod(tensor[:-2]), tensor[-2], tensor[-1]
    if len(tensor) == 1:
        return tensor[0], 1, 1
    side = math.isqrt(tensor[1])
    if side**2 == tensor[1] > tensor[0] and num_actions in (tensor[1], tensor[1] + 1):
        return tensor[0], side, side
    return 1, tensor[0], tensor[1]


def count_policy_planes(board: tuple[int, int, int], num_actions: int) -> int:
    """Return 1 if the actions are the points of the board, or these and a pass; else 0."""
    points = board[1] * board[2]
    return int(points > 1 and num_actions in (points, points + 1))


def make_action_parser(names: list[str], game: str) -> Callable[[str], int]:
    """Return a function that finds an action by its name."""
    actions = {name: action for action, name in enumerate(names)}

    def parse_action(text: str) -> int:
        """Parse the name of an action, which may be a number."""
        if text.strip() not in actions:
            raise ValueError(f"{text.strip()!r} is not a move of {game}; a valid name is {names[0]!r}")
        return actions[text.strip()]

    return parse_action


def key_of(state: States) -> bytes:
    """Return the key of the position in ``keima.games.openspiel.positions``."""
    return state[IDENTITY:].tobytes()[: WORD + MOVE * int(state[LENGTH])]


def render_state(state: States) -> str:
    """Return the position as OpenSpiel writes it."""
    key = key_of(state)
    text = str(ADAPTERS[int(state[IDENTITY])].position(key).state)
    return text if text.strip() else f"after the moves {positions.moves_of_key(key)}"


def check_callback(game: Game, adapter: OpenSpielAdapter) -> None:
    """Ask about the start through compiled code as well.

    Raises:
        ValueError: the answer does not arrive on this platform.
    """
    key = adapter.start_key
    asked = game.legal_actions(game.start).tolist(), game.chance_outcomes(game.start)[0].tolist()
    raise_kept_error()
    if asked != (adapter.legal_actions(key), [outcome for outcome, _ in adapter.chance_outcomes(key)]):
        raise ValueError("compiled code does not get OpenSpiel's answers on this platform; set NUMBA_DISABLE_JIT=1")
