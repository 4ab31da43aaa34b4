"""A recorded game in the terminal, one position at a time."""

import contextlib
import os
import select
import sys
import termios
import tty
from collections.abc import Callable, Iterator

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from keima.base.reports.formats import FAINT, GOOD, TITLE, format_percent, format_score
from keima.base.reports.text import printable_line
from keima.report.games.game_view import GameView, PositionView

MOVES_SHOWN = 6  # of a policy
BAR = 24  # cells of a move with a share of 1
LEAP = 10  # positions
ESCAPE_SECONDS = 0.05  # for the rest of a key's sequence
KEY_HELP = "→ space n: next   ← p: back   ↓ ↑ PgDn PgUp: ten   Home End: first, last   q: quit"
KEY_COMMANDS = {
    "\x1b[C": 1, " ": 1, "n": 1, "l": 1, "\r": 1, "\n": 1,
    "\x1b[D": -1, "p": -1, "h": -1, "b": -1, "\x7f": -1,
    "\x1b[B": LEAP, "\x1b[6~": LEAP, "\x1b[A": -LEAP, "\x1b[5~": -LEAP,
    "\x1b[H": -(10**9), "\x1b[1~": -(10**9), "g": -(10**9), "\x1b[F": 10**9, "\x1b[4~": 10**9, "G": 10**9,
}  # fmt: skip


def title_line(view: GameView) -> Text:
    """Return the title of a game."""
    first, last = view.models
    models = f"model {first}" if first == last else f"models {first} to {last}"
    return Text.assemble(
        (f"{view.game}, game {view.number:,}", TITLE), f"  by {printable_line(view.worker)}, {models}: {view.result}"
    )


def moment_lines(view: GameView, index: int) -> list[Text]:
    """Return the lines of a position: board, move, value and policy."""
    moment = view.moments[index]
    lines = [Text(f"position {index + 1:,} of {len(view.moments):,}, after {moment.ply:,} plies", FAINT), Text()]
    lines += [Text(line) for line in moment.board.splitlines()]
    lines.append(Text())
    if not moment.move:
        return [*lines, Text(f"The end: {view.result}.", TITLE)]
    mover = "" if moment.score is not None else f"Player {moment.player + 1} "
    how = ", drawn at random" if moment.drawn else ""
    answer = f", then {' '.join(moment.outcomes)}" if moment.outcomes else ""
    lines.append(Text.assemble(f"{mover}plays " if mover else "Plays ", (moment.move, TITLE), f"{how}{answer}"))
    lines += [Text(expectation_text(moment))] if moment.value is not None else []
    for name, share in moment.policy[:MOVES_SHOWN]:
        lines.append(Text.assemble(f"  {name:<8}{format_percent(share):>8}  ", ("█" * round(share * BAR), GOOD)))
    return lines


def expectation_text(moment: PositionView) -> str:
    """Return search's expectation, in words."""
    assert moment.value is not None
    if moment.score is not None:
        return f"Score {format_score(moment.score)}, and expects {format_score(moment.value)} more"
    return f"Expects to win {format_percent((1 + moment.value) / 2)}"


def print_game(view: GameView, console: Console) -> None:
    """Print the whole game, one position after the other."""
    console.print(title_line(view), soft_wrap=True)
    for index in range(len(view.moments)):
        console.print(Text("-" * 40, FAINT))
        for line in moment_lines(view, index):
            console.print(line, soft_wrap=True)


def step_through(view: GameView, console: Console, read_key: Callable[[], str], *, index: int = 0) -> None:
    """Show one position at a time, until q is pressed or the input ends."""
    with Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            live.update(
                Group(title_line(view), *moment_lines(view, index), Text(), Text(KEY_HELP, FAINT)), refresh=True
            )
            key = read_key()
            if key in ("", "q", "\x03", "\x04"):
                return
            index = min(max(index + KEY_COMMANDS.get(key, 0), 0), len(view.moments) - 1)


@contextlib.contextmanager
def open_keyboard() -> Iterator[Callable[[], str]]:
    """Within the block, read keys one by one; the function returns the next key's characters, or nothing at the input's
    end.
    """
    number = sys.stdin.fileno()
    before = termios.tcgetattr(number)

    def read() -> str:
        key = os.read(number, 1)
        while key.startswith(b"\x1b") and select.select([number], [], [], ESCAPE_SECONDS)[0]:
            key += os.read(number, 1)
            if key[-1:].isalpha() or key[-1:] == b"~":
                break
        return key.decode(errors="replace")

    try:
        tty.setcbreak(number)
        yield read
    finally:
        termios.tcsetattr(number, termios.TCSADRAIN, before)
