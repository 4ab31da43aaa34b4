"""Watch one or several runs in a browser: what they learn, how fast, who plays, and whether every game is counted.

    python scripts/dashboard.py                           all runs in runs/
    python scripts/dashboard.py runs/connect_four go9     these runs, by folder or by name, with their curves together
    python scripts/dashboard.py --port 8080               at this port, instead of a free one
    python scripts/dashboard.py --listen 192.168.1.20     also for others in your network

It prints an address with a secret token: only those who have it can read the dashboard, and nobody can change anything.
It reads the files of runs, live or finished, and does not speak with the Coach. By default only this machine can
connect; over SSH, it prints the command that forwards the port to your own machine. Ctrl-C ends it.
"""

import argparse
import os
import secrets
import socket
import sys
import webbrowser
from collections.abc import Sequence
from ipaddress import ip_address
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

if __name__ == "__main__":
    from training.common.signals import ends_at_once

    ends_at_once()

from configs.flags import whole
from training.common.run_folder import LEDGER_NAME, RUNS, run_folder
from training.common.signals import interruptible
from training.common.start import before_imports

LOOPBACK = "127.0.0.1"
TOKEN_BYTES = 24
MOST_CONNECTIONS = 100
LOWEST_PRIORITY = 19
GRACE_SECONDS = 5  # for open pages to be told that the dashboard ends
MOST_HEAD_BYTES = 16_384  # of a request's first line and headers


def address(text: str) -> str:
    """An IP address of this machine."""
    try:
        return str(ip_address(text))
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text} is no IP address, such as 192.168.1.20") from error


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line; ``folders`` are the runs'."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "runs", nargs="*", metavar="RUN", help=f"folder of a run, or its name in {RUNS}/ (default: all)"
    )
    parser.add_argument("--port", type=whole(0, 65535), default=0, help="port to listen at (default: a free one)")
    parser.add_argument(
        "--listen",
        type=address,
        default=LOOPBACK,
        metavar="ADDRESS",
        help="address to listen at; other than the default, other machines can connect, unencrypted "
        "(default: %(default)s)",
    )
    parser.add_argument("--no-browser", action="store_true", help="do not open the address in a browser")
    args = parser.parse_args(argv)
    args.folders = [run_folder(Path(run)) for run in args.runs] or sorted(
        path.parent for path in RUNS.glob(f"*/{LEDGER_NAME}")
    )
    return args


def see(args: argparse.Namespace) -> None:
    """Check that there are runs.

    Raises:
        ValueError: there are none, or a folder is no run.
    """
    if not args.folders:
        raise ValueError(f"there are no runs in {RUNS}/: name a run's folder")
    for folder in args.folders:
        if not folder.is_dir():
            raise ValueError(f"there is no run {folder}: name a run's folder, such as runs/connect_four")


if __name__ == "__main__":
    before_imports(parse, see)

import uvicorn

from web.access import Access
from web.app import application


def listener(host: str, port: int) -> socket.socket:
    """A socket that listens there.

    Raises:
        OSError: the port is in use, or the address is not this machine's.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    opened = socket.socket(family, socket.SOCK_STREAM)
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        opened.bind((host, port))
        opened.listen(MOST_CONNECTIONS)  # so that whoever has the address may connect
    except OSError:
        opened.close()
        raise
    return opened


def hosts(listen: str, port: int) -> list[str]:
    """The names, with the port, by which browsers may call the server."""
    names = [f"[{listen}]" if ":" in listen else listen]
    here = ["localhost", LOOPBACK, "[::1]"]
    if ip_address(listen).is_unspecified:
        names = [socket.gethostname(), socket.getfqdn(), *own_addresses(), *here]
    elif ip_address(listen).is_loopback:
        names += here
    return [f"{name}:{port}" for name in dict.fromkeys(names)]


def own_addresses() -> list[str]:
    """The addresses that this machine's name leads to."""
    try:
        found = {str(entry[4][0]) for entry in socket.getaddrinfo(socket.gethostname(), None)}
    except OSError:
        return []
    return [f"[{each}]" if ":" in each else each for each in sorted(found)]


def greeting(link: str, listen: str, port: int) -> list[str]:
    """The lines that say how to open the dashboard."""
    lines = [f"dashboard: {link}"]
    if "SSH_CONNECTION" in os.environ and ip_address(listen).is_loopback:
        server = os.environ["SSH_CONNECTION"].split()[2]
        user = os.environ.get("USER", "USER")
        lines.append(f"from your own machine, first: ssh -L {port}:{LOOPBACK}:{port} {user}@{server}")
    return [*lines, "Ctrl-C ends it"]


@interruptible
def main(argv: Sequence[str] | None = None) -> int:
    """Serve until Ctrl-C; returns the exit code: 2 if it cannot listen there."""
    args = parse(argv)
    try:
        see(args)
        opened = listener(args.listen, args.port)
    except (ValueError, OSError) as error:
        where = f"cannot listen at {args.listen}, port {args.port}: " if isinstance(error, OSError) else ""
        print(f"dashboard: {where}{error.strerror if isinstance(error, OSError) else error}", file=sys.stderr)
        return 2
    os.nice(LOWEST_PRIORITY)  # training goes first
    token, chosen = secrets.token_urlsafe(TOKEN_BYTES), opened.getsockname()[1]
    names = hosts(args.listen, chosen)
    link = f"http://{names[0]}/?token={token}"
    app = application(args.folders, ending=lambda: server.should_exit)
    for line in greeting(link, args.listen, chosen):
        print(line, flush=True)
    if not args.no_browser and (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        webbrowser.open(link)
    config = uvicorn.Config(
        Access(app, token=token, port=chosen, hosts=names),
        log_level="warning",
        access_log=False,
        limit_concurrency=MOST_CONNECTIONS,
        h11_max_incomplete_event_size=MOST_HEAD_BYTES,
        http="h11",
        ws="none",
        timeout_graceful_shutdown=GRACE_SECONDS,
        server_header=False,
    )
    server = uvicorn.Server(config)
    server.run(sockets=[opened])
    return 0


if __name__ == "__main__":
    sys.exit(main())
