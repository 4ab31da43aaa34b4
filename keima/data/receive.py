"""Receive batches from workers, so that no finished game is lost and none counts twice.

In this order: fetch, check, replay through the rules, write the file (synced), enter it in the ledger (synced), and
only then let the worker delete its copy. Wherever this is interrupted, the worker or the ledger has the batch; it is
offered again, and completed steps are skipped. A rejected batch goes to ``quarantine/`` with the reason.

Batches that wait together are received together: their files are synced one after the other, which takes a disk little
longer than one of them, and the ledger is synced once. Then either all of them are safe, or none.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from keima.base.files import (
    FileTooLarge,
    read_limited,
    remove_stale_parts,
    sha256_hex,
    sync_folder,
    write_atomically,
    write_together,
)
from keima.data.batch_file import MAX_BATCH_BYTES, SUFFIX
from keima.data.ledger import Ledger
from keima.data.ledger_rows import QUARANTINED, RECEIVED, BatchRow
from keima.data.packs import games_path, read_batch_file
from keima.data.records import CorruptBatch, GameBatch, decode_batch
from keima.data.verify import verify_batch
from keima.games import Game

BATCH_ID = re.compile(r"[a-z0-9-]{1,80}")  # becomes a file name, also on file systems that ignore case
MAX_QUARANTINED_FILES = 200
MAX_QUARANTINED_BYTES = 256 * 2**20
MAX_REASON = 500  # characters
UNKNOWN_WORKER = "unknown"  # of a file that names none

Fetch = Callable[[int], bytes]  # (limit) -> the file in the worker's outbox; raises FileTooLarge above the limit


@dataclass(frozen=True, kw_only=True)
class Received:
    """The batch is safe and in the ledger, and its games are new."""

    batch: GameBatch
    sequence: int  # its number in order of receipt
    bytes: int  # of its file
    next_game: int  # of the worker's account: after its last delivered game


@dataclass(frozen=True, kw_only=True)
class AlreadyReceived:
    """The same file has been received or quarantined before."""

    batch_id: str
    next_game: int  # as in ``Received``


@dataclass(frozen=True, kw_only=True)
class Quarantined:
    """The batch was rejected and is never trained on; ``batch_id`` is its id in the ledger."""

    batch_id: str
    reason: str
    next_game: int  # as in ``Received``


Receipt = Received | AlreadyReceived | Quarantined  # after any of them the worker may delete its copy


@dataclass(frozen=True, kw_only=True)
class Offer:
    """A file ``<batch_id>.games`` in the outbox of a worker."""

    worker: str
    batch_id: str
    fetch: Fetch


def quarantine_path(folder: Path, batch_id: str) -> Path:
    """Return the file of a rejected batch of the run in ``folder``; the reason is in a ``.reason`` file next to it."""
    return folder / "quarantine" / f"{batch_id}{SUFFIX}"


def receive_batch(ledger: Ledger, game: Game, *, worker: str, batch_id: str, fetch: Fetch) -> Receipt:
    """Receive the file ``<batch_id>.games`` from the outbox of ``worker``.

    Raises:
        OSError, sqlite3.Error, Exception: as ``receive_batches``.
    """
    return receive_batches(ledger, game, [Offer(worker=worker, batch_id=batch_id, fetch=fetch)])[0]


def receive_batches(ledger: Ledger, game: Game, offers: Iterable[Offer]) -> list[Receipt]:
    """Receive these files.

    Raises:
        OSError, sqlite3.Error: this machine cannot store them, for example on a full disk. The workers must keep their
            copies, and the batches are received again later.
        Exception: whatever else a ``fetch`` raises; nothing was changed.
    """
    files: dict[Path, bytes] = {}
    with ledger.transaction():
        receipts = [_receive_file(ledger, game, offer.worker, offer.batch_id, offer.fetch, files) for offer in offers]
        write_together(files)
    return receipts


def _receive_file(
    ledger: Ledger, game: Game, worker: str, batch_id: str, fetch: Fetch, files: dict[Path, bytes]
) -> Receipt:
    """Enter a file in the ledger, within a transaction, and add it to those that must be written before that ends."""
    data, problem = _fetch_file(fetch)
    content = sha256_hex(data)
    entry, misuse = _choose_ledger_id(ledger, batch_id, content)
    if ledger.batch(entry):
        return AlreadyReceived(batch_id=entry, next_game=ledger.account(worker).next_game)
    if misuse or problem:
        return _quarantine(ledger, worker, entry, data, misuse or problem)
    try:
        batch = _decode_checked(ledger, worker, batch_id, data)
    except CorruptBatch as error:
        return _quarantine(ledger, worker, entry, data, str(error))
    if distrust := ledger.distrusted().get(worker):
        return _quarantine(ledger, worker, entry, data, f"the worker is distrusted: {distrust}", batch)
    try:
        verify_batch(batch, game)
    except CorruptBatch as error:
        return _quarantine(ledger, worker, entry, data, str(error), batch)
    path = games_path(ledger.folder, entry)
    _make_folder(path.parent)
    files[path] = data
    sequence = ledger.add_received(_make_row(worker, entry, data, batch))
    next_game = ledger.account(worker).next_game
    return Received(batch=batch, sequence=sequence, bytes=len(data), next_game=next_game)


def recover_batches(ledger: Ledger, game: Game) -> list[Receipt]:
    """Enter files that a killed Coach had written but not yet entered in the ledger; call it before ``receive_batch``.

    Raises:
        OSError, sqlite3.Error: as ``receive_batch``.
    """
    for kept in (games_path(ledger.folder, ""), quarantine_path(ledger.folder, "")):
        _make_folder(kept.parent)
        remove_stale_parts(kept.parent)
    found = sorted(games_path(ledger.folder, "").parent.glob(f"*{SUFFIX}"))
    return [_recover_file(ledger, game, path) for path in found if not _is_received(ledger, path.stem)]


def load_received(folder: Path, row: BatchRow) -> GameBatch:
    """Return a batch that was received earlier, for the replay window of a resumed run.

    Raises:
        CorruptBatch: the file has changed since.
        OSError: the file is missing or unreadable.
    """
    try:
        data = read_batch_file(folder, row)
    except FileTooLarge as error:
        raise CorruptBatch(str(error)) from error
    if sha256_hex(data) != row.sha256:
        raise CorruptBatch(f"{games_path(folder, row.id)} has changed since it was received")
    return decode_batch(data)


def load_if_intact(folder: Path, row: BatchRow, *, log_event: Callable[[str], None]) -> GameBatch | None:
    """Return a batch that was received earlier; None, and an event, if its file is damaged or missing."""
    try:
        return load_received(folder, row)
    except (CorruptBatch, OSError) as error:
        log_event(f"batch {row.id} is left out of the window: {error}; keima audit lists all damaged files")
        return None


def _fetch_file(fetch: Fetch) -> tuple[bytes, str]:
    try:
        return fetch(MAX_BATCH_BYTES), ""
    except FileTooLarge as error:
        return b"", str(error)


def _choose_ledger_id(ledger: Ledger, batch_id: str, content: str) -> tuple[str, str]:
    """Return the id of this file in the ledger, and the error in the id that it came with."""
    other = f"refused-{content[:32]}"
    if not BATCH_ID.fullmatch(batch_id):
        return other, f"{batch_id[:100]!a} is not the id of a batch, which is up to 80 of a-z, 0-9 and '-'"
    known = ledger.batch(batch_id)
    if known and known.sha256 != content:
        return other, f"batch {batch_id} was {known.state} before, with other content"
    return batch_id, ""


def _decode_checked(ledger: Ledger, worker: str, batch_id: str, data: bytes) -> GameBatch:
    """Return the decoded batch, if it matches its name and worker and has a place in the ledger."""
    batch = decode_batch(data)
    said, known = (batch.batch_id, batch.run_id, batch.worker), (batch_id, ledger.run_id, worker)
    if said != known:
        raise CorruptBatch(
            "its header says batch {} of run {} by worker {}, but it came as batch {} of run {} by {}".format(
                *said, *known
            )
        )
    refusal = ledger.refusal_reason(worker, batch.first_game, batch.num_games)
    if refusal:
        raise CorruptBatch(refusal)
    return batch


def _make_row(worker: str, entry: str, data: bytes, batch: GameBatch | None, reason: str = "") -> BatchRow:
    return BatchRow(
        id=entry,
        worker=worker,
        state=QUARANTINED if reason else RECEIVED,
        reason=reason,
        first_game=batch.first_game if batch else None,
        games=batch.num_games if batch else 0,
        positions=batch.num_positions if batch else 0,
        bytes=len(data),
        sha256=sha256_hex(data),
        first_model=int(batch.first_model.min()) if batch else 0,
        last_model=int(batch.last_model.max()) if batch else 0,
    )


def _quarantine(
    ledger: Ledger, worker: str, entry: str, data: bytes, reason: str, batch: GameBatch | None = None
) -> Quarantined:
    """Store a rejected file and its reason; with ``batch``, its games take their place in the worker's sequence."""
    reason = reason[:MAX_REASON]
    path = quarantine_path(ledger.folder, entry)
    _make_folder(path.parent)
    if _has_disk_space(path.parent, len(data)):
        write_atomically(path, data)
        write_atomically(path.with_suffix(".reason"), f"{reason}\n".encode())
    ledger.add_quarantined(_make_row(worker, entry, data, batch, reason))
    return Quarantined(batch_id=entry, reason=reason, next_game=ledger.account(worker).next_game)


def _has_disk_space(folder: Path, size: int) -> bool:
    kept = [path.stat().st_size for path in folder.glob(f"*{SUFFIX}")]
    return len(kept) < MAX_QUARANTINED_FILES and sum(kept) + size <= MAX_QUARANTINED_BYTES


def _make_folder(folder: Path) -> None:
    if not folder.is_dir():
        folder.mkdir(mode=0o700)
        sync_folder(folder.parent)


def _is_received(ledger: Ledger, batch_id: str) -> bool:
    row = ledger.batch(batch_id)
    return row is not None and row.state == RECEIVED


def _recover_file(ledger: Ledger, game: Game, path: Path) -> Receipt:
    """Receive a file that is already in games/; a rejected one moves to quarantine/."""
    try:
        worker = decode_batch(read_limited(path, MAX_BATCH_BYTES)).worker
    except (CorruptBatch, FileTooLarge):
        worker = UNKNOWN_WORKER
    receipt = receive_batch(
        ledger, game, worker=worker, batch_id=path.stem, fetch=lambda limit: read_limited(path, limit)
    )
    if not isinstance(receipt, Received):
        kept = quarantine_path(ledger.folder, receipt.batch_id)
        path.replace(kept)
        sync_folder(kept.parent)
        sync_folder(path.parent)
    return receipt
