"""A journal of finished games that wait for their batch, so that a killed worker loses none.

Each finished game is appended as a batch of one, with its number among all games of the worker. After a kill, the next
worker process or the Coach makes batches of what is left. Games that are in a batch already have lower numbers and are
skipped, so it is always safe to repeat this.

The file is not synced: a kill loses nothing; a power cut loses the games since the last batch, which are played again.
"""

import logging
import os
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path

from keima.base.files import write_atomically
from keima.data.records import BatchLimits, CorruptBatch, GameBatch, decode_batch, encode_batch
from keima.worker.batching import make_batch, records_that_fit
from keima.worker.worker_folder import AlreadyRunning, BrokenMessage, WorkerFolder, batch_end, is_batch_of_run

log = logging.getLogger(__name__)

FILE = "spool"
LENGTH = struct.Struct("<I")  # before each game
BATCH_GAMES = 100  # in a batch of salvaged games


class Spool:
    """The journal of one worker, its only writer."""

    def __init__(self, folder: WorkerFolder) -> None:
        self._path = folder.root / FILE

    def add(self, games: Sequence[GameBatch]) -> None:
        """Append games, each a batch of one.

        Raises:
            OSError: the disk does not take them; none was appended.
        """
        frames = [encode_batch(game) for game in games]
        with os.fdopen(os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "wb", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            data = b"".join(LENGTH.pack(len(frame)) + frame for frame in frames)
            try:
                whole = file.write(data) == len(data)
            except OSError:
                os.ftruncate(file.fileno(), size)
                raise
            if not whole:
                os.ftruncate(file.fileno(), size)
                raise OSError(f"{self._path}: no space for finished games")

    def clear(self) -> None:
        """Remove the journal: all games are in batches."""
        self._path.unlink(missing_ok=True)


def salvage_games(folder: WorkerFolder) -> None:
    """Make batches of the games that a killed worker left; call it only while no process plays in the folder.

    If the disk does not take them, they are dropped and played again: they must not turn up after their replacements.
    """
    path = folder.root / FILE
    if not path.exists():
        return
    games = list[GameBatch]()
    for game in read_spool(path):
        if game.first_game == games[-1].first_game + 1 if games else game.first_game >= _next_game(folder, game.run_id):
            games.append(game)
    try:
        while games:
            some = records_that_fit([game.game_record(0) for game in games[:BATCH_GAMES]])
            named = {
                name: getattr(games[0], name)
                for name in ("run_id", "worker", "game", "options", "rules_version", "first_game")
            }
            batch = make_batch(some, **named)
            write_atomically(folder.outbox / f"{batch.batch_id}.games", encode_batch(batch))
            log.info("recovered %d finished games of a killed process", len(some))
            games = games[len(some) :]
    except OSError as error:
        log.warning(
            "%d finished games of a killed process cannot be recovered, and will be played again: %s",
            len(games),
            error,
        )
    path.unlink()


def salvage_games_if_idle(folder: WorkerFolder) -> None:
    """Call ``salvage_games`` unless a process plays in the folder, which delivers its games itself."""
    if not (folder.root / FILE).exists():
        return
    try:
        with folder.lock(seconds=0):
            salvage_games(folder)
    except AlreadyRunning:
        return


def _next_game(folder: WorkerFolder, run_id: str) -> int:
    """Return the number after all games that were delivered to a run."""
    ends = [
        batch_end(path.stem) for path in folder.batch_files() if is_batch_of_run(path.name, run_id)
    ]  # before the assignment
    try:
        assignment = folder.read_assignment()
    except BrokenMessage:
        assignment = None
    return max(assignment.delivered if assignment and assignment.run_id == run_id else 0, *ends, 0)


def read_spool(path: Path) -> Iterator[GameBatch]:
    """Yield the games in a journal, each as a batch of one, up to an incomplete entry of a killed process."""
    with path.open("rb") as file:
        while len(head := file.read(LENGTH.size)) == LENGTH.size:
            (length,) = LENGTH.unpack(head)
            if length > BatchLimits().max_bytes:
                return
            try:
                yield decode_batch(file.read(length))
            except CorruptBatch:
                return
