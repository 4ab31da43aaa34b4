"""A run that begins on smaller boards: what is carried on, the clock, stops, and resuming."""

import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

import keima
from keima.base.reports.run_reports import IterationReport
from keima.base.run_lock import RunLock, RunLocked
from keima.cli.reports.audit import audit
from keima.coach import loop
from keima.coach.backends.backend import InlineBackend, SelfPlayBackend
from keima.coach.bounds import Bounds
from keima.config.commands import keima as keima_command
from keima.config.load import ConfigError, load_settings
from keima.config.schema import Settings
from keima.config.sections.cluster import DistributedSettings
from keima.config.sections.crowd import CrowdSettings
from keima.data.ledger import read_ledger
from keima.games import Game, load_game
from keima.learning.checkpoint import Checkpoints, read_checkpoint
from keima.learning.ranks.process_group import Ranks
from keima.networks.files.model import Model, canary_positions, describe_model
from keima.trainers.run import RunEnd, train_run
from keima.web.run_reader import RunReader
from tests.coach.coaching import Listener
from tests.programs import begun, called
from tests.small_run import NETWORK, small_settings
from tests.sources import ROOT

SIZES = ("size-5", "size-6")
SECONDS = 6.0  # of an iteration, on the tests' clock


class Watching(Listener):
    """Counts the time by iterations, and may stop the run after one of them."""

    def __init__(self) -> None:
        super().__init__()
        self.now, self.stop_after, self.closed = 0.0, 0, 0

    def iteration(self, report: IterationReport) -> None:
        super().iteration(report)
        self.now += SECONDS
        if len(self.reports) == self.stop_after:
            signal.raise_signal(signal.SIGINT)

    def close(self) -> None:
        self.closed += 1


@pytest.fixture
def watching(monkeypatch: pytest.MonkeyPatch) -> Watching:
    watching = Watching()

    def bounds(settings: Any, *, seconds: float, began: float, clock: Callable[[], float]) -> Bounds:
        return Bounds(settings, seconds=seconds, began=began, clock=lambda: watching.now)

    monkeypatch.setattr(loop, "Bounds", bounds)
    return watching


def settings(folder: Path, **game: Any) -> Settings:
    """Return settings for one iteration on 5 x 5 points, two on 6 x 6 and two on 7 x 7."""
    options = {"size": 7, "max_plies": 12}
    return small_settings(
        folder,
        run={"minutes": 0.5, "iterations": None},
        search={"num_simulations": 4},
        training={
            "keep_checkpoints": 20,
            "samples_per_position": 0.5,
            "games_per_iteration": 8,
            "learning_rate_schedule": "cosine",
            "warmup_steps": 0,
        },
        game={"name": "go", "options": options, "smaller": ["size=5@0.2", "size=6@0.6"], **game},
    )


def play_here(folder: Path, game: Game, settings: Settings, run_id: str, log_event: object) -> SelfPlayBackend:
    return InlineBackend(folder / "workers", game=game, settings=settings, run_id=run_id, cycles=20)


def train(folder: Path, watching: Watching, *, resume: bool = False, **changes: Any) -> RunEnd:
    return train_run(
        folder / "run", settings(folder), make_backend=play_here, resume=resume, observers=[watching], **changes
    )


def iterations_of(run_dir: Path) -> int:
    with read_ledger(run_dir) as ledger:
        return len(ledger.iterations())


def answers(run_dir: Path, checkpoint: int, game: Game) -> torch.Tensor:
    """Return what the averaged network of a checkpoint answers for positions of ``game``, built for its board."""
    saved = read_checkpoint(Checkpoints(run_dir / "checkpoints").paths()[checkpoint])
    model = Model(description=describe_model(game, NETWORK, 1), weights=saved.learner.tensors["average"])
    with torch.inference_mode():
        logits, values = model.build(game).eval()(torch.from_numpy(canary_positions(game)))
    return torch.cat([logits.flatten(), values])


@pytest.mark.trial
def test_each_board_has_its_part_of_the_time_and_goes_on_with_the_network_of_the_board_before(
    tmp_path: Path, watching: Watching
) -> None:
    end = train(tmp_path, watching)
    run_dir = tmp_path / "run"
    boards = [run_dir / "smaller" / "size-5", run_dir / "smaller" / "size-6", run_dir]
    assert [iterations_of(board) for board in boards] == [1, 2, 2]
    assert [report.seconds for report in watching.reports] == [0.0, 6.0, 12.0, 18.0, 24.0]
    assert end.coach.game.options["size"] == 7 and not end.stopped
    rates = [report.learner.learning_rate for report in watching.reports if report.learner]
    assert len(rates) > 3 and rates == sorted(rates, reverse=True), "it falls over the run, not over each board"
    for before, after, size in zip(boards, boards[1:], (6, 7), strict=False):
        game = load_game("go", size=size, max_plies=12)
        learned, begun, gone_on = answers(before, -1, game), answers(after, 0, game), answers(after, -1, game)
        assert torch.equal(learned, begun) and not torch.equal(begun, gone_on)
    for board, size in zip(boards, (5, 6, 7), strict=True):
        assert not audit(board).problems
        with read_ledger(board) as ledger:
            assert ledger.options["size"] == size
            assert sum(row.games for row in ledger.received_batches()) > 0
    told = [event for event in watching.events if "size=" in event]
    assert len(told) == 3
    assert "size=5 until 0.1 minutes" in told[0] and "size=6 until 0.3 minutes" in told[1]
    assert "own board from now on" in told[2] and "size=6" in told[2]
    assert watching.closed == 1, "observers are closed once, at the end"


@pytest.mark.trial
@pytest.mark.parametrize(
    ("stop_after", "done"),
    [
        pytest.param(1, [1, 0, 0], marks=pytest.mark.slow),
        (2, [1, 1, 0]),
        pytest.param(4, [1, 2, 1], marks=pytest.mark.slow),
    ],
)
def test_a_stopped_run_goes_on_with_the_board_that_was_under_way(
    tmp_path: Path, watching: Watching, stop_after: int, done: list[int]
) -> None:
    def iterations() -> list[int]:
        boards = [tmp_path / "run" / "smaller" / name for name in SIZES]
        return [iterations_of(board) if board.exists() else 0 for board in (*boards, tmp_path / "run")]

    watching.stop_after = stop_after
    assert train(tmp_path, watching).stopped
    assert watching.closed == 1
    assert iterations() == done
    assert not audit(tmp_path / "run").problems
    assert RunReader(tmp_path / "run").read_curves() and not RunReader(tmp_path / "run").read_state()["running"]
    with pytest.raises(ValueError, match="holds a run already"):
        train(tmp_path, watching)
    watching.stop_after = 0
    assert not train(tmp_path, watching, resume=True).stopped
    assert iterations() == [1, 2, 2]
    assert [report.seconds for report in watching.reports] == [0.0, 6.0, 12.0, 18.0, 24.0]
    assert train(tmp_path, watching, resume=True).report is None, "it is finished"


@pytest.mark.trial
def test_a_board_that_was_killed_before_its_first_weights_gets_those_of_the_board_before(
    tmp_path: Path, watching: Watching
) -> None:
    watching.stop_after = 2
    train(tmp_path, watching)
    shutil.rmtree(tmp_path / "run" / "smaller" / "size-6" / "checkpoints")
    watching.stop_after, watching.now = 3, SECONDS
    train(tmp_path, watching, resume=True)
    game = load_game("go", size=6, max_plies=12)
    run_dir = tmp_path / "run" / "smaller"
    assert torch.equal(answers(run_dir / "size-5", -1, game), answers(run_dir / "size-6", 0, game))


@pytest.mark.medium
def test_nobody_else_can_work_on_the_run_while_it_is_on_a_smaller_board(tmp_path: Path, watching: Watching) -> None:
    def refuse(folder: Path, *arguments: Any) -> SelfPlayBackend:
        for held in (tmp_path / "run", folder):
            with pytest.raises(RunLocked):
                RunLock(held)
        assert load_settings(tmp_path / "run" / "config.yaml").game.smaller, "a resumed run has them"
        raise NotImplementedError

    with pytest.raises(NotImplementedError):
        train_run(tmp_path / "run", settings(tmp_path), make_backend=refuse, observers=[watching])
    assert watching.closed == 1


def test_what_cannot_work_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    config = tmp_path / "small.yaml"
    config.write_text(yaml.safe_dump(settings(tmp_path, smaller=["size=4@0.5"]).model_dump(mode="json")))
    with pytest.raises(ConfigError, match=r"line \d+: game.smaller: .*size must be from 5 to 19, not 4"):
        keima.train(config, run_dir=tmp_path / "run")
    with pytest.raises(ValueError, match=r"game.smaller: .*torchrun.* use training.learner.ranks"):
        train_run(tmp_path / "run", settings(tmp_path), make_backend=play_here, present=Ranks(world_size=2))
    crowd = settings(tmp_path).model_copy(
        update={"distributed": DistributedSettings(enabled=True, crowd=CrowdSettings())}
    )
    with pytest.raises(ValueError, match=r"game.smaller: machines that join by a link cannot"):
        train_run(tmp_path / "run", crowd, make_backend=play_here)
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
@pytest.mark.trial
def test_a_run_of_keima_train_learns_hex_on_three_boards(tmp_path: Path) -> None:
    document = small_settings(tmp_path).model_dump(mode="json")
    document["run"] |= {"minutes": 1.0, "iterations": None}
    document["game"] = {"module": str(ROOT / "games" / "hex.py"), "options": {"size": 5}}
    document["game"]["smaller"] = ["size=3@0.3", "size=4@0.6"]
    config, run_dir = tmp_path / "hex.yaml", tmp_path / "run"
    config.write_text(yaml.safe_dump(document))
    with begun("start_main.py", "--config", config, "--run-dir", run_dir) as process:
        while not list(run_dir.glob("smaller/size-4/progress.json")):
            assert process.poll() is None
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        said, _ = process.communicate()
    assert process.returncode == 130 and keima_command(f"resume {run_dir}") in said
    called("start_main.py", "--run-dir", run_dir, "--resume")
    for board in (run_dir / "smaller" / "size-3", run_dir / "smaller" / "size-4", run_dir):
        assert not audit(board).problems
    assert keima.load_network(run_dir).game.options == {"size": 5, "swap": False}
