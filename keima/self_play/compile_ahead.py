"""Compile the search in a process beside a program that starts, while that loads libraries and compiles its game.

    python -m keima.self_play.compile_ahead self_play STARTER
    python -m keima.self_play.compile_ahead analysis STARTER

The machine code of the search is the same for all games, so the process compiles it for tic-tac-toe. Whoever needs it
meanwhile waits for it (``keima.compilation.shared_cache``). The process ends with its starter, whose id is the last
argument. On a first start, this is what the machine's second core is for.

This file is imported before everything that takes long to import.
"""

import os
import signal
import subprocess
import sys
from typing import Any

from keima.base.system.limits import count_usable_cores
from keima.base.system.processes import die_with_starter
from keima.compilation.sources import cache_folder
from keima.paths import PACKAGE, program_of, with_code_on_path

PROGRAM = "keima.self_play.compile_ahead"
LAST = {  # the function that is compiled last
    "self_play": (PACKAGE / "self_play" / "parallel_games.py", "advance_games"),
    "analysis": (PACKAGE / "search" / "simulate.py", "advance_searches"),
}

_started: list["subprocess.Popen[bytes]"] = []


def is_compiled(kind: str) -> bool:
    """Return whether the compile cache on this machine has the search of self-play, or that of analysis."""
    file, function = LAST[kind]
    return any(cache_folder(file).glob(f"*.{function}-*.nbi"))


def start_compiling(kind: str) -> None:
    """Compile the search of this kind beside this process, if it was never compiled and a core is free for it."""
    if count_usable_cores() > 1 and not is_compiled(kind):
        nothing, environment = subprocess.DEVNULL, with_code_on_path(os.environ)
        command = [*program_of(PROGRAM), kind, str(os.getpid())]
        _started.append(subprocess.Popen(command, env=environment, stdin=nothing, stdout=nothing, stderr=nothing))


def compile_search(kind: str) -> None:
    """Compile the search of this kind; of analysis, what only reads trees is left to the program."""
    from keima.compilation.decorators import compile_for_types  # only now: the starting program needs none of it
    from keima.config.sections.search import SearchSettings
    from keima.games import load_game
    from keima.search.simulate import advance_searches
    from keima.search.workspace import make_workspace
    from keima.self_play.parallel_games import SelfPlay

    def answer(observations: Any) -> Any:
        raise NotImplementedError("no game is played")

    game, settings = load_game("tic_tac_toe"), SearchSettings()
    if kind == "self_play":
        SelfPlay(game, answer, settings, parallel_games=1)
    else:
        work = make_workspace(game, settings, num_trees=1, simulations=settings.num_simulations)
        compile_for_types(advance_searches, work, *work.empty_answers)


def main() -> None:
    """Compile what the command line names."""
    kind, starter = sys.argv[1], int(sys.argv[2])
    die_with_starter(signal.SIGTERM, starter=starter)
    compile_search(kind)


if __name__ == "__main__":
    main()
