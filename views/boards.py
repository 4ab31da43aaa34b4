"""Boards in colour, with what the last move has changed marked."""

from rich.text import Text

FIRST, SECOND, CHANGED = "bold yellow", "bold cyan", "reverse"


def painted(board: str, before: str | None = None) -> Text:
    """A board for two as its game renders it, each player's men in a colour of their own, which a terminal shows if it
    can.

    Args:
        before: the board before the last move, whose changes are marked.
    """
    rows = zip(board.split("\n"), (before or board).split("\n"), strict=False)
    text = Text()
    for number, (row, old) in enumerate(rows):
        text.append("\n" if number else "")
        for column, char in enumerate(row):
            changed = column < len(old) and old[column] != char and char not in "() "
            text.append(char, " ".join([*_color(char), *([CHANGED] if changed else [])]) if is_row(row) else "")
    return text


def is_row(line: str) -> bool:
    """Whether a line is one of the board, and not of coordinates or words."""
    cells = line.replace("(", " ").replace(")", " ").split()
    men = [cell for cell in cells if not cell.isdecimal()]
    return bool(men) and all(len(cell) == 1 for cell in men) and (len(men) < len(cells) or set(men) <= {".", "X", "O"})


def _color(char: str) -> list[str]:
    """Of a man: in most games X is the first player's, in chess, where men are letters, the large ones."""
    if not char.isalpha():
        return []
    return [FIRST if char.isupper() and char != "O" else SECOND]
