"""Check the record of a race to a strength: was it run, in this time, with this network?

    keima verify runs/speedrun-connect_four
    keima verify runs/speedrun-connect_four --games 200     more games played again
    keima verify runs/speedrun-connect_four --json
    keima verify runs/speedrun-connect_four --pack record.zip     one file, to show to others if the record holds
    keima verify record.zip

The folder is a run's, with its ledger, settings, games and models, and the record.json of keima speedrun. This checks

    ledger    every game is replayed by the rules, none is missing, and none counts twice
    books     ledger, settings and network are those of the record
    target    the record meets it, and it is the one that this program has under its name
    clock     the times at which the ledger was written agree with the clock of the run
    seeds     every game has the seed that the run gives it, and no other game has it
    games     a sample is played again by seed and network: the search makes the same visits
    network   it follows from the version before it as those follow from theirs
    strength  it is measured again: in the same positions, where it must meet the target but for rounding, or in twice
              the games and from other openings, where it must have the target's score

Nothing that comes with the record is executed: a game or a network of one's own must be here already. Which games are
played again is drawn anew each time; --seed repeats a check. Games that another kind of processor played are the same
until its rounding changes a visit; visits are compared up to there.

Exit code: 0 if the record holds, 1 if it is refused (every reason is listed), 2 if there is no record, or it cannot be
read or packed.
"""

import argparse
import json
import secrets
import sqlite3
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

if __name__ == "__main__":
    from keima.base.system.signals import exit_quietly_on_interrupt

    exit_quietly_on_interrupt()

from keima.base.disk_words import error_text
from keima.base.run_folder import RECORD_NAME, RUNS, resolve_run_folder
from keima.base.system.command_line import CommandLine, program_name
from keima.base.system.limits import count_usable_cores
from keima.base.system.signals import handle_interrupts
from keima.base.system.start import check_file_is_readable, parse_before_imports, report_compiling_of
from keima.config.flags import whole

SAMPLED_GAMES = 32
SUFFIX = ".zip"


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line; ``folder`` is the run's."""
    parser = CommandLine(__doc__)
    add = parser.add_argument
    text = f"folder of the run with its record, or its name in {RUNS}/, or the file of a packed record"
    add("run", metavar="RUN", help=text)
    add("--games", type=whole(), default=SAMPLED_GAMES, help="games that are played again (default: %(default)s)")
    text = "seed of which games are played again, and of the openings in which it is measured (default: a random one)"
    add("--seed", type=whole(), default=secrets.randbelow(2**31), help=text)
    text = "processes that play when the network is measured (default: one per core)"
    add("--processes", type=whole(), default=count_usable_cores(), help=text)
    add(
        "--target", metavar="FILE", help="the target, where it is no shipped one (default: the shipped one of its name)"
    )
    add("--pack", type=Path, metavar="FILE", help="if the record holds, write it with all that proves it to a zip file")
    add("--json", action="store_true", help="print a JSON object instead")
    arguments = parser.parse_args(argv)
    given = Path(arguments.run)
    arguments.packed = given if given.suffix == SUFFIX and not given.is_dir() else None
    arguments.folder = resolve_run_folder(given)
    if arguments.packed and arguments.pack:
        parser.error("--pack: the record is packed already")
    if arguments.pack and arguments.pack.suffix != SUFFIX:
        parser.error(f"--pack: name a file that ends in {SUFFIX}")
    return arguments


def check_inputs(arguments: argparse.Namespace) -> None:
    """Check that there is a record, and a folder for what is written.

    Raises:
        ValueError: there is none.
    """
    check_file_is_readable(arguments.packed or arguments.folder / RECORD_NAME)
    if arguments.pack and not arguments.pack.absolute().parent.is_dir():
        raise ValueError(f"--pack: there is no folder {arguments.pack.parent}")


if __name__ == "__main__":
    parse_before_imports(parse, check_inputs, loading="PyTorch")

    from keima.base.system.processes import prepare_fork_server  # only now: --help needs nothing of it

    prepare_fork_server("keima.play.arena.preload")  # it loads at the same time as this program

from rich.console import Console

from keima.base.named import find_target, is_name
from keima.base.reports.text import printable_line
from keima.cli.reports.audit import audit, sum_core_hours
from keima.cli.training.speedrun import judge_model
from keima.coach.forecast import is_of_game
from keima.config.load import load_settings
from keima.config.own_modules import FOLDER as MODULES
from keima.config.own_modules import copy_modules
from keima.data.ledger import LedgerDamaged, LedgerMismatch, NoSuchRun, read_ledger
from keima.games import load_game
from keima.play.arena.slices import SliceFailed
from keima.play.network_loader import SETTINGS
from keima.play.speedrun.record import Record, read_record
from keima.play.speedrun.record_file import gather_record, pack_record, unpack_record
from keima.play.speedrun.target import load_experiment, load_target, twice_the_games
from keima.play.speedrun.verify import (
    Finding,
    check_books,
    check_clock,
    check_games,
    check_models,
    check_network,
    check_reports,
    check_seeds,
    check_strength,
    check_target,
    refuse_foreign_code,
)


@handle_interrupts
@report_compiling_of
def main(argv: Sequence[str] | None = None) -> int:
    """Check a record and print what was found; returns the exit code."""
    arguments = parse(argv)
    console = Console(highlight=False, markup=False, emoji=False, stderr=arguments.json)
    findings = list[Finding]()
    try:
        with open_record(arguments) as run:
            record = read_record(run)
            console.print(f"{'seed':9} {arguments.seed}")
            for finding in verify(run, record, arguments, console):
                findings.append(finding)
                if not arguments.json:
                    print_finding(finding, console)
            if arguments.pack and not any(finding.problems for finding in findings):
                pack_record(run, arguments.pack)
    except (ValueError, OSError, sqlite3.Error, SliceFailed, NoSuchRun, LedgerDamaged, LedgerMismatch) as error:
        print(f"{program_name()}: {error_text(error)}", file=sys.stderr)
        return 2
    problems = sum(len(finding.problems) for finding in findings)
    if arguments.json:
        content = {"holds": not problems, "record": json.loads(record.model_dump_json())}
        print(json.dumps(content | {"findings": [vars(finding) for finding in findings]}, indent=1))
    elif problems:
        console.print(f"The record is refused; reasons: {problems}", style="bold red")
    else:
        console.print("The record holds.", style="bold green")
        if arguments.pack:
            console.print(f"Packed: {arguments.pack}, {arguments.pack.stat().st_size / 1e6:.1f} MB", soft_wrap=True)
    return 1 if problems else 0


@contextmanager
def open_record(arguments: argparse.Namespace) -> Iterator[Path]:
    """Give a folder with the files that belong to the record, and nothing else that came with it.

    Raises:
        ValueError, OSError: as ``unpack_record`` and ``gather_record``.
    """
    with tempfile.TemporaryDirectory(prefix="keima-verify-") as temporary:
        unpacked, gathered = Path(temporary, "unpacked"), Path(temporary, "gathered")
        gathered.mkdir()
        if arguments.packed:
            unpacked.mkdir()
            unpack_record(arguments.packed, unpacked)
        gather_record(unpacked if arguments.packed else arguments.folder, gathered)
        yield gathered


def verify(run: Path, record: Record, arguments: argparse.Namespace, console: Console) -> Iterator[Finding]:
    """Yield what each check finds, the quick ones first; ``run`` holds the gathered files.

    Raises:
        ValueError: they are no run of the target's game, or need code that is not here.
    """
    if not arguments.target and not is_name(record.name):
        raise ValueError(f"the record's target {printable_line(record.name)} is no shipped one: give it as --target")
    target = load_target(find_target(arguments.target or record.name))
    own = load_experiment(target)
    copy_modules(own.own_modules, run / MODULES)  # this machine's: a record brings no code
    game = load_game(own.game.name, **own.game.options)
    with read_ledger(run) as ledger:
        if not is_of_game(ledger, game):
            raise ValueError(
                f"it is a run of {printable_line(f'{ledger.game} {ledger.options}')}, and the target's game is "
                f"{game.name} {game.options}"
            )
        check_reports(ledger)
        check_models(ledger, run, game, own.network.type)
        yield check_target(record, target)
        books = check_books(record, ledger, run)
        yield books
        if books.problems:
            return  # what follows believes the books
        settings = load_settings(run / SETTINGS)
        refuse_foreign_code("the run", settings.network.type, own.network.type)
        until = [row for row in ledger.iterations() if row["seconds"] <= record.seconds]
        yield check_clock(record, ledger, settings, core_hours=sum_core_hours(until))
        found = audit(run)
        yield Finding(
            subject="ledger",
            text=f"{found.games:,} games in {found.batches:,} batches, replayed by the rules",
            problems=tuple(found.problems),
        )
        if found.problems:
            return  # what follows reads the games and models
        yield check_seeds(ledger, settings, run)
        yield check_games(ledger, settings, game, run, record, games=arguments.games, seed=arguments.seed)
        yield check_network(ledger, settings, game, run, record, seed=arguments.seed)
    yield check_strength(
        record,
        judge_model(
            run,
            record.model_version,
            twice_the_games(target),
            seed=arguments.seed,
            processes=arguments.processes,
            title="measuring again",
            console=console,
        ),
    )


def print_finding(finding: Finding, console: Console) -> None:
    """Print what a check has found."""
    console.print(f"{finding.subject:9} {printable_line(finding.text)}", soft_wrap=True)
    for problem in finding.problems:
        console.print(f"{'':9} refused: {printable_line(problem)}", style="red", soft_wrap=True)


if __name__ == "__main__":
    sys.exit(main())
