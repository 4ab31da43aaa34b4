"""The public page of a run: its curve, its newest games, and who has given how much.

Anybody may read it, without a secret. So it says little: nothing of the run's own machines but their sums, no folders,
no addresses, no events, and of what goes wrong only that it does. Names come from strangers, and are shown as text.

All visitors share what one of them has had computed, so that many of them cost no more than one. Of games only the
newest can be seen, and which ones these are changes once a minute: so not more of them are computed than that.
"""

import gzip
import json
import logging
import math
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import anyio
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Route

from keima.base.reports.formats import format_count, format_duration, format_rate, game_title
from keima.base.reports.run_reports import ProgressReport
from keima.base.reports.text import printable_line
from keima.base.run_folder import PROGRESS_NAME
from keima.base.run_lock import is_held
from keima.data.ledger import read_ledger
from keima.data.ledger_rows import BATCH_COLUMNS, BatchRow
from keima.report.charts.run_charts import AXES
from keima.report.charts.viewer import BOARDS, CHARTS, VIEWER, game_to_json
from keima.report.files.progress_file import read_progress
from keima.report.metrics import METRICS
from keima.web.access import HEADERS
from keima.web.app import ASSETS, GAMES, TYPES
from keima.web.contributors import (
    ContributionReader,
    Contributions,
    open_read_only,
    table_as_csv,
    table_as_text,
)
from keima.web.run_reader import UNREADABLE, RunReader

if TYPE_CHECKING:
    from keima.games import Game

log = logging.getLogger(__name__)

PAGE = "crowd.html"
STATE_SECONDS, CURVES_SECONDS, NEWEST_SECONDS = 5.0, 15.0, 60.0  # that an answer is kept
STALE_SECONDS = 60.0  # up to this age, an answer is given while the next one is computed
ASSET_SECONDS = 600.0  # that browsers keep a script
NEWEST_GAMES = 20  # that can be seen
KEPT_GAMES = 3 * NEWEST_GAMES  # for visitors who chose one a while ago
GAME_NUMBER = re.compile("[1-9][0-9]{0,11}")
STRENGTH = {  # metrics of an evaluation, and their titles
    "evaluation/elo": "Elo",
    "evaluation/search_error": "Solver error with search",
    "evaluation/policy_error": "Solver error without search",
    "evaluation/random_return": "Mean return against random players",
    "evaluation/score_mean": "Mean score",
    "self_play/score_mean": "Mean score in self-play",
}
STRENGTH_SECTION = "Strength"
T = TypeVar("T")


def crowd_routes(run_dir: Path) -> Sequence[BaseRoute]:
    """Return the routes of the page of the run in this folder."""
    return CrowdPage(PublicRun(run_dir)).routes()


def contributors_csv(run_dir: Path) -> str:
    """Return who has given how much, as comma-separated values.

    Raises:
        ValueError, OSError, sqlite3.Error: the run's ledger cannot be read.
    """
    return table_as_csv(ContributionReader(run_dir).read())


def contributors_text(run_dir: Path) -> str:
    """Return who has given how much, for a terminal.

    Raises:
        ValueError, OSError, sqlite3.Error: the run's ledger cannot be read.
    """
    return table_as_text(ContributionReader(run_dir).read())


@dataclass(frozen=True, kw_only=True)
class Packed:
    """An answer that is compressed once, for all visitors."""

    body: bytes  # by gzip
    media_type: str
    status: HTTPStatus = HTTPStatus.OK

    def respond(self, request: Request, *, seconds: float) -> Response:
        """Return the response; browsers may keep it for so many seconds."""
        headers = {**HEADERS, "Cache-Control": f"public, max-age={seconds:.0f}", "Vary": "Accept-Encoding"}
        body = self.body
        if "gzip" in request.headers.get("accept-encoding", ""):
            headers["Content-Encoding"] = "gzip"
        else:
            body = gzip.decompress(body)
        return Response(body, self.status, headers, self.media_type)


def pack_json(content: Any) -> Packed:
    """Return an answer in JSON."""
    text = json.dumps(content, allow_nan=False, separators=(",", ":"))
    return pack_text(text, "application/json")


def pack_text(text: str, media_type: str, status: HTTPStatus = HTTPStatus.OK) -> Packed:
    """Return an answer as text."""
    return Packed(body=gzip.compress(text.encode(), 6, mtime=0), media_type=media_type, status=status)


UNREADABLE_RUN = pack_text("The run cannot be read now.\n", "text/plain", HTTPStatus.SERVICE_UNAVAILABLE)
NO_GAME = "This game is not among the newest ones.\n"


@dataclass(frozen=True, kw_only=True)
class NewestGame:
    """One of the newest games."""

    number: int  # in the run, from 1, in the order of receipt
    row: BatchRow  # its batch
    index: int  # in that
    name: str  # who has given it


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """The answers that change often."""

    state: Packed
    contributors: Packed
    csv: Packed
    games: Mapping[int, NewestGame]


class PublicRun:
    """Reads of a run what anybody may know; not thread-safe.

    Args:
        run_dir: the run's folder.
        wall: seconds since 1970.
    """

    def __init__(self, run_dir: Path, *, wall: Callable[[], float] = time.time) -> None:
        self._run_dir, self._wall = run_dir, wall
        self._reader, self._contributions = RunReader(run_dir), ContributionReader(run_dir, wall=wall)
        self._newest: tuple[float, dict[int, NewestGame]] = (-math.inf, {})
        self._curves: tuple[object, Packed] = (None, UNREADABLE_RUN)
        self._game: Game | None = None
        self._title = ""

    def read_snapshot(self) -> Snapshot:
        """Read the state of the run, and who has given how much."""
        try:
            found = self._contributions.read()
            games = self._read_newest(found)
            return Snapshot(
                state=pack_json(self._describe_state(found, games)),
                contributors=pack_json({"people": list(map(vars, found.people)), "own": vars(found.own)}),
                csv=pack_text(table_as_csv(found), "text/csv"),
                games=games,
            )
        except UNREADABLE as error:
            log.warning("the public page cannot read the run: %s", error)
            return Snapshot(state=UNREADABLE_RUN, contributors=UNREADABLE_RUN, csv=UNREADABLE_RUN, games={})

    def _describe_state(self, found: Contributions, games: Mapping[int, NewestGame]) -> dict[str, Any]:
        if not self._title:
            with read_ledger(self._run_dir) as ledger:
                self._title = game_title(ledger.game, ledger.options)
        curves = self._reader.read_curves()
        running, report = is_held(self._run_dir), self._read_progress()
        return {
            "name": printable_line(self._reader.name),
            "game": printable_line(self._title),
            "running": running,
            "phase": printable_line(report.phase) if report and running else "",
            "metrics": describe_report(report, running=running) if report else [],
            "strength": describe_strength(curves["metrics"]),
            "iterations": curves["iterations"],
            "people": len(found.people),
            "machines": sum(each.machines for each in found.people),
            "present": sum(each.present for each in found.people),
            "games": [{"number": game.number, "name": game.name} for game in games.values()],
            "time": self._wall(),
        }

    def _read_progress(self) -> ProgressReport | None:
        try:
            return read_progress(self._run_dir / PROGRESS_NAME).report
        except (ValueError, OSError):  # a run that is about to begin
            return None

    def _read_newest(self, found: Contributions) -> dict[int, NewestGame]:
        """Return the newest games by number, the newest first; others once a minute at most."""
        now = self._wall()
        when, games = self._newest
        if not games or not 0 <= now - when < NEWEST_SECONDS:
            games = {game.number: game for game in read_newest_games(self._run_dir, found)}
            self._newest = now, games
        return games

    def read_curves(self) -> Packed:
        """Read the curves."""
        try:
            found = self._reader.read_curves()
            if found is not self._curves[0]:
                self._curves = found, pack_json(choose_curves(found))
            return self._curves[1]
        except UNREADABLE as error:
            log.warning("the public page cannot read the curves: %s", error)
            return UNREADABLE_RUN

    def read_game(self, game: NewestGame) -> Packed:
        """Read a game, move by move."""
        from keima.data.receive import load_received  # compiled rules: 140 MB, for those who look at games
        from keima.report.games.game_view import load_game_of_run, make_game_view

        try:
            if self._game is None:
                with read_ledger(self._run_dir) as ledger:
                    self._game = load_game_of_run(ledger)
            batch = load_received(self._run_dir, game.row)
            view = make_game_view(self._game, batch, game.index, number=game.number)
            return pack_json(game_to_json(replace(view, worker=game.name)))
        except UNREADABLE as error:
            log.warning("the public page cannot show game %d: %s", game.number, error)
            return pack_text("This game cannot be shown.\n", "text/plain", HTTPStatus.NOT_FOUND)


def describe_report(report: ProgressReport, *, running: bool) -> list[list[str]]:
    """Describe the Coach's last progress report: titles and texts."""
    planned = "" if report.iterations is None else f" of {report.iterations:,}"
    found = [
        ("Iteration", f"{report.iteration:,}{planned}"),
        ("Games", f"{report.total_games:,}"),
        ("Games/s", format_rate(report.games_per_second) if running else ""),
        ("Window", f"{format_count(report.window_positions)} positions"),
        ("Model", f"{report.model_version:,}"),
        ("Elapsed", format_duration(report.seconds)),
        ("Left", format_duration(report.seconds_left) if running and report.seconds_left is not None else ""),
    ]
    return [[title, text] for title, text in found if text]


def describe_strength(columns: Mapping[str, Sequence[float | None]]) -> list[list[str]]:
    """Describe the newest measurement of each kind: title, text, and what it means."""
    found = []
    for metric in (metric for name in STRENGTH for metric in METRICS if metric.name == name):
        values, margins = columns.get(metric.name, ()), columns.get(metric.margin, ())
        last = next((place for place in reversed(range(len(values))) if values[place] is not None), None)
        if last is not None:
            row = {metric.name: values[last], metric.margin: margins[last] if margins else None}
            found.append([STRENGTH[metric.name], metric.format_value(row), metric.help])
    return found


def choose_curves(found: Mapping[str, Any]) -> dict[str, Any]:
    """Return the charts of a run with those of its strength first, in a section of their own."""
    charts = found["charts"]
    strength = [chart for chart in charts if any(curve["metric"] in STRENGTH for curve in chart["curves"])]
    others = [chart for chart in charts if chart not in strength]
    return {
        "name": printable_line(found["name"]),
        "strength": [{**chart, "section": STRENGTH_SECTION} for chart in strength],
        "others": others,
        "metrics": found["metrics"],
        "axes": [{"metric": metric, "name": name} for metric, name in AXES.items() if metric in found["metrics"]],
        "iterations": found["iterations"],
    }


def read_newest_games(run_dir: Path, found: Contributions) -> list[NewestGame]:
    """Return the newest games of a run, the newest first.

    Raises:
        sqlite3.Error: the ledger cannot be read.
    """
    with open_read_only(run_dir) as database:
        (number,) = database.execute("SELECT IFNULL(SUM(received), 0) FROM workers").fetchone()
        rows = database.execute(
            f"SELECT {', '.join(BATCH_COLUMNS)} FROM batches WHERE state = 'received' ORDER BY sequence DESC LIMIT ?",
            (NEWEST_GAMES,),  # each has a game at least
        ).fetchall()
    games = list[NewestGame]()
    for row in (BatchRow(**dict(zip(BATCH_COLUMNS, each, strict=True))) for each in rows):
        name = found.name_of(row.worker)
        for index in reversed(range(row.games)):
            if len(games) < NEWEST_GAMES:
                games.append(NewestGame(number=number, row=row, index=index, name=name))
            number -= 1
    return games


class Shared(Generic[T]):
    """A value that all visitors share: one of them has it computed, in a thread, and it is kept for a while.

    Args:
        compute: computes it.
        seconds: that it is kept.
        clock: a monotonic clock in seconds.
    """

    def __init__(
        self, compute: Callable[[], T], *, seconds: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._compute, self._seconds, self._clock = compute, seconds, clock
        self._one = anyio.Lock()
        self._known: tuple[float, T] | None = None

    async def get(self) -> T:
        """Return the value; while another visitor waits for the next one, the last one."""
        known = self._known_for(self._seconds) or (self._known_for(STALE_SECONDS) if self._one.locked() else None)
        if known is None:
            async with self._one:
                known = self._known_for(self._seconds)
                if known is None:
                    known = (await run_in_threadpool(self._compute),)
                    self._known = self._clock(), known[0]
        return known[0]

    def _known_for(self, seconds: float) -> tuple[T] | None:
        if self._known is not None and self._clock() - self._known[0] < seconds:
            return (self._known[1],)
        return None


class CrowdPage:
    """The endpoints of the page."""

    def __init__(self, run: PublicRun) -> None:
        self._run = run
        self._snapshot = Shared(run.read_snapshot, seconds=STATE_SECONDS)
        self._curves = Shared(run.read_curves, seconds=CURVES_SECONDS)
        self._games: dict[int, Packed] = {}  # by number, oldest request first
        self._one_game = anyio.Lock()

    def routes(self) -> list[BaseRoute]:
        """Return the routes. All addresses are relative to the page, which a proxy may have put into a folder."""
        text = (ASSETS / PAGE).read_text(encoding="utf-8").replace(GAMES, VIEWER["html"].read_text(encoding="utf-8"))
        own = [ASSETS / name for name in ("crowd.css", "crowd.js", "dashboard.css", "icon.svg")]
        files = [*own, *BOARDS.values(), VIEWER["css"], VIEWER["js"], *CHARTS.values()]
        return [
            Route("/", make_static_endpoint(text, "text/html")),
            Route("/public/state", self._state),
            Route("/public/curves", self._read_curves),
            Route("/public/games/{number}", self._game),
            Route("/public/contributors", self._contributors),
            Route("/public/contributors.csv", self._csv),
            *(
                Route(
                    f"/public/{path.name}", make_static_endpoint(path.read_text(encoding="utf-8"), TYPES[path.suffix])
                )
                for path in files
                if path.suffix in TYPES
            ),
        ]

    async def _state(self, request: Request) -> Response:
        return (await self._snapshot.get()).state.respond(request, seconds=STATE_SECONDS)

    async def _contributors(self, request: Request) -> Response:
        return (await self._snapshot.get()).contributors.respond(request, seconds=STATE_SECONDS)

    async def _csv(self, request: Request) -> Response:
        response = (await self._snapshot.get()).csv.respond(request, seconds=STATE_SECONDS)
        response.headers["Content-Disposition"] = 'attachment; filename="contributors.csv"'
        return response

    async def _read_curves(self, request: Request) -> Response:
        return (await self._curves.get()).respond(request, seconds=CURVES_SECONDS)

    async def _game(self, request: Request) -> Response:
        text = request.path_params["number"]
        if not GAME_NUMBER.fullmatch(text):
            return _no_game()
        found = self._games.get(int(text)) or await self._read_game(int(text))
        return found.respond(request, seconds=NEWEST_SECONDS) if found else _no_game()

    async def _read_game(self, number: int) -> Packed | None:
        """Read one of the newest games, one at a time; None if it is not among them."""
        chosen = (await self._snapshot.get()).games.get(number)
        if chosen is None:
            return None
        async with self._one_game:
            found = self._games.get(number)
            if found is None:
                found = await run_in_threadpool(self._run.read_game, chosen)
                self._games[number] = found
                while len(self._games) > KEPT_GAMES:
                    del self._games[next(iter(self._games))]
            return found


def make_static_endpoint(text: str, media_type: str) -> Callable[[Request], Response]:
    """Return an endpoint that returns this text."""
    packed = pack_text(text, media_type)
    return lambda request: packed.respond(request, seconds=ASSET_SECONDS)


def _no_game() -> Response:
    return PlainTextResponse(NO_GAME, HTTPStatus.NOT_FOUND, HEADERS)
