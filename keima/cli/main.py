"""The command ``keima``: its verbs, and the program behind each.

A program is imported when its verb is called, so that ``keima --help`` and ``keima VERB --help`` show at once. It runs
as a main program, as the scripts of a checkout run it.
"""

import difflib
import os
import runpy
import shlex
import sys
from dataclasses import dataclass
from importlib.util import find_spec

from keima import __version__
from keima.base.system.command_line import COMPLETING, CommandLine

WIDE = 14  # characters of a verb in the help
TITLE = "Train game-playing networks by self-play, on this machine or on whatever machines you can reach over SSH."


@dataclass(frozen=True)
class Verb:
    """What a verb runs.

    Attributes:
        module: the program.
        about: what it does, in a few words.
        words: words that the program gets before those of the user.
    """

    module: str
    about: str
    words: tuple[str, ...] = ()


VERBS = {
    "train": Verb("keima.cli.training.train", "train a network: keima train quickstart, or keima train my_game.py"),
    "plan": Verb("keima.cli.training.plan", "how strong a network will be after how many hours"),
    "resume": Verb("keima.cli.training.train", "continue a run where it ended", ("--resume",)),
    "play": Verb("keima.cli.playing.play", "play against a network, in the terminal or in a browser"),
    "gtp": Verb("keima.cli.playing.engine", "be a Go engine, for programs such as Sabaki", ("gtp",)),
    "analysis": Verb(
        "keima.cli.playing.engine", "analyse many positions of Go at once, for programs such as KaTrain", ("analysis",)
    ),
    "uci": Verb("keima.cli.playing.engine", "be a chess engine, for programs such as Cute Chess", ("uci",)),
    "dashboard": Verb("keima.cli.reports.dashboard", "watch runs in a browser"),
    "results": Verb("keima.cli.reports.results", "show a run's table, curves and games"),
    "watch": Verb("keima.cli.reports.watch", "watch a run in the terminal"),
    "audit": Verb("keima.cli.reports.audit", "check that no game of a run is lost or counted twice"),
    "benchmark": Verb("keima.cli.playing.benchmark", "measure a network's strength in matches"),
    "rate": Verb("keima.cli.playing.rate", "rate a network on an external scale, in ten minutes"),
    "speedrun": Verb("keima.cli.training.speedrun", "race to a fixed strength, and write a record of it"),
    "verify": Verb("keima.cli.reports.verify", "check the record of such a race"),
    "export": Verb("keima.cli.reports.export", "write a run's newest network to a file with a model card"),
    "new-game": Verb("keima.cli.new_game", "begin a game of your own"),
    "check-game": Verb("keima.cli.check_game", "check a game, and propose settings to train it"),
    "cluster": Verb("keima.cli.cluster", "manage the machines of a cluster"),
    "join": Verb("keima.cli.join", "play games for somebody else's run, by a link"),
    "crowd": Verb("keima.cli.crowd", "invite people to a run, and see what they give"),
    "worker": Verb("keima.cli.worker", "play games in one worker folder, as the Coach asks"),
    "ppo": Verb("keima.cli.training.ppo", "train a trading policy with PPO"),
    "big-learner": Verb("keima.cli.training.big_learner", "train a big network on recorded games, with DDP"),
    "completion": Verb("keima.cli.completion", "print completion code for your shell"),
}


def main() -> int:
    """Run the verb on the command line; returns the exit code."""
    if COMPLETING in os.environ:
        choose_completion()
    words = sys.argv[1:]
    if words and words[0] in VERBS:
        return run_verb(words[0], words[1:])
    sys.argv[0] = "keima"
    parser = CommandLine(help_text(), usage="keima [--version] VERB ...")
    parser.add_argument("verb", choices=VERBS, metavar="VERB", help="one of those above")
    parser.add_argument("--version", action="version", version=f"keima {__version__}")
    if words and not words[0].startswith("-"):
        close = difflib.get_close_matches(words[0], VERBS, n=1)
        parser.error(f"there is no verb {words[0]}; " + (f"did you mean {close[0]}?" if close else "see keima --help"))
    parser.parse_args(words or ["--help"])
    return 2


def run_verb(verb: str, words: list[str]) -> int:
    """Run the program of a verb with these words; returns its exit code."""
    sys.argv = [f"keima {verb}", *VERBS[verb].words, *words]
    if not is_installed(VERBS[verb].module):  # the wheel that a main node sends to its workers
        print(f"keima {verb}: this installation is for workers and has only `keima worker`", file=sys.stderr)
        return 2
    runpy.run_module(VERBS[verb].module, run_name="__main__")
    return 0


def is_installed(module: str) -> bool:
    """Return whether there is such a module."""
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # nor the room that it is in
        return False


def help_text() -> str:
    """Return what ``keima --help`` explains."""
    return "\n".join([TITLE, "", *(f"  {verb:{WIDE}} {each.about}" for verb, each in VERBS.items())])


def choose_completion() -> None:
    """Have the verb's own program complete the words after it; a shell asks about the words in COMP_LINE."""
    begun = os.environ.get("COMP_LINE", "")[: int(os.environ.get("COMP_POINT", "0"))]
    try:
        words = shlex.split(begun)
    except ValueError:  # within quotes
        words = begun.split()
    if len(words) > 1 and words[1] in VERBS and (len(words) > 2 or begun[-1:].isspace()):
        os.environ[COMPLETING] = str(int(os.environ[COMPLETING]) + 1)
        sys.argv = [sys.argv[0], words[1]]
    else:
        sys.argv = sys.argv[:1]


if __name__ == "__main__":
    sys.exit(main())
