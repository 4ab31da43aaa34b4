"""The contract of games as a program: ``check_game`` plays many games and checks every position."""

import hashlib
import json
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from games import load_game
from games.game import (
    CHANCE,
    Actions,
    Floats,
    Game,
    Planes,
    States,
    call_chance_outcomes,
    call_legal_actions,
    call_observe,
    call_returns,
    call_step,
)
from games.kept_errors import raise_kept_error

Choose = Callable[[Actions], int]  # picks one of the legal actions, or of the outcomes at a chance state
Seen = dict[tuple[int, bytes], list[int]]  # (hash, digest of the observation) -> the moves that led there
UNWRITTEN = -7  # what arrays hold before a kernel writes them; no action and no return has this value
GUARD = 8  # elements after an output array that no kernel may write
CONSTANTS = (  # what load_game must reproduce
    *("name", "options", "rules_version", "num_players", "num_actions", "num_outcomes", "most_legal_actions"),
    *("observation_shape", "policy_planes", "max_plies"),
)
ROUNDING = 1e-5  # how far a sum of probabilities may be from 1


class ContractBroken(AssertionError):
    """A game violates the contract of ``games.game``."""


def check_game(game: Game, *, games: int = 24, seed: int = 0) -> None:
    """Check the constants of ``game`` and the positions of ``games`` games against the contract.

    One game always plays the lowest legal action, one always the highest, and the others play at random; chance
    outcomes are chosen in the same way.

    Raises:
        ContractBroken: the game violates the contract; the text names the rule and the moves that lead there.
    """
    _check_constants(game)
    _check_symmetry_tables(game)
    _check_notation(game)
    random = np.random.default_rng(seed)
    seen: Seen = {}
    choices: list[Choose] = [lambda legal: int(legal[0]), lambda legal: int(legal[-1])]
    choices += [lambda legal: int(random.choice(legal))] * max(0, games - 2)
    for choose in choices[:games]:
        _check_one_game(game, choose, seen)
    _check_hashes(game, seen)
    _check_rebuilt(game)


def _require(condition: Any, game: Game, text: str, moves: list[int] | None = None) -> None:
    raise_kept_error()
    if not condition:
        where = "" if moves is None else f" after moves {moves}"
        raise ContractBroken(f"{game.name} {game.options}: {text}{where}")


def _check_constants(game: Game) -> None:
    channels, height, width = game.observation_shape
    start = game.start
    _require(
        start.dtype == np.int64 and start.ndim == 1 and start.flags.c_contiguous, game, "start is not a row of int64"
    )
    _require(min(channels, height, width) > 0, game, "observation_shape has an empty side")
    _require(game.num_players in (1, 2), game, "num_players is neither 1 nor 2")
    _require(1 <= game.num_actions <= 2**16, game, "num_actions does not fit 16 bits")
    _require(1 <= game.most_legal_actions <= game.num_actions, game, "most_legal_actions is not from 1 to num_actions")
    _require(0 <= game.num_outcomes <= 2**16, game, "num_outcomes does not fit 16 bits")
    _require(game.rules_version >= 1, game, "rules_version does not count from 1")
    _require(game.max_plies >= 1, game, "max_plies is not positive")
    _require(
        0 <= game.policy_planes * height * width <= game.num_actions,
        game,
        "policy_planes hold more points than there are actions",
    )
    _require(not game.terminal(game.initial_state()), game, "the game is over before it starts")


def _check_symmetry_tables(game: Game) -> None:
    _, height, width = game.observation_shape
    points, actions, outcomes = game.point_symmetries, game.action_symmetries, game.outcome_symmetries
    _require(points.dtype == actions.dtype == outcomes.dtype == np.int32, game, "a symmetry table is not int32")
    _require(len(points) == len(actions) >= 1, game, "there are not as many point symmetries as action symmetries")
    _require(len(outcomes) == len(actions), game, "there are not as many outcome symmetries as action symmetries")
    for table, size, name in (
        (points, height * width, "point_symmetries"),
        (actions, game.num_actions, "action_symmetries"),
        (outcomes, game.num_outcomes, "outcome_symmetries"),
    ):
        _require(table.shape[1:] == (size,), game, f"{name} does not have {size} columns")
        _require((np.sort(table, axis=1) == np.arange(size)).all(), game, f"{name} has a row that is no permutation")
        _require((table[0] == np.arange(size)).all(), game, f"the first row of {name} is not the identity")
    _require(
        _is_closed(points, np.hstack([actions, outcomes + game.num_actions])),
        game,
        "two symmetries after each other are not one of the symmetries",
    )


def _is_closed(points: NDArray[np.int32], actions: NDArray[np.int32]) -> bool:
    # A point table holds where a point comes from, an action table where an action goes: they compose in opposite
    # order.
    known = {(p.tobytes(), a.tobytes()) for p, a in zip(points, actions, strict=True)}
    pairs = [(first, second) for first in range(len(points)) for second in range(len(points))]
    return all(
        (points[first][points[second]].tobytes(), actions[second][actions[first]].tobytes()) in known
        for first, second in pairs
    )


def _check_notation(game: Game) -> None:
    for action in range(game.num_actions):
        name = game.action_name(action)
        _require(
            game.parse_action(name) == action,
            game,
            f"action {action} is called {name!r}, which is read as another action",
        )
    names = [game.outcome_name(outcome) for outcome in range(game.num_outcomes)]
    _require(all(names) and len(set(names)) == len(names), game, "two outcomes have the same name, or one has none")
    try:
        action = game.parse_action("no such action!")
    except ValueError:
        return
    _require(False, game, f"parse_action takes nonsense for action {action}")


def _check_one_game(game: Game, choose: Choose, seen: Seen) -> None:
    states = game.initial_states(len(game.action_symmetries))  # [Y, S]: row y plays the same game under symmetry y
    moves: list[int] = []
    while True:
        _check_position(game, states[0], moves)
        if game.terminal(states[0]):
            break
        _require(len(moves) < game.max_plies, game, "the game goes on beyond max_plies", moves)
        _check_observation(game, states[0], moves, seen)
        _check_symmetries(game, states, moves)
        action = choose(_choices(game, states[0]))
        _check_step(game, states[0], action, moves)
        moves.append(action)
        tables = game.outcome_symmetries if game.current_player(states[0]) == CHANCE else game.action_symmetries
        for state, table in zip(states, tables, strict=True):
            game.play(state, int(table[action]))
    for state in states:
        _require(
            np.array_equal(game.returns(state), game.returns(states[0])), game, "a symmetric game ends otherwise", moves
        )


def _choices(game: Game, state: States) -> Actions:
    """The actions or outcomes that can be played where the game is not over."""
    return game.chance_outcomes(state)[0] if game.current_player(state) == CHANCE else game.legal_actions(state)


def _check_position(game: Game, state: States, moves: list[int]) -> None:
    before = state.copy()
    legal = _check_legal_actions(game, state, moves)
    outcomes, probabilities = _check_chance_outcomes(game, state, moves)
    over, player = game.terminal(state), game.current_player(state)
    chance = player == CHANCE and game.num_outcomes > 0 and not over
    _require(0 <= player < game.num_players or chance or over, game, "current_player is nobody", moves)
    _require(not (chance and legal), game, "there are legal actions where chance is to move", moves)
    _require(
        (len(legal) == 0) == (over or chance), game, "there must be legal actions exactly until the game is over", moves
    )
    _require(
        (len(outcomes) > 0) == chance, game, "there must be chance outcomes exactly where chance is to move", moves
    )
    again = game.chance_outcomes(before)
    same = again[0].tolist() == outcomes and np.array_equal(again[1], probabilities)
    _require(same, game, "chance_outcomes differ for equal states", moves)
    _require(
        game.current_player(state) == game.current_player(before),
        game,
        "current_player differs for equal states",
        moves,
    )
    _check_returns(game, state, moves)
    _require(game.hash(state) == game.hash(before), game, "hash differs for equal states", moves)
    _require(game.render(state).strip(), game, "render gives no text", moves)
    _require(np.array_equal(state, before), game, "looking at a state changes it", moves)


def _check_legal_actions(game: Game, state: States, moves: list[int]) -> list[int]:
    out = np.full(game.num_actions + GUARD, UNWRITTEN, np.int32)
    count = call_legal_actions(game.rules.legal_actions, state, out[: game.num_actions])
    _require(0 <= count <= game.most_legal_actions, game, f"legal_actions says that there are {count}", moves)
    _require((out[game.num_actions :] == UNWRITTEN).all(), game, "legal_actions writes behind its array", moves)
    legal: list[int] = out[:count].tolist()
    _require(UNWRITTEN not in legal, game, "legal_actions counts more actions than it writes", moves)
    _require(all(0 <= action < game.num_actions for action in legal), game, "a legal action is out of range", moves)
    _require(legal == sorted(set(legal)), game, "legal actions are not in ascending order", moves)
    return legal


def _check_chance_outcomes(game: Game, state: States, moves: list[int]) -> tuple[list[int], Floats]:
    size = game.num_outcomes
    out, likely = np.full(size + GUARD, UNWRITTEN, np.int32), np.full(size + GUARD, UNWRITTEN, np.float32)
    count = call_chance_outcomes(game.rules.chance_outcomes, state, out[:size], likely[:size])
    _require(0 <= count <= size, game, f"chance_outcomes says that there are {count}", moves)
    _require((out[size:] == UNWRITTEN).all(), game, "chance_outcomes writes behind its outcomes", moves)
    _require((likely[size:] == UNWRITTEN).all(), game, "chance_outcomes writes behind its probabilities", moves)
    outcomes: list[int] = out[:count].tolist()
    probabilities = likely[:count].copy()
    written = UNWRITTEN not in outcomes and (probabilities != UNWRITTEN).all()
    _require(written, game, "chance_outcomes counts more outcomes than it writes", moves)
    _require(all(0 <= outcome < size for outcome in outcomes), game, "an outcome is out of range", moves)
    _require(outcomes == sorted(set(outcomes)), game, "outcomes are not in ascending order", moves)
    _require(
        (np.isfinite(probabilities) & (probabilities > 0)).all(), game, "an outcome has no positive probability", moves
    )
    total = probabilities.sum(dtype=np.float64)
    _require(
        count == 0 or abs(total - 1) <= ROUNDING, game, f"the probabilities of the outcomes add up to {total}", moves
    )
    return outcomes, probabilities


def _check_returns(game: Game, state: States, moves: list[int]) -> None:
    out = np.full(game.num_players + GUARD, UNWRITTEN, np.float32)
    call_returns(game.rules.returns, state, out[: game.num_players])
    won = out[: game.num_players]
    _require((out[game.num_players :] == UNWRITTEN).all(), game, "returns writes behind its array", moves)
    _require((won != UNWRITTEN).all(), game, "returns does not write every player's", moves)
    _require(np.isfinite(won).all(), game, "a return is not a finite number", moves)
    if game.num_players == 2:
        _require((np.abs(won) <= 1).all(), game, "a return is outside [-1, 1]", moves)
        _require(won.sum() == 0, game, "the returns of two players do not add up to zero", moves)
        _require(game.terminal(state) or not won.any(), game, "a return is given before the game is over", moves)


def _check_observation(game: Game, state: States, moves: list[int], seen: Seen) -> None:
    before = state.copy()
    size = int(np.prod(game.observation_shape))
    out = np.full(size + GUARD, np.nan, np.float32)
    planes = out[:size].reshape(game.observation_shape)
    call_observe(game.rules.observe, state, planes)
    _require(np.isnan(out[size:]).all(), game, "observe writes behind its array", moves)
    _require(np.isfinite(planes).all(), game, "observe does not write a finite number to every element", moves)
    _require(
        np.array_equal(planes, game.observe(state)), game, "observe sees a state differently the second time", moves
    )
    _require(np.array_equal(state, before), game, "looking at a state changes it", moves)
    # A board can look the same before and after a chance outcome without being the same position.
    look = planes.tobytes() + bytes([game.current_player(state) == CHANCE])
    seen.setdefault((game.hash(state), hashlib.blake2b(look, digest_size=16).digest()), moves.copy())


def _check_hashes(game: Game, seen: Seen) -> None:
    hashes: dict[int, list[int]] = {}
    looks: dict[bytes, list[int]] = {}
    for (key, look), moves in seen.items():
        other = hashes.setdefault(key, moves)
        _require(
            other is moves,
            game,
            f"two positions that look different have the same hash: after moves {other} and",
            moves,
        )
        other = looks.setdefault(look, moves)
        _require(
            other is moves,
            game,
            f"two positions that look the same have different hashes: after moves {other} and",
            moves,
        )


def _check_symmetries(game: Game, states: States, moves: list[int]) -> None:
    planes, legal = game.observe(states[0]), game.legal_actions(states[0])
    for y, state in enumerate(states):
        seen = _transformed(planes, game.point_symmetries[y])
        _require(
            np.array_equal(game.observe(state), seen),
            game,
            f"the game under symmetry {y} does not show the symmetric board",
            moves,
        )
        mapped = np.sort(game.action_symmetries[y][legal])
        _require(
            np.array_equal(game.legal_actions(state), mapped),
            game,
            f"symmetry {y} does not map legal actions to legal ones",
            moves,
        )
        same = game.current_player(state) == game.current_player(states[0])
        _require(same, game, f"under symmetry {y} another player is to move", moves)
        chances = _chances(game, states[0])[np.argsort(game.outcome_symmetries[y])]
        same = np.allclose(_chances(game, state), chances, rtol=0, atol=ROUNDING)
        _require(same, game, f"symmetry {y} does not map outcomes to such as are equally likely", moves)


def _chances(game: Game, state: States) -> Floats:
    """The probability of each outcome, ``[O]``."""
    chances = np.zeros(game.num_outcomes, np.float32)
    outcomes, probabilities = game.chance_outcomes(state)
    chances[outcomes] = probabilities
    return chances


def _transformed(planes: Planes, points: NDArray[np.int32]) -> Planes:
    flat = planes.reshape(len(planes), -1)  # [C, H * W]
    return flat[:, points].reshape(planes.shape)


def _check_step(game: Game, state: States, action: int, moves: list[int]) -> None:
    rows = np.stack([state, state, state])  # [3, S]
    call_step(game.rules.step, rows[1], action)
    kind = "outcome" if game.current_player(state) == CHANCE else "action"
    _require(np.array_equal(rows[[0, 2]], [state, state]), game, f"{kind} {action} touches another game's state", moves)
    _require(not np.array_equal(rows[1], state), game, f"{kind} {action} leaves the state as it was", moves)
    call_step(game.rules.step, rows[2], action)
    _require(
        np.array_equal(rows[1], rows[2]), game, f"{kind} {action} leads from equal states to different ones", moves
    )


def _check_rebuilt(game: Game) -> None:
    _require(json.loads(json.dumps(game.options)) == game.options, game, "options are changed by a trip through JSON")
    again = _rebuilt(game)
    for constant in CONSTANTS:
        _require(
            getattr(again, constant) == getattr(game, constant),
            game,
            f"load_game with these options gives another {constant}",
        )
    for table in ("start", "point_symmetries", "action_symmetries", "outcome_symmetries"):
        _require(
            np.array_equal(getattr(again, table), getattr(game, table)),
            game,
            f"load_game with these options gives another {table}",
        )
    state, twin = game.initial_state(), again.initial_state()
    while not game.terminal(state):  # it ends, because such a game has been played above
        action = int(_choices(game, state)[0])
        game.play(state, action)
        again.play(twin, action)
        _require(
            np.array_equal(state, twin),
            game,
            "load_game with these options gives a game in which the same moves lead elsewhere",
        )


def _rebuilt(game: Game) -> Game:
    try:
        return load_game(game.name, **game.options)
    except ValueError as error:
        raise ContractBroken(f"{game.name} {game.options}: load_game does not build it again: {error}") from error
