"""Count the games of an iteration as they arrive."""

from dataclasses import dataclass, field

import numpy as np

from keima.base.reports.run_reports import SelfPlayReport
from keima.config.sections.search import ResignationSettings
from keima.data.records import RANDOM_MOVE, GameBatch
from keima.data.scores import make_score_report, milestones_of
from keima.games import Game
from keima.games.game import Actions
from keima.replay.value_targets import list_players


@dataclass
class IterationTally:
    """The games received since the last iteration."""

    game: Game
    resignation: ResignationSettings
    since: float  # start of counting, on the Coach's clock
    games: int = 0
    earlier: int = 0  # games received by an earlier session, which do not count for the rate
    positions: int = 0
    size: int = 0  # bytes of the files
    first_player_wins: int = 0
    draws: int = 0
    resigned: int = 0
    would_resign: int = 0  # games played to the end although a player would have resigned
    false_resignations: int = 0  # of these, the ones that this player did not lose
    versions: set[int] = field(default_factory=set)
    scores: list[float] = field(default_factory=list)  # of one-player games
    reached: list[int] = field(default_factory=list)  # milestones (``Game.milestone_of``) of the same games

    def add(self, batch: GameBatch, size: int) -> None:
        """Count ``batch``, of ``size`` bytes."""
        self.games += batch.num_games
        self.positions += batch.num_positions
        self.size += size
        self.versions.update(batch.last_model.tolist())
        if self.game.num_players == 1:
            self.scores += batch.returns[:, 0].tolist()
            self.reached += milestones_of(self.game, batch)
        else:
            self._count_results(batch)

    def report(self, now: float) -> SelfPlayReport:
        """Return the report of the games received until ``now``."""
        games, two = max(self.games, 1), self.game.num_players == 2
        return SelfPlayReport(
            games=self.games,
            positions=self.positions,
            games_per_second=(self.games - self.earlier) / max(now - self.since, 1e-9),
            mean_plies=self.positions / games,
            first_player_wins=self.first_player_wins / games if two else None,
            draws=self.draws / games if two else None,
            resigned=self.resigned / games if two else None,
            false_resignations=self.false_resignations / max(self.would_resign, 1) if two else None,
            bytes_per_game=self.size / games,
            seconds=now - self.since,
            score=make_score_report(self.game, self.scores, self.reached),
        )

    def _count_results(self, batch: GameBatch) -> None:
        self.first_player_wins += int((batch.returns[:, 0] > 0).sum())
        self.draws += int((batch.returns[:, 0] == 0).sum())
        self.resigned += int(np.count_nonzero(batch.resigned))
        if self.resignation.enabled:
            self._count_false_resignations(batch)

    def _count_false_resignations(self, batch: GameBatch) -> None:
        ends = np.cumsum(batch.lengths)
        for game in np.flatnonzero(batch.resigned == 0):
            plies = slice(ends[game] - batch.lengths[game], ends[game])
            is_opening = np.logical_and.accumulate(batch.flags[plies] & RANDOM_MOVE != 0)  # which no search has judged
            is_hopeless = (batch.root_values[plies] <= -self.resignation.threshold) & ~is_opening
            players_to_move = self._list_players(batch.actions[plies])
            hopeless = [_longest_run(is_hopeless[players_to_move == player]) for player in (0, 1)]
            players = [player for player in (0, 1) if hopeless[player] >= self.resignation.consecutive]
            if players:
                self.would_resign += 1
                self.false_resignations += any(batch.returns[game, player] >= 0 for player in players)

    def _list_players(self, actions: Actions) -> "np.ndarray[tuple[int], np.dtype[np.int64]]":
        """Return who was to move at each ply; they need not alternate, and at outcomes of chance nobody was."""
        players = np.empty(len(actions), np.int64)
        list_players(self.game.rules, self.game.initial_state(), actions, players)
        return players


def _longest_run(flags: "np.ndarray[tuple[int], np.dtype[np.bool_]]") -> int:
    longest = current = 0
    for flag in flags:
        current = current + 1 if flag else 0
        longest = max(longest, current)
    return longest
