"""A report on a game for its author: whether it fulfils the contract, and statistics of random games.

``examine_in_process`` makes the report in a separate process with a time limit, because a kernel that loops forever or
writes out of bounds takes its process down::

    python -m keima.games.authoring.check '{"name": "tic_tac_toe", "options": {}, "games": 24, "seconds": 60}'

is that process. It writes the report as JSON on standard output.
"""

import faulthandler
import hashlib
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from keima.base.reports.formats import format_options
from keima.compilation.sources import imported_sources
from keima.config.own_modules import path_of, stem_of
from keima.games import CHANCE, Game, load_game
from keima.games.authoring.contract import ContractBroken, check_game, is_symmetry
from keima.games.authoring.plain import PlainGame, PlainGameError, is_end_by_result, make_move_table, permute_board
from keima.games.authoring.plain_kernels import make_first_state
from keima.games.game import States, board_symmetries
from keima.games.perft import count_perft
from keima.games.playouts import play_random_games
from keima.paths import CACHE, PACKAGE, program_of, with_code_on_path

CHECKED_FOLDER = CACHE / "checked"  # an empty file for each game that keeps the contract
PERFT_LEAVES = 300_000  # counts go as deep as fits this
SPEED_SECONDS = 1.0
SUDDEN_POSITIONS = 300
CUT_OFTEN_SHARE = 0.5  # a share of games that end at max_plies that their author should know of
SAMPLE_BOARDS = 8  # of a longer game, at most
# Seconds that the process needs for its imports, and to report where it hangs.
STARTUP_SECONDS, SHUTDOWN_SECONDS = 20.0, 10.0
PATIENCE = 5.0  # times the limit, which is one of processor time, until a game that only waits is stopped
BROKEN_END = "look for an endless loop"
FRAME = re.compile(r'^  File "([^"]+)", line (\d+) in (\S+)', re.MULTILINE)
KERNELS = {  # by the function that calls it
    "play": "step",
    "_check_step": "step",
    "_check_legal_actions": "legal_actions",
    "_check_chance_outcomes": "chance_outcomes",
    "_check_returns": "returns",
    "_check_observation": "observe",
}


@dataclass(frozen=True, kw_only=True)
class GameReport:
    """The findings about a game. If ``broken`` is empty, it fulfils the contract, and the other fields are set."""

    name: str
    players: int = 2
    broken: str = ""  # what its author should mend
    notes: list[str] = field(default_factory=list)  # what its author should know
    perft: list[int] = field(default_factory=list)  # games of 1, 2, ... plies; none in games of chance
    games: int = 0  # random ones
    mean_plies: float = 0.0
    mean_outcomes: float = 0.0  # of chance, among the plies
    longest: int = 0
    max_plies: int = 0
    branching: float = 0.0  # legal actions, on average
    most_legal: int = 0
    first_wins: float = 0.0  # shares of two-player games
    draws: float = 0.0
    second_wins: float = 0.0
    mean_returns: list[float] = field(default_factory=list)  # of each player; in a one-player game, the mean score
    cut: float = 0.0  # share of games that have max_plies
    sudden: float = 0.0  # share of positions, with a choice, in which some moves end the game and others do not
    moves_per_second: float = 0.0
    symmetries: int = 1
    further_symmetries: list[str] = field(default_factory=list)  # that would hold
    sample: list[str] = field(default_factory=list)  # a game, board by board

    @property
    def mean_moves(self) -> float:
        """The plies of a game at which a player decides."""
        return self.mean_plies - self.mean_outcomes


class GameDoesNotAnswer(ValueError):
    """A game could not be checked: it does not answer, or ends its process."""


@dataclass
class _RandomGame:
    """A random game."""

    moves: list[str] = field(default_factory=list)
    boards: list[str] = field(default_factory=list)
    legal: list[int] = field(default_factory=list)  # how many legal actions there were
    looks: list[tuple[bytes, bytes]] = field(default_factory=list)  # what the network sees then, and the legal actions
    returns: list[float] = field(default_factory=list)
    cut: bool = False  # it ended because it had max_plies, as far as can be told


def examine_game(
    name: str, options: dict[str, Any], *, games: int = 24, seed: int = 0, contract_only: bool = False
) -> GameReport:
    """Load a game, by its name or a user's file, check it against the contract, and play ``games`` random games."""
    try:
        game = load_game(name, **options)
        check_game(game, games=games, seed=seed)
    except (ValueError, ContractBroken) as error:
        return GameReport(name=name, broken=str(error))
    except Exception as error:
        return GameReport(name=name, broken=_describe_error(error))
    if contract_only:
        return GameReport(name=game.name)
    random = np.random.default_rng(seed)
    played = [_play_random_game(game, random) for _ in range(games)]
    plies = [len(one.moves) for one in played]
    legal = [count for one in played for count in one.legal]
    returns = np.array([one.returns for one in played])
    first = returns[:, 0]
    cut = statistics.fmean(one.cut for one in played)
    further = find_further_symmetries(game)
    return GameReport(
        name=game.name,
        players=game.num_players,
        notes=_list_notes(game, cut, further, find_hidden_difference(game, played)),
        perft=count_perft_by_depth(game),
        games=games,
        mean_plies=statistics.fmean(plies),
        mean_outcomes=statistics.fmean(len(one.moves) - len(one.legal) for one in played),
        longest=max(plies),
        max_plies=game.max_plies,
        branching=statistics.fmean(legal),
        most_legal=max(legal),
        first_wins=float((first > 0).mean()),
        draws=float((first == 0).mean()),
        second_wins=float((first < 0).mean()),
        mean_returns=returns.mean(0).tolist(),
        cut=cut,
        sudden=measure_sudden_share(game, random),
        moves_per_second=measure_moves_per_second(game),
        symmetries=len(game.point_symmetries),
        further_symmetries=further,
        sample=_show_sample(min(played, key=lambda one: abs(len(one.moves) - statistics.fmean(plies)))),
    )


def _describe_error(error: Exception) -> str:
    """Return an error that an author's function raised, with its line."""
    frames = traceback.extract_tb(error.__traceback__)
    last = next((frame for frame in reversed(frames) if _is_authors_code(frame.filename)), frames[-1])
    return f"{Path(last.filename).name}, line {last.lineno}: {type(error).__name__}: {error}; fix this line"


def _is_authors_code(file: str) -> bool:
    """Return whether code in this file is the author's, rather than Keima's, Python's, or an installed package's."""
    inside = any(folder in Path(file).parents for folder in (PACKAGE, Path(sys.prefix), Path(sys.base_prefix)))
    return not inside and not file.startswith("<")


def _play_random_game(game: Game, random: np.random.Generator) -> _RandomGame:
    state, played = game.initial_state(), _RandomGame()
    while not game.terminal(state):
        played.boards.append(game.render(state))
        if game.current_player(state) == CHANCE:
            action = _draw_outcome(game, state, random)
            played.moves.append(game.outcome_name(action))
        else:
            legal = game.legal_actions(state)
            action = int(random.choice(legal))
            played.legal.append(len(legal))
            played.looks.append((game.observe(state).tobytes(), legal.tobytes()))
            played.moves.append(game.action_name(action))
        game.play(state, action)
    played.boards.append(game.render(state))
    played.returns = game.returns(state).tolist()
    told = isinstance(game, PlainGame) and is_end_by_result(game, state, action)
    played.cut = len(played.moves) >= game.max_plies and not told
    return played


def _draw_outcome(game: Game, state: States, random: np.random.Generator) -> int:
    outcomes, likely = game.chance_outcomes(state)
    return int(random.choice(outcomes, p=likely / likely.sum(dtype=np.float64)))


def find_hidden_difference(game: Game, played: Sequence[_RandomGame]) -> str:
    """Return which two positions look the same to the network but have different legal moves; empty if none do."""
    if game.num_outcomes:
        return ""
    known = dict[bytes, tuple[bytes, str]]()
    for one in played:
        for ply, (look, legal) in enumerate(one.looks):
            place = f"after the moves {' '.join(one.moves[:ply])}" if ply else "at the start"
            other, there = known.setdefault(look, (legal, place))
            if other != legal:
                return f"one {there}, one {place}"
    return ""


def _list_notes(game: Game, cut: float, further: list[str], hidden: str) -> list[str]:
    notes = []
    if hidden:
        notes.append(
            f"two positions look the same to the network, but have different legal moves: {hidden}; "
            "let the planes show what differs"
        )
    if cut >= CUT_OFTEN_SHARE:
        notes.append(f"{cut:.0%} of random games end because they have max_plies = {game.max_plies}; is it too low?")
    if further:
        notes.append(f"these symmetries hold too, and would multiply the training data: {', '.join(further)}")
    return notes


def count_perft_by_depth(game: Game) -> list[int]:
    """Return the number of ways to play 1, 2, 3 ... plies, as deep as counting is quick; none in games of chance."""
    counts: list[int] = []
    while game.num_outcomes == 0 and len(counts) < game.max_plies:
        growth = counts[-1] / counts[-2] if len(counts) > 1 and counts[-2] else counts[-1] if counts else 1
        if counts and (counts[-1] == 0 or counts[-1] * max(1.0, growth) > PERFT_LEAVES):
            break
        counts.append(count_perft(game, len(counts) + 1))
    return counts


def measure_moves_per_second(game: Game) -> float:
    """Return the number of moves that one core plays in random games in a second."""
    streams = np.ones(1, np.uint64)
    arguments = game.rules, game.start, game.num_actions, game.num_outcomes, streams
    play_random_games(*arguments, 1)
    moves, started = 0, time.process_time()
    while time.process_time() - started < SPEED_SECONDS:
        moves += play_random_games(*arguments, 10)
    return moves / (time.process_time() - started)


def _name_symmetries(height: int, width: int) -> dict[str, NDArray[np.int32]]:
    """Return all symmetries of a rectangle except the identity, by name."""
    board = np.arange(height * width, dtype=np.int32).reshape(height, width)
    views = {
        "left and right exchanged": board[:, ::-1],
        "top and bottom exchanged": board[::-1],
        "half a turn": board[::-1, ::-1],
        "a quarter turn": np.rot90(board),
        "a quarter turn back": np.rot90(board, 3),
        "rows and columns exchanged": board.T,
        "mirrored on the other diagonal": board[::-1, ::-1].T,
    }
    names = {view.tobytes(): name for name, view in views.items() if view.shape == (height, width)}
    tables = board_symmetries(height, width)
    return {names[table.tobytes()]: table for table in tables if table.tobytes() in names}


def find_further_symmetries(game: Game) -> list[str]:
    """Return the symmetries of a rectangle that are not declared, keep the start, and would hold in random games, by
    name.

    Positions made by other symmetries would hardly arise in play.
    """
    if game.num_outcomes:
        return []
    declared = {table.tobytes() for table in game.point_symmetries}
    return [
        name
        for name, points in _name_symmetries(game.height, game.width).items()
        if points.tobytes() not in declared and _is_symmetry(game, points)
    ]


def _is_symmetry(game: Game, points: NDArray[np.int32]) -> bool:
    try:
        actions = make_move_table(points[None], game.num_actions, game.observation_shape)[0]
    except PlainGameError:
        return False
    start = (
        make_first_state(permute_board(game.plain.board, points), game.num_players)
        if isinstance(game, PlainGame)
        else game.start
    )
    return np.array_equal(start, game.start) and is_symmetry(game, points, actions, start)


def measure_sudden_share(game: Game, random: np.random.Generator) -> float:
    """Return the share of random games' positions, with a choice, in which some moves end the game, others not."""
    counted = found = 0
    while counted < SUDDEN_POSITIONS:
        state, before = game.initial_state(), counted
        while not game.terminal(state):
            if game.current_player(state) == CHANCE:
                game.play(state, _draw_outcome(game, state, random))
                continue
            legal = game.legal_actions(state)
            if len(legal) > 1:
                ends = sum(_ends_game(game, state, int(action)) for action in legal)
                counted, found = counted + 1, found + (0 < ends < len(legal))
            game.play(state, int(random.choice(legal)))
        if counted == before:  # there never is a choice
            break
    return found / max(counted, 1)


def _ends_game(game: Game, state: States, action: int) -> bool:
    after = state.copy()
    game.play(after, action)
    return game.terminal(after)


def _show_sample(played: _RandomGame) -> list[str]:
    """Return the moves of a game, and some of its boards."""
    last = len(played.boards) - 1
    shown = sorted({round(at) for at in np.linspace(0, last, min(SAMPLE_BOARDS, last + 1))})
    lines: list[str] = []
    for at, before in zip(shown, [0, *shown], strict=False):
        moves = " ".join(played.moves[before:at])
        lines += [f"{moves}:" if moves else "The start:", played.boards[at], ""]
    return lines


def check_game_once(name: str, options: dict[str, Any], *, say: Callable[[str], None], seconds: float = 300.0) -> None:
    """Check a user's game against the contract in a process of its own, once on this machine.

    Args:
        name: of the game in this machine's store.
        say: is told when the check begins.

    Raises:
        GameDoesNotAnswer: it breaks the contract, does not answer, or ends its process; the text says what to do.
    """
    rules = sorted(imported_sources(PACKAGE / "games" / "authoring" / "contract.py"))
    what = json.dumps([options, *(file.read_text(encoding="utf-8") for file in rules)], sort_keys=True)
    mark = CHECKED_FOLDER / f"{name}-{hashlib.sha256(what.encode()).hexdigest()[:16]}"
    if mark.exists():
        return
    which = f" with {format_options(options)}" if options else ""
    say(f"checking the rules of {stem_of(name)}{which}, once on this machine")
    report = examine_in_process(str(path_of(name)), options, games=8, seconds=seconds, contract_only=True)
    if report.broken:
        raise GameDoesNotAnswer(report.broken)
    with suppress(OSError):  # it is checked again next time
        mark.parent.mkdir(parents=True, exist_ok=True)
        mark.touch()


def examine_in_process(
    name: str,
    options: dict[str, Any],
    *,
    games: int = 24,
    seconds: float = 120.0,
    contract_only: bool = False,
) -> GameReport:
    """Call ``examine_game`` in a separate process.

    Raises:
        GameDoesNotAnswer: it did not answer within ``seconds`` of processor time, or crashed; the text says where.
    """
    request = {"name": name, "options": options, "games": games, "seconds": seconds, "contract_only": contract_only}
    command = [*program_of("keima.games.authoring.check"), json.dumps(request)]
    try:
        done = subprocess.run(
            command,
            env=with_code_on_path(os.environ),
            capture_output=True,
            text=True,
            timeout=PATIENCE * seconds + STARTUP_SECONDS + SHUTDOWN_SECONDS,
        )
    except subprocess.TimeoutExpired:
        raise GameDoesNotAnswer(f"{name} does not answer within {PATIENCE * seconds:g} s; {BROKEN_END}") from None
    if done.returncode == 0:
        return GameReport(**json.loads(done.stdout))
    place = _find_stop_place(done.stderr)
    if done.returncode == -signal.SIGPROF or "Timeout" in done.stderr:
        raise GameDoesNotAnswer(f"{place or name} does not end within {seconds:g} s; {BROKEN_END}")
    if not place:
        lines = done.stderr.strip().splitlines()
        raise GameDoesNotAnswer(f"{name} ends its process: {lines[-1] if lines else f'exit code {done.returncode}'}")
    raise GameDoesNotAnswer(
        f"{place} crashes with signal {-done.returncode}; look for an index out of bounds, which compiled code does "
        "not check"
    )


def _find_stop_place(text: str) -> str:
    """Return where a process was when it was stopped, from the traceback that it wrote: a line of the author, or a
    kernel.
    """
    for file, line, function in FRAME.findall(text):
        if _is_authors_code(file):
            return f"{Path(file).name}, line {line}: {function}"
        if function in KERNELS or (Path(file).name == "game.py" and not function.startswith("_")):
            return f"the kernel {KERNELS.get(function, function)}"
    return ""


def main() -> int:
    """Examine the game that the command line names, and stop if it does not terminate."""
    request = json.loads(sys.argv[1])
    seconds = request.pop("seconds")
    faulthandler.enable()
    # Processor time: a machine that is busy with something else does not make a game endless. The signal writes where
    # it is, even in compiled code, and then ends the process.
    faulthandler.register(signal.SIGPROF, all_threads=False, chain=True)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    faulthandler.dump_traceback_later(PATIENCE * seconds, exit=True)
    report = examine_game(**request)
    signal.setitimer(signal.ITIMER_PROF, 0.0)
    faulthandler.cancel_dump_traceback_later()
    sys.stdout.write(json.dumps(asdict(report)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
