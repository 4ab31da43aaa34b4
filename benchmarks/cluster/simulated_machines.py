"""Simulate all machines and workers of ``benchmarks/cluster/coach_load.py``, which starts this program, in one process.

The arguments are a Unix socket, and those of ``run_machines`` as JSON. The fleet's process connects to the socket in
place of SSH: one connection for the agent of each machine, and one for its files. Both speak the frames of the real
agent (``keima/cluster/agent/serve.py``), and every answer is sent a round trip after its request. The folders of all
workers are in memory, since real files and a real agent for each of a hundred machines would need more processor time
than the fleet that is measured. A worker writes a heartbeat once a second, with the time, in milliseconds since 1970,
instead of a number of evaluations. Nothing is played: prepared games are delivered at the given rate, up to the number
granted. One line is printed per batch: its name, the time, and its number of games.
"""

import heapq
import itertools
import json
import os
import re
import selectors
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.cluster.simulated_fleet import STOP_FILE, machine_name, worker_names
from keima.cluster.agent.commands import LINK, OWN, POLL
from keima.cluster.agent.packing import remote_program
from keima.cluster.agent.serve import DIGITS
from keima.data.records import GameRecord, encode_batch
from keima.games import Game, load_game
from keima.worker.batching import make_batch
from keima.worker.loop import BEAT_SECONDS
from keima.worker.worker_folder import Assignment, Heartbeat
from tests.synthetic import synthetic_batch

SIMULATED_GAMES: dict[str, dict[str, Any]] = {"connect_four": {}, "go": {"size": 9}}
READY_GAMES = 200  # prepared once and delivered repeatedly, under other numbers
PARALLEL_GAMES = 32  # that each worker reports
CHUNK = 2**18
BACKLOG = 1000

Reply = tuple[dict[str, Any], bytes]


class SimulatedWorker:
    """A worker and its folder, without files and without playing.

    Args:
        name: its name.
        rate: games per second.
        share: the part of its first batch that exists already.
        games: the games that it delivers, over and over.
        game: whose records they are.
    """

    def __init__(self, name: str, *, rate: float, share: float, games: list[GameRecord], game: Game) -> None:
        self.name, self.rate, self.share = name, rate, share
        self.games, self.game = games, game
        self.assignment: Assignment | None = None
        self.outbox: dict[str, bytes] = {}
        self.heartbeat = ""  # its text
        self.ended = self.stopping = False
        self._beat = 0
        self._played = 0.0  # games played until the time below
        self._then = 0.0
        self._handed_over = 0
        self._flush_at = 0.0

    @property
    def stamp(self) -> str:
        """What changes with the heartbeat; empty: there is none."""
        return f"{self._beat}" if self.heartbeat else ""

    @property
    def contents(self) -> str:
        """The run that its folder belongs to; empty: there is nothing in it."""
        return self.assignment.run_id if self.assignment else ""

    def assign(self, text: str) -> None:
        """Take a new assignment."""
        self._play()
        self.assignment = Assignment.model_validate_json(text)
        self.stopping = self.stopping or self.assignment.stop
        if self.assignment.granted and self._flush_at == 0:
            flush = self.assignment.flush_seconds or 0.0
            self._flush_at = time.monotonic() + (1 - self.share) * flush
            self._played = self.share * min(
                flush * self.rate, float(self.assignment.batch_games), float(self.assignment.granted)
            )

    def _play(self) -> None:
        now = time.monotonic()
        if self.assignment and not self.stopping:
            self._played = min(self._played + (now - self._then) * self.rate, float(self.assignment.granted))
        self._then = now

    def step(self) -> None:
        """Put due batches into the outbox, and say so; then renew the heartbeat. Call it every ``BEAT_SECONDS``."""
        self._play()
        while self.assignment and not self.ended:
            count = min(int(self._played) - self._handed_over, self.assignment.batch_games)
            rest = self.stopping or time.monotonic() >= self._flush_at
            if count == 0 or (count < self.assignment.batch_games and not rest):
                break
            print(json.dumps([self._deliver(count), time.time(), count]), flush=True)
            self._flush_at = time.monotonic() + (self.assignment.flush_seconds or 0.0)
        self._beat_once()

    def _deliver(self, count: int) -> str:
        assert self.assignment is not None
        batch = make_batch(
            [self.games[(self._handed_over + index) % len(self.games)] for index in range(count)],
            run_id=self.assignment.run_id,
            worker=self.assignment.worker,
            game=self.game.name,
            options=self.game.options,
            rules_version=self.game.rules_version,
            first_game=self._handed_over,
        )
        self.outbox[f"{batch.batch_id}.games"] = encode_batch(batch)
        self._handed_over += count
        return batch.batch_id

    def _beat_once(self) -> None:
        if self.assignment is None:
            self.ended = self.stopping
            return
        self._beat += 1
        finished, granted = int(self._played), self.assignment.granted
        end = self.stopping and finished == self._handed_over
        self.heartbeat = Heartbeat(
            run_id=self.assignment.run_id,
            worker=self.assignment.worker,
            beat=self._beat,
            pid=os.getpid(),
            state="ended" if end else "playing" if finished < granted else "waiting",
            model_version=self.assignment.model_version,
            lease=self.assignment.lease,
            granted=granted,
            begun=min(finished + PARALLEL_GAMES, granted),
            finished=finished,
            parallel_games=PARALLEL_GAMES,
            evaluations=round(time.time() * 1000),
            games_per_second=self.rate,
            speed=self.rate,
        ).model_dump_json(indent=1)
        self.ended = end


class Machine:
    """What the agent of one machine does for its workers (``keima/cluster/agent``), and what a transport does there."""

    def __init__(self, workers: list[SimulatedWorker]) -> None:
        self._workers = {worker.name: worker for worker in workers}
        self._commands: dict[str, Callable[[Any], Reply]] = {
            POLL.name: self._poll,
            OWN.name: self._own,
            "put": self._put,
            "get": self._get,
        }

    def answer(self, command: str, request: Any) -> Reply:
        """Carry out a command; links, removals and whatever else changes nothing of interest just succeed."""
        carry_out = self._commands.get(command)
        return carry_out(request) if carry_out else ({"linked": True} if command == LINK.name else {}, b"")

    def _poll(self, request: dict[str, Any]) -> Reply:
        games, left = re.compile(request["games"]), int(request["limit"])
        answers, content = [], bytearray()
        for each in request["workers"]:
            answer, data = self._poll_one(each, games, left - len(content))
            answers.append(answer)
            content += data
        return {"workers": answers}, bytes(content)

    def _poll_one(self, each: dict[str, Any], games: re.Pattern[str], left: int) -> Reply:
        worker = self._workers[each["place"].rpartition("/")[2]]
        if each["assignment"] is not None:
            worker.assign(each["assignment"])
        for name in each["remove"]:
            worker.outbox.pop(name, None)
        files, data, have = [], b"", set(each["have"])
        for name, batch in worker.outbox.items():
            if name not in have and games.fullmatch(name) and len(batch) <= left - len(data):
                files.append((name, len(batch)))
                data += batch
        answer = {
            "mine": True,
            "wrong": "",
            "stamp": worker.stamp,
            "running": True,
            "names": [(name, len(batch)) for name, batch in worker.outbox.items()],
            "files": files,
            "unread": [],
        }
        return answer | ({} if worker.stamp == each["seen"] else {"heartbeat": worker.heartbeat}), data

    def _own(self, request: dict[str, Any]) -> Reply:
        worker = self._workers[request["place"].rpartition("/")[2]]
        found = {"owner": request["owner"], "token": "", "contents": worker.contents, "unsorted": False}
        return {"mine": True, **found}, b""

    def _put(self, name: str) -> Reply:
        _, worker, *rest = name.split("/")
        if rest == [STOP_FILE]:
            self._workers[worker].stopping = True
            self._workers[worker].step()
        return {}, b""

    def _get(self, name: str) -> Reply:
        worker, file = self._workers[name.split("/")[1]], name.rpartition("/")[2]
        found = worker.heartbeat.encode() if file == "worker.json" else worker.outbox.get(file)
        return {"missing": found is None}, found or b""


@dataclass
class Connection:
    """A connection of the fleet's process to a machine."""

    socket: socket.socket
    came: bytearray = field(default_factory=bytearray)
    unsent: bytearray = field(default_factory=bytearray)
    machine: Machine | None = None  # until it has said which
    mark: bytes = b""


class Server:
    """Answers the fleet's process for all machines, each time after a pause.

    Args:
        path: of the socket.
        machines: by name.
        round_trip: the pause in seconds.
    """

    def __init__(self, path: Path, machines: dict[str, Machine], round_trip: float) -> None:
        self._machines, self._round_trip = machines, round_trip
        self._due: list[tuple[float, int, Connection, bytes]] = []  # answers, with the time when they are sent
        self._order = itertools.count()
        self._selector = selectors.DefaultSelector()
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen(BACKLOG)
        self._selector.register(self._listener, selectors.EVENT_READ)

    @property
    def is_used(self) -> bool:
        """Whether there is a connection."""
        return len(self._selector.get_map()) > 1

    def serve(self, until: float) -> None:
        """Receive requests and send answers, at least once, until a moment by the monotonic clock."""
        now = 0.0
        while now < until:
            now = time.monotonic()
            while self._due and self._due[0][0] <= now:
                _, _, connection, data = heapq.heappop(self._due)
                connection.unsent += data
                self._send(connection)
            soon = min(until, self._due[0][0] if self._due else until)
            for key, events in self._selector.select(max(0.0, soon - now)):
                if key.data is None:
                    self._accept()
                elif events & selectors.EVENT_WRITE:
                    self._send(key.data)
                else:
                    self._receive(key.data)

    def _accept(self) -> None:
        connection = Connection(self._listener.accept()[0])
        connection.socket.setblocking(False)
        self._selector.register(connection.socket, selectors.EVENT_READ, connection)

    def _send(self, connection: Connection) -> None:
        """Send what the socket takes now."""
        try:
            while connection.unsent:
                del connection.unsent[: connection.socket.send(connection.unsent)]
        except BlockingIOError:
            pass
        except OSError:  # the other side has closed it
            connection.unsent.clear()
        if connection.socket.fileno() >= 0:
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if connection.unsent else 0)
            self._selector.modify(connection.socket, events, connection)

    def _receive(self, connection: Connection) -> None:
        try:
            chunk = connection.socket.recv(CHUNK)
        except OSError:
            chunk = b""
        if not chunk:
            self._selector.unregister(connection.socket)
            connection.socket.close()
            return
        connection.came += chunk
        if connection.machine is None and b"\n" in connection.came:
            line, _, rest = bytes(connection.came).partition(b"\n")
            name, nonce = line.decode().split()
            connection.machine, connection.mark = self._machines[name], f"@@{nonce} ".encode()
            connection.came = bytearray(rest)
            self._say(connection, {"program": remote_program()[1].rpartition("/")[2]})
        if connection.machine:
            self._answer(connection, connection.machine)

    def _answer(self, connection: Connection, machine: Machine) -> None:
        """Answer all requests that are complete."""
        mark = len(connection.mark)
        head = mark + 2 * DIGITS
        while len(connection.came) >= head:
            end = head + int(connection.came[mark : mark + DIGITS], 16)
            if len(connection.came) < end:
                return
            number, command, request = json.loads(bytes(connection.came[head:end]))
            del connection.came[:end]
            answer, data = machine.answer(command, request)
            self._say(connection, [number, {"ok": answer}], data)

    def _say(self, connection: Connection, text: Any, data: bytes = b"") -> None:
        encoded = json.dumps(text).encode()
        frame = connection.mark + f"{len(encoded):08x}{len(data):08x}".encode() + encoded + data
        heapq.heappush(self._due, (time.monotonic() + self._round_trip, next(self._order), connection, frame))


def run_machines(
    path: Path, *, machines: int, slots: int, round_trip: float, games_per_second: float, game_name: str
) -> None:
    """Run all workers until all have been stopped; print a line for each delivered batch.

    Args:
        path: of the socket.
        machines: their number.
        slots: workers on each machine.
        round_trip: seconds until each answer.
        games_per_second: of all workers together.
        game_name: what is played.
    """
    game = load_game(game_name, **SIMULATED_GAMES[game_name])
    ready = synthetic_batch(game, games=READY_GAMES, num_simulations=64, full_share=0.25)
    games = [ready.game_record(index) for index in range(READY_GAMES)]
    shares = np.random.default_rng(1).random((machines * slots, 2))
    workers, simulated = list[SimulatedWorker](), dict[str, Machine]()
    for index in range(machines):
        name, first = machine_name(index), len(workers)
        for worker in worker_names(name, slots):
            rate = games_per_second / (machines * slots)
            workers.append(SimulatedWorker(worker, rate=rate, share=shares[len(workers), 0], games=games, game=game))
        # A machine with several workers is expected to have one of its own name until it has listed them.
        unused = SimulatedWorker(name, rate=0.0, share=0.0, games=games, game=game)
        simulated[name] = Machine([unused, *workers[first:]])
    began = time.monotonic()
    due = [(began + beat * BEAT_SECONDS, index) for index, (_, beat) in enumerate(shares)]
    heapq.heapify(due)
    server = Server(path, simulated, round_trip)
    while server.is_used or not all(worker.ended for worker in workers):
        server.serve(due[0][0])
        while due[0][0] <= time.monotonic():
            when, index = due[0]
            heapq.heapreplace(due, (when + BEAT_SECONDS, index))
            workers[index].step()


if __name__ == "__main__":
    run_machines(Path(sys.argv[1]), **json.loads(sys.argv[2]))
