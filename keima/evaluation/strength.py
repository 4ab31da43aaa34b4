"""Measure the strength of models: errors against perfect play, ratings, gating and scores."""

import logging
import math
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from keima.base.files import read_limited
from keima.base.random import seed_stream
from keima.base.reports.intervals import mean_margin
from keima.base.reports.run_reports import EvaluationReport, ScoreReport
from keima.base.steps import Steps
from keima.config.schema import Settings
from keima.config.sections.evaluation import EvaluationSettings
from keima.data.ledger import Ledger
from keima.evaluation.elo import PairResult, Rating, decide_sprt, rate_players
from keima.evaluation.match import MatchResult, SearchPlayer
from keima.evaluation.match_jobs import Contestant
from keima.evaluation.match_location import LocalMatches, Pairing, PlayMatches, WorkerMatches
from keima.evaluation.match_worker import NUM_TREES, make_match_search
from keima.evaluation.perfect_play import choose_policy_actions, count_errors, load_positions
from keima.evaluation.remote_matches import RemoteMatches
from keima.evaluation.score import play_score_games, summarize_scores
from keima.games import Game
from keima.games.game import Actions, States
from keima.networks.files.container import MAX_MODEL_BYTES
from keima.networks.files.heading import stored_sha256
from keima.networks.files.model import Model, decode_model, encode_model
from keima.networks.inference.evaluator import Evaluator
from keima.search.move_search import Search

log = logging.getLogger(__name__)

ANCHOR = "random"
SPRT_PAIRS = 16  # between evaluations of the test
ANCHOR_SHARE = 0.5  # of the rating games; the rest is against earlier versions
BEATEN_SHARE = 0.05  # the same once a version has beaten the anchor, whose games say little from then on
BEATEN = 0.99  # the score from which on it has
RECENT_SHARE = 0.75  # of the games against earlier versions, those against the one of a tenth of the run ago
RECENT = 0.9  # its version is at most this share of the measured one


class Strength:
    """Measures the models of one run.

    Args:
        game: what they play.
        settings: the run's.
        ledger: matches and ratings are entered there.
        remote: plays matches on the workers; without it they are played here.
    """

    def __init__(self, game: Game, settings: Settings, ledger: Ledger, *, remote: RemoteMatches | None = None) -> None:
        self._game, self._ledger, self._seed, self._remote = game, ledger, settings.run.seed, remote
        self._settings: EvaluationSettings = settings.evaluation
        self._search_settings, self._device = settings.search, settings.training.device
        self._positions = load_positions(game, count=self._settings.positions) if self._settings.perfect_play else None

    def measure(self, model: Model, *, beside: bool = False) -> Steps[EvaluationReport]:
        """Measure ``model``; with ``beside``, workers mostly play on, and matches take the rest of the time."""
        started = time.monotonic()
        search_error = margin = policy_error = None
        if self._positions is not None:
            chosen = yield from find_best_actions(self.make_search(model), self._positions.states)
            found = count_errors(self._positions, chosen)
            search_error, margin = found.share, found.margin
            policy_error = count_errors(
                self._positions, choose_policy_actions(self._positions, self.make_evaluator(model))
            ).share
        earlier = self._earlier_rated_models(model.model_version)
        recent = recent_version(earlier, model.model_version)
        first = find_first_to_beat_anchor(read_match_results(self._ledger))
        matches = yield from self._play_matches(model, earlier, is_anchor_beaten=first is not None, beside=beside)
        rating = gain = progress = None
        if self._game.num_players == 2:
            results = read_match_results(self._ledger)
            rating = self._update_ratings(results).get(model_player_name(model.model_version))
            gain = find_elo_gain(results, model.model_version, recent) if matches and recent else None
            if first is not None and first < model.model_version and first != recent:
                progress = find_elo_gain(results, model.model_version, first)
        many = self._game.num_players > 2
        random_return, random_margin = first_player_mean_return(matches[:1]) if many and matches else (None, None)
        earlier_return, earlier_margin = first_player_mean_return(matches[1:]) if many and matches[1:] else (None, None)
        score = yield from self._play_for_score(model)
        return EvaluationReport(
            model_version=model.model_version,
            num_simulations=self._settings.num_simulations,
            search_error=search_error,
            search_error_margin=margin,
            policy_error=policy_error,
            elo=rating[0] if rating else None,
            elo_margin=rating[1] if rating else None,
            elo_gain=gain.elo if gain else None,
            elo_gain_margin=gain.margin if gain else None,
            gain_over=recent if gain else None,
            elo_progress=progress.elo if progress else None,
            elo_progress_margin=progress.margin if progress else None,
            progress_since=first if progress else None,
            random_not_lost=1 - matches[0].losses / matches[0].scores.size if matches and not many else None,
            random_return=random_return,
            random_return_margin=random_margin,
            earlier_return=earlier_return,
            earlier_return_margin=earlier_margin,
            score=score,
            seconds=time.monotonic() - started,
        )

    def accepts(self, candidate: Model, best: Model, *, file: bytes) -> Steps[bool]:
        """Test whether ``candidate``, stored in ``file``, is stronger than ``best``; yield the result, True without
        gating.
        """
        if self._settings.gating == "none":
            return True
        test = self._settings.sprt
        scores = np.zeros((0, 2))
        verdict = None
        with self._prepare_matches([candidate, best], file=file) as play:
            while verdict is None and scores.size < self._settings.gating_games:
                seed = seed_stream(self._seed, "gating", candidate.model_version, len(scores))
                pairing = Pairing(opponent=best, pairs=self._pairs_per_round(len(scores)))
                (result,) = yield from play(candidate, [pairing], seed)
                scores = np.concatenate([scores, result.scores])
                verdict = decide_sprt(scores.mean(1), elo0=test.elo0, elo1=test.elo1, alpha=test.alpha, beta=test.beta)
        self._record_match(candidate, best, MatchResult(scores=scores))
        return bool(verdict)

    def _pairs_per_round(self, played: int) -> int:
        """Return how many pairs to play before the next evaluation of the test: more with many workers."""
        if self._remote is None:
            return SPRT_PAIRS
        left = math.ceil(self._settings.gating_games / 2) - played
        return max(SPRT_PAIRS, min(left, self._remote.pairs_per_round()))

    def _play_matches(
        self, model: Model, earlier: Mapping[int, Path], *, is_anchor_beaten: bool, beside: bool
    ) -> Steps[list[MatchResult]]:
        """Play the anchor and two of the earlier rated versions; return the matches, the anchor's first, or none."""
        pairs = self._settings.rating_games // self._game.num_players
        if pairs == 0:
            return []
        shares = opponent_shares(list(earlier), model.model_version)
        share = BEATEN_SHARE if is_anchor_beaten else ANCHOR_SHARE
        anchor_pairs = math.ceil(pairs * share) if shares else pairs
        pairings = [Pairing(opponent=None, pairs=anchor_pairs)]
        others = pairs - anchor_pairs
        pairings += [
            Pairing(opponent=opponent, pairs=max(1, int(others * shares[version])))
            for version in sorted(shares)
            if (opponent := _load_opponent(earlier[version]))
        ]
        seed = seed_stream(self._seed, "rating", model.model_version)
        models = [model, *(pairing.opponent for pairing in pairings if pairing.opponent)]
        with self._prepare_matches(models, beside=beside) as play:
            results = yield from play(model, pairings, seed)
        for pairing, result in zip(pairings, results, strict=True):
            self._record_match(model, pairing.opponent, result)
        return results

    def _play_for_score(self, model: Model) -> Steps[ScoreReport | None]:
        """Play one-player games; None if none are configured."""
        games = self._settings.score_games
        if games == 0:
            return None
        seed = seed_stream(self._seed, "score", model.model_version)
        played = yield from play_score_games(self._game, SearchPlayer(self.make_search(model)), games=games, seed=seed)
        return summarize_scores(self._game, played)

    # Matches.

    @contextmanager
    def _prepare_matches(
        self, models: Sequence[Model], *, file: bytes = b"", beside: bool = False
    ) -> Iterator[PlayMatches]:
        """Yield a function that plays matches between these models: on the workers if possible, else here.

        Args:
            models: the players.
            file: of the first model, if it is not published yet.
            beside: self-play goes on meanwhile.
        """
        local = LocalMatches(self._game, self.make_search)
        if self._remote is None:
            yield local.play
            return
        first, *others = models
        files = [file or self._read_model_file(first), *(self._read_model_file(model) for model in others)]
        contestants = [
            Contestant(version=model.model_version, sha256=stored_sha256(data))
            for model, data in zip(models, files, strict=True)
        ]
        with self._remote.deploy(dict(zip(contestants, files, strict=True))):
            by_contestant = dict(zip(contestants, models, strict=True))
            simulations = self._settings.num_simulations
            yield WorkerMatches(self._remote, local, by_contestant, num_simulations=simulations, beside=beside).play

    def make_evaluator(self, model: Model) -> Evaluator:
        """Return the evaluator of ``model``."""
        return Evaluator(model.build(self._game), self._game, device=self._device, max_batch=NUM_TREES)

    def make_search(self, model: Model) -> Search:
        """Return the search of ``model`` with the simulations of evaluation."""
        return make_match_search(
            self._game,
            model,
            self._search_settings,
            num_simulations=self._settings.num_simulations,
            cached=True,
            device=self._device,
        )

    def _read_model_file(self, model: Model) -> bytes:
        """Read the model file as published, or as it would be published."""
        path = self._model_paths().get(model.model_version)
        return read_limited(path, MAX_MODEL_BYTES) if path else encode_model(model, self._game)

    def _earlier_rated_models(self, version: int) -> dict[int, Path]:
        """Return the files of earlier versions with rating games, by ascending version."""
        rated = {name for match in self._ledger.matches() for name in match[:2]}
        return {
            earlier: path
            for earlier, path in self._model_paths().items()
            if earlier < version and model_player_name(earlier) in rated
        }

    def _model_paths(self) -> dict[int, Path]:
        """Return the existing files of published models, by ascending version."""
        paths = {row.version: self._ledger.folder / row.path for row in self._ledger.models() if row.path}
        return {version: path for version, path in paths.items() if path.is_file()}

    def _record_match(self, model: Model, opponent: Model | None, result: MatchResult) -> None:
        first, second = (
            model_player_name(model.model_version),
            model_player_name(opponent.model_version) if opponent else ANCHOR,
        )
        counts = {"wins": result.wins, "draws": result.draws, "losses": result.losses}
        # A Coach that was killed before it stored the report plays them again. With gating, the same two play for that,
        # too.
        replace = self._settings.gating == "none"
        self._ledger.add_match(first, second, **counts, num_simulations=self._settings.num_simulations, replace=replace)

    def _update_ratings(self, results: Sequence[PairResult]) -> dict[str, tuple[float, float]]:
        ratings = {
            name: (rating.elo, rating.margin)
            for name, rating in rate_players(results, ANCHOR).items()
            if math.isfinite(rating.margin)
        }
        self._ledger.set_ratings(ratings)
        return ratings


def check_evaluation_settings(game: Game, settings: EvaluationSettings) -> None:
    """Check that ``game`` can be evaluated with these settings.

    Raises:
        ValueError: a setting is only for one-player or only for two-player games.
    """
    wanted = {
        "rating_games": settings.every > 0 and settings.rating_games > 0,
        "gating": settings.gating != "none",
        "perfect_play": settings.every > 0 and settings.perfect_play,
    }
    refused = [key for key, is_wanted in wanted.items() if is_wanted]
    if game.num_players == 1 and refused:
        keys, off = (
            ", ".join(f"evaluation.{key}" for key in refused),
            "rating_games: 0, gating: none and perfect_play: false",
        )
        raise ValueError(
            f"{keys}: one-player games such as {game.name} are measured by score; set {off}, and score_games"
        )
    if game.num_players > 2 and settings.gating != "none":
        raise ValueError(
            f"evaluation.gating: {game.name} is not a two-player game, and gating tests only those; set none"
        )
    if game.num_players > 1 and settings.score_games > 0:
        raise ValueError(f"evaluation.score_games: {game.name} is not a one-player game; set it to 0, and rating_games")


def read_match_results(ledger: Ledger) -> list[PairResult]:
    """Read the rating games of a run."""
    return [
        PairResult(first=first, second=second, wins=wins, draws=draws, losses=losses)
        for first, second, wins, draws, losses, _ in ledger.matches()
    ]


def first_player_mean_return(matches: Sequence[MatchResult]) -> tuple[float, float | None]:
    """Return the first player's mean return in these matches, and half the width of its 95 % interval.

    Pairs are independent of each other, the games of one are not. The margin of a single pair is None.
    """
    returns = 2 * np.concatenate([match.scores.mean(1) for match in matches]) - 1
    return float(returns.mean()), mean_margin(returns)


def recent_version(earlier: Collection[int], version: int) -> int | None:
    """Return the version of a tenth of the run so far ago, or the nearest to it; None: there is none."""
    return max((each for each in earlier if each <= RECENT * version), default=min(earlier, default=None))


def opponent_shares(earlier: Sequence[int], version: int) -> dict[int, float]:
    """Return the earlier versions, in ascending order, that ``version`` plays, with their shares of the games.

    Most games are with the version whose difference is shown, and the others with the one in the middle: chains of
    games then lead back to the first versions.
    """
    recent = recent_version(earlier, version)
    if recent is None:
        return {}
    halfway = earlier[len(earlier) // 2]
    return {recent: 1.0} if halfway == recent else {recent: RECENT_SHARE, halfway: 1 - RECENT_SHARE}


def find_first_to_beat_anchor(results: Sequence[PairResult]) -> int | None:
    """Return the first model version that scored ``BEATEN`` against the random player; None: there is none yet."""
    scores = {
        model_player_version(result.first): (result.wins + result.draws / 2, result.wins + result.draws + result.losses)
        for result in results
        if result.second == ANCHOR
    }
    return min((version for version, (points, games) in scores.items() if points >= BEATEN * games > 0), default=None)


def find_elo_gain(results: Sequence[PairResult], version: int, earlier: int) -> Rating | None:
    """Return how much stronger a version is than an earlier one; None: no chain of games connects them.

    Ratings are differences, so with the earlier version as the anchor the margin is that of this difference alone.
    """
    rating = rate_players(results, model_player_name(earlier)).get(model_player_name(version))
    return rating if rating and math.isfinite(rating.margin) else None


def model_player_name(version: int) -> str:
    """Return the name of a model version in matches and ratings."""
    return f"model-{version:06d}"


def model_player_version(name: str) -> int:
    """Return the model version with this name in matches and ratings."""
    return int(name.removeprefix("model-"))


def load_model_file(path: Path) -> Model:
    """Load the model in a file.

    Raises:
        OSError, ValueError: it cannot be read, or is damaged.
    """
    return decode_model(read_limited(path, MAX_MODEL_BYTES))


def _load_opponent(path: Path) -> Model | None:
    """Load an earlier model; None, and a warning, if its file is damaged or gone."""
    try:
        return load_model_file(path)
    except (OSError, ValueError) as error:
        log.warning("%s plays no matches: %s", path, error)
        return None


def find_best_actions(search: Search, states: States) -> Steps[Actions]:
    """Yield the best action ``[N]`` in each of ``states`` ``[N, S]``; a step is a network call."""
    actions = np.zeros(len(states), np.int32)
    search.submit(range(len(states)), states)
    while search.pending:
        yield True
        numbers, found = search.advance()
        actions[numbers] = found.actions
    return actions
