"""Simulate all workers of ``benchmarks/cluster/coach_load.py``, which starts this program, in one process.

    python benchmarks/cluster/simulated_workers.py FOLDER --machines 100 --seats 1 --games-per-second 100 --game go

FOLDER has a folder for each machine: machine1, machine2 and so on. A heartbeat has the time, in milliseconds since
1970, instead of a number of evaluations. Nothing is played: prepared games are delivered at the
given rate, up to the number granted. One line is printed per batch: its name, the time, and its number of games.
"""

import argparse
import heapq
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.cluster.simulated_fleet import STOP_FILE, machine_name, worker_names
from configs.flags import number, whole
from games import Game, load_game
from tests.training.synthetic import synthetic_batch
from training.common.files import sha256_hex, write_atomically
from training.data.records import GameBatch, GameRecord, encode
from training.worker.batching import gather
from training.worker.worker import BEAT_SECONDS, POLL_SECONDS
from training.worker.worker_folder import Assignment, Heartbeat, WorkerFolder, batch_name

SIMULATED_GAMES: dict[str, dict[str, Any]] = {"connect_four": {}, "go": {"size": 9}}
READY_GAMES = 200  # prepared once and delivered repeatedly, under other numbers
PARALLEL_GAMES = 32  # that each worker reports


class SimulatedWorker:
    """A worker that uses its folder as a real one does, without playing."""

    def __init__(self, root: Path, *, rate: float, share: float, games: list[GameRecord], game: Game) -> None:
        """Set the games per second, ``rate``, and the part of its first batch that exists already, ``share``."""
        self.folder, self.rate, self.share = WorkerFolder(root).make(), rate, share
        self.games, self.game = games, game
        self.assignment: Assignment | None = None
        self.ended = False
        self.stopping = False
        self._stop = root / STOP_FILE
        self._read = (0, 0)  # the stamp of the last assignment read
        self._beat = 0
        self._played = 0.0  # games played until the time below
        self._then = 0.0
        self._handed_over = 0
        self._flush_at = 0.0

    def poll(self) -> None:
        """Read the assignment if it is new, and continue to play; call it every ``POLL_SECONDS``."""
        now = time.monotonic()
        if self.assignment and not self.stopping:
            self._played = min(self._played + (now - self._then) * self.rate, float(self.assignment.granted))
        self._then = now
        self.stopping = self.stopping or self._stop.exists()
        written = self._stamp()
        if written != self._read:
            self._read, self.assignment = written, self.folder.read_assignment()
        if self.assignment and self.assignment.granted and self._flush_at == 0:
            flush = self.assignment.flush_seconds or 0.0
            self._flush_at = now + (1 - self.share) * flush
            self._played = self.share * min(
                flush * self.rate, float(self.assignment.batch_games), float(self.assignment.granted)
            )
        self.stopping = self.stopping or (self.assignment is not None and self.assignment.stop)

    def _stamp(self) -> tuple[int, int]:
        """Return a value that changes when the assignment does."""
        try:
            found = (self.folder.inbox / "assignment.json").stat()
        except FileNotFoundError:
            return 0, 0
        return found.st_mtime_ns, found.st_ino

    def hand_over(self) -> list[tuple[str, float, int]]:
        """Put due batches into the outbox; return name, time and number of games of each."""
        found: list[tuple[str, float, int]] = []
        while self.assignment and not self.ended:
            count = min(int(self._played) - self._handed_over, self.assignment.batch_games)
            rest = self.stopping or time.monotonic() >= self._flush_at
            if count == 0 or (count < self.assignment.batch_games and not rest):
                break
            found.append(self._batch(count))
            self._flush_at = time.monotonic() + (self.assignment.flush_seconds or 0.0)
        return found

    def _batch(self, count: int) -> tuple[str, float, int]:
        assert self.assignment is not None
        columns = gather([self.games[(self._handed_over + i) % len(self.games)] for i in range(count)])
        name = batch_name(
            self.assignment.run_id,
            self.assignment.worker,
            self._handed_over,
            count,
            sha256_hex(columns["actions"].tobytes()),
        )
        batch = GameBatch(
            batch_id=name,
            run_id=self.assignment.run_id,
            worker=self.assignment.worker,
            game=self.game.name,
            options=self.game.options,
            rules_version=self.game.rules_version,
            first_game=self._handed_over,
            **columns,
        )
        write_atomically(self.folder.outbox / f"{name}.games", encode(batch))
        self._handed_over += count
        return name, time.time(), count

    def beat(self) -> None:
        """Replace the heartbeat; call it every ``BEAT_SECONDS``."""
        if self.assignment is None:
            self.ended = self.stopping
            return
        self._beat += 1
        finished, granted = int(self._played), self.assignment.granted
        end = self.stopping and finished == self._handed_over
        self.folder.write_heartbeat(
            Heartbeat(
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
            )
        )
        self.ended = end


def run_workers(hosts: Path, machines: int, seats: int, games_per_second: float, game: Game) -> None:
    """Run all workers until all have been stopped; print a line for each delivered batch."""
    ready = synthetic_batch(game, games=READY_GAMES, num_simulations=64, full_share=0.25)
    games = [ready.game_record(index) for index in range(READY_GAMES)]
    names = [
        (machine_name(index), name) for index in range(machines) for name in worker_names(machine_name(index), seats)
    ]
    shares = np.random.default_rng(1).random((len(names), 3))
    rate, workers = games_per_second / len(names), []
    due: list[tuple[float, int, float]] = []  # the time, the worker, and the seconds until the next time
    for index, (share, poll, beat) in enumerate(shares):
        machine, name = names[index]
        root = hosts / machine / "workers" / name
        workers.append(SimulatedWorker(root, rate=rate, share=share, games=games, game=game))
        due.append((time.monotonic() + poll * POLL_SECONDS, index, POLL_SECONDS))
        due.append((time.monotonic() + beat * BEAT_SECONDS, index, BEAT_SECONDS))
    heapq.heapify(due)
    while not all(worker.ended for worker in workers):
        when, index, again = due[0]
        time.sleep(max(0.0, when - time.monotonic()))
        heapq.heapreplace(due, (max(when + again, time.monotonic()), index, again))
        worker = workers[index]
        if again == BEAT_SECONDS:
            worker.beat()
            continue
        worker.poll()
        for batch in worker.hand_over():
            print(json.dumps(batch), flush=True)


def main() -> None:
    """Run all workers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="of the machines' folders")
    parser.add_argument("--machines", type=whole(), default=1)
    parser.add_argument("--seats", type=whole(), default=1, help="workers on each machine")
    parser.add_argument("--games-per-second", type=number(above=0), default=100.0, help="of all workers together")
    parser.add_argument("--game", choices=sorted(SIMULATED_GAMES), default="go")
    arguments = parser.parse_args()
    game = load_game(arguments.game, **SIMULATED_GAMES[arguments.game])
    run_workers(arguments.folder, arguments.machines, arguments.seats, arguments.games_per_second, game)


if __name__ == "__main__":
    main()
