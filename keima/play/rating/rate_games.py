"""Plays a network against a ladder for a given time: few games against each rung, more where they tell most."""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from keima.base.random import seed_stream
from keima.games import Game
from keima.play.arena.match_benchmark import Entrant, Tally, play_pairs
from keima.play.arena.players import NetworkSpec, RandomSpec
from keima.play.arena.slices import REPORT_SECONDS, SliceFailed
from keima.play.engines.gtp_client import RESIGNED
from keima.play.rating.fit import (
    NETWORK,
    NetworkRating,
    Points,
    expected_evenness,
    expected_information,
    fit_rating,
)
from keima.play.rating.game_cache import GameCache, StoredGames
from keima.play.rating.ladder_file import engine_of
from keima.play.rating.rungs import Rung, SkippedEngine
from keima.play.rating.scale import Scale

PROBE_GAMES = 4  # the first ones against a rung
MOST_GAMES = 64  # in a batch
BATCH_SECONDS = 20.0  # that a batch should take, so that starting the players takes little of it
OVERTIME = 10.0  # seconds by which the first games against a rung of unknown strength may exceed the time
UNKNOWN_SHARE = 0.3  # of the time, in which rungs of unknown strength play
PLAUSIBLE = 0.04  # expected p (1 - p) from which on an anchor is played at all: a score of 4 to 96 %
LEAST_PROBE_SECONDS, SLOWEST_PROBE = 60.0, 0.25  # what the first games against a rung may take: seconds, or this share


@dataclass(frozen=True, kw_only=True)
class RungGames:
    """A rung and the network's games against it."""

    rung: Rung
    points: Points = field(default_factory=Points)
    seconds: float = 0.0  # that they took

    @property
    def seconds_per_game(self) -> float | None:
        """The time of a game; None before the first."""
        return self.seconds / self.points.games if self.points.games else None


@dataclass(frozen=True, kw_only=True)
class RatingProgress:
    """What is known while games are played."""

    rung: str  # that is being played
    games: int  # that have ended, those of earlier calls included
    seconds: float  # that they took, and the present ones so far
    rating: NetworkRating | None


@dataclass(frozen=True, kw_only=True)
class LadderResult:
    """The network's games against a ladder, and its rating."""

    games: Sequence[RungGames]
    rating: NetworkRating | None
    skipped: Sequence[SkippedEngine]
    interrupted: bool = False


@dataclass(frozen=True, kw_only=True)
class LadderMatch:
    """What is to be played.

    Attributes:
        scale: what is known of the rungs; None: the strength of each, independently.
        seconds: for all games, those of earlier calls included.
        processes: that play.
    """

    game: Game
    network: NetworkSpec
    rungs: Sequence[Rung]
    scale: Scale | None = None
    cache: GameCache
    opening_plies: int
    seed: int
    seconds: float
    processes: int
    on_progress: Callable[[RatingProgress], None] = field(default=lambda progress: None)


class _TooSlowError(Exception):
    """The first games against a rung take too much of the time."""


def rate_on_ladder(match: LadderMatch, skipped: Sequence[SkippedEngine] = ()) -> LadderResult:
    """Play until the time is up or Ctrl-C; unfinished batches do not count, as their short games would end first.

    Args:
        match: what is to be played.
        skipped: engines that do not play; those that fail are added, and play no further games.
    """
    table = {rung.name: _read_games(rung, match.cache) for rung in match.rungs}
    failed, in_vain = list[SkippedEngine](), 0.0  # seconds of batches that failed
    closed = set[str]()
    interrupted, is_warm = False, False
    try:
        while batch := choose_batch(
            list(table.values()),
            seconds=match.seconds - in_vain,
            processes=match.processes,
            closed=closed,
            scale=match.scale,
        ):
            if not is_warm:
                warm_up(match.game, match.network)
                is_warm = True
            began, name = time.monotonic(), batch.rung.name
            try:
                table[name] = _play_batch(match, table, batch)
            except (SliceFailed, _TooSlowError) as error:
                in_vain += time.monotonic() - began
                failed.append(SkippedEngine(name=name, reason=_last_line(error)))
                closed.add(name)
                if isinstance(error, SliceFailed):  # at another strength it would fail as well, perhaps as late
                    closed.update(other for other in table if engine_of(other) == engine_of(name))
                if RESIGNED in str(error):  # only those games were finished in which it did not lose early
                    in_vain += table[name].seconds
                    table[name] = RungGames(rung=batch.rung)
                    match.cache.forget(batch.rung.entrant.spec)
                if not table[name].points.games:
                    del table[name]
    except KeyboardInterrupt:
        interrupted = True
    return LadderResult(
        games=list(table.values()),
        rating=_rate(table, match.scale),
        skipped=[*skipped, *failed],
        interrupted=interrupted,
    )


def warm_up(game: Game, network: NetworkSpec) -> None:
    """Have everything compiled that the network's games need, before time is measured.

    Raises:
        SliceFailed: the network does not play.
    """
    quick, random = network.model_copy(update={"num_simulations": 2}), Entrant(name="random", spec=RandomSpec())
    play_pairs(
        game, Entrant(name=NETWORK, spec=quick), random, games=game.num_players, opening_plies=0, seed=1, processes=1
    )


def _last_line(error: Exception) -> str:
    return str(error).strip().splitlines()[-1]


def _read_games(rung: Rung, cache: GameCache) -> RungGames:
    found = RungGames(rung=rung)
    for batch in cache.read(rung.entrant.spec):
        found = _add_games(found, batch)
    return found


def _add_games(found: RungGames, batch: StoredGames) -> RungGames:
    points = Points(wins=batch.wins, draws=batch.draws, losses=batch.losses)
    return RungGames(rung=found.rung, points=found.points + points, seconds=found.seconds + batch.seconds)


def _rate(table: Mapping[str, RungGames], scale: Scale | None) -> NetworkRating | None:
    rungs = [each.rung for each in table.values()]
    return fit_rating(rungs, {name: each.points for name, each in table.items()}, scale)


@dataclass(frozen=True, kw_only=True)
class Batch:
    """The next games."""

    rung: Rung
    games: int


def choose_batch(
    table: Sequence[RungGames],
    *,
    seconds: float,
    processes: int,
    closed: Collection[str] = (),
    scale: Scale | None = None,
) -> Batch | None:
    """Return the next games; None when the time is up.

    A few games against each anchor that may be of about the network's strength come first. Then the rung follows that
    tells most of the network in a second. Rungs of unknown strength tell nothing of it: they play a few games near the
    end.

    Args:
        table: the rungs with their games.
        seconds: for all games, in all.
        processes: that play, each at least a pair of games.
        closed: names of rungs that play no more; their games count.
        scale: what is known of the rungs.
    """
    left = seconds - sum(each.seconds for each in table)
    if left <= 0:
        return None
    rungs = [each.rung for each in table]
    rating = fit_rating(rungs, {each.rung.name: each.points for each in table}, scale)
    costs = [cost for each in table if (cost := each.seconds_per_game) is not None]
    usual = max(costs, default=1.0)

    def gain(each: RungGames, games: int) -> float:
        now, then = each.points.games, each.points.games + games
        more = expected_information(each.rung, then, rating, rungs) - expected_information(
            each.rung, now, rating, rungs
        )
        return more / (each.seconds_per_game or usual) / games

    def is_plausible(each: RungGames) -> bool:
        return each.rung.elo is not None and expected_evenness(each.rung, rating, rungs) >= PLAUSIBLE

    table = [each for each in table if each.rung.name not in closed]
    fresh = [each for each in table if not each.points.games]
    probed = [each for each in fresh if is_plausible(each)]
    if not probed and not costs:  # nothing on the ladder is likely, but something must be played
        probed = [each for each in fresh if each.rung.elo is not None]
    if probed:
        chosen = max(probed, key=lambda each: gain(each, PROBE_GAMES))
        return Batch(rung=chosen.rung, games=PROBE_GAMES)
    if rating is None:
        return None
    unknown = [each for each in fresh if each.rung.elo is None and PROBE_GAMES * usual <= left + OVERTIME]
    reserved = UNKNOWN_SHARE * seconds if unknown else 0.0
    if unknown and left <= reserved:
        return Batch(rung=unknown[0].rung, games=PROBE_GAMES)
    sizes = {
        each.rung.name: _batch_size(int(min(MOST_GAMES, min(BATCH_SECONDS, left - reserved) / cost)), processes)
        for each in table
        if (cost := each.seconds_per_game)
    }
    fitting = [
        each
        for each in table
        if each.rung.elo is not None
        and each.rung.name in sizes
        and sizes[each.rung.name] * (each.seconds_per_game or 0.0) <= 1.5 * left
    ]
    if not fitting:
        return None
    chosen = max(fitting, key=lambda each: gain(each, sizes[each.rung.name]))
    return Batch(rung=chosen.rung, games=sizes[chosen.rung.name])


def _batch_size(affordable: int, processes: int) -> int:
    """Return at most so many games: pairs for all processes if possible, and at least one pair."""
    step = 2 * processes
    return affordable // step * step if affordable >= step else max(2, affordable // 2 * 2)


def _play_batch(match: LadderMatch, table: Mapping[str, RungGames], batch: Batch) -> RungGames:
    """Play and store a batch; return all games against its rung.

    Raises:
        SliceFailed: the engine does not play.
        _TooSlowError: the first games take too long.
    """
    before, rating = table[batch.rung.name], _rate(table, match.scale)
    spent = sum(each.seconds for each in table.values())
    ended, first = sum(each.points.games for each in table.values()), before.points.games
    begun: float | None = None  # with the first report: before it, players start, and may be compiled

    def seconds_of_play() -> float:
        return REPORT_SECONDS + (0.0 if begun is None else time.monotonic() - begun)

    def follow(tally: Tally) -> None:
        nonlocal begun
        begun = begun or time.monotonic()
        taken = seconds_of_play()
        if not first and taken > max(LEAST_PROBE_SECONDS, SLOWEST_PROBE * match.seconds):
            raise _TooSlowError(f"{batch.games} games take more than a quarter of the time: give more --minutes")
        match.on_progress(
            RatingProgress(rung=batch.rung.name, games=ended + tally.ended, seconds=spent + taken, rating=rating)
        )

    played = play_pairs(
        match.game,
        Entrant(name=NETWORK, spec=match.network),
        batch.rung.entrant,
        games=batch.games,
        opening_plies=match.opening_plies,
        seed=seed_stream(match.seed, batch.rung.name, first),
        processes=match.processes,
        on_progress=follow,
    )
    result = played.result
    games = StoredGames(
        first=first,
        games=batch.games,
        wins=result.wins,
        draws=result.draws,
        losses=result.losses,
        seconds=seconds_of_play(),
    )
    match.cache.add(batch.rung.entrant.spec, games)
    return _add_games(before, games)
