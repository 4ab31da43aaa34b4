"""Training games from SGF files."""

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from keima.compilation.decorators import compiled
from keima.data.imports.imported_games import ImportedGame, infer_resigned
from keima.games.authoring.bad_game import BadGame
from keima.games.game import Actions, Game, Rules, States
from keima.games.go.sgf import SgfGame, read_sgf

RESULT_TEXT = re.compile(r"([BW])(?:LACK|HITE)?\+(?:([0-9]+(?:[.,][0-9]+)?)|([A-Z]*))(?:[ ,;(].*)?", re.IGNORECASE)
DRAW_RESULTS = ("0", "DRAW", "JIGO")
MOST_APART = 1.0  # points between the komi of a game and ours; people play alike with 6.5, 7 and 7.5


def read_sgf_games(path: Path, game: Game) -> Iterator[ImportedGame | BadGame]:
    """Yield the games of an SGF file of any size, one by one, under the rules of ``game``; only main lines.

    Bad are games on another board or from other positions (including handicaps), with a komi more than ``MOST_APART``
    from that of ``game``, without moves or a result, forfeited, or with illegal moves or moves out of turn.

    People pass once they agree which stones are dead; our rules count these as alive. So where the final board does not
    give the game's result, the last passes are removed and the loser counts as having resigned. Where our rules end a
    game earlier because of its length, it is cut and scored there.

    Raises:
        OSError: the file cannot be read.
        ValueError: the game is not Go.
    """
    if game.name != "go":
        raise ValueError(f"{path}: SGF files hold games of Go, not of {game.name}")
    for found in read_sgf(path):
        yield found if isinstance(found, BadGame) else _convert_game(found, game)


def _convert_game(found: SgfGame, game: Game) -> ImportedGame | BadGame:
    reason, returns = _reason_to_refuse(found, game), _parse_returns(found, game.options["komi"])
    if isinstance(returns, str) or reason:
        return BadGame(found.line, reason or str(returns))
    actions, state = np.array([action for _, action in found.moves], np.int32), game.initial_state()
    plies = play_while_legal(game.rules, state, actions, np.empty(game.num_actions, np.int32))
    if plies < actions.size and not game.terminal(state):
        return BadGame(found.line, f"move {plies + 1}, {game.action_name(int(actions[plies]))}, is not legal")
    actions, resigned = actions[:plies], 0
    if not game.terminal(state):
        resigned = infer_resigned(returns)
    elif not np.array_equal(game.returns(state), returns):
        passes = _count_final_passes(actions, game)
        if passes:
            actions, resigned = actions[:-passes], infer_resigned(returns)
        else:
            returns = game.returns(state)
    if not actions.size:
        return BadGame(found.line, "it has only passes")
    return ImportedGame(actions=actions, returns=returns, resigned=resigned, line=found.line)


def _reason_to_refuse(found: SgfGame, game: Game) -> str:
    """Return the reason for rejecting a game; empty if it is good."""
    size, komi = game.options["size"], game.options["komi"]
    if found.size != size:
        return f"its board is {found.size} x {found.size}, and not {size} x {size}"
    if found.handicap > 1 or any(found.setup):
        return "it does not begin with an empty board"
    if abs(found.komi - komi) > MOST_APART:
        return f"its komi is {found.komi:g}, and ours {komi:g}"
    if not found.moves:
        return "it has no moves"
    for number, (player, _) in enumerate(found.moves):
        if player != number % 2:
            return f"move {number + 1} is {('Black', 'White')[player]}'s, out of turn"
    return ""


def _parse_returns(found: SgfGame, komi: float) -> NDArray[np.float32] | str:
    """Return the returns ``[2]``, with our komi if points were counted; or why they are unknown."""
    text = found.result.strip()
    match = RESULT_TEXT.fullmatch(text)
    if text.upper() in DRAW_RESULTS:
        sign, points = 1, 0.0
    elif match and match[3] is not None and match[3].upper() in ("", "R", "RESIGN", "T", "TIME"):
        sign, points = 1 if match[1].upper() == "B" else -1, np.inf
    elif match and match[2]:
        sign, points = 1 if match[1].upper() == "B" else -1, float(match[2].replace(",", "."))
    elif match:
        return f"its result is {text[:40]}, which does not depend on the position"
    else:
        return f"its result is {text[:40]!r}" if text else "it has no result"
    lead = np.sign(sign * points + found.komi - komi)
    return np.array([lead, 0 - lead], np.float32)


def _count_final_passes(actions: Actions, game: Game) -> int:
    plays = np.flatnonzero(actions != game.num_actions - 1)
    return actions.size - 1 - int(plays[-1]) if plays.size else actions.size


@compiled
def play_while_legal(rules: Rules, state: States, actions: Actions, legal: Actions) -> int:
    """Play actions in place until the game is over or one is illegal; return how many were played.

    Args:
        legal: scratch space ``[A]``.
    """
    legal_actions, step = rules.legal_actions, rules.step
    for ply in range(actions.size):
        count = legal_actions(state, legal)
        place = np.searchsorted(legal[:count], actions[ply])
        if place == count or legal[place] != actions[ply]:
            return ply
        step(state, np.int64(actions[ply]))
    return actions.size
