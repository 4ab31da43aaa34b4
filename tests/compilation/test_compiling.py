"""Messages about compiling: with an empty cache what and how far, with a full one nothing."""

import re
from pathlib import Path

import pytest
from numba.core import event

from keima.compilation.progress import find_part_of_program, report_compiling
from keima.compilation.shared_cache import WAIT
from keima.games.tic_tac_toe import tic_tac_toe
from keima.paths import CACHE
from tests.compilation.compiling import run_code

PLAY = """
from keima.compilation.progress import report_compiling
from keima.games import load_game
from keima.search import simulate  # is imported and not called

with report_compiling(print):
    game = load_game("tic_tac_toe")
    print(game.legal_actions(game.initial_state()).size, "actions")
"""

NAME = """
from keima.compilation.decorators import FunctionIdentity

print(FunctionIdentity.from_function(lambda: 0).unique_name)
"""


@pytest.mark.medium
def test_each_part_is_reported_once_if_it_was_never_compiled(tmp_path: Path) -> None:
    *parts, played = run_code(PLAY, tmp_path)
    assert played == "9 actions"
    assert parts and len({part.split(" (")[0] for part in parts}) == len(parts)
    for number, part in enumerate(parts, 1):
        assert (found := re.fullmatch(r"compiling ([a-z0-9 -]+) \((\d+) of up to (\d+)\)", part)), part
        assert int(found[2]) == number < int(found[3])  # parts that are not called also count
    assert run_code(PLAY, tmp_path) == ["9 actions"]


def test_what_another_process_compiles_is_reported_too() -> None:
    reports: list[str] = []
    with report_compiling(reports.append), event.trigger_event(WAIT, data=tic_tac_toe):
        assert [report.split(" (")[0] for report in reports] == ["compiling tic tac toe"]


def test_a_user_s_game_is_a_part_with_its_own_name() -> None:
    assert find_part_of_program("keima_own.my_othello_1a2b3c4d5e6f") == "my othello"
    assert find_part_of_program("keima.games.go.rules") == "go"
    assert find_part_of_program("somewhere.else") == ""


@pytest.mark.medium
def test_machine_code_has_other_names_in_every_process() -> None:
    """Otherwise a process that loads one game on two boards from the cache calls the code of one for the other."""
    first, second = (run_code(NAME, CACHE) for _ in range(2))
    assert first and second and first != second
