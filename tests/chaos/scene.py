"""The scene of the faults: a running cluster, its present state, and the effects that faults must explain."""

import os
import random
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from keima.cli.reports.audit import audit
from keima.data.ledger import read_ledger
from keima.data.packs import read_batch_file
from keima.worker.worker_folder import is_batch_of_run
from tests.lab.driver import ACTIVE, PAUSE_SECONDS, Driver, driven
from tests.lab.hosts import Host, Hosts, running_hosts
from tests.lab.network import mount_disk, unmount_disk
from tests.lab.processes import command, state

DISK_MB = 1500  # of a host: a worker needs 1 GB of free space
MAIN_DISK_MB = 1024
CHANGES = {
    "evaluation": {"every": 5, "rating_games": 4},
    "training": {"checkpoint_every": 2},
}  # of the config: more games, less of everything else
BALLAST = "ballast"
CLOCK = "clock"  # a folder whose sitecustomize.py makes Python's wall clock jump by what its file ``offset`` says
SHIM = '''\
"""Makes the wall clock of this process jump."""

import time
from pathlib import Path

_time, _offset = time.time, Path(__file__).with_name("offset")


def jumped() -> float:
    try:
        return _time() + float(_offset.read_text())
    except (OSError, ValueError):
        return _time()


time.time = jumped
'''
Sign = Callable[[], bool]


@dataclass
class Scene:
    """A cluster for faults."""

    driver: Driver
    chance: random.Random
    main_disk: Path
    states: dict[str, str] = field(default_factory=dict)  # as status.json has them
    excused: dict[str, str] = field(default_factory=dict)  # batches that need not be in the ledger, with the reason
    forged: set[str] = field(default_factory=set)  # batches that no worker has played
    damaged_session: int | None = None  # the first session that began without a batch because the batch was damaged
    problems: list[str] = field(default_factory=list)
    coach_is_down: bool = False  # on purpose
    second: Driver | None = None  # another run's Coach on the same hosts, if there has been one

    @property
    def hosts(self) -> Hosts:
        return self.driver.hosts

    def poll(self) -> None:
        """Read the present state."""
        found = self.driver.status()
        self.states = (
            {worker["name"]: worker["state"] for worker in found.get("workers", [])} if not found.get("ended") else {}
        )
        self.driver.poll()

    def another(self) -> Driver:
        """Return another checkout with its own run, whose config lists the same hosts."""
        if self.second is None:
            folder = self.main_disk / "second"
            folder.mkdir()
            machines = self.driver.machines
            self.second = Driver(
                folder, self.hosts, in_config=len(self.hosts), installed=True, machines=machines, changes=CHANGES
            )
        return self.second

    def seen_of(self, driver: Driver) -> set[str]:
        """Return the batches of a driver's run that were ever complete on some machine."""
        with read_ledger(driver.run_dir) as ledger:
            run = ledger.run_id
        return {batch for batch in self.driver.seen if is_batch_of_run(f"{batch}.games", run)}

    def state_of(self, host: Host) -> str:
        return self.states.get(host.name, "unknown")

    def is_lost(self, host: Host) -> Sign:
        """Return the sign of an unreachable machine, or of a silent worker."""
        return lambda: self.state_of(host) in ("Offline", "Error")

    def is_not_active(self, host: Host) -> Sign:
        return lambda: self.state_of(host) != ACTIVE

    def is_replaced(self, host: Host) -> Sign:
        """Return the sign of a worker whose dead process was noticed: it is not Active, or another process runs."""
        before, lost = self.driver.worker_processes(host), self.is_not_active(host)
        return lambda: lost() or self.driver.worker_processes(host) not in ([], before)

    def folder(self, host: Host) -> Path:
        return self.driver.folder(host)

    def give(self, host: Host, path: Path) -> None:
        """Give a file on a host's disk to its user."""
        owner = host.home.stat()
        os.chown(path, owner.st_uid, owner.st_gid)

    def processes(self, host: Host, text: str) -> list[int]:
        """Return the processes of a host whose command starts with ``text``."""
        return [pid for pid in host.pids() if command(pid).startswith(text) and state(pid) not in "ZX"]

    def a_received_batch(self, *, of: Host | None = None) -> tuple[str, bytes] | None:
        """Return a batch in the ledger and its file; of a worker that was silent for long, it may be in a pack."""
        with read_ledger(self.driver.run_dir) as ledger:
            rows = [row for row in ledger.received_batches() if of is None or row.worker == of.name][-20:]
        if not rows:
            return None
        chosen = self.chance.choice(rows)
        return chosen.id, read_batch_file(self.driver.run_dir, chosen)

    def granted(self, host: Host) -> tuple[int, int]:
        """Return a worker's granted games, and the number up to which all are delivered."""
        with read_ledger(self.driver.run_dir) as ledger:
            account = ledger.account(host.name)
        return account.granted, account.next_game

    def is_refused(self, batch: str) -> Sign:
        """Return the sign of a file that was refused."""

        def refused() -> bool:
            with read_ledger(self.driver.run_dir) as ledger:
                row = ledger.batch(batch)
            return row is not None and row.state == "quarantined"

        return refused

    def audit_names(self, text: str) -> Sign:
        return lambda: any(text in problem for problem in audit(self.driver.run_dir, quick=True).problems)

    def fill_main_disk(self) -> None:
        with (self.main_disk / BALLAST).open("wb") as file:
            for _ in range(5):
                free = shutil.disk_usage(self.main_disk).free - 2**16
                with suppress(OSError):  # the run has taken some of it meanwhile
                    os.posix_fallocate(file.fileno(), file.seek(0, os.SEEK_END), max(1, free))
        with (self.main_disk / f"{BALLAST}.rest").open("wb", buffering=0) as rest:
            try:
                while rest.write(bytes(4096)):
                    pass
            except OSError:
                pass

    def free_main_disk(self) -> None:
        for path in self.main_disk.glob(f"{BALLAST}*"):
            path.unlink()


@contextmanager
def running_scene(count: int, chance: random.Random, *, pause_seconds: float = 0.02) -> Iterator[Scene]:
    """Yield hosts with one worker each, a main node with its own small disk, and the program, not yet started."""
    with ExitStack() as stack:
        hosts = stack.enter_context(running_hosts(count, disk_mb=DISK_MB))
        disk = hosts.home.parent / "main" / "disk"  # where left-overs of killed processes are searched
        disk.mkdir(parents=True)
        mount_disk(disk, MAIN_DISK_MB)
        stack.callback(unmount_disk, disk, lazily=True)
        machines: dict[str, dict[str, Any]] = {
            host.name: {"env": {"PYTHONPATH": f"/home/{host.user}/{CLOCK}", PAUSE_SECONDS: str(pause_seconds)}}
            for host in hosts
        }
        driver = stack.enter_context(
            driven(
                disk,
                hosts,
                in_config=count,
                machines=machines,
                changes=CHANGES,
                environment={"PYTHONPATH": str(disk / CLOCK)},
            )
        )
        for home in (disk, *(host.home for host in hosts)):
            (home / CLOCK).mkdir()
            (home / CLOCK / "sitecustomize.py").write_text(SHIM)
        scene = Scene(driver=driver, chance=chance, main_disk=disk)
        try:
            yield scene
        finally:
            if scene.second and scene.second.runs:
                scene.second.kill()


def orphans(hosts: Sequence[Host]) -> list[str]:
    """Return the Python programs on hosts where nothing of Keima should run."""
    return [
        f"{host.name}: process {pid} ({command(pid)})"
        for host in hosts
        for pid in host.pids()
        if command(pid).startswith("python")
    ]
