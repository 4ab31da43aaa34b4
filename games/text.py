"""Text from elsewhere, such as files of games and other machines, before anybody is shown it."""

import unicodedata


def printable(text: str) -> str:
    """The text on one line and without control characters, which a terminal would obey."""
    return " ".join("".join(" " if unicodedata.category(char)[0] == "C" else char for char in text).split())
