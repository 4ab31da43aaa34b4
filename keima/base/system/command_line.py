"""The command line of a program: its name, its parser, and the completion of its words by a shell.

Imports only the standard library and ``keima.paths``, so that programs start fast.
"""

import argparse
import difflib
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from keima.paths import CHECKOUT

CHOICES = re.compile(r"invalid choice: '([^']*)' \(choose from (.*)\)")  # argparse's words
COMPLETING = "_ARGCOMPLETE"  # a shell that completes a word sets it to the number of words before the flags


def program_name() -> str:
    """Return the name by which the user has called this program: ``keima train``, or ``start_main.py``."""
    return Path(sys.argv[0]).name


def relaunch_command(verb: str) -> list[str]:
    """Return how torchrun starts this program again: by the checkout's file that was called, or by its verb."""
    called = Path(sys.argv[0]).resolve()
    by_file = called.suffix == ".py" and called.is_file() and called.parent == CHECKOUT
    return [str(called)] if by_file else ["--module", "keima", verb]


class CommandLine(argparse.ArgumentParser):
    """A parser that shows a program's docstring unchanged, and completes words for a shell.

    Args:
        description: the docstring.
        options: as of ``ArgumentParser``.
    """

    def __init__(self, description: str | None = None, **options: Any) -> None:
        usual: dict[str, Any] = {"prog": program_name(), "formatter_class": argparse.RawDescriptionHelpFormatter}
        super().__init__(**usual | {"description": description} | options)

    def parse_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> argparse.Namespace:  # type: ignore[override]
        """Parse the words, by default those of the command line, and exit if they are wrong."""
        if COMPLETING in os.environ:
            import argcomplete  # only now: nothing else needs it

            for action in self._actions:
                if complete := getattr(action.type, "completer", None):
                    action.completer = complete  # type: ignore[attr-defined]
            argcomplete.autocomplete(self)  # which exits
        return super().parse_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        """Print the message and exit; for a word that is not among the choices, suggest the closest."""
        found = CHOICES.search(message)
        if found:
            close = difflib.get_close_matches(found[1], re.findall(r"[\w-]+", found[2]), n=1)
            message += f"; did you mean {close[0]}?" if close else ""
        super().error(message)
