"""Rate a network on an external scale, with a 95 % interval, in about ten minutes.

    keima rate go9                                 a shipped network
    keima rate runs/chess                          the newest accepted model of a run
    keima rate runs/go9 --minutes 30               a longer call continues where an earlier one ended
    keima rate runs/chess --ladder mine.yaml       against engines of your own
    keima rate runs/othello --json
    keima rate runs/connect_four --positions 8000 --games 100

In chess, Go, Othello (8x8) and Hex (7x7 without swap) the network plays the engines of a ladder: few games against
each, and more where they tell most of its strength. Two games start from each opening of a few random moves, with
colours swapped. The strengths of the engines are known in advance, and one maximum-likelihood fit gives the rating. An
engine that is not installed is left out, and the program says how to install it. A ladder is a file that says how each
engine is started and how strong it is; the shipped ones in keima/shipped/ladders are examples for your own. Where no
engine of known strength is installed, the network is rated like that of any other game.

In Connect Four, BitBully (pip install bitbully) counts the moves that throw away a win or a draw in games of the
network with itself, at all plies, and plays as second player; without BitBully, the moves in shipped positions are
counted. A game for one player is measured by its mean score. For any other game the rating is the number of playouts
with which Monte-Carlo tree search is as strong.

The results of all games are kept in ~/.cache/keima/ratings, for each network, search, engine and seed; after a change
of what plays them in Keima, games are played anew. Ctrl-C ends the games and shows the result so far. Connect Four
takes a few minutes, more with --positions and --games, and begins anew; with more positions, more of them are late
ones, so compare the figures of the same plies.
"""

import argparse
import json
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

if __name__ == "__main__":
    from keima.base.system.signals import exit_quietly_on_interrupt

    exit_quietly_on_interrupt()

from keima.base.disk_words import error_text
from keima.base.named import add_network
from keima.base.system.command_line import CommandLine, program_name
from keima.base.system.limits import count_usable_cores
from keima.base.system.signals import INTERRUPTED, handle_interrupts
from keima.base.system.start import check_file_is_readable, parse_before_imports, report_compiling_of
from keima.config.flags import HIGHEST_SEED, number, whole
from keima.networks.files.heading import find_model_file

DEFAULT_SIMULATIONS = {1: 50, 2: 100}  # by the game's players
DEFAULT_MINUTES = 10.0
PERFECT_GAMES = 20
OPENING_PLIES = 4  # where no ladder says it


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = CommandLine(__doc__)
    add = parser.add_argument
    add_network(add)
    add("--version", type=whole(), help="which model of a run (default: the newest accepted one)")
    text = "the engines to play, in a YAML file (default: the shipped ladder of the game)"
    add("--ladder", type=Path, metavar="FILE", help=text)
    text = "minutes of games in all, those of earlier calls included (default: %(default)g)"
    add("--minutes", type=number(above=0), default=DEFAULT_MINUTES, help=text)
    text = "simulations of the network per move (default: 100; in games for one player 50)"
    add("--simulations", type=whole(), help=text)
    text = "the network's search (default: the run's; without a run, gumbel)"
    add("--algorithm", choices=["puct", "gumbel"], help=text)
    text = "Connect Four: positions of its own games that are judged, at least (default: those of 72 games)"
    add("--positions", type=whole(), help=text)
    add("--games", type=whole(), help=f"Connect Four: games with the perfect player (default: {PERFECT_GAMES})")
    add("--seed", type=whole(0, HIGHEST_SEED), default=1, help="seed of the openings (default: %(default)s)")
    add("--processes", type=whole(), default=count_usable_cores(), help="processes that play (default: one per core)")
    add("--json", action="store_true", help="print the result as JSON")
    return parser.parse_args(argv)


def check_inputs(arguments: argparse.Namespace) -> None:
    """Check that the files that the command line names exist.

    Raises:
        ValueError: one does not.
    """
    check_file_is_readable(find_model_file(arguments.network, arguments.version))
    if arguments.ladder:
        check_file_is_readable(arguments.ladder)


if __name__ == "__main__":
    parse_before_imports(parse, check_inputs, loading="PyTorch")

    from keima.base.system.processes import prepare_fork_server  # only now: --help needs nothing of it

    prepare_fork_server("keima.play.arena.preload")  # it loads at the same time as this program

from contextlib import ExitStack

from rich.console import Console

from keima.base.reports.formats import (
    Column,
    format_elo,
    format_options,
    format_percent,
    format_score,
    game_title,
    table_lines,
)
from keima.base.reports.intervals import wilson_interval
from keima.cli.playing.progress import line_width, print_lines, show_time
from keima.evaluation.perfect_play import PlayErrors, count_errors, load_positions
from keima.networks.inference.evaluator import use_threads
from keima.play.arena.equal_playouts import equal_playouts_text
from keima.play.arena.players import NetworkSpec, make_player
from keima.play.arena.slices import SliceFailed
from keima.play.network_loader import PlayableNetwork, load_network_from_model
from keima.play.rating.fit import NetworkRating
from keima.play.rating.game_cache import GameCache
from keima.play.rating.ladder_file import Ladder, find_shipped_ladder, load_ladder
from keima.play.rating.perfect_player import (
    BANDS,
    INSTALL,
    find_own_positions,
    has_perfect_player,
    play_perfect_player,
)
from keima.play.rating.rate_any_game import AnyGame, rate_by_playouts, rate_by_score
from keima.play.rating.rate_games import LadderMatch, LadderResult, RatingProgress, RungGames, rate_on_ladder
from keima.play.rating.rungs import SkippedEngine, make_rungs


@handle_interrupts
@report_compiling_of
def main(argv: Sequence[str] | None = None) -> int:
    """Run the program; returns its exit code."""
    arguments = parse(argv)
    console = Console(highlight=False, emoji=False, stderr=arguments.json)  # in "mcts:100: 4 won" none is meant
    try:
        return rate_network(arguments, console)
    except (ValueError, OSError, SliceFailed) as error:
        print(f"{program_name()}: {error_text(error)}", file=sys.stderr)
        return 2


def rate_network(arguments: argparse.Namespace, console: Console) -> int:
    """Rate the network in the way of its game, and print the rating; returns the exit code.

    Raises:
        ValueError, OSError, SliceFailed: it cannot be rated, or a file cannot be read.
    """
    playable = load_network_from_model(find_model_file(arguments.network, arguments.version))
    game = playable.game
    if game.num_players > 2:
        raise ValueError(
            f"{game_title(game.name, game.options)} is a game for {game.num_players}: keima benchmark measures it"
        )
    simulations = arguments.simulations or DEFAULT_SIMULATIONS[game.num_players]
    network = playable.spec(simulations, arguments.algorithm)
    ladder = load_ladder(arguments.ladder) if arguments.ladder else find_shipped_ladder(game)
    if ladder and not ladder.fits(game):
        raise ValueError(
            f"{arguments.ladder}: the ladder is for {ladder.game}{options_text(ladder.options)}, and the network plays "
            f"{game_title(game.name, game.options)}{options_text(game.options)}"
        )
    if (arguments.positions or arguments.games) and not (game.name == "connect_four" and has_perfect_player()):
        raise ValueError(f"--positions and --games are for Connect Four with BitBully ({INSTALL})")
    rate = {"connect_four": rate_by_perfect_play, "tic_tac_toe": rate_by_shipped_positions}.get(game.name)
    if rate is None:
        rate = measure_scores if game.num_players == 1 else rate_by_equal_playouts
    # A run that goes on may put this model away, and another export may replace its file.
    with TemporaryDirectory(prefix="keima-rate-") as copy:
        network = network.model_copy(update={"model": Path(shutil.copy2(network.model, copy))})
        if ladder:
            return rate_by_ladder(ladder, playable, network, arguments, console)
        return rate(playable, network, arguments, console)


def options_text(options: Mapping[str, Any]) -> str:
    """Return a game's options in words."""
    return f" with {format_options(options)}" if options else ""


def print_json(playable: PlayableNetwork, network: NetworkSpec, content: Mapping[str, Any]) -> None:
    """Print a result as JSON."""
    about = {
        "game": playable.game.name,
        "options": playable.game.options,
        "model": playable.model.description.model_dump(),
        "simulations": network.num_simulations,
        "algorithm": network.search.algorithm,
    }
    print(json.dumps({**about, **content}, indent=1, default=str))


# Games with a ladder.


def rate_by_ladder(
    ladder: Ladder, playable: PlayableNetwork, network: NetworkSpec, arguments: argparse.Namespace, console: Console
) -> int:
    """Play against the engines of a ladder, and print the rating; returns the exit code."""
    rungs, skipped = make_rungs(ladder, playable.game)
    if all(rung.elo is None for rung in rungs):
        missing = "; ".join(skipped_text(each) for each in skipped)
        missing = f"none of the engines whose strength is known can play here: {missing}"
        if arguments.ladder:
            raise ValueError(missing)
        console.print(f"{missing[0].upper()}{missing[1:]}. So the network plays tree search instead.", soft_wrap=True)
        return rate_by_equal_playouts(playable, network, arguments, console)
    cache = GameCache(playable.game, network, seed=arguments.seed, opening_plies=ladder.opening_plies)
    seconds = 60 * arguments.minutes
    with show_time("rating", seconds, console) as show:

        def follow(progress: RatingProgress) -> None:
            known = "" if progress.rating is None else f"{rating_text(progress.rating)} after "
            show(progress.seconds, f"{known}{progress.games} games; against {progress.rung}")

        result = rate_on_ladder(
            LadderMatch(
                game=playable.game,
                network=network,
                rungs=rungs,
                scale=ladder.strengths,
                cache=cache,
                opening_plies=ladder.opening_plies,
                seed=arguments.seed,
                seconds=seconds,
                processes=arguments.processes,
                on_progress=follow,
            ),
            skipped,
        )
    if arguments.json:
        print_json(playable, network, ladder_content(ladder, result))
    else:
        print_ladder_result(ladder, result, playable.describe(network), console)
    return INTERRUPTED if result.interrupted else 0 if result.rating else 2


def rating_text(rating: NetworkRating) -> str:
    """Return a rating with its interval: 1,640 ± 80, or more than 2,010."""
    if rating.bound:
        return f"at least {format_elo(rating.low)}" if rating.bound == "least" else f"at most {format_elo(rating.high)}"
    return format_elo(rating.elo, rating.margin)


def skipped_text(engine: SkippedEngine) -> str:
    """Return why an engine does not play, and how to get it."""
    return f"{engine.name}: {engine.reason}" + (f" (to install it: {engine.install})" if engine.install else "")


def print_ladder_result(ladder: Ladder, result: LadderResult, about: str, console: Console) -> None:
    """Print the rating, the table of rungs, and which engines were left out."""
    if result.rating is None:
        console.print("No game against an engine of known strength has ended.")
    else:
        console.print(f"Rating: {rating_text(result.rating)} (95 %; {about})", soft_wrap=True)
        console.print(f"Scale: {ladder.scale}.", soft_wrap=True)
    columns = [
        Column[RungGames](title="Opponent", cell=lambda each: each.rung.name, left=True),
        Column[RungGames](title="Elo", cell=known_strength),
        Column[RungGames](title="Games", cell=lambda each: f"{each.points.games:,}"),
        Column[RungGames](title="Won", cell=lambda each: f"{each.points.wins:,}"),
        Column[RungGames](title="Drawn", cell=lambda each: f"{each.points.draws:,}"),
        Column[RungGames](title="Lost", cell=lambda each: f"{each.points.losses:,}"),
        Column[RungGames](title="Score", cell=score_text),
        Column[RungGames](title="Estimate", cell=lambda each: estimate_text(each, result.rating), rank=1),
    ]
    print_lines(table_lines(columns, result.games, line_width(console)), console)
    for engine in result.skipped:
        console.print(f"Skipped {skipped_text(engine)}.", soft_wrap=True)


def known_strength(each: RungGames) -> str:
    """Return a rung's strength as the ladder has it."""
    rung = each.rung
    return "?" if rung.elo is None else format_elo(rung.elo, rung.margin if rung.margin else None)


def score_text(each: RungGames) -> str:
    """Return the network's share of the points, with its interval."""
    if not each.points.games:
        return ""
    low, high = wilson_interval(each.points.points, each.points.games)
    return f"{100 * each.points.points / each.points.games:.1f} % ({100 * low:.1f}–{100 * high:.1f})"


def estimate_text(each: RungGames, rating: NetworkRating | None) -> str:
    """Return the strength of a rung that was not known, or not exactly, as these games have it."""
    if rating is None or each.rung.name not in rating.rungs or (each.rung.elo is not None and each.rung.margin == 0):
        return ""
    found = rating.rungs[each.rung.name]
    return format_elo(found.elo, found.margin)


def ladder_content(ladder: Ladder, result: LadderResult) -> dict[str, Any]:
    """Return a rating in its JSON form."""
    rating = result.rating
    content: dict[str, Any] = {"kind": "elo", "scale": ladder.scale, "interrupted": result.interrupted}
    content["elo"] = None if rating is None else rating.elo
    content["margin"] = None if rating is None else rating.margin
    content["bound"] = "" if rating is None else rating.bound
    content["rungs"] = [
        {
            "name": each.rung.name,
            "elo": each.rung.elo,
            "margin": each.rung.margin,
            "games": each.points.games,
            "wins": each.points.wins,
            "draws": each.points.draws,
            "losses": each.points.losses,
            "seconds": each.seconds,
        }
        for each in result.games
    ]
    content["skipped"] = [vars(each) for each in result.skipped]
    return content


# Connect Four and tic-tac-toe.


def rate_by_perfect_play(
    playable: PlayableNetwork, network: NetworkSpec, arguments: argparse.Namespace, console: Console
) -> int:
    """Count errors at all plies and play a perfect player; returns the exit code."""
    if not has_perfect_player():
        missing = f"BitBully is not installed ({INSTALL}), so shipped positions are used, from the 7th ply on."
        console.print(missing, soft_wrap=True)
        return rate_by_shipped_positions(playable, network, arguments, console)
    game = playable.game
    use_threads(1)  # more are slower for so small a network
    with ExitStack() as stack:
        player = make_player(game, network, arguments.seed, stack)
        show = stack.enter_context(console.status("loading BitBully"))
        own = find_own_positions(
            game, player, seed=arguments.seed, least=arguments.positions or 1, on_progress=show.update
        )
        show.update("games against a perfect player")
        perfect = play_perfect_player(game, player, seed=arguments.seed, games=arguments.games or PERFECT_GAMES)
    errors = own.count_errors()
    bands = {f"{first}-{last}": own.count_errors(first, last) for first, last in BANDS}
    if arguments.json:
        print_json(
            playable,
            network,
            {
                "kind": "errors",
                "errors": errors_content(errors),
                "plies": {band: errors_content(each) for band, each in bands.items()},
                "perfect_player": vars(perfect),
            },
        )
        return 0
    console.print(f"Errors: {errors_text(errors)} (95 %; {playable.describe(network)})", soft_wrap=True)
    about = "In positions of its own games, at all plies; an error throws away a win or a draw."
    console.print(about, soft_wrap=True)
    for band, each in bands.items():
        console.print(f"  plies {band}: {errors_text(each)}")
    console.print(
        f"As first player against a perfect one: won {perfect.wins}, drawn {perfect.draws}, lost {perfect.losses}; "
        "perfect play wins all.",
        soft_wrap=True,
    )
    return 0


def rate_by_shipped_positions(
    playable: PlayableNetwork, network: NetworkSpec, arguments: argparse.Namespace, console: Console
) -> int:
    """Count errors in positions whose values are known; returns the exit code."""
    positions = load_positions(playable.game)
    assert positions is not None
    use_threads(1)
    with ExitStack() as stack:
        player = make_player(playable.game, network, arguments.seed, stack)
        errors = count_errors(positions, player.choose(positions.states))
    if arguments.json:
        print_json(playable, network, {"kind": "errors", "errors": errors_content(errors)})
    else:
        console.print(f"Errors: {errors_text(errors)} (95 %; {playable.describe(network)})", soft_wrap=True)
    return 0


def errors_text(errors: PlayErrors) -> str:
    """Return the share of errors with its interval."""
    low, high = errors.interval
    return f"{format_percent(errors.share)} ({100 * low:.1f} to {100 * high:.1f}) of {errors.positions:,} positions"


def errors_content(errors: PlayErrors) -> dict[str, Any]:
    """Return errors in their JSON form."""
    return {**vars(errors), "share": errors.share, "interval": errors.interval}


# All other games.


def make_any_game(
    playable: PlayableNetwork, network: NetworkSpec, arguments: argparse.Namespace, stack: ExitStack, console: Console
) -> AnyGame:
    """Return what is to be played, with a display of its progress that ends with ``stack``."""
    seconds = 60 * arguments.minutes
    show = stack.enter_context(show_time("rating", seconds, console))
    return AnyGame(
        game=playable.game,
        network=network,
        cache=GameCache(playable.game, network, seed=arguments.seed, opening_plies=OPENING_PLIES),
        seed=arguments.seed,
        seconds=seconds,
        processes=arguments.processes,
        on_progress=lambda what, games, passed: show(passed, f"{games} games; {what}"),
    )


def measure_scores(
    playable: PlayableNetwork, network: NetworkSpec, arguments: argparse.Namespace, console: Console
) -> int:
    """Play for score, and print the mean; returns the exit code."""
    with ExitStack() as stack:
        report, interrupted = rate_by_score(make_any_game(playable, network, arguments, stack, console))
    if report is None:
        console.print("No batch of games has ended.")
        return INTERRUPTED
    if arguments.json:
        keys = ("games", "mean", "margin", "median", "best")
        print_json(playable, network, {"kind": "score", **{key: getattr(report, key) for key in keys}})
    else:
        console.print(
            f"Mean score: {format_score(report.mean, report.margin)} (95 %; {report.games:,} games; median "
            f"{format_score(report.median)}; {playable.describe(network)})",
            soft_wrap=True,
        )
    return INTERRUPTED if interrupted else 0


def rate_by_equal_playouts(
    playable: PlayableNetwork, network: NetworkSpec, arguments: argparse.Namespace, console: Console
) -> int:
    """Find the playouts with which MCTS is as strong, and print them; returns the exit code."""
    with ExitStack() as stack:
        match = make_any_game(playable, network, arguments, stack, console)
        found, interrupted = rate_by_playouts(match, opening_plies=OPENING_PLIES)
    if found is None:
        console.print("No batch of games has ended.")
        return INTERRUPTED
    if arguments.json:
        content = {key: getattr(found, key) for key in ("playouts", "low", "high", "is_bound", "surely_beaten")}
        scores = [vars(score) for score in found.scores]
        print_json(playable, network, {"kind": "equal_playouts", **content, "scores": scores})
    else:
        about = playable.describe(network)
        console.print(f"Rating: {equal_playouts_text(found)} (95 %; {about})", soft_wrap=True)
    return INTERRUPTED if interrupted else 0


if __name__ == "__main__":
    sys.exit(main())
