"""The start of a program: errors of the command line, and what is loading, are reported before slow imports.

A program defines its command line above those imports, and calls this between them::

    if __name__ == "__main__":
        parse_before_imports(parse, check_inputs, loading="PyTorch")

Imports only the standard library.
"""

import argparse
import errno
import os
import sys
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import ParamSpec

from keima.base.disk_words import error_text
from keima.base.run_folder import check_run_folder
from keima.base.system.command_line import program_name
from keima.paths import CACHE

LAUNCHED = "TORCHELASTIC_RUN_ID"  # torchrun sets it for its ranks
SAID = "KEIMA_LOADING"  # a program that has said what it loads sets it for the processes that it starts
WRONG = 2  # exit code of errors that users can fix
IN_RED = "\x1b[31m{}\x1b[0m"

P = ParamSpec("P")
Parse = Callable[[list[str] | None], argparse.Namespace]
CheckInputs = Callable[[argparse.Namespace], None]

_loading_programs: list[str] = []  # name of the program, once it loads slow imports


def parse_before_imports(
    parse: Parse, check_inputs: CheckInputs | None = None, *, loading: str = ""
) -> argparse.Namespace:
    """Parse and check the command line, exit if it is invalid, and say what is loading.

    Of the ranks that torchrun starts, rank 0 says what is loading, unless a program of ours that called torchrun has.

    Args:
        parse: parses the command line; it may exit, as for ``--help``.
        check_inputs: raises ValueError or OSError if the command line names something that does not exist or is
            invalid.
        loading: what takes long to import; empty: say nothing.

    Returns:
        The command line.
    """
    name = program_name()
    try:
        arguments = parse(None)
        if LAUNCHED in os.environ:
            if loading and os.environ.get("RANK") == "0" and SAID not in os.environ:
                print_status(f"{name}: loading {loading}")
            return arguments
        if check_inputs:
            check_inputs(arguments)
        if loading:
            check_cache_is_writable()
    except (ValueError, OSError) as error:
        text = f"{name}: {error_text(error)}"
        print_status(IN_RED.format(text) if sys.stderr.isatty() else text)
        sys.exit(WRONG)
    if loading:
        _loading_programs.append(name)
        os.environ[SAID] = loading
        print_status(f"{name}: loading {loading}")
    return arguments


def report_compiling_of(main: Callable[P, int]) -> Callable[P, int]:
    """Decorate a program's ``main`` to report what is being compiled."""

    @wraps(main)
    def run(*arguments: P.args, **options: P.kwargs) -> int:
        if not _loading_programs:
            return main(*arguments, **options)
        from keima.compilation.progress import report_compiling  # only now: numba takes a second

        with report_compiling(lambda text: print_status(f"{_loading_programs[0]}: {text}")):
            return main(*arguments, **options)

    return run


def print_status(text: str) -> None:
    """Print a status line to standard error: standard output may carry a protocol."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def check_file_is_readable(path: Path) -> None:
    """Check that a file can be read.

    Raises:
        ValueError: it cannot.
    """
    try:
        with path.open("rb"):
            return
    except OSError as error:
        raise ValueError(error_text(error)) from None


def check_cache_is_writable() -> None:
    """Check that compiled code can be kept on this machine.

    Raises:
        ValueError: it cannot.
    """
    try:
        CACHE.mkdir(parents=True, exist_ok=True, mode=0o700)
        if not os.access(CACHE, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        raise ValueError(
            f"compiled code cannot be kept in {CACHE}: {error.strerror}; set KEIMA_CACHE to a writable folder"
        ) from None


def check_paths_exist(run_dir: Path | None, *files: Path | None) -> None:
    """Check that the run to resume and the files that a command line names exist; None: the command line names none.

    Raises:
        ValueError: one does not, or cannot be read.
    """
    if run_dir:
        check_run_folder(run_dir, resume=True)
    for file in files:
        if file:
            check_file_is_readable(file)
