"""Feed a Coach many more games than its window holds, and check whether its memory stays constant.

    python -m tests.trials.memory --games 10000

The games are one recorded batch, delivered repeatedly under new names, so that only receiving, learning, publishing and
saving checkpoints are measured. The memory is that of the whole process (resident set), after its first iterations and
at the end.
"""

import argparse
import gc
import json
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

from keima.coach.backends.pending_batch import PendingBatch
from keima.data.records import encode_batch
from keima.worker.worker_folder import Heartbeat, batch_name
from tests.coach.coaching import coaching
from tests.small_run import GAME, small_settings
from tests.synthetic import synthetic_batch

BATCH_GAMES = 100
WINDOW_POSITIONS = 3_000  # about 400 games
WARM_SHARE = 0.2  # share of the games before the first measurement


class Recorded:
    """A worker that delivers the same games for ever."""

    workers = ("recorded",)

    def __init__(self, run_id: str) -> None:
        self._batch = synthetic_batch(GAME, games=BATCH_GAMES, run_id=run_id, worker="recorded")
        self._granted = self._delivered = 0

    def publish(self, version: int, model: bytes) -> None:
        """Ignore the model."""

    def grant(self, worker: str, *, granted: int, delivered: int) -> None:
        """Remember the account."""
        self._granted, self._delivered = granted, delivered

    def plan_grants(self, outstanding: Mapping[str, int], ahead: int) -> dict[str, int]:
        """Grant what it lacks."""
        return {worker: ahead - games for worker, games in outstanding.items()}

    def withdrawn(self) -> dict[str, int]:
        """Withdraw nothing: it plays its whole grant."""
        return {}

    def collect(self) -> list[PendingBatch]:
        """Return one batch, if it is granted."""
        if self._granted - self._delivered < BATCH_GAMES:
            return []
        batch_id = batch_name(self._batch.run_id, "recorded", self._delivered, BATCH_GAMES, f"{self._delivered:016x}")
        data = encode_batch(replace(self._batch, batch_id=batch_id, first_game=self._delivered))
        return [PendingBatch(worker="recorded", batch_id=batch_id, fetch=partial(_give, data))]

    def release(self, parcel: PendingBatch, *, delivered: int, refused: str = "") -> None:
        """Continue with the next batch."""
        self._delivered = delivered

    def status(self) -> dict[str, Heartbeat | None]:
        """Report nothing."""
        return {"recorded": None}

    def cluster(self) -> None:
        """Return nothing: it is no cluster."""

    def match_executors(self) -> None:
        """Return nothing: it plays no matches."""

    def close(self) -> None:
        """Do nothing: there is nothing to end."""


def _give(data: bytes, limit: int) -> bytes:
    return data


def resident_mb() -> float:
    """Return the memory of this process in MB, after garbage collection."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 1e6


def measure(folder: Path, *, games: int) -> dict[str, float]:
    """Return the MB after ``WARM_SHARE`` of the games and after all of them, and what was received in between."""
    per_iteration = 200
    iterations = games // per_iteration
    training = {
        "asynchronous": False,  # so that each iteration has exactly its games
        "games_per_iteration": per_iteration,
        "samples_per_position": 0.5,
        "window": {"min_positions": 500, "max_positions": WINDOW_POSITIONS},
    }
    settings = small_settings(folder, run={"iterations": iterations}, training=training)
    with coaching(folder, settings, make_backend=lambda game, run_id: Recorded(run_id)) as coach:
        coach.start()
        sizes = []
        while not coach.is_finished():
            gathered = coach.gather()
            learned = coach.learn()
            if learned:
                coach.publish()
            coach.conclude(gathered, learned, None)
            sizes.append(resident_mb())
        found = {
            "games": coach.state.total_games,
            "window_games": coach.window.num_games,
            "window_positions": coach.window.num_positions,
        }
    return found | {
        "first_mb": sizes[int(len(sizes) * WARM_SHARE)],
        "middle_mb": sizes[len(sizes) // 2],
        "last_mb": sizes[-1],
    }


def main() -> int:
    """Measure and print JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--games", type=int, default=10_000)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="keima-memory-") as folder:
        found = measure(Path(folder), games=arguments.games)
    sys.stdout.write(json.dumps(found, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
