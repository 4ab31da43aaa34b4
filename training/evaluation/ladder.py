"""The players by whom a network for a game of two is measured, from the weakest to the strongest."""

from collections.abc import Sequence

from games import Game
from training.evaluation.contenders import AlphaBetaContender, GreedyContender, RandomContender
from training.evaluation.match_benchmark import Entrant

ANCHOR = "random"
DEPTHS = (1, 2, 3)


def ladder(game: Game) -> list[Entrant]:
    """All that play this game by themselves."""
    rungs = [Entrant(name=ANCHOR, contender=RandomContender())]
    if game.name == "chess":
        rungs.append(Entrant(name="greedy", contender=GreedyContender()))
        rungs += [Entrant(name=f"depth-{depth}", contender=AlphaBetaContender(depth=depth)) for depth in DEPTHS]
    return rungs


def chosen(rungs: Sequence[Entrant], names: Sequence[str]) -> list[Entrant]:
    """Those that are named, in the ladder's order.

    Raises:
        ValueError: one is not there.
    """
    known = [rung.name for rung in rungs]
    for name in names:
        if name not in known:
            raise ValueError(f"--opponents: there is no {name!r} here; there are {', '.join(known)}")
    return [rung for rung in rungs if rung.name in names]
