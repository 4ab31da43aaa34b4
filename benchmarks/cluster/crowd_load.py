"""Measure the load of machines that join from outside on the main node: the door, the fleet's process and the Coach.

    python benchmarks/cluster/crowd_load.py [--machines 2000] [--games-per-second 20] [--seconds 120]

Real parts: `keima train` with its Coach, ledger and fleet, the door with TLS, and the mailboxes on this machine's disk.
One more process simulates the machines: each has a connection and a worker, reports as often as the door asks for, and
hands in prepared games in batches of --batch. --leaving of them leave every minute, and new ones join in their place.
Nothing is trained, and no game is played again. The table has the processor time of each process in % of one core.
Afterwards every batch that was acknowledged must be in the ledger once, or the program fails.
"""

import random
import secrets
import subprocess
import sys
import tempfile
import time
from contextlib import redirect_stdout, suppress
from pathlib import Path
from types import SimpleNamespace

import yaml

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.cluster.simulated_machines import READY_GAMES, SIMULATED_GAMES, SimulatedWorker
from benchmarks.harness import Parser, Report, processor_seconds
from keima.base.files import sha256_hex
from keima.cluster.http.client import DoorClient, DoorRefused, DoorUnreachable
from keima.cluster.http.links import read_door_address, read_links
from keima.cluster.http.protocol import OutboxFile, Registration, SyncRequest, WorkerReport
from keima.cluster.http.server import allow_many_connections
from keima.config.flags import number, whole
from keima.data.ledger import read_ledger
from keima.games import load_game
from keima.paths import program_of
from tests.synthetic import synthetic_batch

GAME = "connect_four"
START_SECONDS = 300.0
JOIN_SECONDS = 600.0
PARTS = ("door", "fleet", "agent", "Coach")
PROGRAMS = {"door": "keima.web.door", "fleet": "keima.cluster.fleet.process.program", "agent": ".pyz"}


class SimulatedMember:
    """A machine with one worker, and its connection to the door."""

    def __init__(self, client: DoorClient, name: str, worker: SimulatedWorker, code: str) -> None:
        self.client, self.name, self._worker, self._code = client, name, worker, code
        self._session, self._stamp = secrets.token_hex(8), ""
        self.next_at = 0.0

    def report(self) -> list[str]:
        """Report, hand in what is due, and return the batches that were acknowledged."""
        with redirect_stdout(None):  # it prints what it delivers
            self._worker.step()
        outbox = tuple(OutboxFile(name=name, bytes=len(data)) for name, data in self._worker.outbox.items())
        mine = WorkerReport(
            worker=self.name, heartbeat=self._worker.heartbeat or None, outbox=outbox, assignment=self._stamp
        )
        reply = self.client.sync(SyncRequest(session=self._session, code=self._code, workers=(mine,)))
        self.next_at = time.monotonic() + reply.seconds
        acknowledged = []
        for orders in reply.orders:
            if orders.assignment is not None:
                self._worker.assign(orders.assignment)
                self._stamp = orders.stamp
            for name, offset in orders.uploads:
                data = self._worker.outbox[name]
                self.client.send_batch(self.name, name, data, sha256_hex(data), offset=offset)
                acknowledged.append(name.removesuffix(".games"))
            for name in orders.remove:
                self._worker.outbox.pop(name, None)
        return acknowledged


def child_processes(pid: int) -> dict[str, int]:
    """Return the processes of the main node by what they are."""
    found = {"Coach": pid}
    for path in sorted(Path("/proc").glob("[0-9]*/cmdline"), key=lambda path: int(path.parent.name)):
        with suppress(OSError):
            words = path.read_bytes().decode(errors="replace")
            parent = int((path.parent / "stat").read_text().rpartition(")")[2].split()[1])
            for name, module in PROGRAMS.items():
                if module in words and parent in (pid, *found.values()):
                    found[name] = int(path.parent.name)
    return found


def main() -> None:
    """Start the run, let the machines join, measure, and count."""
    parser = Parser(__doc__)
    parser.option("--machines", whole(), 2000, quick=20, help="that take part")
    parser.option("--games-per-second", number(above=0), 20.0, help="of all machines together")
    parser.option("--batch", whole(), 10, help="games of a batch")
    parser.option("--leaving", number(above=0), 0.1, help="share of the machines that leave in a minute")
    parser.option("--seconds", number(above=0), 120.0, quick=5.0, help="of the measurement")
    arguments = parser.parse()
    with tempfile.TemporaryDirectory(prefix="keima-crowd-") as folder, Report(arguments) as report:
        run_dir = Path(folder) / "run"
        config = Path(folder) / "crowd.yaml"
        config.write_text(yaml.safe_dump(make_settings(arguments.batch)), encoding="utf-8")
        command = [*program_of("keima"), "train", "--config", str(config), "--run-dir", str(run_dir)]
        output = Path(folder) / "output"
        with output.open("wb") as opened:
            coach = subprocess.Popen(command, stdout=opened, stderr=opened, cwd=ROOT)
        try:
            measure(arguments, run_dir, coach, report)
        except BaseException:
            sys.stderr.write(output.read_text()[-2000:])
            raise
        finally:
            coach.terminate()
            coach.wait(60)


def make_settings(batch: int) -> dict[str, object]:
    """Return the settings of a run that never trains."""
    crowd = {"port": 0, "address": "127.0.0.1", "this_machine": False, "check_share": 0.0}
    limits = ("machines_per_link", "most_machines", "workers_per_link", "connections_per_address")  # all one address
    crowd |= dict.fromkeys(limits, 10_000)
    return {
        "run": {"name": "benchmark", "iterations": 1},
        "game": {"name": GAME},
        "network": {"blocks": 1, "channels": 8},
        "self_play": {"games_per_worker": 3 * batch},
        "training": {"games_per_iteration": 10**9},
        "evaluation": {"every": 0},
        "distributed": {"enabled": True, "batch_size": batch, "crowd": crowd},
    }


def measure(arguments: object, run_dir: Path, coach: "subprocess.Popen[bytes]", report: Report) -> None:
    """Let the machines join and play, and add the table's row."""
    given = SimpleNamespace(**vars(arguments))
    allow_many_connections()
    until = time.monotonic() + START_SECONDS
    while not (run_dir / "crowd" / "door.json").exists():
        assert coach.poll() is None and time.monotonic() < until, "the run does not start"
        time.sleep(0.5)
    link = read_door_address(run_dir / "crowd").with_secret(read_links(run_dir / "crowd")[0].secret)
    game = load_game(GAME, **SIMULATED_GAMES[GAME])
    batch = synthetic_batch(game, games=READY_GAMES)
    games = [batch.game_record(index) for index in range(batch.num_games)]
    rate = given.games_per_second / given.machines
    with DoorClient(link) as client:
        code = client.read_run().code

    def join() -> SimulatedMember:
        key = secrets.token_urlsafe(32)
        client = DoorClient(link, key=key)
        (name,) = client.register(Registration(name="volunteer", workers=1, key=key)).workers
        worker = SimulatedWorker(name, rate=rate, share=random.random(), games=games, game=game)
        member = SimulatedMember(client, name, worker, code)
        member.next_at = time.monotonic() + random.uniform(0, 10)
        return member

    acknowledged: list[str] = []
    failed = 0

    def exchange(members: list[SimulatedMember]) -> None:
        nonlocal failed
        now = time.monotonic()
        for member in members:
            if member.next_at <= now:
                try:
                    acknowledged.extend(member.report())
                except (DoorUnreachable, DoorRefused) as error:
                    failed += 1
                    member.next_at = now + 2.0
                    if failed < 4:
                        print(error, file=sys.stderr)
        time.sleep(0.002)

    began = time.monotonic()
    members: list[SimulatedMember] = []
    while len(members) < given.machines:
        members.append(join())
        if len(members) % 20 == 0:
            exchange(members)
        if len(members) % 500 == 0:
            print(f"{len(members)} machines have joined after {time.monotonic() - began:.0f} s", file=sys.stderr)
        assert time.monotonic() < began + JOIN_SECONDS, f"only {len(members)} machines could join"
    joined = time.monotonic() - began
    settle = time.monotonic() + 30
    while time.monotonic() < settle:
        exchange(members)
    processes = child_processes(coach.pid)
    before = {name: processor_seconds(pid) for name, pid in processes.items()}
    count, begun, leave_at = len(acknowledged), time.monotonic(), time.monotonic()
    while time.monotonic() < begun + given.seconds:
        exchange(members)
        if time.monotonic() >= leave_at:
            leave_at += 60 / max(1.0, given.machines * given.leaving)
            members.pop(random.randrange(len(members))).client.close()
            members.append(join())
    seconds = time.monotonic() - begun
    used = {name: (processor_seconds(pid) - before[name]) / seconds for name, pid in processes.items()}
    taken = sum(int(name.split("-")[1]) for name in acknowledged[count:]) / seconds
    batches = (len(acknowledged) - count) / seconds
    while len(acknowledged) and time.monotonic() < begun + seconds + 60:
        with read_ledger(run_dir) as ledger:
            here = {row.id for row in ledger.received_batches()}
        if set(acknowledged) <= here:
            break
        exchange(members)
    lost = set(acknowledged) - here
    columns = (
        "machines",
        "joined in s",
        "games/s",
        "batches/s",
        "failed reports",
        *(f"{name} %" for name in PARTS),
        "in all %",
    )
    table = report.table("Processor time, % of one core", *columns)
    shares = [100 * used.get(name, 0.0) for name in PARTS]
    table.add(str(given.machines), joined, taken, batches, float(failed), *shares, sum(shares))
    for member in members:
        member.client.close()
    if lost:
        raise SystemExit(f"{len(lost)} batches were acknowledged and are not in the ledger")


if __name__ == "__main__":
    main()
