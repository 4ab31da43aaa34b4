"""Measure the load that 1, 10, 100 and 500 workers with 100 games per second in all put on one Coach and its fleet.

    python benchmarks/cluster/coach_load.py [--workers 1 10 100 500] [--seats 1] [--round-trip 0]
        [--games-per-second 100] [--seconds 20] [--batch 100] [--flush 30] [--game go]

Real parts: the Coach with its polls, grants, replay window, reports and ledger on this machine's disk; the fleet in its
own process, with a connection and a thread for every machine, the mirrors and its status.txt; the agents' protocol, and
every file of games. Each game is replayed through the rules before it counts. One more process, which the table shows
too, simulates all machines with --seats workers each: it answers every request of an agent or a transport after
--round-trip seconds, renews each worker's heartbeat once a second, and puts prepared games into the outboxes at a
steady rate, in batches of --batch games or after --flush seconds, as real workers do. It is reached by Unix sockets
instead of SSH, so the figures exclude encryption (``looks.py`` includes it). Nothing is trained: the rest of the
Coach's processor time is the learner's.

Each count of workers has its own Coach process and is measured for --seconds after all are Active. The columns:

    offered, taken   games per second that workers delivered, and that entered the ledger, in the time measured
    behind           games in outboxes at the end of that time that were not in the ledger yet
    latency          seconds from the outbox to the ledger: the median, and the 95th percentile. A connection polls its
                     machine once a second, so half a second is the minimum
    Coach            user and system time of the Coach's process: % of one core, with all games that it receives, and
                     without what receiving them takes (unpacking, replaying, storing): polls, grants and reports
    fleet, machines  the same of the fleet's process, all its threads, and of the process that simulates the machines:
                     % of one core
    poll             milliseconds of one poll of the Coach (taking games in, granting, reporting): median and longest
    age              seconds since the workers wrote the heartbeats that the Coach has: the youngest, and the oldest of
                     any worker at any time
    lost             times that a worker, all of which are well, was shown as Offline or in Error
    memory           MB of the Coach, most of it torch and the compiled rules, and of the fleet
    start            seconds from the first poll until all workers were Active

Afterwards the workers are stopped. Every delivered game must be in the ledger once, or the program fails.
"""

import argparse
import json
import math
import os
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.cluster.simulated_fleet import FACTORY, SEATS, SOCKET, machine_name
from benchmarks.cluster.simulated_machines import SIMULATED_GAMES
from benchmarks.harness import processor_seconds
from keima.base.run_folder import LEDGER_NAME
from keima.cluster.fleet.ownership import owner_here
from keima.cluster.fleet.process.client import FleetClient
from keima.coach.backends.pending_batch import PendingBatch
from keima.coach.loop import WAIT_SECONDS, Coach
from keima.coach.opening import open_coach
from keima.config.flags import number, whole
from keima.config.schema import Settings
from keima.games import Game
from keima.networks.inference.evaluator import use_threads

AHEAD_SECONDS = 5.0  # of play that a worker is granted in advance, besides two batches, so that it never waits
READY_SECONDS = 300.0  # all workers must be Active by then
LAST_SECONDS = 5.0  # for the simulated machines to end
SIMULATOR = Path(__file__).with_name("simulated_machines.py")
SOCKET_NAME, OFFERED_NAME = "machines.socket", "offered"  # in the run's folder
LOST = ("Offline", "Error")


@dataclass(frozen=True, kw_only=True)
class LoadResult:
    """A row of the table."""

    workers: int
    offered: float  # games/s
    taken: float  # games/s
    behind: int  # games
    latency: float  # seconds, median
    latency_95: float
    cpu: float  # of the Coach: share of one core
    own_cpu: float  # without receiving games
    fleet_cpu: float
    machines_cpu: float
    poll: float  # seconds, median
    poll_max: float
    age_min: float  # seconds
    age_max: float
    lost: int
    memory: float  # bytes
    fleet_memory: float
    start: float  # seconds
    missing: int  # batches that had not come when the run ended


class MeasuringCoach(Coach):
    """A Coach that measures the processor time for receiving games."""

    receiving = 0.0  # seconds

    def ingest_together(self, batches: Sequence[PendingBatch]) -> None:
        """See ``Coach``."""
        before = time.process_time()
        super().ingest_together(batches)
        self.receiving += time.process_time() - before


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
                "workers": [{"host": machine_name(number)} for number in range(count // arguments.seats)],
            },
        }
    )


def open_fleet(
    run_dir: Path, arguments: argparse.Namespace, settings: Settings, game: Game, run_id: str
) -> FleetClient:
    """Return a fleet of simulated machines in its own process."""
    return FleetClient(
        run_dir / "workers",
        factory=FACTORY,
        config=run_dir / "config.yaml",
        run_dir=run_dir,
        game=game,
        settings=settings,
        run_id=run_id,
        owner=owner_here(run_id, lease_seconds=settings.distributed.lease_seconds),
        options={SOCKET: str(run_dir / SOCKET_NAME), SEATS: str(arguments.seats)},
        log_event=note_event,
    )


def note_event(text: str) -> None:
    """Print an event of the fleet's process itself, and no worker's."""
    if text.startswith("the fleet"):
        print(text, file=sys.stderr)


@contextmanager
def simulated_machines(run_dir: Path, arguments: argparse.Namespace, count: int) -> Iterator["subprocess.Popen[bytes]"]:
    """Yield the process of machines with ``count`` workers, which writes what these deliver to ``OFFERED_NAME``."""
    path = run_dir / SOCKET_NAME
    line = [sys.executable, SIMULATOR, path, "--machines", count // arguments.seats, "--seats", arguments.seats]
    line += ["--round-trip", arguments.round_trip, "--game", arguments.game]
    line += ["--games-per-second", arguments.games_per_second]
    with (run_dir / OFFERED_NAME).open("w") as output:
        simulator = subprocess.Popen([*map(str, line)], stdout=output)
    try:
        while not path.exists():
            time.sleep(WAIT_SECONDS)
            if simulator.poll() is not None:
                raise SystemExit("the simulated machines have not begun")
        yield simulator
    finally:
        simulator.kill()
        simulator.wait()


@contextmanager
def measuring_coach(
    arguments: argparse.Namespace, settings: Settings, count: int, run_dir: Path
) -> Iterator[tuple[MeasuringCoach, "subprocess.Popen[bytes]"]]:
    """Yield a Coach with ``count`` simulated workers, which has not begun, and their process; then end the run."""
    use_threads(1)
    (run_dir / "workers").mkdir()

    def make_backend(game: Game, run_id: str) -> FleetClient:
        return open_fleet(run_dir, arguments, settings, game, run_id)

    with simulated_machines(run_dir, arguments, count) as simulator:
        coach = open_coach(run_dir, settings, make_backend=make_backend, observers=())
        coach.__class__ = MeasuringCoach
        assert isinstance(coach, MeasuringCoach)
        yield coach, simulator
        coach.end()
        coach.ledger.close()
        with suppress(subprocess.TimeoutExpired):  # the ledger tells
            simulator.wait(LAST_SECONDS)


def measure_load(arguments: argparse.Namespace, count: int, run_dir: Path) -> LoadResult:
    """Measure one Coach with ``count`` workers."""
    with measuring_coach(arguments, settings_for(arguments, count), count, run_dir) as (coach, simulator):
        figures = measured_figures(coach, seconds=arguments.seconds, count=count, simulator=simulator)
    return with_ledger(run_dir, figures, count)


def measured_figures(
    coach: MeasuringCoach, *, seconds: float, count: int, simulator: "subprocess.Popen[bytes]"
) -> dict[str, float]:
    """Poll repeatedly, as a Coach does that waits for games, and return the figures."""
    begun = time.monotonic()
    coach.start()
    fleet = coach.backend
    assert isinstance(fleet, FleetClient)

    def poll() -> float:
        if simulator.poll() is not None:
            raise SystemExit("the simulated machines have ended")
        then = time.perf_counter()
        taken = coach.poll_workers(ingest=True)
        took = time.perf_counter() - then
        if not taken:
            time.sleep(WAIT_SECONDS)
        return took

    while (report := fleet.cluster()) is None or report.active < count:
        if time.monotonic() > begun + READY_SECONDS:
            raise SystemExit(
                f"after {READY_SECONDS:.0f} s, {report.active if report else 0} of {count} workers are Active"
            )
        poll()
    start = time.monotonic() - begun
    since, then, polls, watch = time.time(), time.monotonic(), list[float](), Watch(fleet)
    cpu, receiving = time.process_time(), coach.receiving
    fleet_cpu, machines_cpu = processor_seconds(fleet.process_id), processor_seconds(simulator.pid)
    while time.monotonic() < then + seconds:
        polls.append(poll())
        watch.look()
    took, cpu = time.monotonic() - then, time.process_time() - cpu - watch.cpu
    return {
        "since": since,
        "until": time.time(),
        "cpu": cpu / took,
        "own_cpu": (cpu - (coach.receiving - receiving)) / took,
        "fleet_cpu": (processor_seconds(fleet.process_id) - fleet_cpu) / took,
        "machines_cpu": (processor_seconds(simulator.pid) - machines_cpu) / took,
        "poll": statistics.median(polls),
        "poll_max": max(polls),
        "age_min": min(watch.ages),
        "age_max": max(watch.ages),
        "lost": watch.lost,
        "memory": memory_of(os.getpid()),
        "fleet_memory": memory_of(fleet.process_id),
        "start": start,
    }


class Watch:
    """Watches the heartbeats and marks that the Coach has.

    Args:
        fleet: the fleet.

    Attributes:
        ages: of heartbeats, in seconds.
        lost: how often a worker was no longer well.
        cpu: the processor time for watching, in seconds.
    """

    def __init__(self, fleet: FleetClient) -> None:
        self.ages: list[float] = []
        self.lost, self.cpu = 0, 0.0
        self._fleet = fleet
        self._well: set[str] = set()
        self._at = 0.0

    def look(self) -> None:
        """Look, once a second."""
        if time.monotonic() < self._at:
            return
        self._at = time.monotonic() + 1.0
        before, report = time.process_time(), self._fleet.cluster()
        now = time.time()
        written = [heartbeat.evaluations / 1000 for heartbeat in self._fleet.status().values() if heartbeat]
        self.ages += [now - max(written), now - min(written)]
        lost = {name for name, each in report.standings.items() if each.mark in LOST} if report else set()
        well = report.standings.keys() - lost if report else set[str]()
        self.lost += len(self._well & lost)
        self._well = well
        self.cpu += time.process_time() - before


def memory_of(process: int | None) -> int:
    """Return the resident memory of a process in bytes."""
    status = dict(line.split(":", 1) for line in Path(f"/proc/{process}/status").read_text().splitlines())
    return int(status["VmRSS"].split()[0]) * 1024


def with_ledger(run_dir: Path, figures: dict[str, float], count: int) -> LoadResult:
    """Combine the measured figures with the workers' and the ledger's records.

    Raises:
        SystemExit: a game in the ledger was not delivered, or is there twice, or few batches came.
    """
    since, until = figures.pop("since"), figures.pop("until")
    offered = [json.loads(line) for line in (run_dir / OFFERED_NAME).read_text().splitlines()]
    ledger = sqlite3.connect(run_dir / LEDGER_NAME)
    received: dict[str, float] = dict(ledger.execute("SELECT id, time FROM batches WHERE state = 'received'"))
    total: int = ledger.execute("SELECT SUM(received) FROM workers").fetchone()[0]
    ledger.close()
    delivered = {name: games for name, _, games in offered}
    if not received.keys() <= delivered.keys() or total != sum(delivered[name] for name in received):
        raise SystemExit(f"of {sum(delivered.values())} games delivered, {total} are in the ledger")
    seconds = until - since
    times = {name: received.get(name, math.inf) for name in delivered}
    latencies = [times[name] - when for name, when, _ in offered if since <= times[name] < until]
    if len(latencies) < 2:
        raise SystemExit(
            f"only {len(latencies)} batches came in {seconds:.0f} s: measure for longer, or choose a smaller --flush"
        )
    taken = sum(games for name, _, games in offered if since <= times[name] < until)
    return LoadResult(
        workers=count,
        offered=sum(games for _, when, games in offered if since <= when < until) / seconds,
        taken=taken / seconds,
        behind=sum(games for name, when, games in offered if when < until <= times[name]),
        latency=statistics.median(latencies),
        latency_95=statistics.quantiles(latencies, n=20)[-1],
        missing=len(delivered.keys() - received.keys()),
        **figures,  # type: ignore[arg-type]
    )


TABLE_HEAD = (
    "workers  offered    taken behind  latency s   Coach %  fleet machines  poll ms     age s   lost memory MB  start\n"
    "         games/s  games/s  games median 95 %  all   own    %      %  median   max  min   max     Coach fleet    s"
)


def row(result: LoadResult) -> str:
    """Return a line of the table."""
    return (
        f"{result.workers:7d}{result.offered:9.1f}{result.taken:9.1f}{result.behind:7d} "
        f"{result.latency:6.2f}{result.latency_95:5.2f}{100 * result.cpu:5.1f}{100 * result.own_cpu:6.2f}"
        f"{100 * result.fleet_cpu:6.1f}{100 * result.machines_cpu:7.1f}{result.poll * 1e3:8.1f}"
        f"{result.poll_max * 1e3:6.0f}{result.age_min:5.1f}{result.age_max:6.1f}{result.lost:6d}"
        f"{result.memory / 1e6:7.0f}{result.fleet_memory / 1e6:6.0f}{result.start:6.1f}"
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
    parser.add_argument("--seats", type=whole(), default=1, help="workers on each machine")
    parser.add_argument(
        "--round-trip", type=number(least=0), default=0.0, help="seconds that each call to a machine takes"
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
        result = measure_load(arguments, arguments.workers[0], arguments.one)
        print(row(result), flush=True)
        if result.missing:
            raise SystemExit(f"{result.missing} batches had not come when the run ended")
        return
    cores = len(os.sched_getaffinity(0))
    game = f"{arguments.game} {SIMULATED_GAMES[arguments.game]}"
    print(f"{game}, {cores} cores for the Coach, the fleet and the simulated machines")
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
    given += ["--seats", arguments.seats, "--round-trip", arguments.round_trip]
    for count in arguments.workers:
        with tempfile.TemporaryDirectory() as run_dir:
            subprocess.run(
                [sys.executable, __file__, *map(str, given), "--workers", str(count), "--one", run_dir], check=True
            )


if __name__ == "__main__":
    main()
