"""The page ``/play``: people play against networks, one game per visitor.

The server keeps the games; ``engine.py``, a process of the lowest priority with one thread for each model in use, plays
and thinks for all visitors, one question after the other.
"""

import json
import os
import secrets
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import Annotated, Any, Literal

import anyio
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from keima.paths import program_of, with_code_on_path
from keima.play.engines.engine_process import EngineFailed, EngineProcess
from keima.web.access import COMMANDS
from keima.web.limits import (
    MOST_ENGINES,
    MOST_GAMES,
    MOST_SECONDS,
    MOST_SIMULATIONS,
    MOST_WAITING,
    USUAL_SECONDS,
)
from keima.web.models import Models

PAGE = Path(__file__).with_name("assets") / "play.html"
VISITOR = "keima-visitor"  # the cookie
VISITOR_BYTES = 16
LOADING_SECONDS = 900.0  # for an answer beside its thinking: the first one on a machine compiles the search
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"), "1")


class VisitorCommand(BaseModel):
    """What a visitor sends."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class NewGame(VisitorCommand):
    """Begin a game; the network thinks for this long."""

    do: Literal["new"]
    model: str = Field(max_length=40)
    person: int | None = Field(default=0, ge=0, le=15)  # None: the network plays all
    simulations: int | None = Field(default=None, ge=1, le=MOST_SIMULATIONS)
    seconds: float | None = Field(default=None, ge=0.05, le=MOST_SECONDS, strict=False)

    @model_validator(mode="after")
    def _one_limit(self) -> "NewGame":
        if (self.simulations is None) == (self.seconds is None):
            raise ValueError("give simulations or seconds")
        return self


class MakeMove(VisitorCommand):
    """Make a move; ``ply`` counts the moves before it, so that a second click plays nothing."""

    do: Literal["move"]
    action: int = Field(ge=0, lt=2**31)
    ply: int = Field(ge=0)


class Ask(VisitorCommand):
    """Look at the game, let the network move, ask it what it would play, take a move back, or resign."""

    do: Literal["look", "answer", "hint", "undo", "resign"]
    ply: int = Field(default=0, ge=0)


COMMAND: TypeAdapter[NewGame | MakeMove | Ask] = TypeAdapter(
    Annotated[NewGame | MakeMove | Ask, Field(discriminator="do")]
)


@dataclass(kw_only=True)
class VisitorGame:
    """A visitor's game."""

    given: NewGame
    path: str  # of the model
    actions: list[int] = field(default_factory=list)
    resigned: int | None = None
    ply: int = 0
    lock: anyio.Lock = field(default_factory=anyio.Lock)

    def make_question(self, do: str, action: int | None = None) -> dict[str, Any]:
        """Return a question about this game for the engine."""
        state = {"path": self.path, "actions": self.actions, "resigned": self.resigned}
        limits = self.given.model_dump(include={"person", "simulations", "seconds"})
        return state | limits | {"do": do, "action": action}


class UnreadableModel(ValueError):
    """A model is damaged, or there is none; the text says which."""


class ThinkingProcess(EngineProcess):
    """The process of ``engine.py`` for a model.

    Raises:
        EngineFailed: it cannot be started.
        UnreadableModel: the model cannot be read.
    """

    def __init__(self, path: str) -> None:
        environment = with_code_on_path({**os.environ, **ONE_THREAD})
        super().__init__(
            [*program_of("keima.web.engine"), path],
            language="JSON",
            seconds=LOADING_SECONDS,
            environment=environment,
        )
        try:
            loaded = json.loads(self._read_line("load", "the network", self._deadline(0.0)))
        except EngineFailed:
            self.close()
            raise
        if "error" in loaded:
            self.close()
            raise UnreadableModel(loaded["error"])

    def ask(self, question: dict[str, Any]) -> dict[str, Any]:
        """Return the answer to a question.

        Raises:
            EngineFailed: the process has ended or does not answer.
        """
        self._send_lines(json.dumps(question))
        answer: dict[str, Any] = json.loads(self._read_line(question["do"], "an answer", self._deadline(MOST_SECONDS)))
        return answer


class VisitorGames:
    """The games of all visitors. ``close`` ends the engines.

    Args:
        models: that can be chosen.
        chosen: the one that the page proposes; empty: the first.
        simulations: of a move, that the page proposes; None: it proposes a time.
    """

    def __init__(self, models: Models, *, chosen: str = "", simulations: int | None = None) -> None:
        self._models, self._chosen, self._simulations = models, chosen, simulations
        self._games: OrderedDict[str, VisitorGame] = OrderedDict()  # by visitor, who was there last at the end
        self._engines: dict[str, ThinkingProcess] = {}  # by the model's path, the one that was asked last at the end
        self._thinking, self._waiting, self._closed = anyio.Lock(), 0, False

    def routes(self) -> Iterator[Route]:
        """Yield the routes that this answers."""
        yield Route("/play", self._page)
        yield Route("/api/play/models", self._list_models)
        yield Route("/api/play/file", self._save_file)
        yield Route(COMMANDS, self._handle_command, methods=["POST"])

    def close(self) -> None:
        """End the engines."""
        self._closed = True
        for engine in self._engines.values():
            engine.close()

    async def _page(self, request: Request) -> Response:
        response = HTMLResponse(PAGE.read_text(encoding="utf-8"))
        if VISITOR not in request.cookies:
            response.set_cookie(VISITOR, secrets.token_urlsafe(VISITOR_BYTES), httponly=True, samesite="strict")
        return response

    async def _list_models(self, request: Request) -> Response:
        models = [model.as_dict() for model in await run_in_threadpool(self._models.list_models)]
        limits = {"simulations": MOST_SIMULATIONS, "seconds": MOST_SECONDS}
        usual = {"simulations": self._simulations, "seconds": USUAL_SECONDS}
        playing = request.cookies.get(VISITOR, "") in self._games
        offer = {"models": models, "chosen": self._chosen, "limits": limits, "usual": usual, "playing": playing}
        return JSONResponse(offer)

    async def _save_file(self, request: Request) -> Response:
        game = self._games.get(request.cookies.get(VISITOR, ""))
        if game is None:
            return make_text_error("There is no game to save.", HTTPStatus.NOT_FOUND)
        answer = await self._ask_or_refuse(game.make_question("save"))
        if isinstance(answer, Response):
            return answer
        headers = {"Content-Disposition": f'attachment; filename="{answer["name"]}"'}
        return PlainTextResponse(answer["text"], headers=headers)

    async def _handle_command(self, request: Request) -> Response:
        visitor = request.cookies.get(VISITOR, "")
        if not visitor:
            return make_text_error("Open /play first.", HTTPStatus.FORBIDDEN)
        try:
            command = COMMAND.validate_json(await request.body())
        except ValidationError as error:
            return make_text_error(f"{error.errors()[0]['msg']}", HTTPStatus.UNPROCESSABLE_ENTITY)
        if isinstance(command, NewGame):
            return await self._begin_game(visitor, command)
        game = self._games.get(visitor)
        if game is None:
            return make_text_error("There is no game: start one.", HTTPStatus.NOT_FOUND)
        self._games.move_to_end(visitor)
        return await self._continue_game(game, command)

    async def _begin_game(self, visitor: str, command: NewGame) -> Response:
        model = await run_in_threadpool(self._models.find_model, command.model)
        if model is None:
            return make_text_error("There is no such model.", HTTPStatus.NOT_FOUND)
        game = VisitorGame(given=command, path=str(model.path))
        response = await self._continue_game(game, Ask(do="look"))
        if response.status_code == HTTPStatus.OK:
            self._games.pop(visitor, None)
            self._games[visitor] = game
            while len(self._games) > MOST_GAMES:
                self._games.popitem(last=False)
        return response

    async def _continue_game(self, game: VisitorGame, command: MakeMove | Ask) -> Response:
        """Return what the page shows after a command."""
        async with game.lock:
            late = command.ply != game.ply and command.do in ("move", "answer", "hint")
            action = command.action if isinstance(command, MakeMove) else None
            answer = await self._ask_or_refuse(game.make_question("look" if late else command.do, action))
            if isinstance(answer, Response):
                return answer
            game.actions, game.resigned = answer["actions"], answer["resigned"]
            game.ply = len(answer["view"]["moves"])
            return JSONResponse(answer["view"] | {"chosen": game.given.model})

    async def _ask_or_refuse(self, question: dict[str, Any]) -> dict[str, Any] | Response:
        """Return the engine's answer, or the reason why the visitor gets none."""
        if self._waiting >= MOST_WAITING:
            return make_text_error("The server is busy with other games: try again.", HTTPStatus.SERVICE_UNAVAILABLE)
        self._waiting += 1
        try:
            async with self._thinking:
                answer = await run_in_threadpool(self._ask_engine, question)
        except UnreadableModel as error:
            return make_text_error(str(error), HTTPStatus.UNPROCESSABLE_ENTITY)
        except EngineFailed as error:
            return make_text_error(
                f"The engine has failed; the game is kept: {error}", HTTPStatus.INTERNAL_SERVER_ERROR
            )
        finally:
            self._waiting -= 1
        return make_text_error(answer["error"], HTTPStatus.UNPROCESSABLE_ENTITY) if "error" in answer else answer

    def _ask_engine(self, question: dict[str, Any]) -> dict[str, Any]:
        path = question["path"]
        if path in self._engines:
            with suppress(EngineFailed):  # it ends when nobody plays, and may be killed for its memory
                return self._running_engine(path).ask(question)
            self._engines.pop(path).close()
        return self._running_engine(path).ask(question)

    def _running_engine(self, path: str) -> ThinkingProcess:
        """Return the engine of a model, started if need be; another one may end for it."""
        if self._closed:
            raise EngineFailed("the server ends")
        engine = self._engines.pop(path, None) or ThinkingProcess(path)
        self._engines[path] = engine
        while len(self._engines) > MOST_ENGINES:
            self._engines.pop(next(iter(self._engines))).close()
        return engine


def make_text_error(text: str, status: HTTPStatus) -> Response:
    """Return a refusal, in words."""
    return PlainTextResponse(f"{text}\n", status)
