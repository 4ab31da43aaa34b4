"""The guide's trainer: its call as the guide writes it, its requests to the Coach, and what it refuses."""

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from keima.base.run_lock import RunLock, RunLocked
from keima.cluster.local.worker_devices import Spread
from keima.coach.backends.backend import InlineBackend, SelfPlayBackend
from keima.config.load import load_settings
from keima.config.schema import Settings
from keima.games import Game
from keima.games.twenty48.rules import GameRules
from keima.networks.files.weights_file import load_weights
from keima.networks.zero_network import ZeroNetwork
from keima.trainers import run
from keima.trainers.parallel_zero import ParallelZeroTrainer
from keima.trainers.settings import default_settings, settings_for_workers, trainer_settings
from tests.coach.coaching import Listener
from tests.sources import ROOT

GUIDE = """
import sys
from zero.game import GameRules
from zeromodel import ZeroNetwork
from distributed import ParallelZeroTrainer, trainer_settings

rules = GameRules(3, 3)
model = ZeroNetwork(3, 3, 16, filters=8, blocks=1)
settings = trainer_settings(rules, {"run.directory": sys.argv[1], "training.device": "cpu"})
before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
trainer = ParallelZeroTrainer(model=model, rules=rules, num_workers=2, settings=settings)
report = trainer.train(epochs=1, games_per_epoch=4, batch_size=64, lr=0.001, simulations=2)
assert report.iteration == 1 and report.total_games >= 4 and report.learner.steps > 0
assert {worker.name for worker in report.workers} == {"local-1", "local-2"}
assert any((tensor != before[name]).any() for name, tensor in model.state_dict().items())
"""

Trainer = ParallelZeroTrainer


@pytest.mark.slow
@pytest.mark.trial
@pytest.mark.timeout(600)  # most of it compiling, the first time
def test_the_guide_s_program_runs_to_its_end_without_a_main_guard(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(GUIDE)
    command = [sys.executable, str(program), str(tmp_path / "runs")]
    ended = subprocess.run(
        command, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=550, check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    (run_dir,) = (tmp_path / "runs").iterdir()
    assert run_dir.name.startswith("twenty48-")
    assert (run_dir / "run.db").exists() and (run_dir / "coach.log").read_text()


def test_importing_distributed_skips_imports_that_only_the_trainer_needs() -> None:
    script = "import sys, distributed; assert not {'torch', 'numpy', 'training'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", script], cwd=ROOT, timeout=240, check=True)
    with pytest.raises(ImportError, match="ParallelZeroTrainers"):
        from keima.trainers.parallel_zero import ParallelZeroTrainers  # noqa: F401


class Alone:
    """Lets the trainer's games be played in this process, and sees what it requests."""

    def __init__(self) -> None:
        self.settings: list[Settings] = []
        self.spreads: list[Spread] = []
        self.watching = Listener()

    def processes(
        self, root: Path, *, game: Game, settings: Settings, run_id: str, log_event: object, spread: Spread
    ) -> SelfPlayBackend:
        self.settings.append(settings)
        self.spreads.append(spread)
        return InlineBackend(root, game=game, settings=settings, run_id=run_id, cycles=40)

    def observers(self, run_dir: Path) -> list[Listener]:
        return [self.watching]


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> Alone:
    alone = Alone()
    monkeypatch.setattr(run, "spread_processes", alone.processes)
    return alone


TINY = {"games_per_epoch": 2, "batch_size": 8, "simulations": 2}
RULES = GameRules(2, 2)


def tiny_network() -> torch.nn.Module:
    return ZeroNetwork(2, 2, 16, filters=4, blocks=1)


def tiny_settings(folder: Path, **overrides: Any) -> Settings:
    names = {"run.name": "tiny", "run.directory": str(folder), "training.device": "cpu"}
    return trainer_settings(RULES, names | overrides)


@pytest.fixture
def trainer(tmp_path: Path, alone: Alone) -> Trainer:
    checkpoints = tmp_path / "checkpoints"
    return Trainer(
        tiny_network(),
        RULES,
        3,
        settings=tiny_settings(tmp_path),
        checkpoint_dir=checkpoints,
        observers=alone.observers,
    )


def weights_of(trainer: Trainer) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in trainer.model.state_dict().items()}


def same(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.trial
def test_the_arguments_of_the_call_become_the_run_s_settings(trainer: Trainer, alone: Alone) -> None:
    report = trainer.train(epochs=1, games_per_epoch=5, batch_size=8, lr=0.01, simulations=3)
    (settings,) = alone.settings
    assert report is not None and report.iteration == settings.run.iterations == 1
    assert settings.training.games_per_iteration == 5
    assert (settings.training.batch_size, settings.training.learning_rate, settings.training.device) == (8, 0.01, "cpu")
    assert settings.search.num_simulations == 3
    assert (settings.network.blocks, settings.network.channels) == (1, 4)
    assert settings.self_play.workers == len(alone.spreads[0]) == 3
    assert [report.iteration for report in alone.watching.reports] == [1]


@pytest.mark.trial
def test_an_epoch_plays_exactly_its_games_with_one_network(tmp_path: Path, trainer: Trainer, alone: Alone) -> None:
    trainer.settings = tiny_settings(tmp_path, **{"self_play.device": "cpu"})
    trainer.train(epochs=3, games_per_epoch=5, batch_size=8, simulations=2)
    assert [(report.self_play.games, report.total_games) for report in alone.watching.reports] == [
        (5, 5),
        (5, 10),
        (5, 15),
    ]
    assert alone.settings[0].self_play.device == "cpu"


@pytest.mark.trial
def test_a_run_without_an_end_can_be_stopped(trainer: Trainer, alone: Alone, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alone.watching, "iteration", lambda report: signal.raise_signal(signal.SIGINT))
    report = trainer.train(epochs=None, **TINY)
    assert report is not None and report.iteration == 1
    assert trainer.stopped
    assert alone.settings[0].training.learning_rate_schedule == "constant"


def test_omitted_arguments_are_those_of_the_shipped_experiment() -> None:
    shipped = load_settings(ROOT / "configs" / "twenty48.yaml").model_dump()
    taken = default_settings(GameRules(3, 3))
    assert taken["game"]["options"]["height"] == 3
    assert all(taken[section] == shipped[section] for section in ("search", "self_play", "training"))


@pytest.mark.trial
def test_a_run_starts_from_the_model_s_weights_and_leaves_the_trained_ones_in_it(trainer: Trainer) -> None:
    before = weights_of(trainer)
    trainer.train(epochs=1, lr=1e-9, **TINY | {"games_per_epoch": 8})
    after = weights_of(trainer)
    assert not same(before, after)
    for name, tensor in before.items():
        if tensor.is_floating_point() and "running" not in name:
            torch.testing.assert_close(after[name], tensor, rtol=0, atol=1e-4)


@pytest.mark.trial
def test_the_trained_weights_are_written_for_other_programs(trainer: Trainer) -> None:
    trainer.train(epochs=1, **TINY)
    assert trainer.checkpoint_dir is not None
    assert [path.name for path in trainer.checkpoint_dir.iterdir()] == ["model_epoch_1.pth"]
    assert trainer.weights_file == trainer.checkpoint_dir / "model_epoch_1.pth"
    assert same(load_weights(trainer.weights_file), weights_of(trainer))


@pytest.mark.trial
def test_a_second_call_continues_the_run(trainer: Trainer, alone: Alone) -> None:
    trainer.train(epochs=1, **TINY)
    report = trainer.train(epochs=2, **TINY)
    assert report is not None and report.iteration == 2
    assert [report.iteration for report in alone.watching.reports] == [1, 2]


@pytest.mark.trial
@pytest.mark.slow
def test_another_trainer_continues_a_run_and_the_numbering_of_its_files(
    tmp_path: Path, trainer: Trainer, alone: Alone
) -> None:
    trainer.epochs_before = 50
    trainer.train(epochs=1, **TINY)
    another = Trainer(
        tiny_network(),
        RULES,
        1,
        settings=tiny_settings(tmp_path),
        resume=True,
        checkpoint_dir=tmp_path / "checkpoints",
        observers=alone.observers,
    )
    report = another.train(epochs=1, **TINY)
    assert report is None, "nothing was left to do"
    assert same(weights_of(another), weights_of(trainer))
    assert another.train(epochs=2, **TINY)
    assert another.weights_file == tmp_path / "checkpoints" / "model_epoch_52.pth"


@pytest.mark.trial
def test_a_run_neither_overwrites_another_one_nor_starts_while_its_trainer_runs(
    tmp_path: Path, trainer: Trainer, alone: Alone
) -> None:
    trainer.train(epochs=1, **TINY)
    before = weights_of(trainer)
    with pytest.raises(ValueError, match="holds a run already"):
        Trainer(tiny_network(), RULES, 1, settings=tiny_settings(tmp_path), observers=alone.observers).train(
            epochs=2, **TINY
        )
    with RunLock(trainer.run_dir), pytest.raises(RunLocked):
        trainer.train(epochs=2, **TINY)
    assert same(before, weights_of(trainer))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"lr": -1.0}, "training.learning_rate"),
        ({"games_per_epoch": 0}, "training.games_per_iteration"),
        ({"simulations": 0}, "search.num_simulations"),
        ({"epochs": 0}, "run.iterations"),
        ({"batch_size": 1}, "training.batch_size"),
    ],
)
def test_invalid_numbers_are_refused_before_anything_is_written(
    trainer: Trainer, changes: dict[str, float], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        trainer.train(**changes)  # type: ignore[arg-type]
    assert not trainer.run_dir.exists()


def test_invalid_settings_are_refused_with_their_key(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"run\.minutes"):
        tiny_settings(tmp_path, **{"run.minutes": -1.0})
    with pytest.raises(ValueError, match="simulation"):
        tiny_settings(tmp_path, **{"search.simulation": 5})


@pytest.mark.parametrize(
    "workers", [{"num_workers": 0}, {"num_workers": 2, "workers_per_gpu": 2}, {"workers_per_gpu": 0}]
)
def test_invalid_workers_are_refused(tmp_path: Path, workers: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="workers"):
        Trainer(tiny_network(), RULES, settings=tiny_settings(tmp_path), **workers).train(epochs=1)
    assert not (tmp_path / "tiny").exists()


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (torch.nn.Linear(2, 2), "make one with ZeroNetwork"),
        (ZeroNetwork(3, 3, 16, filters=8, blocks=1), "not those of a network"),
    ],
)
def test_a_model_that_does_not_fit_the_rules_is_refused(tmp_path: Path, model: torch.nn.Module, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Trainer(model, GameRules(4, 4), 1, settings=tiny_settings(tmp_path)).train(epochs=1)
    assert not (tmp_path / "tiny").exists()


def test_on_gpus_more_games_are_played_side_by_side() -> None:
    document = default_settings(GameRules(4, 4))
    document["training"]["games_per_iteration"] = 32
    on_cpu = settings_for_workers(document, Spread(devices=("",) * 8))
    on_gpus = settings_for_workers(document, Spread(devices=("0", "1") * 4))
    assert on_cpu.self_play.parallel_games == 16
    assert on_gpus.self_play.parallel_games == 64
    assert on_cpu.distributed.batch_size == 4
