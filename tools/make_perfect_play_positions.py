"""Make the Connect Four positions that measure errors against perfect play.

    python tools/make_perfect_play_positions.py        15 minutes on one core, 1 GiB of memory
    python tools/make_perfect_play_positions.py --count 6000 --seed 77 --first-ply 9 --out more.npz

Each position comes from a game of its own. The players of a game each have a skill of their own: a chance, even between
0 and 1, of playing any legal column. Otherwise they keep the value of the position, as the exact solver finds it, and
choose evenly among the moves that do. In the first eleven plies that takes too long: there they win at once if they
can, else avoid letting the other win at once, and choose in proportion to the lines that run through the cell.

Of each game one position is drawn, evenly over its plies, so that all plies come in the frequency in which games have
them, with one exception: after fewer than eight plies solving takes seconds to minutes. Of draws after seven plies half
are kept, of those after six a quarter, and of earlier ones none: play in the opening is hardly measured. With
--first-ply, all from there on are kept and none before: 6,000 from the ninth ply on take twenty minutes. Positions that
were drawn before, or their mirror images, are left out. A seed fixes everything.

The file holds for N positions: ``actions`` (all moves that lead to them, one after another), ``plies`` [N] (how many of
these belong to each), ``values`` [N, 7] (as keima.games.exact has them), ``positions_per_ply`` [42],
``share_with_something_to_lose`` and ``seed``.
"""

import argparse
import io
import time
from collections.abc import Sequence
from pathlib import Path

if __name__ == "__main__":
    from keima.base.system.signals import exit_quietly_on_interrupt

    exit_quietly_on_interrupt()

from keima.base.system.command_line import CommandLine
from keima.base.system.start import parse_before_imports
from keima.config.flags import HIGHEST_SEED, whole


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = CommandLine(__doc__)
    parser.add_argument("--count", type=whole(), default=2000, help="number of positions (default: %(default)s)")
    parser.add_argument("--seed", type=whole(0, HIGHEST_SEED), default=4)
    parser.add_argument(
        "--first-ply", type=whole(0, 41), help="the earliest ply (default: all from 8 on, and a few from 6 and 7)"
    )
    parser.add_argument("--out", type=Path, help="output file (default: the one that runs are measured with)")
    return parser.parse_args(argv)


if __name__ == "__main__":
    parse_before_imports(parse, loading="numba")

import numpy as np

from keima.base.files import write_atomically
from keima.evaluation.perfect_play import POSITIONS_FILE
from keima.games import Game, load_game
from keima.games.connect_four.rules import COLUMNS, ROWS, STONES
from keima.games.connect_four.solver import Table, new_table, solve_action_values, solve_position
from keima.games.exact import ILLEGAL, ActionValues
from keima.games.game import States

SLOTS = 134_217_689  # of the solver's table: 1 GiB
EXACT_FROM = 11  # the ply from which on skilled moves are exact
ALL_FROM = 8  # the ply from which on every draw is kept
FIRST_DRAW = 6  # no draw before this ply is kept

DIRECTIONS = ((1, 0), (0, 1), (1, 1), (1, -1))


def lines_through() -> list[list[int]]:
    """The number of the board's 69 lines through each cell, ``[column][row]``."""
    lines = [[0] * ROWS for _ in range(COLUMNS)]
    for column, row, (right, up) in ((c, r, d) for c in range(COLUMNS) for r in range(ROWS) for d in DIRECTIONS):
        if column + 3 * right < COLUMNS and 0 <= row + 3 * up < ROWS:
            for step in range(4):
                lines[column + step * right][row + step * up] += 1
    return lines


WINNING_LINES = lines_through()


def position_after(game: Game, state: States, action: int) -> States:
    """The position after ``action``."""
    state = state.copy()
    game.play(state, action)
    return state


def wins(game: Game, state: States, action: int) -> bool:
    """Whether ``action`` completes a line."""
    return bool(game.returns(position_after(game, state, action)).any())


def tactical_value(game: Game, state: States, action: int) -> int:
    """1 if ``action`` wins at once, -1 if it lets the opponent win at once, else 0."""
    left = position_after(game, state, action)
    if wins(game, state, action):
        return 1
    return -1 if any(wins(game, left, reply) for reply in game.legal_actions(left).tolist()) else 0


def sensible_action(game: Game, state: States, random: np.random.Generator) -> int:
    """A move of an attentive player who does not look far ahead."""
    values = {action: tactical_value(game, state, action) for action in game.legal_actions(state).tolist()}
    actions = [action for action in values if values[action] == max(values.values())]
    heights = [((int(state[STONES]) >> 7 * action) & 63).bit_count() for action in actions]
    weights = np.array([WINNING_LINES[action][height] for action, height in zip(actions, heights, strict=True)])
    return int(random.choice(actions, p=weights / weights.sum()))


def keeping_action(game: Game, state: States, random: np.random.Generator, table: Table) -> int:
    """One of the moves that keep the value of the position, all equally likely."""
    value = solve_position(state, table=table)
    shuffled = random.permutation(game.legal_actions(state)).tolist()
    return next(
        action for action in shuffled if -solve_position(position_after(game, state, action), table=table) == value
    )


def play_sensibly(game: Game, random: np.random.Generator, table: Table) -> list[int]:
    """The moves of one game."""
    state, actions = game.initial_state(), list[int]()
    chance_of_any_move = random.random(2)
    while not game.terminal(state):
        if random.random() < chance_of_any_move[game.current_player(state)]:
            actions.append(int(random.choice(game.legal_actions(state))))
        elif len(actions) < EXACT_FROM:
            actions.append(sensible_action(game, state, random))
        else:
            actions.append(keeping_action(game, state, random, table))
        game.play(state, actions[-1])
    return actions


def position(game: Game, actions: list[int]) -> States:
    """The position after ``actions``."""
    state = game.initial_state()
    for action in actions:
        game.play(state, action)
    return state


def generate_positions(
    game: Game, count: int, seed: int, table: Table, first_ply: int | None = None
) -> list[list[int]]:
    """The moves that lead to ``count`` different positions."""
    first, all_from = (FIRST_DRAW, ALL_FROM) if first_ply is None else (first_ply, first_ply)
    drawn: list[list[int]] = []
    seen: set[int] = set()
    number = 0
    while len(drawn) < count:
        random = np.random.default_rng([seed, number])
        number += 1
        actions = play_sensibly(game, random, table)
        ply = int(random.integers(len(actions)))
        if ply < first or random.random() >= 2.0 ** (ply - all_from):
            continue
        moves = actions[:ply]
        images = {
            game.hash(position(game, moves)),
            game.hash(position(game, [COLUMNS - 1 - action for action in moves])),
        }
        if not images & seen:
            drawn.append(moves)
        seen |= images
    return drawn


def label(game: Game, drawn: list[list[int]], table: Table) -> list[ActionValues]:
    """The values of all moves in the drawn positions; prints the time taken."""
    values, seconds, counts = [], np.zeros(game.max_plies), np.zeros(game.max_plies, int)
    for moves in drawn:
        started = time.process_time()
        values.append(solve_action_values(position(game, moves), table=table))
        seconds[len(moves)] += time.process_time() - started
        counts[len(moves)] += 1
    for ply in np.flatnonzero(counts).tolist():
        print(
            f"ply {ply:2}: {counts[ply]:4} positions, {counts[ply] / max(seconds[ply], 1e-9):12,.1f} solved per second",
            flush=True,
        )
    return values


def main() -> None:
    """Draw, solve, write."""
    arguments = parse(None)
    out, started = arguments.out or POSITIONS_FILE, time.process_time()
    game, table = load_game("connect_four"), new_table(slots=SLOTS)
    drawn = generate_positions(game, arguments.count, arguments.seed, table, arguments.first_ply)
    print(f"drawn after {time.process_time() - started:,.0f} s", flush=True)
    values = np.stack(label(game, drawn, table))
    plies = np.array([len(moves) for moves in drawn], np.uint8)
    to_lose = ((values != ILLEGAL) & (values < values.max(1, keepdims=True))).any(1)
    buffer = io.BytesIO()
    np.savez_compressed(
        buffer,
        actions=np.concatenate([np.array(moves, np.uint8) for moves in drawn]),
        plies=plies,
        values=values,
        positions_per_ply=np.bincount(plies, minlength=game.max_plies),
        share_with_something_to_lose=to_lose.mean(),
        seed=arguments.seed,
    )
    write_atomically(out, buffer.getvalue(), mode=0o644)
    print(f"{out}: {len(drawn)} positions, {to_lose.mean():.1%} with something to lose, {buffer.tell():,} bytes,")
    print(f"after {time.process_time() - started:,.0f} s of one core")


if __name__ == "__main__":
    main()
