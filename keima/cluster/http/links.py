"""The links of a run: made for a name, valid until they expire or are revoked. ``keima crowd`` writes them, the door
reads them.
"""

import hashlib
import hmac
import json
import re
import secrets
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from keima.base.files import read_limited, write_atomically
from keima.cluster.agent.process import hold_lock
from keima.cluster.http.protocol import DoorAddress

ADDRESS = "door.json"
FILE = "links.json"  # readable by the user alone
MOST_BYTES = 4 * 2**20
SECRET_BYTES = 18
LOCK_SECONDS = 5.0
LINK_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._-]{0,39}")
EVERYONE = "everyone"  # the name of the link that a run begins with


class NoSuchLink(ValueError):
    """There is no link of this name."""


@dataclass(frozen=True, kw_only=True)
class StoredLink:
    """A link of a run. Times are in seconds since 1970; None: never."""

    name: str
    secret: str
    created: float
    expires: float | None = None
    revoked: float | None = None

    @property
    def id(self) -> str:
        """What machines that came by it keep: names can be given again."""
        return hashlib.sha256(self.secret.encode()).hexdigest()[:16]

    def problem_at(self, now: float) -> str:
        """Return why it is not valid; empty if it is."""
        if self.revoked is not None:
            return "this link was revoked: ask whoever gave it to you for another one"
        if self.expires is not None and now >= self.expires:
            return "this link has expired: ask whoever gave it to you for another one"
        return ""


def read_links(folder: Path) -> list[StoredLink]:
    """Return the links in the crowd's ``folder``, oldest first.

    Raises:
        ValueError: the file is damaged.
        OSError: it cannot be read.
    """
    try:
        found = json.loads(read_limited(folder / FILE, MOST_BYTES))
        return [StoredLink(**each) for each in found["links"]]
    except FileNotFoundError:
        return []
    except (TypeError, LookupError, ValueError) as error:
        raise ValueError(f"{folder / FILE} cannot be read ({error}): delete it, and make new links") from error


def make_link(folder: Path, name: str, *, days: float | None = None, now: float | None = None) -> StoredLink:
    """Make a link, and return it; an earlier one of this name expires.

    Raises:
        ValueError: the name is none; see also ``read_links``.
        OSError: the links cannot be stored.
    """
    if not LINK_NAME.fullmatch(name):
        raise ValueError(f"expected a name of up to 40 letters, digits, spaces, '.', '_' and '-', found {name!r}")
    now = time.time() if now is None else now
    expires = None if days is None else now + days * 86_400
    made = StoredLink(name=name, secret=secrets.token_urlsafe(SECRET_BYTES), created=now, expires=expires)
    with hold_lock(folder / f".{FILE}.lock", LOCK_SECONDS):
        earlier = read_links(folder)
        ended = [
            replace(link, expires=now) if link.name == name and not link.problem_at(now) else link for link in earlier
        ]
        _write_links(folder, [*ended, made])
    return made


def revoke_link(folder: Path, name: str, *, now: float | None = None) -> None:
    """Revoke all links of a name: machines that came by them are refused from now on.

    Raises:
        NoSuchLink: there is none, or it was revoked before.
        ValueError, OSError: see ``make_link``.
    """
    now = time.time() if now is None else now
    with hold_lock(folder / f".{FILE}.lock", LOCK_SECONDS):
        links = read_links(folder)
        if not any(link.name == name and link.revoked is None for link in links):
            known = ", ".join(sorted({link.name for link in links if link.revoked is None})) or "none"
            raise NoSuchLink(f"there is no link {name!r} to revoke; valid links: {known}")
        _write_links(
            folder,
            [replace(link, revoked=now) if link.name == name and link.revoked is None else link for link in links],
        )


def write_door_address(folder: Path, door: DoorAddress) -> None:
    """Store where the door is, for ``keima crowd``.

    Raises:
        OSError: it cannot be stored.
    """
    write_atomically(folder / ADDRESS, json.dumps(asdict(door)).encode(), durable=False)


def read_door_address(folder: Path) -> DoorAddress:
    """Return where the door is, or was when it was last open.

    Raises:
        ValueError: it has never been open.
    """
    try:
        return DoorAddress(**json.loads(read_limited(folder / ADDRESS, MOST_BYTES)))
    except (OSError, TypeError, ValueError):
        raise ValueError(f"the door of {folder.parent} has never been open: start the run with --crowd") from None


def find_link(links: list[StoredLink], secret: str) -> StoredLink | None:
    """Return the link with this secret; the time that it takes tells nothing about the others."""
    found = [link for link in links if hmac.compare_digest(link.secret.encode(), secret.encode())]
    return found[0] if found else None


def _write_links(folder: Path, links: list[StoredLink]) -> None:
    write_atomically(folder / FILE, json.dumps({"links": [asdict(link) for link in links]}, indent=1).encode())
