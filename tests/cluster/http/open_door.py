"""A real door with TLS on this machine, served by a thread of the test, and what it is about."""

import hashlib
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from keima.base.system.threads import SteppingThread
from keima.cluster.http.app import Offered, make_door_app
from keima.cluster.http.certificate import make_certificate, read_fingerprint
from keima.cluster.http.client import DoorClient
from keima.cluster.http.door import Door
from keima.cluster.http.links import make_link
from keima.cluster.http.protocol import Link, Registered, Registration
from keima.cluster.http.server import make_server, open_listener
from keima.config.sections.crowd import CrowdSettings
from keima.worker.worker_folder import Assignment, WorkerFolder, batch_name
from tests.small_run import small_settings

RUN_ID = "run"
CODE = "0123456789abcdef"
KEY = "k" * 43
SECONDS = 120.0


@dataclass
class OpenDoor:
    """A door that is served, and one link to it."""

    door: Door
    link: Link
    port: int
    folder: Path
    clients: list[DoorClient] = field(default_factory=list)

    def client(self, *, key: str = "", seconds: float = SECONDS, **other: Any) -> DoorClient:
        """Return a client with this key, which is closed with the door; ``other`` parts of the link are changed."""
        self.clients.append(DoorClient(replace(self.link, **other), key=key, seconds=seconds))
        return self.clients[-1]

    def register(self, *, key: str = KEY, workers: int = 1, name: str = "Anna") -> Registered:
        """Register a machine."""
        return self.client().register(Registration(name=name, workers=workers, key=key))

    def mailbox(self, worker: str) -> WorkerFolder:
        """Return a worker's mailbox."""
        return WorkerFolder(self.folder / "workers" / worker)


@contextmanager
def open_door(folder: Path, *, modules: tuple[str, ...] = (), code: str = CODE, **settings: Any) -> Iterator[OpenDoor]:
    """Serve a door in ``folder`` while the block runs."""
    folder.mkdir(parents=True, exist_ok=True)
    door = Door(folder, run_id=RUN_ID, settings=CrowdSettings(**settings), code_hash=code)
    offered = Offered(run="a run", game="tic-tac-toe", modules=modules, version="1.0", wheel=b"a wheel")
    certificate = None if door.settings.behind_proxy else make_certificate(folder)
    listener = open_listener("127.0.0.1", 0, connections_per_address=door.settings.connections_per_address)
    server = make_server(make_door_app(door, offered), certificate=certificate)
    server.config.timeout_graceful_shutdown = 1
    done = []

    def serve() -> float:
        server.run(sockets=[listener])
        done.append(True)
        return 0.0

    thread = SteppingThread("door", serve, lambda: bool(done))
    thread.start()
    deadline = time.monotonic() + SECONDS
    while not server.started:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    port = listener.getsockname()[1]
    fingerprint = read_fingerprint(certificate[0]) if certificate else ""
    link = Link(f"https://127.0.0.1:{port}", make_link(folder, "everyone").secret, fingerprint)
    opened = OpenDoor(door, link, port, folder)
    try:
        yield opened
    finally:
        for client in opened.clients:
            client.close()
        server.should_exit = True
        thread.join(SECONDS)
        listener.close()


def assignment(worker: str, **changes: Any) -> Assignment:
    """Return an assignment as the fleet puts it into a mailbox."""
    given = {
        "run_id": RUN_ID,
        "worker": worker,
        "lease": "lease-1",
        "lease_seconds": 900.0,
        "granted": 100,
        "delivered": 0,
        "model_version": 1,
        "model_sha256": "0" * 64,
        "game": "tic_tac_toe",
        "options": {},
        "search": small_settings(Path("unused")).search,
        "seed": 1,
        "parallel_games": 4,
        "cache_positions": 0,
        "batch_games": 10,
        "flush_seconds": 30.0,
    }
    return Assignment(**{**given, **changes})


def batch_file(worker: str, content: bytes, *, first: int = 0, games: int = 10) -> str:
    """Return the file name of a batch with this content."""
    return f"{batch_name(RUN_ID, worker, first, games, hashlib.sha256(content).hexdigest())}.games"


def sha256(data: bytes) -> str:
    """Return the SHA-256 in hexadecimal."""
    return hashlib.sha256(data).hexdigest()
