"""The web application: a page, what it draws, and notice of every change."""

import json
import math
import re
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Any

import anyio
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import (
    HTMLResponse,
    JSONResponse,
    PlainTextResponse,
    RedirectResponse,
    Response,
    StreamingResponse,
)
from starlette.routing import Route

from keima.base.disk_words import error_text
from keima.report.charts.run_charts import AXES
from keima.report.charts.viewer import BOARDS, CHARTS, VIEWER, game_to_json
from keima.web.models import Models, shipped_models
from keima.web.play import VisitorGames
from keima.web.run_reader import UNREADABLE, RunReader

ASSETS = Path(__file__).with_name("assets")
TYPES = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
PAGE, GAMES = "dashboard.html", "@GAMES@"
GAME_NUMBER = re.compile("-?[0-9]{1,12}")
POLL_SECONDS = 1.0
KEPT_SECONDS = 60.0  # that a calibration is shown before it is computed again
MOST_STREAMS = 32  # browsers that are told of changes at the same time
SILENT_POLLS = 15  # then a comment, so that nothing between here and the browser takes the connection for dead


def make_dashboard_app(folders: Sequence[Path], ending: Callable[[], bool] = lambda: False) -> Starlette:
    """Return the dashboard of these runs, in this order, where people can also play against their models.

    Args:
        ending: whether the server is about to end, and waits for open streams.
    """
    runs = [RunReader(folder) for folder in folders]
    play = VisitorGames(Models(runs, shipped_models()))
    return Starlette(
        routes=[*dashboard_routes(runs, ending), *asset_routes(), *play.routes()], lifespan=closing_lifespan(play)
    )


def make_play_app(models: Models, *, chosen: str, simulations: int | None) -> Starlette:
    """Return the page where people play against these models, alone.

    Args:
        chosen: the name of the model that it proposes; empty: the first.
        simulations: of a move, that it proposes; None: it proposes a time.
    """
    play = VisitorGames(models, chosen=chosen, simulations=simulations)
    home = Route("/", lambda request: RedirectResponse("/play"))
    nothing = Route("/api/runs", lambda request: JSONResponse({"runs": []}))
    return Starlette(routes=[home, nothing, *asset_routes(), *play.routes()], lifespan=closing_lifespan(play))


def closing_lifespan(play: VisitorGames) -> Callable[[Starlette], AbstractAsyncContextManager[None]]:
    """Return the life of an application, after which ``play`` is closed."""

    @asynccontextmanager
    async def life(app: Starlette) -> AsyncIterator[None]:
        yield
        await run_in_threadpool(play.close)

    return life


def dashboard_routes(runs: Sequence[RunReader], ending: Callable[[], bool]) -> Iterator[Route]:
    """Yield the routes that show runs."""
    overview = {
        "runs": [{"name": run.name, "folder": str(run.folder)} for run in runs],
        "axes": [{"metric": metric, "name": name} for metric, name in AXES.items()],
    }
    yield Route("/", make_page_endpoint())
    yield Route("/api/runs", lambda request: JSONResponse(overview))
    yield Route("/api/runs/{number:int}/curves", make_run_endpoint(runs, RunReader.read_curves))
    yield Route("/api/runs/{number:int}/state", make_run_endpoint(runs, RunReader.read_state))
    yield Route("/api/runs/{number:int}/calibration", CalibrationCache(runs).answer)
    yield Route("/api/runs/{number:int}/games/{game}", make_game_endpoint(runs))
    yield Route("/api/changes", ChangeStreams(runs, ending).answer)


def asset_routes() -> Iterator[Route]:
    """Yield the routes of the scripts, styles and pictures of all pages."""
    files = (*ASSETS.iterdir(), *BOARDS.values(), VIEWER["css"], VIEWER["js"], *CHARTS.values())
    yield from (Route(f"/{path.name}", make_asset_endpoint(path)) for path in files if path.suffix in TYPES)


def make_asset_endpoint(path: Path) -> Callable[[Request], Response]:
    """Return an endpoint that returns a file of the page."""
    content, media_type = path.read_bytes(), TYPES[path.suffix]
    return lambda request: Response(content, media_type=media_type)


def make_page_endpoint() -> Callable[[Request], Response]:
    """Return an endpoint that returns the page, with the part that shows games."""
    text = (ASSETS / PAGE).read_text(encoding="utf-8").replace(GAMES, VIEWER["html"].read_text(encoding="utf-8"))
    return lambda request: HTMLResponse(text)


def make_game_endpoint(runs: Sequence[RunReader]) -> Callable[[Request], Response]:
    """Return an endpoint that returns a recorded game of a run, from 1 in order of receipt; -1 is the last one."""

    def endpoint(request: Request) -> Response:
        number, game = request.path_params["number"], request.path_params["game"]
        if number >= len(runs) or not GAME_NUMBER.fullmatch(game):
            return PlainTextResponse("There is no such game.\n", HTTPStatus.NOT_FOUND)
        from keima.report.games.game_view import load_game_view  # compiled rules: 140 MB, for those who look at games

        try:
            return JSONResponse(game_to_json(load_game_view(runs[number].folder, int(game))))
        except UNREADABLE as error:
            return PlainTextResponse(f"{error_text(error)}\n", HTTPStatus.NOT_FOUND)

    return endpoint


def make_run_endpoint(
    runs: Sequence[RunReader], read: Callable[[RunReader], dict[str, Any]]
) -> Callable[[Request], Response]:
    """Return an endpoint that returns what ``read`` finds of the run whose number the address has."""

    def endpoint(request: Request) -> Response:
        number = request.path_params["number"]
        if number >= len(runs):
            return PlainTextResponse("There is no such run.\n", HTTPStatus.NOT_FOUND)
        return JSONResponse(read(runs[number]))

    return endpoint


class CalibrationCache:
    """Answers with the calibration of search, which takes seconds: one is computed at a time, and cached."""

    def __init__(self, runs: Sequence[RunReader]) -> None:
        self._runs, self._one = runs, anyio.Lock()
        self._known: dict[int, tuple[float, dict[str, Any]]] = {}

    async def answer(self, request: Request) -> Response:
        """Answer with a chart of the run's calibration."""
        number = request.path_params["number"]
        if number >= len(self._runs):
            return PlainTextResponse("There is no such run.\n", HTTPStatus.NOT_FOUND)
        async with self._one:
            when, found = self._known.get(number, (-math.inf, {}))
            if anyio.current_time() - when >= KEPT_SECONDS:
                try:
                    found = await run_in_threadpool(self._runs[number].read_calibration)
                except UNREADABLE as error:
                    return PlainTextResponse(f"{error_text(error)}\n", HTTPStatus.NOT_FOUND)
                self._known[number] = anyio.current_time(), found
        return JSONResponse(found)


class ChangeStreams:
    """Tells browsers which runs have changed, by server-sent events (WHATWG HTML, section 9.2)."""

    def __init__(self, runs: Sequence[RunReader], ending: Callable[[], bool]) -> None:
        self._runs, self._ending, self._open = runs, ending, 0
        self._found: list[tuple[str, str]] = []
        self._polled, self._polling = -math.inf, anyio.Lock()

    async def answer(self, request: Request) -> Response:
        """Answer with a stream that lasts until the browser leaves, or the server ends."""
        if self._open >= MOST_STREAMS:
            return PlainTextResponse("Too many pages are open.\n", HTTPStatus.SERVICE_UNAVAILABLE)
        return StreamingResponse(self._changes(), media_type="text/event-stream")

    async def _changes(self) -> AsyncIterator[str]:
        """Yield first every run, then each run whose files change: ``{"run": 0, "curves": true, "state": true}``; at
        the server's end, an event ``end``.
        """
        self._open += 1
        try:
            seen: list[tuple[str, str]] = [("", "")] * len(self._runs)
            silent = 0
            while not self._ending():
                found = await self._current_stamps()
                changes = [
                    {"run": number, "curves": now[0] != before[0], "state": now[1] != before[1]}
                    for number, (now, before) in enumerate(zip(found, seen, strict=True))
                    if now != before
                ]
                seen, silent = found, 0 if changes else silent + 1
                for change in changes:
                    yield f"data: {json.dumps(change)}\n\n"
                if silent == SILENT_POLLS:
                    silent = 0
                    yield ": nothing new\n\n"
                await anyio.sleep(POLL_SECONDS)
            yield "event: end\ndata:\n\n"
        finally:
            self._open -= 1

    async def _current_stamps(self) -> list[tuple[str, str]]:
        """Return the stamps of all runs. All streams share them, so files are checked once per interval, not once per
        stream.
        """
        async with self._polling:
            if anyio.current_time() - self._polled >= POLL_SECONDS / 2:
                self._found = await run_in_threadpool(lambda: [run.read_stamps() for run in self._runs])
                self._polled = anyio.current_time()
            return self._found
