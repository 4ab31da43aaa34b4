"""The real program on real hosts: a checkout that runs ``start_main.py --distributed``."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import yaml

from keima.cli.reports.audit import Audit, audit
from keima.cluster.agent.code import extract_wheel
from keima.cluster.machines.release import pack_code, worker_requirements
from keima.data.ledger import read_ledger
from keima.paths import CACHE
from tests.lab.hosts import Host, Hosts
from tests.lab.processes import command_line, parent, pids, state
from tests.lab.program import Program, ended_with_the_block
from tests.small_run import small_settings
from tests.sources import copy_checkout

WORKER_CLASS = "custom_worker.CustomWorker"
FLEET = "keima.cluster.fleet.process.program"  # in the command line of the fleet's process
BROKEN = "broken"  # a file in a machine's home: while it exists, every worker dies as soon as it is started
PAUSE_SECONDS = "PAUSE_SECONDS"  # an environment variable: the pause of a worker between two steps of its games
# Slow enough for six processes on two cores, and slow enough that every worker has games in progress when a fault
# occurs.
CUSTOM_WORKER = f'''\
"""A worker of the user's own."""

import os
import time
from pathlib import Path

from keima.self_play.parallel_games import SelfPlay
from training.worker import Worker

if (Path.home() / "{BROKEN}").exists():
    raise ImportError("libgo.so.9: cannot open shared object file")


class CustomWorker(Worker):
    """Takes its time."""

    def play(self, self_play: SelfPlay) -> bool:
        self.note = "plays in its own way"
        time.sleep(float(os.environ.get("{PAUSE_SECONDS}", "0.02")))
        return super().play(self_play)
'''
PATIENCE = 120.0  # seconds; for a machine that is also busy with other work
MARGIN = 5.0
ACTIVE, SYNCING = "Active", "Syncing"


class Driver(Program):
    """A checkout with its config, and the program that runs in it.

    Args:
        folder: for the checkout.
        hosts: the machines.
        in_config: how many of them the config lists.
        bare: how many of those have nothing installed. All others have a clone of the checkout.
        installed: whether another driver of these hosts has installed everything.
        machines: further settings of a host, by its name.
        changes: changes of the config, by section.
        environment: variables of the program, in addition to this process's own.
    """

    def __init__(
        self,
        folder: Path,
        hosts: Hosts,
        *,
        in_config: int,
        bare: int = 0,
        installed: bool = False,
        machines: Mapping[str, Mapping[str, Any]] | None = None,
        changes: Mapping[str, Mapping[str, Any]] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.hosts = hosts
        self.machines = machines or {}
        variables = {**os.environ, "HOME": str(hosts.home), "KEIMA_CACHE": str(CACHE), **(environment or {})}
        variables.pop("SSH_AUTH_SOCK", None)
        super().__init__(folder, variables)
        self.config = self.checkout / "configs" / "config.yaml"
        self.log = self.checkout / "logs" / "distributed_training.log"
        self.seen: set[str] = set()  # batches that were complete on some machine at some time
        self._copy_code()
        self._write_config(hosts[:in_config], changes or {})
        if installed:
            return
        # Compiled code is the same on all machines: they are all this one.
        subprocess.run(
            [sys.executable, "start_worker.py", "--test-games", "tic_tac_toe"],
            cwd=self.checkout,
            check=True,
            capture_output=True,
        )
        for number, host in enumerate(hosts):
            unfinished = shutil.ignore_patterns("*.part", "*.tar.gz*")  # other tests write to the cache meanwhile
            shutil.copytree(CACHE, host.home / ".cache" / "keima", ignore=unfinished)
            if number >= bare:
                self._clone(host)
            _give_to_user(host, host.home / ".cache")

    def _copy_code(self) -> None:
        copy_checkout(self.checkout)
        (self.checkout / "custom_worker.py").write_text(CUSTOM_WORKER)

    def _write_config(self, listed: Sequence[Host], changes: Mapping[str, Mapping[str, Any]]) -> None:
        settings = small_settings(
            self.checkout / "runs",
            run={"iterations": None},
            training={"games_per_iteration": 200, "checkpoint_every": 1},
            self_play={"games_per_worker": 60},
            evaluation={"every": 2, "num_simulations": 4, "rating_games": 8, "gating": "sprt", "gating_games": 8}
            | {
                "sprt": {"elo0": -1000.0, "elo1": -500.0, "alpha": 0.2, "beta": 0.2}
            },  # nearly every candidate passes, after a few games
        )
        values = settings.model_dump(mode="json")
        values["distributed"] |= {
            "enabled": True,
            "workers": [self.settings_of(host) for host in listed],
            "worker_class": WORKER_CLASS,
            "bootstrap": True,
            "sync_interval": 10,
        }
        for section, changed in changes.items():
            values[section] |= changed
        self.config.write_text(yaml.safe_dump(values, sort_keys=False))

    def settings_of(self, host: Host) -> dict[str, Any]:
        """Return a host as the config has it."""
        return {
            "host": host.address,
            "name": host.name,
            "user": host.user,
            "key_path": "~/.ssh/id_ed25519",
            "python": host.python,
            "processes": 1,
            **self.machines.get(host.name, {}),
        }

    def _clone(self, host: Host) -> None:
        archive = host.home / "code.whl"
        archive.write_bytes(pack_code(worker_requirements(WORKER_CLASS, root=self.checkout), self.checkout))
        extract_wheel(archive, host.home / "keima")
        _give_to_user(host, host.home / "keima")

    # The program.

    def connector(self, *arguments: str, seconds: float = PATIENCE) -> subprocess.CompletedProcess[str]:
        """Run ``python distributed/ssh_connector.py`` with these arguments."""
        return self.python("distributed/ssh_connector.py", *arguments, seconds=seconds)

    def python(self, *arguments: str, seconds: float = PATIENCE) -> subprocess.CompletedProcess[str]:
        """Run the checkout's interpreter next to the program."""
        return subprocess.run(
            [sys.executable, *arguments],
            cwd=self.checkout,
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )

    # The state.

    def status(self) -> dict[str, Any]:
        """Return status.json; empty after a start, until it is written."""
        try:
            found: dict[str, Any] = json.loads((self.checkout / "distributed" / "status.json").read_bytes())
        except FileNotFoundError:
            return {}
        return found

    def workers(self) -> dict[str, dict[str, Any]]:
        """Return the workers in status.json."""
        return {worker["name"]: worker for worker in self.status().get("workers", [])}

    def states(self) -> dict[str, str]:
        """Return the state of each worker."""
        return {name: worker["state"] for name, worker in self.workers().items()}

    def wait(self, condition: Callable[[], object], what: str, *, seconds: float = PATIENCE) -> float:
        """Wait for a condition and return the seconds that it took; on failure print the state."""
        began = time.monotonic()
        while not condition():
            assert self.runs, f"the program has ended while {what} was waited for; {self._how_it_stands()}"
            assert time.monotonic() - began < seconds, (
                f"waited {seconds:.0f} s in vain for {what}; {self._how_it_stands()}"
            )
            self.poll()
            time.sleep(0.05)
        return time.monotonic() - began

    def wait_until_all_play(self, count: int | None = None, *, seconds: float = PATIENCE) -> None:
        """Wait until all workers (or ``count``) are Active."""

        def all_play() -> bool:
            states = list(self.states().values())
            return self.is_current and set(states) == {ACTIVE} and (count is None or len(states) == count)

        self.wait(all_play, f"{count or 'all'} workers to be Active", seconds=seconds)

    @property
    def is_current(self) -> bool:
        """Return whether the status comes from the running session."""
        found = self.status()
        return bool(found) and not found["ended"]

    def _how_it_stands(self) -> str:
        texts = (self.checkout / "distributed" / "status.txt", self.log, self.output)
        return "\n\n".join(f"{path.name}:\n{_tail(path)}" for path in texts)

    # What is on the machines, and in the ledger.

    def folder(self, host: Host) -> Path:
        """Return the folder of a host's worker, as this machine sees it."""
        return host.home / "keima" / "workers" / host.name

    def add(self, host: Host) -> None:
        """Add a host, as a script does while a Coach runs."""
        options = self.settings_of(host)
        address, user = options.pop("host"), options.pop("user")
        call = f"SSHConnector().add_worker({address!r}, {user!r}, **{options!r})"
        script = f"from keima.cluster.connector import SSHConnector; {call}"
        done = self.python("-c", script)
        assert done.returncode == 0, done.stderr

    def remove(self, host: Host) -> None:
        """Remove a host by editing the file, and wait until it is gone completely."""
        settings = yaml.safe_load(self.config.read_text())
        settings["distributed"]["workers"] = [
            each for each in settings["distributed"]["workers"] if each["name"] != host.name
        ]
        self.config.write_text(yaml.safe_dump(settings, sort_keys=False))
        self.wait(lambda: host.name not in self.workers(), f"{host.name} to be dropped")

    def heartbeat(self, host: Host) -> dict[str, Any]:
        """Return a worker's last heartbeat, from its own disk."""
        found: dict[str, Any] = json.loads((self.folder(host) / "worker.json").read_bytes())
        return found

    def spool(self, host: Host) -> set[str]:
        """Return the batches on a host."""
        return {path.stem for path in (host.home / "keima" / "workers").glob("*/outbox/*.games")}

    def poll(self) -> None:
        """Record every batch that is on a host now."""
        for host in self.hosts:
            self.seen |= self.spool(host)

    def received(self) -> list[str]:
        """Return the batches in the ledger, in the order of receipt."""
        with read_ledger(self.run_dir) as ledger:
            return [row.id for row in ledger.received_batches()]

    def audit(self) -> Audit:
        """Return the audit of the run."""
        return audit(self.run_dir)

    def fleet_processes(self) -> list[int]:
        """Return the fleet's process of the running program: one, or none while it is replaced."""
        ours = [pid for pid in pids() if self.process and parent(pid) == self.process.pid]
        return [pid for pid in ours if FLEET in command_line(pid) and state(pid) not in "ZX"]

    def worker_processes(self, host: Host) -> list[int]:
        """Return the worker processes of a host, by their ids on this machine."""
        return [pid for pid in host.pids() if _is_worker(pid) and state(pid) not in "ZX"]


def driven(folder: Path, hosts: Hosts, **options: Any) -> AbstractContextManager[Driver]:
    """Return a block with a ``Driver`` with these arguments, whose program ends with the block."""
    return ended_with_the_block(Driver(folder, hosts, **options))


def in_time(seconds: float) -> float:
    """Return a time limit: the seconds that a task takes on an idle machine, scaled up for a busy one."""
    return MARGIN + seconds * max(1.0, os.getloadavg()[0] / len(os.sched_getaffinity(0)))


def _is_worker(pid: int) -> bool:
    words = command_line(pid).split()
    return len(words) > 2 and words[1].endswith("keima/__main__.py") and "--folder" in words


def _give_to_user(host: Host, path: Path) -> None:
    owner = host.home.stat()
    subprocess.run(["chown", "-R", f"{owner.st_uid}:{owner.st_gid}", str(path)], check=True)


def _tail(path: Path) -> str:
    try:
        return "\n".join(path.read_text(encoding="utf-8", errors="replace").splitlines()[-25:])
    except FileNotFoundError:
        return "(not there)"
