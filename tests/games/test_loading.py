"""A game is imported, and thereby compiled, only where it is played."""

import subprocess
import sys

import pytest

from keima import games
from keima.games import GAMES
from tests.sources import ROOT

PLAYED = dict(GAMES)
PROGRAMS = (  # that play any game
    "start_main",
    "train_distributed",
    "train_ppo_lstm",
    "keima.cli.reports.audit",
    "keima.cli.playing.benchmark",
    "keima.cli.training.train_multi_gpu",
    "keima.cli.reports.results",
    "keima.worker.loop",
)


def imported_by(code: str) -> set[str]:
    """Return the modules that a new process has imported after running this."""
    line = [sys.executable, "-c", f"{code}\nimport sys\nfor name in list(sys.modules): print(name)"]
    return set(subprocess.run(line, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split())


def of_games(modules: set[str]) -> set[str]:
    return {
        module
        for module in modules
        if module in PLAYED.values() or module in {"keima.games.go.board", "keima.games.chess.moves"}
    }


def test_the_games_are_named_without_numba_or_numpy() -> None:
    assert not imported_by("from keima.games import GAMES; assert 'chess' in GAMES") & {
        "numba",
        "numpy",
        "keima.games.game",
        *PLAYED.values(),
    }


@pytest.mark.medium
def test_programs_compile_a_game_only_when_they_load_it_and_no_other() -> None:
    code = f"import {', '.join(PROGRAMS)}\nimport sys\nassert 'keima.games.connect_four.rules' not in sys.modules\n"
    loaded = imported_by(f"{code}from keima.games import load_game\nload_game('connect_four')")
    assert of_games(loaded) == {"keima.games.connect_four.rules"}


def test_an_unknown_name_of_the_package_is_refused() -> None:
    with pytest.raises(AttributeError, match="no attribute 'chess_960'"):
        _ = games.chess_960  # type: ignore[attr-defined]
