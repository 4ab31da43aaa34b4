"""The ledger of a run: which games were granted, which came back, and in which order. SQLite, ``run.db``.

The Coach is the only writer and holds ``RunLock`` while it runs; all others open the ledger read-only. Each worker's
games are numbered from 0 without gaps. So each batch has its place in the sequence of its worker, a game counted twice
overlaps another batch, and a lost game leaves a gap. For each worker

    granted = received + quarantined + missing + discarded + outstanding

where missing games are gaps before the last delivered game, discarded ones were given up, and outstanding ones are
still to come. Times are for people only; no decision depends on them.

A worker whose games turned out to be lies is distrusted, with the reason. Its batches keep their rows and files and
count as before, so the books balance; which games are left out of training follows from who played them.
"""

import json
import secrets
import sqlite3
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self

from keima.base.files import sync_folder
from keima.base.run_folder import LEDGER_NAME as FILE
from keima.config.older_options import with_older_options
from keima.config.own_modules import FOLDER as MODULES
from keima.config.own_modules import keep_copies
from keima.data.ledger_rows import (
    ACCOUNT_COLUMNS,
    BATCH_COLUMNS,
    DISTRUSTED,
    FORMAT,
    TABLES,
    BatchRow,
    ModelRow,
    WorkerAccount,
)

if TYPE_CHECKING:  # programs read the ledger before they import numba
    from keima.games import Game

WAIT_MS = 10_000  # timeout for a locked file


class NoSuchRun(ValueError):
    """The folder holds no ledger."""


class LedgerDamaged(ValueError):
    """The ledger cannot be read."""


class LedgerMismatch(ValueError):
    """The ledger is of another game, or of another version of this program."""


class LedgerUnbalanced(ValueError):
    """An entry would count a game twice, or discard or receive games that were never granted."""


class Ledger:
    """The ledger of one run, from ``open_ledger`` or ``read_ledger``. Not thread-safe."""

    def __init__(self, folder: Path, connection: sqlite3.Connection, *, writes: bool = False) -> None:
        self.folder = folder
        self._db = connection
        self._kept: dict[str, WorkerAccount] | None = None  # all accounts, of the only writer; else read each time
        self._stale: set[str] = set()  # workers whose kept accounts a write may have changed
        self._distrusted: dict[str, str] | None = None  # of the only writer; else read each time
        if writes:
            self._distrusted = self._read_distrusted()
            self._kept = {account.name: account for account in self._query_accounts("ORDER BY name", ())}
        facts = dict(connection.execute("SELECT key, value FROM run"))
        self.run_id: str = facts["run_id"]
        self.game: str = facts["game"]
        self.options = with_older_options(self.game, json.loads(facts["options"]))
        self.rules_version = int(facts["rules_version"])

    def close(self) -> None:
        """Close the file; all entries are on the disk already."""
        self._db.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @contextmanager
    def read_snapshot(self) -> Iterator[None]:
        """Let all reads in the block see one state, even while a Coach writes."""
        self._db.execute("BEGIN")
        try:
            yield
        finally:
            self._db.execute("ROLLBACK")

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Make all changes in the block in one transaction, which is on the disk when the block ends; an error undoes
        all of them.
        """
        try:
            with _transaction(self._db):
                yield
        except BaseException:
            self._stale.update(self._kept or ())  # read within the block, or changed there
            raise

    def find_damage(self) -> list[str]:
        """Return the errors that SQLite's own checks find; empty when the file is intact."""
        found = [text for (text,) in self._db.execute("PRAGMA integrity_check") if text != "ok"]
        return found + [
            f"row {row[1]} of table {row[0]} refers to nothing" for row in self._db.execute("PRAGMA foreign_key_check")
        ]

    # Workers and their accounts.

    def grant(self, worker: str, games: int) -> int:
        """Grant ``worker`` so many more games; return its total grant."""
        self.grant_all({worker: games})
        return self.account(worker).granted

    def grant_all(self, games: Mapping[str, int]) -> None:
        """Grant each worker so many more games, in one transaction."""
        for worker, more in games.items():
            if more < 0:
                raise LedgerUnbalanced(f"worker {worker}: a grant of {more} games is negative")
        with self._change_accounts(*games):
            for worker, more in games.items():
                self._register_worker(worker)
                self._db.execute("UPDATE workers SET granted = granted + ? WHERE name = ?", (more, worker))

    def withdraw(self, worker: str, games: int, reason: str) -> int:
        """Take back ``games`` that ``worker`` was granted last and has not begun; return its total grant.

        Raises:
            LedgerUnbalanced: fewer games are outstanding.
        """
        self._require_outstanding(worker, games, "withdrawn")
        with self._change_accounts(worker):
            self._db.execute("UPDATE workers SET granted = granted - ? WHERE name = ?", (games, worker))
            self._insert_event("withdrawn", f"{games} games that it had not begun were taken back: {reason}", worker)
        return self.account(worker).granted

    def discard(self, worker: str, games: int, reason: str) -> None:
        """Give up ``games`` outstanding games of ``worker``.

        If they arrive later, they are received and no longer count as discarded.

        Raises:
            LedgerUnbalanced: fewer games are outstanding.
        """
        self._require_outstanding(worker, games, "discarded")
        with self._change_accounts(worker):
            self._db.execute("UPDATE workers SET discarded = discarded + ? WHERE name = ?", (games, worker))
            self._insert_event("discarded", f"{games} games given up: {reason}", worker)

    def _require_outstanding(self, worker: str, games: int, what: str) -> None:
        outstanding = self.account(worker).outstanding
        if not 0 <= games <= outstanding:
            raise LedgerUnbalanced(f"worker {worker}: {games} games cannot be {what}, {outstanding} are outstanding")

    def account(self, worker: str) -> WorkerAccount:
        """Return the account of ``worker``; all zero for an unknown one."""
        if self._kept is None or worker in self._stale:
            return self._read_account(worker)
        return self._kept.get(worker) or WorkerAccount(name=worker)

    def accounts(self) -> Mapping[str, WorkerAccount]:
        """Return the accounts of all workers of this run, by name; the same object as long as none of them changes."""
        if self._kept is None:
            return {account.name: account for account in self._query_accounts("ORDER BY name", ())}
        if self._stale:
            renewed = self._kept | {
                worker: self._read_account(worker) for worker in self._stale if self._is_known(worker)
            }
            if len(renewed) > len(self._kept):
                renewed = dict(sorted(renewed.items()))
            self._kept, self._stale = renewed, set()
        return self._kept

    def workers(self) -> list[str]:
        """Return the names of all workers of this run, sorted."""
        return [name for (name,) in self._db.execute("SELECT name FROM workers ORDER BY name")]

    # Distrusted workers.

    def distrust(self, workers: Mapping[str, str]) -> None:
        """Enter that these workers are distrusted, with the reasons, and give up all games that they still owe.

        One that is distrusted already keeps its reason.
        """
        with self._change_accounts(*workers):
            for worker, reason in workers.items():
                if worker in self.distrusted():
                    continue
                self._register_worker(worker)
                self._db.execute("INSERT OR IGNORE INTO distrusted VALUES (?, ?, ?)", (worker, reason, time.time()))
                self._insert_event("distrusted", reason, worker)
                outstanding = self._read_account(worker).outstanding
                if outstanding > 0:
                    self.discard(worker, outstanding, "the worker is distrusted")
        if self._distrusted is not None:
            self._distrusted = self._read_distrusted()

    def distrusted(self) -> Mapping[str, str]:
        """Return the distrusted workers with the reasons, sorted by name."""
        return self._read_distrusted() if self._distrusted is None else self._distrusted

    def trusted_batches(self, *, after: int = 0, up_to: int = 2**62) -> list[BatchRow]:
        """Return the received batches as ``received_batches`` does, without those of distrusted workers."""
        distrusted = self.distrusted()
        return [row for row in self.received_batches(after=after, up_to=up_to) if row.worker not in distrusted]

    def _read_distrusted(self) -> dict[str, str]:
        if not self._db.execute("SELECT 1 FROM sqlite_master WHERE name = 'distrusted'").fetchone():
            return {}  # an earlier version wrote it
        return dict(self._db.execute("SELECT worker, reason FROM distrusted ORDER BY worker"))

    # Batches.

    def batch(self, batch_id: str) -> BatchRow | None:
        """Return the entry of a batch, if there is one."""
        rows = self._query_batches("WHERE id = ?", (batch_id,))
        return rows[0] if rows else None

    def batches(self, *, after: int = 0, most: int = -1) -> list[BatchRow]:
        """Return the first ``most`` batches, or all, received and quarantined, with ``after`` < sequence, in order of
        receipt.
        """
        return self._query_batches("WHERE sequence > ? ORDER BY sequence LIMIT ?", (after, most))

    def received_batches(self, *, after: int = 0, up_to: int = 2**62) -> list[BatchRow]:
        """Return the received batches with ``after`` < sequence <= ``up_to``, in order of receipt."""
        return self._query_batches(
            "WHERE state = 'received' AND sequence > ? AND sequence <= ? ORDER BY sequence", (after, up_to)
        )

    def last_batches(self, worker: str, games: int, *, up_to: int) -> list[BatchRow]:
        """Return the batches received of a worker's last so many games, up to a sequence number, in that order."""
        own = "WHERE state = 'received' AND worker = ? AND sequence <= ?"
        (last,) = self._db.execute(f"SELECT MAX(first_game) FROM batches {own}", (worker, up_to)).fetchone()
        where = f"{own} AND first_game >= ? ORDER BY sequence"
        return self._query_batches(where, (worker, up_to, (last or 0) - games))

    def count_received_games(self) -> int:
        """Return the number of games in all received batches."""
        (games,) = self._db.execute("SELECT SUM(games) FROM batches WHERE state = 'received'").fetchone()
        return int(games or 0)

    def find_game(self, index: int) -> tuple[BatchRow, int]:
        """Return the received batch that has a game, and the game's index in it.

        Args:
            index: of the game among all received ones, from 0, in order of receipt.
        """
        counted = "SELECT sequence, SUM(games) OVER (ORDER BY sequence) AS until FROM batches WHERE state = 'received'"
        sequence, until = self._db.execute(
            f"SELECT sequence, until FROM ({counted}) WHERE until > ? ORDER BY sequence LIMIT 1", (index,)
        ).fetchone()
        (row,) = self._query_batches("WHERE sequence = ?", (sequence,))
        return row, index - (until - row.games)

    def batch_ids_in_order(self) -> list[str]:
        """Return the ids of the received batches in order of receipt."""
        return [row.id for row in self.received_batches()]

    def refusal_reason(self, worker: str, first_game: int, games: int) -> str:
        """Return why ``worker`` cannot deliver ``games`` games from ``first_game`` on; empty if it can."""
        end = first_game + games
        # Batches do not overlap: of those that begin before the end, the last one ends last.
        for other in self._query_batches(
            "WHERE worker = ? AND first_game < ? ORDER BY first_game DESC LIMIT 1", (worker, end)
        ):
            if (other.first_game or 0) + other.games > first_game:
                return f"games {first_game} to {end - 1} of worker {worker} overlap batch {other.id}"
        granted = self.account(worker).granted
        if end > granted:
            return f"games {first_game} to {end - 1} of worker {worker} are beyond the {granted} granted"
        return ""

    def add_received(self, row: BatchRow) -> int:
        """Enter a batch whose file is safe; return its sequence number.

        Raises:
            LedgerUnbalanced: see ``refusal_reason``.
        """
        refusal = self.refusal_reason(row.worker, row.first_game or 0, row.games)
        if refusal:
            raise LedgerUnbalanced(refusal)
        with self._change_accounts(row.worker):
            sequence = self._add_batch(row)
        return sequence

    def add_quarantined(self, row: BatchRow) -> int:
        """Enter a rejected batch; return its sequence number.

        Its games count as quarantined if it has a place in its worker's sequence.
        """
        with self._change_accounts(row.worker):
            self._register_worker(row.worker)
            sequence = self._add_batch(row)
            self._insert_event("quarantined", f"batch {row.id}: {row.reason}", row.worker)
        return sequence

    # Models, iterations, events, matches, ratings.

    def add_model(self, model: ModelRow) -> None:
        """Enter a model whose file is safe, replacing one of the same version from before a crash."""
        values = (model.version, model.iteration, model.path, model.bytes, model.sha256, model.accepted, time.time())
        with _transaction(self._db):
            self._db.execute("INSERT OR REPLACE INTO models VALUES (?, ?, ?, ?, ?, ?, ?)", values)

    def models(self) -> list[ModelRow]:
        """Return all models in order of version."""
        rows = self._db.execute("SELECT version, iteration, path, bytes, sha256, accepted FROM models ORDER BY version")
        columns = ("version", "iteration", "path", "bytes", "sha256")
        return [
            ModelRow(**dict(zip(columns, row[:5], strict=True)), accepted=None if row[5] is None else bool(row[5]))
            for row in rows
        ]

    def newest_model_version(self) -> int:
        """Return the version of the last model; 0 if there is none."""
        (version,) = self._db.execute("SELECT MAX(version) FROM models").fetchone()
        return int(version or 0)

    def forget_model_files(self, versions: Iterable[int]) -> None:
        """Enter that these models have no files any more."""
        with _transaction(self._db):
            self._db.executemany("UPDATE models SET path = '' WHERE version = ?", [(version,) for version in versions])

    def add_iteration(self, number: int, report: dict[str, Any]) -> None:
        """Enter an iteration's report, replacing one of the same number from before a crash."""
        with _transaction(self._db):
            self._db.execute(
                "INSERT OR REPLACE INTO iterations VALUES (?, ?, ?)", (number, json.dumps(report), time.time())
            )

    def iterations(self) -> list[dict[str, Any]]:
        """Return the reports of all iterations in order."""
        return list(self.read_iterations())

    def last_iteration(self) -> dict[str, Any] | None:
        """Return the report of the last iteration; None: there is none."""
        row = self._db.execute("SELECT report FROM iterations ORDER BY number DESC LIMIT 1").fetchone()
        return json.loads(row[0]) if row else None

    def read_iterations(self) -> Iterator[dict[str, Any]]:
        """Yield the reports of all iterations in order. All together may need much memory: each has all workers."""
        for (report,) in self._db.execute("SELECT report FROM iterations ORDER BY number"):
            yield json.loads(report)

    def add_event(self, kind: str, text: str, *, worker: str = "") -> None:
        """Enter an event."""
        with _transaction(self._db):
            self._insert_event(kind, text, worker)

    def events(self, *, last: int = -1) -> list[tuple[str, str, str, float]]:
        """Return all events, or the ``last`` ones, in order: kind, worker, text, and the time in seconds since 1970."""
        newest = self._db.execute("SELECT kind, worker, text, time FROM events ORDER BY number DESC LIMIT ?", (last,))
        return list(newest)[::-1]

    def add_match(
        self,
        first: str,
        second: str,
        *,
        wins: int,
        draws: int,
        losses: int,
        num_simulations: int,
        replace: bool = False,
    ) -> None:
        """Enter a match between two players, from the view of the first; ``replace``: instead of their earlier ones."""
        values = (first, second, wins, draws, losses, num_simulations, time.time())
        with _transaction(self._db):
            if replace:
                self._db.execute("DELETE FROM matches WHERE first = ? AND second = ?", (first, second))
            self._db.execute("INSERT INTO matches VALUES (NULL, ?, ?, ?, ?, ?, ?, ?)", values)

    def matches(self) -> list[tuple[str, str, int, int, int, int]]:
        """Return all matches in order: first player, second player, wins, draws, losses, simulations per move."""
        return list(
            self._db.execute("SELECT first, second, wins, draws, losses, num_simulations FROM matches ORDER BY number")
        )

    def set_ratings(self, ratings: dict[str, tuple[float, float]]) -> None:
        """Replace the ratings of these players: Elo and half the width of its 95 % interval."""
        rows = [(player, elo, margin, time.time()) for player, (elo, margin) in ratings.items()]
        with _transaction(self._db):
            self._db.executemany("INSERT OR REPLACE INTO ratings VALUES (?, ?, ?, ?)", rows)

    def ratings(self) -> dict[str, tuple[float, float]]:
        """Return the rating of each player: Elo and half the width of its 95 % interval."""
        return {
            player: (elo, margin) for player, elo, margin in self._db.execute("SELECT player, elo, margin FROM ratings")
        }

    def times(self, table: Literal["batches", "models", "iterations"]) -> dict[int, float]:
        """Return when each row was entered, in seconds since 1970, by its number, in order."""
        key = {"batches": "sequence", "models": "version", "iterations": "number"}[table]
        return dict(self._db.execute(f"SELECT {key}, time FROM {table} ORDER BY {key}"))

    def dump(self) -> Iterator[tuple[Any, ...]]:
        """Yield every row of every table, with the table's name first."""
        for table in ("run", "workers", "batches", "models", "iterations", "events", "matches", "ratings"):
            for row in self._db.execute(f"SELECT * FROM {table} ORDER BY 1"):
                yield (table, *row)
        yield from (("distrusted", *row) for row in self.distrusted().items())

    @contextmanager
    def _change_accounts(self, *workers: str) -> Iterator[None]:
        """Make a transaction that may change these workers' accounts, which are read again after it, also after an
        error.
        """
        self._stale.update(workers)
        with _transaction(self._db):
            yield

    def _is_known(self, worker: str) -> bool:
        return bool(self._db.execute("SELECT 1 FROM workers WHERE name = ?", (worker,)).fetchone())

    def _read_account(self, worker: str) -> WorkerAccount:
        """Return the account as the file has it now, also within a transaction."""
        found = self._query_accounts("WHERE name = ?", (worker,))
        return found[0] if found else WorkerAccount(name=worker)

    def _query_accounts(self, where: str, values: tuple[object, ...]) -> list[WorkerAccount]:
        rows = self._db.execute(f"SELECT {', '.join(ACCOUNT_COLUMNS)} FROM workers {where}", values)
        return [WorkerAccount(**dict(zip(ACCOUNT_COLUMNS, row, strict=True))) for row in rows]

    def _query_batches(self, where: str, values: tuple[object, ...]) -> list[BatchRow]:
        rows = self._db.execute(f"SELECT {', '.join(BATCH_COLUMNS)} FROM batches {where}", values)
        return [BatchRow(**dict(zip(BATCH_COLUMNS, row, strict=True))) for row in rows]

    def _add_batch(self, row: BatchRow) -> int:
        columns = BATCH_COLUMNS[1:]
        marks = ", ".join("?" for _ in columns)
        values = [getattr(row, column) for column in columns]
        added = self._db.execute(
            f"INSERT INTO batches ({', '.join(columns)}, time) VALUES ({marks}, ?)", (*values, time.time())
        )
        if row.first_game is not None:
            self._add_to_sums(row.worker, row.state, row.games, row.first_game + row.games)
        return int(added.lastrowid or 0)

    def _add_to_sums(self, worker: str, state: str, games: int, end: int) -> None:
        """Add a batch to its worker's sums; discarded games that arrived after all no longer count as discarded."""
        sums = f"{state} = {state} + ?, next_game = MAX(next_game, ?)"
        self._db.execute(f"UPDATE workers SET {sums} WHERE name = ?", (games, end, worker))
        late = -self.account(worker).outstanding
        if late > 0:
            self._db.execute("UPDATE workers SET discarded = discarded - ? WHERE name = ?", (late, worker))
            self._insert_event("returned", f"{late} discarded games arrived after all", worker)

    def _register_worker(self, worker: str) -> None:
        self._db.execute("INSERT OR IGNORE INTO workers (name) VALUES (?)", (worker,))

    def _insert_event(self, kind: str, text: str, worker: str) -> None:
        self._db.execute("INSERT INTO events VALUES (NULL, ?, ?, ?, ?)", (kind, worker, text, time.time()))


def open_ledger(folder: Path, game: "Game", *, run_id: str | None = None) -> Ledger:
    """Open or create the ledger in ``folder`` for writing; the caller holds the ``RunLock``.

    Args:
        folder: the run's.
        game: what the run plays.
        run_id: the id of a new run; by default a random one.

    Raises:
        LedgerDamaged: it cannot be read.
        LedgerMismatch: it is of another game, or of another version of this program.
    """
    with _open_connection(folder / FILE, "rwc") as connection:
        if _read_format(connection) == 0:
            _create_tables(connection, game, run_id or secrets.token_hex(8))
            sync_folder(folder)
        ledger = _check_ledger(folder, connection, writes=True)
        ours = (game.name, game.options, game.rules_version)
        theirs = (ledger.game, ledger.options, ledger.rules_version)
        if ours != theirs:
            raise LedgerMismatch(
                f"{folder} is a run of {_describe_game(*theirs)}, not of {_describe_game(*ours)}: "
                "choose another run name"
            )
        connection.execute(DISTRUSTED)
        return ledger


def read_ledger(folder: Path) -> Ledger:
    """Open the ledger in ``folder`` for reading, also while a Coach writes to it.

    Raises:
        NoSuchRun: there is none.
        LedgerDamaged: it cannot be read.
        LedgerMismatch: another version of this program wrote it.
    """
    path = folder / FILE
    if not path.is_file():
        raise NoSuchRun(f"{folder} is not the folder of a run: it has no {FILE}")
    keep_copies(folder / MODULES)
    with _open_connection(path, "ro") as connection:
        return _check_ledger(folder, connection)


@contextmanager
def _open_connection(path: Path, mode: str) -> Iterator[sqlite3.Connection]:
    """Yield a connection that stays open unless the block fails."""
    connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode={mode}", uri=True, isolation_level=None)
    try:
        connection.execute(f"PRAGMA busy_timeout = {WAIT_MS}")
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute("PRAGMA synchronous = FULL")
        yield connection
    except sqlite3.DatabaseError as error:
        connection.close()
        raise LedgerDamaged(f"{path} cannot be read: {error}") from error
    except BaseException:
        connection.close()
        raise


def _read_format(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def _create_tables(connection: sqlite3.Connection, game: "Game", run_id: str) -> None:
    connection.execute("PRAGMA journal_mode = WAL")
    facts = {
        "run_id": run_id,
        "game": game.name,
        "options": json.dumps(game.options, sort_keys=True),
        "rules_version": str(game.rules_version),
    }
    with _transaction(connection):
        for statement in TABLES:
            connection.execute(statement)
        connection.executemany("INSERT INTO run VALUES (?, ?)", facts.items())
        connection.execute(f"PRAGMA user_version = {FORMAT}")


def _check_ledger(folder: Path, connection: sqlite3.Connection, *, writes: bool = False) -> Ledger:
    number = _read_format(connection)
    if number == 0:
        raise NoSuchRun(f"{folder} is not the folder of a run: {FILE} is empty")
    if number != FORMAT:
        raise LedgerMismatch(
            f"{folder / FILE} has format {number}, this program writes format {FORMAT}: use the version that started it"
        )
    return Ledger(folder, connection, writes=writes)


def _describe_game(name: str, options: dict[str, Any], rules_version: int) -> str:
    return f"{name} {options} (rules version {rules_version})"


@contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """Make a transaction of the block, on the disk when it ends; an error undoes it.

    Within another transaction (``Ledger.transaction``), the block joins that one, and an error must leave it.
    """
    if connection.in_transaction:
        yield
        return
    try:
        connection.execute("BEGIN IMMEDIATE")
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
