"""Compare what a run foretold after a tenth of its time with what it reached.

    python benchmarks/strength/forecasts.py runs/othello runs/hex7
    python benchmarks/strength/forecasts.py runs/* --after 0.2

Of each finished run, only the iterations and rating games of its first --after are shown to the law of growth
(keima/coach/forecast.py), as shipped. The strength that it expects at the end is compared with the one that the whole
run measured: Elo above the same version, in all of its games together, and the search error where there is a solver.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.harness import Parser, Report
from keima.base.reports.intervals import Z
from keima.coach.forecast import (
    count_earlier_compute,
    forecast_end,
    make_laws,
    rate_versions,
    read_elo_results,
    read_measurements,
)
from keima.config.flags import number
from keima.config.load import load_settings
from keima.data.ledger import read_ledger
from keima.evaluation.elo import rate_players
from keima.evaluation.strength import model_player_name, model_player_version
from keima.games import load_game

Line = tuple[str, float, float, float, float]


def compare_run(run: Path, after: float) -> Iterator[Line]:
    """Yield what was expected at the end, its margin, what was reached, and its margin, of each measure."""
    settings = load_settings(run / "config.yaml")
    game = load_game(settings.game.name, **settings.game.options)
    with read_ledger(run) as ledger:
        rows, results = ledger.iterations(), read_elo_results(ledger, game)
    seconds, decays = rows[-1]["seconds"], settings.training.learning_rate_schedule == "cosine"
    early = [row for row in rows if row["seconds"] <= after * seconds]
    versions = {row["evaluation"]["model_version"] for row in early if row["evaluation"]}
    if not versions:
        return
    last = max(versions)
    known = [each for each in results if model_player_version(each.first) <= last]
    points = game.height * game.width
    before = count_earlier_compute(run)
    measured = read_measurements(early, known, points=points, seconds=seconds, decays=decays, before=before)
    laws = make_laws(game)
    expected = forecast_end(measured, early, points=points, seconds=seconds, decays=decays, before=before, laws=laws)
    if "elo" in expected:
        base, newest = rate_versions(known)[-1][0], rate_versions(results)[-1][0]
        reached = rate_players(results, model_player_name(base))[model_player_name(newest)]
        yield "Elo gained", expected["elo"].strength, expected["elo"].margin, reached.elo, reached.margin
    final = next((row["evaluation"] for row in reversed(rows) if row["evaluation"]), None)
    if "error" in expected and final and final["search_error"] is not None:
        there, error, margin = expected["error"], final["search_error"], final["search_error_margin"]
        yield "search error, %", 100 * there.strength, 100 * there.margin, 100 * error, 100 * margin


def main() -> None:
    """Compare and print."""
    parser = Parser(__doc__)
    parser.add_argument("runs", type=Path, nargs="+", help="folders of finished runs")
    parser.option("--after", number(above=0), 0.1, help="the share of a run that is known")
    arguments = parser.parse()
    with Report(arguments) as report:
        columns = ("run", "measure", "expected", "margin", "reached", "margin of it", "difference", "its spreads")
        table = report.table(f"Expected after {arguments.after:g} of the time, and reached", *columns)
        for run in arguments.runs:
            for measure, expected, margin, reached, reached_margin in compare_run(run, arguments.after):
                spread = (margin**2 + reached_margin**2) ** 0.5 / Z
                difference = reached - expected
                table.add(run.name, measure, expected, margin, reached, reached_margin, difference, difference / spread)


if __name__ == "__main__":
    main()
