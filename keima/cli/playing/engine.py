"""The engines, for programs with a board: ``keima gtp`` and ``keima analysis`` for Go, and ``keima uci`` for chess."""

import argparse
import contextlib
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

if __name__ == "__main__":
    from keima.base.system.signals import exit_quietly_on_interrupt

    exit_quietly_on_interrupt()

from keima import __version__
from keima.base.disk_words import error_text
from keima.base.named import add_network, find_network, flag_type
from keima.base.system.command_line import CommandLine, program_name
from keima.base.system.signals import handle_interrupts
from keima.base.system.start import check_file_is_readable, parse_before_imports, report_compiling_of
from keima.config.flags import number, whole
from keima.networks.files.heading import find_model_file, read_heading
from keima.play.analysis.syntax import BLACK, PERSPECTIVES, AnalysisHandshake
from keima.play.gtp.rules import NAMED_RULES, GtpRules, parse_rules
from keima.play.gtp.syntax import GtpHandshake
from keima.play.handshake import Handshake, HandshakeResponder
from keima.play.line_reader import LineReader
from keima.play.uci.options import Options, UciHandshake

TITLE = "Keima"
USUAL_SIMULATIONS = 400
USUAL_VISITS = 500  # of a query that names none, as in KataGo's example
USUAL_PARALLEL, MOST_PARALLEL = 16, 256
GAMES = {"gtp": "go", "uci": "chess", "analysis": "go"}  # by protocol
NAMES = {
    "gtp": "the Go Text Protocol",
    "uci": "the Universal Chess Interface",
    "analysis": "KataGo's analysis protocol",
}
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
ANALYSIS_HELP = """Analyse many positions of Go at once: speak KataGo's parallel analysis protocol on standard input and
output.

    keima analysis go9                    as the engine's command, for example in KaTrain
    keima analysis runs/go9 --max-visits 1000
    echo '{"id":"1","moves":[["B","E5"]],"rules":"chinese","komi":7,"boardXSize":9,"boardYSize":9}' | keima analysis go9

A query is a JSON object on one line; KataGo's Analysis_Engine.md describes it. Positions of all queries are searched
side by side, and each result is written when it is there. The end of the input ends the engine, after all results.
Points and ownership need a network that was trained with network.predict_score and network.predict_ownership.
"""


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line: the protocol, which the verb gives, and the user's arguments."""
    protocol, *words = sys.argv[1:] if argv is None else argv
    parser = CommandLine(ANALYSIS_HELP if protocol == "analysis" else help_text(protocol))
    add = parser.add_argument
    add_network(add, nargs="?" if protocol == "analysis" else None)
    add("--version", type=whole(), help="which model of a run (default: the newest accepted one)")
    if protocol == "analysis":
        add_analysis_flags(add)
    else:
        add(
            "--simulations", type=whole(), default=USUAL_SIMULATIONS, help="simulations per move (default: %(default)s)"
        )
    if protocol == "gtp":
        resign = "resign when the chance of winning stays below this, such as 0.05 (default: never)"
        add("--resign", type=number(least=0, most=1), default=0.0, metavar="CHANCE", help=resign)
        add("--rules", choices=NAMED_RULES, help="the rules at the start (default: tromp-taylor)")
    arguments = parser.parse_args(words)
    if protocol == "analysis" and (arguments.network is None) == (arguments.model is None):
        parser.error("name one network: keima analysis NETWORK")
    arguments.network = arguments.network or arguments.model
    arguments.protocol = protocol
    return arguments


def add_analysis_flags(add: Callable[..., object]) -> None:
    """Add the flags of ``keima analysis``, with those that programs pass to KataGo."""
    add("--max-visits", type=whole(), default=USUAL_VISITS, help="of a query that names none (default: %(default)s)")
    add(
        *("--parallel", "-analysis-threads"),
        type=whole(most=MOST_PARALLEL),
        default=USUAL_PARALLEL,
        metavar="N",
        help="positions to search side by side (default: %(default)s)",
    )
    add(
        "--report-as",
        choices=PERSPECTIVES,
        default=BLACK,
        help="whose winning chances and points are reported, unless a query says so (default: %(default)s)",
    )
    add("-quit-without-waiting", action="store_true", help="exit at the end of the input, without waiting for results")
    add("-model", type=flag_type(find_network), metavar="NETWORK", help="the network, for programs that pass it so")
    for flag in ("-config", "-override-config", "-human-model"):
        add(flag, action="append", help="accepted for programs that pass it to KataGo, and ignored")


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
    hello: Handshake
    if arguments.protocol == "uci":
        hello = UciHandshake(uci_name(version), Options(simulations=arguments.simulations))
    elif arguments.protocol == "analysis":
        hello = AnalysisHandshake(__version__)
    else:
        hello = GtpHandshake(name=TITLE, version=gtp_version(version))
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

    from keima.self_play.compile_ahead import start_compiling  # only now: the first answers need nothing of it

    start_compiling("analysis")

from keima.config.sections.search import SearchSettings
from keima.games import Game, load_game
from keima.networks.architectures.auxiliary_heads import add_score_to_value, make_predictor
from keima.networks.files.model import Model
from keima.networks.inference.evaluator import Evaluator
from keima.networks.predictions import Predict
from keima.play.line_reader import ConversationPartner, LineWriter, run_conversation
from keima.play.network_loader import load_network_from_model
from keima.play.thinking import Thinker

MOST_LEAVES = 32  # evaluated at once, for one position
MOST_BATCH = MOST_PARALLEL  # evaluated at once, for many positions
PLIES_PER_POINT = 10  # plies for each point, after which a game of the Go engine ends; people end it earlier

Write = Callable[[str], None]  # a line


@dataclass(frozen=True, kw_only=True)
class EngineNetwork:
    """A network that has been loaded for an engine."""

    game: Game  # as the engine plays it
    model: Model
    search: SearchSettings  # of its run
    predict: Predict | None  # the ends of games, if it has the heads
    evaluator: Evaluator
    score_utility: float

    def think(self, max_simulations: int) -> Thinker:
        """Return a thinker with room for this many simulations."""
        return Thinker(
            self.game,
            self.evaluator,
            search=self.search,
            max_batch=self.evaluator.max_batch,
            max_simulations=max_simulations,
            score_utility=self.score_utility,
        )


@handle_interrupts
@report_compiling_of
def main(argv: Sequence[str] | None = None) -> int:
    """Be the engine until the input ends; returns the exit code."""
    arguments = parse(argv)
    try:
        loaded = load_engine_network(arguments)
        rules = starting_rules(arguments.rules, loaded.game) if arguments.protocol == "gtp" else None
    except (ValueError, OSError) as error:
        print(f"{program_name()}: {error_text(error)}", file=sys.stderr)
        return 2
    if arguments.protocol == "uci":
        return run_engine(partial(make_uci_engine, arguments, loaded))
    if arguments.protocol == "analysis":
        return run_engine(partial(make_analysis_engine, arguments, loaded))
    return run_engine(partial(make_gtp_engine, arguments, loaded, rules))


def load_engine_network(arguments: argparse.Namespace) -> EngineNetwork:
    """Load the network that the command line names.

    Raises:
        ValueError, OSError: it cannot be read, or plays another game.
    """
    found = load_network_from_model(find_model_file(arguments.network, arguments.version))
    game, model, search = found.game, found.model, found.search
    check_protocol_game(arguments.protocol, game.name)
    network = model.build(game)
    scoring, score_utility = add_score_to_value(network, game, search.match_score_utility)
    evaluator = Evaluator(scoring, game, max_batch=MOST_BATCH if arguments.protocol == "analysis" else MOST_LEAVES)
    if game.name == "go":
        plies = PLIES_PER_POINT * game.options["size"] ** 2
        game = load_game("go", **(model.description.options | {"max_plies": plies}))
    return EngineNetwork(
        game=game,
        model=model,
        search=search,
        predict=make_predictor(network),
        evaluator=evaluator,
        score_utility=score_utility,
    )


def make_uci_engine(arguments: argparse.Namespace, loaded: EngineNetwork, write: Write) -> ConversationPartner:
    """Return the chess engine."""
    from keima.play.uci.engine import UciEngine  # which compiles chess

    name = uci_name(loaded.model.model_version)
    return UciEngine(loaded.game, name=name, think=loaded.think, write=write, simulations=arguments.simulations)


def make_gtp_engine(
    arguments: argparse.Namespace, loaded: EngineNetwork, rules: GtpRules | None, write: Write
) -> ConversationPartner:
    """Return the Go engine."""
    from keima.play.gtp.engine import GtpEngine  # which compiles Go

    return GtpEngine(
        loaded.game,
        name=TITLE,
        version=gtp_version(loaded.model.model_version),
        think=loaded.think,
        write=write,
        simulations=arguments.simulations,
        predict=loaded.predict,
        resign_below=arguments.resign,
        rules=rules,
    )


def make_analysis_engine(arguments: argparse.Namespace, loaded: EngineNetwork, write: Write) -> ConversationPartner:
    """Return the engine that analyses many positions of Go."""
    from keima.play.analysis.engine import AnalysisEngine, describe_model  # which compile Go
    from keima.play.analysis.query import QueryDefaults
    from keima.play.analysis.searches import Searches

    game, evaluator = loaded.game, loaded.evaluator
    searches = Searches(
        game,
        evaluator,
        search=loaded.search,
        max_batch=evaluator.max_batch,
        parallel=arguments.parallel,
        score_utility=loaded.score_utility,
    )
    path, version = find_model_file(arguments.network, arguments.version), loaded.model.model_version
    return AnalysisEngine(
        game,
        version=__version__,
        model=describe_model(path, version=version, max_batch=evaluator.max_batch),
        searches=searches,
        write=write,
        defaults=QueryDefaults(
            max_visits=arguments.max_visits,
            most_visits=searches.most_visits,
            parallel=arguments.parallel,
            perspective=arguments.report_as,
        ),
        predict=loaded.predict,
        finishes=not arguments.quit_without_waiting,
    )


def starting_rules(name: str | None, game: Game) -> GtpRules:
    """Return the rules that the Go engine starts with.

    Raises:
        ValueError: the network does not play by them.
    """
    trained = GtpRules(suicide=bool(game.options["suicide"]))
    return parse_rules([name], trained)[0] if name else trained


def run_engine(make: Callable[[Write], ConversationPartner]) -> int:
    """Run as an engine until the input ends; returns the exit code. Only protocol goes to standard output.

    Args:
        make: makes the engine, which writes lines.
    """
    reader = preload.reader if preload else LineReader(sys.stdin.fileno())
    writer = LineWriter(reader, sys.stdout.fileno())
    with contextlib.redirect_stdout(sys.stderr):
        try:
            engine = make(writer.write_line)
            if preload:
                preload.end()
            run_conversation(reader, engine)
            engine.close()
        except BrokenPipeError:
            return 0  # the terminal is closed
        except ValueError as error:  # of a network that gives no numbers
            print(f"{program_name()}: {error_text(error)}", file=sys.stderr)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
