"""Measure what liars in a crowd do to a run: when they are found, who else is refused, and how strong it becomes.

    python benchmarks/strength/crowd_with_liars.py --minutes 60
    python benchmarks/strength/crowd_with_liars.py --minutes 60 --show          of what is finished

Two runs of --config side by side, a core each: with --honest machines that joined, and with the same and --liars more,
of the kinds in benchmarks/cluster/playing_volunteers.py. Real parts: `keima train` with its Coach and fleet, the door
with TLS, the workers, and the checks beside the Coach. A core has the main node and all machines of its run.

The first table has each liar with the games that were received of it before it was distrusted. The second has for each
run its games, the games of honest machines that were refused, and the errors of its last model in solved positions; the
third a match between the last models. Runs are in --folder.
"""

import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.harness import Parser, Report
from benchmarks.strength.short_runs import Players, ShortRun, train_side_by_side
from keima.base.random import seed_stream
from keima.base.reports.intervals import mean_margin
from keima.base.system.priority import WORKER_PRIORITY
from keima.base.system.processes import end_program
from keima.config.flags import number, whole
from keima.config.load import apply_overrides
from keima.data.ledger import Ledger, read_ledger
from keima.data.ledger_rows import QUARANTINED, model_path
from keima.evaluation.match_worker import make_match_search
from keima.evaluation.perfect_play import count_errors, load_positions
from keima.evaluation.strength import load_model_file
from keima.worker.worker_folder import is_crowd_worker

VOLUNTEERS = "benchmarks.cluster.playing_volunteers"
END_SECONDS = 60.0
PAIRS, SIMULATIONS = 200, 100


@dataclass(frozen=True)
class CrowdRun(ShortRun):
    """A run that only machines that joined play for."""

    honest: int
    liars: int

    @property
    def workspace(self) -> Path:
        """A folder of its own, since a workspace has one distributed run at a time."""
        return self.folder / f"{self.name}-workspace"

    def train(self) -> None:
        """See ``ShortRun``."""
        shutil.copytree(ROOT / "keima", self.workspace / "keima", dirs_exist_ok=True)
        words = [sys.executable, "-m", VOLUNTEERS, str(self.path), str(self.honest), str(self.liars)]
        with self.config.with_suffix(".volunteers.log").open("a") as log:
            volunteers = subprocess.Popen(
                ["nice", "-n", str(WORKER_PRIORITY), *words], cwd=ROOT, stdout=log, stderr=log
            )
            try:
                super().train()
            finally:
                end_program(volunteers, END_SECONDS)


def make_settings(config: Path, minutes: float, seed: int) -> dict[str, object]:
    """Return the settings of the runs."""
    document = yaml.safe_load(config.read_text(encoding="utf-8"))
    crowd = {"port": 0, "address": "127.0.0.1", "this_machine": False}
    changes = {
        "run.minutes": minutes,
        "run.seed": seed,
        "self_play.parallel_games": 16,
        "self_play.cache_positions": 5_000,
        "distributed": {"enabled": True, "batch_size": 10, "crowd": crowd},
    }
    apply_overrides(document, changes)
    return document


def add_liars(report: Report, ledger: Ledger) -> None:
    """Add the table of the liars."""
    table = report.table("Liars", "worker", "games received", "games refused", "why")
    distrusted = ledger.distrusted()
    for worker in ledger.workers():
        if is_crowd_worker(worker) and not is_honest(worker):
            account = ledger.account(worker)
            why = distrusted.get(worker, "NOT FOUND")
            table.add(worker, account.received, account.quarantined, why)


def is_honest(worker: str) -> bool:
    """Return whether a worker is of a machine that does not lie."""
    return "-honest" in worker


def add_strength(report: Report, runs: list[CrowdRun]) -> None:
    """Add the tables of the runs and of the match between them."""
    columns = ("games", "of honest machines", "refused", "distrusted", "search error %", "margin")
    table = report.table(f"Runs, {SIMULATIONS} simulations", "run", *columns)
    players, game = Players(runs[0].game(), simulations=SIMULATIONS), runs[0].game()
    positions = load_positions(game)
    assert positions is not None, "the game of --config has no solved positions"
    for run in runs:
        with read_ledger(run.path) as ledger:
            honest = [worker for worker in ledger.workers() if is_honest(worker)]
            games = sum(ledger.account(worker).received for worker in honest)
            refused = sum(row.games for row in ledger.batches() if row.state == QUARANTINED and is_honest(row.worker))
            distrusted = sum(worker in ledger.distrusted() for worker in honest)
        version = run.rows()[-1]["model_version"]
        model = load_model_file(model_path(run.path, version))
        search = make_match_search(game, model, run.settings().search, num_simulations=SIMULATIONS)
        errors = count_errors(positions, search.find(positions.states).actions)
        found = (100 * errors.share, 100 * errors.margin)
        table.add(run.name, run.rows()[-1]["total_games"], games, refused, distrusted, *found)
    last = [players.get(run, run.rows()[-1]["model_version"]) for run in runs]
    scores = players.play(last[0], last[1], pairs=PAIRS, seed=seed_stream(1, "crowd")).scores.mean(1)
    match = report.table("Match", "first against second", "score", "margin")
    match.add(f"{runs[0].name} against {runs[1].name}", float(scores.mean()), mean_margin(scores))


def main() -> None:
    """Train, and print the tables."""
    parser = Parser(__doc__)
    parser.option("--minutes", number(above=0), 60.0, quick=2.0, help="of each run")
    parser.option("--honest", whole(), 50, quick=4, help="machines that do as they are told")
    parser.option("--liars", whole(), 10, quick=2, help="machines that do not")
    parser.option("--seed", whole(0), 1, help="of both runs")
    parser.add_argument("--config", type=Path, default=ROOT / "configs/quickstart.yaml", help="default: %(default)s")
    parser.add_argument("--folder", type=Path, default=Path("runs/crowd_with_liars"), help="default: %(default)s")
    parser.add_argument("--show", action="store_true", help="only show what is finished")
    arguments = parser.parse()
    folder = arguments.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    runs = [
        CrowdRun("with_liars", folder, honest=arguments.honest, liars=arguments.liars),
        CrowdRun("honest_only", folder, honest=arguments.honest, liars=0),
    ]
    with Report(arguments) as report:
        if not arguments.show:
            for run in runs:
                run.write_settings(make_settings(arguments.config, arguments.minutes, arguments.seed))
            train_side_by_side(runs, arguments.minutes)
        with read_ledger(runs[0].path) as ledger:
            add_liars(report, ledger)
        add_strength(report, runs)


if __name__ == "__main__":
    main()
