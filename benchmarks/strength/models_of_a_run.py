"""Measure models of a run after its end, on solved positions: how strong it was at several times."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from benchmarks.strength.perfect_play import MAX_BATCH, network_values, search_choices
from keima.base.files import write_atomically
from keima.config.load import load_settings
from keima.evaluation.perfect_play import (
    SolvedPositions,
    errors,
    load_positions,
    policy_actions,
    read_positions,
)
from keima.games import Game, load_game
from keima.networks.files.model_heading import model_path_of_run
from keima.networks.inference.evaluator import Evaluator
from keima.play.arena.players import read_model

EARLIEST = 1 / 8  # the share of a run's time after which the first model is measured


@dataclass(frozen=True, kw_only=True)
class Moment:
    """A run at the end of an iteration, and what its model is worth."""

    seconds: float
    games: int
    model_version: int
    policy_error: float | None = None
    squared_error: float | None = None  # of the value
    search_error: float | None = None


def read_moments(file: Path) -> list[Moment]:
    """What has been measured so far, by time."""
    rows = json.loads(file.read_text()) if file.exists() else []
    return [Moment(**row) for row in rows]


def measure_models(run: Path, file: Path, *, points: int, more: Sequence[Path] = ()) -> None:
    """Measure ``points`` models of a run, the last one and earlier ones evenly spaced in the logarithm of time.

    The figures go to ``file``: those of the network alone first, which is quick, then those with search, the last model
    before all others. Whenever it is interrupted, the most telling figures are there.

    Args:
        run: its folder.
        file: what it holds already is not measured again.
        points: the number of models.
        more: files of solved positions, in addition to those that are shipped.

    Raises:
        OSError, ValueError: files of the run or of positions cannot be read.
    """
    settings = load_settings(run / "config.yaml")
    game = load_game(settings.game.name, **settings.game.options)
    positions = solved_positions(game, more)
    known = {moment.model_version: moment for moment in read_moments(file)}
    moments = {each.model_version: known.get(each.model_version, each) for each in spaced_moments(run, points)}
    for with_search in (False, True):
        for version, moment in reversed(list(moments.items())):
            if (moment.search_error if with_search else moment.policy_error) is not None:
                continue
            model = read_model(model_path_of_run(run, version))
            if with_search:
                simulations = settings.evaluation.num_simulations
                choices = search_choices(game, model, settings.search, positions, simulations)
                found = {"search_error": errors(positions, choices).share}
            else:
                evaluate = Evaluator(model.build(game), game, max_batch=MAX_BATCH)
                values = network_values(evaluate, positions, MAX_BATCH)
                found = {
                    "policy_error": errors(positions, policy_actions(positions, evaluate)).share,
                    "squared_error": float(np.square(values - positions.best).mean()),
                }
            moments[version] = Moment(**(asdict(moment) | found))
            write_atomically(file, json.dumps([asdict(each) for each in moments.values()], indent=1).encode())


def solved_positions(game: Game, more: Sequence[Path]) -> SolvedPositions:
    """The shipped positions of a game and those of other files.

    Raises:
        OSError, ValueError: there are none, or a file cannot be read.
    """
    shipped = load_positions(game)
    if shipped is None:
        raise ValueError(f"there are no solved positions of {game.name}")
    parts = [shipped, *(read_positions(game, path) for path in more)]
    columns = ([getattr(part, name) for part in parts] for name in ("states", "observations", "values"))
    return SolvedPositions(*map(np.concatenate, columns))


def spaced_moments(run: Path, points: int) -> list[Moment]:
    """The ends of iterations nearest to times that are evenly spaced in their logarithm, from an eighth of the run's
    time to its end; a single one is its end.
    """
    rows = json.loads((run / "training_stats.json").read_text())
    moments = {  # the last of each model
        row["model_version"]: Moment(
            seconds=row["seconds"], games=row["total_games"], model_version=row["model_version"]
        )
        for row in rows
    }
    end = rows[-1]["seconds"]
    nearest = (
        min(moments.values(), key=lambda moment: abs(moment.seconds - seconds))
        for seconds in np.geomspace(end, end * EARLIEST, points)  # the end first: it is what one point gives
    )
    return sorted(dict.fromkeys(nearest), key=lambda moment: moment.seconds)
