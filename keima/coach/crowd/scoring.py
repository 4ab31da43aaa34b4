"""How far a recorded game is from the searches that its seed and its models give: one number from 0 to 1.

A worker changes its network as soon as a newer one comes, in the middle of a game and of a search. A record names the
first and the last model. So the positions are searched with each model between them, and each position is compared with
one model: the models follow each other in order, from the first to the last, so that the differences are smallest. The
search in which the model changes uses both, and passes on a tree with answers of the model before. So up to
``LEFT_OUT`` positions at a change are not compared. A lie would have to be told in these alone.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from keima.config.sections.search import SearchSettings
from keima.data.records import GameRecord
from keima.games import Game
from keima.search.puct import Evaluate
from keima.self_play.follow import Differences, FollowedGames, measure_differences

MOST_MODELS = 16  # of one game, with which its positions are searched; of more, some that lie evenly are chosen
LEFT_OUT = 4  # positions at a change of the model, at most; and never more than a third of the game at all changes
EACH_LEFT_OUT = 1e-3  # as much difference is rather compared than left out


def choose_models(record: GameRecord, available: Sequence[int]) -> list[int]:
    """Return the models with which a game is searched: all that were in play meanwhile, or ``MOST_MODELS`` of them.

    Args:
        record: the game.
        available: the versions that are here, ascending.
    """
    models = [version for version in available if record.first_model <= version <= record.last_model]
    if len(models) <= MOST_MODELS:
        return models
    return [models[index] for index in np.linspace(0, len(models) - 1, MOST_MODELS).round().astype(int)]


def search_games(
    game: Game, evaluate: Evaluate, settings: SearchSettings, records: Sequence[GameRecord]
) -> list[Differences]:
    """Search the positions of games again with one network, and compare them."""
    followed = FollowedGames(game, evaluate, settings, records).follow()
    resign_below = -settings.resignation.threshold
    return [
        measure_differences(record, again, resign_below=resign_below)
        for record, again in zip(records, followed, strict=True)
    ]


def score_game(differences: Mapping[int, Differences]) -> float:
    """Return how far a game is from its searches.

    The largest of three means over the positions that are compared, of policy targets, root values and moves, or of how
    wrong the resignation is. Each of them alone can be a lie.

    Args:
        differences: by the version of the model that searched.
    """
    found = [differences[version] for version in sorted(differences)]
    chosen = assign_models(np.stack([position_costs(each) for each in found]))
    kept = np.flatnonzero(chosen >= 0)
    means = [min(each.end for each in found)]  # the model may have changed in the last search
    for name in ("policies", "values", "moves"):
        column: NDArray[np.float64] = np.array([getattr(found[chosen[ply]], name)[ply] for ply in kept])
        known = column[~np.isnan(column)]
        means.append(float(known.mean()) if len(known) else 0.0)
    return max(means)


def position_costs(differences: Differences) -> NDArray[np.float64]:
    """Return how much each position differs ``[L]``; 0 where nothing is compared."""
    stacked = np.stack([differences.policies, differences.values, differences.moves])
    return np.where(np.isnan(stacked), 0.0, stacked).max(0)


def assign_models(costs: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return which model searched each position, from the first to the last in order; -1 where it changed.

    Args:
        costs: how much each position differs from each model's search, ``[K, L]``.
    """
    models, plies = costs.shape
    chosen = np.full(plies, -1, np.int64)
    if models == 1:
        return np.zeros(plies, np.int64)
    most = max(1, min(LEFT_OUT, plies // (3 * (models - 1))))
    # The least sum of costs up to a ply that this model searched, and how many positions are left out before it
    best, left_out = np.full((plies, models), np.inf), np.zeros((plies, models), np.int64)
    came = np.zeros((plies, models), np.int64)  # which model searched before
    for ply in range(plies):
        for model in range(models):
            if ply == 0 and model == 0:
                best[0, 0] = costs[0, 0]
            elif ply > 0:
                best[ply, model], came[ply, model] = best[ply - 1, model] + costs[model, ply], model
            for count in range(1, min(most, ply) + 1) if model > 0 else ():
                before = ply - count - 1
                earlier = int(np.argmin(best[before, :model])) if before >= 0 else 0
                sum_before = best[before, earlier] if before >= 0 else 0.0
                total = sum_before + EACH_LEFT_OUT * count + costs[model, ply]
                if total < best[ply, model]:
                    best[ply, model], came[ply, model], left_out[ply, model] = total, earlier, count
    ply, model, total = plies - 1, models - 1, best[plies - 1, models - 1]
    for count in range(1, min(most, plies - 1) + 1):  # the last model came in the last positions
        earlier = int(np.argmin(best[plies - 1 - count, :-1]))
        if (left := best[plies - 1 - count, earlier] + EACH_LEFT_OUT * count) < total:
            ply, model, total = plies - 1 - count, earlier, left
    while ply >= 0:
        chosen[ply] = model
        ply, model = ply - 1 - left_out[ply, model], came[ply, model]
    return chosen
