"""The contract of games as a program: ``check_game`` plays many games and checks every position.

An endless loop in a kernel cannot be stopped from within the process: ``keima.games.authoring.check`` runs this in a
process with a time limit.
"""

import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from xml.etree import ElementTree

import numpy as np
from numpy.typing import NDArray

from keima.games import load_game
from keima.games.authoring.kept_errors import raise_kept_error
from keima.games.authoring.plain import PlainGame, PlainGameError
from keima.games.authoring.plain_reference import check_playouts
from keima.games.game import (
    CHANCE,
    MOST_CHANCE_EVENTS,
    MOST_PLAYERS,
    Actions,
    Floats,
    Game,
    IllegalAction,
    Planes,
    States,
    call_chance_outcomes,
    call_legal_actions,
    call_observe,
    call_returns,
    call_step,
)

Choose = Callable[[Actions], int]  # picks one of the legal actions, or of the outcomes at a chance state
Table = NDArray[np.int32]
Moves = list[str]  # the names of the actions and outcomes that lead to a position
Seen = dict[tuple[int, bytes], Moves]  # (hash, digest of the observation) -> the moves that led there
UNWRITTEN_VALUE = -7  # what arrays hold before a kernel writes them; no action and no return has this value
GUARD_CELLS = 8  # elements after an output array that no kernel may write
CONSTANTS = (  # what load_game must reproduce
    *("name", "options", "rules_version", "num_players", "num_actions", "num_outcomes", "most_legal_actions"),
    *("observation_shape", "policy_planes", "piece_planes", "max_plies"),
)
# What ``plain_game`` calls the parts of a ``Game``, longer names first.
PLAIN_NAMES = {
    "give symmetric_starts if the start is not its own mirror image, else correct": "correct",
    "correct action_symmetries, or leave this symmetry out": "give symmetries=(points, moves), where moves has the new "
    "number of each move: Keima derives them only where moves are points; or leave this symmetry out",
    "most_legal_actions": "most_legal_moves",
    "num_actions - 1": "moves - 1",
    "num_actions": "moves",
    "num_players": "players",
    "observation_shape": "the shape of planes",
    "the observation": "planes",
    "point_symmetries": "the points of symmetries",
    "action_symmetries": "the moves of symmetries",
    "symmetric_starts": "the start under symmetries",
    "parse_action understands": "no other has",
    "current_player": "the player to move",
    "step": "play",
    "terminal": "result",
    "actions": "moves",
    "action": "move",
}
TABLES = ("start", "symmetric_starts", "point_symmetries", "action_symmetries", "outcome_symmetries")
ROUNDING = 1e-5  # how far a sum of probabilities may be from 1
LAST_SHOWN = 30  # moves of a game in an error
FROM_STATE = "compute it from the state alone, and without random numbers"
UNCHANGED = "let only step write to the state"
REBUILT = "let what builds the game depend on its options alone"


class ContractBroken(AssertionError):
    """A game violates the contract of ``keima.games.game``; the text says how, where, and what its author should do."""


def check_game(game: Game, *, games: int = 24, seed: int = 0) -> None:
    """Check the constants of ``game`` and the positions of ``games`` games against the contract.

    One game always plays the lowest legal action, one always the highest, and the others play at random; chance
    outcomes are chosen in the same way. The functions of a plain game are also played in Python.

    Raises:
        ContractBroken: the game violates the contract; the text names the rule and the moves that lead there.
    """
    _check_constants(game)
    _check_symmetry_tables(game)
    _check_notation(game)
    if isinstance(game, PlainGame):
        _check_plain(game, games, seed)
    random = np.random.default_rng(seed)
    seen: Seen = {}
    choices: list[Choose] = [lambda legal: int(legal[0]), lambda legal: int(legal[-1])]
    choices += [lambda legal: int(random.choice(legal))] * max(0, games - 2)
    for choose in choices[:games]:
        _check_one_game(game, choose, seen)
    _check_hashes(game, seen)
    _check_rebuilt_game(game)


def is_symmetry(game: Game, points: Table, actions: Table, start: States, *, games: int = 6) -> bool:
    """Return whether a symmetry of points and actions, under which the start is ``start``, holds in the rules.

    The game has no chance. A few random games are played beside their mirror images.
    """
    mirrored = replace(
        game,
        point_symmetries=np.stack([np.arange(points.size, dtype=np.int32), points]),
        action_symmetries=np.stack([np.arange(actions.size, dtype=np.int32), actions]),
        symmetric_starts=np.stack([game.start, start]),
    )
    random = np.random.default_rng(0)
    try:
        for _ in range(games):
            _check_one_game(mirrored, lambda legal: int(random.choice(legal)), {})
    except (ContractBroken, IllegalAction):
        return False
    return True


def _in_words_of_author(game: Game, text: str) -> str:
    """Return a message with the names that the author of a plain game has typed, instead of ``Game``'s."""
    if not isinstance(game, PlainGame):
        return text
    for ours, theirs in PLAIN_NAMES.items():
        text = re.sub(rf"\b{re.escape(ours)}\b", theirs, text)
    return text


def _require(condition: Any, game: Game, what: str, remedy: str, moves: Moves | None = None) -> None:
    raise_kept_error()
    if not condition:
        what, remedy = _in_words_of_author(game, what), _in_words_of_author(game, remedy)
        options = f" {game.options}" if game.options else ""
        raise ContractBroken(f"{game.name}{options}: {what}{_describe_position(moves)}; {remedy}")


def _describe_position(moves: Moves | None) -> str:
    if moves is None:
        return ""
    shown = [f"... {len(moves) - LAST_SHOWN} more ...", *moves[-LAST_SHOWN:]] if len(moves) > LAST_SHOWN else moves
    return f" after the moves {' '.join(shown)}" if moves else " at the start"


def _check_plain(game: PlainGame, games: int, seed: int) -> None:
    try:
        check_playouts(game.plain, game, games=games, seed=seed)
    except PlainGameError as error:
        raise ContractBroken(f"{game.name}: {error}") from error


def _check_constants(game: Game) -> None:
    channels, height, width = game.observation_shape
    start = game.start
    row = start.dtype == np.int64 and start.ndim == 1 and start.flags.c_contiguous
    _require(row, game, "start is not a row of int64", "make it with np.zeros(words, np.int64)")
    _require(
        min(channels, height, width) > 0, game, "observation_shape has an empty side", "give C, H and W from 1 each"
    )
    _require(
        1 <= game.num_players <= MOST_PLAYERS,
        game,
        f"num_players is {game.num_players}",
        f"give the number of players, from 1 to {MOST_PLAYERS}",
    )
    _require(
        1 <= game.num_actions <= 2**16,
        game,
        f"num_actions is {game.num_actions} and does not fit 16 bits",
        "number the actions from 0 and have at most 65536",
    )
    _require(
        1 <= game.most_legal_actions <= game.num_actions,
        game,
        f"most_legal_actions is not from 1 to num_actions = {game.num_actions}",
        "give the most legal actions of any position, or leave it out",
    )
    _require(
        0 <= game.num_outcomes <= 2**16,
        game,
        f"num_outcomes is {game.num_outcomes} and does not fit 16 bits",
        "number the outcomes of chance from 0 and have at most 65536",
    )
    _require(game.rules_version >= 1, game, "rules_version does not count from 1", "give 1")
    _require(game.max_plies >= 1, game, "max_plies is not positive", "give the most plies that a game can have")
    _require(
        0 <= game.policy_planes * height * width <= game.num_actions,
        game,
        f"policy_planes * H * W = {game.policy_planes * height * width} is more than num_actions = {game.num_actions}",
        "lower policy_planes; it is 0 where actions are no points",
    )
    _require(
        0 <= 2 * game.piece_planes <= channels,
        game,
        f"the observation has {channels} planes and cannot begin with 2 * piece_planes = {2 * game.piece_planes}",
        "lower piece_planes; it is 0 where the first planes do not mark the pieces of both players",
    )
    over = game.terminal(game.initial_state())
    _require(not over, game, "the game is over before it starts", "correct start, or what terminal says of it")


def _check_symmetry_tables(game: Game) -> None:
    _, height, width = game.observation_shape
    points, actions, outcomes = game.point_symmetries, game.action_symmetries, game.outcome_symmetries
    _require(
        points.dtype == actions.dtype == outcomes.dtype == np.int32,
        game,
        "a symmetry table is not int32",
        "make the tables with dtype np.int32",
    )
    _require(
        len(points) == len(actions) >= 1,
        game,
        f"there are not as many point symmetries ({len(points)}) as action symmetries ({len(actions)})",
        "give both tables one row for each symmetry, the identity first",
    )
    _require(
        len(outcomes) == len(actions),
        game,
        f"there are not as many outcome symmetries ({len(outcomes)}) as action symmetries ({len(actions)})",
        "give outcome_symmetries one row for each symmetry",
    )
    for table, size, name in (
        (points, height * width, "point_symmetries"),
        (actions, game.num_actions, "action_symmetries"),
        (outcomes, game.num_outcomes, "outcome_symmetries"),
    ):
        _require(
            table.shape[1:] == (size,),
            game,
            f"{name} does not have {size} columns",
            "give it one for each point of planes, action or outcome",
        )
        _require(
            (np.sort(table, axis=1) == np.arange(size)).all(),
            game,
            f"{name} has a row that is not a permutation",
            f"let every row have each number from 0 to {size - 1} once",
        )
        _require(
            (table[0] == np.arange(size)).all(),
            game,
            f"the first row of {name} is not the identity",
            "put the symmetry that changes nothing first",
        )
    moved = np.hstack([actions, outcomes + game.num_actions])
    is_closed = _is_closed(points, moved)
    _require(
        is_closed or not _is_closed(np.argsort(points, axis=1).astype(np.int32), moved),
        game,
        "the symmetries' table of points says where a point goes, and must say where it comes from",
        "give np.argsort(points, axis=1); the table of moves says where a move goes",
    )
    _require(
        is_closed,
        game,
        "two symmetries after each other are not one of the symmetries",
        "add what is missing, as board_symmetries does, and see that each row of actions belongs to its row of points",
    )
    starts = game.mirrored_initial_states()
    _require(
        starts.dtype == np.int64 and starts.shape == (len(actions), game.start.size),
        game,
        f"symmetric_starts has shape {starts.shape}, not {(len(actions), game.start.size)}, or is not int64",
        "give one state for each symmetry, or leave it out where the start is its own mirror image",
    )
    _require(
        np.array_equal(starts[0], game.start), game, "the first of symmetric_starts is not start", "begin with start"
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
        read = _parse_action_or_none(game, name)
        reading = "no action" if read is None else f"another action, {read}"
        _require(
            read == action,
            game,
            f"action {action} is called {name!r}, which is read as {reading}",
            "give each action a name of its own that parse_action understands",
        )
    names = [game.outcome_name(outcome) for outcome in range(game.num_outcomes)]
    _require(
        all(names) and len(set(names)) == len(names),
        game,
        "two outcomes have the same name, or one has none",
        "give each outcome a name of its own",
    )
    nonsense = _parse_action_or_none(game, "no such action!")
    _require(
        nonsense is None,
        game,
        f"parse_action takes nonsense for action {nonsense}",
        "let it raise ValueError for text that names no action",
    )


def _parse_action_or_none(game: Game, text: str) -> int | None:
    try:
        return game.parse_action(text)
    except ValueError:
        return None


def _check_one_game(game: Game, choose: Choose, seen: Seen) -> None:
    states = game.mirrored_initial_states()  # [Y, S]: row y plays the same game under symmetry y
    moves: Moves = []
    events = 0  # of chance, since the last move
    while True:
        _check_position(game, states[0], moves)
        if game.terminal(states[0]):
            break
        events = events + 1 if game.current_player(states[0]) == CHANCE else 0
        _require(
            events <= MOST_CHANCE_EVENTS,
            game,
            f"more than {MOST_CHANCE_EVENTS} chance events follow each other",
            "let one event stand for several",
            moves,
        )
        _require(
            len(moves) < game.max_plies,
            game,
            f"the game goes on beyond max_plies = {game.max_plies}",
            "let step end it by then, or raise max_plies",
            moves,
        )
        _check_observation(game, states[0], moves, seen)
        _check_symmetries(game, states, moves)
        action = choose(_playable_actions(game, states[0]))
        _check_step(game, states[0], action, moves)
        chance = game.current_player(states[0]) == CHANCE
        moves.append(game.outcome_name(action) if chance else game.action_name(action))
        for state, table in zip(states, game.outcome_symmetries if chance else game.action_symmetries, strict=True):
            game.play(state, int(table[action]))
    for y, state in enumerate(states):
        _require(
            np.array_equal(game.returns(state), game.returns(states[0])),
            game,
            f"a symmetric game ends differently: symmetry {y} does not hold in the rules",
            "leave this symmetry out, or correct what the rules say of the end",
            moves,
        )


def _playable_actions(game: Game, state: States) -> Actions:
    """Return the actions or outcomes that can be played where the game is not over."""
    return game.chance_outcomes(state)[0] if game.current_player(state) == CHANCE else game.legal_actions(state)


def _check_position(game: Game, state: States, moves: Moves) -> None:
    before = state.copy()
    legal = _check_legal_actions(game, state, moves)
    outcomes, probabilities = _check_chance_outcomes(game, state, moves)
    over, player = game.terminal(state), game.current_player(state)
    chance = player == CHANCE and game.num_outcomes > 0 and not over
    _require(
        0 <= player < game.num_players or chance or over,
        game,
        f"current_player returns {player}, which is not a player",
        f"return a player from 0 to {game.num_players - 1}, or CHANCE where num_outcomes says that there is chance",
        moves,
    )
    _require(
        not (chance and legal),
        game,
        "there are legal actions where chance is to move",
        "let legal_actions return 0 there",
        moves,
    )
    _require(
        (len(legal) == 0) == (over or chance),
        game,
        f"there must be legal actions exactly until the game is over, and there are {len(legal)} "
        f"where terminal says {int(over)}",
        "let legal_actions return 0 when the game is over, and end the game, or offer a pass, where nobody can move",
        moves,
    )
    _require(
        (len(outcomes) > 0) == chance,
        game,
        "there must be chance outcomes exactly where chance is to move",
        "let chance_outcomes return 0 elsewhere, and current_player return CHANCE there",
        moves,
    )
    again = game.chance_outcomes(before)
    same = again[0].tolist() == outcomes and np.array_equal(again[1], probabilities)
    _require(same, game, "chance_outcomes differ for equal states", FROM_STATE, moves)
    same = game.current_player(state) == game.current_player(before)
    _require(same, game, "current_player differs for equal states", FROM_STATE, moves)
    _check_returns(game, state, moves)
    _require(game.hash(state) == game.hash(before), game, "hash differs for equal states", FROM_STATE, moves)
    _require(game.render(state).strip(), game, "render gives no text", "return the board as text", moves)
    if game.cells is not None:
        cells = np.asarray(game.cells(state))
        whole = cells.ndim == 2 and cells.dtype.kind in "iu"
        _require(whole, game, "cells gives no board of whole numbers", "return an array [H, W]", moves)
    if game.svg is not None:
        drawing = game.svg(state)
        _require(
            is_svg(drawing), game, "svg gives no SVG", 'return text such as <svg viewBox="0 0 9 9">...</svg>', moves
        )
    _require(np.array_equal(state, before), game, "a query changes the state", UNCHANGED, moves)


def is_svg(drawing: Any) -> bool:
    """Return whether a value is the text of an SVG element."""
    try:
        return isinstance(drawing, str) and ElementTree.fromstring(drawing).tag.rpartition("}")[2] == "svg"
    except ElementTree.ParseError:
        return False


def _check_legal_actions(game: Game, state: States, moves: Moves) -> list[int]:
    out = np.full(game.num_actions + GUARD_CELLS, UNWRITTEN_VALUE, np.int32)
    count = call_legal_actions(game.rules.legal_actions, state, out[: game.num_actions])
    _require(
        0 <= count <= game.most_legal_actions,
        game,
        f"legal_actions says that there are {count}, and there can be {game.most_legal_actions}",
        "return how many actions it wrote, or raise most_legal_actions",
        moves,
    )
    _require(
        (out[game.num_actions :] == UNWRITTEN_VALUE).all(),
        game,
        "legal_actions writes behind its array",
        f"write at most num_actions = {game.num_actions} actions",
        moves,
    )
    legal: list[int] = out[:count].tolist()
    _require(
        UNWRITTEN_VALUE not in legal,
        game,
        "legal_actions counts more actions than it writes",
        "return how many actions it wrote",
        moves,
    )
    odd = next((action for action in legal if not 0 <= action < game.num_actions), None)
    _require(
        odd is None,
        game,
        f"the legal action {odd} is out of range",
        f"offer actions from 0 to num_actions - 1 = {game.num_actions - 1}",
        moves,
    )
    _require(
        legal == sorted(set(legal)),
        game,
        "legal actions are not in ascending order",
        "write each once, the lowest first",
        moves,
    )
    return legal


def _check_chance_outcomes(game: Game, state: States, moves: Moves) -> tuple[list[int], Floats]:
    size = game.num_outcomes
    out, likely = (
        np.full(size + GUARD_CELLS, UNWRITTEN_VALUE, np.int32),
        np.full(size + GUARD_CELLS, UNWRITTEN_VALUE, np.float32),
    )
    count = call_chance_outcomes(game.rules.chance_outcomes, state, out[:size], likely[:size])
    _require(
        0 <= count <= size,
        game,
        f"chance_outcomes says that there are {count}, and num_outcomes is {size}",
        "return how many outcomes it wrote, or raise num_outcomes",
        moves,
    )
    _require(
        (out[size:] == UNWRITTEN_VALUE).all(),
        game,
        "chance_outcomes writes behind its outcomes",
        f"write at most num_outcomes = {size}",
        moves,
    )
    _require(
        (likely[size:] == UNWRITTEN_VALUE).all(),
        game,
        "chance_outcomes writes behind its probabilities",
        f"write at most num_outcomes = {size}",
        moves,
    )
    outcomes: list[int] = out[:count].tolist()
    probabilities = likely[:count].copy()
    written = UNWRITTEN_VALUE not in outcomes and (probabilities != UNWRITTEN_VALUE).all()
    _require(
        written,
        game,
        "chance_outcomes counts more outcomes than it writes",
        "write a number and a probability for each",
        moves,
    )
    _require(
        all(0 <= outcome < size for outcome in outcomes),
        game,
        "an outcome is out of range",
        f"number outcomes from 0 to {size - 1}",
        moves,
    )
    _require(
        outcomes == sorted(set(outcomes)),
        game,
        "outcomes are not in ascending order",
        "write each once, the lowest first",
        moves,
    )
    _require(
        (np.isfinite(probabilities) & (probabilities > 0)).all(),
        game,
        "an outcome has no positive probability",
        "leave out outcomes that cannot happen",
        moves,
    )
    total = probabilities.sum(dtype=np.float64)
    _require(
        count == 0 or abs(total - 1) <= ROUNDING,
        game,
        f"the probabilities of the outcomes add up to {total}",
        "divide them by their sum",
        moves,
    )
    return outcomes, probabilities


def _check_returns(game: Game, state: States, moves: Moves) -> None:
    out = np.full(game.num_players + GUARD_CELLS, UNWRITTEN_VALUE, np.float32)
    call_returns(game.rules.returns, state, out[: game.num_players])
    won = out[: game.num_players]
    _require(
        (out[game.num_players :] == UNWRITTEN_VALUE).all(),
        game,
        "returns writes behind its array",
        f"write one number for each of {game.num_players} players",
        moves,
    )
    _require((won != UNWRITTEN_VALUE).all(), game, "returns does not write every player's", "write all of them", moves)
    _require(np.isfinite(won).all(), game, "a return is not a finite number", "do not divide by 0", moves)
    if game.num_players > 1:
        given = " and ".join(f"{value:g}" for value in won)
        _require(
            (np.abs(won) <= 1).all(),
            game,
            f"a return is outside [-1, 1]: {given}",
            "divide returns by the largest that there can be",
            moves,
        )
        _require(
            game.num_players > 2 or won.sum() == 0,
            game,
            f"the returns of two players do not add up to zero: {given}",
            "give one player the opposite of what the other gets",
            moves,
        )
        _require(
            game.terminal(state) or not won.any(),
            game,
            f"a return is given before the game is over: {given}",
            "write 0 for all until then",
            moves,
        )


def _check_observation(game: Game, state: States, moves: Moves, seen: Seen) -> None:
    before = state.copy()
    size = int(np.prod(game.observation_shape))
    out = np.full(size + GUARD_CELLS, np.nan, np.float32)
    planes = out[:size].reshape(game.observation_shape)
    call_observe(game.rules.observe, state, planes)
    _require(
        np.isnan(out[size:]).all(),
        game,
        "observe writes behind its array",
        f"write planes {game.observation_shape}, as observation_shape says",
        moves,
    )
    _require(
        np.isfinite(planes).all(),
        game,
        "observe does not write a finite number to every element",
        "write 0 where there is nothing",
        moves,
    )
    same = np.array_equal(planes, game.observe(state))
    _require(same, game, "observe sees a state differently the second time", FROM_STATE, moves)
    _require(np.array_equal(state, before), game, "a query changes the state", UNCHANGED, moves)
    # A board can look the same before and after a chance outcome without being the same position.
    look = planes.tobytes() + bytes([game.current_player(state) == CHANCE])
    seen.setdefault((game.hash(state), hashlib.blake2b(look, digest_size=16).digest()), moves.copy())


def _check_hashes(game: Game, seen: Seen) -> None:
    hashes: dict[int, Moves] = {}
    looks: dict[bytes, Moves] = {}
    for (key, look), moves in seen.items():
        other = hashes.setdefault(key, moves)
        _require(
            other is moves,
            game,
            f"two positions that look different have the same hash: one{_describe_position(other)}, one",
            "let hash depend on all that observe shows, and mix its bits well",
            moves,
        )
        other = looks.setdefault(look, moves)
        _require(
            other is moves,
            game,
            f"two positions that look the same have different hashes: one{_describe_position(other)}, one",
            "let hash depend only on what observe shows, or let observe show more",
            moves,
        )


def _check_symmetries(game: Game, states: States, moves: Moves) -> None:
    planes, legal = game.observe(states[0]), game.legal_actions(states[0])
    for y, state in enumerate(states):
        seen = _permute_points(planes, game.point_symmetries[y])
        _require(
            np.array_equal(game.observe(state), seen),
            game,
            f"the game under symmetry {y} does not show the symmetric board",
            "give symmetric_starts if the start is not its own mirror image, else correct the tables, or leave this "
            "symmetry out",
            moves,
        )
        mapped = np.sort(game.action_symmetries[y][legal])
        _require(
            np.array_equal(game.legal_actions(state), mapped),
            game,
            f"symmetry {y} does not map legal actions to legal ones",
            "correct action_symmetries, or leave this symmetry out",
            moves,
        )
        same = game.current_player(state) == game.current_player(states[0])
        _require(same, game, f"under symmetry {y} another player is to move", "leave this symmetry out", moves)
        chances = _outcome_probabilities(game, states[0])[np.argsort(game.outcome_symmetries[y])]
        same = np.allclose(_outcome_probabilities(game, state), chances, rtol=0, atol=ROUNDING)
        _require(
            same,
            game,
            f"symmetry {y} does not map outcomes to such as are equally likely",
            "correct outcome_symmetries, or leave this symmetry out",
            moves,
        )


def _outcome_probabilities(game: Game, state: States) -> Floats:
    """Return the probability of each outcome, ``[O]``."""
    chances = np.zeros(game.num_outcomes, np.float32)
    outcomes, probabilities = game.chance_outcomes(state)
    chances[outcomes] = probabilities
    return chances


def _permute_points(planes: Planes, points: NDArray[np.int32]) -> Planes:
    flat = planes.reshape(len(planes), -1)  # [C, H * W]
    return flat[:, points].reshape(planes.shape)


def _check_step(game: Game, state: States, action: int, moves: Moves) -> None:
    rows = np.stack([state, state, state])  # [3, S]
    call_step(game.rules.step, rows[1], action)
    chance = game.current_player(state) == CHANCE
    kind = f"outcome {game.outcome_name(action)}" if chance else f"action {game.action_name(action)}"
    _require(
        np.array_equal(rows[[0, 2]], [state, state]),
        game,
        f"{kind} touches another game's state",
        f"let step write words 0 to {state.size - 1} of its state alone",
        moves,
    )
    _require(
        not np.array_equal(rows[1], state),
        game,
        f"{kind} leaves the state as it was",
        "let step play it, or do not offer it",
        moves,
    )
    call_step(game.rules.step, rows[2], action)
    same = np.array_equal(rows[1], rows[2])
    _require(same, game, f"{kind} leads from equal states to different ones", FROM_STATE, moves)


def _check_rebuilt_game(game: Game) -> None:
    _require(
        json.loads(json.dumps(game.options)) == game.options,
        game,
        "options are changed by a trip through JSON",
        "use numbers, text and lists as options",
    )
    again = _rebuild_game(game)
    for name in CONSTANTS:
        same = getattr(again, name) == getattr(game, name)
        _require(same, game, f"load_game with these options gives another {name}", REBUILT)
    for name in TABLES:
        same = np.array_equal(getattr(again, name), getattr(game, name))
        _require(same, game, f"load_game with these options gives another {name}", REBUILT)
    state, twin = game.initial_state(), again.initial_state()
    while not game.terminal(state):  # it ends, because such a game has been played above
        action = int(_playable_actions(game, state)[0])
        game.play(state, action)
        again.play(twin, action)
        same = np.array_equal(state, twin)
        _require(
            same, game, "load_game with these options gives a game in which the same moves lead elsewhere", REBUILT
        )


def _rebuild_game(game: Game) -> Game:
    try:
        return load_game(game.name, **game.options)
    except ValueError as error:
        raise ContractBroken(
            f"{game.name} {game.options}: load_game does not build it again: {error}; let `name` and `options` be what "
            "load_game takes"
        ) from error
