"""Audit a run: check that no finished game is lost and that none counts twice.

    keima audit runs/connect_four
    keima audit runs/connect_four --quick  do not replay the games
    keima audit runs/connect_four --json   output for programs

For every worker, granted = received + quarantined + missing + discarded + outstanding. Quarantined games were rejected
(quarantine/ has the reason), missing games are in no batch although later ones are, discarded games were given up, and
outstanding games are still to come. Received games of a distrusted worker count as received and are left out of
training; a note names each such worker, its games and the reason. "Core h" are core hours: the processor time that the
worker has used, up to the last iteration.

The audit also checks that every received batch has a file with the right SHA-256 whose games follow the rules, that
every file in games/ is in the ledger, that no game is in two batches, that every model has its file, and that the
newest checkpoint was trained on exactly the games in the ledger up to its last batch. The smaller boards on which a run
began are audited too. It changes nothing, and the run may continue meanwhile.

Exit code: 0 if everything balances, 1 if not (every problem is listed), 2 if the folder is not a run.
"""

import argparse
import json
import sqlite3
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    from keima.base.system.signals import exit_quietly_on_interrupt

    exit_quietly_on_interrupt()

from keima.base.disk_words import error_text
from keima.base.run_folder import RUNS, list_smaller_boards, resolve_run_folder
from keima.base.system.command_line import CommandLine, program_name
from keima.base.system.signals import handle_interrupts
from keima.base.system.start import parse_before_imports, report_compiling_of
from keima.data.ledger import LedgerDamaged, LedgerMismatch, NoSuchRun, read_ledger


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line; ``folder`` is the run's."""
    parser = CommandLine(__doc__)
    parser.add_argument("run", metavar="RUN", help=f"folder of the run, or its name in {RUNS}/")
    parser.add_argument("--quick", action="store_true", help="check only the SHA-256 of files, without replaying games")
    parser.add_argument("--json", action="store_true", help="print a JSON object instead of a table")
    args = parser.parse_args(argv)
    args.folder = resolve_run_folder(Path(args.run))
    return args


def check_inputs(args: argparse.Namespace) -> None:
    """Check that there is a run.

    Raises:
        NoSuchRun, LedgerMismatch: the folder is not a run of this program.
    """
    with suppress(LedgerDamaged):  # the audit reports it
        read_ledger(args.folder).close()


if __name__ == "__main__":
    parse_before_imports(parse, check_inputs, loading="numba")

from rich.console import Console
from rich.progress import track
from rich.table import Table

from keima.base.files import PART, read_limited, sha256_hex
from keima.base.reports.formats import format_rate
from keima.base.reports.text import printable_line
from keima.data.batch_file import SUFFIX
from keima.data.ledger import Ledger
from keima.data.ledger_rows import QUARANTINED, RECEIVED, BatchRow, ModelRow, WorkerAccount
from keima.data.packs import games_path, list_packed, list_packs, read_batch_file
from keima.data.records import CorruptBatch, decode_batch
from keima.data.verify import verify_batch
from keima.games import Game
from keima.report.cost import core_hours_by_worker
from keima.report.games.game_view import load_game_of_run

MAX_CHECKED_BYTES = 2**34
SETTLE_SECONDS = 3.0  # within this time a running Coach enters a new file in the ledger
CORE_HOURS = "core_hours"
AUDITED_COLUMNS = ("granted", "received", "quarantined", "missing", "discarded", "outstanding")  # of a worker's account


@dataclass(frozen=True, kw_only=True)
class LedgerSnapshot:
    """The content of the ledger at one moment."""

    workers: list[WorkerAccount]
    batches: list[BatchRow]
    models: list[ModelRow]
    damage: list[str]
    core_hours: dict[str, float]  # by worker; up to the last iteration
    distrusted: dict[str, str]  # worker and reason

    @property
    def received(self) -> list[BatchRow]:
        """The received batches in order of receipt."""
        return [row for row in self.batches if row.state == RECEIVED]


@dataclass(frozen=True, kw_only=True)
class Audit:
    """The result of an audit."""

    run: str
    workers: list[dict[str, Any]] = field(default_factory=list)
    batches: int = 0  # received
    games: int = 0
    positions: int = 0
    bytes: int = 0
    models: int = 0
    distrusted: dict[str, str] = field(default_factory=dict)  # worker and reason
    replayed: bool = False
    notes: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def audit(folder: Path, *, quick: bool = False) -> Audit:
    """Audit the run in ``folder``; ``quick`` does not replay the games.

    Raises:
        NoSuchRun, LedgerMismatch: the folder is not a run of this program.
    """
    checkpoint = checkpoint_to_resume(folder)  # before the ledger, which is then at least as new
    try:
        with read_ledger(folder) as ledger:
            snapshot = read_snapshot(ledger)
            problems = list(find_problems(ledger, snapshot, checkpoint, quick=quick))
    except (LedgerDamaged, sqlite3.DatabaseError) as error:
        return Audit(run=str(folder), problems=[f"the ledger is damaged: {error}"])
    gaps, excused = find_gaps(snapshot)
    return Audit(
        run=str(folder),
        workers=[
            {"name": worker.name}
            | {name: getattr(worker, name) for name in AUDITED_COLUMNS}
            | {CORE_HOURS: snapshot.core_hours.get(worker.name, 0.0)}
            for worker in snapshot.workers
        ],
        batches=len(snapshot.received),
        games=sum(row.games for row in snapshot.received),
        positions=sum(row.positions for row in snapshot.received),
        bytes=sum(row.bytes for row in snapshot.received),
        models=len(snapshot.models),
        distrusted=snapshot.distrusted,
        replayed=not quick,
        notes=excused + list_incomplete_files(folder) + list_distrusted(snapshot),
        problems=problems + gaps,
    )


def read_snapshot(ledger: Ledger) -> LedgerSnapshot:
    """Read everything that is checked, at one moment."""
    with ledger.read_snapshot():
        return LedgerSnapshot(
            workers=[ledger.account(name) for name in ledger.workers()],
            batches=ledger.batches(),
            models=ledger.models(),
            damage=ledger.find_damage(),
            core_hours=core_hours_by_worker([recorded_core_hours(report) for report in ledger.iterations()]),
            distrusted=dict(ledger.distrusted()),
        )


def recorded_core_hours(iteration: dict[str, Any]) -> dict[str, float]:
    """Return the core hours of each worker at the end of an iteration; runs of earlier versions did not record them."""
    return {worker["name"]: worker.get(CORE_HOURS, 0.0) for worker in iteration.get("workers", ())}


def sum_core_hours(iterations: Iterable[dict[str, Any]]) -> float:
    """Return the core hours of all workers by the end of these iterations, which are a run's first ones."""
    return sum(core_hours_by_worker([recorded_core_hours(iteration) for iteration in iterations]).values())


def load_game_to_replay(ledger: Ledger) -> Game:
    """Return the run's game.

    Raises:
        LedgerMismatch: this program does not have it.
    """
    try:
        return load_game_of_run(ledger)
    except LedgerMismatch as error:
        raise LedgerMismatch(f"{error} (--quick does not replay the games)") from error


def find_problems(ledger: Ledger, snapshot: LedgerSnapshot, checkpoint: Path | None, *, quick: bool) -> Iterator[str]:
    """Yield all problems except gaps."""
    yield from (f"run.db: {text}" for text in snapshot.damage)
    for worker in snapshot.workers:
        if worker.outstanding < 0:
            yield f"worker {worker.name} has delivered {-worker.outstanding:,} games more than it was granted"
        if worker.outstanding > 0 and worker.name in snapshot.distrusted:
            yield f"worker {worker.name} is distrusted and still owes {worker.outstanding:,} games"
    yield from find_wrong_sums(snapshot)
    yield from find_duplicate_games(snapshot)
    yield from find_unknown_files(ledger)
    game = None if quick else load_game_to_replay(ledger)
    console = Console(stderr=True)
    for row in track(
        snapshot.received, "Checking batches", console=console, transient=True, disable=not console.is_terminal
    ):
        yield from (f"batch {row.id}: {problem}" for problem in check_batch(ledger, row, game))
    for model in (model for model in snapshot.models if model.path):
        yield from (f"model {model.version}: {problem}" for problem in check_model(ledger.folder, model))
    if checkpoint:
        yield from (f"{checkpoint.name}: {problem}" for problem in check_checkpoint(checkpoint, snapshot))


# Games that count twice or not at all.


def batches_in_order(snapshot: LedgerSnapshot, worker: str) -> list[BatchRow]:
    """Return the batches of ``worker`` that have a number in its sequence, in that order."""
    found = [row for row in snapshot.batches if row.worker == worker and row.first_game is not None]
    return sorted(found, key=first_game)


def first_game(row: BatchRow) -> int:
    """Return the number of the first game, for a batch with a number."""
    assert row.first_game is not None
    return row.first_game


def find_wrong_sums(snapshot: LedgerSnapshot) -> Iterator[str]:
    """Yield the accounts that differ from the sums of their batches."""
    for worker in snapshot.workers:
        rows = batches_in_order(snapshot, worker.name)
        sums = {state: sum(row.games for row in rows if row.state == state) for state in (RECEIVED, QUARANTINED)}
        sums["next_game"] = max((first_game(row) + row.games for row in rows), default=0)
        for name, total in sums.items():
            entered = getattr(worker, name)
            if entered != total:
                yield f"the account of worker {worker.name} has {entered:,} for {name}, its batches sum to {total:,}"


def find_duplicate_games(snapshot: LedgerSnapshot) -> Iterator[str]:
    """Yield the games that are in two batches."""
    for worker in snapshot.workers:
        end, longest = 0, ""
        for row in batches_in_order(snapshot, worker.name):
            if first_game(row) < end:
                start = first_game(row)
                yield f"games from {start} of worker {worker.name} count twice: in batches {longest} and {row.id}"
            end, longest = max((end, longest), (first_game(row) + row.games, row.id))
    contents: dict[str, str] = {}
    for row in snapshot.received:
        twin = contents.setdefault(row.sha256, row.id)
        if twin != row.id:
            yield f"batches {twin} and {row.id} have the same content"


def find_gaps(snapshot: LedgerSnapshot) -> tuple[list[str], list[str]]:
    """Return the gaps before later batches: the unexplained ones, and those of workers with unreadable batches."""
    unexplained, explained = [], []
    for worker in snapshot.workers:
        refused = [row.id for row in snapshot.batches if row.worker == worker.name and row.first_game is None]
        end = 0
        for row in batches_in_order(snapshot, worker.name):
            text = f"games {end} to {first_game(row) - 1} of worker {worker.name} are missing before batch {row.id}"
            if row.state == QUARANTINED:
                text += ", which was rejected"
            if first_game(row) > end and refused:
                explained.append(f"{text}: see the rejected batches {', '.join(refused[:5])}")
            elif first_game(row) > end:
                unexplained.append(text)
            end = max(end, first_game(row) + row.games)
    return unexplained, explained


def list_distrusted(snapshot: LedgerSnapshot) -> list[str]:
    """Return the distrusted workers, each with its games and the reason."""
    received = {worker.name: worker.received for worker in snapshot.workers}
    return [
        f"worker {worker} is distrusted, and its {received.get(worker, 0):,} received games are left out: {reason}"
        for worker, reason in snapshot.distrusted.items()
    ]


# Files.


def find_unknown_files(ledger: Ledger) -> Iterator[str]:
    """Yield the files in games/ that are not in the ledger, except those that a running Coach is about to enter."""
    deadline = time.monotonic() + SETTLE_SECONDS
    while (unknown := list_unknown_files(ledger)) and time.monotonic() < deadline:
        time.sleep(0.1)
    for path in unknown:
        remedy = "resume the run to enter it" if path.suffix == SUFFIX else "it does not belong there"
        yield f"games/{path.name} is not in the ledger: {remedy}"
    known = known_files(ledger)
    for pack in list_packs(ledger.folder):
        try:
            strange = set(list_packed(pack)) - known
        except (OSError, ValueError) as error:
            yield f"games/{pack.name} cannot be read: {error}"
            continue
        if strange:
            yield f"games/{pack.name} holds {min(strange)}, which is not in the ledger"


def known_files(ledger: Ledger) -> set[str]:
    """Return the names of the files of all received batches."""
    return {f"{batch_id}{SUFFIX}" for batch_id in ledger.batch_ids_in_order()}


def list_unknown_files(ledger: Ledger) -> list[Path]:
    """Return the files in games/ that are not in the ledger now."""
    known = known_files(ledger) | {path.name for path in list_packs(ledger.folder)}
    found = sorted(games_path(ledger.folder, "").parent.glob("*"))
    return [path for path in found if path.name not in known and not path.name.endswith(PART)]


def list_incomplete_files(folder: Path) -> list[str]:
    """Return the incomplete files that killed writers have left."""
    return [
        f"games/{path.name} is incomplete: the next session removes it"
        for path in sorted(folder.glob(f"games/*{PART}"))
    ]


def check_file(path: Path, size: int, sha256: str, read: Callable[[], bytes]) -> tuple[bytes, str]:
    """Read a file; return its content and the problem with it, if any."""
    try:
        data = read()
    except FileNotFoundError:
        return b"", f"its file {path} is missing"
    except (OSError, ValueError) as error:
        return b"", f"its file cannot be read: {error}"
    intact = len(data) == size and sha256_hex(data) == sha256
    return data, "" if intact else f"its file {path} has changed: its SHA-256 differs"


def check_batch(ledger: Ledger, row: BatchRow, game: Game | None) -> Iterator[str]:
    """Yield the problems of a received batch."""
    path = games_path(ledger.folder, row.id)
    data, problem = check_file(path, row.bytes, row.sha256, lambda: read_batch_file(ledger.folder, row))
    if problem or game is None:
        yield from [problem] if problem else []
        return
    try:
        batch = decode_batch(data)
        verify_batch(batch, game)
    except CorruptBatch as error:
        yield f"its games are invalid: {error}"
        return
    said = {"id": batch.batch_id, "worker": batch.worker, "first_game": batch.first_game, "games": batch.num_games}
    said |= {
        "positions": batch.num_positions,
        "first_model": int(batch.first_model.min()),
        "last_model": int(batch.last_model.max()),
    }
    if batch.run_id != ledger.run_id:
        yield f"it is of run {batch.run_id}, but this is run {ledger.run_id}"
    for name, value in said.items():
        if getattr(row, name) != value:
            yield f"its file has {name} {value}, the ledger has {getattr(row, name)}"


def check_model(folder: Path, model: ModelRow) -> list[str]:
    """Return the problems of a model."""
    path = folder / model.path
    _, problem = check_file(path, model.bytes, model.sha256, lambda: read_limited(path, MAX_CHECKED_BYTES))
    return [problem] if problem else []


def checkpoint_to_resume(folder: Path) -> Path | None:
    """Return the checkpoint from which the run would resume."""
    found = [
        path for path in folder.glob("checkpoints/checkpoint-*") if path.name.removeprefix("checkpoint-").isdecimal()
    ]
    return max(found, key=lambda path: int(path.name.removeprefix("checkpoint-")), default=None)


def check_checkpoint(path: Path, snapshot: LedgerSnapshot) -> Iterator[str]:
    """Check that a checkpoint counts exactly the games in the ledger up to its last batch."""
    try:
        index = json.loads((path / "checkpoint.json").read_bytes())
        coach = json.loads(index["content"])["coach"]
        last, games, positions = (int(coach[name]) for name in ("window_sequence", "total_games", "total_positions"))
    except (OSError, ValueError, TypeError, KeyError) as error:
        yield f"it does not say which games it was trained on: {error!r}"
        return
    seen = [row for row in snapshot.received if row.sequence <= last]
    if last > 0 and not (seen and seen[-1].sequence == last):
        yield f"its last batch has number {last}, which is not in the ledger"
    for name, counted, entered in (
        ("games", games, sum(row.games for row in seen)),
        ("positions", positions, sum(row.positions for row in seen)),
    ):
        if counted != entered:
            yield f"it counts {counted:,} {name} up to batch number {last}, but the ledger has {entered:,}"


# Output.


def print_audit(found: Audit) -> None:
    """Print the result as a table."""
    console = Console(highlight=False, markup=False)
    table = Table(box=None, header_style="dim", pad_edge=False)
    table.add_column("Worker", overflow="fold", min_width=6)
    for name in AUDITED_COLUMNS:
        table.add_column(name.capitalize(), justify="right", no_wrap=True)
    table.add_column("Core h", justify="right", no_wrap=True)
    sums = {name: sum(worker[name] for worker in found.workers) for name in (*AUDITED_COLUMNS, CORE_HOURS)}
    for worker in [*found.workers, {"name": "Total"} | sums]:
        counts = (f"{worker[name]:,}" for name in AUDITED_COLUMNS)
        table.add_row(printable_line(worker["name"]), *counts, format_rate(worker[CORE_HOURS]))
    console.print(table)
    checked = "replayed by the rules" if found.replayed else "not replayed"
    lines = [
        ("", ""),
        (f"Received batches: {found.batches:,} ({found.games:,} games, {found.positions:,} positions; {checked})", ""),
    ]
    lines += [(f"Models: {found.models:,}", "")]
    lines += [(f"Note: {printable_line(note)}", "yellow") for note in found.notes]
    lines += [(f"Problem: {printable_line(problem)}", "red") for problem in found.problems]
    if found.problems:
        lines.append((f"The ledger of {found.run} does not balance; problems: {len(found.problems)}", "bold red"))
    else:
        lines.append((f"The ledger of {found.run} balances.", "bold green"))
    for text, style in lines:
        console.print(text, style=style, soft_wrap=True)


@handle_interrupts
@report_compiling_of
def main(argv: Sequence[str] | None = None) -> int:
    """Audit a run and print the result."""
    args = parse(argv)
    try:
        found = audit(args.folder, quick=args.quick)
        smaller = {folder.name: audit(folder, quick=args.quick) for folder in list_smaller_boards(args.folder)}
    except (NoSuchRun, LedgerMismatch) as error:
        print(f"{program_name()}: {error_text(error)}", file=sys.stderr)
        return 2
    if args.json:
        boards = {name: describe_audit(each) for name, each in smaller.items()}
        print(json.dumps(describe_audit(found) | {"smaller": boards}, indent=1))
    else:
        for each in (*smaller.values(), found):
            print_audit(each)
    return 1 if any(each.problems for each in (found, *smaller.values())) else 0


def describe_audit(found: Audit) -> dict[str, Any]:
    """Return an audit as JSON."""
    return {"balances": not found.problems} | asdict(found)


if __name__ == "__main__":
    sys.exit(main())
