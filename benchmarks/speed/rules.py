"""Measure the speed of the rules by games of uniformly random moves, against OpenSpiel.

    python benchmarks/speed/rules.py [--games go9 go19] [--seconds 1] [--rounds 5]

Ours is what every user of a game does: a compiled loop calls the kernels legal_actions and step until the game is over.
OpenSpiel plays in C++ (its random player, RandomRolloutEvaluator), and once more from a Python loop, which also
measures the length of its games. All alternate. Times are processor times, so other programs matter less; figures are
medians over the rounds.

The games are the same except for one rule. Go ends after two passes or 2 * size * size plies and is scored by area in
both; passing is a legal action like any other. But OpenSpiel forbids only retaking a ko at once; a play that repeats an
older position is legal there and ends the game in a draw. Our rules look such plays up and forbid them, which takes
time. The mean lengths are printed to show how little this changes. In 2048 the player's moves are counted, and the new
tiles between them are played too; OpenSpiel considers some merging slides illegal, which ends its games earlier. Chess
claims draws in both, and ends at 10,000 plies.

Perft of chess is measured too: the number of ways to play a number of plies, the last of which are counted and not
played. It is compared with python-chess, which counts in the same way, and so are random games.
"""

import argparse
import importlib
import itertools
import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from keima.compilation.decorators import compiled
from keima.config.flags import number, whole
from keima.games import Game, load_game
from keima.games.chess.notation import START_FEN, position_from_fen
from keima.games.game import Actions, Rules, States
from keima.games.perft import perft
from keima.games.playouts import play_randomly

CHUNK_MOVES = 20_000  # between two readings of the clock
RECORDED = 200  # games in which each kernel is timed
INSTALL = (
    "OpenSpiel is not installed, so only our own figures follow. To compare: make setup-dev, or pip install open_spiel"
)


class Contest(NamedTuple):
    """A game as loaded here and in OpenSpiel."""

    name: str
    options: dict[str, Any]
    openspiel: str


CONTESTS = {
    "go9": Contest("go", {"size": 9, "komi": 7.5}, "go(board_size=9,komi=7.5)"),
    "go19": Contest("go", {"size": 19, "komi": 7.5}, "go(board_size=19,komi=7.5)"),
    "connect_four": Contest("connect_four", {}, "connect_four"),
    "tic_tac_toe": Contest("tic_tac_toe", {}, "tic_tac_toe"),
    "2048": Contest("twenty48", {}, "2048"),
    "chess": Contest("chess", {"max_plies": 10_000}, "chess"),
}
PERFT = {  # https://www.chessprogramming.org/Perft_Results: position, depth, and the depth for python-chess
    "start": (START_FEN, 6, 4),
    "middle game": ("r3k2r/p1ppqpb1/bn2pnp1/3PN3/1p2P3/2N2Q1p/PPPBBPPP/R3K2R w KQkq - 0 1", 5, 3),
    "endgame": ("8/2p5/3p4/KP5r/1R3p1k/8/4P1P1/8 w - - 0 1", 7, 4),
}


class Speed(NamedTuple):
    """The result of one way of playing in one round."""

    moves_per_second: float
    mean_length: float


def measure_speed(play: Callable[[int], int], seconds: float) -> Speed:
    """Call ``play(games)``, which returns the number of moves, for a number of processor seconds."""
    chunk = max(1, round(CHUNK_MOVES / play(1)))
    games, moves, started = 0, 0, time.process_time()
    while time.process_time() - started < seconds:
        moves += play(chunk)
        games += chunk
    return Speed(moves / (time.process_time() - started), moves / games)


def ours(game: Game) -> Callable[[int], int]:
    """Our rules in a compiled loop."""
    streams = np.ones(1, np.uint64)
    return lambda games: play_randomly(game.rules, game.start, game.num_actions, game.num_outcomes, streams, games)


def outcome_at(outcomes: list[tuple[int, float]], share: float) -> int:
    """The outcome at ``share`` of the cumulative probability."""
    for outcome, probability in outcomes:
        share -= probability
        if share < 0:
            return outcome
    return outcomes[-1][0]


def openspiel_in_python(pyspiel: Any, name: str) -> Callable[[int], int]:
    """A Python loop over OpenSpiel's states."""
    game, random = pyspiel.load_game(name), np.random.default_rng(1)

    def play(games: int) -> int:
        moves = 0
        for _ in range(games):
            state = game.new_initial_state()
            while not state.is_terminal():
                if state.is_chance_node():
                    state.apply_action(outcome_at(state.chance_outcomes(), random.random()))
                    continue
                legal = state.legal_actions()
                state.apply_action(legal[int(random.random() * len(legal))])
                moves += 1
        return moves

    return play


def openspiel_in_cpp(pyspiel: Any, name: str, seconds: float, mean_length: float) -> float:
    """Moves per second of OpenSpiel's rollouts in C++, which do not report their length; NaN for games with a score,
    which have none.
    """
    game = pyspiel.load_game(name)
    if game.get_type().reward_model != pyspiel.GameType.RewardModel.TERMINAL:
        return float("nan")
    rollouts = max(1, round(CHUNK_MOVES / mean_length))
    evaluator = pyspiel.RandomRolloutEvaluator(rollouts, 1)
    bot = pyspiel.MCTSBot(game, evaluator, 1.0, 1, 10, False, 1, False)  # one simulation: rollouts without a tree
    games, started = 0, time.process_time()
    while time.process_time() - started < seconds:
        bot.step(game.new_initial_state())
        games += rollouts
    return games * mean_length / (time.process_time() - started)


def compare(contest: Contest, pyspiel: Any, *, seconds: float, rounds: int) -> str:
    """One line of the table."""
    play = ours(load_game(contest.name, **contest.options))
    play(1)
    mine, cpp, python = [], [], []
    for _ in range(rounds):
        mine.append(measure_speed(play, seconds))
        if pyspiel is not None:
            python.append(measure_speed(openspiel_in_python(pyspiel, contest.openspiel), seconds))
            cpp.append(
                openspiel_in_cpp(
                    pyspiel, contest.openspiel, seconds, statistics.fmean(speed.mean_length for speed in python)
                )
            )
    own = statistics.median(speed.moves_per_second for speed in mine)
    line = f"{own:13,.0f} {statistics.fmean(speed.mean_length for speed in mine):7.1f}"
    if pyspiel is None:
        return line
    ratio = statistics.median(speed.moves_per_second / other for speed, other in zip(mine, cpp, strict=True))
    slow_ratio = statistics.median(
        speed.moves_per_second / other.moves_per_second for speed, other in zip(mine, python, strict=True)
    )
    slow = statistics.median(speed.moves_per_second for speed in python)
    length = statistics.fmean(speed.mean_length for speed in python)
    return f"{line} {statistics.median(cpp):13,.0f} {length:7.1f} {ratio:7.2f} {slow:13,.0f} {slow_ratio:7.2f}"


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


def concatenated_games(game: Game) -> tuple[Actions, NDArray[np.int64]]:
    """The actions of random games, concatenated, and the number of each game's actions."""
    random, games = np.random.default_rng(1), []
    for _ in range(RECORDED):
        state, actions = game.initial_state(), []
        while not game.terminal(state):
            outcomes, probabilities = game.chance_outcomes(state)
            likely = probabilities / probabilities.sum() if len(outcomes) > 0 else None
            actions.append(int(random.choice(outcomes if len(outcomes) > 0 else game.legal_actions(state), p=likely)))
            game.play(state, actions[-1])
        games.append(actions)
    return np.array(list(itertools.chain(*games)), np.int32), np.array([len(actions) for actions in games])


def nanoseconds(game: Game, rounds: int) -> list[float]:
    """The times of step, legal_actions, observe and hash of a position."""
    actions, lengths = concatenated_games(game)
    planes = np.empty(game.observation_shape, np.float32)
    times: list[list[float]] = []
    for _ in range(rounds + 1):  # the first one compiles
        times.append([])
        for extra in range(4):
            started = time.process_time()
            replay(game.rules, game.start, actions, lengths, planes, extra)
            times[-1].append((time.process_time() - started) / len(actions) * 1e9)
    step, *others = (statistics.median(column) for column in zip(*times[1:], strict=True))
    return [step, *(other - step for other in others)]


def kernels_line(contest: Contest, rounds: int) -> str:
    """One line of the table of kernels."""
    game = load_game(contest.name, **contest.options)
    step, legal, observe, key = nanoseconds(game, rounds)
    return f"{step:8.0f} {legal:14.0f} {observe:8.0f} {key:8.0f} {game.start.nbytes:10,}"


def python_chess_perft(board: Any, depth: int) -> int:
    """The perft of python-chess."""
    if depth == 1:
        return int(board.legal_moves.count())
    total = 0
    for move in board.legal_moves:
        board.push(move)
        total += python_chess_perft(board, depth - 1)
        board.pop()
    return total


def in_python_chess(chess: Any) -> Callable[[int], int]:
    """A Python loop over python-chess's board; as in our rules, draws by repetition are claimed once they occurred."""
    random = np.random.default_rng(1)

    def play(games: int) -> int:
        moves = 0
        for _ in range(games):
            board = chess.Board()
            while not (board.is_insufficient_material() or board.is_fifty_moves() or board.is_repetition(3)):
                legal = list(board.legal_moves)
                if not legal:
                    break
                board.push(legal[int(random.random() * len(legal))])
                moves += 1
        return moves

    return play


def counts_per_second(count: Callable[[], int], rounds: int) -> float:
    """The median over the rounds of the count per processor second."""
    speeds = []
    for _ in range(rounds):
        started = time.process_time()
        total = count()
        speeds.append(total / (time.process_time() - started))
    return statistics.median(speeds)


def print_chess(*, seconds: float, rounds: int) -> None:
    """Measure and print perft, and random games in python-chess."""
    try:
        chess = importlib.import_module("chess")
    except ImportError:
        chess = None
        print(
            "\npython-chess is not installed, so only our own perft follows. To compare: make setup-dev, or pip "
            "install chess"
        )
    game = load_game("chess")
    perft(game, 2)
    print("\nPerft of chess, leaves a second; the last ply is counted and not played")
    print(f"{'position':13} {'depth':>5} {'leaves':>13} {'ours':>13} {'python-chess':>13} {'ratio':>7}")
    for name, (fen, depth, shallow) in PERFT.items():
        state = position_from_fen(game, fen)
        own = counts_per_second(lambda state=state, depth=depth: perft(game, depth, state), rounds)  # type: ignore[misc]
        line = f"{name:13} {depth:5} {perft(game, depth, state):13,} {own:13,.0f}"
        if chess is not None:
            board = chess.Board(fen)
            other = counts_per_second(lambda board=board, shallow=shallow: python_chess_perft(board, shallow), rounds)  # type: ignore[misc]
            line += f" {other:13,.0f} {own / other:7.0f}"
        print(line, flush=True)
    if chess is not None:
        speeds = [measure_speed(in_python_chess(chess), seconds) for _ in range(rounds)]
        speed = statistics.median(speed.moves_per_second for speed in speeds)
        length = statistics.fmean(speed.mean_length for speed in speeds)
        print(f"Random games in python-chess: {speed:,.0f} moves/s, mean length {length:.1f}")


def pyspiel_if_installed() -> Any:
    """OpenSpiel's module; without it, None, after saying how to install it."""
    try:
        return importlib.import_module("pyspiel")
    except ImportError:
        print(INSTALL)
        return None


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--games", nargs="+", choices=CONTESTS, default=list(CONTESTS), metavar="GAME", help=f"of {', '.join(CONTESTS)}"
    )
    parser.add_argument(
        "--seconds", type=number(above=0), default=1.0, help="for each way of playing in each round (default: 1)"
    )
    parser.add_argument("--rounds", type=whole(), default=5, help="(default: 5)")
    arguments = parser.parse_args()
    pyspiel = pyspiel_if_installed()
    print("\nRandom games, moves a second; length is the mean number of moves in a game")
    print(
        f"{'game':13} {'ours':>13} {'length':>7} {'OpenSpiel C++':>13} {'length':>7} {'ratio':>7} "
        f"{'from Python':>13} {'ratio':>7}"
    )
    for name in arguments.games:
        line = compare(CONTESTS[name], pyspiel, seconds=arguments.seconds, rounds=arguments.rounds)
        print(f"{name:13} {line}", flush=True)
    print("\nOur kernels, nanoseconds a call in random games; bytes of a state")
    print(f"{'game':13} {'step':>8} {'legal_actions':>14} {'observe':>8} {'hash':>8} {'bytes':>10}")
    for name in arguments.games:
        print(f"{name:13} {kernels_line(CONTESTS[name], arguments.rounds)}", flush=True)
    if "chess" in arguments.games:
        print_chess(seconds=arguments.seconds, rounds=arguments.rounds)


if __name__ == "__main__":
    main()
