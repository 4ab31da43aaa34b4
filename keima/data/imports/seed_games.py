"""Ingest the files of games that a run starts with, each game exactly once.

The games become batches like those of workers, in the account that ``SEED_ACCOUNTS`` names: verified by the rules,
stored in games/ and entered in the ledger. A batch id is the SHA-256 of the file, or of the folder's files, and a
number. So a session after a kill makes the same batches again and skips those in the ledger.
"""

import hashlib
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from keima.config.sections.training import SEED_ACCOUNTS, SEED_FILES
from keima.data.imports.imported_games import ImportedGame, group_into_batches, make_imported_batch
from keima.data.ledger import Ledger
from keima.data.receive import Quarantined, receive_batch
from keima.data.records import encode_batch
from keima.games import Game
from keima.games.authoring.bad_game import BadGame

log = logging.getLogger(__name__)

MOST_LOGGED, MOST_NAMED = 1_000, 3  # games left out that are logged one by one, and named in the event


@dataclass
class UnusableGames:
    """Counts the unusable games of a file or folder."""

    source: Path
    count: int = 0
    first: list[str] = field(default_factory=list)

    def filter_usable(self, path: Path, games: Iterable[ImportedGame | BadGame]) -> Iterator[ImportedGame]:
        """Yield the usable games of a file; the others are counted and logged."""
        inside = f"{path.relative_to(self.source)}, " if path != self.source else ""
        for game in games:
            if isinstance(game, ImportedGame):
                yield game
                continue
            self.count += 1
            if self.count <= MOST_NAMED:
                self.first.append(f"{inside}line {game.line}: {game.reason}")
            if self.count <= MOST_LOGGED:
                log.info("%s, line %d: a game is left out: %s", path, game.line, game.reason)

    def __str__(self) -> str:
        """Return how many games were left out, and why."""
        reasons = "; ".join(self.first)
        return f"{self.count:,} left out" + (
            f" ({reasons}{' ...' if self.count > MOST_NAMED else ''})" if reasons else ""
        )


def ingest_seed_games(ledger: Ledger, game: Game, sources: Sequence[str], *, log_event: Callable[[str], None]) -> None:
    """Receive the games of files that have not been ingested yet.

    Ingested files and folders are not read again.

    Args:
        ledger: the run's; the caller has called ``recover``.
        game: what the run plays; one of ``SEED_ACCOUNTS`` if there are any files.
        sources: the files and folders, in their order.
        log_event: called once for each.

    Raises:
        OSError: a file is missing or unreadable, or the games cannot be stored.
        ValueError: a file has changed since some of its games were ingested, is compressed and damaged, or a folder has
            no such files.
    """
    for text in sources:
        _ingest_source(ledger, game, Path(text), log_event)


def _ingest_source(ledger: Ledger, game: Game, source: Path, log_event: Callable[[str], None]) -> None:
    account, kind = SEED_ACCOUNTS[game.name], SEED_FILES[game.name][0].removeprefix(".")
    begun_event, done_event = f"{kind} begun", f"{kind} taken in"  # kinds of events; their texts begin with the path
    if _find_event(ledger, done_event, source):
        return
    files = list_source_files(source, SEED_FILES[game.name])
    digest = _source_sha256(source, files)
    begun = _find_event(ledger, begun_event, source)
    if begun and digest not in begun:
        raise ValueError(
            f"{source} has changed since some of its games were ingested: restore it, or start another run"
        )
    if not begun:
        ledger.add_event(begun_event, f"{source}: SHA-256 {digest}", worker=account)
    left_out, total, positions = UnusableGames(source), 0, 0
    games = (
        played for path in files for played in left_out.filter_usable(path, read_games_of_kind(path, game.name, game))
    )
    for number, batch in enumerate(group_into_batches(games), 1):
        batch_id = f"{kind}-{digest[:32]}-{number:06d}"
        if not ledger.batch(batch_id):
            _enter_batch(ledger, game, batch_id, batch)
        total += len(batch)
        positions += sum(each.actions.size for each in batch)
    counts = f"{total:,} games with {positions:,} training positions, {left_out}"
    ledger.add_event(done_event, f"{source}: {counts}", worker=account)
    log.info("%s: %s", source, counts)
    log_event(f"{source}: {counts}")


def read_games_of_kind(path: Path, kind: str, game: Game) -> Iterator[ImportedGame | BadGame]:
    """Return the games of a file: PGN if ``kind`` is chess, else SGF."""
    if kind == "chess":
        from keima.data.imports.pgn_games import read_pgn_games  # here, because it compiles chess

        return read_pgn_games(path, game)
    from keima.data.imports.sgf_games import read_sgf_games

    return read_sgf_games(path, game)


def list_source_files(source: Path, endings: tuple[str, ...]) -> list[Path]:
    """Return a file, or the files with these endings in a folder and its subfolders, sorted.

    Raises:
        OSError: there is no such file or folder.
        ValueError: there are no such files in the folder.
    """
    if source.is_file():
        return [source]
    if not source.is_dir():
        raise FileNotFoundError(f"training.window.seed_games: there is no file {source}")
    found = sorted(path for path in source.rglob("*") if path.name.lower().endswith(endings) and path.is_file())
    if not found:
        raise ValueError(
            f"training.window.seed_games: folder {source} has no {', '.join(f'*{ending}' for ending in endings)} files"
        )
    return found


def _find_event(ledger: Ledger, kind: str, source: Path) -> str:
    """Return the event of this kind about the file; empty if there is none."""
    return next((text for noted, _, text, _ in ledger.events() if noted == kind and text.startswith(f"{source}: ")), "")


def _source_sha256(source: Path, files: Sequence[Path]) -> str:
    """Return the SHA-256 of a file, or of the names and contents of a folder's files, in hexadecimal."""
    digests = []
    for path in files:
        with path.open("rb") as file:
            digests.append(hashlib.file_digest(file, "sha256").hexdigest())
    if files == [source]:
        return digests[0]
    lines = [f"{digest} {path.relative_to(source)}\n" for digest, path in zip(digests, files, strict=True)]
    return hashlib.sha256("".join(lines).encode(errors="surrogateescape")).hexdigest()


def _enter_batch(ledger: Ledger, game: Game, batch_id: str, played: Sequence[ImportedGame]) -> None:
    """Grant the games of a batch and receive it, like a worker's."""
    worker = SEED_ACCOUNTS[game.name]
    account = ledger.account(worker)
    lacking = len(played) - account.outstanding  # a killed session may have granted some
    if lacking > 0:
        ledger.grant(worker, lacking)
    data = encode_batch(
        make_imported_batch(played, game, first_game=account.next_game, batch_id=batch_id, run_id=ledger.run_id)
    )
    receipt = receive_batch(ledger, game, worker=worker, batch_id=batch_id, fetch=lambda limit: data)
    if isinstance(receipt, Quarantined):
        log.warning("batch %s of %s is in quarantine: %s", receipt.batch_id, worker, receipt.reason)
