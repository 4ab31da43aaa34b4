"""Play against a trained network, in the terminal or in a browser, or watch it play.

    keima play go9                             the shipped 9x9 Go network; you move first
    keima play quickstart                      the newest model of the run runs/quickstart
    keima play runs/quickstart --second        it moves first
    keima play go9 --web                       on a board in a browser
    keima play runs/go9 --version 12 --simulations 800
    keima play runs/twenty48 --watch           watch it play 2048
    keima play model-000012.model              a model's file

Type a move as the board names it (a column in Connect Four, a point such as D4 or "pass" in Go), or one of: help, hint,
undo, resign, new, quit. In a one-player game, "go" lets the network make a move, and "watch" all moves to the end.
"""

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial

if __name__ == "__main__":
    from keima.base.system.signals import exit_quietly_on_interrupt

    exit_quietly_on_interrupt()

from keima.base.disk_words import error_text
from keima.base.named import add_network
from keima.base.system.command_line import CommandLine, program_name
from keima.base.system.signals import handle_interrupts
from keima.base.system.start import check_file_is_readable, parse_before_imports, report_compiling_of
from keima.config.flags import HIGHEST_SEED, number, whole
from keima.networks.files.heading import find_model_file
from keima.web.server import add_server_flags, serve

USUAL_SIMULATIONS = 400


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = CommandLine(__doc__)
    add = parser.add_argument
    add_network(add)
    add("--version", type=whole(), help="which model of a run (default: the newest accepted one)")
    add("--simulations", type=whole(), help="simulations per move (default: 400; with --web two seconds)")
    add("--second", action="store_true", help="let the network move first")
    add("--watch", action="store_true", help="watch it play a one-player game to the end")
    add("--seed", type=whole(0, HIGHEST_SEED), help="seed of random events (default: a different game each time)")
    resign = "resign when the chance of winning stays below this, such as 0.05"
    add("--resign", type=number(least=0, most=1), metavar="CHANCE", help=resign)
    add("--web", action="store_true", help="play in a browser, at the address that it prints")
    add_server_flags(parser.add_argument_group("with --web"))
    arguments = parser.parse_args(argv)
    if arguments.simulations is None and not arguments.web:
        arguments.simulations = USUAL_SIMULATIONS
    return arguments


def check_inputs(arguments: argparse.Namespace) -> None:
    """Check that the run or the model exists.

    Raises:
        ValueError: it does not.
    """
    check_file_is_readable(find_model_file(arguments.network, arguments.version))


@handle_interrupts
def serve_page(arguments: argparse.Namespace) -> int:
    """Let people play in a browser; returns the exit code."""
    from starlette.applications import Starlette

    from keima.web.app import make_play_app
    from keima.web.limits import MOST_SIMULATIONS
    from keima.web.models import Models
    from keima.web.run_reader import RunReader

    is_run = arguments.network.is_dir()
    models = Models([RunReader(arguments.network)], []) if is_run else Models([], [arguments.network])
    chosen = f"run-0-{arguments.version}" if arguments.version is not None else ""
    simulations = arguments.simulations and min(arguments.simulations, MOST_SIMULATIONS)

    def make(ending: Callable[[], bool]) -> Starlette:
        return make_play_app(models, chosen=chosen, simulations=simulations)

    try:
        serve(make, arguments, say=partial(print, flush=True), page="/play")
    except OSError as error:
        print(f"{program_name()}: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    given = parse_before_imports(parse, check_inputs, loading="" if "--web" in sys.argv else "PyTorch")

    from keima.self_play.compile_ahead import start_compiling  # only now: --help needs nothing of it

    start_compiling("analysis")
    if given.web:
        sys.exit(serve_page(given))  # which does not load PyTorch

import numpy as np
from rich.console import Console
from rich.text import Text

from keima.config.commands import keima
from keima.evaluation.match_worker import make_match_search_settings
from keima.games import Game
from keima.games.game import IllegalAction
from keima.networks.architectures.auxiliary_heads import add_score_to_value
from keima.networks.inference.evaluator import Evaluator
from keima.play.gtp.resignation import Resignation
from keima.play.network_loader import load_network_from_model
from keima.play.session import GameSession, move_name, parse_move, player_name
from keima.report.terminal.boards import paint_board
from keima.search.move_search import Search

EXAMPLES = 3  # of moves, shown to somebody who typed none
WATCH_SECONDS = 0.3  # between two moves that are watched
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


class Opponent:
    """The network as a person's opponent, or partner in a one-player game.

    Args:
        resign_below: it gives up when its chance to win stays below this; see ``Resignation``.
    """

    def __init__(self, search: Search, *, resign_below: float = 0.0) -> None:
        self._search, self._resignation = search, Resignation(resign_below)

    def find_move(self, session: GameSession) -> tuple[int, float]:
        """Return the network's best action, and its expectation for the player to move."""
        found = self._search.find(session.state[None])
        return int(found.actions[0]), float(found.values[0])

    def make_move(self, session: GameSession) -> str:
        """Let the network move or resign; return the lines to print."""
        game, player = session.game, session.game.current_player(session.state)
        action, value = self.find_move(session)
        if game.num_players == 2 and self._resignation.should_resign(value):
            session.resigned = player
            return "It resigns."
        session.play(action)
        if game.num_players == 2:
            return f"It plays {session.moves[-1]} and expects to win {(1 + value) / 2:.0%}."
        return f"{player_name(game, player)} plays {session.moves[-1]} and expects {value:+.2f}."


def painted_board(session: GameSession) -> Text:
    """Return the board in colours, with the last move marked and named."""
    game, now = session.game, session.game.render(session.state)
    if game.num_players == 1:
        return Text(now)
    if session.previous_state is None:
        return paint_board(now)
    mover = "you" if game.current_player(session.previous_state) == session.person else "it"
    return paint_board(now, game.render(session.previous_state)).append(
        f"\n\nLast move: {session.moves[-1]}, by {mover}"
    )


@handle_interrupts
@report_compiling_of
def main(argv: Sequence[str] | None = None) -> int:
    """Run the program; returns its exit code."""
    arguments = parse(argv)
    if arguments.web:
        return serve_page(arguments)
    console = Console(highlight=False)
    try:
        found = load_network_from_model(find_model_file(arguments.network, arguments.version))
        game, model = found.game, found.model
        if game.num_players == 1 and arguments.second:
            raise ValueError(f"--second: {game.name} is a one-player game")
        if game.num_players > 1 and arguments.watch:
            shows = keima("results RUN --game 1")
            raise ValueError(f"--watch: {game.name} is not a one-player game; {shows} shows the games of a run")
        settings = make_match_search_settings(found.search)
        scoring, score_utility = add_score_to_value(model.build(game), game, settings.match_score_utility)
        evaluator = Evaluator(scoring, game, max_batch=1)
    except (ValueError, OSError) as error:
        print(f"{program_name()}: {error_text(error)}", file=sys.stderr)
        return 2
    search = Search(
        game,
        evaluator,
        settings,
        num_simulations=arguments.simulations,
        num_trees=1,
        score_utility=score_utility,
    )
    about = found.describe(found.spec(arguments.simulations, None))
    console.print(f"{about}. Type a move, or help.", soft_wrap=True)
    try:
        again = True
        while again:
            person = 1 if arguments.second else 0
            session = GameSession(game, person=person, seed=arguments.seed)
            opponent = Opponent(search, resign_below=arguments.resign or 0.0)
            again = play_at_terminal(session, opponent, console, watch=arguments.watch)
    except (KeyboardInterrupt, EOFError):
        console.print()
    return 0


def play_at_terminal(session: GameSession, opponent: Opponent, console: Console, *, watch: bool = False) -> bool:
    """Play one game; returns whether another is wanted."""
    if watch:
        watch_game(session, opponent, console)
    shown = None
    while not session.is_over:
        if session.state is not shown:
            shown = session.state
            print_board(session, console)
        if session.game.current_player(session.state) != session.person:
            console.print(opponent.make_move(session), markup=False)
            continue
        command = console.input("Your move: ").strip()
        match command.lower():
            case "quit" | "q" | "exit":
                return False
            case "new":
                return True
            case "resign":
                session.resigned = session.person
            case "watch" if session.game.num_players == 1:
                watch_game(session, opponent, console)
            case _:
                for line in handle_line(session, opponent, command):
                    console.print(line, markup=False)
    if session.state is not shown:
        print_board(session, console)
    console.print(f"{session.result()}\n", markup=False)
    return console.input("Another game? [y/N] ").strip().lower().startswith("y")


def print_board(session: GameSession, console: Console) -> None:
    """Print the board between empty lines."""
    console.print(Text("\n").append(painted_board(session)).append("\n"), soft_wrap=True)


def watch_game(session: GameSession, opponent: Opponent, console: Console) -> None:
    """Let the network play a one-player game to its end, at a readable speed."""
    while not session.game.terminal(session.state):
        print_board(session, console)
        action, value = opponent.find_move(session)
        console.print(
            f"It plays {session.game.action_name(action)}, {expectation_text(session.game, value)}.", markup=False
        )
        session.play(action)
        time.sleep(WATCH_SECONDS if console.is_terminal else 0.0)


def expectation_text(game: Game, value: float) -> str:
    """Return the result that the network expects, as text."""
    if game.num_players == 1:
        return f"and expects {value:,.0f} points more"
    return f"and expects you to win {(1 + value) / 2:.0%}" if game.num_players == 2 else f"and expects {value:+.2f}"


def handle_line(session: GameSession, opponent: Opponent, command: str) -> Iterator[str]:
    """Execute a typed line; yield the lines to print."""
    game = session.game
    match command.lower():
        case "help" | "?":
            yield from HELP[min(game.num_players, 2)]
            yield f"Here, for example, you may play {example_moves(session)}."
        case "undo":
            session.undo()
        case "hint":
            action, value = opponent.find_move(session)
            yield f"It would play {move_name(game, session.state, action)}, {expectation_text(game, value)}."
        case "go" if game.num_players == 1:
            action, value = opponent.find_move(session)
            session.play(action)
            yield f"It plays {game.action_name(action)}, {expectation_text(game, value)}."
        case _:
            try:
                action = parse_move(game, session.state, command)
            except ValueError as error:
                illegal = isinstance(error, IllegalAction)
                yield (
                    f"{command} is not legal here; {example_moves(session)} would be."
                    if illegal
                    else f"{error}; or type help"
                )
                return
            session.play(action)


def example_moves(session: GameSession) -> str:
    """Return some legal moves, as text."""
    legal = np.random.default_rng(0).permutation(session.game.legal_actions(session.state))[:EXAMPLES]
    return ", ".join(move_name(session.game, session.state, int(action)) for action in legal)


if __name__ == "__main__":
    sys.exit(main())
