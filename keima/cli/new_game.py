"""Begin a game of your own: write a small complete one, a config that trains it, and a test.

    keima new-game othello            writes othello.py, othello.yaml and test_othello.py here
    keima new-game othello --kernels  the same as kernels, which are faster

The game is four in a row on a board of 5 x 5. Change it into yours; `keima check-game othello.py` says what is wrong
and what to do about it. Existing files are never overwritten.
"""

import argparse
import keyword
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from keima.base.disk_words import error_text
from keima.base.system.command_line import CommandLine, program_name
from keima.base.system.start import parse_before_imports
from keima.config.commands import keima
from keima.config.own_modules import refuse_package_name
from keima.paths import PACKAGE

TEMPLATES = PACKAGE / "games" / "authoring" / "templates"
NAME = re.compile(r"[a-z][a-z0-9_]{0,39}")


def parse_game_name(text: str) -> str:
    """Parse NAME.

    Raises:
        ArgumentTypeError: it cannot be the name of a file of Python.
    """
    if not NAME.fullmatch(text) or keyword.iskeyword(text):
        raise argparse.ArgumentTypeError(f"expected a name such as othello, of letters, digits and _, found {text!r}")
    return text


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = CommandLine(__doc__)
    parser.add_argument("name", metavar="NAME", type=parse_game_name, help="name of the game, such as othello")
    parser.add_argument("--kernels", action="store_true", help="write kernels instead of plain functions")
    return parser.parse_args(argv)


def check_inputs(arguments: argparse.Namespace) -> None:
    """Check that nothing would be overwritten.

    Raises:
        ValueError: a file exists, or the name is that of a package.
    """
    refuse_package_name(Path(f"{arguments.name}.py"))
    there = [path.name for path in files_to_copy(arguments) if path.exists()]
    if there:
        raise ValueError(f"already here: {', '.join(there)}; choose another name, or remove what is here")


def files_to_copy(arguments: argparse.Namespace) -> dict[Path, Path]:
    """Return the files to write, and what each is a copy of."""
    name, kind = arguments.name, "kernels" if arguments.kernels else "plain"
    return {
        Path(f"{name}.py"): TEMPLATES / f"{kind}.py",
        Path(f"{name}.yaml"): TEMPLATES / "config.yaml",
        Path(f"test_{name}.py"): TEMPLATES / "test_game.py",
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Write the files and say what comes next; returns the exit code: 2 if they cannot be written."""
    arguments = parse(argv)
    try:
        for path, template in files_to_copy(arguments).items():
            write_copy(path, template, arguments.name)
            print(f"wrote {path}")
    except OSError as error:
        print(f"{program_name()}: {error_text(error)}", file=sys.stderr)
        return 2
    print(
        f"\nChange {arguments.name}.py into your game, then:\n"
        f"  {keima(f'check-game {arguments.name}.py')}           what is wrong, and how to train it\n"
        f"  {keima(f'train {arguments.name}.py --hours 1')}      train it"
    )
    return 0


def write_config(game: Path, path: Path) -> None:
    """Write a config that trains a user's game beside it, with settings that are chosen when a run begins.

    Raises:
        OSError: the file exists, or cannot be written.
    """
    write_copy(path, TEMPLATES / "config.yaml", game.stem)


def write_copy(path: Path, template: Path, name: str) -> None:
    """Write a template with this name of a game to a new file.

    Raises:
        OSError: the file exists, or cannot be written.
    """
    text = template.read_text(encoding="utf-8").replace("NAME", name)
    with path.open("x", encoding="utf-8") as file:
        file.write(text)


if __name__ == "__main__":
    parse_before_imports(parse, check_inputs)
    sys.exit(main())
