"""Ratings without a ladder: playouts of MCTS that are as strong, for any game for two, and scores, for one player."""

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from keima.base.random import seed_stream
from keima.base.reports.run_reports import ScoreReport
from keima.data.scores import make_score_report
from keima.games import Game
from keima.play.arena.equal_playouts import EqualPlayouts, PlayoutScore, estimate_equal_playouts, find_equal_playouts
from keima.play.arena.ladder import MOST_PLAYOUTS
from keima.play.arena.match_benchmark import Entrant, play_pairs
from keima.play.arena.players import MctsSpec, NetworkSpec
from keima.play.arena.score_benchmark import play_scored
from keima.play.rating.fit import NETWORK
from keima.play.rating.game_cache import GameCache, StoredGames
from keima.play.rating.rate_games import warm_up

GAMES = 20  # against each number of playouts
FIRST_SCORES = 16  # games for one player in the first batch
BATCH_SECONDS = 60.0  # that a later batch should take

OnProgress = Callable[[str, int, float], None]  # (what is played, games that have ended, seconds)


@dataclass(frozen=True, kw_only=True)
class AnyGame:
    """What is to be played.

    Attributes:
        seconds: for all games, those of earlier calls included.
        processes: that play.
    """

    game: Game
    network: NetworkSpec
    cache: GameCache
    seed: int
    seconds: float
    processes: int
    on_progress: OnProgress = lambda what, games, seconds: None


def rate_by_playouts(match: AnyGame, *, opening_plies: int) -> tuple[EqualPlayouts | None, bool]:
    """Find the playouts with which MCTS is as strong, until the time is up or Ctrl-C; see ``find_equal_playouts``.

    Returns:
        What all complete batches say, None without one, and whether Ctrl-C ended it.

    Raises:
        SliceFailed: a playing process has failed.
    """
    used, stored_seconds, is_warm, scores = Counter[int](), 0.0, False, list[PlayoutScore]()

    def play(playouts: int, games: int) -> float:
        nonlocal stored_seconds, is_warm
        opponent, points, wanted = MctsSpec(playouts=playouts), 0.0, games
        while wanted:
            first = used[playouts]
            known = [each for each in match.cache.read(opponent) if each.first == first]
            if known and known[0].games <= wanted:
                batch = known[0]
                stored_seconds += batch.seconds
            else:
                if not is_warm:
                    began = time.monotonic()
                    warm_up(match.game, match.network)
                    stored_seconds, is_warm = stored_seconds - (time.monotonic() - began), True
                batch = _play_pairs(match, opponent, first=first, games=wanted, opening_plies=opening_plies)
                if not known:
                    match.cache.add(opponent, batch)
            used[playouts] += batch.games
            points, wanted = points + batch.wins + batch.draws / 2, wanted - batch.games
        scores.append(PlayoutScore(playouts=playouts, points=points, games=games))
        match.on_progress(f"mcts:{playouts}", used.total(), clock() - started)
        return points

    def clock() -> float:  # of games: those of earlier calls count, getting ready does not
        return time.monotonic() + stored_seconds

    started = clock()
    try:
        return find_equal_playouts(play, games=GAMES, most=MOST_PLAYOUTS, seconds=match.seconds, clock=clock), False
    except KeyboardInterrupt:
        return estimate_equal_playouts(scores) if scores else None, True


def _play_pairs(match: AnyGame, opponent: MctsSpec, *, first: int, games: int, opening_plies: int) -> StoredGames:
    name, started = f"mcts:{opponent.playouts}", time.monotonic()
    played = play_pairs(
        match.game,
        Entrant(name=NETWORK, spec=match.network),
        Entrant(name=name, spec=opponent),
        games=games,
        opening_plies=opening_plies,
        seed=seed_stream(match.seed, name, first),
        processes=match.processes,
    ).result
    return StoredGames(
        first=first,
        games=games,
        wins=played.wins,
        draws=played.draws,
        losses=played.losses,
        seconds=time.monotonic() - started,
    )


def rate_by_score(match: AnyGame) -> tuple[ScoreReport | None, bool]:
    """Play a game for one player until the time is up or Ctrl-C.

    Returns:
        The report of all complete batches, None without one, and whether Ctrl-C ended it.

    Raises:
        SliceFailed: a playing process has failed.
    """
    batches, interrupted = match.cache.read(None), False
    try:
        while count := _choose_count(batches, match.seconds, match.processes):
            batches.append(_play_scored(match, batches, count))
            match.cache.add(None, batches[-1])
    except KeyboardInterrupt:
        interrupted = True
    scores = [score for batch in batches for score in batch.scores]
    reached = [milestone for batch in batches for milestone in batch.reached]
    return make_score_report(match.game, scores, reached), interrupted


def _choose_count(batches: list[StoredGames], seconds: float, processes: int) -> int:
    """Return the number of games in the next batch; 0 when the time is up, or not enough for one."""
    spent, games = sum(batch.seconds for batch in batches), sum(batch.games for batch in batches)
    if not batches:
        return FIRST_SCORES * processes
    count = int(min(BATCH_SECONDS, seconds - spent) * games / max(spent, 1e-9)) // processes * processes
    return max(0, count) if spent < seconds else 0


def _play_scored(match: AnyGame, batches: list[StoredGames], count: int) -> StoredGames:
    first, spent = sum(batch.games for batch in batches), sum(batch.seconds for batch in batches)
    started = time.monotonic()
    played = play_scored(
        match.game,
        NETWORK,
        match.network,
        games=count,
        seed=seed_stream(match.seed, "scores", first),
        processes=match.processes,
        on_progress=lambda ended, moves: match.on_progress("scores", first + ended, spent + time.monotonic() - started),
    )
    return StoredGames(
        first=first,
        games=count,
        scores=tuple(played.games.scores.tolist()),
        reached=tuple(played.games.reached.tolist()),
        seconds=time.monotonic() - started,
    )
