"""``keima plan``: before a run, and for one that has begun."""

import re
from pathlib import Path

import pytest

from keima.cli.training.plan import main
from keima.coach.forecast import count_compute, count_earlier_compute, make_elo_law, make_laws, read_laws
from keima.coach.planning import find_first_beating, list_remarks
from keima.config.load import load_settings, save_resolved
from keima.data.ledger import open_ledger
from keima.games import load_game
from keima.games.authoring.check import GameReport

CONFIG = "run: {name: mine, minutes: 60}\ngame: {name: tic_tac_toe}\n"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def make_run(folder: Path, *, iterations: int = 10, beats_random: bool = True) -> Path:
    """A run of an hour, half of which is over. Its versions gain 100 Elo each time that what is played doubles; less is
    expected from then on.
    """
    folder.mkdir(parents=True)
    (folder / "mine.yaml").write_text(CONFIG)
    save_resolved(load_settings(folder / "mine.yaml"), folder)
    with open_ledger(folder, load_game("tic_tac_toe")) as ledger:
        for number in range(1, iterations + 1):
            report = {"seconds": 180.0 * number, "total_games": 100 * number, "total_positions": 800 * number}
            ledger.add_iteration(number, report | {"model_version": number, "evaluation": None})
        if beats_random:
            for version in (2, 4, 8):
                ledger.add_match(f"model-{version:06d}", "random", wins=100, draws=0, losses=0, num_simulations=8)
            for second, first in ((2, 4), (4, 8)):
                names = f"model-{first:06d}", f"model-{second:06d}"
                ledger.add_match(*names, wins=640, draws=0, losses=360, num_simulations=8)
    return folder


def begin_folder(folder: Path) -> Path:
    folder.mkdir(parents=True)
    return folder


def read_gains(text: str) -> list[int]:
    """Return the gains in Elo of a table."""
    return [int(gain) for gain in re.findall(r"\+(\d+) ± \d+", text)]


def test_a_run_that_has_begun_is_continued_by_its_own_curve(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_run(here / "runs" / "mine")
    assert main(["mine"]) == 0
    text = capsys.readouterr().out
    assert "runs/mine: 30 min 00 s, 1,000 games so far" in text and "Elo above model 8" in text
    gains = read_gains(text)
    assert len(gains) == 3 and gains == sorted(gains) and 20 < gains[-1] - gains[-2] < 90
    assert "Another hour would add" in text
    assert main(["mine", "--hours", "8"]) == 0
    assert "8 h 00 min" in capsys.readouterr().out
    assert main(["mine", "--hours", "0.1"]) == 2
    assert "has run for 30 min 00 s already" in capsys.readouterr().err
    assert main(["mine", "--set", "search.num_simulations=8"]) == 2
    assert "give only --hours" in capsys.readouterr().err


def test_before_a_network_beats_a_random_player_no_time_adds_elo() -> None:
    law = make_elo_law(30.0)
    first, last = list_remarks(law, hours=0.1, compute=0.01, machines=1)
    assert first.startswith("Another hour would add about 0 Elo") and "From about" in last
    (hours,) = re.findall(r"about (\d+) hours", last)
    assert int(hours) >= 10, "which is when it beats a random player"


def test_a_run_without_a_strength_says_what_is_missing(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_run(here / "runs" / "weak", beats_random=False)
    assert main(["weak"]) == 2
    assert "must beat a random player first" in capsys.readouterr().err
    silent = make_run(here / "runs" / "silent", beats_random=False) / "config.yaml"
    silent.write_text(re.sub("rating_games: [0-9]+", "rating_games: 0", silent.read_text()))
    assert main(["silent"]) == 2
    assert "evaluation.rating_games is 0" in capsys.readouterr().err
    make_run(here / "runs" / "new", iterations=0, beats_random=False)
    assert main(["new"]) == 2
    assert "has not finished an iteration" in capsys.readouterr().err


def test_what_a_run_has_played_on_a_smaller_board_counts_as_compute_by_its_points(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_run(here / "runs" / "mine")
    assert count_earlier_compute(run) == 0 and main(["mine"]) == 0
    gains = read_gains(capsys.readouterr().out)
    with open_ledger(begin_folder(run / "smaller" / "size-2"), load_game("go", size=5)) as ledger:
        row = {"seconds": 60.0, "total_games": 100, "total_positions": 3200, "model_version": 1, "evaluation": None}
        ledger.add_iteration(1, row)
    assert count_earlier_compute(run) == count_compute(3200, 25)
    assert main(["mine"]) == 0 and read_gains(capsys.readouterr().out) != gains


def test_a_run_that_began_on_smaller_boards_says_nothing_of_others(here: Path) -> None:
    run, game = make_run(here / "runs" / "mine"), load_game("tic_tac_toe")
    assert read_laws([run], game) != make_laws(game) and find_first_beating(run, game)
    config = run / "config.yaml"
    config.write_text(re.sub(r"smaller: \[\]", "smaller: [size=2@0.1]", config.read_text()))
    assert read_laws([run], game) == make_laws(game) and not find_first_beating(run, game)


@pytest.mark.medium
def test_before_a_run_several_lengths_are_compared(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["tic_tac_toe", "--hours", "0.1"]) == 0
    alone = capsys.readouterr().out
    assert len(re.findall(r"Elo [\d,]+ ± \d+", alone)) == 5 and "should play sensibly after" in alone
    assert not list(here.iterdir()), "nothing is written"
    make_run(here / "runs" / "mine")
    known = GameReport(name="tic_tac_toe", mean_plies=7.6, branching=5)
    monkeypatch.setattr("keima.coach.proposal.examine_in_process", lambda *arguments, **options: known)
    assert main(["tic_tac_toe", "--hours", "0.1"]) == 0
    assert "earlier runs of this game" in capsys.readouterr().out


@pytest.mark.medium
@pytest.mark.slow
def test_scores_are_only_foretold_once_they_are_measured(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["twenty48", "--hours", "0.1"]) == 0
    assert "only foretold in games of two players" in capsys.readouterr().out


@pytest.mark.parametrize("what", ["nothing.py", "nothing.yaml", "nothing"])
def test_what_is_not_there_is_named(what: str, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        code = main([what])
    except SystemExit as end:
        code = int(str(end.code))
    assert code == 2 and "nothing" in capsys.readouterr().err
