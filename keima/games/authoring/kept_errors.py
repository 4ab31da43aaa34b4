"""Errors raised in Python that compiled code has called: kept until Python code can raise them.

A C callback has no caller that could catch its exception. Rules that are asked in Python (``keima.games.openspiel``)
keep it here; what calls compiled code raises it afterwards.
"""

_kept: list[BaseException] = []


def keep_error(error: BaseException) -> None:
    """Keep an exception, to be raised by the next ``raise_kept_error``."""
    _kept.append(error)


def raise_kept_error() -> None:
    """Raise the first exception that was kept, and forget the others, which are its consequences."""
    if _kept:
        error = _kept[0]
        _kept.clear()
        raise error
