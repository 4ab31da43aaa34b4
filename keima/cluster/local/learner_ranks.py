"""The ranks of a run's learner as processes of this machine. The Coach's process is rank 0 and starts the others."""

import logging
import os
import signal
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from keima.base.system.logs import set_log_handler
from keima.base.system.processes import Process, start_process
from keima.base.system.signals import ignore_terminal_signals
from keima.base.system.threads import SteppingThread
from keima.cluster.local.processes import PRELOAD, last_log_line
from keima.coach.ranks.following import follow_rank_zero
from keima.config.schema import Settings
from keima.learning.ranks.meeting import LOCALHOST
from keima.learning.ranks.process_group import ALONE, RankInfo, RankLost, Ranks, join_ranks, make_file_store
from keima.networks.inference.evaluator import count_gpus

log = logging.getLogger(__name__)

END_SECONDS = 2.0  # for a rank to end by itself
POLL_SECONDS = 0.05
WATCH_SECONDS = 0.2
STUCK_SECONDS = 120.0  # after a rank is lost: for this one to leave its step


@contextmanager
def learner_ranks(settings: Settings, run_dir: Path, *, present: Ranks = ALONE) -> Iterator[Ranks]:
    """Yield the ranks that train the run in ``run_dir``: as many as its settings say, or those already ``present``.

    Raises:
        RankLost: one has ended; the message says which, and where its log is.
        ValueError: there are too few GPUs.
    """
    count, device = settings.training.learner.ranks, settings.training.device
    if count == 1 or not present.is_alone:
        yield present
        return
    if device != "cpu" and 0 < count_gpus() < count:
        raise ValueError(
            f"training.learner.ranks: {count} need a GPU each, and {count_gpus()} are visible here; "
            "or set training.device: cpu"
        )
    with tempfile.TemporaryDirectory() as folder:
        store = make_file_store(Path(folder), count)
        start = partial(start_process, run_rank, preload=PRELOAD, by=signal.SIGKILL)
        processes = {
            rank: start(
                (rank_place(rank, count), device, Path(folder), rank_log_path(run_dir, rank)),
                name=f"learner-rank-{rank}",
            )
            for rank in range(1, count)
        }
        try:
            while not store.check([rank_ready_key(rank) for rank in processes]):
                if fallen := describe_ended_ranks(processes, run_dir):
                    raise RankLost(fallen)
                time.sleep(POLL_SECONDS)
            with (
                join_ranks(rank_place(0, count), device=device, store=store) as ranks,
                watch_ranks(ranks, processes, run_dir),
            ):
                yield ranks
        except RankLost as error:
            raise RankLost(describe_ended_ranks(processes, run_dir, wait=END_SECONDS) or str(error)) from error
        finally:
            for process in processes.values():
                process.join(END_SECONDS)
                process.kill()
                process.join()


@contextmanager
def watch_ranks(ranks: Ranks, processes: Mapping[int, Process], run_dir: Path) -> Iterator[None]:
    """Notice at once if a rank ends with an error within the block, whatever this rank waits for.

    If it cannot end its own wait, for a GPU, it ends with its process; the run resumes from its last checkpoint.
    """
    leaving, noticed = False, 0.0

    def check_ranks() -> float:
        nonlocal noticed
        failed = {rank: process for rank, process in processes.items() if process.exitcode}
        if failed and not noticed:
            noticed = time.monotonic()
            log.error("%s", reason := describe_ended_ranks(failed, run_dir))
            ranks.declare_lost(reason)
        if noticed and not ranks.is_loss_raised and time.monotonic() - noticed > STUCK_SECONDS:
            log.critical("rank 0 still waits for a GPU after %.0f s: exiting", STUCK_SECONDS)
            logging.shutdown()
            os._exit(1)
        return WATCH_SECONDS

    thread = SteppingThread("learner-ranks", check_ranks, lambda: leaving)
    thread.start()
    try:
        yield
    finally:
        leaving = True
        thread.wake()
        thread.join(END_SECONDS)


def rank_place(rank: int, count: int) -> RankInfo:
    """Return the place of a rank among ``count`` on this machine."""
    return RankInfo(rank=rank, world_size=count, local_rank=rank, master_addr=LOCALHOST)


def rank_ready_key(rank: int) -> str:
    """Return the key that a rank sets in the store when it has started."""
    return f"here/{rank}"


def rank_log_path(run_dir: Path, rank: int) -> Path:
    """Return the log file of a rank."""
    return run_dir / f"learner_rank_{rank}.log"


def describe_ended_ranks(processes: Mapping[int, Process], run_dir: Path, *, wait: float = 0.0) -> str:
    """Return which ranks have ended within ``wait``, how, and where their logs are; empty if none has."""
    said = []
    for rank, process in processes.items():
        process.join(wait / len(processes))
        if not process.is_alive():
            where, line = rank_log_path(run_dir, rank), last_log_line(rank_log_path(run_dir, rank))
            see = f"its log ends: {line}; see {where}" if line else f"see {where}"
            said.append(f"rank {rank} of the learner has ended with exit code {process.exitcode}; {see}")
    return "; ".join(said)


def run_rank(where: RankInfo, device: str, folder: Path, log_file: Path) -> None:
    """Run the process of a rank: follow rank 0 until it ends."""
    ignore_terminal_signals()
    set_log_handler(logging.FileHandler(log_file, encoding="utf-8"))
    assert where.rank is not None and where.world_size is not None
    try:
        store = make_file_store(folder, where.world_size)
        store.set(rank_ready_key(where.rank), "here")
        with join_ranks(where, device=device, store=store) as ranks:
            follow_rank_zero(ranks)
    except Exception:
        log.exception("rank %d ends", where.rank)
        logging.shutdown()
        os._exit(1)  # the log has it all; multiprocessing would show it on the terminal too
    logging.shutdown()
    os._exit(0)
