"""Measure how strength grows with positions, network size and simulations: short runs of several games, rated together.

    python benchmarks/strength/scaling.py --json scaling.json                     trains, then plays the matches
    python benchmarks/strength/scaling.py --games hex7 othello6 --minutes 10
    python benchmarks/strength/scaling.py --show                                  of what is finished

Each game is trained with the settings that `keima train GAME --hours` chooses, but for the network and the simulations
that the table of runs below names. As many runs go on side by side as the machine has cores, a core each. Then models
of all runs of a game, from a sixteenth on, play each other with the same number of simulations, and one
maximum-likelihood fit rates them, with the random player at 0.

The law of ``keima/coach/forecast.py`` is fitted to the models above 400 Elo by least squares, with a beginning and a
slope of its own for each game, and the same lasting share, weight of simulations and weight of the network's size for
all. Strength is a function of positions, not of time, so it does not matter how busy or fast the machine is. Margins
are 95 %, by leaving out one run at a time (the jackknife; models of one run are not independent).

Last, what the shipped law foretells of each run's end, from its models until an eighth, is compared with what the run
reached.

Runs and matches are in --folder; what is finished is not repeated, so Ctrl-C loses little.
"""

import json
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import yaml

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.harness import Parser, Report
from benchmarks.strength.growth_fit import RatedModel, fit_growth
from benchmarks.strength.short_runs import Players, ShortRun, train_side_by_side
from keima.base.files import write_atomically
from keima.base.random import seed_stream
from keima.base.reports.intervals import Z
from keima.coach.forecast import Measurement, count_compute, count_random_plies, forecast_strength, make_elo_law
from keima.coach.planning import BEATEN_ELO
from keima.coach.proposal import points_of, propose_settings, proposed_config
from keima.config.flags import number, whole
from keima.config.load import apply_overrides
from keima.config.sections.training import TrainingSettings
from keima.evaluation.elo import PairResult, rate_players
from keima.evaluation.strength import ANCHOR
from keima.games import Game, load_game
from keima.games.authoring.check import GameReport, examine_in_process

GAMES: dict[str, tuple[str, dict[str, Any]]] = {
    "connect_four": ("connect_four", {}),
    "go7": ("go", {"size": 7}),
    "hex7": ("games/hex.py", {"size": 7}),
    "othello6": ("games/othello.py", {"size": 6}),
    "gomoku9": ("games/gomoku.py", {"size": 9}),
    "einstein": ("games/einstein.py", {}),
}
RUNS = (  # blocks, channels, simulations, seed
    (3, 32, 64, 1), (2, 16, 64, 1), (4, 48, 64, 1), (3, 32, 32, 1), (3, 32, 128, 1), (3, 32, 64, 2),
)  # fmt: skip
SHARES = (1 / 16, 1 / 8, 1 / 4, 1 / 2, 1.0)  # of a run's positions, at which its models are rated
NEIGHBOURS = 2  # a model plays so many next ones of its run, and that of the next run at the same share
MATCH_SIMULATIONS = 64
FITTED_FROM = 400.0  # Elo: weaker networks grow faster
KNOWN_SHARE = 1 / 8  # of a run, from which its end is foretold
EXAMINING_SECONDS = 20.0


@dataclass(frozen=True)
class Trial:
    """What a run tries."""

    name: str  # of the game
    blocks: int
    channels: int
    simulations: int
    seed: int

    def run(self, folder: Path) -> ShortRun:
        """Return its run."""
        return ShortRun(f"{self.name}-{self.blocks}x{self.channels}-{self.simulations}-{self.seed}", folder)


@dataclass(frozen=True)
class Point:
    """A model of a run, and what it took."""

    run: str
    version: int
    share: float  # of the run's positions
    positions: int  # played so far
    elo: float = math.nan
    margin: float = math.inf

    @property
    def label(self) -> str:
        """Its name in matches."""
        return f"{self.run}:{self.version}"


class Matches(NamedTuple):
    """The models of the runs of a game, and the games between them."""

    points: list[list[Point]]  # by run
    results: list[PairResult]


class Foretold(NamedTuple):
    """What was foretold of a run's last model, Elo above that of an eighth, and what it reached."""

    run: str
    expected: float
    margin: float
    reached: float
    reached_margin: float


def _source_of(name: str) -> tuple[str, dict[str, Any]]:
    """Return a game's name or file, and its options."""
    source, options = GAMES[name]
    return str(ROOT / source) if source.endswith(".py") else source, options


def _load_game(name: str) -> Game:
    source, options = _source_of(name)
    return load_game(source, **options)


def examine_game(name: str, folder: Path) -> GameReport:
    """Return what random games show, and keep it."""
    kept = folder / f"{name}.json"
    if not kept.exists():
        report = examine_in_process(*_source_of(name), seconds=EXAMINING_SECONDS)
        write_atomically(kept, json.dumps(asdict(report)).encode())
    return GameReport(**json.loads(kept.read_text()))


def write_settings(trial: Trial, folder: Path, minutes: float) -> None:
    """Choose the settings of a run, and write them."""
    source, options = _source_of(trial.name)
    given = {
        "network": {"blocks": trial.blocks, "channels": trial.channels},
        "search": {"num_simulations": trial.simulations},
        "training": {"samples_per_position": TrainingSettings().samples_per_position},  # however fast the learner is
    }
    report = examine_game(trial.name, folder)
    proposal = propose_settings(_load_game(trial.name), report, minutes=minutes, given=given)
    document = yaml.safe_load(proposed_config(source, options, proposal))
    apply_overrides(document, {"run.seed": trial.seed, "evaluation.every": 0})
    trial.run(folder).write_settings(document)


def list_points(run: ShortRun) -> Iterator[Point]:
    """Yield the models at the shares of a run's positions."""
    rows = [row for row in run.rows() if row["learner"]]
    if not rows:
        return
    taken = set[int]()
    for share in SHARES:
        wanted = share * rows[-1]["total_positions"]
        row = min(rows, key=lambda row: abs(row["total_positions"] - wanted))
        if row["model_version"] not in taken:
            taken.add(row["model_version"])
            yield Point(run.name, row["model_version"], share, row["total_positions"])


def list_pairings(points: list[list[Point]]) -> Iterator[tuple[Point, Point | None]]:
    """Yield who plays whom; None is the random player."""
    for place, own in enumerate(points):
        yield own[0], None
        for distance in range(1, NEIGHBOURS + 1):
            yield from zip(own, own[distance:], strict=False)
        if len(points) > 1:
            yield from zip(reversed(own), reversed(points[(place + 1) % len(points)]), strict=False)


def play_matches(name: str, runs: Sequence[ShortRun], pairs: int, *, only_show: bool) -> Matches:
    """Play the matches that are still to play between the models of a game's runs."""
    begun = {run.name: run for run in runs if run.rows()}
    points = [found for run in begun.values() if (found := list(list_points(run)))]
    kept = runs[0].folder / f"{name}-matches.json"
    results = [PairResult(**row) for row in (json.loads(kept.read_text()) if kept.exists() else [])]
    played = {(result.first, result.second) for result in results}
    players = Players(_load_game(name), simulations=MATCH_SIMULATIONS)
    for first, second in () if only_show else list_pairings(points):
        names = first.label, second.label if second else ANCHOR
        if names in played:
            continue
        one = players.get(begun[first.run], first.version)
        other = players.get(begun[second.run], second.version) if second else None
        match = players.play(one, other, pairs=pairs, seed=seed_stream(*names))
        results.append(
            PairResult(first=names[0], second=names[1], wins=match.wins, draws=match.draws, losses=match.losses)
        )
        write_atomically(kept, json.dumps([asdict(result) for result in results]).encode())
    return Matches(points, results)


def rate_points(matches: Matches) -> list[Point]:
    """Return the models with their Elo over the random player."""
    ratings = rate_players(matches.results, ANCHOR)
    return [
        replace(point, elo=rating.elo, margin=rating.margin)
        for own in matches.points
        for point in own
        if (rating := ratings.get(point.label)) and math.isfinite(rating.margin)
    ]


def foretell_ends(game: Game, matches: Matches) -> Iterator[Foretold]:
    """Yield what the shipped law foretells of each run's end from its models until an eighth, and what it reached."""
    law = make_elo_law(count_random_plies(game))
    over_random = {point.label: point.elo for point in rate_points(matches)}
    for own in matches.points:
        early, end = [point for point in own if point.share <= KNOWN_SHARE], own[-1]
        base = early[-1]
        if end == base or over_random.get(base.label, 0.0) < BEATEN_ELO:  # before that, the law does not hold
            continue
        ratings = rate_players(matches.results, base.label)
        measured = [
            Measurement(
                compute=count_compute(point.positions, points_of(game)),
                share=point.share,
                strength=ratings[point.label].elo,
                error=ratings[point.label].margin / Z,
            )
            for point in early
            if over_random.get(point.label, 0.0) >= BEATEN_ELO
        ]
        compute = count_compute(end.positions, points_of(game))
        expected = forecast_strength(law, measured, compute=compute, share=1.0)
        if (reached := ratings.get(end.label)) and math.isfinite(reached.margin):  # its matches may not be played yet
            yield Foretold(end.run, expected.strength, expected.margin, reached.elo, reached.margin)


def describe_models(name: str, trials: Sequence[Trial], folder: Path, points: Sequence[Point]) -> Iterator[RatedModel]:
    """Yield the models of a game that the law is fitted to; none if no model beats random play."""
    if max((point.elo for point in points), default=0.0) < BEATEN_ELO:
        return
    game = _load_game(name)
    size, plies = points_of(game), count_random_plies(game)
    for trial in trials:
        run = trial.run(folder)
        for point in points:
            if point.run == run.name and point.elo > FITTED_FROM:
                yield RatedModel(
                    game=name,
                    run=run.name,
                    points=size,
                    plies=plies,
                    simulations=trial.simulations,
                    size=trial.blocks * trial.channels**2,
                    positions=point.positions,
                    elo=point.elo,
                )


def add_fit(report: Report, models: Sequence[RatedModel]) -> None:
    """Fit the law, and print it."""
    growth = fit_growth(models)
    table = report.table(
        f"Growth above {FITTED_FROM:.0f} Elo, scatter {growth.scatter:.0f} Elo",
        *("game", "plies", "positions per point until random play is beaten", "margin"),
        *("Elo of the first doubling", "margin", "for each ply"),
    )
    for each in growth.games:
        begins, slope = each.begins, each.slope
        table.add(each.game, each.plies, begins.value, begins.margin, slope.value, slope.margin, each.per_ply)
    table = report.table("Of all games", "figure", "value", "margin")
    table.add("share of a doubling's Elo that the next one has", growth.lasting.value, growth.lasting.margin)
    table.add("exponent of the simulations", growth.of_simulations.value, growth.of_simulations.margin)
    table.add("exponent of the network's size", growth.of_size.value, growth.of_size.margin)


def add_foretold(report: Report, foretold: Sequence[Foretold]) -> None:
    """Print what was foretold and reached."""
    columns = ("run", "foretold", "margin", "reached", "margin of it", "difference")
    table = report.table(
        "Elo above the model of an eighth, foretold by the shipped law from models until then", *columns
    )
    for each in foretold:
        table.add(*each, each.reached - each.expected)
    if foretold:
        middle = median(abs(each.reached - each.expected) for each in foretold)
        table.add("median of absolute differences", None, None, None, None, middle)


def main() -> None:
    """Train, play and print."""
    parser = Parser(__doc__)
    parser.option("--games", GAMES, tuple(GAMES), quick=("connect_four",), help="which to train")
    parser.option("--minutes", number(above=0), 3.0, quick=0.5, help="of each run")
    parser.option("--pairs", whole(), 16, quick=2, help="of games in each match")
    parser.add_argument("--folder", type=Path, default=Path("runs/scaling"), help="default: %(default)s")
    parser.add_argument("--show", action="store_true", help="print what is finished")
    arguments = parser.parse()
    folder = arguments.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    wanted = RUNS[:2] if arguments.quick else RUNS
    trials = {name: [Trial(name, *each) for each in wanted] for name in arguments.games}
    # The first runs of all games come first, so that an interrupted benchmark has some of each.
    in_turn = {trial.run(folder): trial for several in zip(*trials.values(), strict=True) for trial in several}
    with Report(arguments) as report:
        if not arguments.show:
            minutes = arguments.minutes
            train_side_by_side(list(in_turn), minutes, lambda run: write_settings(in_turn[run], folder, minutes))
        columns = ("run", "share", "positions", "Elo", "margin")
        table = report.table(f"Elo over random, {MATCH_SIMULATIONS} simulations", *columns)
        fitted, foretold = list[RatedModel](), list[Foretold]()
        for name, own in trials.items():
            runs = [trial.run(folder) for trial in own]
            matches = play_matches(name, runs, arguments.pairs, only_show=arguments.show)
            points = rate_points(matches)
            for point in points:
                table.add(point.run, point.share, point.positions, point.elo, point.margin)
            fitted.extend(describe_models(name, own, folder, points))
            foretold.extend(foretell_ends(_load_game(name), matches))
        begun = {(model.game, model.run) for model in fitted}
        if len(begun) > len({game for game, _ in begun}):  # a game has two runs
            add_fit(report, fitted)
        add_foretold(report, foretold)


if __name__ == "__main__":
    main()
