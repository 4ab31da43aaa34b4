"""Faults between machines that join, the door and the fleet, by the hundred; then everything is counted.

    python -m tests.cluster.http.campaign --faults 1000 --seed 1

The door, TLS, the client, the mailboxes and the fleet are the real ones. What plays is scripted, so that batches are
made at once: each has a content of its own. At the end, every batch that was acknowledged has been received exactly
once, and the games of each worker are numbered without a gap.
"""

import argparse
import errno
import logging
import os
import random
import secrets
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from keima.base.files import write_atomically
from keima.cluster.fleet.backend import Fleet
from keima.cluster.http import door as door_module
from keima.cluster.http.client import DoorClient, DoorRefused, DoorUnreachable, WrongServer
from keima.cluster.http.joining import CannotJoin, JoinedMachine, Membership
from keima.cluster.http.links import make_link, revoke_link
from keima.cluster.http.protocol import Link, Registration
from keima.cluster.http.source import CrowdProcessManager
from keima.cluster.ssh.transport import LocalTransport
from keima.config.sections.crowd import CROWD_NAME
from keima.config.sections.workers import WorkerSettings
from keima.worker.worker_folder import BrokenMessage, Heartbeat, WorkerFolder
from tests.cluster.http.bad_network import BadNetwork, bad_network
from tests.cluster.http.open_door import CODE, RUN_ID, OpenDoor, batch_file, open_door, sha256
from tests.cluster.local_fleet import fleet_settings
from tests.small_run import GAME, model_bytes

BATCH_GAMES = 10
SETTLE_SECONDS = 180.0
SESSION_SECONDS = 0.5
KEPT = 50  # batches that may be sent again
log = logging.getLogger(__name__)


class ScriptedMachine(JoinedMachine):
    """A machine whose workers make batches at once instead of playing."""

    def step(self) -> None:
        """Play, and exchange files."""
        for member in self._members.values():
            self._play(member.folder, member.name)
        if self._clock() >= self._sync_at:
            self._sync_at = self._clock() + min(self._try_to_sync(), 0.3)

    def _play(self, folder: WorkerFolder, name: str) -> None:
        try:
            assignment = folder.read_assignment()
        except BrokenMessage:
            return
        if assignment is None:
            return
        mark = folder.root / "begun"
        first = int(mark.read_text()) if mark.exists() else 0
        if first + BATCH_GAMES <= assignment.granted and len(folder.batch_files()) < 5:
            data = f"{name} {first} {secrets.token_hex(8)} ".encode() * random.choice((1, 100, 20_000))
            write_atomically(folder.outbox / batch_file(name, data, first=first, games=BATCH_GAMES), data)
            write_atomically(mark, str(first + BATCH_GAMES).encode())
        beat = time.monotonic_ns() // 10**6
        done = int(mark.read_text()) if mark.exists() else 0
        heartbeat = Heartbeat(
            run_id=RUN_ID,
            worker=name,
            beat=beat,
            pid=1,
            state="playing",
            model_version=assignment.model_version,
            granted=assignment.granted,
            begun=done,
            finished=done,
            speed=1.0,
            lease=assignment.lease,
        )
        folder.write_heartbeat(heartbeat)


class RecordingClient(DoorClient):
    """A client that remembers what was acknowledged; ``full`` is a full disk of its machine."""

    full = False
    acknowledged: dict[str, str]
    batches: dict[str, tuple[str, bytes]]

    def send_batch(self, worker: str, name: str, data: bytes, sha256: str, *, offset: int) -> None:
        """See ``DoorClient``."""
        super().send_batch(worker, name, data, sha256, offset=offset)
        self.acknowledged[name] = sha256
        self.batches[name] = (worker, data)
        while len(self.batches) > KEPT:
            del self.batches[next(iter(self.batches))]

    def fetch_file(self, worker: str, file: Any, path: Path) -> None:
        """See ``DoorClient``."""
        if self.full:
            raise OSError(errno.ENOSPC, "No space left on device")
        super().fetch_file(worker, file, path)


class Campaign:
    """A run with machines that join, and its faults."""

    def __init__(self, root: Path, *, machines: int, seed: int) -> None:
        self.root, self.random = root, random.Random(seed)
        door_module.SESSION_SECONDS = SESSION_SECONDS
        door_module.MOST_SYNC_SECONDS = door_module.LEAST_SYNC_SECONDS = 0.2
        self.counts: Counter[str] = Counter()
        self.acknowledged: dict[str, str] = {}
        self.batches: dict[str, tuple[str, bytes]] = {}
        self.seen: dict[str, str] = {}
        self.begins: dict[str, set[int]] = {}  # by worker: the first games of what was received
        self.version = 1
        self.wall_offset = 0.0
        self.disk_full_until = 0.0
        self.heal: list[tuple[float, Callable[[], None]]] = []
        self._stack = ExitStack()
        self._door_stack = ExitStack()
        self.door = self._open_door()
        self.networks = [self._stack.enter_context(bad_network(self.door.port)) for _ in range(machines)]
        self.keys = [f"{number:043d}" for number in range(machines)]
        self.machines = [self._join(number) for number in range(machines)]
        self.fleet = self._open_fleet()

    def _open_door(self) -> OpenDoor:
        opened = self._door_stack.enter_context(open_door(self.root / CROWD_NAME, code=CODE))
        opened.door._wall = lambda: time.time() + self.wall_offset
        store = opened.door.store_part

        def store_part(*arguments: Any, **more: Any) -> int:
            if time.monotonic() < self.disk_full_until:
                raise OSError(errno.ENOSPC, "No space left on device")
            return store(*arguments, **more)

        opened.door.store_part = store_part  # type: ignore[method-assign]
        return opened

    def _open_fleet(self) -> Fleet:
        given = {"host": CROWD_NAME, "name": CROWD_NAME, "directory": str(self.root / CROWD_NAME), "processes": 1}
        (self.root / "workers").mkdir(exist_ok=True)
        fleet = Fleet(
            self.root / "workers",
            [WorkerSettings.model_validate({**given, "python": sys.executable})],
            game=GAME,
            settings=fleet_settings(self.root),
            run_id=RUN_ID,
            connect=lambda machine: LocalTransport(self.root / CROWD_NAME, worker=machine.name),
            process_manager=lambda machine: CrowdProcessManager(self.root / CROWD_NAME, usual_silence=6.0),
            log_event=lambda text: log.info("%s", text),
        )
        fleet.publish(self.version, model_bytes(self.version))
        return fleet

    def _link(self, number: int) -> Link:
        return Link(
            f"https://127.0.0.1:{self.networks[number].port}", self.door.link.secret, self.door.link.fingerprint
        )

    def _client(self, number: int) -> RecordingClient:
        client = RecordingClient(self._link(number), key=self.keys[number], seconds=0.5)
        client.acknowledged, client.batches = self.acknowledged, self.batches
        return client

    def _join(self, number: int) -> ScriptedMachine:
        for _ in range(100):
            self._heal_due()
            with suppress(DoorUnreachable, DoorRefused, WrongServer), self._client(number) as client:
                wanted = Registration(name=f"m{number}", workers=2, key=self.keys[number])
                registered = client.register(wanted)
                member = Membership(link="", key=self.keys[number], name=f"m{number}", workers=registered.workers)
                folder = self.root / f"machine{number}"
                said = lambda text: log.debug("%s", text)  # noqa: E731
                return ScriptedMachine(self._client(number), member, folder, run_id=RUN_ID, code=CODE, say=said)
            time.sleep(0.1)
        raise AssertionError(f"machine {number} cannot register")

    # What goes on.

    def step(self) -> None:
        """Let everybody do what is due."""
        self._heal_due()
        for number, machine in enumerate(self.machines):
            try:
                machine.step()
            except CannotJoin:
                self._rejoin(number)
        self._count()

    def _heal_due(self) -> None:
        now = time.monotonic()
        for due in [each for each in self.heal if each[0] <= now]:
            self.heal.remove(due)
            due[1]()

    def _rejoin(self, number: int) -> None:
        machine = self.machines[number]
        machine._client.close()
        self.machines[number] = self._join(number)

    def _count(self) -> None:
        for worker in self.fleet.workers:
            here = self._delivered(worker)
            self.fleet.grant(worker, granted=here + 10 * BATCH_GAMES, delivered=here)
        for pending in self.fleet.collect():
            data, name = pending.fetch(2**24), pending.file_name
            first = int(name.split("-")[0])
            if name in self.seen:
                assert self.seen[name] == sha256(data), f"{name} came again with other content"
                self.counts["received again"] += 1
            else:  # a small batch may come before an earlier large one
                begins = self.begins.setdefault(pending.worker, set())
                assert first not in begins, f"{name} is another batch of the same games"
                assert data.startswith(f"{pending.worker} {first} ".encode()), f"{name} has other content"
                self.seen[name] = sha256(data)
                begins.add(first)
            self.fleet.release(pending, delivered=self._delivered(pending.worker))

    def _delivered(self, worker: str) -> int:
        """Return the number after a worker's last received game."""
        return max(self.begins.get(worker, ()), default=-BATCH_GAMES) + BATCH_GAMES

    def _gaps(self) -> list[str]:
        """Return the batches that are missing between those that were received."""
        return [
            f"{first} of {worker}"
            for worker, begins in self.begins.items()
            for first in range(0, max(begins), BATCH_GAMES)
            if first not in begins
        ]

    # Faults.

    def fault(self) -> None:
        """Do something bad."""
        kind = self.random.choice([name for name in dir(self) if name.startswith("fault_")])
        self.counts[kind.removeprefix("fault_")] += 1
        getattr(self, kind)()

    def _network(self) -> BadNetwork:
        return self.random.choice(self.networks)

    def _later(self, seconds: float, action: Callable[[], None]) -> None:
        self.heal.append((time.monotonic() + seconds, action))

    def _set(self, network: BadNetwork, seconds: float, name: str, value: object, usual: object) -> None:
        setattr(network, name, value)
        self._later(seconds, lambda: setattr(network, name, usual))

    def fault_cut_answers(self) -> None:
        """Answers are cut after some bytes."""
        self._set(self._network(), 1.0, "cut_after", self.random.choice((100, 2000, 50_000)), None)

    def fault_half_uploads(self) -> None:
        """Uploads are cut after some bytes."""
        self._set(self._network(), 1.0, "cut_uploads_after", self.random.choice((100, 2000, 100_000)), None)

    def fault_black_hole(self) -> None:
        """Bytes vanish."""
        self._set(self._network(), 1.0, "is_black_hole", True, False)

    def fault_refused_connections(self) -> None:
        """Nobody answers."""
        self._set(self._network(), 0.5, "refuses", True, False)

    def fault_slow_line(self) -> None:
        """A slow reader and writer."""
        self._set(self._network(), 0.5, "bytes_per_second", 2e6, None)

    def fault_dropped_connections(self) -> None:
        """Open connections end."""
        self._network().drops = True

    def fault_replayed_upload(self) -> None:
        """A batch that was acknowledged, and may be in the ledger, is sent again."""
        self._send_again(times=1)

    def fault_doubled_upload(self) -> None:
        """It is sent several times in a row."""
        self._send_again(times=3)

    def _send_again(self, *, times: int) -> None:
        if not self.batches:
            return
        name = self.random.choice(list(self.batches))
        worker, data = self.batches[name]
        number = next(n for n, each in enumerate(self.machines) if worker in each._members)
        with self._client(number) as client, suppress(DoorUnreachable, DoorRefused, WrongServer):
            for _ in range(times):
                client.send_batch(worker, name, data, sha256(data), offset=0)

    def fault_forged_upload(self) -> None:
        """A known name comes with other content."""
        if not self.batches:
            return
        name = self.random.choice(list(self.batches))
        worker, _ = self.batches[name]
        number = next(n for n, each in enumerate(self.machines) if worker in each._members)
        with suppress(DoorUnreachable, DoorRefused, WrongServer):
            client = DoorClient(self._link(number), key=self.keys[number], seconds=0.5)
            with client:
                client.send_batch(worker, name, b"forged", sha256(b"other"), offset=0)

    def fault_killed_client(self) -> None:
        """A machine's program is killed and started again."""
        number = self.random.randrange(len(self.machines))
        self.machines[number]._client.close()
        self.machines[number] = self._join(number)

    def fault_killed_door(self) -> None:
        """The door ends at once and is opened again, on another port behind the same addresses."""
        self._door_stack.close()
        self._door_stack = ExitStack()
        self.door = self._open_door()
        for network in self.networks:
            network.to_port = self.door.port

    def fault_killed_coach(self) -> None:
        """The fleet's process is killed and started again; the ledger stays."""
        for thread in self.fleet._threads.values():
            thread.connection.done = True
            thread.wake()
            thread.join(10.0)
            thread.connection._disconnect()
        self.fleet = self._open_fleet()

    def fault_full_disk_of_main_node(self) -> None:
        """The door cannot store anything."""
        self.disk_full_until = time.monotonic() + 1.0

    def fault_full_disk_of_machine(self) -> None:
        """A machine cannot store models."""
        client = self.random.choice(self.machines)._client
        assert isinstance(client, RecordingClient)
        client.full = True
        self._later(1.0, lambda: setattr(client, "full", False))

    def fault_new_model(self) -> None:
        """No fault: a new model is published."""
        self.version += 1
        self.fleet.publish(self.version, model_bytes(self.version))

    def fault_revoked_link(self) -> None:
        """All machines lose their link, and come by another one."""
        revoke_link(self.root / CROWD_NAME, "everyone")
        self._renew_link()

    def fault_expired_link(self) -> None:
        """The link expires; machines that came by it play on."""
        self._renew_link()

    def _renew_link(self) -> None:
        secret = make_link(self.root / CROWD_NAME, "everyone").secret
        self.door.link = Link(self.door.link.address, secret, self.door.link.fingerprint)

    def fault_clock(self) -> None:
        """The main node's clock is off by days."""
        self.wall_offset = self.random.uniform(-5, 5) * 86_400

    # The end.

    def settle(self) -> None:
        """End all faults, and wait until everything that was made has been received."""
        for _, action in self.heal:
            action()
        self.heal.clear()
        self.disk_full_until, self.wall_offset = 0.0, 0.0
        until = time.monotonic() + SETTLE_SECONDS
        while missing := [name for name in self.acknowledged if name not in self.seen] or self._gaps():
            assert time.monotonic() < until, f"acknowledged and lost: {missing[:5]}"
            self.step()
        for name, digest in self.acknowledged.items():
            assert self.seen[name] == digest

    def close(self) -> None:
        """End everything."""
        for machine in self.machines:
            machine._client.close()
        self.fleet.close()
        self._stack.close()
        self._door_stack.close()


def run_campaign(root: Path, *, faults: int, seed: int, machines: int = 6, every: float = 0.1) -> Campaign:
    """Run a campaign, and return it closed.

    Raises:
        AssertionError: something was lost or counted twice.
    """
    campaign = Campaign(root, machines=machines, seed=seed)
    try:
        due = time.monotonic()
        while (done := sum(campaign.counts.values()) - campaign.counts["received again"]) < faults:
            campaign.step()
            if time.monotonic() >= due:
                campaign.fault()
                due = time.monotonic() + every
                if (done + 1) % 100 == 0:
                    log.warning("%d faults, %d batches received", done + 1, len(campaign.seen))
        campaign.settle()
    finally:
        campaign.close()
    return campaign


def main() -> None:
    """Run a campaign, and print what happened."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    logging.getLogger("keima").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory(prefix="keima-campaign-") as folder:
        began = time.monotonic()
        campaign = run_campaign(Path(folder), faults=arguments.faults, seed=arguments.seed)
    log.warning("%s", dict(sorted(campaign.counts.items())))
    log.warning(
        "%d batches acknowledged, %d received, each once, in %.0f s",
        len(campaign.acknowledged),
        len(campaign.seen),
        time.monotonic() - began,
    )


if __name__ == "__main__":
    main()
    os._exit(0)
