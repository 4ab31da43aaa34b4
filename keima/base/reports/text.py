"""Untrusted text, such as from files of games or other machines, made safe to display."""

import unicodedata


def printable_line(text: str) -> str:
    """Return the text on one line, without control characters that a terminal would interpret."""
    if not text.isprintable():  # most texts are
        text = "".join(" " if unicodedata.category(char)[0] == "C" else char for char in text)
    return " ".join(text.split())
