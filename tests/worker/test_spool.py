"""Finished games of a killed worker are handed over, each once."""

import resource
import signal
from pathlib import Path

import pytest

from keima.data.records import GameBatch
from keima.data.verify import verify_batch
from keima.worker.loop import Worker
from keima.worker.spool import FILE, LENGTH, Spool, salvage_games, salvage_games_if_idle
from tests.small_run import GAME
from tests.worker.test_worker import Main, numbers, waiting

GRANTED = 37


def seeds(batches: list[GameBatch]) -> list[int]:
    return [int(seed) for batch in batches for seed in batch.seeds]


def killed(main: Main, *, finished: int) -> list[int]:
    """Let a worker finish at least this many games and drop it; return the seeds of the games not handed over."""
    worker = main.worker()
    with worker.folder.lock():
        while len(waiting(worker)) < finished:
            main.now += 1.0
            worker.cycle()
    return [record.seed for record in waiting(worker)]


def test_finished_games_of_a_killed_worker_are_handed_over_and_the_others_played(tmp_path: Path) -> None:
    main = Main(tmp_path, granted=GRANTED, batch_games=100)
    lost = killed(main, finished=5)
    assert main.batches() == []
    salvage_games_if_idle(main.folder)
    assert seeds(main.batches()) == lost and not (tmp_path / FILE).exists()
    assert main.deliver() == len(lost)
    main.play(main.worker())
    assert numbers(main.batches()) == list(range(len(lost), GRANTED))
    assert len(set(seeds(main.batches()) + lost)) == GRANTED
    for batch in main.batches():
        verify_batch(batch, GAME)


def test_a_successor_hands_over_the_games_of_a_killed_worker(tmp_path: Path) -> None:
    main = Main(tmp_path, granted=GRANTED, batch_games=100)
    lost = killed(main, finished=5)
    main.assign(stop=True)
    main.worker().run()
    assert seeds(main.batches()) == lost


def test_a_kill_between_a_batch_and_the_end_of_its_spool_hands_over_nothing_twice(tmp_path: Path) -> None:
    main = Main(tmp_path, granted=GRANTED, batch_games=100)
    lost = killed(main, finished=5)
    spool = (tmp_path / FILE).read_bytes()
    for poll in range(3):
        (tmp_path / FILE).write_bytes(spool)
        if poll == 2:
            main.deliver()  # the ledger has them
        salvage_games(main.folder)
        assert seeds(main.batches()) == ([] if poll == 2 else lost)


def test_half_written_games_are_left_out(tmp_path: Path) -> None:
    main = Main(tmp_path, granted=GRANTED, batch_games=100)
    lost = killed(main, finished=5)
    whole = (tmp_path / FILE).read_bytes()
    for torn in (whole[:-1], whole[:-40], whole + LENGTH.pack(2**31), whole + b"\x01"):
        (tmp_path / FILE).write_bytes(torn)
        salvage_games(main.folder)
        assert seeds(main.batches()) == (lost[:-1] if len(torn) < len(whole) else lost)
        for path in main.folder.batch_files():
            path.unlink()


def test_a_living_worker_is_left_alone(tmp_path: Path) -> None:
    main = Main(tmp_path, granted=GRANTED, batch_games=100)
    killed(main, finished=5)
    with main.folder.lock():
        salvage_games_if_idle(main.folder)
    assert main.batches() == [] and (tmp_path / FILE).exists()


def test_games_are_spooled_only_if_they_may_wait_for_long(tmp_path: Path) -> None:
    waiting, hurried = (
        Main(tmp_path / "waiting", granted=GRANTED),
        Main(tmp_path / "hurried", granted=GRANTED, flush_seconds=30.0),
    )
    for main in (waiting, hurried):
        killed(main, finished=5)
    assert (tmp_path / "waiting" / FILE).exists() and not (tmp_path / "hurried" / FILE).exists()
    waiting.play(waiting.worker())
    assert not (tmp_path / "waiting" / FILE).exists(), "all games are in batches"


def test_a_full_disk_costs_a_living_worker_no_game(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    main = Main(tmp_path, granted=GRANTED, batch_games=100)
    worker = Worker(tmp_path, clock=lambda: main.now)
    (tmp_path / FILE).symlink_to("/dev/full")
    main.play(worker)
    assert "finished games are in memory only" in caplog.text
    assert numbers(main.batches()) == list(range(GRANTED))


def test_half_a_write_leaves_the_spool_unchanged(tmp_path: Path) -> None:
    main = Main(tmp_path, granted=GRANTED, batch_games=100)
    killed(main, finished=5)
    before = (tmp_path / FILE).read_bytes()
    salvage_games(main.folder)
    (tmp_path / FILE).write_bytes(before)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 100, hard))
    try:
        for _ in range(2):
            with pytest.raises(OSError, match=r"no space|File too large"):
                Spool(main.folder).add(main.batches())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, ignored)
    assert (tmp_path / FILE).read_bytes() == before
