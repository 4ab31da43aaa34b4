"""OpenSpiel's answers about positions, and the C callback through which compiled kernels ask.

A row of a state is the history of its game, so a position is found by its history. Recently queried positions are
cached: the next one is a copy of its parent and one move, instead of the whole game again.
"""

import ctypes
import hashlib
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from keima.games.authoring.kept_errors import keep_error
from keima.games.game import CHANCE, Floats, Planes

LEGAL_ACTIONS, CURRENT_PLAYER, TERMINAL, RETURNS, OBSERVATION, HASH, CHANCE_OUTCOMES = range(7)  # questions
UNANSWERED, ANSWERED, FAILED = range(3)  # the status on a receipt
WORD, MOVE = 8, 2  # bytes of a word of a row, and of a move in its history
MAX_PLIES_BACK = 32  # moves within which a remembered position is looked for before the whole game is played again
ROUNDING = 1e-5  # by which returns may be out of bounds, and probabilities may not add up to 1


class OpenSpielFailed(ValueError):
    """OpenSpiel failed, or contradicted itself, in the middle of a game."""


class Position(NamedTuple):
    """A position of OpenSpiel's, never modified."""

    state: Any
    viewer: int  # the player to move; at a chance state and at the end, the one who moved last
    chance: bool
    over: bool


class RecentPositions:
    """A bounded number of positions by key, in two generations: when the young one is full, the old one is dropped.

    A key is the bytes of a row from its identity to the last move. A position weighs as many moves as its history,
    which OpenSpiel stores in each state, plus a constant; ``most`` is the weight of a generation.
    """

    OWN_WEIGHT = 32

    def __init__(self, most: int) -> None:
        self._most, self._weight = most, 0
        self._young: dict[bytes, Position] = {}
        self._old: dict[bytes, Position] = {}

    def find(self, key: bytes) -> Position | None:
        """Return the position of ``key``, if it is cached."""
        found = self._young.get(key)
        if found is None:
            found = self._old.get(key)
            if found is not None:
                self.remember(key, found)
        return found

    def remember(self, key: bytes, position: Position) -> None:
        """Cache a position."""
        self._young[key] = position
        self._weight += self.OWN_WEIGHT + len(key) // MOVE
        if self._weight > self._most:
            self._old, self._young, self._weight = self._young, {}, 0


RECENT = RecentPositions(2**18)  # of all games: up to 70 MB, measured with 9x9 Go, whose states are large


class OpenSpielAdapter:
    """Answers questions about the positions of one game.

    Args:
        game: OpenSpiel's.
        identity: the word that names the game in rows.
        shape: of the observation, with the plane of the player to move where there are two.
        max_plies: after so many plies a game is over.
        cut: whether games may be cut by ``max_plies``; else OpenSpiel's games end before.
        most_legal_actions: in any position.
    """

    def __init__(
        self,
        game: Any,
        *,
        identity: int,
        shape: tuple[int, int, int],
        max_plies: int,
        cut: bool,
        most_legal_actions: int,
    ) -> None:
        self.game, self.shape, self.max_plies, self._cut = game, shape, max_plies, cut
        self._most_legal_actions = most_legal_actions
        self.players, self.num_outcomes = game.num_players(), game.max_chance_outcomes()
        self._lowest, self._highest = game.min_utility(), game.max_utility()
        self._observers: list[Any] = []  # those that no thread is using
        self._seen: tuple[bytes, Planes] = (b"", np.empty(0, np.float32))
        self.start_key = identity.to_bytes(WORD, sys.byteorder, signed=True)
        self._start = self._position(game.new_initial_state(), 0, plies=0)

    @property
    def max_return(self) -> float:
        """The upper bound of returns."""
        return 1.0 if self.players == 2 else float(self._highest - min(0.0, self._lowest))

    def position(self, key: bytes) -> Position:
        """Return the position with this history."""
        found = RECENT.find(key)
        if found is None:
            found = self._replay_from_recent(key)
            RECENT.remember(key, found)
        return found

    def _replay_from_recent(self, key: bytes) -> Position:
        known, end = None, len(key)
        while known is None and end > max(WORD, len(key) - MOVE * MAX_PLIES_BACK):
            end -= MOVE
            known = RECENT.find(key[:end])
        if known is None:
            known, end = self._start, WORD
        state, viewer = known.state.clone(), known.viewer
        for action in np.frombuffer(key[end:], np.uint16).tolist():
            state.apply_action(action)
            player = state.current_player()
            viewer = player if player >= 0 else viewer
        return self._position(state, viewer, plies=(len(key) - WORD) // MOVE)

    def _position(self, state: Any, viewer: int, *, plies: int) -> Position:
        over = state.is_terminal()
        if plies >= self.max_plies and not over:
            if not self._cut:
                raise ValueError(f"the game goes on after {plies} plies, the most that OpenSpiel promises")
            over = True
        player = state.current_player()
        return Position(state, player if player >= 0 else viewer, player == CHANCE and not over, over)

    def legal_actions(self, key: bytes) -> list[int]:
        """Return the legal actions, ascending; empty when the game is over or chance is to move."""
        position = self.position(key)
        if position.over or position.chance:
            return []
        legal = sorted(position.state.legal_actions())
        if not legal:
            raise ValueError("there is no legal action, and the game is not over")
        if len(legal) > self._most_legal_actions:
            raise ValueError(f"there are {len(legal)} legal actions: set most_legal_actions to as many at least")
        return legal

    def current_player(self, key: bytes) -> int:
        """Return 0, 1 or ``CHANCE``."""
        position = self.position(key)
        return CHANCE if position.chance else position.viewer

    def terminal(self, key: bytes) -> int:
        """Return 1 when the game is over, else 0."""
        return int(self.position(key).over)

    def chance_outcomes(self, key: bytes) -> list[tuple[int, float]]:
        """Return the possible outcomes, ascending, and their probabilities; empty if chance is not to move."""
        position = self.position(key)
        if not position.chance:
            return []
        outcomes = sorted((outcome, likely) for outcome, likely in position.state.chance_outcomes() if likely > 0)
        if not outcomes or not 0 <= outcomes[0][0] <= outcomes[-1][0] < self.num_outcomes:
            raise ValueError(f"a chance outcome is not from 0 to {self.num_outcomes - 1}: {outcomes}")
        if abs(sum(likely for _, likely in outcomes) - 1) > ROUNDING:
            raise ValueError(f"the probabilities of the chance outcomes do not add up to 1: {outcomes}")
        return outcomes

    def returns(self, key: bytes) -> list[float]:
        """Return the returns of two players, as shares of the most that can be won; of one player, the score from 0 up.

        Where OpenSpiel's scores can be negative, the score is given at the end, counted from the lowest possible one.
        """
        position = self.position(key)
        returns = position.state.returns()
        if not all(self._lowest - ROUNDING <= won <= self._highest + ROUNDING for won in returns) and position.over:
            raise ValueError(f"the returns {returns} are not from {self._lowest} to {self._highest}")
        if self.players == 1:
            given = self._lowest >= 0 or position.over
            return [returns[0] - min(0.0, self._lowest) if given else 0.0]
        if not position.state.is_terminal():
            return [0.0, 0.0]
        if abs(sum(returns)) > ROUNDING:
            raise ValueError(f"the returns {returns} do not add up to 0")
        share = returns[0] / max(abs(self._lowest), abs(self._highest))
        return [share, -share]

    def observation(self, key: bytes) -> Planes:
        """Return OpenSpiel's observation tensor for the viewer; with two players, also a plane of the viewer's number.

        Some tensors show the board as the player to move sees it; others do not show who is to move.
        """
        seen, planes = self._seen
        if seen == key:
            return planes
        position, planes = self.position(key), np.empty(self.shape, np.float32)
        try:
            observer = self._observers.pop()
        except IndexError:
            observer = _make_observer(self.game)
        observer.set_from(position.state, position.viewer)
        own = planes[: len(planes) - 1] if self.players == 2 else planes
        own[:] = observer.tensor.reshape(own.shape)
        if self.players == 2:
            planes[-1] = position.viewer
        self._observers.append(observer)
        self._seen = (key, planes)
        return planes

    def hash(self, key: bytes) -> int:
        """Return a digest of the observation and of whether chance is to move; after the end, when none is needed, of
        the history.
        """
        position = self.position(key)
        content = key if position.over else self.observation(key).tobytes() + bytes([position.chance])
        digest = hashlib.blake2b(content, digest_size=WORD).digest()
        return int.from_bytes(digest, sys.byteorder, signed=True)


def _make_observer(game: Any) -> Any:
    return import_module("open_spiel.python.observation").make_observation(game)


ADAPTERS: dict[int, OpenSpielAdapter] = {}  # by identity


def moves_of_key(key: bytes) -> list[int]:
    """Return the moves of a key."""
    moves: list[int] = np.frombuffer(key[WORD:], np.uint16).tolist()
    return moves


def _write_to_memory(address: int, size: int, numbers: NDArray[Any]) -> None:
    if numbers.size > size:
        raise ValueError(f"{numbers.size} actions or outcomes are more than the {size} that there is room for")
    ctypes.memmove(address, numbers.tobytes(), numbers.nbytes)


def _legal_actions(adapter: OpenSpielAdapter, key: bytes, out: int, size: int, more: int) -> int:
    legal = adapter.legal_actions(key)
    _write_to_memory(out, size, np.array(legal, np.int32))
    return len(legal)


def _current_player(adapter: OpenSpielAdapter, key: bytes, out: int, size: int, more: int) -> int:
    return adapter.current_player(key)


def _terminal(adapter: OpenSpielAdapter, key: bytes, out: int, size: int, more: int) -> int:
    return adapter.terminal(key)


def _returns(adapter: OpenSpielAdapter, key: bytes, out: int, size: int, more: int) -> int:
    _write_to_memory(out, size, np.array(adapter.returns(key), np.float32))
    return 0


def _observation(adapter: OpenSpielAdapter, key: bytes, out: int, size: int, more: int) -> int:
    _write_to_memory(out, size, adapter.observation(key))
    return 0


def _hash(adapter: OpenSpielAdapter, key: bytes, out: int, size: int, more: int) -> int:
    return adapter.hash(key)


def _chance_outcomes(adapter: OpenSpielAdapter, key: bytes, out: int, size: int, more: int) -> int:
    outcomes = adapter.chance_outcomes(key)
    probabilities: Floats = np.array([likely for _, likely in outcomes], np.float32)
    _write_to_memory(out, size, np.array([outcome for outcome, _ in outcomes], np.int32))
    _write_to_memory(more, size, probabilities)
    return len(outcomes)


Answer = Callable[[OpenSpielAdapter, bytes, int, int, int], int]
_ANSWERS: tuple[Answer, ...] = (
    _legal_actions,
    _current_player,
    _terminal,
    _returns,
    _observation,
    _hash,
    _chance_outcomes,
)


def answer_question(question: int, row: int, length: int, out: int, size: int, more: int, receipt: int) -> None:
    """Answer a question about a position.

    Args:
        question: one of those above.
        row: the address of the position's row, after its length.
        length: the number of moves in the row; -1: there was no room for them all.
        out: the address of the first array to be written, or 0.
        size: how many elements it has.
        more: the address of the second array, which is as long, or 0.
        receipt: the address of two words: a status, and the number that answers the question.

    Raises:
        OpenSpielFailed: OpenSpiel has no answer.
    """
    if length < 0:
        raise OpenSpielFailed("a game of OpenSpiel's is longer than OpenSpiel promises")
    key = ctypes.string_at(row, WORD + MOVE * length)
    adapter = ADAPTERS[int.from_bytes(key[:WORD], sys.byteorder, signed=True)]
    try:
        value = _ANSWERS[question](adapter, key, out, size, more)
    except Exception as error:  # whatever a binding of C++ raises
        raise OpenSpielFailed(
            f"OpenSpiel's {adapter.game} failed after the moves {moves_of_key(key)}: {' '.join(str(error).split())}"
        ) from error
    write_receipt(receipt, ANSWERED, value)


def write_receipt(address: int, status: int, value: int) -> None:
    """Fill in a receipt."""
    ctypes.memmove(address, np.array([status, value], np.int64).tobytes(), 2 * WORD)


def answer_compiled_code(question: int, row: int, length: int, out: int, size: int, more: int, receipt: int) -> None:
    """Answer like ``answer_question``, as a callback that cannot raise.

    A failure is kept; the answers are that the game is over, with NaN for returns and observations. So compiled code
    terminates, and its results are unusable. An exception from a signal handler, such as KeyboardInterrupt, is kept
    too, and leaves the receipt blank: compiled code asks again.
    """
    try:
        answer_question(question, row, length, out, size, more, receipt)
    except Exception as error:
        keep_error(error)
        if question in (RETURNS, OBSERVATION):
            ctypes.memset(out, 0xFF, 4 * size)  # no numbers
        write_receipt(receipt, FAILED, int(question == TERMINAL))
    except BaseException as interruption:
        keep_error(interruption)


def _keep_interruptions(report: Callable[[Any], object]) -> Callable[[Any], object]:
    """Return a hook that keeps what a signal handler raised before the callback's first line or after its last."""

    def hook(unraisable: Any) -> None:
        # From Python 3.13 on, the function is in the text alone.
        ours = unraisable.object is answer_compiled_code or repr(answer_compiled_code) in (unraisable.err_msg or "")
        if ours:
            keep_error(unraisable.exc_value)
        else:
            report(unraisable)

    return hook


sys.unraisablehook = _keep_interruptions(sys.unraisablehook)
# Kept alive by this module: compiled code has the address.
CALLBACK = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 7)(answer_compiled_code)
ADDRESS = ctypes.cast(CALLBACK, ctypes.c_void_p).value
