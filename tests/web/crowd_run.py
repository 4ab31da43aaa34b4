"""Folders of runs that machines have joined: a small one with real games, and a large ledger without files."""

import gzip
import json
import os
import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import anyio
from starlette.applications import Starlette
from starlette.routing import BaseRoute

from keima.base.run_folder import LEDGER_NAME
from keima.base.system.threads import SteppingThread
from keima.cluster.http.app import SafeHeaders
from keima.cluster.http.door import MACHINES, SEEN, Machine
from keima.cluster.http.links import StoredLink, make_link, write_door_address
from keima.cluster.http.protocol import DoorAddress
from keima.cluster.http.server import make_server, open_listener
from keima.coach.crowd.verdicts import FOLDER, REFUSED, write_refused
from keima.data.ledger import Ledger, open_ledger
from keima.data.receive import Received, receive_batch
from keima.data.records import encode_batch
from keima.games import load_game
from keima.report import make_observers
from keima.web.crowd_page import crowd_routes
from keima.worker.worker_folder import ProcessorTime, WorkerFolder, batch_name
from tests.example_reports import evaluation, iteration, progress, worker
from tests.synthetic import synthetic_batch

RUN_ID = "run"
END_SECONDS = 10.0  # for a server to end
GAME = load_game("tic_tac_toe")
KEY_HASH = "f" * 64
BATCH_GAMES = 10
DAY = 86_400.0
ADDRESS = "https://secret-host.example:8443"
SSH_HOST = "gpu-box-17.corp.example"
EVIL = '<img src=x onerror="document.title=1"><script>document.title=1</script>'
LIE = "its games are not those of their seeds, models and settings: <b>lies</b>"


def machine(number: int, name: str, *, workers: int = 1, link: str = "a", since: float = 0.0) -> Machine:
    """Return a machine whose workers are crowd-m<number>-...."""
    ident = f"m{number}-{number:06x}"
    return Machine(id=ident, name=name, link=link, key_sha256=KEY_HASH, workers=workers, since=since, processor="Zen 9")


def add_machine(run_dir: Path, added: Machine, *, seen: float | None = None) -> Machine:
    """Register a machine that has reported at ``seen``."""
    folder = run_dir / FOLDER / MACHINES
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{added.id}.json").write_text(json.dumps(asdict(added)))
    if seen is not None:
        mark = run_dir / FOLDER / "workers" / added.worker_names[0] / SEEN
        mark.parent.mkdir(parents=True, exist_ok=True)
        mark.touch()
        os.utime(mark, (seen, seen))
    return added


def use_core_hours(run_dir: Path, name: str, hours: float, *, run_id: str = RUN_ID) -> None:
    """Have a worker's mirror say how long it has worked."""
    mirror = WorkerFolder(run_dir / "workers" / name).create_folders()
    mirror.write_processor_time(ProcessorTime(run_id=run_id, worker=name, seconds=3600 * hours))


def receive_games(ledger: Ledger, name: str, *, batches: int = 1) -> None:
    """Receive a worker's next batches."""
    for _ in range(batches):
        first = ledger.account(name).next_game
        batch_id = batch_name(RUN_ID, name, first, BATCH_GAMES, f"{first:08x}")
        batch = synthetic_batch(
            GAME,
            games=BATCH_GAMES,
            seed=first + len(name),
            num_simulations=4,
            run_id=RUN_ID,
            worker=name,
            batch_id=batch_id,
            first_game=first,
        )
        data = encode_batch(batch)
        found = receive_batch(ledger, GAME, worker=name, batch_id=batch_id, fetch=lambda limit, data=data: data)  # type: ignore[misc]
        assert isinstance(found, Received), found


def make_crowd_run(run_dir: Path) -> StoredLink:
    """Make the folder of a run that has ended, with five machines and a link, which is returned.

    Anna has two machines; Bob lies; a stranger has a hostile name; and one of the run's own workers is named after its
    host.
    """
    now = time.time()
    run_dir.mkdir(parents=True)
    for observer in make_observers(run_dir, name=run_dir.name, game=GAME.name):
        for number in range(1, 8):
            observer.iteration(iteration(number, measured=evaluation(number), workers=(worker(0),)))
        observer.event(f"{SSH_HOST}: restarted from 10.1.2.3")
        observer.progress(progress(7, workers=(worker(0),)))
    crowd = run_dir / FOLDER
    crowd.mkdir()
    link = make_link(crowd, "everyone")
    write_door_address(crowd, DoorAddress(ADDRESS, "e" * 64))
    anna = add_machine(run_dir, machine(1, "Anna", workers=2, since=now - 9 * DAY), seen=now)
    again = add_machine(run_dir, machine(2, "Anna", since=now - 9 * DAY), seen=now - 2 * DAY)
    liar = add_machine(run_dir, machine(3, "=HYPERLINK(1)"), seen=now - 3600)
    evil = add_machine(run_dir, machine(4, EVIL), seen=now)
    add_machine(run_dir, machine(5, "idle \u202e\x1b[31m"), seen=now - 30 * DAY)
    players = [anna.worker_names[0], anna.worker_names[1], again.worker_names[0], liar.worker_names[0]]
    with open_ledger(run_dir, GAME, run_id=RUN_ID) as ledger:
        ledger.grant_all(dict.fromkeys((*players, evil.worker_names[0], SSH_HOST), 100))
        for count, name in enumerate(players, 1):
            receive_games(ledger, name, batches=count)
        receive_games(ledger, SSH_HOST, batches=2)
        receive_games(ledger, evil.worker_names[0])
        ledger.discard(again.worker_names[0], 30, "the worker is gone")
        ledger.add_iteration(1, {"window_games": 100, "workers": [{"name": players[0], "core_hours": 1.5}]})
        ledger.add_iteration(2, {"window_games": 100, "workers": [{"name": players[0], "core_hours": 2.5}]})
    with closing(sqlite3.connect(run_dir / LEDGER_NAME)) as database, database:
        database.execute("UPDATE iterations SET time = ? WHERE number = 1", (now - 8 * DAY,))
        database.execute("UPDATE batches SET time = ? WHERE worker = ?", (now - 8 * DAY, players[0]))
    write_refused(run_dir, {liar.worker_names[0]: LIE})
    for name, hours in zip(players, (4.0, 1.0, 0.5, 2.0), strict=True):
        use_core_hours(run_dir, name, hours)
    use_core_hours(run_dir, SSH_HOST, 8.0)
    use_core_hours(run_dir, "crowd-old-1234-1", 9.0, run_id="another run")
    assert (crowd / REFUSED).exists()
    return link


def make_large_ledger(run_dir: Path, *, batches: int, machines: int) -> None:
    """Make a run of so many batches and machines of four workers, without the files of its games."""
    run_dir.mkdir(parents=True)
    now = time.time()
    joined = [machine(number, f"name {number}", workers=4) for number in range(machines)]
    names = [name for each in joined for name in add_machine(run_dir, each, seen=now).worker_names]
    for name in names:
        use_core_hours(run_dir, name, 1.0)
    open_ledger(run_dir, GAME, run_id=RUN_ID).close()
    add_batches(run_dir, names, batches=batches, since=now - 14 * DAY, until=now)


def add_batches(run_dir: Path, names: Sequence[str], *, batches: int, since: float, until: float) -> None:
    """Enter batches of these workers in turn, evenly between two times in seconds since 1970."""
    with closing(sqlite3.connect(run_dir / LEDGER_NAME)) as database, database:
        (before,) = database.execute("SELECT COUNT(*) FROM batches").fetchone()
        database.executemany("INSERT OR IGNORE INTO workers (name) VALUES (?)", ((name,) for name in names))
        step = (until - since) / batches
        database.executemany(
            "INSERT INTO batches (id, worker, state, reason, first_game, games, positions, bytes, sha256, first_model, "
            "last_model, time) VALUES (?, ?, 'received', '', ?, 20, 800, 9000, ?, 1, 1, ?)",
            (
                (f"batch-{number}", names[number % len(names)], number, "0" * 64, since + step * (number - before))
                for number in range(before, before + batches)
            ),
        )
        sums = "(SELECT IFNULL(SUM(games), 0) FROM batches WHERE worker = workers.name)"
        database.execute(f"UPDATE workers SET received = {sums}, next_game = {sums}, granted = {sums}")
        report = json.dumps({"window_games": 5 * batches, "workers": [{"name": name} for name in names]})
        database.execute("INSERT OR REPLACE INTO iterations VALUES (1, ?, ?)", (report, until))


class Visitor:
    """Asks a run's public page for things, without a network."""

    def __init__(self, routes: Sequence[BaseRoute]) -> None:
        self._app = Starlette(routes=routes)

    def ask(self, path: str, *, packed: bool = False) -> "Answer":
        """Send a request, by default of a program that cannot read compressed answers."""
        return anyio.run(self.ask_all, [path], packed)[0]

    async def ask_all(self, paths: Sequence[str], packed: bool = False) -> list["Answer"]:
        """Send requests at the same time."""
        answers: dict[int, Answer] = {}

        async def one(place: int, path: str) -> None:
            answers[place] = await self._ask(path, packed)

        async with anyio.create_task_group() as group:
            for place, path in enumerate(paths):
                group.start_soon(one, place, path)
        return [answers[place] for place in range(len(paths))]

    async def _ask(self, path: str, packed: bool) -> "Answer":
        sent: list[Mapping[str, Any]] = []

        async def receive() -> Mapping[str, Any]:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: Mapping[str, Any]) -> None:
            sent.append(message)

        where, _, query = path.partition("?")
        headers = [(b"accept-encoding", b"gzip, br")] if packed else []
        scope = {"type": "http", "method": "GET", "path": where, "raw_path": where.encode(), "headers": headers}
        scope |= {"query_string": query.encode(), "root_path": "", "scheme": "https", "server": ("door", 443)}
        await self._app(scope, receive, send)  # type: ignore[arg-type]
        names = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
        return Answer(sent[0]["status"], names, b"".join(part.get("body", b"") for part in sent[1:]))


class Answer:
    """What the page has answered."""

    def __init__(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        self.status, self.headers, self.sent = status, headers, body
        self.body = gzip.decompress(body) if headers.get("content-encoding") == "gzip" else body

    @property
    def text(self) -> str:
        """Its content as text."""
        return self.body.decode()

    def json(self) -> Any:
        """Return its content, which must be a good answer in JSON."""
        assert self.status == 200 and self.headers["content-type"] == "application/json", self.text
        return json.loads(self.body)


def visitor(run_dir: Path) -> Visitor:
    """Return a visitor of the run's page."""
    return Visitor(crowd_routes(run_dir))


@contextmanager
def served_page(run_dir: Path) -> Iterator[str]:
    """Serve a run's page as the door does, but without TLS, while the block runs; yield its address."""
    listener = open_listener("127.0.0.1", 0)
    app = Starlette(routes=crowd_routes(run_dir))
    app.add_middleware(SafeHeaders)
    server = make_server(app, certificate=None)
    done: list[bool] = []

    def serve() -> float:
        server.run(sockets=[listener])
        done.append(True)
        return 0.0

    thread = SteppingThread("page", serve, lambda: bool(done))
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/"
    finally:
        server.should_exit = True
        thread.join(END_SECONDS)
        listener.close()


def every_path(state: Mapping[str, Any]) -> Iterator[str]:
    """Yield every address of the page that has something to say of the run."""
    yield from ("/", "/public/state", "/public/curves", "/public/contributors", "/public/contributors.csv")
    yield from (f"/public/games/{game['number']}" for game in state["games"])
