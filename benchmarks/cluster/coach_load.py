"""Measure the load that 1, 10, 100 and 500 workers with 100 games per second in all put on one Coach and its fleet.

    python benchmarks/cluster/coach_load.py [--workers 1 10 100 500] [--seconds 20]
    python benchmarks/cluster/coach_load.py --workers 1600 --slots 16 --round-trip 0.1 --seconds 600

Real parts: the Coach with its polls, grants, replay window, reports and ledger on this machine's disk; the fleet in its
own process, with a connection and a thread for every machine, the mirrors and its status.txt; the agents' protocol, and
every file of games. Each game is replayed through the rules before it counts. One more process, which the table shows
too, simulates all machines with --slots workers each: it answers every request of an agent or a transport after
--round-trip seconds, renews each worker's heartbeat once a second, and puts prepared games into the outboxes at a
steady rate, in batches of --batch games or after --flush seconds, as real workers do. It is reached by Unix sockets
instead of SSH, so the figures exclude encryption. Nothing is trained: the rest of the
Coach's processor time is the learner's.

Each count of workers has its own Coach process and is measured for --seconds after all are Active. The columns:

    offered, taken   games per second that workers delivered, and that entered the ledger, in the time measured
    behind           games in outboxes at the end of that time that were not in the ledger yet
    latency          seconds from the outbox to the ledger: the median, and the 95th percentile. A connection polls its
                     machine once a second, so half a second is the minimum
    Coach            user and system time of the Coach's process: % of one core, with all games that it receives, and
                     without what receiving them takes (unpacking, replaying, storing): polls, grants and reports
    fleet, machines  the same of the fleet's process, all its threads, and of the process that simulates the machines
    poll             milliseconds of one poll of the Coach (taking games in, granting, reporting): median and longest
    age              seconds since the workers wrote the heartbeats that the Coach has: the youngest, and the oldest of
                     any worker at any time
    lost             times that a worker, all of which are well, was shown as Offline or in Error
    MB               memory of the Coach, most of it torch and the compiled rules, and of the fleet
    start            seconds from the first poll until all workers were Active

Afterwards the workers are stopped. Every delivered game must be in the ledger once, or the program fails.
"""

import argparse
import json
import math
import os
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from statistics import median, quantiles
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.cluster.simulated_fleet import FACTORY, SLOTS, SOCKET, machine_name
from benchmarks.cluster.simulated_machines import SIMULATED_GAMES
from benchmarks.harness import Parser, Report, processor_seconds
from keima.base.reports.worker_status import WorkerState
from keima.base.run_folder import LEDGER_NAME
from keima.cluster.fleet.ownership import make_owner
from keima.cluster.fleet.process.client import FleetClient
from keima.coach.backends.pending_batch import PendingBatch
from keima.coach.loop import WAIT_SECONDS, Coach
from keima.coach.opening import open_coach
from keima.coach.receiving import Receiving
from keima.config.flags import number, whole
from keima.config.schema import Settings
from keima.games import Game
from keima.networks.inference.evaluator import use_threads

AHEAD_SECONDS = 5.0  # of play that a worker is granted in advance, besides two batches, so that it never waits
READY_SECONDS = 300.0  # all workers must be Active by then
LAST_SECONDS = 5.0  # for the simulated machines to end
SIMULATOR = Path(__file__).with_name("simulated_machines.py")
SOCKET_NAME, OFFERED_NAME = "machines.socket", "offered"  # in the run's folder
LOST = (WorkerState.OFFLINE, WorkerState.ERROR)
ONE = "--one"  # precedes the folder of a Coach's process


class MeasuredReceiving(Receiving):
    """Measures its own processor time."""

    seconds = 0.0

    def receive(self, batches: Sequence[PendingBatch]) -> int:
        """See ``Receiving``."""
        before = time.process_time()
        taken = super().receive(batches)
        self.seconds += time.process_time() - before
        return taken


def receiving_of(coach: Coach) -> MeasuredReceiving:
    """Return what receives a Coach's games; the first call has it measure itself."""
    coach.receiving.__class__ = MeasuredReceiving
    assert isinstance(coach.receiving, MeasuredReceiving)
    return coach.receiving


def make_settings(arguments: argparse.Namespace, count: int) -> Settings:
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
                "workers": [{"host": machine_name(number)} for number in range(count // arguments.slots)],
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
        owner=make_owner(run_id, run_dir=run_dir, lease_seconds=settings.distributed.lease_seconds),
        options={SOCKET: str(run_dir / SOCKET_NAME), SLOTS: str(arguments.slots)},
        log_event=note_event,
    )


def note_event(text: str) -> None:
    """Print an event of the fleet's process itself, and no worker's."""
    if text.startswith("the fleet"):
        print(text, file=sys.stderr)


@contextmanager
def start_machines(run_dir: Path, arguments: argparse.Namespace, count: int) -> Iterator["subprocess.Popen[bytes]"]:
    """Yield the process of machines with ``count`` workers, which writes what these deliver to ``OFFERED_NAME``."""
    path = run_dir / SOCKET_NAME
    options = {
        "machines": count // arguments.slots,
        "slots": arguments.slots,
        "round_trip": arguments.round_trip,
        "games_per_second": arguments.games_per_second,
        "game_name": arguments.game,
    }
    with (run_dir / OFFERED_NAME).open("w") as output:
        simulator = subprocess.Popen([sys.executable, SIMULATOR, path, json.dumps(options)], stdout=output)
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
def open_measuring_coach(
    arguments: argparse.Namespace, settings: Settings, count: int, run_dir: Path
) -> Iterator[tuple[Coach, "subprocess.Popen[bytes]"]]:
    """Yield a Coach with ``count`` simulated workers, which has not begun, and their process; then end the run."""
    use_threads(1)
    (run_dir / "workers").mkdir()

    def make_backend(game: Game, run_id: str) -> FleetClient:
        return open_fleet(run_dir, arguments, settings, game, run_id)

    with start_machines(run_dir, arguments, count) as simulator:
        coach = open_coach(run_dir, settings, make_backend=make_backend, observers=())
        yield coach, simulator
        coach.end()
        coach.ledger.close()
        with suppress(subprocess.TimeoutExpired):  # the ledger tells
            simulator.wait(LAST_SECONDS)


def measure_load(arguments: argparse.Namespace, count: int, run_dir: Path) -> dict[str, Any]:
    """Measure one Coach with ``count`` workers, and return the figures by column."""
    with open_measuring_coach(arguments, make_settings(arguments, count), count, run_dir) as (coach, simulator):
        since, until, figures = measure_processes(coach, seconds=arguments.seconds, count=count, simulator=simulator)
    return {"workers": count, **compare_with_ledger(run_dir, since, until), **figures}


def measure_processes(
    coach: Coach, *, seconds: float, count: int, simulator: "subprocess.Popen[bytes]"
) -> tuple[float, float, dict[str, Any]]:
    """Poll repeatedly, as a Coach does that waits for games; return the beginning, the end and the figures."""
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
    cpu, receiving = time.process_time(), receiving_of(coach).seconds
    fleet_cpu, machines_cpu = processor_seconds(fleet.process_id), processor_seconds(simulator.pid)
    while time.monotonic() < then + seconds:
        polls.append(poll())
        watch.poll()
    took, cpu = time.monotonic() - then, time.process_time() - cpu - watch.cpu
    figures = {
        "Coach, %": 100 * cpu / took,
        "own, %": 100 * (cpu - (receiving_of(coach).seconds - receiving)) / took,
        "fleet, %": 100 * (processor_seconds(fleet.process_id) - fleet_cpu) / took,
        "machines, %": 100 * (processor_seconds(simulator.pid) - machines_cpu) / took,
        "poll, ms": (1e3 * median(polls), 1e3 * max(polls)),
        "age, s": (min(watch.ages), max(watch.ages)),
        "lost": watch.lost,
        "MB": (read_memory(os.getpid()) / 1e6, read_memory(fleet.process_id) / 1e6),
        "start, s": start,
    }
    return since, time.time(), figures


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

    def poll(self) -> None:
        """Sample the programs, at most once a second."""
        if time.monotonic() < self._at:
            return
        self._at = time.monotonic() + 1.0
        before, report = time.process_time(), self._fleet.cluster()
        now = time.time()
        written = [heartbeat.evaluations / 1000 for heartbeat in self._fleet.heartbeats().values() if heartbeat]
        self.ages += [now - max(written), now - min(written)]
        workers = report.workers if report else ()
        lost = {worker.name for worker in workers if worker.state in LOST}
        well = {worker.name for worker in workers} - lost
        self.lost += len(self._well & lost)
        self._well = well
        self.cpu += time.process_time() - before


def read_memory(process: int | None) -> int:
    """Return the resident memory of a process in bytes."""
    status = dict(line.split(":", 1) for line in Path(f"/proc/{process}/status").read_text().splitlines())
    return int(status["VmRSS"].split()[0]) * 1024


def compare_with_ledger(run_dir: Path, since: float, until: float) -> dict[str, Any]:
    """Return the figures that the workers' and the ledger's records tell about a time.

    Raises:
        SystemExit: a game in the ledger was not delivered, or is there twice, or not all or few batches came.
    """
    offered = [json.loads(line) for line in (run_dir / OFFERED_NAME).read_text().splitlines()]
    ledger = sqlite3.connect(run_dir / LEDGER_NAME)
    received: dict[str, float] = dict(ledger.execute("SELECT id, time FROM batches WHERE state = 'received'"))
    total: int = ledger.execute("SELECT SUM(received) FROM workers").fetchone()[0]
    ledger.close()
    delivered = {name: games for name, _, games in offered}
    if not received.keys() <= delivered.keys() or total != sum(delivered[name] for name in received):
        raise SystemExit(f"of {sum(delivered.values())} games delivered, {total} are in the ledger")
    if missing := len(delivered.keys() - received.keys()):
        raise SystemExit(f"{missing} batches had not come when the run ended")
    seconds = until - since
    times = {name: received.get(name, math.inf) for name in delivered}
    latencies = [times[name] - when for name, when, _ in offered if since <= times[name] < until]
    if len(latencies) < 2:
        raise SystemExit(
            f"only {len(latencies)} batches came in {seconds:.0f} s: measure for longer, or choose a smaller --flush"
        )
    return {
        "offered, games/s": sum(games for _, when, games in offered if since <= when < until) / seconds,
        "taken": sum(games for name, _, games in offered if since <= times[name] < until) / seconds,
        "behind": sum(games for name, when, games in offered if when < until <= times[name]),
        "latency, s": (median(latencies), quantiles(latencies, n=20)[-1]),
    }


def measure_apart(count: int) -> dict[str, Any]:
    """Measure one Coach by the same command line in a process of its own."""
    with tempfile.TemporaryDirectory() as run_dir:
        line = [sys.executable, *sys.argv, "--workers", str(count), ONE, run_dir]
        found: dict[str, Any] = json.loads(subprocess.run(line, check=True, stdout=subprocess.PIPE).stdout)
    return found


def main() -> None:
    """Measure and print."""
    parser = Parser(__doc__)
    parser.option("--workers", whole(), (1, 10, 100, 500), quick=(4,), help="numbers of them, one after the other")
    parser.option("--slots", whole(), 1, help="workers on each machine")
    parser.option("--round-trip", number(least=0), 0.0, help="seconds that each call to a machine takes")
    parser.option("--games-per-second", number(above=0), 100.0, quick=20.0, help="of all workers together")
    parser.option("--seconds", number(above=0), 20.0, quick=5.0, help="measuring time for each number of workers")
    parser.option("--batch", whole(), 100, quick=10, help="games in a file, at most (distributed.batch_size)")
    parser.option("--flush", number(above=0), 30.0, quick=1.0, help="seconds that a game waits for its file to fill")
    parser.option("--game", SIMULATED_GAMES, "go", help="of the records; Go is 9x9")
    parser.add_argument(ONE, type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse()
    if arguments.one:
        print(json.dumps(measure_load(arguments, arguments.workers[0], arguments.one)))
        return
    machines = f"{arguments.slots} workers a machine, {arguments.round_trip:g} s away"
    with Report(arguments) as report:
        table = None
        for count in arguments.workers:
            found = measure_apart(count)
            table = table or report.table(f"Games of {arguments.game}, {machines}", *found)
            table.add(*(tuple(cell) if isinstance(cell, list) else cell for cell in found.values()))


if __name__ == "__main__":
    main()
