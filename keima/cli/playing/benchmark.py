"""Measure a network by games, with 95 % intervals: two-player games by Elo, one-player games by score.

    keima benchmark runs/chess --games 100 --save results                 the newest model of a run
    keima benchmark go9 --opponents gnugo:10                              a shipped network
    keima benchmark --checkpoint checkpoints_8gpu/model_final.pt          weights, with config.yaml next to them
    keima benchmark runs/chess --opponents random,greedy                  only these opponents
    keima benchmark runs/chess --stockfish-levels 1500,2000               Stockfish at these levels, too
    keima benchmark runs/go7 --opponent gnugo:10 --simulations 400        GNU Go at level 10
    keima benchmark runs/go7 --opponents random,mcts:1000,alphabeta:2     opponents for any game
    keima benchmark runs/connect4 --against-version 12,24                 earlier models of the run, too
    keima benchmark runs/chess --against runs/spiking --opponents random  against another network
    keima benchmark runs/othello --equal-mcts                             as strong as MCTS with how many playouts?
    keima benchmark runs/twenty48 --version 12 --simulations 50           mean score, next to expectimax

In a two-player game, the network plays every opponent of a ladder, and each opponent plays its neighbours, which fixes
the distances on the ladder. The ladder: a random player at 0 Elo; in chess a greedy player (it mates, or captures the
most), alpha-beta on material to depths 1, 2 and 3, and Stockfish at several levels, if it is installed; in Go, GNU Go
at levels 1 and 10, if it is installed, and other GTP engines if you name them: gnugo:LEVEL, pachi:PLAYOUTS. Engines get
the same rules, and Keima's rules decide the result. All other games have Monte-Carlo tree search (UCT) with 100 and
1000 random playouts per move; OpenSpiel's games only with 100. Two games start from each opening of a few random moves,
with colours swapped.

Two opponents know only a game's rules, so you can name them for every game: mcts:PLAYOUTS is UCT with this many random
playouts per move; alphabeta:DEPTH is alpha-beta search to this depth, for games with a score on the board (Go, Connect
Four; in chess it counts material).

With --equal-mcts, the playouts of UCT are doubled until the network scores no more than half, and the result is the
number with which both are even, with its interval. Unlike a ladder it has no top, and it needs no other engine.

The same seed and number of processes give the same games, except against Stockfish and Pachi. Ctrl-C ends the benchmark
and shows the results so far.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    from keima.base.system.signals import exit_quietly_on_interrupt

    exit_quietly_on_interrupt()

from keima.base.disk_words import error_text
from keima.base.named import add_network, find_network, flag_type
from keima.base.system.command_line import CommandLine, program_name
from keima.base.system.limits import count_usable_cores
from keima.base.system.signals import INTERRUPTED, handle_interrupts
from keima.base.system.start import check_file_is_readable, parse_before_imports, report_compiling_of
from keima.config.flags import HIGHEST_SEED, number, whole
from keima.data.ledger import read_ledger
from keima.paths import find_file

RESULTS_FILE, RATINGS_PICTURE = "benchmark.json", "ratings.png"
GAME_FILES = {"chess": "games.pgn", "go": "games.sgf"}  # with the games, by what is played
DEFAULT_GAMES, DEFAULT_SIMULATIONS = {1: 200, 2: 100}, {1: 50, 2: 100}  # by the game's players; 2 also for more
EQUAL_GAMES = 20  # against each number of playouts
DEFAULT_OPENING_PLIES = 4
NODES = 20_000  # per move of Stockfish: its lower levels are weaker by their choice of moves, not by their time
NO_STOCKFISH = (
    "Stockfish is not installed, so its levels are left out: apt-get install stockfish, or name it by --stockfish."
)


def processes(text: str) -> int:
    """Parse a number of processes; auto: one per available core."""
    return count_usable_cores() if text == "auto" else whole()(text)


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = CommandLine(__doc__)
    which = parser.add_mutually_exclusive_group(required=True)
    add_network(which.add_argument, nargs="?")
    which.add_argument("--run", type=Path, metavar="RUN", help="a run's folder; its newest accepted model plays")
    which.add_argument("--model", type=find_file, metavar="FILE", help="a model: .model or .safetensors")
    which.add_argument("--checkpoint", type=Path, metavar="FILE", help="a state dictionary: .pt or .pth")
    add = parser.add_argument
    add(
        "--config",
        type=Path,
        metavar="FILE",
        help="with --checkpoint: its run's settings (default: config.yaml next to it)",
    )
    add("--version", type=whole(), help="with --run: which model (default: the newest accepted one)")
    add(
        "--games", type=whole(), help="games per match (default: 100) or per player of a one-player game (default: 200)"
    )
    add(
        "--simulations",
        type=whole(),
        help="simulations of the network per move (default: 100 in two-player games, 50 in one-player games)",
    )
    add(
        "--algorithm",
        choices=["puct", "gumbel"],
        help="the network's search (default: the run's; without a run, gumbel)",
    )
    add("--seed", type=whole(0, HIGHEST_SEED), default=1, help="seed of all random numbers (default: %(default)s)")
    add("--processes", type=processes, default="auto", help="processes that play (default: auto, one per core)")
    more = f"{RATINGS_PICTURE}, and {' or '.join(GAME_FILES.values())}"
    add("--save", type=Path, metavar="DIR", help=f"write {RESULTS_FILE} there; for two-player games also {more}")
    two = parser.add_argument_group("two-player games")
    only = (
        "only these, such as random,mcts:1000,alphabeta:4, or random,greedy,depth-1,stockfish-1700 in chess, or "
        "gnugo:10,pachi:1000 in Go; repeatable"
    )
    two.add_argument("--opponents", "--opponent", type=parse_names, action="extend", metavar="NAMES", help=only)
    equal = f"find the playouts a move with which mcts is as strong (default: {EQUAL_GAMES} games against each number)"
    two.add_argument("--equal-mcts", action="store_true", help=equal)
    two.add_argument(
        "--minutes", type=number(above=0), default=10.0, help="for --equal-mcts, about (default: %(default)g)"
    )
    two.add_argument(
        "--against-version", type=parse_numbers, metavar="N,N", help="with --run: add earlier models of the run"
    )
    two.add_argument(
        "--against",
        type=flag_type(find_network),
        nargs="+",
        default=[],
        metavar="PATH",
        help="add other runs' newest models, model files, or shipped networks",
    )
    two.add_argument(
        "--opening-plies",
        type=whole(0),
        default=DEFAULT_OPENING_PLIES,
        help="random moves per opening (default: %(default)s)",
    )
    two.add_argument(
        "--stockfish", type=Path, metavar="PATH", help="path of Stockfish (default: stockfish, if installed)"
    )
    two.add_argument(
        "--stockfish-levels",
        type=parse_numbers,
        metavar="N,N",
        help="levels of Stockfish, by its option UCI_Elo (default: its lowest, and 1700)",
    )
    time = two.add_mutually_exclusive_group()
    time.add_argument(
        "--stockfish-nodes", type=whole(), default=NODES, help="nodes per move of Stockfish (default: %(default)s)"
    )
    time.add_argument("--stockfish-movetime", type=whole(), metavar="MS", help="milliseconds per move instead")
    one = parser.add_argument_group("one-player games")
    one.add_argument(
        "--expectimax-depth",
        type=parse_depth,
        default="auto",
        help="chance nodes that expectimax looks ahead; auto: as deep as the network's time allows",
    )
    one.add_argument("--network-only", action="store_true", help="skip the reference players")
    arguments = parser.parse_args(argv)
    if arguments.network:
        setattr(arguments, "run" if arguments.network.is_dir() else "model", arguments.network)
    for option, needed in (("version", "run"), ("against_version", "run"), ("config", "checkpoint")):
        if getattr(arguments, option) and not getattr(arguments, needed):
            parser.error(f"--{option.replace('_', '-')} needs --{needed}")
    return arguments


def parse_numbers(text: str) -> list[int]:
    """Parse whole numbers from 1, separated by commas."""
    return [whole()(part) for part in text.split(",")]


def parse_names(text: str) -> list[str]:
    """Parse words separated by commas."""
    return text.split(",")


def parse_depth(text: str) -> int | None:
    """Parse a depth of expectimax; return None for auto."""
    return None if text == "auto" else whole(0)(text)


def check_inputs(arguments: argparse.Namespace) -> None:
    """Check that what the command line names exists.

    Raises:
        ValueError: it does not.
    """
    for run in (arguments.run, *(path for path in arguments.against if path.is_dir())):
        if run:
            read_ledger(run).close()
    for file in (
        arguments.model,
        arguments.checkpoint,
        arguments.config,
        *(path for path in arguments.against if not path.is_dir()),
    ):
        if file:
            check_file_is_readable(file)


if __name__ == "__main__":
    parse_before_imports(parse, check_inputs, loading="PyTorch")

    from keima.base.system.processes import prepare_fork_server  # only now: --help needs nothing of it

    prepare_fork_server("keima.play.arena.preload")  # it loads at the same time as this program

from rich.console import Console

from keima.base.files import write_atomically
from keima.base.random import seed_stream
from keima.base.reports.formats import (
    Column,
    format_percent,
    format_rate,
    format_score,
    table_lines,
)
from keima.cli.playing.progress import line_width, print_lines, show_progress
from keima.config.load import versions
from keima.games import Game
from keima.play.arena.equal_playouts import equal_playouts_text, find_equal_playouts
from keima.play.arena.ladder import (
    GO_ENGINE_MISSING,
    MOST_PLAYOUTS,
    USUAL_GO_ENGINES,
    build_ladder,
    find_program,
    is_baseline,
    make_go_entrants,
    make_stockfish_entrants,
    select_entrants,
)
from keima.play.arena.match_benchmark import Entrant, Match, Tally, compute_ratings, play_pairs
from keima.play.arena.match_text import match_to_text
from keima.play.arena.players import ExpectimaxSpec, MctsSpec, NetworkSpec, PlayerSpec, RandomSpec
from keima.play.arena.score_benchmark import ScoreResult, find_affordable_depth, play_scored
from keima.play.arena.slices import SliceFailed
from keima.play.engines.engine_process import EngineFailed
from keima.play.network_loader import (
    PlayableNetwork,
    load_network_from_model,
    load_network_from_run,
    load_network_from_weights,
    make_file_entrants,
    make_version_entrants,
)
from keima.report.charts.rating_picture import draw_ratings
from keima.report.terminal.results_table import (
    make_player_results,
    make_results_table,
    make_returns_table,
    rated_players,
)


@handle_interrupts
@report_compiling_of
def main(argv: Sequence[str] | None = None) -> int:
    """Run the program; returns its exit code."""
    arguments = parse(argv)
    console = Console(highlight=False, emoji=False)  # in "mcts:100: 4 won" none is meant
    try:
        with tempfile.TemporaryDirectory() as folder:
            playable = load_playable(arguments, Path(folder))
            fill_defaults(arguments, playable.game)
            network = playable.spec(arguments.simulations, arguments.algorithm)
            measure = {1: measure_by_score, 2: measure_by_elo}.get(playable.game.num_players, measure_by_return)
            measure = measure_by_playouts if arguments.equal_mcts else measure
            return measure(playable, network, arguments, console)
    except (ValueError, OSError, SliceFailed, EngineFailed) as error:
        print(f"{program_name()}: {error_text(error)}", file=sys.stderr)
        return 2


def fill_defaults(arguments: argparse.Namespace, game: Game) -> None:
    """Fill in the defaults for this game.

    Raises:
        ValueError: the games cannot be divided among the seats, or opponents are named for a game that has none.
    """
    players = game.num_players
    if arguments.equal_mcts and (players != 2 or arguments.opponents):
        raise ValueError("--equal-mcts is for two-player games, and takes no --opponents")
    if arguments.equal_mcts:
        arguments.games = arguments.games or EQUAL_GAMES
    arguments.games = arguments.games or -(-DEFAULT_GAMES[min(players, 2)] // players) * players
    arguments.simulations = arguments.simulations or DEFAULT_SIMULATIONS[min(players, 2)]
    if players == 2 and arguments.games % 2:
        raise ValueError(
            f"--games {arguments.games}: {game.name} is played in pairs with colours swapped, so give an even number"
        )
    if arguments.games % players:
        raise ValueError(
            f"--games {arguments.games}: the network has each of the {players} seats of {game.name} once per opening, "
            f"so give a multiple of {players}"
        )
    if game.num_players == 1 and arguments.opponents:
        raise ValueError(
            f"--opponents: {game.name} has one player: omit the option, and a random player's score is shown"
        )


def load_playable(arguments: argparse.Namespace, folder: Path) -> PlayableNetwork:
    """Return the network to measure."""
    if arguments.checkpoint:
        return load_network_from_weights(arguments.checkpoint, arguments.config, folder)
    return (
        load_network_from_model(arguments.model)
        if arguments.model
        else load_network_from_run(arguments.run, arguments.version)
    )


# Two-player games.


def measure_by_elo(
    playable: PlayableNetwork, network: NetworkSpec, arguments: argparse.Namespace, console: Console
) -> int:
    """Play against every opponent of the ladder, and print the ratings; returns the exit code."""
    me = Entrant(name="network", spec=network)
    rungs = make_opponents(playable.game, network, arguments, console)
    pairings = [*((me, rung) for rung in rungs), *pairwise(rungs)]
    matches, code = play_matches(playable.game, pairings, arguments, console)
    if not matches:
        return code
    anchor, found = rungs[0].name, compute_ratings(matches, rungs[0].name)
    rows = make_player_results(me.name, matches, found)
    print_lines(make_results_table(rows, anchor=anchor, width=line_width(console)), console)
    about = playable.describe(network)
    console.print(
        f"The network: {about}. Wins, draws, losses and score are its own. Elo: {anchor} is 0.", soft_wrap=True
    )
    if arguments.save:
        content: dict[str, Any] = {"kind": "elo", "anchor": anchor, "whole": code == 0}
        content["players"] = {player: {"elo": rating.elo, "margin": rating.margin} for player, rating in found.items()}
        content["matches"] = [match.as_dict() for match in matches]
        save_results(arguments, playable, content)
        write_atomically(
            arguments.save / RATINGS_PICTURE,
            draw_ratings(about, rated_players(rows, anchor), anchor=anchor),
            mode=0o644,
        )
        if file := GAME_FILES.get(playable.game.name):
            text = "".join(match_to_text(playable.game, match, number + 1) for number, match in enumerate(matches))
            write_atomically(arguments.save / file, text.encode(), mode=0o644)
        console.print(f"All numbers, a picture and every game: {arguments.save}", soft_wrap=True)
    return code


def measure_by_playouts(
    playable: PlayableNetwork, network: NetworkSpec, arguments: argparse.Namespace, console: Console
) -> int:
    """Find the playouts with which MCTS is as strong; returns the exit code."""
    me, matches = Entrant(name="network", spec=network), list[Match]()

    def play(playouts: int, games: int) -> float:
        opponent = Entrant(name=f"mcts:{playouts}", spec=MctsSpec(playouts=playouts))
        played, code = play_matches(
            playable.game, [(me, opponent)], arguments, console, games=games, begun=len(matches)
        )
        if not played:
            raise _Ended(code)
        matches.extend(played)
        return games * played[0].score

    try:
        found = find_equal_playouts(play, games=arguments.games, most=MOST_PLAYOUTS, seconds=60 * arguments.minutes)
    except _Ended as ended:
        return ended.code
    console.print(f"The network ({playable.describe(network)}) is {equal_playouts_text(found)}.", soft_wrap=True)
    if arguments.save:
        content = {"kind": "equal_playouts", **{key: getattr(found, key) for key in ("playouts", "low", "high")}}
        content |= {"is_bound": found.is_bound, "surely_beaten": found.surely_beaten}
        content |= {"matches": [match.as_dict() for match in matches]}
        save_results(arguments, playable, content)
        console.print(f"All numbers: {arguments.save / RESULTS_FILE}", soft_wrap=True)
    return 0


class _Ended(Exception):
    """A match was not played to its end, and the program ends with this exit code."""

    def __init__(self, code: int) -> None:
        super().__init__()
        self.code = code


# Games for three and more players.


def measure_by_return(
    playable: PlayableNetwork, network: NetworkSpec, arguments: argparse.Namespace, console: Console
) -> int:
    """Play against every opponent in all other seats, and print the mean returns; returns the exit code."""
    game, me = playable.game, Entrant(name="network", spec=network)
    pairings = [(me, rung) for rung in make_opponents(game, network, arguments, console)]
    matches, code = play_matches(game, pairings, arguments, console)
    if not matches:
        return code
    print_lines(make_returns_table(matches, line_width(console)), console)
    console.print(
        f"The network: {playable.describe(network)}. It has each of the {game.num_players} seats once per "
        "opening, the opponent all others.",
        soft_wrap=True,
    )
    if arguments.save:
        save_results(
            arguments,
            playable,
            {"kind": "returns", "whole": code == 0, "matches": [match.as_dict() for match in matches]},
        )
        console.print(f"All numbers: {arguments.save / RESULTS_FILE}", soft_wrap=True)
    return code


@contextmanager
def naming_opponents() -> Iterator[None]:
    """Name the option of the opponents in a ValueError of the block."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"--opponents: {error}") from error


def make_opponents(game: Game, network: NetworkSpec, arguments: argparse.Namespace, console: Console) -> list[Entrant]:
    """Return the network's opponents, the weakest first.

    Raises:
        ValueError: one that is named is not there.
        EngineFailed: Stockfish cannot be used.
    """
    with naming_opponents():
        rungs = build_ladder(game, arguments.opponents or ())
    wanted = arguments.opponents is None or any(name.startswith("stockfish") for name in arguments.opponents)
    if game.name == "chess" and wanted:
        path = arguments.stockfish or find_program("stockfish")
        levels = arguments.stockfish_levels or named_levels(arguments.opponents or [])
        if path:
            rungs += make_stockfish_entrants(
                path, levels, movetime=arguments.stockfish_movetime, nodes=arguments.stockfish_nodes
            )
        else:
            console.print(NO_STOCKFISH, soft_wrap=True)
    if game.name == "go":
        rungs += make_go_entrants(game, choose_go_engines(arguments.opponents, console))
    if arguments.opponents:
        with naming_opponents():
            rungs = select_entrants(rungs, arguments.opponents, game.name)
    if arguments.against_version:
        rungs += make_version_entrants(
            arguments.run, arguments.against_version, network.num_simulations, arguments.algorithm
        )
    return rungs + make_file_entrants(arguments.against, game, network.num_simulations, arguments.algorithm)


def choose_go_engines(opponents: Sequence[str] | None, console: Console) -> list[str]:
    """Return the names of GTP engines: those on the command line, else the usual ones if installed."""
    if opponents is not None:
        return [name for name in opponents if ":" in name and not is_baseline(name)]
    if find_program("gnugo"):
        return list(USUAL_GO_ENGINES)
    console.print(f"{GO_ENGINE_MISSING['gnugo']}. Its levels are left out.", soft_wrap=True)
    return []


def named_levels(opponents: Sequence[str]) -> list[int]:
    """Return the levels in names such as stockfish-1700."""
    return [int(name.removeprefix("stockfish-")) for name in opponents if name.removeprefix("stockfish-").isdecimal()]


def play_matches(
    game: Game,
    pairings: Sequence[tuple[Entrant, Entrant]],
    arguments: argparse.Namespace,
    console: Console,
    *,
    games: int = 0,
    begun: int = 0,
) -> tuple[list[Match], int]:
    """Play these matches until they end, Ctrl-C or a failure; returns those that ended, and the exit code.

    ``games`` replaces the number of the command line; ``begun`` are the matches before these, which have other seeds.
    """
    games = games or arguments.games
    matches = list[Match]()
    try:
        for number, (first, second) in enumerate(pairings, start=begun):
            with show_progress(f"{first.name} – {second.name}", games, console) as report:
                match = play_pairs(
                    game,
                    first,
                    second,
                    games=games,
                    opening_plies=arguments.opening_plies,
                    seed=seed_stream(arguments.seed, "match", number),
                    processes=arguments.processes,
                    on_progress=lambda tally, report=report: report(tally.ended, tally.moves, score_text(tally)),  # type: ignore[misc]
                )
            matches.append(match)
    except KeyboardInterrupt:
        console.print(
            "Stopped. Unfinished matches do not count: their short games ended first, which would bias the score."
        )
        return matches, INTERRUPTED
    except SliceFailed as error:
        print(f"{program_name()}: {error_text(error)}", file=sys.stderr)
        return matches, 2
    return matches, 0


def score_text(tally: Tally) -> str:
    """Return the score of a match so far."""
    return f"{tally.wins} won, {tally.draws} drawn, {tally.losses} lost, "


# One-player games.


def measure_by_score(
    playable: PlayableNetwork, network: NetworkSpec, arguments: argparse.Namespace, console: Console
) -> int:
    """Play for score with the network and reference players, and print the results; returns the exit code."""
    results = measure_players(playable.game, network, arguments, console)
    print_results(playable.game, results, console)
    if arguments.save:
        save_results(arguments, playable, {"kind": "score", "players": [result.as_dict() for result in results]})
        console.print(f"All numbers and every game's score: {arguments.save / RESULTS_FILE}", soft_wrap=True)
    return 0


def measure_players(
    game: Game, network: NetworkSpec, arguments: argparse.Namespace, console: Console
) -> list[ScoreResult]:
    """Play with every player, the network first."""

    def play(name: str, spec: PlayerSpec) -> ScoreResult:
        with show_progress(name, arguments.games, console) as report:
            return play_scored(
                game,
                name,
                spec,
                games=arguments.games,
                seed=arguments.seed,
                processes=arguments.processes,
                on_progress=report,
            )

    results = [play(f"network, {network.num_simulations} simulations", network)]
    if arguments.network_only:
        return results
    if game.name == "twenty48" and game.observation_shape[1:] == (4, 4):
        found = arguments.expectimax_depth
        depth = find_affordable_depth(game, results[0].move_seconds) if found is None else found
        results.append(play(f"expectimax, depth {depth}", ExpectimaxSpec(depth=depth)))
    return [*results, play("random", RandomSpec())]


def print_results(game: Game, results: Sequence[ScoreResult], console: Console) -> None:
    """Print the table."""
    columns = [
        Column[ScoreResult](title="Player", cell=lambda result: result.name, left=True),
        Column[ScoreResult](title="Games", cell=lambda result: f"{result.report.games:,}"),
        Column[ScoreResult](
            title="Mean score", cell=lambda result: format_score(result.report.mean, result.report.margin)
        ),
        Column[ScoreResult](title="Median", cell=lambda result: format_score(result.report.median)),
        Column[ScoreResult](title="Best", cell=lambda result: format_score(result.report.best)),
        *(milestone_column(number, milestone) for number, milestone in enumerate(game.milestones)),
        Column[ScoreResult](title="ms/move", cell=lambda result: format_rate(1000 * result.move_seconds)),
    ]
    print_lines(table_lines(columns, results, line_width(console)), console)


def milestone_column(number: int, milestone: int) -> Column[ScoreResult]:
    """Return the column for the share of games that reach a milestone, with its interval. On narrow terminals the first
    milestones are dropped first.
    """

    def cell(result: ScoreResult) -> str:
        part = result.report.milestones[number]
        return f"{format_percent(part.share)} ({100 * part.low:.1f}–{100 * part.high:.1f})"

    return Column(title=f"reach {milestone}", cell=cell, rank=10 - number)


# For both.


def save_results(arguments: argparse.Namespace, playable: PlayableNetwork, content: Mapping[str, Any]) -> None:
    """Write everything as JSON."""
    arguments.save.mkdir(parents=True, exist_ok=True)
    about = {
        "game": playable.game.name,
        "options": playable.game.options,
        "model": playable.model.description.model_dump(),
        "arguments": vars(arguments),
        "versions": versions(),
    }
    write_atomically(
        arguments.save / RESULTS_FILE,
        (json.dumps({**about, **content}, indent=1, default=str) + "\n").encode(),
        mode=0o644,
    )


if __name__ == "__main__":
    sys.exit(main())
