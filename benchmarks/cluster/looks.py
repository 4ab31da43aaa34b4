"""Measure a round of looks at all workers of one machine, by the number of workers and the round-trip time.

    python benchmarks/cluster/looks.py [--workers 1 4 16] [--milliseconds 100] [--rounds 3] [--checkout FOLDER]

Real parts: an sshd of its own on this machine, the SSH connection, the connection's steps, and everything that is done
on the machine. Simulated: the distance, by a TCP proxy of another process that holds every chunk back by half of the
round-trip time in each direction (the bandwidth is unlimited, and sshd and the proxy share this machine's processor);
and the workers, whose heartbeats one more process replaces once a second. Another checkout's code is measured in the
same way, for comparison. The columns:

    round, assigned   seconds that a step of the connection takes: one in which nothing but heartbeats is new, and one
                      in which every worker also gets a new assignment; the medians of --rounds
    ms/round          processor time of this process in such a step (the idle one), all its threads; and per worker
"""

import argparse
import os
import select
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

HERE = Path(__file__).resolve().parents[2]
CHECKOUT = "KEIMA_CHECKOUT"  # the variable that names the checkout to a process that measures it
sys.path.insert(0, os.environ.get(CHECKOUT, str(HERE)))

from keima.config.flags import number, whole

PATIENCE = 300.0  # seconds until all workers must be Active


def delay(listening: socket.socket, port: int, seconds: float) -> None:
    """Pass connections on to a local port; every chunk arrives ``seconds`` late, in both directions."""
    others: dict[socket.socket, socket.socket] = {}
    due: deque[tuple[float, socket.socket, bytes]] = deque()
    while True:
        wait = max(0.0, due[0][0] - time.monotonic()) if due else None
        for ready in select.select([listening, *others], [], [], wait)[0]:
            if ready is listening:
                near, far = listening.accept()[0], socket.create_connection(("127.0.0.1", port))
                for sock in (near, far):
                    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                others.update({near: far, far: near})
                continue
            chunk = ready.recv(2**16)
            due.append((time.monotonic() + seconds, others[ready], chunk))
            if not chunk:
                del others[ready]
        while due and due[0][0] <= time.monotonic():
            _, target, chunk = due.popleft()
            with suppress(OSError):
                target.sendall(chunk) if chunk else target.shutdown(socket.SHUT_WR)


def in_a_process(work: Callable[[], object]) -> int:
    """Do something in a process of its own; return its id."""
    child = os.fork()
    if child == 0:
        try:
            work()
        finally:
            os._exit(0)
    return child


def beat(folders: list[Any], run_id: str, heartbeat: type[Any]) -> None:
    """Replace the heartbeats of all workers once a second."""
    beats = 0
    while True:
        beats += 1
        for folder in folders:
            values = {"run_id": run_id, "worker": folder.root.name, "beat": beats, "pid": 1, "model_version": 1}
            folder.make().write_heartbeat(heartbeat(state="playing", **values))
        time.sleep(1.0)


def measure(count: int, milliseconds: float, rounds: int, root: Path) -> str:
    """Return a row of the table."""
    from keima.base.files import sha256_hex
    from keima.cluster.fleet.machine_connection import MachineConnection
    from keima.cluster.fleet.worker_state import Mark
    from keima.cluster.machines.machine import WorkerSlot
    from keima.cluster.ssh.ssh_transport import connect
    from keima.coach.backends.assignments import AssignmentBook
    from keima.worker.model_push import PublishedModel
    from keima.worker.worker_folder import Heartbeat, WorkerFolder
    from tests.cluster.local_fleet import fleet_settings
    from tests.cluster.sshd import running_sshd
    from tests.small_run import GAME

    names = [f"worker1-{number}" for number in range(1, count + 1)]

    class Running:
        """A process manager of workers that run already."""

        def prepare(self, *arguments: object) -> tuple[WorkerSlot, ...]:
            return tuple(WorkerSlot(name) for name in names)

        def start(self, *arguments: object) -> None: ...

        def stop(self, *arguments: object, **options: object) -> None: ...

        def alive(self, *arguments: object) -> Any:
            return SimpleNamespace(
                running=True, waits="", start="", error=""
            )  # also true: earlier versions want a bool

        def tail(self, *arguments: object) -> str:
            return ""

    os.environ["HOME"] = str(root / "user")
    os.environ.pop("SSH_AUTH_SOCK", None)
    with running_sshd(root / "server", root / "user") as server, socket.create_server(("127.0.0.1", 0)) as listening:
        near = listening.getsockname()[1]
        helpers = [in_a_process(lambda: delay(listening, server.port, milliseconds / 2e3))]
        server.trust(f"[127.0.0.1]:{near}")
        machine = server.worker(port=near, python=sys.executable)
        settings = fleet_settings(root, distributed={"offline_seconds": PATIENCE, "heartbeat_seconds": 1.0})
        (root / "workers").mkdir()
        connection = MachineConnection(
            machine,
            process_manager=Running(),
            connect=lambda: connect(machine, host_key_policy="strict", seconds=20.0),
            root=root / "workers",
            run_id="run",
            settings=settings,
        )
        folders = [WorkerFolder(Path(machine.directory) / "workers" / name) for name in names]
        helpers.append(in_a_process(lambda: beat(folders, "run", Heartbeat)))
        book = AssignmentBook(game=GAME, settings=settings, run_id="run")

        def assign() -> None:
            for name in names:
                book.set_account(name, granted=100, delivered=0)
                connection.assign(name, book.next_assignment(name))

        model = os.urandom(20_000)
        connection.publish(PublishedModel(version=1, data=model, sha256=sha256_hex(model)))
        try:
            until = time.monotonic() + PATIENCE
            while {worker.state.mark for worker in connection.snapshot.workers} != {Mark.ACTIVE}:
                if time.monotonic() > until:
                    raise SystemExit(f"not all workers are Active: {connection.snapshot}")
                if len(connection.snapshot.workers) == count:
                    assign()
                connection.step()
                time.sleep(0.1)
            idle, cpu = timed(connection.step, rounds)
            assigned, _ = timed(connection.step, rounds, before=assign)
        finally:
            connection.leave(drain=False, seconds=0.0)
            connection.step()
            for pid in helpers:
                os.kill(pid, 9)
                os.waitpid(pid, 0)
    return f"{count:7d} {milliseconds:7.0f} {idle:9.2f} {assigned:9.2f} {cpu * 1e3:9.1f} {cpu * 1e3 / count:9.2f}"


def timed(
    work: Callable[[], object], rounds: int, *, before: Callable[[], object] = lambda: None
) -> tuple[float, float]:
    """Return the medians of seconds, and of seconds of processor time, of some rounds; heartbeats change in between."""
    seconds, processor = [], []
    for _ in range(rounds):
        time.sleep(1.1)
        before()
        began, cpu = time.perf_counter(), time.process_time()
        work()
        seconds.append(time.perf_counter() - began)
        processor.append(time.process_time() - cpu)
    return statistics.median(seconds), statistics.median(processor)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--workers", type=whole(), nargs="+", default=[1, 4, 16], help="numbers of workers on the machine"
    )
    parser.add_argument("--milliseconds", type=number(above=0), default=100.0, help="the round-trip time")
    parser.add_argument("--rounds", type=whole(), default=3, help="rounds of each kind that are measured")
    parser.add_argument("--checkout", type=Path, default=HERE, help="whose code is measured")
    parser.add_argument("--one", type=Path, help=argparse.SUPPRESS)  # a process for one row: its folder
    arguments = parser.parse_args()
    if arguments.one:
        print(measure(arguments.workers[0], arguments.milliseconds, arguments.rounds, arguments.one), flush=True)
        return
    print("workers  RTT ms   round s assigned s ms/round ms/worker", flush=True)
    for count in arguments.workers:
        with tempfile.TemporaryDirectory() as folder:
            line = [sys.executable, __file__, "--one", folder, "--workers", count, "--rounds", arguments.rounds]
            line += ["--milliseconds", arguments.milliseconds]
            environment = {**os.environ, CHECKOUT: str(arguments.checkout.resolve())}
            subprocess.run([str(word) for word in line], env=environment, check=True)


if __name__ == "__main__":
    main()
