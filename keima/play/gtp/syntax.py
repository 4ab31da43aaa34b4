"""The syntax of the Go Text Protocol, version 2 (Gunnar Farnebäck, draft 2 of its specification, 2002), and its
extensions.

lz-analyze came with Leela Zero, kata-analyze with KataGo; what programs for people read of them is written here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # an engine answers the first commands before it has loaded anything
    import numpy as np
    from numpy.typing import NDArray

    from keima.games.game import Game
    from keima.search.analysis import MoveAnalysis

CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
IDENTITY = re.compile(r"[0-9]{1,10}")
PLAYERS = {"b": 0, "black": 0, "w": 1, "white": 1}
CENTISECOND = 0.01  # the unit of an interval
COMMANDS = {  # all commands with their methods; ``GtpHandshake`` answers the first ones
    "protocol_version": "hello",
    "name": "hello",
    "version": "hello",
    "known_command": "hello",
    "list_commands": "hello",
    "quit": "hello",
    "boardsize": "boardsize",
    "clear_board": "clear_board",
    "komi": "komi",
    "get_komi": "get_komi",
    "play": "play",
    "genmove": "genmove",
    "reg_genmove": "reg_genmove",
    "undo": "undo",
    "fixed_handicap": "fixed_handicap",
    "place_free_handicap": "place_free_handicap",
    "set_free_handicap": "set_free_handicap",
    "time_settings": "time_settings",
    "time_left": "time_left",
    "kgs-time_settings": "time_settings",
    "final_score": "final_score",
    "final_status_list": "final_status_list",
    "loadsgf": "loadsgf",
    "showboard": "showboard",
    "kgs-genmove_cleanup": "genmove",
    "kgs-game_over": "game_over",
    "kata-get-rules": "get_rules",
    "kata-set-rules": "set_rules",
    "kata-list-params": "list_params",
    "kata-get-param": "get_param",
    "kata-raw-nn": "raw_evaluation",
    "analyze": "analyze",  # Sabaki's name for KataGo's
    "lz-analyze": "analyze",
    "kata-analyze": "analyze",
    "genmove_analyze": "genmove_analyze",  # Sabaki's, too
    "lz-genmove_analyze": "genmove_analyze",
    "kata-genmove_analyze": "genmove_analyze",
    "kata-search_analyze": "search_analyze",
}
KATAGO_ONLY = ("ownershipStdev", "movesOwnership", "movesOwnershipStdev", "pvVisits", "pvEdgeVisits", "rootInfo")


class GtpError(ValueError):
    """A command that fails; the text is the protocol's error message."""


@dataclass(frozen=True, kw_only=True)
class GtpCommand:
    """A command line from the controller."""

    identity: str  # its number, or nothing
    name: str
    words: tuple[str, ...]

    def require_words(self, count: int) -> tuple[str, ...]:
        """Return the arguments, of which there must be ``count``.

        Raises:
            Refused: they are not.
        """
        if len(self.words) != count:
            raise GtpError(
                f"syntax error: {self.name} takes {count} argument{'s' if count != 1 else ''}, not {len(self.words)}"
            )
        return self.words

    def require_one_word(self) -> str:
        """Return the only argument.

        Raises:
            Refused: there is none, or more.
        """
        return self.require_words(1)[0]


def parse_command(line: str) -> GtpCommand | None:
    """Parse a line; None if it is empty or a comment."""
    words = CONTROL.sub("", line).partition("#")[0].split()
    identity = words.pop(0) if words and IDENTITY.fullmatch(words[0]) else ""
    if not words:
        return None
    return GtpCommand(identity=identity, name=words[0], words=tuple(words[1:]))


class GtpHandshake:
    """Answers the commands that need no network, which programs send before they play.

    Args:
        name: of the engine.
        version: of the engine.
    """

    def __init__(self, *, name: str, version: str) -> None:
        self._facts = {
            "protocol_version": "2",
            "name": name,
            "version": version,
            "list_commands": "\n".join(COMMANDS),
            "quit": "",
        }

    def answer(self, command: GtpCommand) -> str | None:
        """Return the answer; None if it is another command.

        Raises:
            Refused: the command's arguments are wrong.
        """
        if command.name == "known_command":
            return "true" if command.require_one_word() in COMMANDS else "false"
        return self._facts.get(command.name)

    def answer_line(self, line: str) -> str | None:
        """Return the complete answer to a line; None if the line must wait for the engine."""
        command = parse_command(line)
        if command is None:
            return ""
        try:
            answer = self.answer(command)
            return None if answer is None else format_success(command, answer) + "\n"
        except GtpError as error:
            return format_failure(command, error) + "\n"

    def is_quit(self, line: str) -> bool:
        """Return whether a line ends the conversation."""
        command = parse_command(line)
        return command is not None and command.name == "quit"


def format_success(command: GtpCommand, answer: str) -> str:
    """Return a success response; an empty line ends it."""
    return f"={command.identity} {answer}".rstrip() + "\n"


def format_failure(command: GtpCommand, error: GtpError) -> str:
    """Return a failure response; an empty line ends it."""
    return f"?{command.identity} {error}\n"


def parse_player(word: str) -> int:
    """Parse a player: Black (0) or White (1).

    Raises:
        Refused: it is neither.
    """
    player = PLAYERS.get(word.lower())
    if player is None:
        raise GtpError(f"syntax error: {word!r} is not a color")
    return player


def parse_vertex(game: Game, word: str) -> int:
    """Parse a vertex.

    Raises:
        Refused: it is none on this board.
    """
    try:
        return game.parse_action(word)
    except ValueError as error:
        raise GtpError(f"syntax error: {error}") from error


def parse_whole(word: str, *, least: int = 0) -> int:
    """Parse a whole number that is not negative.

    Raises:
        Refused: it is none, or less than ``least``.
    """
    if not re.fullmatch(r"[0-9]{1,9}", word) or int(word) < least:
        raise GtpError(f"syntax error: {word!r} is not a whole number from {least}")
    return int(word)


def parse_decimal(word: str) -> float:
    """Parse a number.

    Raises:
        Refused: it is none.
    """
    if not re.fullmatch(r"[+-]?([0-9]{1,9}(\.[0-9]*)?|\.[0-9]+)", word):
        raise GtpError(f"syntax error: {word!r} is not a number")
    return float(word)


def parse_boolean(word: str) -> bool:
    """Parse a boolean.

    Raises:
        Refused: it is neither true nor false.
    """
    if word.lower() not in ("true", "false"):
        raise GtpError(f"syntax error: {word!r} is not true or false")
    return word.lower() == "true"


@dataclass(frozen=True, kw_only=True)
class AnalysisOptions:
    """The options of an analysis."""

    player: int
    seconds: float | None = None  # between two updates; None: only at the end
    min_moves: int = 0  # moves to report even without visits
    max_moves: int = 1000  # moves
    kata: bool = False
    ownership: bool = False  # report the predicted ownership, too
    allowed: frozenset[int] | None = None  # the only moves to consider


def parse_analysis_options(game: Game, words: Sequence[str], *, player: int, kata: bool) -> AnalysisOptions:
    """Parse the arguments of lz-analyze and similar commands: optional color, optional interval in centiseconds, then
    pairs.

    Those of KataGo that have no meaning here are ignored.

    Raises:
        Refused: it is none of that.
    """
    left, wanted = list(words), AnalysisOptions(player=player, kata=kata)
    if left and left[0].lower() in PLAYERS:
        wanted = replace(wanted, player=parse_player(left.pop(0)))
    if left and left[0].isdigit():
        wanted = replace(wanted, seconds=CENTISECOND * parse_whole(left.pop(0)))
    while left:
        key = left.pop(0)
        if not left:
            raise GtpError(f"syntax error: {key} needs a value")
        if key in ("allow", "avoid"):
            if len(left) < 3:
                raise GtpError(f"syntax error: {key} expects a color, moves and a number of plies")
            wanted = _restrict_moves(game, wanted, key, parse_player(left.pop(0)), left.pop(0))
            parse_whole(left.pop(0))
        elif key == "interval":
            wanted = replace(wanted, seconds=CENTISECOND * parse_whole(left.pop(0)))
        elif key == "maxmoves":
            wanted = replace(wanted, max_moves=parse_whole(left.pop(0), least=1))
        elif key == "minmoves":
            wanted = replace(wanted, min_moves=parse_whole(left.pop(0)))
        elif key == "ownership":
            wanted = replace(wanted, ownership=parse_boolean(left.pop(0)) and kata)
        elif key in KATAGO_ONLY:
            left.pop(0)
        else:
            raise GtpError(f"syntax error: {key!r} is unknown")
    return wanted


def _restrict_moves(game: Game, wanted: AnalysisOptions, key: str, player: int, text: str) -> AnalysisOptions:
    """Return the options with the player's allowed or avoided moves applied."""
    if player != wanted.player:
        return wanted
    named = frozenset(parse_vertex(game, word) for word in text.split(","))
    before = wanted.allowed if wanted.allowed is not None else frozenset(range(game.num_actions))
    return replace(wanted, allowed=(before & named) if key == "allow" else (before - named))


def format_info(
    game: Game,
    lines: Sequence[MoveAnalysis],
    *,
    kata: bool,
    score_leads: Mapping[int, float],
    ownership: NDArray[np.float32] | None = None,
) -> str:
    """Return the info line of an analysis, best move first, from the view of the player to move.

    As Leela Zero writes it, chances are in hundredths of a percent; as KataGo does, from 0 to 1.

    Args:
        leads: by how many points the player will win, by action.
        ownership: of each point, ``[H * W]`` from the upper left corner, from 1, the player's, to -1.
    """
    said = [
        _format_move_info(game, order, line, kata, score_leads.get(line.action)) for order, line in enumerate(lines)
    ]
    return " ".join(
        [*said, *(["ownership", *(f"{share:.4f}" for share in ownership.tolist())] if ownership is not None else [])]
    )


def _format_move_info(game: Game, order: int, line: MoveAnalysis, kata: bool, score_lead: float | None) -> str:
    chance = (1 + line.value) / 2
    chances = (
        (f"{chance:.6f}", f"{line.prior:.6f}")
        if kata
        else (str(round(10_000 * chance)), str(round(10_000 * line.prior)))
    )
    best = " ".join(game.action_name(action) for action in line.actions)
    move = game.action_name(line.action)
    utility = f"utility {line.value:.6f} " if kata else ""
    # Two names for one number: programs read one or the other.
    points = "" if score_lead is None else f"scoreMean {score_lead:.4f} scoreLead {score_lead:.4f} "
    return (
        f"info move {move} visits {line.visits} {utility}winrate {chances[0]} {points}prior {chances[1]} "
        f"lcb {chances[0]} order {order} pv {best}"
    )
