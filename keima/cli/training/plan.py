"""Plan a run: how strong a network will be after how many hours, and what another hour or machine would add.

    keima plan my_game.py --hours 8       before a run, on this machine
    keima plan my.yaml --hours 8          with the settings that a file gives; the others are chosen
    keima plan my.yaml --distributed      on the machines that the file lists
    keima plan connect_four               a game that comes with Keima
    keima plan runs/my_game --hours 8     a run that has begun: what to expect of eight hours in all

Nothing is trained. Before a run, the game and this machine are measured, usually for less than a minute. The
strength is Elo over a random player, as a run measures it in games of its own versions: a law of growth that was fitted
to short runs of five games, with a 95 % interval. Earlier runs of the same game in the same folder of runs make it more
precise, except for those that began on smaller boards; and so does what a run that has begun has measured of itself.
"""

import argparse
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from operator import itemgetter
from pathlib import Path

if __name__ == "__main__":
    from keima.base.system.signals import exit_quietly_on_interrupt

    exit_quietly_on_interrupt()

from keima.base.disk_words import error_text
from keima.base.named import find_experiment
from keima.base.run_folder import LEDGER_NAME, resolve_run_folder
from keima.base.system.command_line import CommandLine, program_name
from keima.base.system.signals import handle_interrupts
from keima.base.system.start import check_file_is_readable, parse_before_imports, print_status, report_compiling_of
from keima.config.flags import add_set, given_settings, number
from keima.config.own_modules import keep_module
from keima.games import GAMES


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line; ``what`` becomes ``run_dir``, ``game`` or ``config``."""
    parser = CommandLine(__doc__)
    add = parser.add_argument
    add(
        "what", metavar="GAME|CONFIG|RUN", help="a game of your own or one of Keima's, an experiment, or a run's folder"
    )
    add(
        "--hours",
        type=number(above=0),
        help="how long the run shall take in all (default: as the run or the game says)",
    )
    add("--distributed", action="store_true", help="on the config's machines, not on this one")
    add_set(add)
    arguments = parser.parse_args(argv)
    arguments.run_dir = arguments.game = arguments.config = None
    folder = resolve_run_folder(Path(arguments.what))
    if (folder / LEDGER_NAME).exists():
        arguments.run_dir = folder
    elif arguments.what.endswith(".py"):
        own = Path(arguments.what).with_suffix(".yaml")
        arguments.game, arguments.config = arguments.what, own if own.exists() else None
    elif arguments.what in GAMES:
        arguments.game = arguments.what
    else:
        try:
            arguments.config = find_experiment(arguments.what)
        except ValueError as error:
            parser.error(str(error))
    return arguments


def check_inputs(arguments: argparse.Namespace) -> None:
    """Check that what the command line names exists.

    Raises:
        ValueError: it does not.
    """
    if arguments.game and arguments.game not in GAMES:
        check_file_is_readable(Path(arguments.game))
        keep_module(Path(arguments.game))
    if arguments.config:
        check_file_is_readable(arguments.config)


if __name__ == "__main__":
    parse_before_imports(parse, check_inputs, loading="PyTorch")

import yaml

from keima.base.reports.formats import (
    FILE_WIDTH,
    Column,
    format_count,
    format_duration,
    format_elo,
    format_elo_gain,
    format_percent,
    format_score,
    table_lines,
)
from keima.cluster.players import find_players_elsewhere
from keima.coach.forecast import (
    Law,
    Measurement,
    compute_at,
    count_earlier_compute,
    find_law_of_run,
    forecast_end,
    positions_at,
    rate_versions,
    read_elo_results,
    read_laws,
    read_measurements,
)
from keima.coach.opening import list_other_runs, list_runs_in
from keima.coach.planning import TIMES, Outlook, find_first_beating, list_remarks, plan_run
from keima.coach.proposal import Choice, choose_settings, list_reasons
from keima.coach.session import FIXABLE
from keima.config.load import load_settings
from keima.data.ledger import read_ledger
from keima.report.games.game_view import load_game_of_run


@handle_interrupts
@report_compiling_of
def main(argv: Sequence[str] | None = None) -> int:
    """Run the program; returns its exit code: 0, or 2 after an error that the user can correct."""
    arguments = parse(argv)
    try:
        return show_run(arguments) if arguments.run_dir else show_plan(arguments)
    except FIXABLE as error:
        print(f"{program_name()}: {error_text(error)}", file=sys.stderr)
        return 2


# Before a run.


def show_plan(arguments: argparse.Namespace) -> int:
    """Print what to expect of a run that has not begun."""
    overrides = given_settings(arguments)
    if arguments.hours:
        overrides["run.minutes"] = arguments.hours * 60
    if arguments.distributed:
        overrides["distributed.enabled"] = True
    with config_file(arguments) as path:
        choice = choose_settings(
            path,
            overrides,
            say=print_status,
            find_players=lambda settings: find_players_elsewhere(path, settings.distributed, say=print_status),
        )
    if choice.settings.run.iterations:
        print(f"run.iterations may end the run sooner, after {choice.settings.run.iterations:,} iterations.")
    for line in list_reasons(choice.game, choice.report, choice.proposal, choice.sections):
        print(line)
    print()
    if choice.game.num_players != 2 or choice.game.num_outcomes:
        print("Before a run, strength is only foretold in games of two players without chance.")
        return 0
    earlier = list_runs_in(choice.settings.run.folder.parent)
    law = read_laws(earlier, choice.game)["elo"]
    starts = (find_first_beating(run, choice.game) for run in reversed(earlier))
    known = next((start for start in starts if start), None)
    show_outlooks(choice, law, known)
    return 0


@contextmanager
def config_file(arguments: argparse.Namespace) -> Iterator[Path]:
    """Yield the file with the settings; for a game without one, a file that exists within the block."""
    if arguments.config:
        yield arguments.config
        return
    source = {"name": arguments.game} if arguments.game in GAMES else {"module": str(Path(arguments.game).resolve())}
    with tempfile.TemporaryDirectory(prefix="keima-plan-") as folder:
        path = Path(folder) / f"{Path(arguments.game).stem}.yaml"
        path.write_text(yaml.safe_dump({"run": {"name": path.stem, "auto": True}, "game": source}), encoding="utf-8")
        yield path


def show_outlooks(choice: Choice, law: Law, known: Measurement | None) -> None:
    """Print the table of lengths, and remarks."""
    planned = choice.proposal.minutes / 60
    outlooks = plan_run(choice, law, known=known)
    print_table(HEADINGS, [outlook_cells(each) for each in outlooks])
    print()
    if known:
        print("The earlier runs of this game that are here have been taken into account.")
    else:
        print(f"It should play sensibly after about {format_duration(choice.proposal.hours * 3600)}.")
    for line in list_remarks(
        law,
        hours=planned,
        compute=outlooks[TIMES.index(1.0)].compute,
        machines=max(1, choice.players.machines),
    ):
        print(line)


def outlook_cells(outlook: Outlook) -> tuple[str, ...]:
    """Return the cells of a run's line."""
    network, search = (outlook.proposal.settings[name] for name in ("network", "search"))
    strength = max(0.0, outlook.expected.strength)
    return (
        format_duration(outlook.hours * 3600),
        f"{network.get('blocks', '')}x{network.get('channels', '')}",
        str(search["num_simulations"]),
        format_count(outlook.games),
        f"Elo {format_elo(strength, outlook.expected.margin)}",
    )


HEADINGS = ("time", "network", "simulations", "games", "strength to expect, where a random player is 0")


def print_table(headings: Sequence[str], rows: Sequence[tuple[str, ...]]) -> None:
    """Print rows of cells under headings."""
    columns = [Column[tuple[str, ...]](title=title, cell=itemgetter(i), left=True) for i, title in enumerate(headings)]
    for line in table_lines(columns, rows, FILE_WIDTH):
        print(line.plain.rstrip())


# A run that has begun.


def show_run(arguments: argparse.Namespace) -> int:
    """Print what to expect of a run that has begun."""
    folder = arguments.run_dir
    if arguments.distributed or given_settings(arguments):
        raise ValueError(f"{folder} has begun: its settings and machines are known, so give only --hours")
    settings = load_settings(folder / "config.yaml")
    with read_ledger(folder) as ledger:
        game = load_game_of_run(ledger)
        rows, results = ledger.iterations(), read_elo_results(ledger, game)
    laws, points = read_laws(list_other_runs(folder), game), game.height * game.width
    if not rows:
        raise ValueError(f"{folder} has not finished an iteration yet: plan it by its game or config")
    done, decays = rows[-1]["seconds"], settings.training.learning_rate_schedule == "cosine"
    by_iterations = done * (settings.run.iterations or 0) / len(rows)
    planned = max(done, 60 * (settings.run.minutes or 0.0) or by_iterations)
    whole = 3600 * arguments.hours if arguments.hours else planned
    if whole < done:
        raise ValueError(f"{folder} has run for {format_duration(done)} already; give more --hours, in all")
    before = count_earlier_compute(folder)
    measured = read_measurements(rows, results, points=points, seconds=planned, decays=decays, before=before)
    if not measured:
        evaluation = settings.evaluation
        if not evaluation.every or not (evaluation.rating_games or evaluation.score_games or evaluation.perfect_play):
            raise ValueError(
                f"{folder} does not measure its strength: evaluation.every or evaluation.rating_games is 0"
            )
        first = "its mean score must be above 0" if game.num_players == 1 else "its network must beat a random player"
        raise ValueError(f"{folder} has not measured a strength that grows: {first} first")
    print(f"{folder}: {format_duration(done)}, {rows[-1]['total_games']:,} games so far")
    names = [name for name in FORMS if name in measured]
    table = []
    for seconds in sorted({time * whole for time in TIMES if time * whole > done}):
        expected = forecast_end(measured, rows, points=points, seconds=seconds, decays=decays, before=before, laws=laws)
        games = positions_at(rows, seconds) * rows[-1]["total_games"] / max(1, rows[-1]["total_positions"])
        cells = [FORMS[name][1](expected[name].strength, expected[name].margin) for name in names]
        table.append((format_duration(seconds), format_count(games), *cells))
    newest = max((version for version, _, _ in rate_versions(results)), default=0)
    headings = ("time in all", "games", *(FORMS[name][0].format(newest) for name in names))
    print_table(headings, table)
    if law := find_law_of_run(measured, laws):
        for line in list_remarks(
            law,
            hours=whole / 3600,
            compute=compute_at(rows, whole, points=points, before=before),
            machines=settings.distributed.machine_count,
        ):
            print(line)
    return 0


FORMS = {
    "elo": ("Elo above model {}", format_elo_gain),
    "error": ("search error", format_percent),
    "score": ("mean score", format_score),
}


if __name__ == "__main__":
    sys.exit(main())
