"""Who may use the web application: requests with its token, for its own address. Only moves in a game change anything.

The address that the program prints carries the token; the first answer moves it into a cookie, so that it does not stay
in the browser's history. Checking the name that a request was made for keeps out other sites whose names lead here (DNS
rebinding).
"""

import hmac
from collections.abc import Collection
from http import HTTPStatus

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from keima.web.limits import MOST_COMMAND_BYTES

PAGES = ("/", "/play")  # that the token may be given to
COMMANDS = "/api/play"  # the only address that takes POST
MOST_ADDRESS_BYTES, MOST_HEADER_BYTES = 2000, 8192
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
NO_TOKEN = "Open the address that keima dashboard has printed: it carries the token.\n"


class Access:
    """Passes on what may be answered, and adds the headers that keep a page to itself.

    Args:
        app: what answers.
        token: the secret.
        port: of the server; browsers share cookies between ports.
        hosts: the names and addresses, with their port, by which browsers may call this server.
    """

    def __init__(self, app: ASGIApp, *, token: str, port: int, hosts: Collection[str]) -> None:
        self._app, self._token, self._hosts = app, token, frozenset(hosts)
        self._cookie = f"keima-{port}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":  # a WebSocket: there are none
            await send({"type": "websocket.close"})
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] += [(name.lower().encode(), text.encode()) for name, text in HEADERS.items()]
            await send(message)

        request = Request(scope)
        answer = self._refuse_request(request) or self._admit_with_token(request) or self._app
        await answer(scope, receive, send_guarded)

    def _refuse_request(self, request: Request) -> Response | None:
        headers = request.headers
        commands = request.method == "POST" and request.url.path == COMMANDS
        if request.method not in ("GET", "HEAD") and not commands:
            return make_refusal(HTTPStatus.METHOD_NOT_ALLOWED, "This can only be read.\n", {"Allow": "GET, HEAD"})
        if len(request.scope["raw_path"]) + len(request.scope["query_string"]) > MOST_ADDRESS_BYTES:
            return make_refusal(HTTPStatus.REQUEST_URI_TOO_LONG, "The address is too long.\n")
        if sum(len(name) + len(value) for name, value in headers.raw) > MOST_HEADER_BYTES:
            return make_refusal(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "The headers are too long.\n")
        if commands and headers.getlist("content-type") != ["application/json"]:
            return make_refusal(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "A command must be JSON.\n")
        size = headers.getlist("content-length") or ["0"]
        if len(size) != 1 or not size[0].isdecimal() or "transfer-encoding" in headers:
            return make_refusal(HTTPStatus.BAD_REQUEST, "A request must state its length once.\n")
        if int(size[0].lstrip("0")[:6] or "0") > (MOST_COMMAND_BYTES if commands else 0):
            return make_refusal(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "The request has too much content.\n")
        host = single_header(headers, "host").lower()
        if host not in self._hosts:
            return make_refusal(HTTPStatus.MISDIRECTED_REQUEST, "The request was made for another server.\n")
        origins = [origin.lower() for origin in headers.getlist("origin")]
        if origins not in ([f"http://{host}"], *([] if commands else [[]])):
            return make_refusal(HTTPStatus.FORBIDDEN, "The request comes from another site.\n")
        return None

    def _admit_with_token(self, request: Request) -> Response | None:
        """Return the answer to a request without the cookie: one that carries the token receives it."""
        given = request.query_params.get("token")
        if given is None:
            if self._is_token(request.cookies.get(self._cookie, "")):
                return None
            return make_refusal(HTTPStatus.UNAUTHORIZED, NO_TOKEN)
        if not self._is_token(given):
            return make_refusal(HTTPStatus.FORBIDDEN, f"The token is wrong. {NO_TOKEN}")
        response = RedirectResponse(request.url.path if request.url.path in PAGES else "/", HTTPStatus.SEE_OTHER)
        response.set_cookie(self._cookie, self._token, httponly=True, samesite="lax")
        return response

    def _is_token(self, given: str) -> bool:
        return hmac.compare_digest(given.encode(), self._token.encode())


def single_header(headers: Headers, name: str) -> str:
    """Return the value of a header that must be there once; an empty text if it is not."""
    values = headers.getlist(name)
    return values[0] if len(values) == 1 else ""


def make_refusal(status: HTTPStatus, text: str, headers: dict[str, str] | None = None) -> Response:
    """Return a refusal, in words."""
    return PlainTextResponse(text, status, headers)
