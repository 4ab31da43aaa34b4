"""Play against a trained network in the terminal, watch it play, or run it as a chess or Go engine.

    python scripts/play.py --run runs/quickstart                    against the newest model of a run; you move first
    python scripts/play.py --run runs/quickstart --second           it moves first
    python scripts/play.py --run runs/go9 --version 12 --simulations 800
    python scripts/play.py --run runs/twenty48 --watch              watch it play 2048
    python scripts/play.py --run runs/quickstart --web              on a board in a browser
    python scripts/play.py --run runs/chess --uci                   a UCI engine, for chess programs such as Cute Chess
    python scripts/play.py --run runs/go9 --gtp                     a GTP engine, for Go programs such as Sabaki
    python scripts/play.py --model model-000012.model --uci         the same with a model's file

Type a move as the board names it (a column in Connect Four, a point such as D4 or "pass" in Go), or one of: help, hint,
undo, resign, new, quit. In a one-player game, "go" lets the network make a move, and "watch" all moves to the end.
"""

import argparse
import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TextIO

if __name__ == "__main__":
    from keima.base.system.signals import ends_at_once

    ends_at_once()

from keima import __version__
from keima.base.disk_words import in_words
from keima.base.system.signals import interruptible
from keima.base.system.start import before_imports, reports_compiling, see_file
from keima.config.flags import HIGHEST_SEED, number, whole
from keima.networks.files.model_heading import Heading, model_path_of_run, read_heading
from keima.paths import find_file
from keima.play.early import Early
from keima.play.gtp.rules import NAMED_RULES, GtpRules, parse_rules
from keima.play.gtp.syntax import GtpHello
from keima.play.line_reader import LineReader
from keima.play.uci.options import Options, UciHello
from keima.web.server import add_server_flags, serve

ENGINE_TITLE = "Keima"
USUAL_SIMULATIONS = 400


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--run", type=Path, help="the run's folder, such as runs/quickstart")
    which.add_argument("--model", type=find_file, metavar="FILE", help="a model: .model or .safetensors")
    parser.add_argument(
        "--version", type=whole(), help="with --run: the model's version (default: the newest accepted one)"
    )
    parser.add_argument(
        "--simulations", type=whole(), help="simulations per move (default: 400; with --web two seconds)"
    )
    parser.add_argument("--second", action="store_true", help="let the network move first")
    parser.add_argument("--watch", action="store_true", help="watch it play a one-player game to the end")
    parser.add_argument(
        "--seed", type=whole(0, HIGHEST_SEED), help="seed of random events (default: a different game each time)"
    )
    parser.add_argument(
        "--resign",
        type=number(least=0, most=1),
        metavar="CHANCE",
        help="it resigns when its winning chance stays below this, such as 0.05; as a Go engine and against you",
    )
    parser.add_argument(
        "--rules", choices=NAMED_RULES, help="with --gtp: the rules at the start (default: tromp-taylor)"
    )
    engine = parser.add_mutually_exclusive_group()
    engine.add_argument("--web", action="store_true", help="play in a browser, at the address that it prints")
    engine.add_argument("--uci", action="store_true", help="chess engine: speak UCI on standard input and output")
    engine.add_argument("--gtp", action="store_true", help="Go engine: speak GTP on standard input and output")
    add_server_flags(parser.add_argument_group("with --web"))
    arguments = parser.parse_args(argv)
    if arguments.simulations is None and not arguments.web:
        arguments.simulations = USUAL_SIMULATIONS
    if arguments.version is not None and not arguments.run:
        parser.error("--version selects a run's model: it needs --run")
    if arguments.uci and arguments.resign is not None:
        parser.error("--resign: a UCI engine cannot resign; set your GUI to end games by their score instead")
    if arguments.rules and not arguments.gtp:
        parser.error("--rules chooses the rules of a Go engine: it needs --gtp")
    return arguments


def see(arguments: argparse.Namespace) -> None:
    """Check that the run or the model exists.

    Raises:
        ValueError: it does not.
    """
    path = file_of(arguments)
    see_file(path)
    heading = read_heading(path)
    if heading:
        see_game(arguments, heading.game)


def see_game(arguments: argparse.Namespace, game: str) -> None:
    """Check that the requested engine plays this game.

    Raises:
        ValueError: it does not.
    """
    if arguments.uci and game != "chess":
        raise ValueError(f"--uci: the Universal Chess Interface is for chess, and this model plays {game}")
    if arguments.gtp and game != "go":
        raise ValueError(f"--gtp: the Go Text Protocol is for go, and this model plays {game}")


@interruptible
def serve_page(arguments: argparse.Namespace) -> int:
    """Let people play in a browser; returns the exit code."""
    from starlette.applications import Starlette

    from keima.web.app import play_application
    from keima.web.limits import MOST_SIMULATIONS
    from keima.web.models import Models
    from keima.web.run_reader import RunReader

    runs = [RunReader(arguments.run)] if arguments.run else []
    models = Models(runs, [] if runs else [arguments.model])
    chosen = f"run-0-{arguments.version}" if arguments.version is not None else ""
    simulations = arguments.simulations and min(arguments.simulations, MOST_SIMULATIONS)

    def make(ending: Callable[[], bool]) -> Starlette:
        return play_application(models, chosen=chosen, simulations=simulations)

    try:
        serve(make, arguments, say=partial(print, flush=True), page="/play")
    except OSError as error:
        print(f"play.py: {error}", file=sys.stderr)
        return 2
    return 0


def file_of(arguments: argparse.Namespace) -> Path:
    """The model's file.

    Raises:
        ValueError, OSError: there is no such run, or it has no such model.
    """
    path: Path = model_path_of_run(arguments.run, arguments.version) if arguments.run else arguments.model
    return path


def greet(arguments: argparse.Namespace) -> Early | None:
    """Start answering what needs no network; None if this is no engine, or the model cannot be read."""
    heading = read_heading(file_of(arguments)) if arguments.uci or arguments.gtp else None
    if heading is None:
        return None
    hello = (
        uci_hello(heading, arguments)
        if arguments.uci
        else GtpHello(name=ENGINE_TITLE, version=gtp_version(heading.model_version))
    )
    return Early(LineReader(sys.stdin.fileno()), hello)


def uci_hello(heading: Heading, arguments: argparse.Namespace) -> UciHello:
    """The chess engine's first answers."""
    return UciHello(uci_name(heading.model_version), Options(simulations=arguments.simulations))


def uci_name(model_version: int) -> str:
    """The chess engine's name, with the model's version, which has no other place in UCI."""
    return f"{ENGINE_TITLE} {model_version}"


def gtp_version(model_version: int) -> str:
    """The Go engine's version."""
    return f"{__version__} model {model_version}"


early: Early | None = None  # answers while this program loads

if __name__ == "__main__":
    given = before_imports(parse, see, loading="" if "--web" in sys.argv else "PyTorch")
    if given.web:
        sys.exit(serve_page(given))  # which does not load PyTorch
    early = greet(given)

import numpy as np
from rich.console import Console
from rich.text import Text

from keima.base.formats import game_title
from keima.config.schema import SearchSettings
from keima.games import Game, load_game
from keima.games.game import IllegalAction
from keima.networks.architectures.auxiliary_heads import predictions_of, scoring_network
from keima.networks.files.model_file import Model
from keima.networks.inference.evaluator import Evaluator
from keima.play.arena.players import read_model
from keima.play.gtp.resignation import Resignation
from keima.play.line_reader import Partner, converse
from keima.play.session import Table, move_name, parse_move, player_name
from keima.play.thinking import Thinker
from keima.report.terminal.boards import painted
from keima.search.move_search import Search

EXAMPLES = 3  # of moves, shown to somebody who typed none
WATCH_SECONDS = 0.3  # between two moves that are watched
MOST_LEAVES = 32  # that the engine evaluates at once
TABLE_WORDS = (
    "hint     what it would play, and what it expects",
    "undo     take your last move back",
    "resign   give the game up",
    "new      begin another game",
    "quit     leave",
)
# By the number of players.
HELP = {
    1: ("go       let it make a move", "watch    let it play to the end", *TABLE_WORDS),
    2: TABLE_WORDS,
}
PLIES_PER_POINT = 10  # plies for each point, after which a game of the Go engine ends; people end it earlier


class Opponent:
    """The network as a person's opponent, or partner in a one-player game.

    Args:
        resign_below: it gives up when its chance to win stays below this; see ``Resignation``.
    """

    def __init__(self, search: Search, *, resign_below: float = 0.0) -> None:
        self._search, self._resignation = search, Resignation(resign_below)

    def find_move(self, table: Table) -> tuple[int, float]:
        """Its best action, and its expectation for the player to move."""
        found = self._search.find(table.state[None])
        return int(found.actions[0]), float(found.values[0])

    def answer(self, table: Table) -> str:
        """Let it move or resign; returns the lines to print."""
        game, player = table.game, table.game.current_player(table.state)
        action, value = self.find_move(table)
        if game.num_players == 2 and self._resignation.wanted(value):
            table.resigned = player
            return "It resigns."
        table.play(action)
        if game.num_players == 2:
            return f"It plays {table.moves[-1]} and expects to win {(1 + value) / 2:.0%}."
        return f"{player_name(game, player)} plays {table.moves[-1]} and expects {value:+.2f}."


def painted_board(table: Table) -> Text:
    """The board in colours, with the last move marked and named."""
    game, now = table.game, table.game.render(table.state)
    if game.num_players == 1:
        return Text(now)
    if table.before is None:
        return painted(now)
    mover = "you" if game.current_player(table.before) == table.person else "it"
    return painted(now, game.render(table.before)).append(f"\n\nLast move: {table.moves[-1]}, by {mover}")


@interruptible
@reports_compiling
def main(argv: Sequence[str] | None = None) -> int:
    """Run the program; returns its exit code."""
    arguments = parse(argv)
    if arguments.web:
        return serve_page(arguments)
    console = Console(highlight=False)
    try:
        model = read_given_model(file_of(arguments))
        game = load_game(model.description.game, **model.description.options)
        if game.num_players == 1 and arguments.second:
            raise ValueError(f"--second: {game.name} is a one-player game")
        if game.num_players > 1 and arguments.watch:
            raise ValueError(
                f"--watch: {game.name} is no one-player game; scripts/view_results.py --game shows the games of a run"
            )
        see_game(arguments, game.name)
        rules = rules_of(arguments, game) if arguments.gtp else None
        network = model.build(game)
        settings = SearchSettings(forced_playouts=False)
        scoring, score_utility = scoring_network(network, game, settings.match_score_utility)
        evaluator = Evaluator(scoring, game, max_batch=MOST_LEAVES)
    except (ValueError, OSError) as error:
        print(f"play.py: {in_words(error)}", file=sys.stderr)
        return 2
    if arguments.uci:
        from keima.play.uci import engine as uci  # which compiles chess

        make: Callable[..., Partner] = partial(uci.UciEngine, game, name=uci_name(model.model_version))
        return run_engine(make, game, evaluator, arguments.simulations, score_utility)
    if arguments.gtp:
        from keima.play.gtp import engine as gtp  # which compiles Go

        long = load_game(
            "go", **(model.description.options | {"max_plies": PLIES_PER_POINT * game.options["size"] ** 2})
        )
        version = gtp_version(model.model_version)
        make = partial(
            gtp.GtpEngine,
            long,
            name=ENGINE_TITLE,
            version=version,
            predict=predictions_of(network),
            resign_below=arguments.resign or 0.0,
            rules=rules,
        )
        return run_engine(make, long, evaluator, arguments.simulations, score_utility)
    search = Search(
        game,
        evaluator,
        settings,
        num_simulations=arguments.simulations,
        num_trees=1,
        score_utility=score_utility,
    )
    title = game_title(game.name, game.options)
    about = f"{title}, model {model.model_version}, {arguments.simulations} simulations a move"
    console.print(f"{about}. Type a move, or help.", soft_wrap=True)
    try:
        again = True
        while again:
            person = 1 if arguments.second else 0
            table = Table(game, person=person, seed=arguments.seed)
            opponent = Opponent(search, resign_below=arguments.resign or 0.0)
            again = play_at_terminal(table, opponent, console, watch=arguments.watch)
    except (KeyboardInterrupt, EOFError):
        console.print()
    return 0


def rules_of(arguments: argparse.Namespace, game: Game) -> GtpRules:
    """The rules that the Go engine starts with.

    Raises:
        ValueError: the network does not play by them.
    """
    trained = GtpRules(suicide=bool(game.options["suicide"]))
    return parse_rules([arguments.rules], trained)[0] if arguments.rules else trained


def read_given_model(path: Path) -> Model:
    """The model in a file.

    Raises:
        ValueError, OSError: it is damaged, or there is none.
    """
    try:
        return read_model(path)
    except ValueError as error:
        raise ValueError(str(error) if str(path) in str(error) else f"{path} is not a model file: {error}") from error


def run_engine(
    make: Callable[..., Partner], game: Game, evaluator: Evaluator, simulations: int, score_utility: float
) -> int:
    """Run as an engine until the input ends; returns the exit code. Only protocol goes to standard output."""
    protocol: TextIO = sys.stdout

    def write(line: str) -> None:
        protocol.write(f"{line}\n")
        protocol.flush()

    def think(max_simulations: int) -> Thinker:
        return Thinker(
            game,
            evaluator,
            max_batch=evaluator.max_batch,
            max_simulations=max_simulations,
            score_utility=score_utility,
        )

    engine = make(think=think, write=write, simulations=simulations)
    with contextlib.redirect_stdout(sys.stderr):
        try:
            converse(early.end() if early else LineReader(sys.stdin.fileno()), engine)
            engine.close()
        except BrokenPipeError:
            return 0  # the terminal is closed
        except ValueError as error:  # of a network that gives no numbers
            print(f"play.py: {in_words(error)}", file=sys.stderr)
            return 2
    return 0


def play_at_terminal(table: Table, opponent: Opponent, console: Console, *, watch: bool = False) -> bool:
    """Play one game; returns whether another is wanted."""
    if watch:
        watch_game(table, opponent, console)
    shown = None
    while not table.over:
        if table.state is not shown:
            shown = table.state
            print_board(table, console)
        if table.game.current_player(table.state) != table.person:
            console.print(opponent.answer(table), markup=False)
            continue
        command = console.input("Your move: ").strip()
        match command.lower():
            case "quit" | "q" | "exit":
                return False
            case "new":
                return True
            case "resign":
                table.resigned = table.person
            case "watch" if table.game.num_players == 1:
                watch_game(table, opponent, console)
            case _:
                for line in obey(table, opponent, command):
                    console.print(line, markup=False)
    if table.state is not shown:
        print_board(table, console)
    console.print(f"{table.result()}\n", markup=False)
    return console.input("Another game? [y/N] ").strip().lower().startswith("y")


def print_board(table: Table, console: Console) -> None:
    """Print the board between empty lines."""
    console.print(Text("\n").append(painted_board(table)).append("\n"), soft_wrap=True)


def watch_game(table: Table, opponent: Opponent, console: Console) -> None:
    """Let the network play a one-player game to its end, at a readable speed."""
    while not table.game.terminal(table.state):
        print_board(table, console)
        action, value = opponent.find_move(table)
        console.print(f"It plays {table.game.action_name(action)}, {hope(table.game, value)}.", markup=False)
        table.play(action)
        time.sleep(WATCH_SECONDS if console.is_terminal else 0.0)


def hope(game: Game, value: float) -> str:
    """The network's expectation, in words."""
    if game.num_players == 1:
        return f"and expects {value:,.0f} points more"
    return f"and expects you to win {(1 + value) / 2:.0%}" if game.num_players == 2 else f"and expects {value:+.2f}"


def obey(table: Table, opponent: Opponent, command: str) -> Iterator[str]:
    """Execute a typed line; yields the lines to print."""
    game = table.game
    match command.lower():
        case "help" | "?":
            yield from HELP[min(game.num_players, 2)]
            yield f"Here, for example, you may play {examples(table)}."
        case "undo":
            table.undo()
        case "hint":
            action, value = opponent.find_move(table)
            yield f"It would play {move_name(game, table.state, action)}, {hope(game, value)}."
        case "go" if game.num_players == 1:
            action, value = opponent.find_move(table)
            table.play(action)
            yield f"It plays {game.action_name(action)}, {hope(game, value)}."
        case _:
            try:
                action = parse_move(game, table.state, command)
            except ValueError as error:
                illegal = isinstance(error, IllegalAction)
                yield (
                    f"{command} is not legal here; {examples(table)} would be." if illegal else f"{error}; or type help"
                )
                return
            table.play(action)


def examples(table: Table) -> str:
    """Some legal moves."""
    legal = np.random.default_rng(0).permutation(table.game.legal_actions(table.state))[:EXAMPLES]
    return ", ".join(move_name(table.game, table.state, int(action)) for action in legal)


if __name__ == "__main__":
    sys.exit(main())
