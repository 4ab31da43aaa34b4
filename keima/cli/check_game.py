"""Check a game: does it keep the contract, what are its statistics, and which settings should train it?

    keima check-game othello.py    a file of your own
    keima check-game othello.py --options '{"size": 6}'
    keima check-game connect_four  a game that comes with Keima
    keima check-game othello.py --against openspiel:othello

Random games are played in a separate process with a time limit, so an endless loop is reported, too. If something is
wrong, one sentence says what, where, and what to do. Otherwise it prints exact counts of the game's tree (perft), the
length of games, the number of legal moves, the results of random games, moves per second, symmetries, a sample game,
and a config to train it. Training times are estimates from a few seconds of self-play here with an untrained network.

With --against, the rules are compared with OpenSpiel's, move by move (docs/openspiel.md). The first difference is
printed with the moves that lead there and both boards. This needs the package open_spiel.

Exit code: 0 if the game keeps the contract and agrees with OpenSpiel's, 1 if not, 2 if the command line is wrong.
"""

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    from keima.base.system.signals import exit_quietly_on_interrupt

    exit_quietly_on_interrupt()

from keima.base.system.command_line import CommandLine
from keima.base.system.signals import handle_interrupts
from keima.base.system.start import parse_before_imports, report_compiling_of
from keima.config.flags import game_among, number, whole
from keima.games import GAMES


def parse_options(text: str) -> dict[str, Any]:
    """Parse the value of --options.

    Raises:
        ArgumentTypeError: it is not a JSON object.
    """
    try:
        options = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"expected JSON such as '{{\"size\": 6}}': {error}") from None
    if not isinstance(options, dict):
        raise argparse.ArgumentTypeError(f"expected JSON such as '{{\"size\": 6}}', found {text}")
    return options


def parse_openspiel_name(text: str) -> str:
    """Parse the value of --against.

    Raises:
        ArgumentTypeError: it names no game of OpenSpiel's.
    """
    source, _, name = text.partition(":")
    if source != "openspiel" or not name:
        raise argparse.ArgumentTypeError(f"expected openspiel:NAME, such as openspiel:hex(board_size=5), found {text}")
    return name


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = CommandLine(__doc__)
    parser.add_argument("game", metavar="GAME", help="a file that defines game(), or a name, such as connect_four")
    parser.add_argument("--options", type=parse_options, default={}, help="the game's options, such as '{\"size\": 6}'")
    parser.add_argument("--games", type=whole(4), default=24, help="random games to check and count (default: 24)")
    parser.add_argument(
        "--seconds",
        type=number(above=0),
        default=180.0,
        help="time limit of the check, including compiling (default: 180)",
    )
    parser.add_argument(
        "--against",
        type=parse_openspiel_name,
        metavar="openspiel:NAME",
        help="compare the rules in as many random games",
    )
    parser.add_argument("--rules-only", action="store_true", help="do not propose settings")
    return parser.parse_args(argv)


def check_inputs(arguments: argparse.Namespace) -> None:
    """Check that there is such a game.

    Raises:
        ValueError: there is none.
    """
    try:
        game_among(GAMES)(arguments.game)
    except argparse.ArgumentTypeError as error:
        raise ValueError(str(error)) from None


if __name__ == "__main__":
    parse_before_imports(parse, check_inputs, loading="PyTorch")

from keima.coach.proposal import Proposal, propose_settings, proposed_config
from keima.config.commands import keima
from keima.games import load_game
from keima.games.authoring.check import GameDoesNotAnswer, GameReport, examine_in_process
from keima.games.authoring.check_against import GamesDiffer, compare_named_game

WIDE = 14  # characters of a heading


def report_lines(report: GameReport) -> Iterator[str]:
    """Yield the lines of the report."""
    limit = f"max_plies {report.max_plies}"
    if report.cut:
        limit += f", which {report.cut:.0%} of games reach"
    yield table_line("plies", f"mean {report.mean_plies:.1f}, longest {report.longest} ({limit})")
    yield table_line("legal moves", f"mean {report.branching:.1f}, most {report.most_legal}")
    yield table_line("random games", endings_text(report))
    if report.perft:
        yield table_line("perft", ", ".join(f"{count:,}" for count in report.perft))
    yield table_line("moves/s", f"{report.moves_per_second:,.0f} on one core, in random games")
    yield table_line("symmetries", str(report.symmetries))
    for note in report.notes:
        yield table_line("note", note)
    yield "\nA random game:\n"
    yield from report.sample


def endings_text(report: GameReport) -> str:
    """Describe how random games end."""
    if report.players == 1:
        return f"mean score {report.mean_returns[0]:,.1f}"
    if report.players > 2:
        means = ", ".join(f"{mean:+.2f}" for mean in report.mean_returns)
        return f"mean returns of the players {means} ({report.games} games)"
    return (
        f"the first player wins {report.first_wins:.0%}, the second {report.second_wins:.0%}, "
        f"{report.draws:.0%} are drawn ({report.games} games)"
    )


def table_line(heading: str, text: str) -> str:
    """Return one line of a table."""
    return f"{heading:<{WIDE}} {text}"


def agreement_text(game: str, arguments: argparse.Namespace) -> str:
    """Compare the rules with OpenSpiel's, and say how far they agree.

    Raises:
        GamesDiffer: they do not.
        ValueError: OpenSpiel is not installed, or has no such game.
    """
    found = compare_named_game(game, arguments.options, arguments.against, games=arguments.games)
    passes = f" {found.passes:,} forced passes are moves in only one of the games." if found.passes else ""
    return (
        f"The rules agree with OpenSpiel's {arguments.against} in {found.games} random games with {found.positions:,} "
        f"positions. Moves are paired by {found.paired_by}.{passes}"
    )


def expected_settings_text(proposal: Proposal) -> str:
    """Describe what to expect of these settings here, and how that was estimated."""
    hours = proposal.hours
    minutes = max(1, round(hours * 60))
    time = f"{hours:.1f} hours" if hours >= 1 else f"{minutes} minute{'s' if minutes > 1 else ''}"
    players = proposal.players
    cores = "core" if players.cores == 1 else f"{players.cores} cores"
    what = f"{players.gpus} GPUs" if players.gpus > 1 else "a GPU" if players.gpus else f"{cores} without a GPU"
    return (
        f"Here, on {what}: about {proposal.games_per_second:.1f} games/s and {time} to a first network "
        f"that plays sensibly,\nwhich is after about {proposal.games:,} games. The speed was measured with an "
        "untrained network; the number of games\nis an estimate from the size of the board and the number of legal "
        "moves, by comparison with the games that come with Keima.\nIt may be off by a factor of three."
    )


@handle_interrupts
@report_compiling_of
def main(argv: Sequence[str] | None = None) -> int:
    """Check the game and print what is known."""
    arguments = parse(argv)
    game = arguments.game if arguments.game in GAMES else str(Path(arguments.game).expanduser().resolve())
    try:
        report = examine_in_process(game, arguments.options, games=arguments.games, seconds=arguments.seconds)
    except GameDoesNotAnswer as error:
        print(f"{error}")
        return 1
    if report.broken:
        print(report.broken)
        return 1
    print(f"{report.name} keeps the contract.\n")
    print("\n".join(report_lines(report)))
    if arguments.against:
        try:
            print(f"\n{agreement_text(game, arguments)}")
        except (GamesDiffer, ValueError) as error:
            print(f"\n{error}")
            return 1
    if not arguments.rules_only:
        proposal = propose_settings(load_game(game, **arguments.options), report)
        settings = proposed_config(arguments.game, arguments.options, proposal)
        if arguments.game not in GAMES:
            print(f"{keima(f'train {arguments.game} --hours 1')} chooses the settings for its time by itself.\n")
        print(f"Suggested settings, if you want to give them in a file for {keima('train FILE.yaml')}:\n\n{settings}")
        print(expected_settings_text(proposal))
    return 0


if __name__ == "__main__":
    sys.exit(main())
