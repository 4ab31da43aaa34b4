"""A slot on its node: the folder of one worker, and everything that is done there.

The folder outlives the slot. A lock beside it (``workers/.<worker>.seat``) is held as long as the slot lives and its
worker runs, so that one slot at a time has a folder, also if nodes share their homes. A new slot takes a free folder
with anything of its run before it makes one of its own: so finished games that an earlier slot could not hand over
reach the Coach.

The worker must not outlive the slot: Ray gives its processor to others. A small process, the guard, waits for the end
of the slot, even by SIGKILL, stops the worker as over SSH, and only then gives the folder's lock back.

It runs before the packages are checked, and uses only the standard library.
"""

import fcntl
import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from keima.base.files import FileTooLarge
from keima.cluster.agent.commands import STOP, StopRequest, to_json
from keima.cluster.agent.owner import GAMES_SUFFIX, read_contents_label
from keima.cluster.ssh.errors import RemoteFailure, Unreachable
from keima.cluster.ssh.transport import LocalTransport, Stream, StreamEnded

WORKERS = "workers"
FOLDER = re.compile(r"(ray-[1-9][0-9]{0,8})(\..*)?")  # of a worker, or of its games that were set aside
GUARD_SECONDS = 10.0  # for a worker to hand over its finished games after the end of its slot
# Waits for the end of its standard input, then stops the worker; twice, as a start may have been under way. It is no
# child of the slot: Ray ends those with it.
GUARD = 'exec 3<&0; (cat >/dev/null; "$@"; sleep 1; "$@") <&3 3<&- >/dev/null 2>&1 &'


class RaySlot:
    """A slot.

    Args:
        root: the folder for everything on this node.
        program: the remote program, relative to ``root``.
    """

    def __init__(self, root: Path, program: str) -> None:
        self._root, self._program = root, program
        self._files = LocalTransport(root)
        self._held: dict[str, int] = {}  # the locks' descriptors, by worker
        self._guards: dict[str, int] = {}  # what the guards wait for
        self._streams: dict[int, Stream] = {}

    def call(self, operation: str, *arguments: Any) -> tuple[str, Any]:
        """Carry out one of the operations below.

        Returns:
            ``("ok", its result)``, or the kind of error and its text: exceptions stay on the node.
        """
        try:
            return "ok", getattr(self, operation)(*arguments)
        except FileNotFoundError as error:
            return "missing", str(error.filename)
        except FileTooLarge as error:
            return "large", str(error)
        except StreamEnded as error:
            return "ended", error.what
        except RemoteFailure as error:
            return "failed", (error.what, error.remedy)
        except Unreachable as error:
            return "late", error.what
        except OSError as error:
            return "failed", (f"{operation}: {error}", "")

    # The folder.

    def take_folder(self, run_id: str, tag: str, fresh: str) -> dict[str, Any] | None:
        """Take a folder: one with anything of this run, or ``fresh``; None if another run's slot has that."""
        for worker in [*(self._of_run(run_id, tag)), fresh]:
            if self.lock_folder(worker):
                self._files.worker = worker
                return {
                    "worker": worker,
                    "host": platform.node(),
                    "python": sys.executable,
                    "version": platform.python_version(),
                    "ray": getattr(sys.modules.get("ray"), "__version__", ""),
                    "gpus": os.environ.get("CUDA_VISIBLE_DEVICES", ""),
                }
        return None

    def lock_folder(self, worker: str) -> bool:
        """Take a worker's folder; return whether it was free."""
        if worker in self._held:
            return True
        folder = self._root / WORKERS
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        # Slots of earlier versions, which may still run, hold a lock of this name.
        lock = os.open(folder / f".{worker}.seat", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(lock)
            return False
        self._held[worker] = lock
        self._guards[worker] = self._begin_guard(worker, lock)
        return True

    def find_left_games(self, run_id: str, tag: str) -> list[str]:
        """Return the workers of this run with games in their outbox and no slot, and those that this slot holds."""
        found = []
        for worker in self._of_run(run_id, tag):
            if worker != self._files.worker and self._has_games(worker, tag) and self.lock_folder(worker):
                found.append(worker)
        for worker in self._held.keys() - {*found, self._files.worker}:
            self._release_folder(worker)
        return found

    def _of_run(self, run_id: str, tag: str) -> Iterator[str]:
        """Yield the workers in whose folders there is anything of this run, lowest number first."""
        found = (FOLDER.fullmatch(path.name) for path in (self._root / WORKERS).glob("ray-*"))
        names = {match[1] for match in found if match}
        for worker in sorted(names, key=lambda name: int(name.rpartition("-")[2])):
            if read_contents_label(self._root / WORKERS / worker) == run_id or self._has_games(worker, tag):
                yield worker

    def _has_games(self, worker: str, tag: str) -> bool:
        """Return whether there are finished games of a run, in the outbox or set aside while another run played."""
        place = self._root / WORKERS / worker
        aside = place.with_name(f"{worker}.{tag}")
        return any((place / "outbox").glob(f"*--{tag}-*{GAMES_SUFFIX}")) or any(
            (aside / "outbox").glob(f"*{GAMES_SUFFIX}")
        )

    def _begin_guard(self, worker: str, lock: int) -> int:
        """Begin the guard of a worker; return the descriptor whose end it waits for."""
        theirs, ours = os.pipe()
        request = to_json(StopRequest(f"{WORKERS}/{worker}", GUARD_SECONDS))
        command = [sys.executable, "-I", self._program, "stop", STOP.name, request]
        subprocess.run(
            ["/bin/sh", "-c", GUARD, "guard", *command],
            cwd=self._root,
            stdin=theirs,
            pass_fds=[lock],
            start_new_session=True,
            check=True,
        )
        os.close(theirs)
        return ours

    def _release_folder(self, worker: str) -> None:
        os.close(self._guards.pop(worker))
        os.close(self._held.pop(worker))

    # Files and programs: see ``Transport``.

    def put(self, name: str, data: bytes, durable: bool) -> None:
        """Write a file."""
        self._files.put(data, name, durable=durable)

    def get(self, name: str, limit: int) -> bytes:
        """Return the content of a file."""
        return self._files.get(name, limit)

    def names(self, folder: str) -> list[tuple[str, int]]:
        """Return names and sizes of the files of a folder."""
        return [(entry.name, entry.size) for entry in self._files.list_files(folder)]

    def remove(self, name: str) -> None:
        """Delete a file."""
        self._files.remove(name)

    def run(self, argv: list[str], seconds: float) -> tuple[int, bytes, bytes]:
        """Run a program; return its exit status and output."""
        done = self._files.run(argv, seconds=seconds)
        return done.code, done.stdout, done.stderr

    def open(self, argv: list[str]) -> int:
        """Begin a lasting program; return its number."""
        number = max(self._streams, default=0) + 1
        self._streams[number] = self._files.open(argv)
        return number

    def send(self, number: int, data: bytes) -> None:
        """Send bytes to a lasting program."""
        self._streams[number].send(data)

    def receive(self, number: int, seconds: float) -> bytes:
        """Return bytes from a lasting program."""
        return self._streams[number].receive(seconds)

    def end(self, number: int) -> None:
        """End the input of a lasting program."""
        if number in self._streams:
            self._streams.pop(number).close()
