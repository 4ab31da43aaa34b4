"""Where the web application listens, by which names browsers may call it, and how it ends."""

import argparse
import os
import secrets
import socket
import webbrowser
from collections.abc import Callable
from ipaddress import ip_address
from typing import TYPE_CHECKING

from keima.base.system.priority import run_at_low_priority
from keima.config.flags import HIGHEST_PORT, whole

if TYPE_CHECKING:
    from starlette.types import ASGIApp

LOOPBACK = "127.0.0.1"
TOKEN_BYTES = 24
MOST_CONNECTIONS = 100
HTTP_PORT = 80  # which browsers leave out
GRACE_SECONDS = 5  # for open pages to be told that the server ends
PRIORITY = 5  # the page takes less than a hundredth of a core, and should come within a second beside a busy run
MOST_HEAD_BYTES = 16_384  # of a request's first line and headers


def parse_address(text: str) -> str:
    """Parse an IP address of this machine."""
    try:
        return str(ip_address(text))
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text} is not an IP address, such as 192.168.1.20") from error


def add_server_flags(parser: argparse._ActionsContainer) -> None:
    """Add what says where to listen."""
    parser.add_argument(
        "--port", type=whole(0, HIGHEST_PORT), default=0, help="port to listen on (default: a free one)"
    )
    parser.add_argument(
        "--listen",
        type=parse_address,
        default=LOOPBACK,
        metavar="ADDRESS",
        help="address to listen on; with any but the default, other machines can connect, unencrypted "
        "(default: %(default)s)",
    )
    parser.add_argument("--no-browser", action="store_true", help="do not open the address in a browser")


def open_listener(host: str, port: int) -> socket.socket:
    """Open a socket that listens there.

    Raises:
        OSError: the port is in use, or the address is not this machine's.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With its protocol named, asyncio sends answers at once (TCP_NODELAY); else the body waits 40 ms after the headers.
    opened = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        opened.bind((host, port))
        opened.listen(MOST_CONNECTIONS)  # so that whoever has the address may connect
    except OSError:
        opened.close()
        raise
    return opened


def list_allowed_hosts(listen: str, port: int) -> list[str]:
    """Return the names, with the port, by which browsers may call the server, in lower case."""
    names = [f"[{listen}]" if ":" in listen else listen]
    here = ["localhost", LOOPBACK, "[::1]"]
    if ip_address(listen).is_unspecified:
        names = [socket.gethostname(), socket.getfqdn(), *list_own_addresses(), *here]
    elif ip_address(listen).is_loopback:
        names += here
    ports = [f":{port}", ""] if port == HTTP_PORT else [f":{port}"]
    return [f"{name.lower()}{suffix}" for name in dict.fromkeys(names) for suffix in ports]


def list_own_addresses() -> list[str]:
    """Return the addresses that this machine's name leads to."""
    try:
        found = {str(entry[4][0]) for entry in socket.getaddrinfo(socket.gethostname(), None)}
    except OSError:
        return []
    return [f"[{each}]" if ":" in each else each for each in sorted(found)]


def greeting_lines(what: str, link: str, listen: str, port: int) -> list[str]:
    """Return the lines that say how to open the application."""
    lines = [f"{what}: {link}"]
    if "SSH_CONNECTION" in os.environ and ip_address(listen).is_loopback:
        server = os.environ["SSH_CONNECTION"].split()[2]
        user = os.environ.get("USER", "USER")
        lines.append(f"from your own machine, first: ssh -L {port}:{LOOPBACK}:{port} {user}@{server}")
    return [*lines, "Ctrl-C ends it"]


def serve(
    make: "Callable[[Callable[[], bool]], ASGIApp]",
    args: argparse.Namespace,
    *,
    say: Callable[[str], None],
    page: str = "/",
) -> None:
    """Serve until Ctrl-C.

    Args:
        make: builds the application, given a function that says whether the server is about to end.
        args: with the values of ``add_server_flags``.
        say: prints a line at once.
        page: that the printed address leads to.

    Raises:
        OSError: the server cannot listen there; the text says why.
    """
    import uvicorn

    from keima.web.access import Access

    try:
        opened = open_listener(args.listen, args.port)
    except OSError as error:
        raise OSError(f"cannot listen on {args.listen}, port {args.port}: {error.strerror}") from error
    run_at_low_priority(PRIORITY)  # training goes first; only now, as the started program continues in a child
    token, chosen = secrets.token_urlsafe(TOKEN_BYTES), opened.getsockname()[1]
    names = list_allowed_hosts(args.listen, chosen)
    link = f"http://{names[0]}{page}?token={token}"
    app = make(lambda: server.should_exit)
    for line in greeting_lines("dashboard" if page == "/" else "play", link, args.listen, chosen):
        say(line)
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
