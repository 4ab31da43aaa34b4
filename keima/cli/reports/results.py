"""Show the results of a run: a table of its iterations, totals, and the best model; also of train_ppo_lstm.py.

    keima results runs/connect_four
    keima results --training runs/connect_four/training_stats.json --last 5
    keima results runs/connect_four --game 17           step through game 17; -1 is the last one
    keima results runs/connect_four --html report.html  a page with curves, tables and games
    keima results runs/connect_four --png curves.png    the curves as a picture
    keima results runs/a runs/b --html report.html      several runs, their curves over each other
    keima results runs/chess --pgn games.pgn            all self-play games, for chess programs
    keima results runs/go9 --sgf games.sgf              all self-play games, for Go programs
    keima results checkpoints_ppo --html report.html    a PPO run, with its last episode

"Search err" is the share of positions in which search's move throws away what perfect play would get, "Policy err" the
same for the network's first choice without search. Elo is relative to a random player at 0. The number after ± is half
the width of the 95 % interval. "Score" is the mean score of one-player games in self-play, "Measured" that of games
played to measure it. Metrics that were not measured are left out.
"""

import argparse
import io
import re
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from operator import itemgetter
from pathlib import Path

if __name__ == "__main__":
    from keima.base.system.signals import exit_quietly_on_interrupt

    exit_quietly_on_interrupt()

from keima.base.disk_words import error_text
from keima.base.run_folder import STATS_NAME, find_stats_of_board, list_run_names, name_run, stats_path
from keima.base.system.command_line import CommandLine, program_name
from keima.base.system.signals import handle_interrupts
from keima.base.system.start import parse_before_imports, report_compiling_of
from keima.config.flags import whole
from keima.data.ledger import read_ledger

LAST_ITERATIONS = 20  # iterations shown


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line; ``paths`` are the statistics files that it names, and ``path`` is the first one."""
    parser = CommandLine(__doc__)
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument(
        "runs",
        nargs="*",
        type=Path,
        default=[],
        metavar="RUN",
        help="the run's folder, or its name if it is in runs/; several are compared with --html or --png",
    )
    which.add_argument("--training", type=Path, metavar="FILE", help="its training_stats.json, or the folder")
    parser.add_argument(
        "--last",
        type=whole(),
        default=LAST_ITERATIONS,
        metavar="N",
        help="iterations in the table (default: %(default)s)",
    )
    parser.add_argument(
        "--game", type=whole(None), metavar="N", help="step through a recorded game, from 1; -1 is the last one"
    )
    parser.add_argument("--html", type=Path, metavar="FILE", help="write a page with everything and some games")
    parser.add_argument("--png", type=Path, metavar="FILE", help="draw the curves as a picture")
    parser.add_argument(
        "--svg", type=Path, metavar="FILE", help="draw this program's output as a picture of a terminal"
    )
    parser.add_argument("--pgn", type=Path, metavar="FILE", help="write all self-play games as PGN; only for chess")
    parser.add_argument(
        "--sgf",
        type=Path,
        metavar="FILE|DIR",
        help="write all self-play games as SGF, to one file or a folder; only for Go",
    )
    args = parser.parse_args(argv)
    if len(args.runs) > 1 and not (args.html or args.png):
        parser.error("several runs are compared with --html FILE or --png FILE")
    if len(args.runs) > 1 and (args.game is not None or args.svg or args.pgn or args.sgf):
        parser.error("--game, --svg, --pgn and --sgf are for one run")
    args.paths = [find_stats_of_board(stats_path(run)) for run in args.runs or [args.training]]
    args.path = args.paths[0]
    return args


def check_inputs(args: argparse.Namespace) -> None:
    """Check that the statistics files, or the run with games, exist.

    Raises:
        ValueError: it does not.
    """
    games = args.game is not None or args.pgn or args.sgf
    if games and args.path.name == STATS_NAME:
        read_ledger(args.path.parent).close()
        return
    for path in args.paths:
        if not path.exists():
            remedy = f"name a run that has finished an iteration; runs here: {list_run_names()}"
            raise ValueError(f"{path} is not there: {remedy}")


if __name__ == "__main__":
    parse_before_imports(parse, check_inputs, loading="PyTorch")

from rich.console import Console
from rich.text import Text

from keima.base.files import write_atomically
from keima.base.reports.formats import (
    FAINT,
    FILE_WIDTH,
    TITLE,
    format_count,
    format_duration,
    format_elo,
    format_percent,
    format_rate,
    format_return,
    format_score,
    table_lines,
)
from keima.networks.architectures.auxiliary_heads import make_predictor
from keima.networks.predictions import Predict
from keima.play.network_loader import load_network_from_run
from keima.ppo import results as ppo_results
from keima.ppo.rounds import Round, read_rounds
from keima.report.charts.calibration import CalibrationBin, measure_calibration
from keima.report.charts.page import make_comparison_page, make_report_charts, make_run_page
from keima.report.charts.png import draw_picture
from keima.report.charts.run_charts import AXES
from keima.report.files.run_files import StatsRow, read_stats
from keima.report.games.game_export import export_as_pgn, export_as_sgf, write_games
from keima.report.games.game_view import load_game_of_run, load_game_view, load_sample_games
from keima.report.metrics import METRICS
from keima.report.tables import TRENDS, history_columns, trend_lines
from keima.report.terminal.steps import open_keyboard, print_game, step_through

PAGE_NOTE, PICTURE_NOTE, TERMINAL_NOTE = "open it in a browser", "the run's curves", "this output as a picture"


def summary_lines(rows: Sequence[StatsRow], run_dir: Path) -> list[tuple[str, str]]:
    """Return the results of the run, as titles and texts."""
    last = rows[-1]
    planned = f" of {last.iterations:,}" if last.iterations else ""
    speed = f", {format_rate(last.total_games / last.seconds)} a second over the whole time" if last.seconds > 0 else ""
    lines = [
        ("Run", str(run_dir)),
        ("Iterations", f"{last.iteration:,}{planned} in {format_duration(last.seconds)}"),
        ("Games", f"{last.total_games:,}{speed}"),
        ("Positions", f"{last.total_positions:,}, of which {format_count(last.window_positions)} in the window"),
    ]
    bests = best_metrics(rows)
    lines += [(title, f"{value}, by model {version:,}") for title, value, version in bests]
    if bests:
        lines.append(("Best model", model_path_text(run_dir, bests[0][2])))
    return lines


def best_metrics(rows: Sequence[StatsRow]) -> list[tuple[str, str, int]]:
    """Return the best result of each measurement: its title, text, and model version."""
    evaluations = [row.evaluation for row in rows if row.evaluation]
    search = [
        (evaluation.search_error, evaluation) for evaluation in evaluations if evaluation.search_error is not None
    ]
    policy = [
        (evaluation.policy_error, evaluation) for evaluation in evaluations if evaluation.policy_error is not None
    ]
    elo = [(evaluation.elo, evaluation) for evaluation in evaluations if evaluation.elo is not None]
    score = [(evaluation.score.mean, evaluation) for evaluation in evaluations if evaluation.score]
    returns = [
        (evaluation.random_return, evaluation) for evaluation in evaluations if evaluation.random_return is not None
    ]
    bests = []
    if score:
        mean, best = max(score, key=itemgetter(0))
        bests.append(
            ("Highest mean score", format_score(mean, best.score.margin if best.score else None), best.model_version)
        )
    if search:
        error, best = min(search, key=itemgetter(0))
        bests.append(("Least search error", format_percent(error, best.search_error_margin), best.model_version))
    if policy:
        error, best = min(policy, key=itemgetter(0))
        bests.append(("Least policy error", format_percent(error), best.model_version))
    if elo:
        highest, best = max(elo, key=itemgetter(0))
        bests.append(("Highest Elo", format_elo(highest, best.elo_margin), best.model_version))
    if returns:
        highest, best = max(returns, key=itemgetter(0))
        value = format_return(highest, best.random_return_margin)
        bests.append(("Highest mean return", f"{value} against random players", best.model_version))
    return bests


def model_path_text(run_dir: Path, version: int) -> str:
    """Return the path of a model of the run, or a note that it is gone."""
    path = run_dir / "models" / f"model-{version:06d}.model"
    return str(path) if path.exists() else f"model {version:,}, whose file is no longer in {path.parent}"


def report_lines(rows: Sequence[StatsRow], run_dir: Path, *, last: int, width: int) -> list[Text]:
    """Return the table of the ``last`` iterations, sparklines over all of them, and the summary."""
    titles = summary_lines(rows, run_dir)
    lines = [
        *table_lines(history_columns(rows), rows[-last:], width),
        Text(),
        *trend_lines(TRENDS, METRICS, rows, width),
        Text(),
    ]
    if len(rows) > last:
        lines.insert(0, Text(f"The last {last} of {len(rows):,} iterations:", FAINT))
    return [*lines, *(Text.assemble((f"{title:<20}", FAINT), (text, TITLE)) for title, text in titles)]


@handle_interrupts
@report_compiling_of
def main(argv: Sequence[str] | None = None) -> int:
    """Print the results; returns the exit code: 2 if there are none."""
    args = parse(argv)
    if args.game is not None:
        return browse_game(args.path.parent, args.game)
    if args.pgn or args.sgf:
        return export_games(args.path.parent, pgn=args.pgn, sgf=args.sgf)
    try:
        check_inputs(args)
        if len(args.paths) > 1:
            return compare_runs(args)
        rounds, rows = read_results(args.path)
    except (OSError, ValueError) as error:
        print(f"{program_name()}: {error_text(error)}", file=sys.stderr)
        return 2
    if rounds:
        return print_rounds(args, rounds)
    files = ((args.html, write_page), (args.png, write_picture))
    if args.html or args.png:
        bins = newest_calibration(args.path.parent)
        return max(make(path, rows, args.path.parent, bins) for path, make in files if path)
    if args.svg:
        return write_file(
            args.svg,
            lambda: terminal_svg(report_lines(rows, args.path.parent, last=args.last, width=FILE_WIDTH)),
            TERMINAL_NOTE,
        )
    print_lines(lambda width: report_lines(rows, args.path.parent, last=args.last, width=width))
    return 0


def read_results(path: Path) -> tuple[list[Round], list[StatsRow]]:
    """Read the rounds of a PPO run, or the iterations of any other run; the other list is empty.

    Raises:
        ValueError: both are, or it is not a statistics file.
        OSError: it is missing or may not be read.
    """
    rounds = read_rounds(path)
    rows = read_stats(path) if rounds is None else []
    if not rounds and not rows:
        raise ValueError(f"{path} holds no iterations yet")
    return rounds or [], rows


def compare_runs(args: argparse.Namespace) -> int:
    """Write several runs, whose curves lie over each other, to files; returns the exit code: 2 if that fails.

    Raises:
        ValueError: some run has no iterations, or only some are PPO runs.
        OSError: a file is missing or may not be read.
    """
    found = [read_results(path) for path in args.paths]
    of_ppo = [bool(rounds) for rounds, _ in found]
    if any(of_ppo) and not all(of_ppo):
        raise ValueError(f"{args.paths[of_ppo.index(True)]} is a PPO run: compare it only with other PPO runs")
    folders = [path.parent.resolve() for path in args.paths]
    names = [name_run(folder) for folder in folders]
    names = names if len(set(names)) == len(names) else list(map(str, folders))
    runs, summaries = [], []
    for (rounds, rows), name, folder in zip(found, names, folders, strict=True):
        drawn = (
            ppo_results.make_charts(rounds, folder)
            if rounds
            else make_report_charts(name, rows, newest_calibration(folder))
        )
        runs.append(replace(drawn, name=name))
        summaries.append(ppo_results.summarize_run(rounds, folder) if rounds else summary_lines(rows, folder))
    axes = ppo_results.AXES if all(of_ppo) else AXES
    codes = []
    if args.html:
        codes.append(write_file(args.html, lambda: make_comparison_page(runs, summaries, axes).encode(), PAGE_NOTE))
    if args.png:
        codes.append(
            write_file(
                args.png, lambda: draw_picture(" and ".join(names), runs, next(iter(axes.items()))), PICTURE_NOTE
            )
        )
    return max(codes)


def print_rounds(args: argparse.Namespace, rounds: Sequence[Round]) -> int:
    """Print a PPO run, or write it to files; returns the exit code: 2 if a file cannot be written."""
    folder = args.path.parent
    if args.html or args.png:
        page_written = (
            write_file(args.html, lambda: ppo_results.make_page(rounds, folder).encode(), PAGE_NOTE) if args.html else 0
        )
        drawn = write_file(args.png, lambda: ppo_results.draw_png(rounds, folder), PICTURE_NOTE) if args.png else 0
        return max(page_written, drawn)
    print_lines(lambda width: ppo_results.make_report(rounds, folder, last=args.last, width=width))
    return 0


def terminal_svg(lines: Sequence[Text]) -> bytes:
    """Draw a terminal with these lines as a self-contained SVG file."""
    console = Console(record=True, width=FILE_WIDTH, file=io.StringIO(), highlight=False, force_terminal=True)
    for line in lines:
        console.print(line, soft_wrap=True)
    drawn = console.export_svg(title="keima results", unique_id="keima")
    return re.sub(r"@font-face \{.*?\}\s*", "", drawn, flags=re.DOTALL).encode()


def print_lines(lines: Callable[[int], Sequence[Text]]) -> None:
    """Print lines made for the terminal's width."""
    console = Console(highlight=False)
    for line in lines(console.width if console.is_terminal else FILE_WIDTH):
        console.print(line, soft_wrap=True)


def write_file(path: Path, make: Callable[[], bytes], what: str) -> int:
    """Write a file and print what it is; returns the exit code: 2 if that fails."""
    try:
        write_atomically(path, make(), mode=0o644)
    except (ValueError, OSError) as error:
        print(f"{program_name()}: {error_text(error)}", file=sys.stderr)
        return 2
    print(f"{path}: {what}")
    return 0


def browse_game(run_dir: Path, number: int) -> int:
    """Step through a recorded game, or print it without a terminal; returns the exit code: 2 if there is none."""
    console = Console(highlight=False)
    try:
        view = load_game_view(run_dir, number)
    except (ValueError, OSError) as error:
        print(f"{program_name()}: {error_text(error)}", file=sys.stderr)
        return 2
    if console.is_terminal and sys.stdin.isatty():
        with open_keyboard() as read_key, suppress(KeyboardInterrupt):
            step_through(view, console, read_key)
    else:
        print_game(view, console)
    return 0


def write_page(path: Path, rows: Sequence[StatsRow], run_dir: Path, bins: Sequence[CalibrationBin]) -> int:
    """Write the run's page, without games if they cannot be read; returns the exit code: 2 if that fails."""
    try:
        games = load_sample_games(run_dir, load_predictor(run_dir))
    except (ValueError, OSError) as error:
        print(f"{program_name()}: the page has no games: {error_text(error)}", file=sys.stderr)
        games = []
    return write_file(
        path,
        lambda: make_run_page(name_run(run_dir), summary_lines(rows, run_dir), rows, games, bins).encode(),
        PAGE_NOTE,
    )


def load_predictor(run_dir: Path) -> Predict | None:
    """Load the predictions of a run's newest network; None if it has learned none.

    Raises:
        ValueError: there is no such run, or this program does not play it.
    """
    with read_ledger(run_dir) as ledger:
        if not load_game_of_run(ledger).won_by_area:
            return None
    try:
        playable = load_network_from_run(run_dir)
        return make_predictor(playable.model.build(playable.game))
    except (ValueError, OSError) as error:
        print(f"{program_name()}: the network's predictions are not drawn: {error_text(error)}", file=sys.stderr)
        return None


def newest_calibration(run_dir: Path) -> list[CalibrationBin]:
    """Return the calibration of search in the newest games; empty if they cannot be read."""
    try:
        return measure_calibration(run_dir, log_event=lambda text: print(f"{program_name()}: {text}", file=sys.stderr))
    except ValueError:
        return []


def export_games(run_dir: Path, *, pgn: Path | None, sgf: Path | None) -> int:
    """Write the run's games; returns the exit code: 2 if that fails."""
    for path, games in ((pgn, export_as_pgn(run_dir)), (sgf, export_as_sgf(run_dir))):
        if path:
            try:
                print(f"{path}: {write_games(path, games):,} games")
            except (ValueError, OSError) as error:
                print(f"{program_name()}: {error_text(error)}", file=sys.stderr)
                return 2
    return 0


def write_picture(path: Path, rows: Sequence[StatsRow], run_dir: Path, bins: Sequence[CalibrationBin]) -> int:
    """Write the run's curves as a PNG file; returns the exit code: 2 if that fails."""
    name, over = name_run(run_dir), next(iter(AXES.items()))
    return write_file(path, lambda: draw_picture(name, [make_report_charts(name, rows, bins)], over), PICTURE_NOTE)


if __name__ == "__main__":
    sys.exit(main())
