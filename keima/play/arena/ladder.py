"""The opponents that measure a network in a two-player game, from the weakest to the strongest."""

import os
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

from keima.evaluation.strength import ANCHOR
from keima.games import Game
from keima.play.arena.match_benchmark import Entrant
from keima.play.arena.players import AlphaBetaSpec, GreedySpec, GtpSpec, MctsSpec, RandomSpec, UciSpec
from keima.play.engines.uci_client import UciClient
from keima.search.baselines.alpha_beta import check_game_has_score

DEPTHS = (1, 2, 3)
BASELINES = {"alphabeta": "DEPTH", "mcts": "PLAYOUTS"}  # opponents for any game, with what their number is
USUAL_BASELINES = ("mcts:100", "mcts:1000")
# Of games that have other opponents, and of those whose rules are slow: a thousand playouts take seconds.
OTHER_BASELINES: dict[str, tuple[str, ...]] = {"chess": (), "go": (), "openspiel": ("mcts:100",)}
MOST_PLAYOUTS, MOST_PLIES = 1_000_000, 99
USUAL_LEVEL = 1700  # of Stockfish, in addition to its lowest
LEVEL_OPTION = "UCI_Elo"
HASH_MIB = 4  # of Stockfish, whose hash is cleared after each move
NODES_SECONDS = 60.0  # for a move that is limited by positions, on a busy machine
# Names and games of external engines.
PROGRAMS = {
    "gnugo": ("GNU Go", "go"),
    "pachi": ("Pachi", "go"),
    "stockfish": ("Stockfish", "chess"),
}
USUAL_GO_ENGINES = ("gnugo:1", "gnugo:10")
GO_ENGINE_MISSING = {
    "gnugo": "GNU Go was not found: install it (Debian: apt install gnugo)",
    "pachi": "Pachi was not found: build it from https://github.com/pasky/pachi, and put it on the PATH as pachi",
}
GO_ENGINE = re.compile(r"(gnugo|pachi):([1-9]\d{0,5})")
GNU_GO_LEVELS = range(1, 20)  # 10 is its usual strength; more is slower
PACHI_PLAYOUTS = range(500, 1_000_000)  # it rejects fewer
MOVE_SECONDS = 120.0  # for a move of a program that plays Go, on a busy machine
# Its passes must be safe under rules that count dead stones as alive, so it captures them all first; games are played
# to the end.
GNU_GO_RULES = ("--chinese-rules", "--positional-superko", "--capture-all-dead", "--never-resign")
PACHI_OPTIONS = "pass_all_alive,resign_threshold=0,threads=1"  # Pachi forbids suicide and positional superko by itself


def build_ladder(game: Game, names: Sequence[str] = ()) -> list[Entrant]:
    """Return the built-in opponents for this game, and the baselines among ``names``: ``mcts:1000``, ``alphabeta:4``.

    Raises:
        ValueError: a baseline cannot play this game, or its number is out of range.
    """
    rungs = [Entrant(name=ANCHOR, spec=RandomSpec())]
    if game.name == "chess":
        rungs.append(Entrant(name="greedy", spec=GreedySpec()))
        rungs += [Entrant(name=f"depth-{depth}", spec=AlphaBetaSpec(depth=depth)) for depth in DEPTHS]
    usual = OTHER_BASELINES.get(game.name, USUAL_BASELINES)
    wanted = {parse_baseline(game, name) for name in (*usual, *names) if is_baseline(name)}
    return rungs + [
        Entrant(
            name=f"{kind}:{number}",
            spec=MctsSpec(playouts=number) if kind == "mcts" else AlphaBetaSpec(depth=number),
        )
        for kind, number in sorted(wanted)
    ]


def is_baseline(name: str) -> bool:
    """Return whether a name is that of a player that knows only a game's rules, such as ``mcts:1000``."""
    return name.partition(":")[0] in BASELINES


def parse_baseline(game: Game, name: str) -> tuple[str, int]:
    """Split the name of a baseline into its kind and its number of playouts, or its depth.

    Raises:
        ValueError: the number is out of range, or alpha-beta cannot play this game.
    """
    kind, _, number = name.partition(":")
    try:
        most = MOST_PLAYOUTS if kind == "mcts" else max_alpha_beta_depth(game)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error
    if not re.fullmatch(r"[1-9]\d{0,8}", number) or int(number) > most:
        raise ValueError(
            f"there is no {name!r} in {game.name}: give {kind}:{BASELINES[kind]} with a number from 1 to {most}"
        )
    return kind, int(number)


def max_alpha_beta_depth(game: Game) -> int:
    """Return the greatest depth of alpha-beta in this game.

    Raises:
        ValueError: it cannot play this game.
    """
    if game.name != "chess":
        check_game_has_score(game)
        return MOST_PLIES
    from keima.games.chess.alpha_beta import DEEPEST  # only for chess: it compiles chess

    return DEEPEST


def find_program(name: str) -> Path | None:
    """Find a program on the PATH, or where Debian installs games."""
    found = shutil.which(name, path=os.pathsep.join([os.environ.get("PATH", ""), "/usr/games"]))
    return Path(found) if found else None


def make_stockfish_entrants(path: Path, levels: Sequence[int], *, movetime: int | None, nodes: int) -> list[Entrant]:
    """Return Stockfish at these levels, in ascending order; by default at its lowest level and a usual one.

    Raises:
        EngineFailed: it cannot be started, or does not speak UCI.
        ValueError: it has no such level.
    """
    with UciClient([path]) as engine:
        name, known = engine.name, engine.ranges.get(LEVEL_OPTION.lower())
    if known is None:
        raise ValueError(f"--stockfish: {path} ({name}) cannot be limited to a level: it has no option {LEVEL_OPTION}")
    least, greatest = known
    for level in levels:
        if not least <= level <= greatest:
            raise ValueError(f"--stockfish-levels: {name} has levels from {least} to {greatest}, not {level}")
    return [
        Entrant(
            name=f"stockfish-{level}",
            spec=make_stockfish_spec(path, level, movetime=movetime, nodes=nodes),
        )
        for level in sorted(set(levels or (least, USUAL_LEVEL)))
    ]


def make_stockfish_spec(path: Path, level: int, *, movetime: int | None, nodes: int) -> UciSpec:
    """Return Stockfish in one thread, limited to a level: UCI_Elo, its makers' scale.

    Args:
        path: its program.
        level: its strength.
        movetime: milliseconds for a move; None: positions are limited instead.
        nodes: positions for a move.
    """
    options = {"Threads": 1, "Hash": HASH_MIB, "UCI_LimitStrength": "true", LEVEL_OPTION: level}
    return UciSpec(
        command=(str(path.absolute()),),
        setup=tuple(f"setoption name {name} value {value}" for name, value in options.items()),
        go=f"nodes {nodes}" if movetime is None else f"movetime {movetime}",
        move_seconds=NODES_SECONDS if movetime is None else movetime / 1000,
    )


def make_go_entrants(game: Game, names: Sequence[str]) -> list[Entrant]:
    """Return GTP engines, such as ``gnugo:10`` for GNU Go at level 10 and ``pachi:1000`` for Pachi with 1000 playouts.

    Raises:
        ValueError: there is no such program or level, or the program was not found.
    """
    found = [(*parse_go_engine(name), name) for name in dict.fromkeys(names)]
    return [
        Entrant(name=name, spec=GtpSpec(command=make_go_command(game, program, strength), move_seconds=MOVE_SECONDS))
        for program, strength, name in sorted(found)
    ]


def parse_go_engine(name: str) -> tuple[str, int]:
    """Split a name such as ``gnugo:10`` into program and strength.

    Raises:
        ValueError: there is none.
    """
    match = GO_ENGINE.fullmatch(name)
    if not match or int(match[2]) not in (GNU_GO_LEVELS if match[1] == "gnugo" else PACHI_PLAYOUTS):
        raise ValueError(
            f"--opponent: there is no {name!r} here; GNU Go is gnugo:LEVEL with a level from {GNU_GO_LEVELS[0]} to "
            f"{GNU_GO_LEVELS[-1]}, such as gnugo:10, and Pachi is pachi:PLAYOUTS with at least {PACHI_PLAYOUTS[0]}, "
            "such as pachi:1000"
        )
    return match[1], int(match[2])


def make_go_command(game: Game, program: str, strength: int) -> tuple[str, ...]:
    """Return the command that starts a GTP engine with the game's rules.

    Raises:
        ValueError: it was not found, or does not know these rules.
    """
    path = find_program(program)
    if path is None:
        raise ValueError(f"--opponent: {GO_ENGINE_MISSING[program]}")
    if program == "gnugo":
        suicide = ("--allow-suicide",) if game.options["suicide"] else ("--forbid-suicide",)
        return (str(path), "--mode", "gtp", "--level", str(strength), *GNU_GO_RULES, *suicide)
    if game.options["suicide"]:
        raise ValueError("--opponent: pachi plays under rules that forbid suicide, and this game allows it")
    return (str(path), "-d", "0", "-t", f"={strength}", "-r", "chinese", PACHI_OPTIONS)


def select_entrants(rungs: Sequence[Entrant], names: Sequence[str], game: str) -> list[Entrant]:
    """Return the named opponents, in the ladder's order.

    Raises:
        ValueError: one is not there.
    """
    known = [rung.name for rung in rungs]
    for name in names:
        if name not in known:
            who, theirs = PROGRAMS.get(re.split("[:-]", name)[0], (name, game))
            why = (
                f"there is no {name!r} here"
                if theirs == game
                else f"{who} plays {theirs}, and this network plays {game}"
            )
            raise ValueError(f"{why}; there are {', '.join(known)}, mcts:PLAYOUTS and alphabeta:DEPTH")
    return [rung for rung in rungs if rung.name in names]
