"""Reads the fields of a query, and says what is wrong with them."""

import json
import re
from dataclasses import dataclass, field
from typing import Any

from keima.games.game import Game
from keima.play.analysis.syntax import Fields, QueryError
from keima.play.gtp.syntax import PLAYERS

MOST_WHOLE = 10**15  # of any whole number in a query
COORDINATES = re.compile(r"\(\s*(\d{1,3})\s*,\s*(\d{1,3})\s*\)")  # column from the left, row from above, from 0
MOST_QUOTED = 60  # characters


@dataclass(kw_only=True)
class FieldReader:
    """Reads the fields of an object, and collects remarks.

    Every method raises QueryError if a field has a wrong type or is out of range.
    """

    fields: Fields
    within: str = ""  # the query's field that holds the object; empty: the query itself
    warnings: list[tuple[str, str]] = field(default_factory=list)

    def warn(self, name: str, text: str) -> None:
        """Remark on a field."""
        self.warnings.append((self.within or name, text))

    def fail(self, name: str, text: str) -> QueryError:
        """Return the error about a field."""
        return QueryError(f"{name}: {text}", field=self.within or name)

    def whole(self, name: str, usual: int, *, least: int = 0, most: int = MOST_WHOLE) -> int:
        """Return a whole number."""
        return self._check_whole(name, self.fields.get(name, usual), least, most)

    def wholes(self, name: str, *, least: int = 0, most: int = MOST_WHOLE) -> list[int] | None:
        """Return a list of whole numbers, or None: the field is missing."""
        if name not in self.fields:
            return None
        return [self._check_whole(name, value, least, most) for value in self.items(name)]

    def number(self, name: str, *, least: float, most: float) -> float | None:
        """Return a number, or None: the field is missing."""
        value = self.fields.get(name)
        if name not in self.fields:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
            raise self.fail(name, f"expected a number from {least:g} to {most:g}, found {quote(value)}")
        return float(value)

    def flag(self, name: str) -> bool:
        """Return a boolean; false if the field is missing."""
        value = self.fields.get(name, False)
        if not isinstance(value, bool):
            raise self.fail(name, f"expected true or false, found {quote(value)}")
        return value

    def items(self, name: str) -> list[Any]:
        """Return a list; empty if the field is missing."""
        value = self.fields.get(name, [])
        if not isinstance(value, list):
            raise self.fail(name, f"expected a list, found {quote(value)}")
        return value

    def player(self, name: str, value: object) -> int:
        """Black (0) or White (1)."""
        player = PLAYERS.get(value.lower()) if isinstance(value, str) else None
        if player is None:
            raise self.fail(name, f"expected the player B or W, found {quote(value)}")
        return player

    def location(self, game: Game, name: str, value: object) -> int:
        """Return the action of a point, such as C4 or (0,13), or of pass."""
        size = int(game.options["size"])
        found = COORDINATES.fullmatch(value) if isinstance(value, str) else None
        if found and int(found[1]) < size and int(found[2]) < size:
            return int(found[2]) * size + int(found[1])
        try:
            return game.parse_action(str(value))
        except ValueError as error:
            raise self.fail(name, str(error)) from None

    def plays(self, game: Game, name: str) -> list[tuple[int, int]]:
        """Return a list of players and locations; empty if the field is missing."""
        found = []
        for each in self.items(name):
            if not isinstance(each, list) or len(each) != 2:
                raise self.fail(name, f'expected pairs such as ["B","C4"], found {quote(each)}')
            found.append((self.player(name, each[0]), self.location(game, name, each[1])))
        return found

    def _check_whole(self, name: str, value: object, least: int, most: int) -> int:
        if isinstance(value, float) and value.is_integer():  # as some programs write whole numbers
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise self.fail(name, f"expected a whole number from {least} to {most}, found {quote(value)}")
        return value


def quote(value: object) -> str:
    """Return a wrong value, as an error message shows it."""
    text = json.dumps(value)
    return text if len(text) <= MOST_QUOTED else f"{text[:MOST_QUOTED]}..."
