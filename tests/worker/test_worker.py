"""A worker on its folder, with a clock set by the tests and a simulated main node."""

import os
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from keima.config import own_modules
from keima.config.own_modules import source_of
from keima.data.records import GameBatch, GameRecord, decode_batch
from keima.data.verify import verify_batch
from keima.games import load_game
from keima.networks.files import model as model_files
from keima.networks.files.container import Canary
from keima.networks.files.heading import stored_sha256
from keima.networks.files.model import decode_model
from keima.worker.loop import Worker
from keima.worker.worker_folder import Assignment, FolderGone, Heartbeat, WorkerFolder, batch_name
from tests.own_game import own_game
from tests.small_run import GAME, model_bytes, small_settings

CYCLES = 2000  # of play, at most


class Main:
    """The main node, as far as a worker sees it, and the clock."""

    def __init__(self, root: Path, **assignment: Any) -> None:
        self.folder = WorkerFolder(root).create_folders()
        self.now = 0.0
        self.leases = 0
        self.values: dict[str, Any] = {
            "run_id": "run",
            "worker": "w",
            "lease_seconds": 1000.0,
            "granted": 0,
            "delivered": 0,
            "game": "tic_tac_toe",
            "options": {},
            "search": small_settings(root).search,
            "seed": 1,
            "parallel_games": 4,
            "cache_positions": 0,
            "batch_games": 10,
            "flush_seconds": None,
        }
        self.publish(1, **assignment)

    def publish(self, version: int, **changes: Any) -> None:
        data = model_bytes(version)
        self.folder.model_path(version).write_bytes(data)
        self.assign(model_version=version, model_sha256=stored_sha256(data), **changes)

    def assign(self, **changes: Any) -> None:
        self.leases += 1
        self.values |= changes
        self.folder.write_assignment(Assignment(lease=str(self.leases), **self.values))

    def worker(self, kind: type[Worker] = Worker) -> Worker:
        return kind(self.folder.root, clock=lambda: self.now)

    def play(self, worker: Worker, *, seconds: float = 0.0) -> None:
        """Let the worker play its whole grant, then let this many seconds pass."""
        self.now += 1.0
        for _ in range(CYCLES):
            if not worker.cycle():
                break
        self.now += seconds
        worker.cycle()

    def batches(self) -> list[GameBatch]:
        return [decode_batch(path.read_bytes()) for path in self.folder.batch_files()]

    def deliver(self) -> int:
        """Receive everything in the outbox; return how many games are safe now."""
        for path, batch in zip(self.folder.batch_files(), self.batches(), strict=True):
            self.assign(delivered=batch.first_game + batch.num_games)
            path.unlink()
        return int(self.values["delivered"])

    def heartbeat(self) -> Heartbeat:
        found = self.folder.read_heartbeat()
        assert found is not None
        return found


def waiting(worker: Worker) -> list[GameRecord]:
    """Return the finished games that wait for their batch."""
    return worker.playing.waiting if worker.playing else []


def numbers(batches: list[GameBatch]) -> list[int]:
    return [batch.first_game + i for batch in batches for i in range(batch.num_games)]


def test_a_worker_plays_its_grant_and_then_waits(tmp_path: Path) -> None:
    main = Main(tmp_path, granted=7)
    worker = main.worker()
    main.play(worker, seconds=2.0)
    assert numbers(main.batches()) == list(range(7))
    for batch in main.batches():
        verify_batch(batch, GAME)
    assert (main.heartbeat().state, main.heartbeat().finished) == ("waiting", 7)
    assert (main.heartbeat().disk_free or 0) > 0
    main.assign(granted=9)
    main.play(worker)
    assert numbers(main.batches()) == list(range(9))


def test_a_worker_without_its_gpu_plays_nothing_and_says_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    main = Main(tmp_path, granted=7)
    worker = main.worker()
    worker.device = "cuda"
    main.play(worker, seconds=2.0)
    assert (main.heartbeat().state, main.heartbeat().finished, main.batches()) == ("error", 0, [])
    assert (
        "there is no device 'cuda' here" in main.heartbeat().error and "; use auto or cpu: " in main.heartbeat().error
    )
    worker.device = "cpu"  # as if the driver had been repaired
    main.play(worker, seconds=2.0)
    assert numbers(main.batches()) == list(range(7))
    assert main.heartbeat().error == ""


@pytest.mark.parametrize("flush_seconds", [None, 30.0])
def test_full_batches_are_handed_over_at_once_and_the_rest_when_the_grant_is_used_up(
    tmp_path: Path, flush_seconds: float | None
) -> None:
    main = Main(tmp_path, granted=23, flush_seconds=flush_seconds)
    main.play(main.worker())
    assert [batch.num_games for batch in main.batches()] == [10, 10, 3]


def test_a_batch_of_long_games_is_handed_over_before_it_has_its_number_of_games(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("keima.worker.batching.MOST_POSITIONS", 27)  # three games of tic-tac-toe at the longest
    main = Main(tmp_path, granted=40)
    worker = main.worker()
    main.now += 1.0
    while len(main.batches()) < 3:
        worker.cycle()
    early = main.batches()
    assert (
        worker.playing.begun - len(numbers(early)) >= 1
    )  # games are still being played: only their length has made batches of these
    main.play(worker)
    assert numbers(main.batches()) == list(range(40))
    assert all(3 <= batch.num_games < 10 and batch.num_positions <= 27 for batch in early)


def test_a_finished_game_waits_only_so_long_for_its_batch(tmp_path: Path) -> None:
    main = Main(tmp_path, granted=1000, flush_seconds=30.0)
    worker = main.worker()
    while not waiting(worker):
        worker.cycle()
    main.now += 29.0
    worker.cycle()
    assert main.batches() == []
    main.now += 2.0
    worker.cycle()
    assert 1 <= main.batches()[0].num_games < 10


def test_a_worker_switches_to_a_new_model_during_its_games(tmp_path: Path) -> None:
    main = Main(tmp_path, granted=4)
    worker = main.worker()
    for _ in range(12):
        worker.cycle()
    main.publish(2)
    main.play(worker)
    batch = main.batches()[-1]
    assert set(batch.first_model) == {1}
    assert set(batch.last_model) == {2}
    assert not main.folder.model_path(1).exists()


@pytest.mark.medium
def test_a_damaged_model_is_reported_in_the_heartbeat_and_the_old_one_keeps_playing(tmp_path: Path) -> None:
    main = Main(tmp_path, granted=2)
    worker = main.worker()
    main.play(worker)
    main.publish(2, granted=4)
    main.folder.model_path(2).write_bytes(b"damaged")
    main.play(worker, seconds=2.0)
    assert "the whole file of model 2 is needed: model-000002.model: " in main.heartbeat().error
    assert [set(batch.last_model) for batch in main.batches()] == [{1}, {1}]
    main.publish(3)
    main.play(worker, seconds=2.0)
    assert (main.heartbeat().error, main.heartbeat().model_version) == ("", 3)


def test_a_damaged_module_of_the_user_is_reported_in_the_heartbeat(tmp_path: Path) -> None:
    main = Main(tmp_path / "worker", granted=2)
    name = "othello-000000000000"
    main.folder.module_path(name).write_text("answer = 42\n")
    main.assign(modules=(name,))
    main.play(main.worker(), seconds=2.0)
    assert f"{name}.py was changed" in main.heartbeat().error


def test_a_user_s_game_is_played_from_the_file_in_the_inbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    game = load_game(str(own_game(tmp_path / "mine.py")))
    main = Main(tmp_path / "worker", granted=2, game=game.name, modules=(game.name,))
    main.folder.module_path(game.name).write_bytes(source_of(game.name))
    data = model_bytes(2, game)
    main.folder.model_path(2).write_bytes(data)
    main.assign(model_version=2, model_sha256=stored_sha256(data))
    monkeypatch.setattr(own_modules, "CACHE", tmp_path / "another machine")
    main.play(main.worker())
    assert [batch.game for batch in main.batches()] == [game.name] and main.batches()[0].num_games == 2


def test_a_broken_assignment_is_reported_until_a_good_one_comes(tmp_path: Path) -> None:
    main = Main(tmp_path, granted=2)
    worker = main.worker()
    main.play(worker)
    (main.folder.inbox / "assignment.json").write_text("{")
    main.play(worker, seconds=2.0)
    assert "assignment.json" in main.heartbeat().error
    main.assign(granted=3)
    main.play(worker, seconds=2.0)
    assert main.heartbeat().error == ""
    assert numbers(main.batches()) == [0, 1, 2]


def test_the_assignment_of_another_run_is_refused_and_both_runs_are_named(tmp_path: Path) -> None:
    main = Main(tmp_path, granted=2)
    worker = main.worker()
    main.play(worker)
    mine = main.values["run_id"]
    main.assign(granted=9, stop=True, run_id="intruder")
    main.play(worker, seconds=2.0)
    assert numbers(main.batches()) == [0, 1] and not worker.stopping
    assert main.heartbeat().run_id == mine
    assert (
        main.heartbeat().error
        == f"the assignment is refused: it is for run intruder, and this worker plays for run {mine}"
    )
    main.assign(granted=3, stop=False, run_id=mine)
    main.play(worker, seconds=2.0)
    assert main.heartbeat().error == "" and numbers(main.batches()) == [0, 1, 2]


def test_from_its_first_assignment_on_a_worker_plays_for_the_run_that_owns_its_folder(tmp_path: Path) -> None:
    main = Main(tmp_path, granted=2)
    (main.folder.create_folders().outbox / "0123456789abcdef.owner").write_text('{"run_id": "owner"}')
    worker = main.worker()
    main.play(worker, seconds=2.0)
    assert main.batches() == [] and worker.assignment is None
    assert main.heartbeat().run_id == "owner" and "this worker plays for run owner" in main.heartbeat().error
    main.assign(run_id="owner")
    main.play(worker, seconds=2.0)
    assert main.heartbeat().error == ""
    assert [(batch.run_id, batch.batch_id.split("--")[1][:6]) for batch in main.batches()] == [("owner", "owner-")]


def test_batches_of_another_run_in_the_outbox_do_not_change_the_count(tmp_path: Path) -> None:
    main = Main(tmp_path, granted=2)
    foreign = f"{batch_name('another', 'w', 0, 1, '0' * 16)}.games"
    (main.folder.create_folders().outbox / foreign).write_bytes(b"")
    worker = main.worker()
    main.play(worker)
    (main.folder.outbox / foreign).unlink()
    assert numbers(main.batches()) == [0, 1]


def test_a_worker_ends_when_its_lease_is_not_renewed(tmp_path: Path) -> None:
    main = Main(tmp_path, lease_seconds=100.0)
    worker = main.worker()
    main.play(worker)

    def go_on(seconds: float) -> None:
        for _ in range(round(seconds / 10)):
            main.now += 10.0
            worker.cycle()

    go_on(90.0)
    main.assign()
    go_on(90.0)
    assert not worker.stopping
    (main.folder.inbox / "assignment.json").unlink()
    go_on(20.0)
    assert worker.stopping


def test_a_worker_that_was_paused_for_an_hour_goes_on_with_its_games(tmp_path: Path) -> None:
    main = Main(tmp_path, lease_seconds=100.0)
    worker = main.worker()
    main.play(worker)
    for _ in range(3):
        main.now += 3600.0  # it was suspended with its machine; its lease was not renewed meanwhile
        worker.cycle()
        assert not worker.stopping
        main.assign()
        worker.cycle()


def test_a_worker_told_to_stop_hands_over_its_finished_games(tmp_path: Path) -> None:
    main = Main(tmp_path, granted=1000)
    worker = main.worker()
    while not waiting(worker):
        worker.cycle()
    main.assign(stop=True)
    main.now += 1.0
    worker.cycle()
    assert worker.stopping
    worker.flush()
    assert numbers(main.batches()) == list(range(len(numbers(main.batches()))))


def test_a_worker_whose_folder_was_deleted_ends_and_puts_nothing_into_the_new_one(tmp_path: Path) -> None:
    main = Main(tmp_path / "w", granted=1000)
    worker = main.worker()

    def delete() -> None:
        shutil.rmtree(main.folder.root)
        main.folder.create_folders()
        main.assign()

    cycle, cycles = worker.cycle, list[int]()

    def counted() -> bool:
        cycles.append(1)
        if len(cycles) == 20:
            delete()
        return cycle()

    worker.cycle = counted  # type: ignore[method-assign]
    with pytest.raises(FolderGone):
        worker.run()
    assert len(cycles) == 20
    assert main.batches() == []


def test_a_full_disk_loses_no_finished_game(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    main = Main(tmp_path, granted=3)
    worker = main.worker()

    def refuse(path: Path, data: bytes) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("keima.worker.playing.write_atomically", refuse)
    main.play(worker, seconds=1.5)
    assert main.batches() == []
    assert "No space left" in main.heartbeat().error
    monkeypatch.undo()
    main.play(worker, seconds=5.0)
    assert numbers(main.batches()) == [0, 1, 2]
    assert main.heartbeat().error == ""


@pytest.mark.parametrize("killed_after", ["flush", "delivered", "removal"])
def test_a_worker_that_takes_over_continues_the_count_and_repeats_no_game(tmp_path: Path, killed_after: str) -> None:
    main = Main(tmp_path, granted=6)
    main.play(main.worker())
    old = main.batches()
    if killed_after != "flush":
        main.assign(delivered=6)
    if killed_after == "removal":
        main.folder.batch_files()[0].unlink()
    main.assign(granted=12)
    main.play(main.worker())
    new = [batch for batch in main.batches() if batch.first_game >= 6]
    assert numbers(new) == list(range(6, 12))
    assert not {int(seed) for batch in old for seed in batch.seeds} & {
        int(seed) for batch in new for seed in batch.seeds
    }


def test_games_finished_out_of_order_are_not_played_twice_after_a_kill(tmp_path: Path) -> None:
    main = Main(tmp_path, granted=30, parallel_games=8)
    worker = main.worker()
    while not main.batches():
        worker.cycle()
    main.play(main.worker())
    seeds = [int(seed) for batch in main.batches() for seed in batch.seeds]
    assert len(set(seeds)) == len(seeds) == 30


def test_games_lost_with_a_worker_are_played_by_the_next_one(tmp_path: Path) -> None:
    main = Main(tmp_path, granted=1000)
    worker = main.worker()
    while len(waiting(worker)) < 3:
        worker.cycle()
    main.assign(granted=5)
    main.play(main.worker())
    assert numbers(main.batches()) == list(range(5))


def test_a_file_that_no_worker_wrote_does_not_change_its_count(tmp_path: Path) -> None:
    main = Main(tmp_path, granted=2)
    (main.folder.outbox / "000900000-50-stranger.games").write_bytes(b"?")
    (main.folder.outbox / "notes.txt").write_bytes(b"?")
    main.play(main.worker())
    assert sorted(path.name[:11] for path in main.folder.batch_files()) == ["000000000-2", "000900000-5"]


def test_limiting_the_positions_per_network_call_does_not_change_the_games(tmp_path: Path) -> None:
    main = Main(tmp_path, granted=9, parallel_games=9)
    main.play(main.worker())
    parts = Main(tmp_path / "parts", granted=9, parallel_games=9, max_positions=2)
    parts.play(parts.worker())
    assert [path.read_bytes() for path in main.folder.batch_files()] == [
        path.read_bytes() for path in parts.folder.batch_files()
    ]


def test_the_heartbeat_names_the_process_and_its_counts(tmp_path: Path) -> None:
    main = Main(tmp_path, granted=5)
    worker = main.worker()
    main.play(worker, seconds=3.0)
    first = main.heartbeat()
    main.play(worker, seconds=3.0)
    assert (first.pid, first.run_id, first.worker, first.model_version) == (os.getpid(), "run", "w", 1)
    assert main.heartbeat().beat > first.beat
    assert main.heartbeat().evaluations > 0


def test_the_processor_time_of_earlier_processes_for_the_run_counts(tmp_path: Path) -> None:
    main = Main(tmp_path, granted=5)
    main.play(main.worker(), seconds=20.0)
    used = main.heartbeat().processor_seconds
    assert used > 0
    main.play(main.worker(), seconds=20.0)  # stands for another process: its own time is at least as long
    assert main.heartbeat().processor_seconds >= 2 * used
    main.assign(run_id="another")
    main.play(main.worker(), seconds=20.0)
    assert main.heartbeat().processor_seconds <= time.process_time()


def test_delivered_games_make_room_only_in_the_outbox(tmp_path: Path) -> None:
    main = Main(tmp_path, granted=10)
    worker = main.worker()
    main.play(worker)
    assert main.deliver() == 10
    main.play(worker)
    assert main.batches() == []
    main.assign(granted=20)
    main.play(worker)
    assert numbers(main.batches()) == list(range(10, 20))


def test_a_model_whose_canary_differs_here_is_not_played_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = model_files.make_canary
    forged = Canary(
        values=(0.9, -0.9, 0.9, -0.9), policy_logits=honest(decode_model(model_bytes(1)), GAME).policy_logits
    )
    monkeypatch.setattr(model_files, "make_canary", lambda model, game: forged)
    main = Main(tmp_path, granted=10)
    worker = main.worker()
    main.play(worker, seconds=2.0)
    assert "allowed difference" in main.heartbeat().error
    assert main.batches() == []
    monkeypatch.setattr(model_files, "make_canary", honest)
    main.publish(2)
    main.play(worker)
    assert [batch.num_games for batch in main.batches()] == [10]
