"""Training with one process per device: the output agrees with the run's files, and no crash costs a finished game."""

import os
import re
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from keima.base.run_folder import STATS_NAME
from keima.cli.reports.audit import main as audit
from keima.cluster.local.worker_devices import DeviceSlot, device_slots
from keima.config.schema import Settings
from keima.data.ledger import read_ledger
from keima.data.receive import load_received
from keima.networks.files.weights_file import load_weights
from keima.report.files.run_files import StatsRow, read_stats
from keima.trainers import multi_gpu
from keima.trainers.multi_gpu import FINAL, make_synchronous_settings, train_on_devices
from keima.worker.spool import FILE, read_spool
from keima.worker.worker_folder import WorkerFolder
from tests.small_run import small_settings

SLOTS = device_slots("cpu,cpu", (), cores=1)
GAMES = 21
Say = Callable[[str], None]


def settings_in(
    folder: Path, *, iterations: int, games: int = GAMES, slots: tuple[DeviceSlot, ...] = SLOTS
) -> Settings:
    document = small_settings(folder.parent, run={"name": folder.name, "iterations": iterations}).model_dump()
    document["training"] |= {"games_per_iteration": games, "steps_per_model": 7, "batch_size": 32}
    document["distributed"]["worker_class"] = "training.worker.Worker"
    return make_synchronous_settings(document, slots)


def test_all_play_an_iteration_with_one_model_and_hand_over_games_by_the_hundred(tmp_path: Path) -> None:
    settings = settings_in(tmp_path / "run", iterations=1)
    assert not settings.training.asynchronous and settings.training.steps_per_model is None
    assert settings.distributed.batch_size == 100 and not settings.distributed.enabled
    assert (settings.self_play.workers, settings.training.device) == (2, "cpu")
    on_gpus = device_slots("0,1,2", ("0", "1", "2"), cores=1)
    assert settings_in(tmp_path / "run", iterations=1, slots=on_gpus).training.device == "cuda"


def numbers(line: str) -> list[float]:
    return [float(word) for word in re.findall(r"-?[0-9]+(?:\.[0-9]+)?", line)]


def check_iteration(said: list[str], row: StatsRow) -> None:
    """The lines of an iteration are in the guide's order and have the figures of the statistics file."""
    games, learner = row.self_play, row.learner
    assert learner is not None
    rule = "-" * 70
    assert said[:5] == [
        f"=== Iteration {row.iteration} ===",
        f"Generating {games.games} games...",
        "",
        f"Generating {games.games} games across 2 CPUs...",
        "Games per CPU: [11, 10]",
    ]
    done = [line for line in said if " | Total: " in line]
    assert said[5:9] == [rule, *done, rule]
    assert sorted(re.sub(r"^\[ *[0-9.]+s\] ", "", line).split(" |")[0] for line in done) == [
        "CPU 0: Completed 11 games",
        "CPU 1: Completed 10 games",
    ]
    assert [line.split(" | ")[1] for line in done] == ["Total: 1/2 CPUs done", "Total: 2/2 CPUs done"]
    assert done[1].endswith("Progress: 21/21 games")
    assert said[9:11] == [
        f"Completed {games.games} games in {games.seconds:.1f}s ({games.games_per_second:.1f} games/sec)",
        "",
    ]
    assert games.games_per_second == pytest.approx(games.games / games.seconds)
    figures = [games.games, games.mean_plies, games.first_player_wins, games.draws]
    assert numbers(said[11]) == pytest.approx(figures, abs=0.05)
    assert said[12:15] == [
        "Adding games to replay buffer...",
        f"Buffer size: {row.window_positions}",
        "Training for 2 epochs...",
    ]
    losses = [learner.loss, learner.policy_loss, learner.value_loss, learner.policy_entropy]
    assert numbers(said[15]) == pytest.approx(losses, abs=5e-3)
    assert said[16:] == [""]


@pytest.mark.trial
@pytest.mark.timeout(900)
def test_the_output_agrees_with_the_files_and_a_resumed_run_continues(tmp_path: Path) -> None:
    folder, said = tmp_path / "run", list[str]()
    folder.mkdir()
    ended = train_on_devices(folder, settings_in(folder, iterations=1), SLOTS, say=said.append)
    assert ended.report and ended.report.iteration == 1 and not ended.stopped
    check_iteration(said, read_stats(folder / STATS_NAME)[0])
    first = load_weights(folder / FINAL)
    said.clear()
    train_on_devices(folder, settings_in(folder, iterations=10), SLOTS, resume=True, say=said.append)
    rows = read_stats(folder / STATS_NAME)
    assert [row.iteration for row in rows] == [*range(1, 11)] and rows[1].total_games == 2 * GAMES
    check_iteration(said[: said.index("=== Iteration 3 ===")], rows[1])
    last, kept = load_weights(ended.model), load_weights(folder / "checkpoint_iter_10.pt")
    assert [path.name for path in folder.glob("checkpoint_iter_*")] == ["checkpoint_iter_10.pt"]
    assert all(torch.equal(last[name], kept[name]) for name in last)
    assert any(not torch.equal(last[name], first[name]) for name in last)
    assert audit([str(folder)]) == 0


class Crash:
    """Kills the second worker once it has finished some games of its share, and again in the next iteration."""

    def __init__(self, folder: Path, times: int) -> None:
        self.folder = WorkerFolder(folder / "workers" / "cpu-1")
        self.times, self.finished, self.killed = times, set[int](), set[int]()
        self.said: list[str] = []

    def poll(self) -> None:
        heartbeat, assignment, spool = (
            self.folder.read_heartbeat(),
            self.folder.read_assignment(),
            self.folder.root / FILE,
        )
        if not self.times or not heartbeat or not assignment or heartbeat.pid in self.killed or not spool.exists():
            return
        seeds = [int(game.seeds[0]) for game in read_spool(spool)]
        if len(seeds) >= 3 and len(seeds) < 50:
            os.kill(heartbeat.pid, signal.SIGKILL)
            self.killed.add(heartbeat.pid)
            self.finished |= set(seeds)
            self.times -= 1


@pytest.mark.slow
@pytest.mark.trial
@pytest.mark.timeout(900)
@pytest.mark.parametrize("times", [1, 2])
def test_a_crash_during_an_iteration_costs_no_finished_game(
    tmp_path: Path, times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, games = tmp_path / "run", 600
    folder.mkdir()
    settings = settings_in(folder, iterations=times, games=games)
    document = settings.model_dump()
    document["self_play"]["parallel_games"] = 8
    document["search"]["num_simulations"] = 64
    crash = Crash(folder, times)
    collect = multi_gpu.LocalProcesses.collect

    def watched(backend: multi_gpu.LocalProcesses) -> object:
        crash.poll()
        return collect(backend)

    monkeypatch.setattr(multi_gpu.LocalProcesses, "collect", watched)
    ended = train_on_devices(folder, Settings.model_validate(document), SLOTS, say=crash.said.append)
    assert crash.times == 0 and crash.finished
    assert ended.report and ended.report.total_games == games * times
    errors = [line for line in crash.said if line.startswith("ERROR in CPU 1: ended")]
    assert (
        len(errors) == times
        and "exit code -9 and is started again; its log ends: " in errors[0]
        and "plays tic_tac_toe with model 1" in errors[0]
    )
    assert ("ended 2 times in 10 minutes" in errors[-1]) == (times == 2)
    with read_ledger(folder) as ledger:
        rows = ledger.received_batches()
        assert crash.finished <= {int(seed) for row in rows for seed in load_received(folder, row).seeds}
        assert len(rows) <= times * (2 * 3 + 3), "games lie in files of about a hundred, or of what a worker had left"
        assert ledger.account("cpu-0").received > games / 2 * times, (
            "the others have played what the dead one had not finished"
        )
        assert all(account.discarded == account.outstanding == 0 for account in ledger.accounts().values())
    assert audit([str(folder)]) == 0
