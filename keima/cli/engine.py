"""The engines: ``keima gtp`` plays Go and ``keima uci`` plays chess, for programs with a board."""

import argparse
import contextlib
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import TextIO

if __name__ == "__main__":
    from keima.base.system.signals import exit_quietly_on_interrupt

    exit_quietly_on_interrupt()

from keima import __version__
from keima.base.disk_words import error_text
from keima.base.named import add_network
from keima.base.system.command_line import CommandLine, program_name
from keima.base.system.signals import handle_interrupts
from keima.base.system.start import check_file_is_readable, parse_before_imports, report_compiling_of
from keima.config.flags import number, whole
from keima.networks.files.heading import find_model_file, read_heading
from keima.play.gtp.rules import NAMED_RULES, GtpRules, parse_rules
from keima.play.gtp.syntax import GtpHandshake
from keima.play.handshake import HandshakeResponder
from keima.play.line_reader import LineReader
from keima.play.uci.options import Options, UciHandshake

TITLE = "Keima"
USUAL_SIMULATIONS = 400
GAMES = {"gtp": "go", "uci": "chess"}  # by protocol
NAMES = {"gtp": "the Go Text Protocol", "uci": "the Universal Chess Interface"}
EXAMPLES = {
    "gtp": """
    keima gtp go9                         for Sabaki, GoGui, KaTrain's opponents ...
    keima gtp runs/go9 --simulations 800
""",
    "uci": """
    keima uci runs/chess                  for Cute Chess, Arena, BanksiaGUI ...
    keima uci model-000012.model
""",
}
HELP = """\
Play {game} as an engine that speaks {name} ({PROTOCOL}) on standard input and output.
{examples}
In the board program, enter the whole command as the engine's. Only protocol goes to standard output; errors go to
standard error.
"""


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line: the protocol, which the verb gives, and the user's arguments."""
    protocol, *words = sys.argv[1:] if argv is None else argv
    parser = CommandLine(help_text(protocol))
    add = parser.add_argument
    add_network(add)
    add("--version", type=whole(), help="which model of a run (default: the newest accepted one)")
    add("--simulations", type=whole(), default=USUAL_SIMULATIONS, help="simulations per move (default: %(default)s)")
    if protocol == "gtp":
        resign = "resign when the chance of winning stays below this, such as 0.05 (default: never)"
        add("--resign", type=number(least=0, most=1), default=0.0, metavar="CHANCE", help=resign)
        add("--rules", choices=NAMED_RULES, help="the rules at the start (default: tromp-taylor)")
    arguments = parser.parse_args(words)
    arguments.protocol = protocol
    return arguments


def help_text(protocol: str) -> str:
    """Return what ``--help`` explains."""
    return HELP.format(
        game="Go" if protocol == "gtp" else "chess",
        name=NAMES[protocol],
        PROTOCOL=protocol.upper(),
        examples=EXAMPLES[protocol],
    )


def check_inputs(arguments: argparse.Namespace) -> None:
    """Check that the run or the model exists, and plays the protocol's game.

    Raises:
        ValueError: it does not.
    """
    path = find_model_file(arguments.network, arguments.version)
    check_file_is_readable(path)
    heading = read_heading(path)
    if heading:
        check_protocol_game(arguments.protocol, heading.game)


def check_protocol_game(protocol: str, game: str) -> None:
    """Check that the protocol is of this game.

    Raises:
        ValueError: it is not.
    """
    if game != GAMES[protocol]:
        raise ValueError(f"{NAMES[protocol]} is for {GAMES[protocol]}, and this model plays {game}")


def preload_answers(arguments: argparse.Namespace) -> HandshakeResponder | None:
    """Start answering what needs no network; None if the model cannot be read."""
    heading = read_heading(find_model_file(arguments.network, arguments.version))
    if heading is None:
        return None
    version = heading.model_version
    hello: UciHandshake | GtpHandshake = (
        UciHandshake(uci_name(version), Options(simulations=arguments.simulations))
        if arguments.protocol == "uci"
        else GtpHandshake(name=TITLE, version=gtp_version(version))
    )
    return HandshakeResponder(LineReader(sys.stdin.fileno()), hello)


def uci_name(model_version: int) -> str:
    """Return the chess engine's name with the model's version, which UCI has no other place for."""
    return f"{TITLE} {model_version}"


def gtp_version(model_version: int) -> str:
    """Return the Go engine's version."""
    return f"{__version__} model {model_version}"


preload: HandshakeResponder | None = None  # answers while this program loads

if __name__ == "__main__":
    preload = preload_answers(parse_before_imports(parse, check_inputs, loading="PyTorch"))

from keima.config.sections.search import SearchSettings
from keima.games import Game, load_game
from keima.networks.architectures.auxiliary_heads import add_score_to_value, make_predictor
from keima.networks.inference.evaluator import Evaluator
from keima.play.arena.players import read_model
from keima.play.line_reader import ConversationPartner, run_conversation
from keima.play.thinking import Thinker

MOST_LEAVES = 32  # evaluated at once
PLIES_PER_POINT = 10  # plies for each point, after which a game of the Go engine ends; people end it earlier


@handle_interrupts
@report_compiling_of
def main(argv: Sequence[str] | None = None) -> int:
    """Be the engine until the input ends; returns the exit code."""
    arguments = parse(argv)
    try:
        model = read_model(find_model_file(arguments.network, arguments.version))
        check_protocol_game(arguments.protocol, model.description.game)
        game = load_game(model.description.game, **model.description.options)
        rules = starting_rules(arguments.rules, game) if arguments.protocol == "gtp" else None
        network = model.build(game)
        scoring, score_utility = add_score_to_value(network, game, SearchSettings().match_score_utility)
        evaluator = Evaluator(scoring, game, max_batch=MOST_LEAVES)
    except (ValueError, OSError) as error:
        print(f"{program_name()}: {error_text(error)}", file=sys.stderr)
        return 2
    if arguments.protocol == "uci":
        from keima.play.uci.engine import UciEngine  # which compiles chess

        make: Callable[..., ConversationPartner] = partial(UciEngine, game, name=uci_name(model.model_version))
    else:
        from keima.play.gtp.engine import GtpEngine  # which compiles Go

        plies = PLIES_PER_POINT * game.options["size"] ** 2
        game = load_game("go", **(model.description.options | {"max_plies": plies}))
        make = partial(
            GtpEngine,
            game,
            name=TITLE,
            version=gtp_version(model.model_version),
            predict=make_predictor(network),
            resign_below=arguments.resign,
            rules=rules,
        )
    return run_engine(make, game, evaluator, arguments.simulations, score_utility)


def starting_rules(name: str | None, game: Game) -> GtpRules:
    """Return the rules that the Go engine starts with.

    Raises:
        ValueError: the network does not play by them.
    """
    trained = GtpRules(suicide=bool(game.options["suicide"]))
    return parse_rules([name], trained)[0] if name else trained


def run_engine(
    make: Callable[..., ConversationPartner], game: Game, evaluator: Evaluator, simulations: int, score_utility: float
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
            run_conversation(preload.end() if preload else LineReader(sys.stdin.fileno()), engine)
            engine.close()
        except BrokenPipeError:
            return 0  # the terminal is closed
        except ValueError as error:  # of a network that gives no numbers
            print(f"{program_name()}: {error_text(error)}", file=sys.stderr)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
