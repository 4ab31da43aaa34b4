"""How strong the network is: errors against perfect play, ratings against the random player and earlier versions, gating."""

import math
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from configs.schema import EvaluationSettings, SearchSettings, Settings
from games import Game
from games.game import Actions, States
from training.evaluation.elo import Result, rate, sprt
from training.evaluation.match import MatchResult, RandomPlayer, SearchPlayer, play_match
from training.evaluation.perfect_play import errors, load_positions, policy_actions
from training.evaluator import Evaluator
from training.files import read_limited
from training.ledger import Ledger
from training.model_file import MAX_MODEL_BYTES, Model, decode_model
from training.random import seed_stream
from training.reports import EvaluationReport
from training.search.search import Search

ANCHOR = "random"
TREES = 64  # searched side by side
OPENING_PLIES = 4
SPRT_PAIRS = 16  # between two looks at the test
ANCHOR_SHARE = 0.5  # of the rating games; the others are against earlier versions

Look = Callable[[], None]


class Strength:
    """Measures the models of one run.

    Args:
        game: what they play.
        settings: the run's.
        ledger: where matches and ratings are entered.
    """

    def __init__(self, game: Game, settings: Settings, ledger: Ledger) -> None:
        self._game, self._ledger, self._seed = game, ledger, settings.run.seed
        self._settings: EvaluationSettings = settings.evaluation
        self._search_settings = playing(settings.search)
        self._positions = load_positions(game, count=self._settings.positions) if self._settings.perfect_play else None

    def measure(self, model: Model, *, look: Look) -> EvaluationReport:
        """How strong ``model`` is."""
        started = time.monotonic()
        evaluator = self.evaluator(model)
        search = self.search(evaluator)
        search_error = margin = policy_error = None
        if self._positions is not None:
            chosen = search_actions(search, self._positions.states, look)
            found = errors(self._positions, chosen)
            search_error, margin = found.share, found.margin
            policy_error = errors(self._positions, policy_actions(self._positions, evaluator)).share
        not_lost = self._play_for_ratings(model.model_version, SearchPlayer(search), look)
        rating = self._rate().get(name_of(model.model_version))
        return EvaluationReport(
            model_version=model.model_version,
            num_simulations=self._settings.num_simulations,
            search_error=search_error,
            search_error_margin=margin,
            policy_error=policy_error,
            elo=rating[0] if rating else None,
            elo_margin=rating[1] if rating else None,
            random_not_lost=not_lost,
            seconds=time.monotonic() - started,
        )

    def accepts(self, candidate: Model, best: Model, *, look: Look) -> bool:
        """Whether ``candidate`` is stronger than ``best`` by the sequential test; True without gating."""
        if self._settings.gating == "none":
            return True
        test = self._settings.sprt
        players = [SearchPlayer(self.search(self.evaluator(model))) for model in (candidate, best)]
        scores = np.zeros((0, 2))
        verdict = None
        while verdict is None and scores.size < self._settings.gating_games:
            seed = seed_stream(self._seed, "gating", candidate.model_version, len(scores))
            result = play_match(self._game, players[0], players[1], pairs=SPRT_PAIRS, opening_plies=OPENING_PLIES, seed=seed, look=look)
            scores = np.concatenate([scores, result.scores])
            verdict = sprt(scores.mean(1), elo0=test.elo0, elo1=test.elo1, alpha=test.alpha, beta=test.beta)
        self._enter(name_of(candidate.model_version), name_of(best.model_version), MatchResult(scores=scores))
        return bool(verdict)

    def evaluator(self, model: Model) -> Evaluator:
        """``model``, ready to play."""
        return Evaluator(model.build(self._game), self._game, max_batch=TREES)

    def search(self, evaluator: Evaluator) -> Search:
        """Search for strength with the evaluation's simulations."""
        return Search(self._game, evaluator, self._search_settings, num_simulations=self._settings.num_simulations, num_trees=TREES)

    def _play_for_ratings(self, version: int, player: SearchPlayer, look: Look) -> float | None:
        """Play the anchor and the versions rated before; returns the share of games not lost to the anchor."""
        pairs = self._settings.rating_games // 2
        if pairs == 0:
            return None
        earlier = [opponent for opponent in self._rated_versions() if opponent < version]
        opponents = sorted({earlier[-1], earlier[len(earlier) // 2]}) if earlier else []
        anchor_pairs = max(1, math.ceil(pairs * ANCHOR_SHARE)) if opponents else pairs
        seed = seed_stream(self._seed, "rating", version)
        play = partial(play_match, self._game, player, opening_plies=OPENING_PLIES, seed=seed, look=look)
        result = play(RandomPlayer(self._game, seed), pairs=anchor_pairs)
        self._enter(name_of(version), ANCHOR, result)
        for opponent in opponents:
            other = SearchPlayer(self.search(self.evaluator(self._load(opponent))))
            share = max(1, (pairs - anchor_pairs) // len(opponents))
            self._enter(name_of(version), name_of(opponent), play(other, pairs=share))
        return 1 - result.losses / result.scores.size

    def _rated_versions(self) -> list[int]:
        """Versions that have played for a rating and whose files are still there."""
        rated = {name for match in self._ledger.matches() for name in match[:2]}
        models = [row for row in self._ledger.models() if name_of(row.version) in rated]
        return [row.version for row in models if (self._ledger.folder / row.path).is_file()]

    def _load(self, version: int) -> Model:
        rows = {row.version: row for row in self._ledger.models()}
        return load_model(self._ledger.folder / rows[version].path)

    def _enter(self, first: str, second: str, result: MatchResult) -> None:
        simulations = self._settings.num_simulations
        counts = {"wins": result.wins, "draws": result.draws, "losses": result.losses}
        self._ledger.add_match(first, second, **counts, num_simulations=simulations)

    def _rate(self) -> dict[str, tuple[float, float]]:
        results = [
            Result(first=first, second=second, wins=wins, draws=draws, losses=losses)
            for first, second, wins, draws, losses, _ in self._ledger.matches()
        ]
        ratings = {name: (rating.elo, rating.margin) for name, rating in rate(results, ANCHOR).items() if math.isfinite(rating.margin)}
        self._ledger.set_ratings(ratings)
        return ratings


def playing(settings: SearchSettings) -> SearchSettings:
    """Self-play's search without what is there for learning: no forced playouts, one leaf a tree."""
    return settings.model_copy(update={"forced_playouts": False, "leaves_per_tree": 1})


def name_of(version: int) -> str:
    """A model's name among the players."""
    return f"model-{version:06d}"


def load_model(path: Path) -> Model:
    """The model in a file for the way."""
    return decode_model(read_limited(path, MAX_MODEL_BYTES))


def search_actions(search: Search, states: States, look: Look) -> Actions:
    """The best action ``[N]`` in each of ``states`` ``[N, S]``, looking up between parts."""
    parts = []
    for i in range(0, len(states), TREES):
        look()
        parts.append(search.find(states[i : i + TREES]).actions)
    return np.concatenate(parts)
