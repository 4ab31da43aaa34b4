"""Measure the load that 1, 10, 100 and 500 workers with 100 games per second in all put on one Coach.

    python benchmarks/cluster/coach_load.py [--workers 1 10 100 500] [--games-per-second 100] [--seconds 20]
        [--batch 100] [--flush 30] [--game go]

Real parts: the Coach with its polls, grants, replay window and ledger on this machine's disk; the fleet with a
connection and a thread for every machine, and its status.txt; every file that is transferred. Each game is replayed
through the rules before it counts. The workers are simulated by one more process. It reads their assignments, writes a
heartbeat for each of them once a second, and puts prepared games into the outboxes at a steady rate, in batches of
--batch games or after --flush seconds, as real workers do. The machines are folders in memory (real ones have disks of
their own), reached by ``LocalTransport`` instead of SSH, so the figures exclude encryption. Nothing is trained: the
rest of the processor is the learner's.

Each count of workers has its own Coach process and is measured for --seconds after all are Active. The columns:

    offered, taken   games per second that workers delivered, and that entered the ledger, in the time measured
    behind           games in outboxes at the end of that time that were not in the ledger yet
    latency          seconds from the outbox to the ledger: the median, and the 95th percentile. A connection polls its
                     machine once a second, so half a second is the minimum
    CPU              user and system time of the Coach's process, all its threads: % of one core, and milliseconds per
                     game taken
    poll             milliseconds of one poll (taking games in, renewing grants, updating the status): the median and
                     the longest
    polls/s          there is a pause of 0.1 s after a poll that took nothing in
    threads, memory  of the Coach's process, at the end; MB in all, most of it torch and the compiled rules
    start            seconds from the first poll until all workers were Active

Afterwards the workers are stopped. Every delivered game must be in the ledger once, or the program fails.
"""

import argparse
import json
import os
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.cluster.simulated_workers import SIMULATED_GAMES, STOP_FILE, worker_name
from configs.flags import number, whole
from configs.schema import Settings
from distributed.fleet.fleet import Fleet
from distributed.operations.cluster import cluster_report
from distributed.operations.status import StatusFile
from distributed.setup.machine import WorkerSlot, worker_place
from distributed.setup.process_manager import ProcessStatus
from distributed.ssh.transport import LocalTransport, Transport
from games import Game
from training.common.reports import ClusterReport
from training.common.run_folder import LEDGER_NAME
from training.networks.evaluator import use_threads
from training.run.backend import PendingBatch
from training.run.coach import WAIT_SECONDS, Coach
from training.run.run import open_coach
from training.worker.worker_folder import MAX_JSON_BYTES

AHEAD_SECONDS = 5.0  # of play that a worker is granted in advance, besides two batches, so that it never waits
READY_SECONDS = 120.0  # all workers must be Active by then
SIMULATOR = Path(__file__).with_name("simulated_workers.py")
MEMORY_FOLDER = Path("/dev/shm")


@dataclass(frozen=True, kw_only=True)
class LoadResult:
    """A row of the table."""

    workers: int
    offered: float  # games/s
    taken: float  # games/s
    behind: int  # games
    latency: float  # seconds, median
    latency_95: float
    cpu: float  # share of one core
    cpu_a_game: float  # seconds
    poll: float  # seconds, median
    poll_max: float
    polls: float  # a second
    threads: int
    memory: float  # bytes
    start: float  # seconds


class NobodyStarts:
    """A process manager for workers that are already running."""

    def prepare(
        self, transport: Transport, log_event: Callable[[str], None], go_on: Callable[[], bool]
    ) -> tuple[WorkerSlot, ...]:
        """Return one worker per machine."""
        return (WorkerSlot(transport.worker),)

    def start(self, transport: Transport, slot: WorkerSlot) -> None:
        """Do nothing."""

    def stop(self, transport: Transport, worker: str, *, seconds: float = 10.0) -> None:
        """Signal the worker, and wait until it has delivered its games."""
        transport.put(b"", STOP_FILE)
        until = time.monotonic() + seconds
        while time.monotonic() < until and not self._has_ended(transport, worker):
            time.sleep(0.1)

    def _has_ended(self, transport: Transport, worker: str) -> bool:
        try:
            return b'"ended"' in transport.get(f"{worker_place(worker)}/worker.json", MAX_JSON_BYTES)
        except FileNotFoundError:
            return True

    def alive(self, transport: Transport, worker: str) -> ProcessStatus:
        """Return that it runs."""
        return ProcessStatus(running=True)

    def tail(self, transport: Transport, worker: str) -> str:
        """Return nothing: there is no log."""
        return ""


class SimulatedCluster(Fleet):
    """The fleet of ``distributed.operations.cluster.Cluster``, without SSH and without requests."""

    def __init__(self, root: Path, hosts: Path, *, game: Game, settings: Settings, run_id: str) -> None:
        self._status = StatusFile(root.parent, title="benchmark")
        super().__init__(
            root,
            settings.distributed.workers,
            game=game,
            settings=settings,
            run_id=run_id,
            connect=lambda machine: LocalTransport(hosts / machine.name, worker=machine.name),
            process_manager=lambda machine: NobodyStarts(),
            log_event=lambda text: None,
        )

    def collect(self) -> list[PendingBatch]:
        """See ``Fleet``."""
        batches = super().collect()
        self._status.show(self.view)
        return batches

    def cluster(self) -> ClusterReport:
        """See ``Cluster``."""
        return cluster_report(self.view())


def settings_for(arguments: argparse.Namespace, count: int) -> Settings:
    """Return the settings of a run that never trains."""
    return Settings.model_validate(
        {
            "run": {"name": "benchmark", "iterations": 1},
            "game": {"name": arguments.game, "options": SIMULATED_GAMES[arguments.game]},
            "network": {"type": "resnet", "blocks": 1, "channels": 8, "global_pooling": False},
            "self_play": {
                "flush_seconds": arguments.flush,
                "games_per_worker": 2 * arguments.batch + round(AHEAD_SECONDS * arguments.games_per_second / count),
            },
            "training": {"games_per_iteration": 10**9, "threads": 1},
            "evaluation": {"every": 0},
            "distributed": {
                "batch_size": arguments.batch,
                "workers": [{"host": worker_name(number)} for number in range(count)],
            },
        }
    )


def measure_load(arguments: argparse.Namespace, count: int, run_dir: Path, hosts: Path) -> LoadResult:
    """Measure one Coach with ``count`` workers."""
    use_threads(1)
    settings = settings_for(arguments, count)
    (run_dir / "workers").mkdir()

    def make_backend(game: Game, run_id: str) -> SimulatedCluster:
        return SimulatedCluster(run_dir / "workers", hosts, game=game, settings=settings, run_id=run_id)

    with (run_dir / "offered").open("w") as offered:
        line = [sys.executable, SIMULATOR, hosts, "--workers", count, "--games-per-second", arguments.games_per_second]
        simulator = subprocess.Popen([*map(str, line), "--game", arguments.game], stdout=offered)
    try:
        coach = open_coach(run_dir, settings, make_backend=make_backend, observers=())
        figures = measured_figures(coach, seconds=arguments.seconds, count=count, simulator=simulator)
        coach.end()
        coach.ledger.close()
        simulator.wait(30)
    finally:
        simulator.kill()
        simulator.wait()
    return with_ledger(run_dir, figures, count)


def measured_figures(
    coach: Coach, *, seconds: float, count: int, simulator: "subprocess.Popen[bytes]"
) -> dict[str, float]:
    """Poll repeatedly, as a Coach does that waits for games, and return the figures."""
    begun = time.monotonic()
    coach.start()

    def poll() -> float:
        if simulator.poll() is not None:
            raise SystemExit("the simulated workers have ended")
        then = time.perf_counter()
        taken = coach.poll_workers(ingest=True)
        took = time.perf_counter() - then
        if not taken:
            time.sleep(WAIT_SECONDS)
        return took

    while (report := coach.backend.cluster()) is None or report.active < count:
        if time.monotonic() > begun + READY_SECONDS:
            raise SystemExit(
                f"after {READY_SECONDS:.0f} s, {report.active if report else 0} of {count} workers are Active"
            )
        poll()
    start = time.monotonic() - begun
    since, then, cpu = time.time(), time.monotonic(), time.process_time()
    polls = []
    while time.monotonic() < then + seconds:
        polls.append(poll())
    took, cpu = time.monotonic() - then, time.process_time() - cpu
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return {
        "since": since,
        "until": time.time(),
        "cpu": cpu / took,
        "poll": statistics.median(polls),
        "poll_max": max(polls),
        "polls": len(polls) / took,
        "threads": int(status["Threads"]),
        "memory": int(status["VmRSS"].split()[0]) * 1024,
        "start": start,
    }


def with_ledger(run_dir: Path, figures: dict[str, float], count: int) -> LoadResult:
    """Combine the measured figures with the workers' and the ledger's records.

    Raises:
        SystemExit: a delivered game is not in the ledger, or is there twice.
    """
    since, until = figures.pop("since"), figures.pop("until")
    offered = [json.loads(line) for line in (run_dir / "offered").read_text().splitlines()]
    ledger = sqlite3.connect(run_dir / LEDGER_NAME)
    received: dict[str, float] = dict(ledger.execute("SELECT id, time FROM batches WHERE state = 'received'"))
    total: int = ledger.execute("SELECT SUM(received) FROM workers").fetchone()[0]
    ledger.close()
    handed_over = sum(games for _, _, games in offered)
    if total != handed_over or {name for name, _, _ in offered} != received.keys():
        raise SystemExit(f"of {handed_over} games delivered, {total} are in the ledger")
    seconds = until - since
    latencies = [received[name] - when for name, when, _ in offered if since <= received[name] < until]
    if len(latencies) < 2:
        raise SystemExit(
            f"only {len(latencies)} batches came in {seconds:.0f} s: measure for longer, or choose a smaller --flush"
        )
    taken = sum(games for name, _, games in offered if since <= received[name] < until)
    return LoadResult(
        workers=count,
        offered=sum(games for _, when, games in offered if since <= when < until) / seconds,
        taken=taken / seconds,
        behind=sum(games for name, when, games in offered if when < until <= received[name]),
        latency=statistics.median(latencies),
        latency_95=statistics.quantiles(latencies, n=20)[-1],
        cpu_a_game=figures["cpu"] * seconds / taken,
        **figures,  # type: ignore[arg-type]
    )


TABLE_HEAD = (
    "workers   offered     taken  behind  latency s     CPU          poll ms          polls  threads  memory  start\n"
    "          games/s   games/s   games  median 95 %    %  ms/game   median  longest    /s              MB      s"
)


def row(result: LoadResult) -> str:
    """Return a line of the table."""
    return (
        f"{result.workers:7d} {result.offered:9.1f} {result.taken:9.1f} {result.behind:7d}  "
        f"{result.latency:6.2f} {result.latency_95:4.2f} {result.cpu:4.0%} {result.cpu_a_game * 1e3:8.2f} "
        f"{result.poll * 1e3:8.1f} {result.poll_max * 1e3:8.0f} {result.polls:5.1f} "
        f"{result.threads:8d} {result.memory / 1e6:7.0f} {result.start:6.1f}"
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--workers",
        type=whole(),
        nargs="+",
        default=[1, 10, 100, 500],
        help="numbers of workers, measured one after the other",
    )
    parser.add_argument("--games-per-second", type=number(above=0), default=100.0, help="of all workers together")
    parser.add_argument(
        "--seconds", type=number(above=0), default=20.0, help="measuring time for each number of workers"
    )
    parser.add_argument("--batch", type=whole(), default=100, help="games in a file, at most (distributed.batch_size)")
    parser.add_argument(
        "--flush",
        type=number(above=0),
        default=30.0,
        help="seconds that a game waits for its file to fill (self_play.flush_seconds)",
    )
    parser.add_argument(
        "--game", choices=sorted(SIMULATED_GAMES), default="go", help="the game of the records; go is 9x9"
    )
    parser.add_argument("--one", type=Path, help=argparse.SUPPRESS)  # a Coach's process: its folder
    arguments = parser.parse_args()
    if arguments.one:
        with tempfile.TemporaryDirectory(dir=MEMORY_FOLDER if MEMORY_FOLDER.is_dir() else None) as hosts:
            print(row(measure_load(arguments, arguments.workers[0], arguments.one, Path(hosts))))
        return
    cores = len(os.sched_getaffinity(0))
    print(f"{arguments.game} {SIMULATED_GAMES[arguments.game]}, {cores} cores for the Coach and the simulated workers")
    print(TABLE_HEAD, flush=True)
    given = [
        "--games-per-second",
        arguments.games_per_second,
        "--seconds",
        arguments.seconds,
        "--batch",
        arguments.batch,
    ]
    given += ["--flush", arguments.flush, "--game", arguments.game]
    for count in arguments.workers:
        with tempfile.TemporaryDirectory() as run_dir:
            subprocess.run(
                [sys.executable, __file__, *map(str, given), "--workers", str(count), "--one", run_dir], check=True
            )


if __name__ == "__main__":
    main()
