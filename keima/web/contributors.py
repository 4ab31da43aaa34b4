"""Who has given how much to a run that machines join from outside: a line for each name.

Games are those of the ledger. Core hours are what the machines say themselves, as the mirrors of their workers and the
run's iterations have it. All other workers of the run together are one line.

Each read takes in what is new since the last one: batches by their numbers, files by their stamps.
"""

import csv
import io
import json
import logging
import math
import os
import re
import sqlite3
import time
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from keima.base.file_stamp import FileStamp, StampedFiles, stamp_of
from keima.base.reports.formats import Column, format_rate, table_lines
from keima.base.reports.text import printable_line
from keima.base.run_folder import LEDGER_NAME
from keima.cluster.http.door import FILES, MACHINES, NAMELESS, OWN, PRESENT_SECONDS, SEEN, Machine, read_machine
from keima.coach.crowd.verdicts import FOLDER, MAX_REASON, REFUSED, read_refused
from keima.config.sections.training import SEED_ACCOUNTS
from keima.data.ledger import WAIT_MS, read_ledger
from keima.worker.worker_folder import CROWD, WorkerFolder, is_crowd_worker

log = logging.getLogger(__name__)

MIRRORS = "workers"  # in the run's folder
HOUR = 3600.0
WEEK_HOURS = 7 * 24
MOST_NAME = 60  # characters
NUMBERED = re.compile(rf"{CROWD}(.+)-[0-9a-f]{{4,12}}-[0-9]+")
TRIMMED_AT_ONCE = 1000  # batches
MIRROR_SECONDS = 30.0  # between two looks at the mirrors
WIDTH = 120  # of a table as text
ACCOUNTS = (  # as ``WorkerAccount``: missing and discarded games are given up
    "SELECT name, received, quarantined, next_game - received - quarantined + discarded, "
    "MAX(0, granted - next_game - discarded) FROM workers"
)


@dataclass(frozen=True, kw_only=True)
class Contribution:
    """What one name has given. Games are counted as in the ledger; times are in seconds since 1970.

    Attributes:
        name: in the table; several machines may have the same.
        machines: that have registered by the name.
        present: of these, those that have reported within the last minute.
        seen: when one of them reported last; None: unknown.
        games: received, in all.
        games_this_week: received in the last 7 days, to the hour.
        games_in_window: of those received, the ones that the learner draws from, to a batch; None: not known yet.
        games_distrusted: of those received, the ones of workers that are not believed; they are not learned from.
        games_refused: quarantined: they break the rules of the game or of the run.
        games_given_up: granted, but they never came; others play them.
        games_outstanding: granted, and still to come.
        core_hours: in all, as the machines say.
        core_hours_this_week: since the last iteration that ended more than 7 days ago.
        reasons: why workers are not believed.
    """

    name: str
    machines: int = 0
    present: int = 0
    seen: float | None = None
    games: int = 0
    games_this_week: int = 0
    games_in_window: int | None = None
    games_distrusted: int = 0
    games_refused: int = 0
    games_given_up: int = 0
    games_outstanding: int = 0
    core_hours: float = 0.0
    core_hours_this_week: float = 0.0
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Contributions:
    """What everybody has given: ``people`` in the order of their games that are believed."""

    people: tuple[Contribution, ...]
    own: Contribution
    names: Mapping[str, str] = field(default_factory=dict)  # in the table, by worker

    def name_of(self, worker: str) -> str:
        """Return who is named for a worker's games: never the worker itself, which may be named after its host."""
        if worker in SEED_ACCOUNTS.values():
            return FILES
        return self.names.get(worker) or name_in_worker(worker)


class ContributionReader:
    """Reads what everybody has given to the run in ``run_dir``; not thread-safe.

    Args:
        run_dir: the run's folder.
        wall: seconds since 1970.
    """

    def __init__(self, run_dir: Path, *, wall: Callable[[], float] = time.time) -> None:
        self._run_dir, self._wall = run_dir, wall
        self._machines = StampedFiles(run_dir / FOLDER / MACHINES, ".json", _read_named)
        self._batches = _BatchSums()
        self._hours = _CoreHours(run_dir / MIRRORS)
        self._run_id = ""

    def read(self) -> Contributions:
        """Read what everybody has given so far.

        Raises:
            ValueError, OSError, sqlite3.Error: the run's ledger cannot be read.
        """
        if not self._run_id:
            with read_ledger(self._run_dir) as ledger:
                self._run_id = ledger.run_id
        now = self._wall()
        refused = read_reasons(self._run_dir / FOLDER / REFUSED)
        with open_read_only(self._run_dir) as database:
            accounts = database.execute(ACCOUNTS).fetchall()
            window_games = _read_window_games(database)
            self._batches.update(database, now=now, window_games=window_games, distrusted=frozenset(refused))
            self._hours.update(database, run_id=self._run_id, now=now)
        sums: dict[str, _Sum] = {}
        names: dict[str, str] = {}
        for machine, mark in filter(None, self._machines.read()):
            seen = _last_seen(machine, mark)
            names |= dict.fromkeys(machine.worker_names, machine.name)
            sums.setdefault(machine.name, _Sum()).add_machine(seen, now=now)
        sums_of = {worker: sums[name] for worker, name in names.items()}
        own = _Sum()

        def sum_of(worker: str) -> _Sum:
            if not is_crowd_worker(worker):
                return own
            return sums.setdefault(name_in_worker(worker), _Sum())

        week, window = self._batches.week, self._batches.window
        for worker, received, quarantined, given_up, outstanding in accounts:
            if worker in SEED_ACCOUNTS.values():
                continue
            total = sums_of.get(worker) or sum_of(worker)
            total.games += received
            total.week += week[worker]
            total.window += window[worker]
            total.refused += quarantined
            total.given_up += given_up
            total.outstanding += outstanding
            if worker in refused:
                total.distrusted += received
                total.reasons[refused[worker]] = None
        for worker, hours in self._hours.totals.items():
            if hours > 0:  # mirrors of earlier runs may be there too
                total = sums_of.get(worker) or sum_of(worker)
                total.hours += hours
                total.week_hours += max(0.0, hours - self._hours.before.get(worker, 0.0))
        has_window = window_games > 0
        people = [total.as_contribution(name, has_window=has_window) for name, total in sums.items()]
        people.sort(key=lambda each: (each.games_distrusted - each.games, each.name))
        return Contributions(people=tuple(people), own=own.as_contribution(OWN, has_window=has_window), names=names)


def name_in_worker(worker: str) -> str:
    """Return whose worker it is, from its name alone."""
    found = NUMBERED.fullmatch(worker)
    return found[1] if found else NAMELESS if is_crowd_worker(worker) else OWN


def read_reasons(path: Path) -> dict[str, str]:
    """Return the workers that are not believed, with the reasons; empty if the file is missing or damaged."""
    try:
        found = read_refused(path)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        log.warning("%s cannot be read now: %s", path, error)
        return {}
    return {worker: printable_line(reason)[:MAX_REASON] for worker, reason in found.items()}


@contextmanager
def open_read_only(run_dir: Path) -> Iterator[sqlite3.Connection]:
    """Yield a connection to the ledger of a run, which sees one state of it and cannot change it.

    Raises:
        sqlite3.Error: it cannot be read.
    """
    address = f"{(run_dir / LEDGER_NAME).absolute().as_uri()}?mode=ro"
    with closing(sqlite3.connect(address, uri=True, isolation_level=None, timeout=WAIT_MS / 1000)) as database:
        database.execute("BEGIN")
        yield database


@dataclass
class _Sum:
    """The sums over a name's machines and workers."""

    machines: int = 0
    present: int = 0
    seen: float = 0.0
    games: int = 0
    week: int = 0
    window: int = 0
    distrusted: int = 0
    refused: int = 0
    given_up: int = 0
    outstanding: int = 0
    hours: float = 0.0
    week_hours: float = 0.0
    reasons: dict[str, None] = field(default_factory=dict)

    def add_machine(self, seen: float, *, now: float) -> None:
        self.machines += 1
        self.present += now - seen < PRESENT_SECONDS
        self.seen = max(self.seen, seen)

    def as_contribution(self, name: str, *, has_window: bool) -> Contribution:
        return Contribution(
            name=name,
            machines=self.machines,
            present=self.present,
            seen=self.seen or None,
            games=self.games,
            games_this_week=self.week,
            games_in_window=self.window if has_window else None,
            games_distrusted=self.distrusted,
            games_refused=self.refused,
            games_given_up=self.given_up,
            games_outstanding=self.outstanding,
            core_hours=self.hours,
            core_hours_this_week=self.week_hours,
            reasons=tuple(self.reasons),
        )


def _read_named(path: Path) -> tuple[Machine, Path] | None:
    """Return a machine with the name for the table, and the mark of its reports; None if its file is damaged."""
    try:
        if (found := read_machine(path)) is None:
            return None
        shown = printable_line(found.name)[:MOST_NAME] or NAMELESS
        mark = path.parent.parent / "workers" / found.worker_names[0] / SEEN  # a report is on all workers of a machine
        return replace(found, name=shown), mark
    except (TypeError, AttributeError, LookupError) as error:
        log.warning("%s has no machine that can be named: %s", path, error)
        return None


def _last_seen(machine: Machine, mark: Path) -> float:
    stamp = stamp_of(mark)
    return max(machine.since, stamp.written) if stamp else machine.since


class _BatchSums:
    """Games by worker, of the last week and of the window.

    Attributes:
        week: games received within the last week, to the hour.
        window: games among the newest that are believed, to a batch.
    """

    def __init__(self) -> None:
        self._distrusted = frozenset[str]()
        self._reset()

    def _reset(self) -> None:
        self.week, self.window = Counter[str](), Counter[str]()
        self._hours: dict[int, Counter[str]] = {}  # games of the week by the hour since 1970
        self._last = 0  # the newest batch that is counted
        self._first, self._in_window = 1, 0  # the oldest batch in the window, and the window's games

    def update(
        self, database: sqlite3.Connection, *, now: float, window_games: int, distrusted: frozenset[str]
    ) -> None:
        """Take in the batches that are new."""
        (newest,) = database.execute("SELECT IFNULL(MAX(sequence), 0) FROM batches").fetchone()
        shrunk = newest < self._last  # another ledger was put there
        if shrunk or distrusted != self._distrusted or (self._first > 1 and self._in_window < window_games):
            self._reset()
            self._distrusted = distrusted
        oldest = int(now / HOUR) - WEEK_HOURS + 1
        for hour in [hour for hour in self._hours if hour < oldest]:
            self.week.subtract(self._hours.pop(hour))
        self.week = +self.week
        for worker, games, hour in database.execute(
            "SELECT worker, games, CAST(time / 3600 AS INTEGER) FROM batches "
            "WHERE sequence > ? AND sequence <= ? AND state = 'received'",
            (self._last, newest),
        ):
            if hour >= oldest:
                self.week[worker] += games
                self._hours.setdefault(hour, Counter())[worker] += games
            if worker not in distrusted:
                self.window[worker] += games
                self._in_window += games
        self._last = newest
        while 0 < window_games < self._in_window and self._trim(database, window_games):
            pass

    def _trim(self, database: sqlite3.Connection, window_games: int) -> bool:
        """Drop the oldest batches without which the window is full; return whether there may be more."""
        rows = database.execute(
            "SELECT sequence, worker, games FROM batches WHERE sequence >= ? AND sequence <= ? AND state = 'received' "
            "ORDER BY sequence LIMIT ?",
            (self._first, self._last, TRIMMED_AT_ONCE),
        ).fetchall()
        for sequence, worker, games in rows:
            if worker not in self._distrusted:
                if self._in_window - games < window_games:
                    return False
                self._in_window -= games
                self.window[worker] -= games
            self._first = sequence + 1
        return bool(rows)


class _CoreHours:
    """Core hours by worker, as the workers say.

    Attributes:
        totals: in all, from the mirrors.
        before: until the last iteration that ended more than a week ago.
    """

    def __init__(self, mirrors: Path) -> None:
        self.totals: dict[str, float] = {}
        self.before: dict[str, float] = {}
        self._mirrors, self._iteration = mirrors, -1
        self._files: dict[str, Path] = {}  # by worker
        self._stamps: dict[str, FileStamp] = {}
        self._looked = -math.inf

    def update(self, database: sqlite3.Connection, *, run_id: str, now: float) -> None:
        """Take in the mirrors that have changed, and the iterations that are now more than a week old."""
        if not 0 <= now - self._looked < MIRROR_SECONDS:
            self._looked = now
            self._read_mirrors(run_id)
        for number, report in database.execute(
            "SELECT number, report FROM iterations WHERE number > ? AND time <= ? ORDER BY number",
            (self._iteration, now - WEEK_HOURS * HOUR),
        ):
            self._iteration = number
            with suppress(ValueError, TypeError, LookupError, AttributeError):
                self.before.update({each["name"]: float(each["core_hours"]) for each in json.loads(report)["workers"]})

    def _read_mirrors(self, run_id: str) -> None:
        for worker in _list_folders(self._mirrors):
            path = self._files.get(worker)
            if path is None:
                path = self._files[worker] = self._mirrors / worker / "processor_time.json"
            stamp = stamp_of(path)
            if stamp and stamp != self._stamps.get(worker):
                self._stamps[worker] = stamp
                hours = WorkerFolder(path.parent).read_processor_time(run_id).total / HOUR
                self.totals[worker] = max(hours, self.totals.get(worker, 0.0))


def _read_window_games(database: sqlite3.Connection) -> int:
    """Return the games in the window at the end of the last iteration; 0 before the first one."""
    for (report,) in database.execute("SELECT report FROM iterations ORDER BY number DESC LIMIT 1"):
        with suppress(ValueError, TypeError, LookupError, AttributeError):
            return int(json.loads(report)["window_games"])
    return 0


def _list_folders(folder: Path) -> list[str]:
    with suppress(FileNotFoundError), os.scandir(folder) as entries:
        return [entry.name for entry in entries if entry.is_dir()]
    return []


# The table as a file and as text.


CSV_COLUMNS: Mapping[str, Callable[[Contribution], str | int | float]] = {
    "name": lambda each: spreadsheet_text(each.name),
    "machines": lambda each: each.machines,
    "present": lambda each: each.present,
    "last_seen": lambda each: "" if each.seen is None else f"{datetime.fromtimestamp(each.seen, UTC):%Y-%m-%d %H:%M}",
    "games": lambda each: each.games,
    "games_this_week": lambda each: each.games_this_week,
    "games_in_window": lambda each: "" if each.games_in_window is None else each.games_in_window,
    "games_distrusted": lambda each: each.games_distrusted,
    "games_refused": lambda each: each.games_refused,
    "games_given_up": lambda each: each.games_given_up,
    "games_outstanding": lambda each: each.games_outstanding,
    "core_hours": lambda each: round(each.core_hours, 3),
    "core_hours_this_week": lambda each: round(each.core_hours_this_week, 3),
    "reasons": lambda each: spreadsheet_text("; ".join(each.reasons)),
}


def _count(number: int) -> str:
    return f"{number:,}" if number else ""


def _present(each: Contribution) -> str:
    return f"{each.present} of {each.machines}" if each.machines else ""


TEXT_COLUMNS = (
    Column[Contribution](title="Name", cell=lambda each: each.name, left=True, claim=24),
    Column[Contribution](title="Present", cell=lambda each: _present(each), rank=4),
    Column[Contribution](title="Games", cell=lambda each: f"{each.games:,}"),
    Column[Contribution](title="This week", cell=lambda each: f"{each.games_this_week:,}", rank=1),
    Column[Contribution](
        title="In window",
        cell=lambda each: _count(each.games_in_window or 0),
        rank=3,
    ),
    Column[Contribution](title="Distrusted", cell=lambda each: _count(each.games_distrusted), rank=2),
    Column[Contribution](title="Refused", cell=lambda each: _count(each.games_refused), rank=2),
    Column[Contribution](title="Given up", cell=lambda each: _count(each.games_given_up), rank=5),
    Column[Contribution](title="Outstanding", cell=lambda each: _count(each.games_outstanding), rank=5),
    Column[Contribution](title="Core hours", cell=lambda each: format_rate(each.core_hours), rank=1),
    Column[Contribution](title="This week", cell=lambda each: format_rate(each.core_hours_this_week), rank=4),
)


def table_as_csv(found: Contributions) -> str:
    """Return the table as comma-separated values. Times are in UTC; the last line is that of the run's own machines."""
    written = io.StringIO()
    writer = csv.writer(written, quoting=csv.QUOTE_NONNUMERIC, lineterminator="\r\n")
    writer.writerow(CSV_COLUMNS)
    writer.writerows([[cell(each) for cell in CSV_COLUMNS.values()] for each in (*found.people, found.own)])
    return written.getvalue()


def spreadsheet_text(text: str) -> str:
    """Return a text that no spreadsheet takes for a formula: an apostrophe goes before what could be one."""
    start = unicodedata.normalize("NFKC", text.lstrip()[:1])
    return f"'{text}" if start in ("=", "+", "-", "@", "|", "%") or text[:1] in ("\t", "\r", "\n") else text


def table_as_text(found: Contributions) -> str:
    """Return the table for a terminal, and below it why games are not used."""
    rows: Sequence[Contribution] = (*found.people, found.own)
    lines = [line.plain.rstrip() for line in table_lines(TEXT_COLUMNS, rows, WIDTH)]
    lines += [f"{each.name}: {'; '.join(each.reasons)}" for each in rows if each.reasons]
    return "".join(f"{line}\n" for line in lines)
