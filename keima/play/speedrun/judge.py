"""Judge a network by a target: does the whole 95 % interval of its strength lie on the right side?"""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from keima.base.random import seed_stream
from keima.base.reports.formats import format_percent
from keima.evaluation.perfect_play import count_errors, load_positions
from keima.games import Game
from keima.networks.inference.evaluator import use_threads
from keima.play.arena.ladder import build_ladder
from keima.play.arena.match_benchmark import Entrant, Tally, play_pairs
from keima.play.arena.players import NetworkSpec, make_player
from keima.play.network_loader import PlayableNetwork
from keima.play.rating.ladder_file import engine_of, find_shipped_ladder
from keima.play.rating.rungs import make_rungs
from keima.play.speedrun.target import Target

OPENING_PLIES = 4  # random moves that begin each pair of games

OnProgress = Callable[[Tally], None]


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """The strength of a network, as a target measures it, with its 95 % interval."""

    value: float  # a share of errors, or of points
    low: float
    high: float
    count: int  # positions or games
    met: bool


def judge_network(
    target: Target,
    playable: PlayableNetwork,
    *,
    seed: int,
    processes: int,
    on_progress: OnProgress,
) -> Judgement:
    """Measure a network as a target says.

    Args:
        target: the target.
        playable: the network, with the search of its run.
        seed: of the openings, or of ties among moves.
        processes: that play.
        on_progress: is told of the games of a match.

    Raises:
        ValueError: the game has no positions with exact values, or the opponent cannot play here.
        SliceFailed: a player ended before its games did.
    """
    network = playable.spec(target.simulations, None)
    if target.errors:
        return _count_errors(target, playable.game, network, seed)
    assert target.match
    match = play_pairs(
        playable.game,
        Entrant(name="network", spec=network),
        find_opponent(playable.game, target.match.opponent),
        games=target.match.games,
        opening_plies=OPENING_PLIES,
        seed=seed_stream(seed, target.match.opponent),
        processes=processes,
        on_progress=on_progress,
    )
    low, high = match.interval
    met = target.is_met(low=low, high=high)
    return Judgement(value=match.score, low=low, high=high, count=target.match.games, met=met)


def _count_errors(target: Target, game: Game, network: NetworkSpec, seed: int) -> Judgement:
    positions = load_positions(game)
    if positions is None:
        raise ValueError(f"{game.name} has no positions with exact values: its target must be a match")
    use_threads(1)  # more are slower for so small a network
    with ExitStack() as stack:
        player = make_player(game, network, seed, stack)
        errors = count_errors(positions, player.choose(positions.states))
    low, high = errors.interval
    met = target.is_met(low=low, high=high)
    return Judgement(value=errors.share, low=low, high=high, count=errors.positions, met=met)


def find_opponent(game: Game, name: str) -> Entrant:
    """Return an opponent by its name: a rung of the game's ladder, or of those that know only the rules.

    Raises:
        ValueError: there is none of this name, or its program is not here.
    """
    ladder = find_shipped_ladder(game)
    rungs, skipped = make_rungs(ladder, game) if ladder else ([], [])
    known = {rung.name: rung.entrant for rung in rungs}
    if name in known:
        return known[name]
    missing = next((each for each in skipped if each.name == engine_of(name)), None)
    if missing:
        install = f"; to install it: {missing.install}" if missing.install else ""
        raise ValueError(f"{name} cannot play: {missing.reason}{install}")
    entrants = {entrant.name: entrant for entrant in build_ladder(game, [name])}
    if name not in entrants:
        raise ValueError(f"there is no opponent {name} for {game.name}; there are {', '.join([*known, *entrants])}")
    return entrants[name]


def find_first_that_meets(
    versions: Sequence[int], judge: Callable[[int], Judgement]
) -> tuple[int | None, dict[int, Judgement]]:
    """Return the first of ascending ``versions`` that meets a target, found by bisection, and all judgements.

    Strength grows, up to chance: the last version is judged first, and where it fails, none meets the target.
    """
    found = {versions[-1]: judge(versions[-1])}
    if not found[versions[-1]].met:
        return None, found
    low, high = -1, len(versions) - 1  # the one at high meets it; none up to low is known to
    while high - low > 1:
        middle = (low + high) // 2
        found[versions[middle]] = judge(versions[middle])
        low, high = (low, middle) if found[versions[middle]].met else (middle, high)
    return versions[high], found


def judgement_text(target: Target, found: Judgement) -> str:
    """Return a judgement in words: 1.9 % (1.4 to 2.6) errors in 2,000 positions."""
    share = f"{format_percent(found.value)} ({100 * found.low:.1f} to {100 * found.high:.1f})"
    if target.errors:
        return f"{share} errors in {found.count:,} positions"
    assert target.match
    return f"{share} of {found.count:,} games against {target.match.opponent}"


def goal_text(target: Target) -> str:
    """Return what a target asks for, in words."""
    if target.errors:
        return f"the whole 95 % interval below {format_percent(target.errors.most)} errors"
    assert target.match
    return f"the whole 95 % interval above {format_percent(target.match.least)} against {target.match.opponent}"
