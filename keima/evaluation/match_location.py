"""Play evaluation games in this process, or on the workers with this process as a fallback."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from keima.base.steps import Steps
from keima.evaluation.match import Fixture, MatchResult, RandomPlayer, SearchPlayer, make_opening_states
from keima.evaluation.match_jobs import Contestant
from keima.evaluation.match_worker import play_fixtures
from keima.evaluation.remote_matches import MatchSpec, RemoteMatches
from keima.games import Game
from keima.networks.files.model import Model
from keima.search.move_search import Search

OPENING_PLIES = 4


@dataclass(frozen=True, kw_only=True)
class Pairing:
    """Pairs of games against one opponent; None is the random player."""

    opponent: Model | None
    pairs: int


PlayMatches = Callable[[Model, Sequence[Pairing], int], Steps[list[MatchResult]]]  # (first player, pairings, seed)


class LocalMatches:
    """Plays matches in this process, side by side.

    Args:
        game: what is played.
        search: makes the search of a model.
    """

    def __init__(self, game: Game, search: Callable[[Model], Search]) -> None:
        self._game, self._search = game, search
        self._players: dict[int, SearchPlayer] = {}  # by version

    def get_player(self, model: Model) -> SearchPlayer:
        """Return the model as a player."""
        if model.model_version not in self._players:
            self._players[model.model_version] = SearchPlayer(self._search(model))
        return self._players[model.model_version]

    def play(self, first: Model, pairings: Sequence[Pairing], seed: int) -> Steps[list[MatchResult]]:
        """Play ``first`` against each opponent."""
        fixtures = [
            Fixture(
                first=self.get_player(first),
                second=self.get_player(pairing.opponent) if pairing.opponent else RandomPlayer(self._game, seed),
                starts=make_opening_states(self._game, pairing.pairs, OPENING_PLIES, seed),
                seed=seed,
            )
            for pairing in pairings
        ]
        return play_fixtures(self._game, fixtures)


class WorkerMatches:
    """Plays matches on the workers, all at once.

    Args:
        remote: has deployed these models.
        local: plays what the workers do not.
        models: the players.
        num_simulations: of the searches.
        beside: self-play goes on meanwhile.
    """

    def __init__(
        self,
        remote: RemoteMatches,
        local: LocalMatches,
        models: Mapping[Contestant, Model],
        *,
        num_simulations: int,
        beside: bool,
    ) -> None:
        self._remote, self._local, self._models = remote, local, models
        self._num_simulations, self._beside = num_simulations, beside
        self._contestants = {model.model_version: contestant for contestant, model in models.items()}

    def play(self, first: Model, pairings: Sequence[Pairing], seed: int) -> Steps[list[MatchResult]]:
        """Play ``first`` against each opponent."""
        specs = [
            MatchSpec(
                first=self._contestants[first.model_version],
                second=self._contestants[pairing.opponent.model_version] if pairing.opponent else None,
                pairs=pairing.pairs,
                seed=seed,
                opening_plies=OPENING_PLIES,
                num_simulations=self._num_simulations,
                beside=self._beside,
            )
            for pairing in pairings
        ]
        return self._remote.play_steps(specs, lambda who: self._local.get_player(self._models[who]))
