"""Forecast how strong a network will be.

Strength grows with the logarithm of what has been played (Jones, "Scaling Scaling Laws with Board Games", 2021), by
less with each doubling (Neumann and Gros, "Scaling Laws for a Multi-Agent Reinforcement Learning Model", ICLR 2023),
and once more as the learning rate decays:

    strength(c, p) = offset + slope * (1 - lasting ** log2(c)) / (1 - lasting) + decay * (1 - cos(pi * p)) / 2

after compute c and a share p of the run. Compute is 1 where a network begins to beat a random player; there a doubling
adds ``slope``, and each following one ``lasting`` times as much. The numbers were fitted to short runs of several games
(``make_laws``, by benchmarks/strength/scaling.py); what a run and earlier runs of the same game have measured refines
them, by Bayesian linear regression.
"""

import math
import sqlite3
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from keima.base.reports.intervals import Z
from keima.base.reports.run_reports import EvaluationReport
from keima.base.run_folder import list_smaller_boards
from keima.config.load import load_settings
from keima.data.ledger import Ledger, read_ledger
from keima.evaluation.elo import PairResult, rate_players
from keima.evaluation.match import RandomPlayer, play_match
from keima.evaluation.strength import (
    ANCHOR,
    find_first_to_beat_anchor,
    model_player_version,
    read_match_results,
)
from keima.games import Game, load_game

UNKNOWN_OFFSET = 1e4  # standard deviation of the offset: nothing is known about it beforehand
RECENT_ITERATIONS = 5  # whose speed is expected to last
RANDOM_PAIRS = 16  # of random games


UNREADABLE = (ValueError, OSError, LookupError, TypeError, sqlite3.Error)  # of a damaged run, or of another version


@dataclass(frozen=True, kw_only=True)
class Law:
    """How a measure of strength grows; each factor with its standard deviation from one game to another."""

    slope: float  # for the first doubling of compute
    slope_spread: float
    lasting: float = 1.0  # how much of it remains after each doubling
    decay: float  # when the learning rate decays to zero
    decay_spread: float
    scatter: float  # standard deviation of a network about its curve


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """A strength that a run has measured, on the scale of its law."""

    compute: float  # so far
    share: float  # of the run
    strength: float
    error: float  # its standard deviation


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """An expected strength, with half the width of its 95 % interval."""

    strength: float
    margin: float


# A network beats the random player, who then scores 1 %, after so many positions per point of the board: 140 in Gomoku
# on 9 x 9, 320 in Go and 490 in Hex on 7 x 7, 940 in Othello on 6 x 6, 1,530 in Connect Four.
POSITIONS_PER_POINT = 500
# Elo for the first doubling and each ply of a random game: 3.5 in Connect Four (22 plies), 5.9 in Othello (32), 8.1 in
# Hex (43), 6.1 in Gomoku (52), 6.7 in Go (67); the next doubling adds 0.80 of it. A decaying learning rate had no
# visible effect. In 9x9 Go and Hex 11x11, with more than 100 plies, 450 Elo were too few.
ELO_PER_PLY, MOST_ELO, ELO_SPREAD, ELO_LASTING = 6.0, 700.0, 0.35, 0.80
LAWS = {  # of the logarithms of the search error and of the score
    "error": Law(slope=-0.3, slope_spread=0.15, decay=-0.2, decay_spread=0.2, scatter=0.1),
    "score": Law(slope=0.3, slope_spread=0.2, decay=0.1, decay_spread=0.1, scatter=0.1),
}


def make_laws(game: Game) -> dict[str, Law]:
    """Return the laws of a game by their measures: "error", "score", and in games of two players "elo"."""
    return {**LAWS, **({"elo": make_elo_law(count_random_plies(game))} if game.num_players == 2 else {})}


def count_random_plies(game: Game) -> float:
    """Return the mean length of games between random players, which says how much there is to learn.

    The length of a run's own games would not: that of Hex on 7 x 7 falls from 43 to 24 as its network learns, that of
    Connect Four rises from 22 to 35. Outcomes of chance count, as in the positions of a run.
    """
    random = RandomPlayer(game, seed=1)
    played = play_match(game, random, random, pairs=RANDOM_PAIRS, opening_plies=0, seed=1)
    return float(np.mean([len(moves) for moves in played.moves]))


def make_elo_law(plies: float) -> Law:
    """Return the law of Elo in a game of which random games have so many plies on average."""
    slope = min(MOST_ELO, ELO_PER_PLY * plies)
    return Law(
        slope=slope,
        slope_spread=ELO_SPREAD * slope,
        lasting=ELO_LASTING,
        decay=0.0,
        decay_spread=50.0,
        scatter=40.0,
    )


def forecast_strength(law: Law, measured: Sequence[Measurement], *, compute: float, share: float) -> Forecast:
    """Return the strength to expect after so much compute and this share of the run.

    Args:
        law: of the measure.
        measured: one or more measurements of the run.
        compute: at the time that is meant.
        share: of the run by then.
    """
    mean, covariance = _fit(law, measured)
    at = _features(law, compute, share)
    # The scatter of the network that is meant is not in the fit.
    return Forecast(strength=float(at @ mean), margin=Z * math.sqrt(float(at @ covariance @ at) + law.scatter**2))


def refine_law(law: Law, measured: Sequence[Measurement]) -> Law:
    """Return the law of a game after a run of it that has measured its strength at least twice."""
    mean, covariance = _fit(law, measured)
    _, slope_spread, decay_spread = np.sqrt(np.diag(covariance))
    sign = math.copysign(1.0, law.slope)  # a short or noisy run may seem to get weaker
    return replace(
        law,
        slope=sign * max(0.0, sign * float(mean[1])),
        slope_spread=float(slope_spread),
        decay=float(mean[2]),
        decay_spread=float(decay_spread),
    )


def count_doublings(law: Law, compute: float) -> float:
    """Return how many times ``law.slope`` the strength has grown since a compute of 1."""
    doublings = math.log2(max(compute, 1e-9))
    return doublings if law.lasting == 1 else (1 - law.lasting**doublings) / (1 - law.lasting)


def gain_of(law: Law, compute: float, times: float) -> float:
    """Return the strength that so many times this compute adds."""
    begin, end = (max(1.0, each) for each in (compute, compute * times))  # before that, the law does not hold
    return law.slope * (count_doublings(law, end) - count_doublings(law, begin))


def find_gains(law: Law, compute: float, *, hours: float, machines: int | None) -> tuple[float, float | None]:
    """Return the strength that another hour would add to a run of so many hours and so much compute in all, and another
    machine; None: it is not known how many there are.
    """
    of_machine = gain_of(law, compute, (machines + 1) / machines) if machines else None
    return gain_of(law, compute, (hours + 1) / hours), of_machine


def _features(law: Law, compute: float, share: float) -> NDArray[np.float64]:
    return np.array([1.0, count_doublings(law, compute), (1 - math.cos(math.pi * min(share, 1.0))) / 2])


def _fit(law: Law, measured: Sequence[Measurement]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return mean and covariance of (offset, slope, decay) after the measurements."""
    prior = np.array([0.0, law.slope, law.decay])
    precision = np.diag([UNKNOWN_OFFSET**-2, law.slope_spread**-2, law.decay_spread**-2])
    rows = np.array([_features(law, each.compute, each.share) for each in measured])
    weights = np.array([1 / (each.error**2 + law.scatter**2) for each in measured])
    values = np.array([each.strength for each in measured])
    # covariance = (prior precision + X' W X)**-1, mean = covariance (prior precision prior + X' W y)
    covariance = np.linalg.inv(precision + rows.T * weights @ rows)
    return covariance @ (precision @ prior + rows.T * weights @ values), covariance


# The measurements of a run, from its ledger.


def read_measurements(
    rows: Sequence[Mapping[str, Any]],
    results: Sequence[PairResult],
    *,
    points: int,
    seconds: float,
    decays: bool,
    before: float = 0.0,
) -> dict[str, list[Measurement]]:
    """Return what a run has measured, by the names of ``make_laws``.

    Elo is above the newest rated version, and begins with the
    first one that beat the random player: before that it grows faster.

    Args:
        rows: the reports of its iterations (``IterationReport.as_dict``).
        results: its rating games.
        points: of the board.
        seconds: how long it runs in all.
        decays: whether its learning rate decays.
        before: compute on smaller boards (``count_earlier_compute``).
    """
    versions = [row["model_version"] for row in rows]

    def measurement(version: int, strength: float, error: float) -> Measurement:
        row = rows[bisect_left(versions, version)]
        share = row["seconds"] / seconds if decays else 0.0
        return Measurement(
            compute=before + count_compute(row["total_positions"], points),
            share=share,
            strength=strength,
            error=error,
        )

    found = {"elo": [measurement(*each) for each in rate_versions(results) if each[0] <= versions[-1]]}
    for report in (row["evaluation"] for row in rows if row["evaluation"]):
        if report["model_version"] > versions[-1]:
            continue
        score = report["score"] or {"mean": 0.0, "margin": None}
        for name, value, margin in (
            ("error", report["search_error"], report["search_error_margin"]),
            ("score", score["mean"], score["margin"]),
        ):
            if value and margin and margin < value:  # else its logarithm says nothing
                error = margin / Z / value  # of the logarithm
                found.setdefault(name, []).append(measurement(report["model_version"], math.log(value), error))
    return {name: each for name, each in found.items() if each}


def read_elo_results(ledger: Ledger, game: Game) -> list[PairResult]:
    """Read the rating games of a run in which half of the points are even: in games of two players."""
    return read_match_results(ledger) if game.num_players == 2 else []


def rate_versions(results: Sequence[PairResult]) -> list[tuple[int, float, float]]:
    """Return the rated versions from the first that beat the random player on: the Elo of each above the last one, and
    its standard deviation.
    """
    first = find_first_to_beat_anchor(results)
    names = {name for result in results for name in (result.first, result.second)} - {ANCHOR}
    if first is None:
        return []
    newest = max(names, key=model_player_version)
    ratings = {
        model_player_version(name): rating for name, rating in rate_players(results, newest).items() if name in names
    }
    return [
        (version, rating.elo, rating.margin / Z)
        for version, rating in sorted(ratings.items())
        if version >= first and math.isfinite(rating.margin)
    ]


def forecast_end(
    measured: Mapping[str, Sequence[Measurement]],
    rows: Sequence[Mapping[str, Any]],
    *,
    points: int,
    seconds: float,
    decays: bool,
    laws: Mapping[str, Law],
    before: float = 0.0,
) -> dict[str, Forecast]:
    """Return what to expect at the end of a run, by the names of ``make_laws``: Elo above the newest rated version, the
    search error, and the score.

    Args:
        measured: what it has measured so far (``read_measurements``).
        rows, points, decays, before: see ``read_measurements``.
        seconds: how long it runs in all, which need not be how long it was to run when it measured.
        laws: of its game.
    """
    end = {"compute": compute_at(rows, seconds, points=points, before=before), "share": 1.0 if decays else 0.0}
    found = {}
    for name, each in measured.items():
        expected = forecast_strength(laws[name], each, **end)
        if name != "elo":  # the law is that of the logarithm
            value = math.exp(expected.strength)
            expected = Forecast(strength=value, margin=value * math.sinh(expected.margin))
        found[name] = expected
    return found


def find_law_of_run(measured: Mapping[str, Sequence[Measurement]], laws: Mapping[str, Law]) -> Law | None:
    """Return the law of Elo after what a run has measured; None: it has measured none. See ``forecast_end``."""
    return refine_law(laws["elo"], measured["elo"]) if "elo" in measured else None


def add_forecast(
    evaluated: EvaluationReport,
    expected: Mapping[str, Forecast],
    *,
    gains: tuple[float | None, float | None] = (None, None),
) -> EvaluationReport:
    """Return the report of an evaluation with what to expect at the end of the run (``forecast_end``), and with what
    more would add (``find_gains``).
    """
    keys = {"elo": "expected_gain", "error": "expected_error", "score": "expected_score"}
    values: dict[str, Any] = {keys[name]: each.strength for name, each in expected.items()}
    margins: dict[str, Any] = {f"{keys[name]}_margin": each.margin for name, each in expected.items()}
    return replace(evaluated, **values, **margins, gain_of_hour=gains[0], gain_of_machine=gains[1])


def is_of_game(ledger: Ledger, game: Game) -> bool:
    """Return whether a run is of this game with these options."""
    return (ledger.game, dict(ledger.options)) == (game.name, dict(game.options))


def keep_for_forecast(report: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of an iteration's report that forecasts use: a long run has many, with all their workers."""
    kept = {name: report[name] for name in ("model_version", "seconds", "total_positions", "total_games")}
    measured = report["evaluation"]
    names = ("model_version", "score", "search_error", "search_error_margin")
    return kept | {"evaluation": measured and {name: measured[name] for name in names}}


def read_laws(runs: Sequence[Path], game: Game) -> dict[str, Law]:
    """Return the laws of a game (``make_laws``) after what earlier runs of it have measured; other and damaged runs are
    passed over.

    Args:
        runs: folders of runs, those that count most last.
        game: the game.
    """
    laws = make_laws(game)
    for folder in runs:
        with suppress(*UNREADABLE), read_ledger(folder) as ledger:
            if not is_of_game(ledger, game) or not (rows := [*map(keep_for_forecast, ledger.read_iterations())]):
                continue
            settings = load_settings(folder / "config.yaml")
            if settings.game.smaller:  # its network had learned before it played the first game that counts here
                continue
            found = read_measurements(
                rows,
                read_elo_results(ledger, game),
                points=game.height * game.width,
                seconds=max(rows[-1]["seconds"], 60 * (settings.run.minutes or 0.0)),
                decays=settings.training.learning_rate_schedule == "cosine",
            )
            for name, measured in found.items():
                if len(measured) > 1:
                    laws[name] = refine_law(laws[name], measured)
    return laws


def count_compute(positions: float, points: int) -> float:
    """Return the compute of so many positions on a board of so many points."""
    return positions / (POSITIONS_PER_POINT * points)


def compute_at(rows: Sequence[Mapping[str, Any]], seconds: float, *, points: int, before: float) -> float:
    """Return the compute that a run will have taken by then, with that ``before`` on smaller boards."""
    return before + count_compute(positions_at(rows, seconds), points)


def count_earlier_compute(run_dir: Path) -> float:
    """Return the compute of a run on its smaller boards.

    Raises:
        OSError, ValueError, sqlite3.Error: it cannot be read.
    """
    found = 0.0
    for folder in list_smaller_boards(run_dir):
        with read_ledger(folder) as ledger:
            game, last = load_game(ledger.game, **ledger.options), ledger.last_iteration()
            found += count_compute(last["total_positions"] if last else 0, game.height * game.width)
    return found


def positions_at(rows: Sequence[Mapping[str, Any]], seconds: float) -> float:
    """Return how many positions a run will have played by then, at the speed of its last iterations."""
    last, before = rows[-1], rows[max(0, len(rows) - 1 - RECENT_ITERATIONS)]
    then, played = (before["seconds"], before["total_positions"]) if len(rows) > 1 else (0.0, 0)
    rate = (last["total_positions"] - played) / max(last["seconds"] - then, 1e-9)
    return float(last["total_positions"] + rate * max(0.0, seconds - last["seconds"]))
