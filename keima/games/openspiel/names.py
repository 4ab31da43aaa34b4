"""The names of actions and outcomes: OpenSpiel's, where a move always has the same name, else numbers."""

from collections import Counter
from itertools import takewhile
from typing import Any

from keima.games.game import CHANCE
from keima.games.openspiel.trial import MoveNames, ObservedNames


def make_action_names(game: Any, trial: ObservedNames) -> list[str]:
    """Make the names of all actions of OpenSpiel's ``game``, each different.

    OpenSpiel names a move of a position and a player. If a move's name depends on the position (chess), all moves are
    named by their numbers. A player's mark is removed: ``x3`` and ``o3`` are ``3``.
    """
    count, players = game.num_distinct_actions(), range(game.num_players())
    numbers = [str(action) for action in range(count)]
    if any(trial.names.get(player, {}) is None for player in players):
        return numbers
    start = game.new_initial_state()
    while start.is_chance_node():
        start.apply_action(start.chance_outcomes()[0][0])
    try:
        spoken = [[start.action_to_string(player, action) for action in range(count)] for player in players]
    except Exception:  # it names only what is legal there
        return numbers
    if any(not _has_same_names(spoken[player], trial.names.get(player)) for player in players):
        return numbers
    return _make_distinct(spoken[0] if len(spoken) == 1 else strip_player_marks(*spoken))


def make_outcome_names(game: Any, trial: ObservedNames) -> list[str]:
    """Make the names of all chance outcomes, each different; numbers if random games have not met them all."""
    spoken, count = trial.names.get(CHANCE) or {}, game.max_chance_outcomes()
    return _make_distinct([spoken.get(outcome, "") for outcome in range(count)])


def strip_player_marks(first: list[str], second: list[str]) -> list[str]:
    """Return the names that two players give the same moves, without the mark by which each begins."""
    if [name.lower() for name in first] == [name.lower() for name in second]:
        return first
    return [_common_suffix(*names) for names in zip(first, second, strict=True)]


def _common_suffix(one: str, other: str) -> str:
    same = takewhile(lambda pair: pair[0] == pair[1], zip(reversed(one), reversed(other), strict=False))
    return "".join(letter for letter, _ in same)[::-1].strip()


def _has_same_names(spoken: list[str], heard: MoveNames | None) -> bool:
    return all(spoken[move] == name for move, name in (heard or {}).items())


def _make_distinct(names: list[str]) -> list[str]:
    """Make the names distinct: each that is empty or not unique becomes a number with #."""
    counts = Counter(names)
    if all(name and counts[name] == 1 for name in names):
        return names
    called = [name if name and counts[name] == 1 and name[0] != "#" else f"#{move}" for move, name in enumerate(names)]
    plain = all(name[0] == "#" for name in called)
    return [name[1:] for name in called] if plain else called
