"""Measure a network by itself and beside other players, with 95 % intervals. For now: one-player games, by their score.

    python scripts/benchmark.py --run runs/twenty48                                  the run's newest model
    python scripts/benchmark.py --run runs/twenty48 --version 12 --simulations 100
    python scripts/benchmark.py --model runs/twenty48/models/model-000012.model
    python scripts/benchmark.py --checkpoint checkpoints/model_epoch_50.pth          a state dictionary of ZeroNetwork, 4 x 4

Beside the network play a random player and, in 2048 on 4 x 4, expectimax, which looks a fixed number of its moves ahead and has learned
nothing: by default as many as take it no longer than the network takes. The seed and the number of processes give the same games again.
"""

import argparse
import itertools
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

if __name__ == "__main__":
    from training.ctrl_c import ends_at_once

    ends_at_once()

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from configs.load import load_settings, versions
from configs.schema import SearchSettings
from games import Game, load_game
from training.ctrl_c import INTERRUPTED, interruptible
from training.evaluation.contenders import Contender, ExpectimaxContender, NetworkContender, RandomContender, read_model
from training.evaluation.ladder import ANCHOR, chosen, ladder
from training.evaluation.match_benchmark import Entrant, Match, Tally, play_pairs, ratings
from training.evaluation.score_benchmark import Result, Tell, depth_for, model_of_weights, play_contender
from training.evaluation.slices import SliceFailed
from training.files import write_atomically
from training.ledger import read_ledger
from training.model_file import Model, save_safetensors
from training.observers.charts import Column, percent, points, rate, table
from training.observers.standings import standings, standings_table
from training.random import seed_stream
from training.weights_file import load_weights

FILE = "benchmark.json"
FILE_WIDTH = 200  # columns where the output is no terminal
DEFAULT_GAMES, DEFAULT_SIMULATIONS = {1: 200, 2: 100}, {1: 50, 2: 100}  # by the game's players


@interruptible
def main(argv: Sequence[str] | None = None) -> int:
    """Run the program; returns its exit code."""
    arguments = parse(argv)
    console = Console(highlight=False)
    try:
        with tempfile.TemporaryDirectory() as folder:
            model, path, search = find_network(arguments, Path(folder))
            game = load_game(model.description.game, **model.description.options)
            model.build(game)  # a model that does not fit is refused here, not in other processes
            settle(arguments, game)
            network = NetworkContender(model=path.resolve(), search=search, num_simulations=arguments.simulations)
            if game.num_players == 2:
                return measure_by_games(game, model, network, arguments, console)
            results = benchmark(game, network, arguments, console)
    except (ValueError, OSError, SliceFailed) as error:
        print(f"benchmark.py: {error}", file=sys.stderr)
        return 2
    show(game, results, console)
    if arguments.save:
        save(arguments.save, game, model, arguments, {"kind": "score", "players": [result.as_dict() for result in results]})
        console.print(f"All figures and every game's score: {arguments.save / FILE}", soft_wrap=True)
    return 0


def measure_by_games(game: Game, model: Model, network: NetworkContender, arguments: argparse.Namespace, console: Console) -> int:
    """Measure the network of a game of two by games with others; returns the exit code."""
    name = f"network, {network.num_simulations} simulations"
    entrants = [Entrant(name=name, contender=network), *opponents(game, arguments)]
    stopped, matches = False, list[Match]()
    try:
        play_all(game, entrants, arguments, console, matches)
    except KeyboardInterrupt:
        stopped = True
        console.print("Stopped: games of matches that had not ended are not counted, since short games end first.")
    found = ratings(matches, ANCHOR)
    width = console.width if console.is_terminal else FILE_WIDTH
    for line in standings_table(standings(name, matches, found), anchor=ANCHOR, width=width):
        console.print(line, soft_wrap=True)
    console.print(f"Elo: {ANCHOR} is 0. Wins, draws and losses are the network's.", style="dim")
    if arguments.save:
        players = {player: {"elo": rating.elo, "margin": rating.margin} for player, rating in found.items()}
        content = {
            "kind": "elo",
            "anchor": ANCHOR,
            "stopped": stopped,
            "players": players,
            "matches": [match.as_dict() for match in matches],
        }
        save(arguments.save, game, model, arguments, content)
        console.print(f"All figures and every game's result: {arguments.save / FILE}", soft_wrap=True)
    return INTERRUPTED if stopped else 0


def opponents(game: Game, arguments: argparse.Namespace) -> list[Entrant]:
    """Those by whom the network is measured."""
    rungs = ladder(game)
    return chosen(rungs, arguments.opponents.split(",")) if arguments.opponents else rungs


def play_all(game: Game, entrants: Sequence[Entrant], arguments: argparse.Namespace, console: Console, matches: list[Match]) -> None:
    """Let the first of them play all others, and these their neighbours; every match is added to ``matches`` when it has ended."""
    network, *others = entrants
    pairings = [(network, other) for other in others] + list(itertools.pairwise(others))
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[so_far]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as bar:
        for number, (first, second) in enumerate(pairings):
            task = bar.add_task(f"{first.name} – {second.name}", total=arguments.games, so_far="")

            def tell(so_far: Tally, task: TaskID = task) -> None:
                text = f"{so_far.wins} won, {so_far.draws} drawn, {so_far.losses} lost, {so_far.moves:,} moves"
                bar.update(task, completed=so_far.ended, so_far=text)

            matches.append(
                play_pairs(
                    game,
                    first,
                    second,
                    games=arguments.games,
                    opening_plies=arguments.opening_plies,
                    seed=seed_stream(arguments.seed, "match", number),
                    processes=arguments.processes,
                    tell=tell,
                )
            )


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--run", type=Path, metavar="RUN", help="the folder of a run, whose newest accepted model plays")
    which.add_argument("--model", type=Path, metavar="FILE", help="a model: .model or .safetensors")
    which.add_argument("--checkpoint", type=Path, metavar="FILE", help="a state dictionary of ZeroNetwork: .pth")
    parser.add_argument("--version", type=positive, help="with --run: another of its models")
    parser.add_argument("--games", type=positive, help="of each player (default: 200, and 100 in games for two)")
    parser.add_argument("--simulations", type=positive, help="of the network, before each move (default: 50, and 100 in games for two)")
    parser.add_argument("--algorithm", choices=["puct", "gumbel"], help="its search (default: the run's; without a run, gumbel)")
    parser.add_argument("--seed", type=int, default=1, help="of everything random (default: %(default)s)")
    parser.add_argument("--processes", type=processes, default="auto", help="that play (default: auto, one per core)")
    parser.add_argument("--expectimax-depth", type=depth, default="auto", help="answers of chance it looks at; auto: as time allows")
    parser.add_argument("--network-only", action="store_true", help="nobody plays beside the network")
    parser.add_argument("--opponents", metavar="NAMES", help="in games for two: only these, such as random,greedy,depth-1")
    parser.add_argument("--opening-plies", type=depth, default=4, help="random moves before each pair of games (default: %(default)s)")
    parser.add_argument("--save", type=Path, metavar="DIR", help=f"write {FILE} there")
    arguments = parser.parse_args(argv)
    if arguments.version and not arguments.run:
        parser.error("--version names one of a run's models: it needs --run")
    return arguments


def settle(arguments: argparse.Namespace, game: Game) -> None:
    """Give what the command line leaves open its default for this game.

    Raises:
        ValueError: the games cannot be played in pairs.
    """
    arguments.games = arguments.games or DEFAULT_GAMES[game.num_players]
    arguments.simulations = arguments.simulations or DEFAULT_SIMULATIONS[game.num_players]
    if game.num_players == 2 and arguments.games % 2:
        raise ValueError(f"--games {arguments.games}: {game.name} is played in pairs with colours swapped, give an even number")


def positive(text: str) -> int:
    """A whole number from 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError("expected a whole number from 1")
    return int(text)


def processes(text: str) -> int:
    """A number of processes; auto is one for each core that this one may use."""
    return len(os.sched_getaffinity(0)) if text == "auto" else positive(text)


def depth(text: str) -> int | None:
    """A depth of expectimax; None for auto."""
    if text == "auto":
        return None
    if not text.isdecimal():
        raise argparse.ArgumentTypeError("expected auto or a whole number from 0")
    return int(text)


def find_network(arguments: argparse.Namespace, folder: Path) -> tuple[Model, Path, SearchSettings]:
    """The model that is meant, a file that holds it (in ``folder``, if there is none yet), and how it searches.

    Raises:
        ValueError, OSError: there is none, or it cannot be read.
    """
    config = None
    if arguments.checkpoint:
        model, path = model_of_weights(load_game("twenty48"), load_weights(arguments.checkpoint)), folder / "model.safetensors"
        save_safetensors(path, model)
    else:
        path = arguments.model or model_of_run(arguments.run, arguments.version)
        model, config = read_model(path), path.resolve().parent.parent / "config.yaml"
    if config and config.is_file():
        search = load_settings(config).search
    else:
        search = SearchSettings(algorithm="gumbel")
    return model, path, search.model_copy(update={"algorithm": arguments.algorithm}) if arguments.algorithm else search


def model_of_run(run: Path, version: int | None) -> Path:
    """The file of a run's model, by default the newest that was accepted.

    Raises:
        ValueError: there is none.
    """
    with read_ledger(run) as ledger:
        rows = [row for row in ledger.models() if (version is None and row.accepted) or row.version == version]
    if not rows:
        raise ValueError(f"{run} has no {'accepted model yet' if version is None else f'model {version}'}")
    return run / rows[-1].path


def benchmark(game: Game, network: NetworkContender, arguments: argparse.Namespace, console: Console) -> list[Result]:
    """Let everybody play, the network first."""

    def play(name: str, contender: Contender) -> Result:
        with progress(name, arguments.games, console) as tell:
            return play_contender(
                game, name, contender, games=arguments.games, seed=arguments.seed, processes=arguments.processes, tell=tell
            )

    results = [play(f"network, {network.num_simulations} simulations", network)]
    if arguments.network_only:
        return results
    if game.name == "twenty48" and game.observation_shape[1:] == (4, 4):
        found = arguments.expectimax_depth
        looks = depth_for(game, results[0].move_seconds) if found is None else found
        results.append(play(f"expectimax, depth {looks}", ExpectimaxContender(depth=looks)))
    return [*results, play("random", RandomContender())]


@contextmanager
def progress(name: str, games: int, console: Console) -> Iterator[Tell]:
    """While somebody plays, show how far they are; where the output is no terminal, only at the end."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[moves]}"), TimeElapsedColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as bar:
        task = bar.add_task(name, total=games, moves="")
        yield lambda ended, moves: bar.update(task, completed=ended, moves=f"{moves:,} moves")


def show(game: Game, results: Sequence[Result], console: Console) -> None:
    """Print the table."""
    columns = [
        Column[Result](title="Player", cell=lambda result: result.name, left=True),
        Column[Result](title="Games", cell=lambda result: f"{result.report.games:,}"),
        Column[Result](title="Mean score", cell=lambda result: points(result.report.mean, result.report.margin)),
        Column[Result](title="Median", cell=lambda result: points(result.report.median)),
        Column[Result](title="Best", cell=lambda result: points(result.report.best)),
        *(milestone_column(number, milestone) for number, milestone in enumerate(game.milestones)),
        Column[Result](title="ms/move", cell=lambda result: rate(1000 * result.move_seconds)),
    ]
    width = console.width if console.is_terminal else FILE_WIDTH
    for line in table(columns, results, width):
        console.print(line, soft_wrap=True)


def milestone_column(number: int, milestone: int) -> Column[Result]:
    """The share of games that reach it, with its interval; the first ones go first where the line is short."""

    def cell(result: Result) -> str:
        part = result.report.milestones[number]
        return f"{percent(part.share)} ({100 * part.low:.1f}–{100 * part.high:.1f})"

    return Column(title=f"reach {milestone}", cell=cell, rank=10 - number)


def save(folder: Path, game: Game, model: Model, arguments: argparse.Namespace, content: Mapping[str, Any]) -> None:
    """Write everything as JSON."""
    folder.mkdir(parents=True, exist_ok=True)
    given = {key: str(value) if isinstance(value, Path) else value for key, value in vars(arguments).items()}
    about = {
        "game": game.name,
        "options": game.options,
        "model": model.description.model_dump(),
        "arguments": given,
        "versions": versions(),
    }
    write_atomically(folder / FILE, (json.dumps({**about, **content}, indent=1) + "\n").encode(), mode=0o644)


if __name__ == "__main__":
    sys.exit(main())
