"""The protocol between a machine that joins a run and the door of the run, over HTTPS (docs/crowd.md).

    GET  /v1/run             what the run plays, and the code that it needs
    POST /v1/machines        register a machine; repeating it changes nothing
    POST /v1/sync            report on the machine's workers, and learn what each is to have and may delete
    GET  /v1/files/W/NAME    a file of the inbox of worker W, such as a model; by ranges, so that it can be resumed
    PUT  /v1/games/W/NAME    a part of a batch of games; the last one is answered after the batch is safe on the disk
    GET  /v1/modules/NAME    a game or network of the Coach's own, as its source
    GET  /v1/wheel           the code of a worker

A request carries ``Authorization: Bearer``: the secret of a link for the first two, the machine's own key for the
others. A key is made by the machine, and only its hash is kept here. Everything that a machine sends is limited in size
and checked; nothing that it says is believed.
"""

import re
from dataclasses import dataclass
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from keima.base.reports.text import printable_line
from keima.config.own_modules import NAME as OWN_NAME
from keima.worker.worker_folder import BATCH_NAME, CROWD, MAX_JSON_BYTES

PROTOCOL = 1
PORT = 8443
MOST_WORKERS = 256  # of a machine
MOST_REQUEST_BYTES = MOST_WORKERS * 2**12 + MAX_JSON_BYTES  # of JSON
MOST_PART_BYTES = 2**20  # of a batch in one request
MOST_LISTED = 200  # files of an outbox in one report
SECRET = re.compile(r"[A-Za-z0-9_-]{20,64}")  # of a link, and a machine's key
FINGERPRINT = re.compile(r"[0-9a-f]{64}")
KEY_HEADER = "X-Machine-Key"  # beside a link's secret: of the machine that has come by it
MACHINE_NAME = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,18}[a-z0-9])?")
WORKER_NAME = re.compile(rf"{CROWD}{MACHINE_NAME.pattern}-[0-9a-f]{{4,12}}-[1-9][0-9]{{0,2}}")

Short = Annotated[str, Field(max_length=200), AfterValidator(printable_line)]  # people see it, on terminals too
Hash = Annotated[str, Field(pattern=r"^[0-9a-f]{8,64}$")]  # becomes the name of a folder
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Secret = Annotated[str, Field(pattern=rf"^{SECRET.pattern}$")]
WorkerName = Annotated[str, Field(max_length=60, pattern=rf"^{WORKER_NAME.pattern}$")]
FileName = Annotated[str, Field(max_length=200, pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]*$")]
BatchName = Annotated[str, Field(max_length=120, pattern=rf"^{BATCH_NAME.pattern}$")]
Bytes = Annotated[int, Field(ge=0, le=2**40)]


class WrongLink(ValueError):
    """The text is no link to a run."""


class Message(BaseModel):
    """Base of all messages. Unknown keys are ignored, so that a newer side can say more."""

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)


class ModuleFacts(Message):
    """A game or network of the Coach's own: Python code, by the name of its content."""

    name: Annotated[str, Field(pattern=rf"^{OWN_NAME.pattern}$")]
    bytes: Bytes
    sha256: Sha256


class RunFacts(Message):
    """What a machine that wants to join is told."""

    protocol: int
    run_id: Short
    run: Short
    game: Short
    modules: tuple[ModuleFacts, ...] = ()
    code: Hash  # of the code that workers must run
    version: Short  # of Keima
    wheel_sha256: Sha256


class Registration(Message):
    """A machine that wants to join."""

    protocol: Literal[1] = 1
    name: Annotated[str, Field(min_length=1, max_length=60)]  # for the table
    workers: Annotated[int, Field(ge=1, le=MOST_WORKERS)]
    key: Secret
    processor: Short = ""


class Registered(Message):
    """The names of the machine's workers."""

    run_id: Short
    workers: Annotated[tuple[WorkerName, ...], Field(max_length=MOST_WORKERS)]


class OutboxFile(Message):
    """A finished batch in a worker's outbox, with its size in bytes."""

    name: BatchName
    bytes: Bytes


class WorkerReport(Message):
    """One worker of a machine: its heartbeat as JSON, if it has changed, and the oldest batches in its outbox."""

    worker: WorkerName
    heartbeat: Annotated[str, Field(max_length=MAX_JSON_BYTES)] | None = None
    outbox: Annotated[tuple[OutboxFile, ...], Field(max_length=MOST_LISTED)] = ()
    assignment: Short = ""  # the stamp of the assignment that it has; a new one is sent


class SyncRequest(Message):
    """A machine's report. Each process of ``keima join`` draws a ``session``: two cannot share a machine's place."""

    session: Short
    code: Short  # the hash of its code
    workers: Annotated[tuple[WorkerReport, ...], Field(max_length=MOST_WORKERS)]
    leaving: bool = False  # it hands over its games and ends
    paused: bool = False  # its workers play on later


class InboxFile(Message):
    """A file that a worker needs. Workers of a machine that need the same content fetch it once."""

    name: FileName
    bytes: Bytes
    sha256: Sha256


class Orders(Message):
    """What a worker is to have, in this order: files, then the assignment; and then what it may delete."""

    worker: WorkerName
    files: tuple[InboxFile, ...] = ()
    assignment: str | None = None  # as JSON; None: the one that it has
    stamp: Short = ""  # of the assignment
    uploads: tuple[tuple[BatchName, Bytes], ...] = ()  # batches to send, each from this byte on
    remove: tuple[BatchName, ...] = ()  # batches that are in the ledger, and counted by the assignment


class SyncReply(Message):
    """The answer to a report."""

    seconds: Annotated[float, Field(ge=0, le=600)]  # until the next one
    orders: tuple[Orders, ...] = ()
    notice: Short = ""  # for the user


@dataclass(frozen=True)
class Link:
    """An invitation to a run.

    Attributes:
        address: of the door, such as https://example.org:8443; may end with a path, behind a proxy.
        secret: that the door knows.
        fingerprint: the SHA-256 of the door's certificate in hexadecimal; empty: a certificate that browsers accept.
    """

    address: str
    secret: str
    fingerprint: str = ""

    def __str__(self) -> str:
        """Return the link as people pass it on. Browsers do not send what follows ``#``."""
        return f"{self.address}/#{self.secret}" + (f".{self.fingerprint}" if self.fingerprint else "")


@dataclass(frozen=True)
class DoorAddress:
    """Where a door is: a link without a secret. The attributes are those of ``Link``."""

    address: str
    fingerprint: str = ""

    def with_secret(self, secret: str) -> Link:
        """Return the whole link."""
        return Link(self.address, secret, self.fingerprint)


def parse_link(text: str) -> Link:
    """Parse a link.

    Raises:
        WrongLink: it is none.
    """
    parts = urlsplit(text.strip())
    secret, _, fingerprint = parts.fragment.partition(".")
    try:
        usable = parts.scheme == "https" and parts.hostname and not parts.username and parts.port != 0
    except ValueError:  # the port is no number
        usable = False
    if not usable or parts.query:
        raise WrongLink(f"expected a link such as https://host:{PORT}/#..., found {text[:100]!r}")
    if not SECRET.fullmatch(secret) or (fingerprint and not FINGERPRINT.fullmatch(fingerprint)):
        raise WrongLink("the part of the link after # is not complete: copy all of it, and quote it in the shell")
    return Link(f"https://{parts.netloc}{parts.path.rstrip('/')}", secret, fingerprint)
