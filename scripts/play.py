"""Play against a trained network in the terminal, or see it play a one-player game.

    python scripts/play.py --run runs/quickstart                    the newest model of a run; you begin
    python scripts/play.py --run runs/quickstart --second           it begins
    python scripts/play.py --run runs/go9 --version 12 --simulations 800
    python scripts/play.py --run runs/twenty48 --watch              it plays 2048, and you watch
    python scripts/play.py --run runs/chess --uci                   a chess engine for programs that speak UCI, such as Cute Chess
    python scripts/play.py --run runs/go9 --gtp                     a Go engine for programs that speak GTP, such as Sabaki
    python scripts/play.py --model model-000012.model --uci         the same with a model's file

Type a move as the board names it (a column in Connect Four, a point such as D4 or "pass" in Go), or one of: hint, undo, new, quit.
In a one-player game you play, and "go" lets the network make a move, "watch" all moves to the end.
"""

import argparse
import contextlib
import sys
import time
import tomllib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TextIO

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

if __name__ == "__main__":
    from training.ctrl_c import ends_at_once

    ends_at_once()

from configs.flags import HIGHEST_SEED, number, whole
from training.ctrl_c import interruptible
from training.ledger import read_ledger
from training.start import before_imports, see_file


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--run", type=Path, help="the run's folder, such as runs/quickstart")
    which.add_argument("--model", type=Path, metavar="FILE", help="a model: .model or .safetensors")
    parser.add_argument("--version", type=whole(), help="with --run: which of its models (default: the newest accepted one)")
    parser.add_argument("--simulations", type=whole(), default=400, help="positions that it looks at before each move (default: 400)")
    parser.add_argument("--second", action="store_true", help="let it begin")
    parser.add_argument("--watch", action="store_true", help="watch it play a one-player game to the end")
    parser.add_argument("--seed", type=whole(0, HIGHEST_SEED), help="of what chance does (default: another game each time)")
    parser.add_argument(
        "--resign",
        type=number(least=0, most=1),
        metavar="CHANCE",
        help="with --gtp: give a game up when its chance to win stays below this, such as 0.05",
    )
    engine = parser.add_mutually_exclusive_group()
    engine.add_argument("--uci", action="store_true", help="be a chess engine: speak UCI on standard input and output")
    engine.add_argument("--gtp", action="store_true", help="be a Go engine: speak GTP on standard input and output")
    arguments = parser.parse_args(argv)
    if arguments.version is not None and not arguments.run:
        parser.error("--version names one of a run's models: it needs --run")
    if arguments.uci and arguments.resign is not None:
        parser.error(
            "--resign: an engine cannot resign by UCI; its GUI ends a game by the scores that it is told, where that is chosen there"
        )
    return arguments


def see(arguments: argparse.Namespace) -> None:
    """See that the run or the model is there.

    Raises:
        ValueError: it is not.
    """
    if arguments.run:
        read_ledger(arguments.run).close()
    else:
        see_file(arguments.model)


if __name__ == "__main__":
    before_imports(parse, see, loading="PyTorch")

import numpy as np
from rich.console import Console

from configs.schema import SearchSettings
from games import CHANCE, Game, load_game
from games.game import States
from training import gtp, uci
from training.auxiliary_heads import foresight_of
from training.evaluation.candidate import model_path_of_run
from training.evaluation.contenders import read_model
from training.evaluator import Evaluator
from training.line_reader import LineReader, Partner, converse
from training.model_file import Model
from training.search.search import Search
from training.thinking import Thinker

EXAMPLES = 3  # of moves, shown to somebody who typed none
WATCH_SECONDS = 0.3  # between two moves that are watched
MOST_LEAVES = 32  # that the engine evaluates at once
LONGEST = 10  # plies for each point, after which a game of the Go engine ends; people end it earlier


class Table:
    """A game under way between a person and a network, who see the same board; or a one-player game that they play together."""

    def __init__(self, game: Game, search: Search, *, person: int, seed: int | None = None) -> None:
        self.game, self.search, self.person = game, search, person
        self._random = np.random.default_rng(seed)
        self.history: list[States] = [self._after_chance(game.initial_state())]

    @property
    def state(self) -> States:
        """The position."""
        return self.history[-1]

    def play(self, action: int) -> None:
        """Make a move; see ``Game.play``."""
        state = self.state.copy()
        self.game.play(state, action)
        self.history.append(self._after_chance(state))

    def _after_chance(self, state: States) -> States:
        """The state when nature has made its moves."""
        while not self.game.terminal(state) and self.game.current_player(state) == CHANCE:
            outcomes, chances = self.game.chance_outcomes(state)
            self.game.play(state, int(self._random.choice(outcomes, p=chances / chances.sum(dtype=np.float64))))
        return state

    def undo(self) -> None:
        """Take back the person's last move, and the answer to it."""
        while len(self.history) > 1:
            self.history.pop()
            if self.game.current_player(self.state) == self.person:
                return

    def think(self) -> tuple[int, float]:
        """The network's best action, and what it expects of it for the player to move."""
        found = self.search.find(self.state[None])
        return int(found.actions[0]), float(found.values[0])

    def result(self) -> str:
        """How the game ended, as the person sees it."""
        won = self.game.returns(self.state)[self.person]
        if self.game.num_players == 1:
            return f"The game is over: score {won:,.0f}."
        return "You win!" if won > 0 else "You lose." if won < 0 else "A draw."


@interruptible
def main(argv: Sequence[str] | None = None) -> int:
    """Run the program; returns its exit code."""
    arguments = parse(argv)
    console = Console(highlight=False)
    try:
        model = open_model(model_path_of_run(arguments.run, arguments.version) if arguments.run else arguments.model)
        game = load_game(model.description.game, **model.description.options)
        if game.num_players == 1 and arguments.second:
            raise ValueError(f"--second: {game.name} is a game for one player")
        if game.num_players == 2 and arguments.watch:
            raise ValueError(f"--watch: {game.name} is a game for two; the games of a run are shown by scripts/view_results.py --game")
        if arguments.uci and game.name != "chess":
            raise ValueError(f"--uci: the Universal Chess Interface is for chess, and this model plays {game.name}")
        if arguments.gtp and game.name != "go":
            raise ValueError(f"--gtp: the Go Text Protocol is for go, and this model plays {game.name}")
        network = model.build(game)
        evaluator = Evaluator(network, game, max_batch=MOST_LEAVES)
    except (ValueError, OSError) as error:
        print(f"play.py: {error}", file=sys.stderr)
        return 2
    if arguments.uci:
        return serve(partial(uci.Engine, game, name=f"Keima {model.model_version}"), game, evaluator, arguments.simulations)
    if arguments.gtp:
        long = load_game("go", **(model.description.options | {"max_plies": LONGEST * game.options["size"] ** 2}))
        keima = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        version = f"{keima['version']} model {model.model_version}"
        make = partial(gtp.Engine, long, name="Keima", version=version, foresee=foresight_of(network), resign_below=arguments.resign or 0.0)
        return serve(make, long, evaluator, arguments.simulations)
    settings = SearchSettings(forced_playouts=False)
    search = Search(game, evaluator, settings, num_simulations=arguments.simulations, num_trees=1)
    words = "hint, undo, new or quit" if game.num_players == 2 else "hint, go, watch, undo, new or quit"
    console.print(f"{game.name}, model {model.model_version}, {arguments.simulations} simulations a move. Type {words}.")
    try:
        again = True
        while again:
            table = Table(game, search, person=1 if arguments.second else 0, seed=arguments.seed)
            again = play_game(table, console, watch=arguments.watch)
    except (KeyboardInterrupt, EOFError):
        console.print()
    return 0


def open_model(path: Path) -> Model:
    """The model in a file.

    Raises:
        ValueError, OSError: it is damaged, or there is none.
    """
    try:
        return read_model(path)
    except ValueError as error:
        raise ValueError(f"{path} cannot be read: {error}") from error


def serve(make: Callable[..., Partner], game: Game, evaluator: Evaluator, simulations: int) -> int:
    """Be an engine until the input ends; returns the exit code. What is no protocol goes to standard error."""
    protocol: TextIO = sys.stdout

    def write(line: str) -> None:
        protocol.write(f"{line}\n")
        protocol.flush()

    def think(max_simulations: int) -> Thinker:
        return Thinker(game, evaluator, max_batch=evaluator.max_batch, max_simulations=max_simulations)

    engine = make(think=think, write=write, simulations=simulations)
    with contextlib.redirect_stdout(sys.stderr):
        try:
            converse(LineReader(sys.stdin.fileno()), engine)
            engine.close()
        except BrokenPipeError:
            return 0  # nobody listens any more
        except ValueError as error:  # of a network that gives no numbers
            print(f"play.py: {error}", file=sys.stderr)
            return 2
    return 0


def play_game(table: Table, console: Console, *, watch: bool = False) -> bool:
    """Play one game; returns whether another is wanted."""
    if watch:
        watch_game(table, console)
    while not table.game.terminal(table.state):
        console.print(f"\n{table.game.render(table.state)}\n", markup=False)
        if table.game.current_player(table.state) != table.person:
            action, value = table.think()
            console.print(f"It plays {table.game.action_name(action)} and expects to win {(1 + value) / 2:.0%}.", markup=False)
            table.play(action)
            continue
        command = console.input("Your move: ").strip()
        if command in {"quit", "q", "exit"}:
            return False
        if command == "new":
            return True
        if command == "watch" and table.game.num_players == 1:
            watch_game(table, console)
            continue
        for line in obey(table, command):
            console.print(line, markup=False)
    console.print(f"\n{table.game.render(table.state)}\n\n{table.result()}\n", markup=False)
    return console.input("Another game? [y/N] ").strip().lower().startswith("y")


def watch_game(table: Table, console: Console) -> None:
    """Let the network play a one-player game to its end, as fast as eyes follow."""
    while not table.game.terminal(table.state):
        console.print(f"\n{table.game.render(table.state)}\n", markup=False)
        action, value = table.think()
        console.print(f"It plays {table.game.action_name(action)}, {hope(table.game, value)}.", markup=False)
        table.play(action)
        time.sleep(WATCH_SECONDS if console.is_terminal else 0.0)


def hope(game: Game, value: float) -> str:
    """What the network expects, in words."""
    return f"and expects {value:,.0f} points more" if game.num_players == 1 else f"and expects you to win {(1 + value) / 2:.0%}"


def obey(table: Table, command: str) -> Iterator[str]:
    """Carry out what the person typed; yields what there is to say about it."""
    game = table.game
    if command == "undo":
        table.undo()
    elif command == "hint":
        action, value = table.think()
        yield f"It would play {game.action_name(action)}, {hope(game, value)}."
    elif command == "go" and game.num_players == 1:
        action, value = table.think()
        table.play(action)
        yield f"It plays {game.action_name(action)}, {hope(game, value)}."
    else:
        legal = game.legal_actions(table.state)
        try:
            action = game.parse_action(command)
        except ValueError as error:
            yield str(error)
            return
        if action in legal:
            table.play(action)
            return
        some = ", ".join(game.action_name(int(choice)) for choice in np.random.default_rng(0).permutation(legal)[:EXAMPLES])
        yield f"{command} is not legal here; {some} would be."


if __name__ == "__main__":
    sys.exit(main())
