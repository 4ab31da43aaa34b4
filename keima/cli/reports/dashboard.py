"""Watch one or several runs in a browser: what they learn, how fast, who plays, and whether every game is counted.

    keima dashboard                        all runs in runs/
    keima dashboard runs/connect_four go9  these runs, by folder or by name, with their curves together
    keima dashboard --port 8080            at this port, instead of a free one
    keima dashboard --listen 192.168.1.20  also for others in your network

It prints an address with a secret token: only those who have it can read the dashboard, and nobody can change anything.
It reads the files of runs, live or finished, and never talks to the Coach. By default only this machine can connect;
over SSH, it prints the command that forwards the port to your own machine. Ctrl-C ends it.
"""

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

if __name__ == "__main__":
    from keima.base.system.signals import exit_quietly_on_interrupt

    exit_quietly_on_interrupt()

from keima.base.run_folder import RUNS, list_runs, resolve_run_folder
from keima.base.system.command_line import CommandLine, program_name
from keima.base.system.signals import handle_interrupts
from keima.base.system.start import parse_before_imports
from keima.web.server import add_server_flags, serve


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line; ``folders`` are the runs'."""
    parser = CommandLine(__doc__)
    parser.add_argument(
        "runs", nargs="*", metavar="RUN", help=f"folder of a run, or its name in {RUNS}/ (default: all)"
    )
    add_server_flags(parser)
    args = parser.parse_args(argv)
    args.folders = [resolve_run_folder(Path(run)) for run in args.runs] or list_runs()
    return args


def check_inputs(args: argparse.Namespace) -> None:
    """Check that there are runs.

    Raises:
        ValueError: there are none, or a folder is no run.
    """
    if not args.folders:
        raise ValueError(f"there are no runs in {RUNS}/: name a run's folder")
    for folder in args.folders:
        if not folder.is_dir():
            raise ValueError(f"there is no run {folder}: name a run's folder, such as runs/connect_four")


if __name__ == "__main__":
    parse_before_imports(parse, check_inputs)

from keima.web.app import make_dashboard_app


@handle_interrupts
def main(argv: Sequence[str] | None = None) -> int:
    """Serve until Ctrl-C; returns the exit code: 2 if there are no runs, or it cannot listen there."""
    args = parse(argv)
    try:
        check_inputs(args)
        serve(partial(make_dashboard_app, args.folders), args, say=partial(print, flush=True))
    except (ValueError, OSError) as error:
        print(f"{program_name()}: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
