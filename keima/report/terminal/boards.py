"""Boards in colour, with the last move's changes marked."""

from rich.text import Text

FIRST_PLAYER, SECOND_PLAYER, CHANGED = "bold yellow", "bold cyan", "reverse"


def paint_board(board: str, before: str | None = None) -> Text:
    """Return a rendered two-player board with a colour for each player's pieces, if the terminal supports colours.

    Args:
        before: the board before the last move, whose changes are marked.
    """
    rows = zip(board.split("\n"), (before or board).split("\n"), strict=False)
    text = Text()
    for number, (row, old) in enumerate(rows):
        text.append("\n" if number else "")
        for column, char in enumerate(row):
            changed = column < len(old) and old[column] != char and char not in "() "
            text.append(
                char, " ".join([*_piece_color(char), *([CHANGED] if changed else [])]) if is_board_row(row) else ""
            )
    return text


def is_board_row(line: str) -> bool:
    """Return whether a line is a row of the board, and not coordinates or text."""
    cells = line.replace("(", " ").replace(")", " ").split()
    men = [cell for cell in cells if not cell.isdecimal()]
    return bool(men) and all(len(cell) == 1 for cell in men) and (len(men) < len(cells) or set(men) <= {".", "X", "O"})


def _piece_color(char: str) -> list[str]:
    """Return the colour of a piece: X, or in chess capital letters, belongs to the first player."""
    if not char.isalpha():
        return []
    return [FIRST_PLAYER if char.isupper() and char != "O" else SECOND_PLAYER]
