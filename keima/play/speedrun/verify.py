"""Check the record of a race: its books, its clock, its games, and its network.

Each check yields what it found, and problems if there are any. To pass all of them, a network must have played the
games of the run and follow from the network of its seed, as far as the run has versions and games that show it. A
forger who has trained longer than the books say, elsewhere and from the same seed, is not found out.
"""

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, groupby, pairwise
from pathlib import Path
from statistics import median
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from keima.base.random import seed_stream
from keima.base.reports.formats import format_duration, format_percent
from keima.base.system.machine import describe_machine
from keima.config.load import versions
from keima.config.own_modules import is_own
from keima.config.schema import Settings
from keima.config.sections.run import RunSettings
from keima.data.game_seeds import find_numbers
from keima.data.ledger import Ledger
from keima.data.ledger_rows import BatchRow, model_path
from keima.data.packs import read_batch_file
from keima.data.records import GameBatch, GameRecord, decode_batch
from keima.evaluation.strength import load_model_file
from keima.games import Game
from keima.games.game import CHANCE, Planes
from keima.networks.files.model import Model
from keima.networks.inference.evaluator import Evaluator, use_threads
from keima.networks.network import build_network, seed_weights
from keima.play.speedrun.judge import Judgement, judgement_text
from keima.play.speedrun.record import Record, find_clock, hash_config, hash_ledger
from keima.play.speedrun.target import Target
from keima.self_play.reproduce import Agreement, reproduce_games
from keima.self_play.tuning import measure_self_play_speed

CLOCK_SECONDS, CLOCK_SHARE = 10.0, 0.05  # by which two clocks may differ over a run
BUSY_SECONDS = 20.0  # between two entries of the ledger, up to which a run was going on
EXCUSED_PAUSES = 3  # that may be shorter, or have had work that the clock lost by a kill
TIMED: tuple[Literal["batches", "models", "iterations"], ...] = ("batches", "models", "iterations")  # tables with times
CHECKED_NUMBERS = ("iteration", "seconds", "model_version", "total_games", "total_positions")  # of iterations' reports
ROUNDING = 0.003  # share of positions by which two kinds of processors may count errors differently
FIRST_GAMES = 100  # of a process, of which at least one should have been received
MOST_OUTSTANDING = 100_000  # games of a worker that are still to come
LONG = 60.0  # seconds from which on a run's iterations are long enough to compare them one by one
# Mean distance of policy targets up to which a game counts as the same search. Measured on Amazons: 0 where processors
# are alike, up to 0.02 between bfloat16 and float32, and 0.01 to 0.12 with a network of ten versions before, most of
# whose games differ before the first target.
AGREES = 0.05
LEAST_AGREEING = 0.75  # share of the games played again: a worker may change its network within the first moves
PARALLEL_GAMES = 64  # with which a core here is measured
OWN_GAMES = 8  # of the record's network
GAMES_TOGETHER = 4  # that are played again with the same network
COMPARED_POSITIONS = 256
NEVER = -1e3  # the logarithm of an illegal action's probability
LEAST_KEPT = RunSettings.model_fields["keep_models"].default  # a race may keep more files of models, but not fewer
KEPT_SHARE = 0.9  # of these
MOST_STEPS = 4  # earlier steps of the network that one is compared with
FOREIGN_FACTOR, FOREIGN_NATS = 5.0, 0.05  # how much larger than these it may be
FASTEST = 2.5  # times the speed of this machine, if it is of the same kind; a cache of evaluations gives up to 1.5


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What one check has found."""

    subject: str
    text: str
    problems: tuple[str, ...] = field(default=())


def check_books(record: Record, ledger: Ledger, run: Path) -> Finding:
    """Compare the ledger, the settings and the network with what the record says of them."""
    problems = list[str]()
    models = {row.version: row for row in ledger.models()}
    if ledger.run_id != record.run_id:
        problems.append(f"the record is of run {record.run_id}, and this is run {ledger.run_id}")
    if hash_ledger(ledger) != record.ledger_sha256:
        problems.append("run.db holds something else than when the record was made")
    if hash_config(run) != record.config_sha256:
        problems.append("config.yaml is another than when the record was made")
    row = models.get(record.model_version)
    if row is None:
        problems.append(f"the ledger has no model {record.model_version}")
    elif row.sha256 != record.model_sha256:
        problems.append(f"model {record.model_version} of the ledger is another network than the record's")
    rows = ledger.iterations()
    try:
        clock = find_clock(rows, record.model_version)
    except ValueError as error:
        problems.append(str(error))
    else:
        for name, said, entered in (
            ("clock", record.seconds, clock["seconds"]),
            ("number of games", record.games, clock["total_games"]),
            ("number of positions", record.positions, clock["total_positions"]),
        ):
            if said != entered:
                problems.append(f"the record's {name} is {said:,}, and the ledger's {entered:,}")
        ended = list(ledger.times("iterations").values())[rows.index(clock)]
        problems += _check_sums(record, ledger, ended + CLOCK_SECONDS)
    return Finding(
        subject="books",
        text=f"model {record.model_version} after {format_duration(record.seconds)} and {record.games:,} games, by "
        f"version {made_by(record)}",
        problems=tuple(problems),
    )


def _check_sums(record: Record, ledger: Ledger, latest: float) -> Iterator[str]:
    """Yield where the record's games and positions are not those of the first batches, received by ``latest``."""
    rows = ledger.received_batches()
    games, positions = accumulate(row.games for row in rows), accumulate(row.positions for row in rows)
    sums = zip(rows, games, positions, strict=True)
    last = next((row for row, *counted in sums if counted == [record.games, record.positions]), None)
    if last is None:
        yield f"no batch of the ledger is the last of {record.games:,} games with {record.positions:,} positions"
    elif ledger.times("batches")[last.sequence] > latest:
        yield f"batch {last.id}, which the record counts, was received after its time"


def made_by(record: Record) -> str:
    """Return the version that made a record."""
    return record.versions.get("keima", "unknown")


def check_target(record: Record, target: Target) -> Finding:
    """Compare the target in the record with the shipped one of its name, and its result with the target."""
    problems = []
    if record.target != target:
        problems.append(f"the target {record.name} in the record is another than the one here")
    if not target.is_met(low=record.judgement.low, high=record.judgement.high):
        problems.append("by its own figures the record does not meet its target")
    return Finding(subject="target", text=target.title, problems=tuple(problems))


def check_reports(ledger: Ledger) -> None:
    """Check that the reports of iterations have what the other checks read.

    Raises:
        ValueError: one has not, or there is none.
    """
    reports = ledger.iterations()
    if not reports:
        raise ValueError("the ledger has no iterations")
    for number, report in enumerate(reports, 1):
        values = [report.get(name) for name in CHECKED_NUMBERS] if isinstance(report, dict) else [None]
        if not all(_is_number(value) for value in values):
            raise ValueError(
                f"the report of iteration {number} is damaged: {', '.join(CHECKED_NUMBERS)} must be numbers"
            )
        workers = report.get("workers")
        if not isinstance(workers, list) or not all(
            isinstance(worker, dict) and isinstance(worker.get("name"), str) and _is_number(worker.get("core_hours"))
            for worker in workers
        ):
            raise ValueError(f"the report of iteration {number} is damaged: each worker must have name and core_hours")
    for table in TIMED:
        if not all(_is_number(time) for time in ledger.times(table).values()):
            raise ValueError(f"the ledger is damaged: a time of its {table} is no number")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def check_models(ledger: Ledger, run: Path, game: Game, own_network: str) -> None:
    """Check what models name before any is built: the game, and a network of this program, or ``own_network``.

    Raises:
        ValueError: one names something else, or cannot be read.
    """
    for row in ledger.models():
        path = model_path(run, row.version)
        if row.path not in ("", path.relative_to(run).as_posix()):
            raise ValueError(f"the ledger has model {row.version} in {row.path!r}, and not in {path.relative_to(run)}")
        if not path.is_file():
            continue
        found = load_model_file(path).description
        if (found.game, found.options) != (game.name, game.options):
            raise ValueError(
                f"model {row.version} plays {found.game} {found.options}, and not {game.name} {game.options}"
            )
        refuse_foreign_code(f"model {row.version}", str(found.network.get("type", "")), own_network)


def refuse_foreign_code(what: str, network: str, own_network: str) -> None:
    """Refuse a type of network that is a file of somebody's, unless it is ``own_network``.

    Raises:
        ValueError: it is.
    """
    if is_own(network) and network != own_network:
        raise ValueError(
            f"{what} has a network of somebody's own, {network}, which is code and not executed: if you trust it, put "
            "it here as the network of the target's experiment"
        )


def check_clock(record: Record, ledger: Ledger, settings: Settings, *, core_hours: float) -> Finding:
    """Compare the run's clock, up to the record, with the times at which the ledger's rows were entered.

    Between iterations both clocks advance alike. Only while the run is interrupted does the run's clock stand still,
    and then nothing is entered.

    Args:
        core_hours: of the workers by the ledger, up to the record.
    """
    all_rows, entered = ledger.iterations(), list(ledger.times("iterations").values())
    problems = list[str]()
    if [row["iteration"] for row in all_rows] != list(range(1, len(all_rows) + 1)):
        problems.append("iterations are missing")
    last = find_clock(all_rows, record.model_version)
    rows = all_rows[: all_rows.index(last) + 1]
    entered = entered[: len(rows)]
    seconds = np.array([row["seconds"] for row in rows])
    steps, walls = np.diff(seconds), np.diff(entered)
    if seconds[0] <= 0 or (steps <= 0).any():
        problems.append("the run's clock goes back")
    allowed = CLOCK_SECONDS + CLOCK_SHARE * float(seconds[-1])
    is_pause = walls > 1.2 * steps + CLOCK_SECONDS
    # A restart that is quicker than BUSY_SECONDS, and after a kill one iteration that is played again.
    excused = np.sort(np.minimum(walls - steps, BUSY_SECONDS + steps)[is_pause])[-EXCUSED_PAUSES:].sum()
    events = np.sort([time for table in TIMED for time in ledger.times(table).values() if time <= entered[-1]])
    gaps = np.diff(events)
    busy = float(gaps[gaps <= BUSY_SECONDS].sum())
    if busy > seconds[-1] + allowed + excused:
        problems.append(
            f"games and models were entered for {format_duration(busy)}, and the run's clock counts "
            f"{format_duration(float(seconds[-1]))}"
        )
    published = ledger.times("models")[record.model_version]
    if published > entered[-1] + CLOCK_SECONDS:
        problems.append(f"model {record.model_version} was published after the record's clock")
    fast = float((steps - walls)[steps > walls].sum())  # the clock may not run faster than time
    if fast > allowed:
        problems.append(f"the run's clock counts {format_duration(fast)} more than passed between its iterations")
    ratio = median(walls / np.maximum(steps, 1e-9)) if len(steps) else 1.0
    if seconds[-1] > LONG and not 1 - 2 * CLOCK_SHARE < ratio < 1 + 2 * CLOCK_SHARE:
        problems.append(f"between iterations {ratio:.2f} times as much time passed as the run's clock says")
    rest = float((walls - steps)[~is_pause & (walls > steps)].sum())
    if rest > allowed:
        problems.append(f"{format_duration(rest)} passed that the run's clock does not count")
    if abs(core_hours - record.core_hours) > CLOCK_SHARE * max(core_hours, record.core_hours):
        problems.append(f"the record has {record.core_hours:.3g} core hours, and the ledger {core_hours:.3g}")
    cores = record.machine.get("cores", "")
    if not cores.isdecimal():
        problems.append(f"the record's machine has {cores or 'no'} cores")
    most = float(cores) * record.seconds if cores.isdecimal() else math.inf
    if not settings.distributed.enabled and 3600 * record.core_hours > most * (1 + CLOCK_SHARE) + CLOCK_SECONDS:
        problems.append(f"its workers used {record.core_hours:.2f} core hours, more than its cores have in that time")
    problems += _check_order(ledger)
    pauses = int(is_pause.sum())
    text = f"{format_duration(float(seconds[-1]))} in {len(rows):,} iterations" + (
        f"; interrupted {pauses} times" if pauses else ""
    )
    return Finding(subject="clock", text=text, problems=tuple(problems))


def _check_order(ledger: Ledger) -> Iterator[str]:
    """Yield where something was entered before what it follows from."""
    published, received = ledger.times("models"), ledger.times("batches")
    if any(later < earlier - CLOCK_SECONDS for earlier, later in pairwise(received.values())):
        yield "batches were not received in their order"
    for row in ledger.batches():
        if row.last_model and received[row.sequence] + CLOCK_SECONDS < published.get(row.last_model, np.inf):
            yield f"batch {row.id} was received before the model {row.last_model} that it was played with"
            return


def check_seeds(ledger: Ledger, settings: Settings, run: Path) -> Finding:
    """Check that the games are those that the run's seed gives each worker, each once, and none was imported."""
    problems, games, known = list[str](), 0, set[int]()
    for worker, rows in groupby(sorted(ledger.received_batches(), key=lambda row: (row.worker, row.first_game or 0)),
                                key=lambda row: row.worker):  # fmt: skip
        of_worker = list(rows)
        account = ledger.account(worker)
        if account.missing:
            problems.append(f"{account.missing:,} games of worker {worker} are missing")
        granted = min(account.granted, account.next_game + MOST_OUTSTANDING)
        batches = dict[str, list[int]]()
        for row in of_worker:
            if row.first_model < 1:
                problems.append(f"batch {row.id} has imported games")
                continue
            batches[row.id] = read_batch(run, row).seeds.tolist()
        wanted = {seed for seeds in batches.values() for seed in seeds}
        possible = {row.first_game for row in ledger.batches() if row.worker == worker and row.first_game is not None}
        starts = _order_starts(settings.run.seed, worker, wanted, possible)
        mine = find_numbers(settings.run.seed, worker, wanted, starts=starts, numbers=range(granted))
        for batch_id, seeds in batches.items():
            games += len(seeds)
            if strange := sum(seed not in mine for seed in seeds):
                problems.append(f"{strange:,} games of batch {batch_id} have seeds that this run does not give")
            if len(set(seeds)) < len(seeds) or not known.isdisjoint(seeds):
                problems.append(f"batch {batch_id} has games that another batch has too")
            known |= set(seeds)
    return Finding(
        subject="seeds", text=f"{games:,} games, each with its own seed of the run", problems=_shortened(problems)
    )


def _order_starts(seed: int, worker: str, wanted: set[int], possible: set[int]) -> list[int]:
    """Return where processes of a worker may have begun, those first that have one of the wanted games soon after."""
    few = {
        start
        for start in possible
        if find_numbers(seed, worker, wanted, starts=[start], numbers=range(start, start + FIRST_GAMES))
    }
    return [*sorted({0} | few), *sorted(possible - few - {0})]


def read_batch(run: Path, row: BatchRow) -> GameBatch:
    """Read a received batch.

    Raises:
        CorruptBatch, OSError, ValueError: it cannot be read.
    """
    return decode_batch(read_batch_file(run, row))


def _shortened(problems: Sequence[str], most: int = 5) -> tuple[str, ...]:
    more = len(problems) - most
    return (*problems[:most], f"and {more:,} more") if more > 0 else tuple(problems)


# The network and its games.


def choose_games(ledger: Ledger, run: Path, *, games: int, seed: int) -> dict[int, list[GameRecord]]:
    """Draw games from all of the run whose network has a file, by the version that they began with.

    A share of each batch that is drawn, of those games that kept one network longest: they can be repeated whole.
    """
    versions = {row.version for row in ledger.models() if model_path(run, row.version).is_file()}
    rows = [
        row
        for row in ledger.received_batches()
        if row.first_model >= 1 and not versions.isdisjoint(range(row.first_model, row.last_model + 1))
    ]
    random, chosen = np.random.default_rng(seed), dict[int, list[GameRecord]]()
    for index in random.permutation(len(rows))[: -(-games // GAMES_TOGETHER)]:
        batch = read_batch(run, rows[index])
        records = [batch.game_record(number) for number in random.permutation(batch.num_games).tolist()]
        records = [record for record in records if record.first_model in versions]
        records.sort(key=lambda record: record.last_model - record.first_model)
        same = [record for record in records if record.first_model == records[0].first_model]
        if same:
            chosen.setdefault(same[0].first_model, []).extend(same[:GAMES_TOGETHER])
    return dict(sorted(chosen.items()))


def find_games_of(ledger: Ledger, run: Path, version: int, *, games: int) -> list[GameRecord]:
    """Return games that began with a version of the network, those first that kept it to the end."""
    found = list[GameRecord]()
    for row in ledger.received_batches():
        if row.first_model <= version <= row.last_model and len(found) < games:
            batch = read_batch(run, row)
            found += [batch.game_record(int(number)) for number in np.flatnonzero(batch.first_model == version)]
    return sorted(found, key=lambda record: record.last_model)[:games]


def count_agreeing(found: Sequence[Agreement]) -> tuple[int, int]:
    """Return how many games can be compared, and how many of them the same search played.

    A game that differs before its first policy target is another one; one without any target shows nothing.
    """
    compared = [agreement for agreement in found if agreement.distances or agreement.same < agreement.plies]
    return len(compared), sum(agreement.distance is not None and agreement.distance <= AGREES for agreement in compared)


def _load_evaluator(game: Game, run: Path, version: int, *, max_batch: int) -> Evaluator:
    """Load a version of a run's network, on the processor."""
    network = load_model_file(model_path(run, version)).build(game)
    return Evaluator(network, game, device="cpu", max_batch=max_batch)


def check_games(
    ledger: Ledger, settings: Settings, game: Game, run: Path, record: Record, *, games: int, seed: int
) -> Finding:
    """Play games again by their seeds with the networks that the ledger names, and compare moves and visits."""
    use_threads(1)
    found, own = list[Agreement](), list[Agreement]()  # own: of games that began with the record's network
    moves, evaluations, here = 0, 0, 0.0
    chosen = choose_games(ledger, run, games=games, seed=seed)
    chosen[record.model_version] = find_games_of(ledger, run, record.model_version, games=OWN_GAMES)
    for version, records in chosen.items():
        if not records:
            continue
        evaluate = _load_evaluator(game, run, version, max_batch=PARALLEL_GAMES)
        agreements, evaluated = reproduce_games(game, evaluate, settings.search, records)
        found += agreements
        own += agreements if version == record.model_version else []
        evaluations += evaluated
        moves += sum(len(record.actions) for record in records)
        here = here or measure_self_play_speed(game, evaluate, settings.search, PARALLEL_GAMES, clock=time.process_time)
    compared, agreeing = count_agreeing(found)
    whole = sum(agreement.same == agreement.plies for agreement in found)
    problems = list[str]()
    here_by = versions()["keima"]
    other = "" if made_by(record) == here_by else f", or its version plays otherwise than this one, {here_by}"
    for what, (number, agree) in (("", (compared, agreeing)), (" of the record's network", count_agreeing(own))):
        if agree < LEAST_AGREEING * number or (number == 0 and not what):
            problems.append(
                f"only {agree} of {number} games{what} have the visits that their seeds and networks give: others "
                f"played them, or with other settings{other}"
            )
    ratio = 0.0
    if here:  # evaluations per second of a core
        ratio = record.positions * evaluations / max(1, moves) / (3600 * record.core_hours) / here
    machine = describe_machine()
    is_alike = all(machine[name] == record.machine.get(name) for name in ("processor", "with"))
    played_there = not settings.distributed.enabled and record.machine.get("gpus", "0") == "0"
    if is_alike and played_there and ratio > FASTEST:
        problems.append(f"its cores played {ratio:.1f} times as fast as this machine, which is of the same kind")
    distance = float(np.mean([distance for agreement in found if (distance := agreement.distance) is not None] or 1.0))
    text = (
        f"{len(found)} played again: {agreeing} of {compared} by the same search, {whole} to the last move (mean "
        f"distance {distance:.3f}); a core played {ratio:.1f} times as fast as one here"
    ) + ("" if own else "; none of them is by the record's network, which played no games of the run")
    return Finding(subject="games", text=text, problems=tuple(problems))


def check_network(ledger: Ledger, settings: Settings, game: Game, run: Path, record: Record, *, seed: int) -> Finding:
    """Check that the networks begin with that of the run's seed, and that each follows from the one before it.

    A step is compared with those before it, as the first ones are long.
    """
    models = ledger.models()
    present = [row.version for row in models if model_path(run, row.version).is_file()]
    files = [version for version in present if version <= record.model_version]
    problems = list[str]()
    if settings.game.smaller:
        problems.append("it began on smaller boards, whose games are not in the record")
    if files[:1] != [row.version for row in models[:1]]:
        problems.append("the first version of the network has no file")
    elif len(present) < KEPT_SHARE * min(len(models), max(LEAST_KEPT, settings.run.keep_models or len(models))):
        problems.append(f"only {len(present):,} of {len(models):,} versions of the network have files")
    elif not _is_begin(load_model_file(model_path(run, files[0])), game, settings):
        problems.append("the first version of the network is not the one that the run's seed gives")
    observations, legal = _find_positions(ledger, game, run, seed=seed)
    policies = (_find_policies(game, run, version, observations, legal) for version in files)
    steps = [_mean_divergence(second, first) for first, second in pairwise(policies)]
    for index in range(1, len(steps)):
        usual = max(steps[max(0, index - MOST_STEPS) : index])
        if steps[index] > FOREIGN_FACTOR * usual + FOREIGN_NATS:
            problems.append(
                f"model {files[index + 1]} does not follow from the version before it: their policies differ by "
                f"{steps[index]:.3f} nats"
            )
    text = f"{len(files):,} versions from that of the seed on"
    if steps:
        text += f"; policies differ by {steps[-1]:.3f} nats in the last step, and by up to {max(steps):.3f}"
    if len(steps) < 2:
        text += "; too few to compare their steps"
    return Finding(subject="network", text=text, problems=_shortened(problems))


def _is_begin(first: Model, game: Game, settings: Settings) -> bool:
    """Return whether a model is the network that a run begins with, up to the rounding of its file."""
    seed_weights(seed_stream(settings.run.seed, "network"))
    begin = build_network(game, **settings.network.arguments(0)).state_dict()
    return begin.keys() == first.weights.keys() and all(
        weight.shape == begin[name].shape and np.allclose(weight, begin[name], rtol=2.0**-7, atol=1e-3)
        for name, weight in first.weights.items()
    )


def _find_positions(ledger: Ledger, game: Game, run: Path, *, seed: int) -> tuple[Planes, NDArray[np.bool_]]:
    """Return positions of the run's games, ``[N, C, H, W]``, and which actions are legal there, ``[N, A]``."""
    found = list[tuple[NDArray[np.float32], NDArray[np.bool_]]]()
    for records in choose_games(ledger, run, games=COMPARED_POSITIONS // 8, seed=seed).values():
        for record in records:
            state = game.initial_state()
            for action in record.actions.tolist():
                if game.current_player(state) != CHANCE:
                    legal = np.zeros(game.num_actions, np.bool_)
                    legal[game.legal_actions(state)] = True
                    found.append((game.observe(state), legal))
                game.play(state, action)
    chosen = [found[i] for i in np.linspace(0, len(found) - 1, min(COMPARED_POSITIONS, len(found))).astype(int)]
    return np.stack([observation for observation, _ in chosen]), np.stack([legal for _, legal in chosen])


def _find_policies(
    game: Game, run: Path, version: int, observations: Planes, legal: NDArray[np.bool_]
) -> NDArray[np.float64]:
    """Return the logarithms of a version's policies over the legal actions, ``[N, A]``; of others a tiny number's."""
    evaluate = _load_evaluator(game, run, version, max_batch=len(observations))
    logits = np.where(legal, evaluate(observations)[0].astype(np.float64), -np.inf)
    logits -= logits.max(1, keepdims=True)
    policies = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    return np.where(legal, policies, NEVER)


def _mean_divergence(first: NDArray[np.float64], second: NDArray[np.float64]) -> float:
    """Return the mean of KL(p || q) over rows of log p and log q, in nats."""
    return float((np.exp(first) * (first - second)).sum(1).mean())


def check_strength(record: Record, again: Judgement) -> Finding:
    """Compare a second judgement, with other openings, with the target: is the network weaker than it?"""
    target, before = record.target, record.judgement
    if target.errors:  # in the same positions: only ties and rounding differ
        weaker, apart = again.high >= target.errors.most + ROUNDING, again.value > before.value + ROUNDING
    else:
        weaker, apart = target.match is not None and again.value < target.match.least, again.high < before.low
    problems = list[str]()
    if weaker:
        problems.append("measured again, the network does not reach the target")
    elif apart:
        problems.append(
            f"measured again, the network is weaker than the record says: {format_percent(before.value)}, "
            f"{format_percent(before.low)} to {format_percent(before.high)}"
        )
    return Finding(subject="strength", text=judgement_text(target, again), problems=tuple(problems))
