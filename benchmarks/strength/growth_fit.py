"""Fit the law of growth of keima/coach/forecast.py to rated models of several games.

    elo = 800 + slope[game] * doublings(c),    doublings(c) = (1 - lasting ** log2(c)) / (1 - lasting)
    c = positions / (points * begins[game]) * (simulations / 64) ** of_simulations * (size / (3 * 32**2)) ** of_size

A game's ``begins`` is after how many positions per point of the board its networks beat the random player, who then
scores 1 %.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from keima.base.reports.intervals import Z
from keima.coach.forecast import ELO_LASTING, ELO_PER_PLY, POSITIONS_PER_POINT
from keima.coach.planning import BEATEN_ELO, SIMULATIONS_EXPONENT, SIZE_EXPONENT, USUAL_SIMULATIONS, USUAL_SIZE

STEPS, DAMPING, NUDGE = 100, 1e-3, 1e-5  # of Levenberg's and Marquardt's method
LASTING_WITHIN = 0.3, 1.2
SHARED = 3  # parameters of all games


@dataclass(frozen=True, kw_only=True)
class RatedModel:
    """A model, what it took, and how strong it is."""

    game: str
    run: str
    points: int  # of the board
    plies: float  # of games between random players, on average
    simulations: int
    size: float  # blocks x channels^2
    positions: int  # played until then
    elo: float  # over the random player


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A figure with half the width of its 95 % interval."""

    value: float
    margin: float


@dataclass(frozen=True, kw_only=True)
class GameGrowth:
    """How strength grows in one game."""

    game: str
    plies: float
    begins: Estimate  # positions per point of the board
    slope: Estimate  # Elo for the first doubling
    per_ply: float  # the same for each ply


@dataclass(frozen=True, kw_only=True)
class Growth:
    """How strength grows."""

    games: list[GameGrowth]
    of_simulations: Estimate
    of_size: Estimate
    lasting: Estimate
    scatter: float  # standard deviation of a model about its curve, Elo


def fit_growth(models: Sequence[RatedModel]) -> Growth:
    """Fit the law; each margin is by the jackknife over runs, whose models are not independent. Games with a single run
    are left out.

    Raises:
        ValueError: no game has two runs.
    """
    runs_of = Counter(game for game, _ in {(model.game, model.run) for model in models})
    models = [model for model in models if runs_of[model.game] > 1]
    if not models:
        raise ValueError("a law needs the models of two runs of a game")
    plies = {model.game: model.plies for model in models}
    games, runs = sorted(plies), sorted({model.run for model in models})
    of_games = [math.log(POSITIONS_PER_POINT) for _ in games] + [math.log(ELO_PER_PLY * plies[game]) for game in games]
    shipped = np.array([SIMULATIONS_EXPONENT, SIZE_EXPONENT, ELO_LASTING, *of_games])
    whole = _fit(models, games, shipped)
    without = np.array([_fit([model for model in models if model.run != run], games, whole) for run in runs])
    # variance = (n - 1) / n * sum((estimate without one - their mean)^2) (Tukey 1958)
    deviation = np.sqrt((len(runs) - 1) / len(runs) * ((without - without.mean(axis=0)) ** 2).sum(axis=0))

    def estimate(place: int) -> Estimate:
        return Estimate(value=float(whole[place]), margin=float(Z * deviation[place]))

    def of_logarithm(place: int) -> Estimate:
        value = math.exp(whole[place])
        return Estimate(value=value, margin=value * math.sinh(Z * deviation[place]))

    found = []
    for place, game in enumerate(games):
        begins, slope = of_logarithm(SHARED + place), of_logarithm(SHARED + len(games) + place)
        per_ply = slope.value / plies[game]
        found.append(GameGrowth(game=game, plies=plies[game], begins=begins, slope=slope, per_ply=per_ply))
    freedom = max(1, len(models) - len(whole))
    scatter = math.sqrt(float((_residuals(whole, models, games) ** 2).sum()) / freedom)
    return Growth(games=found, of_simulations=estimate(0), of_size=estimate(1), lasting=estimate(2), scatter=scatter)


def _residuals(at: NDArray[np.float64], models: Sequence[RatedModel], games: Sequence[str]) -> NDArray[np.float64]:
    """Return how far the models are above the law with the parameters ``at``: of_simulations, of_size and lasting, and
    of each game the logarithms of the positions per point until it begins, and of the slope.
    """
    of_simulations, of_size, lasting = at[:SHARED]
    begins, slopes = at[SHARED : SHARED + len(games)], at[SHARED + len(games) :]
    place = [games.index(model.game) for model in models]
    compute = (
        np.array([math.log(model.positions / model.points) for model in models])
        - begins[place]
        + of_simulations * np.array([math.log(model.simulations / USUAL_SIMULATIONS) for model in models])
        + of_size * np.array([math.log(model.size / USUAL_SIZE) for model in models])
    ) / math.log(2)
    doublings = compute if abs(lasting - 1) < 1e-6 else (1 - lasting**compute) / (1 - lasting)
    return np.array([model.elo for model in models]) - BEATEN_ELO - np.exp(slopes)[place] * doublings


def _fit(models: Sequence[RatedModel], games: Sequence[str], at: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the parameters of the least squares, beginning ``at`` (Levenberg 1944, Marquardt 1963)."""
    damping, residuals = DAMPING, _residuals(at, models, games)
    for _ in range(STEPS):
        nudges = NUDGE * np.eye(len(at))
        jacobian = np.stack([(_residuals(at + each, models, games) - residuals) / NUDGE for each in nudges], axis=1)
        normal = jacobian.T @ jacobian
        # a parameter that no model depends on stays where it is
        damped = normal + damping * np.diag(np.diag(normal)) + 1e-9 * np.eye(len(at))
        tried = at - np.linalg.solve(damped, jacobian.T @ residuals)
        tried[2] = np.clip(tried[2], *LASTING_WITHIN)
        after = _residuals(tried, models, games)
        if (after**2).sum() < (residuals**2).sum():
            at, residuals, damping = tried, after, damping / 3
        else:
            damping *= 4
    return at
