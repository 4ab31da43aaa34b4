"""Write a run's newest model to a file that other people and programs can use, with a model card beside it.

    keima export runs/go9 go9.safetensors
    keima export go9 go9.safetensors --benchmark results/benchmark.json

The card says what the network is, how it was trained, and how strong it is; add what you know of it. Existing files are
kept, unless you say --replace.
"""

import argparse
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

if __name__ == "__main__":
    from keima.base.system.signals import exit_quietly_on_interrupt

    exit_quietly_on_interrupt()

from keima.base.disk_words import error_text
from keima.base.run_folder import resolve_run_folder, stats_path
from keima.base.system.command_line import CommandLine, program_name
from keima.base.system.signals import handle_interrupts
from keima.base.system.start import parse_before_imports
from keima.data.ledger import read_ledger


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = CommandLine(__doc__)
    parser.add_argument("run", metavar="RUN", type=Path, help="the run's folder, or its name if it is in runs/")
    parser.add_argument("file", metavar="FILE", type=Path, help="a file to write, such as go9.safetensors")
    parser.add_argument(
        "--benchmark",
        action="append",
        type=Path,
        default=[],
        metavar="FILE",
        help="results that keima benchmark --save has written, for the card; may be repeated",
    )
    parser.add_argument("--replace", action="store_true", help="replace the file and its card")
    return parser.parse_args(argv)


def check_inputs(arguments: argparse.Namespace) -> None:
    """Check that there is such a run, and that no file would be lost.

    Raises:
        ValueError: there is none, or a file exists.
    """
    read_ledger(resolve_run_folder(arguments.run)).close()
    there = [path for path in (arguments.file, arguments.file.with_suffix(".md")) if path.exists()]
    if there and not arguments.replace:
        raise ValueError(
            f"already here: {', '.join(map(str, there))}; choose another name, or replace it with --replace"
        )


if __name__ == "__main__":
    parse_before_imports(parse, check_inputs, loading="PyTorch")

from keima.config.commands import keima
from keima.report.files.model_card import export_model
from keima.report.files.run_files import read_stats


@handle_interrupts
def main(argv: Sequence[str] | None = None) -> int:
    """Write both files; returns the exit code: 2 if that fails."""
    arguments = parse(argv)
    statistics = stats_path(arguments.run)
    try:
        check_inputs(arguments)
        card = export_model(statistics.parent, arguments.file, read_stats(statistics), arguments.benchmark)
    except (ValueError, OSError) as error:
        print(f"{program_name()}: {error_text(error)}", file=sys.stderr)
        return 2
    play = keima(f"play {shlex.quote(str(arguments.file))}")
    print(f"{arguments.file}: the model, {arguments.file.stat().st_size:,} bytes; {play}")
    print(f"{card}: its card; add what you know of it")
    return 0


if __name__ == "__main__":
    sys.exit(main())
