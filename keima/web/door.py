"""The door of a run as a program: machines join here, and anybody may look.

    python -m keima.web.door RUN

The fleet's process starts it (``keima/cluster/http/source.py``), and it ends when its standard input does. It writes
the link of the run to standard error, and what people should know.
"""

import logging
import os
import socket
import sys
import time
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

from keima import __version__
from keima.base.reports.formats import game_title
from keima.base.run_folder import LEDGER_NAME
from keima.base.system.priority import run_at_low_priority
from keima.base.system.threads import SteppingThread
from keima.cluster.http.app import Offered, make_door_app
from keima.cluster.http.certificate import make_certificate, read_fingerprint
from keima.cluster.http.door import Door
from keima.cluster.http.links import EVERYONE, StoredLink, make_link, read_links, write_door_address
from keima.cluster.http.protocol import DoorAddress
from keima.cluster.http.server import allow_many_connections, make_server, open_listener
from keima.cluster.machines.release import pack_code, worker_requirements
from keima.coach.crowd.verdicts import FOLDER
from keima.config.commands import keima
from keima.config.load import load_settings
from keima.config.own_modules import is_own
from keima.config.sections.crowd import CrowdSettings
from keima.data.ledger import read_ledger
from keima.web.crowd_page import crowd_routes

log = logging.getLogger(__name__)

PRIORITY = 5
BEGIN_SECONDS = 120.0  # for the Coach to write the settings of a new run
TIDY_SECONDS = 60.0
LOOPBACK = "127.0.0.1"


def serve_door(run_dir: Path) -> None:
    """Serve until standard input ends.

    Raises:
        OSError: it cannot listen there, or the folder cannot be used.
        ValueError: the run or its settings cannot be read.
    """
    deadline = time.monotonic() + BEGIN_SECONDS
    while not ((run_dir / "config.yaml").exists() and (run_dir / LEDGER_NAME).exists()):
        if time.monotonic() >= deadline:
            raise ValueError(f"there is no run in {run_dir}")
        time.sleep(0.2)
    settings = load_settings(run_dir / "config.yaml")
    crowd = settings.distributed.crowd or CrowdSettings()
    folder = run_dir / FOLDER
    folder.mkdir(mode=0o700, exist_ok=True)
    required = worker_requirements(settings.distributed.worker_class, game=settings.game.name)
    with read_ledger(run_dir) as ledger:
        run_id = ledger.run_id
    door = Door(folder, run_id=run_id, settings=crowd, code_hash=required.code_hash)
    modules = tuple(name for name in (settings.game.name, settings.network.module or "") if is_own(name))
    offered = Offered(
        run=settings.run.name,
        game=game_title(settings.game.name, settings.game.options),
        modules=modules,
        version=__version__,
        wheel=pack_code(required),
    )
    certificate = None if crowd.behind_proxy else make_certificate(folder)
    if crowd.behind_proxy:
        listener = open_listener(LOOPBACK, crowd.port)
    else:
        most = crowd.connections_per_address
        listener = open_listener(crowd.listen, crowd.port, connections_per_address=most)
    allow_many_connections()
    run_at_low_priority(PRIORITY)
    server = make_server(make_door_app(door, offered, crowd_routes(run_dir)), certificate=certificate)
    fingerprint = read_fingerprint(certificate[0]) if certificate else ""
    here = DoorAddress(public_address(crowd, listener.getsockname()[1]), fingerprint)
    write_door_address(folder, here)
    if link := standing_link(folder):
        log.warning("the door is open; machines join with: keima join '%s'", here.with_secret(link.secret))
        if is_loopback(here.address):
            log.warning("only this machine reaches that address; name another: --set distributed.crowd.address=NAME")
    else:
        log.warning("the door is open for those who have links; %s makes one", keima(f"crowd link {run_dir} NAME"))

    def tidy() -> float:
        with suppress(OSError):
            door.tidy()
        return TIDY_SECONDS

    def watch_input() -> float:
        os.read(sys.stdin.fileno(), 1)
        server.should_exit = True
        return TIDY_SECONDS

    SteppingThread("tidy", tidy, lambda: False).start()
    SteppingThread("input", watch_input, lambda: server.should_exit).start()
    server.run(sockets=[listener])


def standing_link(folder: Path) -> StoredLink | None:
    """Return the link for everyone, with which a run begins; None if it was revoked."""
    known = [link for link in read_links(folder) if link.name == EVERYONE]
    valid = [link for link in known if not link.problem_at(time.time())]
    return make_link(folder, EVERYONE) if not known else valid[-1] if valid else None


def public_address(crowd: CrowdSettings, port: int) -> str:
    """Return the address by which other machines reach the door."""
    address = crowd.address or (crowd.listen if crowd.listen not in ("0.0.0.0", "::") else socket.getfqdn())
    if not address.startswith("https://"):
        host = f"[{address}]" if ":" in address and not address.startswith("[") else address
        address = f"https://{host}" if crowd.behind_proxy else f"https://{host}:{port}"
    return address.rstrip("/")


def is_loopback(address: str) -> bool:
    """Return whether an address is of this machine alone."""
    host = urlsplit(address).hostname or ""
    return host.startswith("localhost") or host.startswith("127.") or host == "::1"


def main() -> int:
    """Serve the door of the run in the first argument; returns the exit code."""
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    try:
        serve_door(Path(sys.argv[1]))
    except (OSError, ValueError) as error:
        log.error("the door cannot be opened: %s", error)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
