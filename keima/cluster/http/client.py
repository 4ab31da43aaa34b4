"""A machine's side of the door: requests over HTTPS to the one server that the link means."""

import hashlib
import hmac
import http.client
import json
import socket
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar
from urllib.parse import urlsplit

from pydantic import BaseModel, ValidationError

from keima import __version__
from keima.base.files import PART
from keima.base.reports.text import printable_line
from keima.cluster.http.certificate import fingerprint_of
from keima.cluster.http.protocol import (
    KEY_HEADER,
    MOST_PART_BYTES,
    PROTOCOL,
    InboxFile,
    Link,
    Registered,
    Registration,
    RunFacts,
    SyncReply,
    SyncRequest,
)

SECONDS = 30.0  # for each wait on the network
MOST_REPLY_BYTES = 8 * 2**20  # of JSON
MOST_FILE_BYTES = 2**30
M = TypeVar("M", bound=BaseModel)


class DoorUnreachable(Exception):
    """The door does not answer now; it may later."""


class DoorRefused(Exception):
    """The door has refused a request.

    Attributes:
        status: of HTTP.
        retry_seconds: after which it may be repeated; None: only if somebody changes something.
    """

    def __init__(self, status: int, text: str, retry_seconds: float | None) -> None:
        super().__init__(text)
        self.status, self.retry_seconds = status, retry_seconds


class WrongServer(Exception):
    """The server at the link's address is not the one that the link means."""


@dataclass(frozen=True)
class _Reply:
    status: int
    headers: Mapping[str, str]
    body: bytes


class DoorClient:
    """Talks to the door of a link over one connection, which is opened again when it has ended.

    Args:
        link: to the run.
        key: the machine's own; empty: it has none yet.
        seconds: for each wait on the network.
    """

    def __init__(self, link: Link, *, key: str = "", seconds: float = SECONDS) -> None:
        self._link, self._key, self._seconds = link, key, seconds
        parts = urlsplit(link.address)
        self._host, self._port, self._path = parts.hostname or "", parts.port or 443, parts.path
        self._connection: http.client.HTTPSConnection | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def read_run(self) -> RunFacts:
        """Return what the run plays.

        Raises:
            DoorUnreachable, DoorRefused, WrongServer: as all methods.
            ValueError: the door speaks another protocol.
        """
        facts = self._json(RunFacts, "GET", "/v1/run", secret=self._link.secret)
        if facts.protocol != PROTOCOL:
            which = "newer" if facts.protocol > PROTOCOL else "older"
            raise ValueError(f"the run has a {which} Keima ({facts.version}) than this machine ({__version__})")
        return facts

    def register(self, wanted: Registration) -> Registered:
        """Register this machine."""
        return self._json(Registered, "POST", "/v1/machines", wanted, secret=self._link.secret)

    def sync(self, report: SyncRequest) -> SyncReply:
        """Report, and return what to do."""
        return self._json(SyncReply, "POST", "/v1/sync", report)

    def fetch_module(self, name: str) -> bytes:
        """Return the source of a game or network of the Coach's own."""
        return self._request("GET", f"/v1/modules/{name}", secret=self._link.secret).body

    def fetch_wheel(self) -> bytes:
        """Return the code of a worker."""
        return self._request("GET", "/v1/wheel", secret=self._link.secret, most=MOST_FILE_BYTES).body

    def fetch_file(self, worker: str, file: InboxFile, path: Path) -> None:
        """Fetch a file of a worker's inbox into ``path``; what an interrupted call has fetched is not fetched again.

        Raises:
            OSError: this machine's disk does not take it.
        """
        if file.bytes > MOST_FILE_BYTES:
            raise DoorUnreachable(f"{file.name} has {file.bytes:,} bytes, more than this machine accepts")
        part = path.with_name(f"{path.name}.{file.sha256[:16]}{PART}")
        offset = part.stat().st_size if part.exists() else 0
        while offset < file.bytes:
            end = min(offset + MOST_PART_BYTES, file.bytes)
            headers = {"Range": f"bytes={offset}-{end - 1}"}
            reply = self._request("GET", f"/v1/files/{worker}/{file.name}", headers=headers, most=end - offset + 1)
            whole = reply.status == 200 and offset == 0 and len(reply.body) == file.bytes
            if not whole and (reply.status != 206 or not reply.body):
                part.unlink(missing_ok=True)
                raise DoorUnreachable(f"{file.name} has changed meanwhile")
            with part.open("ab") as opened:
                opened.write(reply.body)
            offset += len(reply.body)
        with part.open("rb") as opened:
            found = hashlib.file_digest(opened, "sha256").hexdigest()
        if found != file.sha256:
            part.unlink(missing_ok=True)
            raise DoorUnreachable(f"{file.name} has changed meanwhile")
        part.replace(path)

    def send_batch(self, worker: str, name: str, data: bytes, sha256: str, *, offset: int) -> None:
        """Hand in a batch from a byte on; it is safe there when this returns."""
        at = min(offset, len(data) - 1) if offset < len(data) else 0
        while at < len(data):
            part = data[at : at + MOST_PART_BYTES]
            headers = {"X-Offset": str(at), "X-Total": str(len(data)), "X-SHA256": sha256}
            self._request("PUT", f"/v1/games/{worker}/{name}", body=part, headers=headers)
            at += len(part)

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _json(self, kind: type[M], method: str, path: str, message: BaseModel | None = None, *, secret: str = "") -> M:
        body = message.model_dump_json().encode() if message is not None else None
        reply = self._request(method, path, body=body, secret=secret)
        try:
            return kind.model_validate(json.loads(reply.body))
        except (ValidationError, ValueError, RecursionError) as error:
            raise DoorUnreachable(f"{self._link.address} gives no answer that can be understood") from error

    def _request(
        self,
        method: str,
        path: str,
        *,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        secret: str = "",
        most: int = MOST_REPLY_BYTES,
    ) -> _Reply:
        given = {
            "Authorization": f"Bearer {secret or self._key}",
            "User-Agent": f"keima/{__version__}",
            **({KEY_HEADER: self._key} if secret and self._key else {}),  # lets in where the link has expired
            **(headers or {}),
        }
        is_kept = self._connection is not None
        try:
            reply = self._exchange(method, path, body, given, most)
        except (OSError, http.client.HTTPException) as error:
            self.close()
            if not is_kept or isinstance(error, TimeoutError):
                raise DoorUnreachable(self._why(error)) from error
            try:  # it may have ended meanwhile; every request may be repeated
                reply = self._exchange(method, path, body, given, most)
            except (OSError, http.client.HTTPException) as second:
                self.close()
                raise DoorUnreachable(self._why(second)) from second
        except BaseException:
            self.close()
            raise
        if reply.status >= 500 and reply.status != 507:
            raise DoorUnreachable(f"{self._link.address} answers {reply.status}: {_first_line(reply.body)}")
        if reply.status >= 400:
            wait = reply.headers.get("retry-after", "")
            seconds = float(wait) if wait.isdecimal() else None
            raise DoorRefused(reply.status, _first_line(reply.body), seconds)
        return reply

    def _exchange(self, method: str, path: str, body: bytes | None, headers: Mapping[str, str], most: int) -> _Reply:
        connection = self._connection or self._connect()
        connection.request(method, f"{self._path}{path}", body=body, headers=dict(headers))
        answer = connection.getresponse()
        data = answer.read(most + 1)
        if len(data) > most:
            raise OSError("the answer is too long")
        length = answer.headers.get("content-length")
        if length is not None and length.isdecimal() and len(data) < int(length):
            raise OSError("the answer was cut off")
        return _Reply(answer.status, {name.lower(): text for name, text in answer.headers.items()}, data)

    def _connect(self) -> http.client.HTTPSConnection:
        """Open a connection, and check the certificate before anything is sent."""
        context = ssl.create_default_context()
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if self._link.fingerprint:  # the certificate is checked by its hash, which no authority can forge
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        connection = http.client.HTTPSConnection(self._host, self._port, timeout=self._seconds, context=context)
        try:
            connection.connect()
            if self._link.fingerprint:
                der = connection.sock.getpeercert(binary_form=True) or b""
                if not hmac.compare_digest(fingerprint_of(der), self._link.fingerprint):
                    raise WrongServer(
                        f"the server at {self._link.address} has another certificate than the link says: it is not the "
                        "run's, or somebody is in between. Nothing was sent to it. Ask for a new link"
                    )
            connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except ssl.SSLCertVerificationError as error:
            connection.close()
            raise WrongServer(
                f"the certificate of {self._link.address} is not valid: {error.verify_message}"
            ) from error
        except BaseException:
            connection.close()
            raise
        self._connection = connection
        return connection

    def _why(self, error: Exception) -> str:
        text = printable_line(str(error))[:200] or type(error).__name__
        return f"{self._link.address} cannot be reached: {text}"


def _first_line(body: bytes) -> str:
    return printable_line(body[:1000].decode("utf-8", "replace").split("\n", 1)[0])[:300] or "no reason given"
