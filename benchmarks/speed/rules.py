"""Measure the speed of the rules by games of uniformly random moves, against other ways to play the same games.

    python benchmarks/speed/rules.py [--games go9 go19] [--seconds 1] [--rounds 5]

Ours is what every user of a game does: a compiled loop calls the kernels legal_actions and step until the game is over.
The others, where there are any:

    OpenSpiel C++    OpenSpiel's random player in C++ (RandomRolloutEvaluator)
    from Python      a Python loop over OpenSpiel's states
    plain            the same game written as ordinary Python functions (keima/games/authoring/plain.py)
    by OpenSpiel     our loop, with kernels that ask OpenSpiel's Python package (docs/openspiel.md)

The games are the same except for one rule. Go ends after two passes or 2 * size * size plies and is scored by area in
both; passing is a legal action like any other. But OpenSpiel forbids only retaking a ko at once; a play that repeats an
older position is legal there and ends the game in a draw. Our rules look such plays up and forbid them, which takes
time. The mean lengths are printed to show how little this changes. In 2048 the player's moves are counted, and the new
tiles between them are played too; OpenSpiel considers some merging slides illegal, which ends its games earlier. Chess
claims draws in both, and ends at 10,000 plies.

The second table has the kernels' times by themselves. The third has perft of chess, the number of ways to play a number
of plies, the last of which are counted and not played; python-chess counts in the same way.
"""

import itertools
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.harness import (
    Parser,
    Ratio,
    Report,
    Way,
    divide_rounds,
    import_if_installed,
    measure_rate,
    measure_rates,
    take_turns,
    time_call,
)
from games.tic_tac_toe import game as plain_tic_tac_toe
from keima.compilation.decorators import compiled
from keima.games import Game, load_game
from keima.games.chess.notation import START_FEN, position_from_fen
from keima.games.game import Actions, Rules, States
from keima.games.perft import count_perft
from keima.games.playouts import play_random_games
from tests.games.plain_connect_four import connect_four as plain_connect_four

CHUNK_MOVES = 20_000  # between two readings of the clock
SAMPLE, QUICK_SAMPLE = 200, 5  # games that tell a mean length, or in which each kernel is timed


class Contest(NamedTuple):
    """A game as loaded here and in OpenSpiel."""

    name: str
    options: dict[str, Any]
    openspiel: str

    def load(self) -> Game:
        """Load the game by our rules."""
        return load_game(self.name, **self.options)


CONTESTS = {
    "go9": Contest("go", {"size": 9, "komi": 7.5}, "go(board_size=9,komi=7.5)"),
    "go19": Contest("go", {"size": 19, "komi": 7.5}, "go(board_size=19,komi=7.5)"),
    "connect_four": Contest("connect_four", {}, "connect_four"),
    "tic_tac_toe": Contest("tic_tac_toe", {}, "tic_tac_toe"),
    "2048": Contest("twenty48", {}, "2048"),
    "chess": Contest("chess", {"max_plies": 10_000}, "chess"),
}
PLAIN: dict[str, Callable[[], Game]] = {"tic_tac_toe": plain_tic_tac_toe, "connect_four": plain_connect_four}
BY_OPENSPIEL = ("go9", "connect_four", "tic_tac_toe")
PERFT = {  # https://www.chessprogramming.org/Perft_Results: position, depth, and the depth for python-chess
    "start": (START_FEN, 6, 4),
    "middle game": ("r3k2r/p1ppqpb1/bn2pnp1/3PN3/1p2P3/2N2Q1p/PPPBBPPP/R3K2R w KQkq - 0 1", 5, 3),
    "endgame": ("8/2p5/3p4/KP5r/1R3p1k/8/4P1P1/8 w - - 0 1", 7, 4),
}


def make_our_loop(game: Game) -> Callable[[int], int]:
    """Return a function that plays games in a compiled loop, and returns the number of moves."""
    streams = np.ones(1, np.uint64)
    return lambda games: play_random_games(game.rules, game.start, game.num_actions, game.num_outcomes, streams, games)


def cut_in_chunks(play: Callable[[int], int], length: float) -> Way:
    """Return a function that plays as many games of a mean length as make a chunk."""
    return partial(play, max(1, round(CHUNK_MOVES / length)))


def pick_outcome(outcomes: list[tuple[int, float]], share: float) -> int:
    """Return the outcome at ``share`` of the cumulative probability."""
    for outcome, probability in outcomes:
        share -= probability
        if share < 0:
            return outcome
    return outcomes[-1][0]


def make_python_loop(pyspiel: Any, name: str) -> Callable[[int], int]:
    """Return a Python loop over OpenSpiel's states."""
    game, random = pyspiel.load_game(name), np.random.default_rng(1)

    def play(games: int) -> int:
        moves = 0
        for _ in range(games):
            state = game.new_initial_state()
            while not state.is_terminal():
                if state.is_chance_node():
                    state.apply_action(pick_outcome(state.chance_outcomes(), random.random()))
                    continue
                legal = state.legal_actions()
                state.apply_action(legal[int(random.random() * len(legal))])
                moves += 1
        return moves

    return play


def make_cpp_rollouts(pyspiel: Any, name: str, length: float) -> Way | None:
    """Return OpenSpiel's rollouts in C++, whose mean length is given because they do not tell; games with a score have
    none.
    """
    game = pyspiel.load_game(name)
    if game.get_type().reward_model != pyspiel.GameType.RewardModel.TERMINAL:
        return None
    rollouts = max(1, round(CHUNK_MOVES / length))
    evaluator = pyspiel.RandomRolloutEvaluator(rollouts, 1)
    bot = pyspiel.MCTSBot(game, evaluator, 1.0, 1, 10, False, 1, False)  # one simulation: rollouts without a tree

    def play() -> float:
        bot.step(game.new_initial_state())
        return rollouts * length

    return play


def list_ways(name: str, pyspiel: Any, sample: int) -> tuple[dict[str, Way], dict[str, float]]:
    """Return all ways to play a game, ours first, and the mean lengths of our games and of OpenSpiel's."""
    contest, play = CONTESTS[name], make_our_loop(CONTESTS[name].load())
    lengths = {"ours": play(sample) / sample}
    ways = {"ours": cut_in_chunks(play, lengths["ours"])}
    if name in PLAIN:
        ways["plain"] = cut_in_chunks(make_our_loop(PLAIN[name]()), lengths["ours"])
    if pyspiel is not None:
        slow = make_python_loop(pyspiel, contest.openspiel)
        lengths["theirs"] = slow(sample) / sample
        ways["python"] = partial(slow, 1)
        if cpp := make_cpp_rollouts(pyspiel, contest.openspiel, lengths["theirs"]):
            ways["cpp"] = cpp
        if name in BY_OPENSPIEL:
            ways["asked"] = partial(make_our_loop(load_game("openspiel", game=contest.openspiel)), 1)
    return ways, lengths


@compiled
def replay(
    rules: Rules, start: States, actions: Actions, lengths: NDArray[np.int64], planes: NDArray[np.float32], extra: int
) -> int:
    """Play recorded games with step, and call one more kernel at each position, by its number; 0: none."""
    legal_actions, step, observe, key = rules.legal_actions, rules.step, rules.observe, rules.hash
    legal, state, played, total = np.empty(planes.size, np.int32), np.empty_like(start), 0, 0
    for length in lengths:
        state[:] = start
        for action in actions[played : played + length]:
            if extra == 1:
                total += legal_actions(state, legal)
            elif extra == 2:
                observe(state, planes)
            elif extra == 3:
                total += key(state)
            step(state, np.int64(action))
        played += length
    return total


def record_games(game: Game, count: int) -> tuple[Actions, NDArray[np.int64]]:
    """Return the actions of random games, concatenated, and the number of each game's actions."""
    random, games = np.random.default_rng(1), []
    for _ in range(count):
        state, actions = game.initial_state(), []
        while not game.terminal(state):
            outcomes, probabilities = game.chance_outcomes(state)
            likely = probabilities / probabilities.sum() if len(outcomes) > 0 else None
            actions.append(int(random.choice(outcomes if len(outcomes) > 0 else game.legal_actions(state), p=likely)))
            game.play(state, actions[-1])
        games.append(actions)
    return np.array(list(itertools.chain(*games)), np.int32), np.array([len(actions) for actions in games])


def measure_kernels(game: Game, rounds: int, sample: int) -> list[float]:
    """Return the times of step, legal_actions, observe and hash of a position."""
    actions, lengths = record_games(game, sample)
    planes = np.empty(game.observation_shape, np.float32)
    calls = [partial(replay, game.rules, game.start, actions, lengths, planes, extra) for extra in range(4)]
    calls[0]()  # compiles
    times = take_turns([partial(time_call, call) for call in calls], rounds)
    step, *others = (median(column) / len(actions) * 1e9 for column in times)
    return [step, *(other - step for other in others)]


def count_in_python_chess(board: Any, depth: int) -> int:
    """Return the perft of python-chess."""
    if depth == 1:
        return int(board.legal_moves.count())
    total = 0
    for move in board.legal_moves:
        board.push(move)
        total += count_in_python_chess(board, depth - 1)
        board.pop()
    return total


def measure_games(report: Report, names: list[str], pyspiel: Any, *, rounds: int, seconds: float, sample: int) -> None:
    """Measure random games in all ways."""
    others = ("cpp", "python", "plain", "asked")
    heads = [f"ours / {head}" for head in ("OpenSpiel C++", "from Python", "plain", "by OpenSpiel")]
    title = "Random games: moves/s, their mean lengths, and ratios"
    table = report.table(title, "game", "ours", "length", "OpenSpiel C++", "length", *heads)
    for name in names:
        ways, lengths = list_ways(name, pyspiel, sample)
        rates = dict(zip(ways, measure_rates(list(ways.values()), rounds=rounds, seconds=seconds), strict=True))
        ratios = [divide_rounds(rates["ours"], rates[other]) if other in rates else None for other in others]
        cpp = median(rates["cpp"]) if "cpp" in rates else None
        table.add(name, median(rates["ours"]), lengths["ours"], cpp, lengths.get("theirs"), *ratios)


def measure_perft(report: Report, chess: Any, *, rounds: int, less: int) -> None:
    """Measure perft, ``less`` plies less deep than usual."""
    game = load_game("chess")
    count_perft(game, 2)
    table = report.table("Perft of chess, leaves/s", "position", "depth", "leaves", "ours", "python-chess", "ratio")
    for name, (fen, depth, shallow) in PERFT.items():
        ways: list[Way] = [partial(count_perft, game, depth - less, position_from_fen(game, fen))]
        if chess is not None:
            ways.append(partial(count_in_python_chess, chess.Board(fen), shallow - less))
        found = take_turns([partial(measure_rate, way, 0.0) for way in ways], rounds)
        other: tuple[float | None, Ratio | None] = (None, None)
        if chess is not None:
            other = median(found[1]), divide_rounds(*found)
        table.add(name, depth - less, ways[0](), median(found[0]), *other)


def main() -> None:
    """Measure and print."""
    parser = Parser(__doc__, rounds=5, seconds=1.0)
    parser.option("--games", CONTESTS, list(CONTESTS), quick=["connect_four", "go9", "chess"], help="which of them")
    arguments = parser.parse()
    pyspiel, chess = import_if_installed("pyspiel", "open_spiel"), import_if_installed("chess", "chess")
    rounds, sample = arguments.rounds, QUICK_SAMPLE if arguments.quick else SAMPLE
    with Report(arguments) as report:
        measure_games(report, arguments.games, pyspiel, rounds=rounds, seconds=arguments.seconds, sample=sample)
        columns = ("step", "legal_actions", "observe", "hash", "state, bytes")
        table = report.table("Our kernels, nanoseconds a call in random games", "game", *columns)
        for name in arguments.games:
            game = CONTESTS[name].load()
            table.add(name, *measure_kernels(game, rounds, sample), int(game.start.nbytes))
            if name in PLAIN:
                table.add(f"{name}, plain", *measure_kernels(PLAIN[name](), rounds, sample), None)
        if "chess" in arguments.games:
            measure_perft(report, chess, rounds=rounds, less=1 if arguments.quick else 0)


if __name__ == "__main__":
    main()
