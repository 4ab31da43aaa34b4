#!/usr/bin/env python3
"""Invite people to a run, and see what they give: links, machines, and what became of their games.

    keima train othello.py --crowd             a run that machines can join by a link
    keima crowd links RUN                      the links of a run, and their machines
    keima crowd link RUN anna --days 7         a link for anna that can be used for a week
    keima crowd revoke RUN anna                no machine that came by it is let in any more
    keima crowd table RUN                      who has given how much; --csv for a spreadsheet

A link that has expired lets no new machine in; those that came by it play on. One that was revoked ends them too.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path

if __name__ == "__main__":
    from keima.base.system.signals import exit_quietly_on_interrupt

    exit_quietly_on_interrupt()

from keima.base.run_folder import LEDGER_NAME, resolve_run_folder
from keima.base.system.command_line import CommandLine, program_name
from keima.base.system.signals import handle_interrupts
from keima.base.system.start import parse_before_imports
from keima.config.flags import number

MOST_DAYS = 3650
COMMANDS = {
    "links": "show the links of a run",
    "link": "make a link for a name; an earlier one of the name expires",
    "revoke": "revoke the links of a name",
    "table": "show who has given how much",
}


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = CommandLine(__doc__)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for command, about in COMMANDS.items():
        add = commands.add_parser(command, help=about, description=f"{about[0].upper()}{about[1:]}.").add_argument
        add("run", metavar="RUN", type=Path, help="folder of a run, or its name in runs/")
        if command in ("link", "revoke"):
            add("name", metavar="NAME", help="for whom the link is")
        if command == "link":
            add("--days", type=number(above=0, most=MOST_DAYS), help="days until it expires (default: never)")
        if command == "table":
            add("--csv", action="store_true", help="as comma-separated values")
    return parser.parse_args(argv)


def check_inputs(arguments: argparse.Namespace) -> None:
    """Check that the run exists.

    Raises:
        ValueError: it does not.
    """
    arguments.run = resolve_run_folder(arguments.run)
    if not (arguments.run / LEDGER_NAME).is_file():
        raise ValueError(f"there is no run in {arguments.run}")


if __name__ == "__main__":
    parse_before_imports(parse, check_inputs)

from keima.cluster.http.door import read_machines
from keima.cluster.http.links import StoredLink, make_link, read_door_address, read_links, revoke_link
from keima.coach.crowd.verdicts import FOLDER


@handle_interrupts
def main(argv: Sequence[str] | None = None) -> int:
    """Run the program; returns its exit code: 0, or 2 after an error that the user can correct."""
    arguments = parse(argv)
    try:
        check_inputs(arguments)
        act(arguments, say=partial(print, flush=True))
    except (ValueError, OSError) as error:
        print(f"{program_name()}: {error}", file=sys.stderr)
        return 2
    return 0


def act(arguments: argparse.Namespace, *, say: Callable[[str], None]) -> None:
    """Carry out a command."""
    folder = arguments.run / FOLDER
    folder.mkdir(mode=0o700, exist_ok=True)
    match arguments.command:
        case "link":
            say(whole_link(arguments.run, make_link(folder, arguments.name, days=arguments.days)))
        case "revoke":
            revoke_link(folder, arguments.name)
            say(f"revoked: machines that came by a link of {arguments.name} are refused from now on")
        case "links":
            show_links(arguments.run, say=say)
        case _:
            show_table(arguments.run, csv=arguments.csv, say=say)


def whole_link(run_dir: Path, link: StoredLink) -> str:
    """Return a link as people pass it on.

    Raises:
        ValueError: the door has never been open, so that its address is not known.
    """
    return str(read_door_address(run_dir / FOLDER).with_secret(link.secret))


def show_links(run_dir: Path, *, say: Callable[[str], None]) -> None:
    """Print the links, and how many machines came by each."""
    machines = read_machines(run_dir / FOLDER)
    read_door_address(run_dir / FOLDER)  # which says what to do if there has never been one
    for link in read_links(run_dir / FOLDER):
        count = sum(machine.link == link.id for machine in machines)
        problem = link.problem_at(datetime.now().timestamp())
        if problem:
            state = "revoked" if link.revoked is not None else "expired"
        else:
            state = (
                "valid"
                if link.expires is None
                else f"valid until {datetime.fromtimestamp(link.expires):%Y-%m-%d %H:%M}"
            )
        say(f"{link.name}: {state}, {count} machine{'' if count == 1 else 's'}")
        if not problem:
            say(f"  {whole_link(run_dir, link)}")


def show_table(run_dir: Path, *, csv: bool, say: Callable[[str], None]) -> None:
    """Print who has given how much."""
    from keima.web.crowd_page import contributors_csv, contributors_text

    say((contributors_csv(run_dir) if csv else contributors_text(run_dir)).rstrip("\n"))


if __name__ == "__main__":
    sys.exit(main())
