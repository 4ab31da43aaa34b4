"""The players by whom a network for a game of two is measured, from the weakest to the strongest."""

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from games import Game
from training.evaluation.contenders import AlphaBetaContender, GreedyContender, RandomContender, StockfishContender
from training.evaluation.match_benchmark import Entrant
from training.evaluation.uci_client import Engine

ANCHOR = "random"
DEPTHS = (1, 2, 3)
USUAL_LEVEL = 1700  # of Stockfish, beside its least
LEVEL_OPTION = "UCI_Elo"


def ladder(game: Game) -> list[Entrant]:
    """All that play this game and need nothing but this program."""
    rungs = [Entrant(name=ANCHOR, contender=RandomContender())]
    if game.name == "chess":
        rungs.append(Entrant(name="greedy", contender=GreedyContender()))
        rungs += [Entrant(name=f"depth-{depth}", contender=AlphaBetaContender(depth=depth)) for depth in DEPTHS]
    return rungs


def find_stockfish() -> Path | None:
    """Where Stockfish is: on the path, or where Debian has it."""
    found = shutil.which("stockfish", path=os.pathsep.join([os.environ.get("PATH", ""), "/usr/games"]))
    return Path(found) if found else None


def stockfish_rungs(path: Path, levels: Sequence[int], *, movetime: int | None, nodes: int) -> list[Entrant]:
    """Stockfish at these levels, in ascending order; without any, at its least and a usual one.

    Raises:
        EngineFailed: it cannot be started, or does not speak UCI.
        ValueError: it has no such level.
    """
    with Engine(path) as engine:
        name, known = engine.name, engine.ranges.get(LEVEL_OPTION)
    if known is None:
        raise ValueError(f"--stockfish: {path} ({name}) cannot be held to a level: it has no option {LEVEL_OPTION}")
    least, greatest = known
    for level in levels:
        if not least <= level <= greatest:
            raise ValueError(f"--stockfish-levels: {name} has levels from {least} to {greatest}, not {level}")
    return [
        Entrant(name=f"stockfish-{level}", contender=StockfishContender(path=path.absolute(), level=level, movetime=movetime, nodes=nodes))
        for level in sorted(set(levels or (least, USUAL_LEVEL)))
    ]


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
