"""A fleet whose workers have joined by ``keima join``: real programs, TLS and folders of this machine."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from keima.cluster.fleet.backend import Fleet
from keima.cluster.http.source import CrowdProcessManager
from keima.cluster.machines.release import worker_code_hash
from keima.cluster.ssh.transport import LocalTransport
from keima.config.sections.crowd import CROWD_NAME
from keima.config.sections.workers import WorkerSettings
from keima.paths import program_of, with_code_on_path
from tests.cluster.http.open_door import RUN_ID, open_door
from tests.cluster.local_fleet import fleet_settings
from tests.small_run import GAME

PATIENCE = 300.0  # a busy machine compiles for minutes
SILENCE = 6.0


class Volunteer:
    """A machine that joins, as a program of its own with a folder of its own."""

    def __init__(self, link: str, folder: Path, name: str, *more: str) -> None:
        self.folder, self.name = folder, name
        self._words = [link, "--folder", str(folder), "--name", name, "--cores", "1", "--beside-work", *more]
        self.output = folder.with_suffix(".out")
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start, or start again."""
        with self.output.open("ab") as output:
            self.process = subprocess.Popen(
                [*program_of("keima"), "join", *self._words],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=with_code_on_path({**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}),
                start_new_session=True,
            )

    def kill(self) -> None:
        """Kill the program and its workers at once, as a power cut does."""
        if self.process and self.process.poll() is None:
            for pid in self._children(self.process.pid):
                os.kill(pid, signal.SIGKILL)
            self.process.kill()
        if self.process:
            self.process.wait(30)

    def end(self) -> int:
        """End it as Ctrl-C does; return its exit code."""
        assert self.process
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(60)

    @staticmethod
    def _children(pid: int) -> list[int]:
        text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
        return [each for child in map(int, text.split()) for each in (child, *Volunteer._children(child))]

    def said(self) -> str:
        """Return what it has printed."""
        return self.output.read_text() if self.output.exists() else ""


class CrowdFleet:
    """A ``SelfPlayBackend`` for the tests of all backends: two machines have joined."""

    def __init__(self, root: Path, *, volunteers: int = 2, **changes: Any) -> None:
        self._stack = ExitStack()
        self.door = self._stack.enter_context(open_door(root / CROWD_NAME, code=worker_code_hash()))
        given = {"host": CROWD_NAME, "name": CROWD_NAME, "directory": str(root / CROWD_NAME), "processes": 1}
        self.machine = WorkerSettings.model_validate({**given, "python": sys.executable})
        self.events: list[str] = []
        (root / "workers").mkdir(exist_ok=True)
        self.fleet = Fleet(
            root / "workers",
            [self.machine],
            game=GAME,
            settings=fleet_settings(root, **changes),
            run_id=RUN_ID,
            connect=lambda machine: LocalTransport(root / CROWD_NAME, worker=machine.name),
            process_manager=lambda machine: CrowdProcessManager(root / CROWD_NAME, usual_silence=SILENCE),
            log_event=self.events.append,
        )
        self.volunteers = [
            Volunteer(str(self.door.link), root / f"volunteer{number}", f"v{number}") for number in range(volunteers)
        ]
        for volunteer in self.volunteers:
            volunteer.start()
        self.wait(lambda: len(self.fleet.workers) >= volunteers)

    def wait(self, done: Callable[[], object], *, seconds: float = PATIENCE) -> None:
        """Step the fleet until it is so."""
        deadline = time.monotonic() + seconds
        while not done():
            assert time.monotonic() < deadline, "\n".join([*self.events, *(each.said() for each in self.volunteers)])
            self.fleet.step()
            time.sleep(0.05)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.fleet, name)

    def close(self) -> None:
        """End everything."""
        self.fleet.close()
        for volunteer in self.volunteers:
            volunteer.kill()
        self._stack.close()
