"""Play one-player games for the score, many in parallel."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from keima.base.random import Streams, seed_stream
from keima.base.reports.run_reports import ScoreReport
from keima.base.steps import Steps, run_steps
from keima.compilation.decorators import compiled
from keima.data.scores import make_score_report
from keima.evaluation.match import Player
from keima.games.chance import sample_chance_outcome
from keima.games.game import CHANCE, Actions, Game, MoveScratch, Rules, States

SIDE_BY_SIDE = 64  # games at a time

OnScoreProgress = Callable[[int, int], None]  # (games that have ended, moves made in all)


@dataclass(frozen=True, kw_only=True)
class ScoredGames:
    """Finished one-player games."""

    scores: NDArray[np.float64]  # [N]
    reached: NDArray[np.int64]  # [N] ``Game.milestone_of``; 0 in games without milestones
    plies: NDArray[np.int64]  # [N] including chance outcomes
    moves: int  # of the player, in all


class GamesForScore(NamedTuple):
    """N one-player games in progress."""

    states: States  # [N, S]
    streams: Streams  # [N] of their chance outcomes
    plies: NDArray[np.int64]  # [N] including chance outcomes
    over: NDArray[np.bool_]  # [N]


def play_for_score(
    game: Game,
    player: Player,
    *,
    games: int,
    seed: int,
    first: int = 0,
    side_by_side: int = SIDE_BY_SIDE,
    on_progress: OnScoreProgress = lambda ended, moves: None,
) -> ScoredGames:
    """Let ``player`` play ``games`` games to their end, as ``play_score_games`` does.

    Args:
        watch: called before each round of moves with the progress; an exception from it ends the games.
    """
    return run_steps(
        play_score_games(
            game, player, games=games, seed=seed, first=first, side_by_side=side_by_side, on_progress=on_progress
        )
    )


def play_score_games(
    game: Game,
    player: Player,
    *,
    games: int,
    seed: int,
    first: int = 0,
    side_by_side: int = SIDE_BY_SIDE,
    on_progress: OnScoreProgress = lambda ended, moves: None,
) -> Steps[ScoredGames]:
    """Let ``player`` play ``games`` games; when one ends, the next starts. A step is a round of moves.

    The chance outcomes of game ``first + i`` depend only on the seed, that number and the moves.

    Args:
        side_by_side: largest number of games in parallel.
        watch: called before each round of moves with the progress.

    Raises:
        ValueError: the game is not for one player.
    """
    if game.num_players != 1:
        raise ValueError(
            f"{game.name} is a game for {game.num_players}: only one-player games are played for the score"
        )
    playing = GamesForScore(
        states=game.initial_states(games),
        streams=np.array([seed_stream(seed, "score", first + number) for number in range(games)], np.uint64),
        plies=np.zeros(games, np.int64),
        over=np.zeros(games, np.bool_),
    )
    scratch = game.make_move_scratch()
    play_until_player_moves(game.rules, playing, np.arange(games), np.empty(0, np.int32), scratch)
    moves = 0
    while len(rows := np.flatnonzero(~playing.over)[:side_by_side]):
        on_progress(int(playing.over.sum()), moves)
        yield True
        play_until_player_moves(game.rules, playing, rows, player.choose(playing.states[rows]), scratch)
        moves += len(rows)
    return ScoredGames(
        scores=np.array([game.returns(state)[0] for state in playing.states], np.float64),
        reached=np.array([game.milestone_of(state) if game.milestones else 0 for state in playing.states], np.int64),
        plies=playing.plies,
        moves=moves,
    )


def summarize_scores(game: Game, played: ScoredGames) -> ScoreReport | None:
    """Return the report of ``played``; None without games."""
    return make_score_report(game, played.scores.tolist(), played.reached.tolist())


@compiled
def play_until_player_moves(
    rules: Rules, games: GamesForScore, rows: NDArray[np.int64], actions: Actions, scratch: MoveScratch
) -> None:
    """Play ``actions`` ``[R]``, or none, in the games ``rows`` ``[R]``, and then chance outcomes until the player is to
    move.
    """
    step, current_player, terminal = rules.step, rules.current_player, rules.terminal
    for i in range(len(rows)):
        row = rows[i]
        state = games.states[row]
        if len(actions) > 0:
            step(state, np.int64(actions[i]))
            games.plies[row] += 1
        while not terminal(state) and current_player(state) == CHANCE:
            step(state, np.int64(sample_chance_outcome(rules, state, scratch, games.streams, row)))
            games.plies[row] += 1
        games.over[row] = terminal(state) != 0
