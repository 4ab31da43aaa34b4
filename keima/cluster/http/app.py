"""The door over HTTP: what a request is, who may make it, and how it is answered."""

import hashlib
import json
import logging
import math
import re
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import wraps
from http import HTTPStatus
from pathlib import Path
from typing import Any

import anyio
from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import BaseRoute, Route

from keima.cluster.http.door import Door, DoorRefusal, Machine
from keima.cluster.http.limits import BODY_SECONDS, READ_SECONDS, REFUSED_REQUESTS, Buckets
from keima.cluster.http.links import StoredLink
from keima.cluster.http.protocol import (
    KEY_HEADER,
    MOST_PART_BYTES,
    MOST_REQUEST_BYTES,
    PROTOCOL,
    SECRET,
    ModuleFacts,
    Registration,
    RunFacts,
    SyncRequest,
)
from keima.config.own_modules import ModuleProblem, source_of

log = logging.getLogger(__name__)

SHA256 = re.compile(r"[0-9a-f]{64}")
HEADERS = {
    b"cache-control": b"no-store",
    b"x-content-type-options": b"nosniff",
    b"strict-transport-security": b"max-age=31536000",
    b"referrer-policy": b"no-referrer",
}
LIST_LIMIT = 30  # of characters in a log line that come from a request

Endpoint = Callable[[Request], Awaitable[Response]]


@dataclass(frozen=True, kw_only=True)
class Offered:
    """What the run gives to every machine that has a link."""

    run: str
    game: str
    modules: tuple[str, ...]
    version: str
    wheel: bytes

    def facts(self, run_id: str, code: str) -> RunFacts:
        """Return what a machine that wants to join is told.

        Raises:
            ModuleProblem: a game or network of the user's own is not there.
        """
        modules = []
        for name in self.modules:
            source = source_of(name)
            modules.append(ModuleFacts(name=name, bytes=len(source), sha256=hashlib.sha256(source).hexdigest()))
        return RunFacts(
            protocol=PROTOCOL,
            run_id=run_id,
            run=self.run,
            game=self.game,
            modules=tuple(modules),
            code=code,
            version=self.version,
            wheel_sha256=hashlib.sha256(self.wheel).hexdigest(),
        )


class DoorApp:
    """The endpoints.

    Args:
        door: what they are about.
        offered: to every machine that has a link.
    """

    def __init__(self, door: Door, offered: Offered) -> None:
        self._door, self._offered = door, offered
        self._facts = offered.facts(door.run_id, door.code_hash).model_dump()
        self._failed = Buckets(*REFUSED_REQUESTS)

    def routes(self) -> list[BaseRoute]:
        """Return the routes."""
        answer = self._refusing
        return [
            Route("/v1/run", answer(self._run)),
            Route("/v1/machines", answer(self._register), methods=["POST"]),
            Route("/v1/sync", answer(self._sync), methods=["POST"]),
            Route("/v1/files/{worker}/{name}", answer(self._file)),
            Route("/v1/games/{worker}/{name}", answer(self._games), methods=["PUT"]),
            Route("/v1/modules/{name}", answer(self._module)),
            Route("/v1/wheel", answer(self._wheel)),
        ]

    def _refusing(self, endpoint: Endpoint) -> Endpoint:
        """Return the endpoint with refusals as answers in one sentence, and each in the log."""

        @wraps(endpoint)
        async def answer(request: Request) -> Response:
            try:
                return await endpoint(request)
            except DoorRefusal as refusal:
                return self._refuse(request, refusal)
            except ClientDisconnect:
                return Response(status_code=HTTPStatus.BAD_REQUEST)
            except OSError as error:
                log.warning("the door cannot store what %s sends: %s", _client(request), error.strerror)
                text = "the main node cannot store this now; it will be asked for again"
                return _plain(HTTPStatus.INSUFFICIENT_STORAGE, text, retry_seconds=30.0)

        return answer

    def _refuse(self, request: Request, refusal: DoorRefusal) -> Response:
        status = refusal.status
        if status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
            if not self._failed.take(_client(request)):  # machines at this address with a valid secret are answered
                status = HTTPStatus.TOO_MANY_REQUESTS
            else:
                path = request.url.path[:LIST_LIMIT]
                log.warning("refused: %s from %s: %s", ascii(path), _client(request), refusal)
        return _plain(status, str(refusal), retry_seconds=refusal.retry_seconds)

    def _secret(self, request: Request) -> str:
        given = request.headers.getlist("authorization")
        kind, _, secret = given[0].partition(" ") if len(given) == 1 else ("", "", "")
        if kind.lower() != "bearer" or not SECRET.fullmatch(secret):
            raise DoorRefusal(HTTPStatus.UNAUTHORIZED, "this needs the secret of a link: run keima join LINK")
        return secret

    def _link(self, request: Request) -> StoredLink:
        return self._door.admit_link(self._secret(request), key=request.headers.get(KEY_HEADER, ""))

    def _machine(self, request: Request) -> Machine:
        return self._door.admit_machine(self._secret(request))

    # Endpoints.

    async def _run(self, request: Request) -> Response:
        self._link(request)
        return JSONResponse(self._facts)

    async def _register(self, request: Request) -> Response:
        self._link(request)
        wanted = _parse(Registration, await _read_body(request, MOST_REQUEST_BYTES))
        link = self._door.admit_link(self._secret(request), key=wanted.key)  # it may not register another one
        registered = await run_in_threadpool(self._door.register, link, wanted)
        return JSONResponse(registered.model_dump())

    async def _sync(self, request: Request) -> Response:
        machine = self._machine(request)
        report = _parse(SyncRequest, await _read_body(request, MOST_REQUEST_BYTES))
        reply = await run_in_threadpool(self._door.sync, machine, report)
        return Response(reply.model_dump_json(), media_type="application/json")

    async def _file(self, request: Request) -> Response:
        machine = self._machine(request)
        path = self._door.inbox_file(machine, request.path_params["worker"], request.path_params["name"])
        return _OpenedFile(path)

    async def _games(self, request: Request) -> Response:
        machine = self._machine(request)
        worker, name = request.path_params["worker"], request.path_params["name"]
        offset, total = _number(request, "x-offset"), _number(request, "x-total")
        size, sha256 = _number(request, "content-length"), request.headers.get("x-sha256", "")
        if not SHA256.fullmatch(sha256):
            raise DoorRefusal(HTTPStatus.BAD_REQUEST, "a batch must come with its SHA-256")
        self._door.check_upload(machine, worker, name, offset=offset, size=size, total=total)
        part = await _read_body(request, MOST_PART_BYTES)
        if len(part) != size:
            raise DoorRefusal(HTTPStatus.BAD_REQUEST, "the part has another size than announced")

        def store() -> int:
            with self._door.machine_lock(machine):
                return self._door.store_part(worker, name, part, offset=offset, total=total, sha256=sha256)

        here = await run_in_threadpool(store)
        return JSONResponse({"bytes": here})

    async def _module(self, request: Request) -> Response:
        self._link(request)
        name = request.path_params["name"]
        if name not in self._offered.modules:
            raise DoorRefusal(HTTPStatus.NOT_FOUND, "the run has no such file")
        try:
            return Response(source_of(name), media_type="text/x-python")
        except ModuleProblem as error:
            raise DoorRefusal(HTTPStatus.NOT_FOUND, str(error)) from error

    async def _wheel(self, request: Request) -> Response:
        self._link(request)
        return Response(self._offered.wheel, media_type="application/octet-stream")


def make_door_app(door: Door, offered: Offered, more: Sequence[BaseRoute] = ()) -> Starlette:
    """Return the application; ``more`` are routes of pages for people."""
    app = Starlette(routes=[*DoorApp(door, offered).routes(), *more])
    app.add_middleware(SafeHeaders)
    return app


class SafeHeaders:
    """Adds the headers that keep an answer to itself."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer a request."""

        async def send_guarded(message: Any) -> None:
            if message["type"] == "http.response.start":
                present = {name for name, _ in message["headers"]}
                message["headers"] += [(name, text) for name, text in HEADERS.items() if name not in present]
            with anyio.fail_after(READ_SECONDS):  # whoever reads nothing for so long is gone
                await send(message)

        with suppress(TimeoutError):  # the server ends the connection
            await self._app(scope, receive, send_guarded)


class _OpenedFile(FileResponse):
    """A file with ranges, whose validator is its content's stamp; one that is replaced meanwhile ends the answer."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, media_type="application/octet-stream", stat_result=path.stat())


async def _read_body(request: Request, limit: int) -> bytes:
    """Return the body of a request of at most ``limit`` bytes, each part of which comes in time.

    Raises:
        DoorRefusal: it is longer, or comes too slowly.
    """
    length = request.headers.get("content-length", "")
    if not length.isdecimal() or "transfer-encoding" in request.headers:
        raise DoorRefusal(HTTPStatus.LENGTH_REQUIRED, "a request must state its length")
    if int(length[:12]) > limit or len(length) > 12:
        raise DoorRefusal(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"a request may hold {limit:,} bytes")
    body = bytearray()
    try:
        with anyio.fail_after(BODY_SECONDS + limit / 2**14):  # 16 kB/s at least, for all of it ...
            stream = request.stream().__aiter__()
            while True:
                with anyio.fail_after(BODY_SECONDS):  # ... and not a long silence
                    try:
                        chunk = await anext(stream)
                    except StopAsyncIteration:
                        return bytes(body)
                body += chunk
                if len(body) > limit:
                    raise DoorRefusal(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"a request may hold {limit:,} bytes")
    except TimeoutError:
        raise DoorRefusal(HTTPStatus.REQUEST_TIMEOUT, "the request comes too slowly") from None


def _parse(kind: Any, body: bytes) -> Any:
    """Return a message.

    Raises:
        DoorRefusal: it is invalid.
    """
    try:
        return kind.model_validate(json.loads(body))
    except (ValidationError, ValueError, RecursionError) as error:
        where = error.errors()[0]["loc"] if isinstance(error, ValidationError) else ()
        text = ".".join(str(part) for part in where)[:100] or "it is no JSON"
        raise DoorRefusal(HTTPStatus.BAD_REQUEST, f"the request is invalid: {text!a}") from None


def _number(request: Request, header: str) -> int:
    text = request.headers.get(header, "")
    if not text.isdecimal() or len(text) > 12:
        raise DoorRefusal(HTTPStatus.BAD_REQUEST, f"the header {header} must be a number")
    return int(text)


def _client(request: Request) -> str:
    return request.client.host if request.client else "unknown"


def _plain(status: HTTPStatus, text: str, *, retry_seconds: float) -> Response:
    headers = {"Retry-After": str(math.ceil(retry_seconds))} if retry_seconds else None
    return PlainTextResponse(f"{text}\n", status, headers)
