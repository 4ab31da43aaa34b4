"""How our programs begin: whatever is wrong with a call is told, and what is waited for is said, before the imports
that take seconds.

A program has its command line above those imports, and this between them::

    if __name__ == "__main__":
        before_imports(parse, see, loading="PyTorch")

This file is imported before all that takes long to import: it needs nothing but Python's standard library.
"""

import argparse
import os
import sys
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import ParamSpec

from training.common.disk_words import in_words
from training.common.run_folder import see_run_folder

LAUNCHED = "TORCHELASTIC_RUN_ID"  # torchrun sets it for its ranks
WRONG = 2  # the exit code when something is wrong that can be put right
RED = "\x1b[31m{}\x1b[0m"

P = ParamSpec("P")
Parse = Callable[[list[str] | None], argparse.Namespace]
See = Callable[[argparse.Namespace], None]

_begun: list[str] = []  # the program that this process is, where it has something to wait for


def before_imports(parse: Parse, see: See | None = None, *, loading: str = "") -> argparse.Namespace:
    """End the program if its command line is wrong, or names what is not there; else say what it loads now.

    What torchrun has started, several times over, says nothing: whoever called torchrun has said it.

    Args:
        parse: reads the command line; what it ends the program with stands, such as ``--help``.
        see: raises ValueError or OSError for what the command line names and cannot be.
        loading: what takes long; nothing is said where it is empty.

    Returns:
        The command line.
    """
    program = Path(sys.argv[0]).name
    try:
        arguments = parse(None)
        if LAUNCHED in os.environ:
            return arguments
        if see:
            see(arguments)
    except (ValueError, OSError) as error:
        text = f"{program}: {in_words(error)}"
        say_on_stderr(RED.format(text) if sys.stderr.isatty() else text)
        sys.exit(WRONG)
    if loading:
        _begun.append(program)
        say_on_stderr(f"{program}: loading {loading}")
    return arguments


def reports_compiling(main: Callable[P, int]) -> Callable[P, int]:
    """Have a program say within its ``main`` what is compiled, if it was started as one."""

    @wraps(main)
    def run(*arguments: P.args, **options: P.kwargs) -> int:
        if not _begun:
            return main(*arguments, **options)
        from training.common.compiling import report_compiling  # only now: numba takes a second

        with report_compiling(lambda text: say_on_stderr(f"{_begun[0]}: {text}")):
            return main(*arguments, **options)

    return run


def say_on_stderr(text: str) -> None:
    """Tell whoever waits, on standard error: what a program has to say itself may be a protocol, or read by another
    program.
    """
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def see_file(path: Path) -> None:
    """See that a file can be read.

    Raises:
        ValueError: it cannot.
    """
    try:
        with path.open("rb"):
            return
    except OSError as error:
        raise ValueError(in_words(error)) from None


def see_inputs(run_dir: Path | None, *files: Path | None) -> None:
    """Check that the run to resume and the files that a command line names exist; None: the command line names none.

    Raises:
        ValueError: one does not, or cannot be read.
    """
    if run_dir:
        see_run_folder(run_dir, resume=True)
    for file in files:
        if file:
            see_file(file)
