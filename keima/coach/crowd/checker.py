"""Check the games of workers that joined from outside: what they say of their games is searched again.

The Coach starts it in a process of its own (keima/coach/crowd/program.py). It reads the ledger and the received games,
and appends to ``<run>/crowd/verdicts.jsonl`` when the evidence against a worker is enough (``CheckLimits``), and when a
newcomer's first games are checked. It plays no part in receiving: a checker that is slow or gone delays nobody but
newcomers, and the next one continues where it was.

Games are chosen by numbers that workers do not know. Those workers come first of which least has been checked.
"""

import itertools
import json
import logging
import random
import time
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from keima.base.files import read_limited, write_atomically
from keima.coach.crowd.betting import Bet
from keima.coach.crowd.limits import CHECK_LIMITS, CheckLimits
from keima.coach.crowd.ranking import (
    NUM_STATISTICS,
    REPEATED,
    Openings,
    Reference,
    Statistics,
    count_repeated,
    find_rank,
    make_openings,
    measure_games,
)
from keima.coach.crowd.scoring import choose_models, score_game, search_games
from keima.coach.crowd.sequence import WINDOW, InOrder, KnownGames
from keima.coach.crowd.verdicts import STATE, VerdictReader, append_backlog, append_pass, append_verdict, make_folder
from keima.config.schema import LEAST_KEPT_MODELS
from keima.config.sections.search import SearchSettings
from keima.config.sections.training import SEED_ACCOUNTS
from keima.data.ledger import Ledger
from keima.data.ledger_rows import QUARANTINED, BatchRow, model_path
from keima.data.receive import load_if_intact
from keima.data.records import GameBatch, GameRecord
from keima.evaluation.strength import load_model_file
from keima.games import Game
from keima.networks.inference.evaluator import Evaluator, fastest_dtype, pick_device
from keima.self_play.follow import Differences
from keima.worker.worker_folder import is_crowd_worker

log = logging.getLogger(__name__)

BATCHES_TOGETHER = 50  # that are read between two rounds of searches
GAMES_TOGETHER = 16  # that are searched side by side
GAMES_OF_WORKER = 4  # among them, of one worker
KEPT_NETWORKS = 6  # in memory
KEPT_BATCHES = 4  # of a worker, in which more games are checked once it is suspicious
KEPT_MODELS = 64  # newest ones whose games are compared with each other
TRUSTED_REFERENCES = 256  # games of trusted workers that began with a model
CROWD_REFERENCES = 16  # and of each other worker
THINNED_MODELS = LEAST_KEPT_MODELS // 2  # a model as old as this may have lost its file; no honest game is as old
MAX_STATE_BYTES = 2**28
MOST_CHOSEN = 64  # games of a worker that wait for their check; where checks are too slow for all, no more are chosen
ABSENT_SECONDS = 86_400.0  # after which the games of a worker that sends none are read again when it returns
BEHIND_GAMES, BEHIND_SECONDS = 1000, 3600.0  # so many games that wait for their check are reported, this often


@dataclass(frozen=True, kw_only=True)
class Terms:
    """What a run tells its workers; a resumed run may tell them something else, while older games still arrive."""

    seed: int
    search: SearchSettings


@dataclass(kw_only=True)
class WorkerRecord:
    """What is known of a worker."""

    received: int = 0  # games
    to_check: float = 0.0  # games that are still to be chosen for a check
    scores: Bet = field(default_factory=Bet)
    gross: Bet = field(default_factory=Bet)
    ranks: list[tuple[Bet, Bet]] = field(default_factory=lambda: [(Bet(), Bet())] * NUM_STATISTICS)
    starts: list[int] = field(default_factory=list)  # of its processes
    verdict: str = ""
    has_passed: bool = False
    # Not kept when the checker ends:
    known: KnownGames | None = None
    order: InOrder[tuple[int, Statistics]] = field(default_factory=InOrder)
    is_resumed: bool = False
    openings: Openings = field(default_factory=make_openings)
    read_at: float = 0.0  # when its last batch was read, by a monotonic clock
    chosen: list[tuple[BatchRow, int]] = field(default_factory=list)  # batches, and indices of games in them
    unchecked: list[tuple[BatchRow, list[int]]] = field(default_factory=list)  # in its last batches

    def to_json(self) -> dict[str, Any]:
        """Return what is kept."""
        known = self.known.starts if self.known else self.starts
        return {
            "received": self.received,
            "to_check": self.to_check + len(self.chosen),  # which are forgotten: others take their place
            "scores": asdict(self.scores),
            "gross": asdict(self.gross),
            "ranks": [[asdict(bet) for bet in both] for both in self.ranks],
            "starts": known,
            "verdict": self.verdict,
            "has_passed": self.has_passed,
        }

    @staticmethod
    def from_json(kept: Mapping[str, Any]) -> "WorkerRecord":
        """Return what was kept.

        Raises:
            TypeError, KeyError, ValueError: it is something else.
        """
        ranks = [(_read_bet(low), _read_bet(high)) for low, high in kept["ranks"]]
        if len(ranks) != NUM_STATISTICS:
            raise ValueError("it has other statistics")
        return WorkerRecord(
            received=int(kept["received"]),
            to_check=float(kept["to_check"]),
            scores=_read_bet(kept["scores"]),
            gross=_read_bet(kept["gross"]),
            ranks=ranks,
            starts=[int(start) for start in kept["starts"]],
            verdict=str(kept["verdict"]),
            has_passed=bool(kept.get("has_passed", False)),
            is_resumed=True,
        )


def _read_bet(kept: Mapping[str, Any]) -> Bet:
    stakes = tuple(float(stake) for stake in kept["stakes"])
    return Bet(observations=int(kept["observations"]), total=float(kept["total"]), stakes=stakes)


def is_suspicious(record: WorkerRecord, limits: CheckLimits) -> bool:
    """Return whether all games of a worker are searched again, until the evidence is enough or gone."""
    return max(record.scores.capital, record.gross.capital) >= limits.suspicious


def has_been_checked(record: WorkerRecord, limits: CheckLimits) -> bool:
    """Return whether enough of a newcomer's games have been searched again, and it is not suspicious."""
    enough = record.scores.observations >= limits.passing_checks
    none_left = not record.chosen and record.received >= limits.newcomer_grant // 2  # fewer, after a restart
    return (enough or none_left) and not is_suspicious(record, limits)


def is_loser_to_move(game: Game, record: GameRecord) -> bool:
    """Return whether the player who resigned a game was to move, as it is in games of search."""
    state = game.initial_state()
    for action in record.actions.tolist():
        game.play(state, action)
    return game.current_player(state) == record.resigned - 1


@dataclass(frozen=True, kw_only=True, eq=False)
class ChosenGame:
    """A game that is to be searched again."""

    worker: str
    record: GameRecord


class Checker:
    """Checks the games of one run.

    Args:
        ledger: of the run, open for reading.
        game: what is played.
        terms: what workers are told now.
        share: of the games that is checked.
        limits: how much is checked, and when a worker is distrusted.
        secret: seed of the choice of games, which workers must not know; None: a random one.
    """

    def __init__(
        self,
        ledger: Ledger,
        game: Game,
        terms: Terms,
        *,
        share: float,
        limits: CheckLimits = CHECK_LIMITS,
        secret: int | None = None,
    ) -> None:
        self._ledger, self._game, self._share, self._limits = ledger, game, share, limits
        self._folder = make_folder(ledger.folder)
        self._random = random.Random(secret)
        self._networks = OrderedDict[tuple[int, str], Evaluator]()
        self._references = OrderedDict[int, list[Reference]]()  # by the model that games began with
        self._waiting = dict[int, list[tuple[str, Statistics]]]()  # for references, likewise
        self._cursor = 0  # the last batch that was read
        self.workers = dict[str, WorkerRecord]()
        self._terms = [terms]
        self._read_state()
        if terms in self._terms[1:]:
            self._terms.remove(terms)
        if self._terms[0] != terms:
            self._terms.insert(0, terms)
        del self._terms[4:]
        self._is_judged, self._reported_at, self._tidied_at = False, -BEHIND_SECONDS, time.monotonic()

    # The loop.

    def step(self) -> bool:
        """Read new batches, search some games again, and judge; return False if there was nothing to do.

        Raises:
            OSError, sqlite3.Error: something cannot be read or written now; the next call tries again.
        """
        read = self.read_batches()
        checked = self.check_games()
        if read or checked or not self._is_judged:
            self.judge()
            self.save()
            self._is_judged = True
            self._report_backlog()
            self._tidy()
        return bool(read or checked)

    def _report_backlog(self) -> None:
        waiting = sum(len(record.chosen) for record in self.workers.values())
        if waiting >= BEHIND_GAMES and time.monotonic() - self._reported_at >= BEHIND_SECONDS:
            append_backlog(self._folder, waiting)
            self._reported_at = time.monotonic()

    def _tidy(self) -> None:
        """Forget the games of workers that have sent none for a day: megabytes each. Their evidence stays."""
        now = time.monotonic()
        if now - self._tidied_at < BEHIND_SECONDS:
            return
        self._tidied_at = now
        for worker, record in self.workers.items():
            if record.known and now - record.read_at >= ABSENT_SECONDS:
                self.workers[worker] = replace(
                    record,
                    starts=record.known.starts,
                    known=None,
                    order=InOrder(),
                    openings=make_openings(),
                    is_resumed=True,
                )

    def read_batches(self) -> int:
        """Read the next batches of the ledger; return how many."""
        newest = self._ledger.newest_model_version()
        rows = self._ledger.batches(after=self._cursor, most=BATCHES_TOGETHER)
        for row in rows:
            self._read_batch(row, newest)
            self._cursor = row.sequence
        return len(rows)

    def _read_batch(self, row: BatchRow, newest: int) -> None:
        if row.worker in SEED_ACCOUNTS.values():
            return
        record = self.workers.setdefault(row.worker, WorkerRecord())
        record.read_at = time.monotonic()
        known = self._known_games(row.worker, record)
        if row.first_game is not None:
            known.note_batch(row.first_game, row.games)
        if record.verdict:
            return
        crowd = is_crowd_worker(row.worker)
        if row.state == QUARANTINED:
            if crowd:
                self._observe(record, 1.0)
            return
        batch = load_if_intact(self._ledger.folder, row, log_event=log.warning)
        if batch is None:
            return
        placed = known.place_games(
            batch.seeds.tolist(),
            run_seeds=[terms.seed for terms in self._terms],
            worker=row.worker,
            first_game=batch.first_game,
            games=batch.num_games,
        )
        self._rank_batch(row.worker, record, batch, placed)
        if crowd:
            self._choose_games(record, row, batch, placed, newest)

    def _known_games(self, worker: str, record: WorkerRecord) -> KnownGames:
        if record.known is None:
            record.known = KnownGames(starts=list(record.starts))
            earlier = self._ledger.last_batches(worker, WINDOW, up_to=self._cursor) if is_crowd_worker(worker) else []
            for row in earlier:
                assert row.first_game is not None
                record.known.note_batch(row.first_game, row.games)
                batch = load_if_intact(self._ledger.folder, row, log_event=log.warning)
                for seed in batch.seeds.tolist() if batch else ():
                    record.known.seen[seed] = row.first_game
        return record.known

    def _choose_games(
        self,
        record: WorkerRecord,
        row: BatchRow,
        batch: GameBatch,
        placed: Mapping[int, tuple[int, int]],
        newest: int,
    ) -> None:
        """Choose games of a batch for a check, and count those against the worker that cannot be true."""
        good, seen = list[int](), set[int]()
        for index, seed in enumerate(batch.seeds.tolist()):
            first, last = int(batch.first_model[index]), int(batch.last_model[index])
            possible = 1 <= first <= last <= newest and seed in placed and seed not in seen
            seen.add(seed)
            if possible and (not batch.resigned[index] or is_loser_to_move(self._game, batch.game_record(index))):
                good.append(index)
            else:  # of another run, twice, by models that do not exist, or resigned by who was not to move
                self._observe(record, 1.0)
        before = self._limits.games_to_check(record.received, self._share)
        record.received += batch.num_games
        record.to_check += self._limits.games_to_check(record.received, self._share) - before
        self._random.shuffle(good)
        due, room = int(record.to_check), MOST_CHOSEN - len(record.chosen)
        count = min(len(good), due, room)
        record.to_check -= due if count == room else count
        record.chosen += [(row, index) for index in good[:count]]
        record.unchecked = [*record.unchecked, (row, good[count:])][-KEPT_BATCHES:]

    # Searching again.

    def check_games(self) -> int:
        """Search the games again whose turn it is; return how many."""
        games = self._take_chosen()
        if not games:
            return 0
        versions = [
            row.version for row in self._ledger.models() if model_path(self._ledger.folder, row.version).is_file()
        ]
        for chosen, score in zip(games, self.score_games(games, versions), strict=True):
            if score is not None:
                self._observe(self.workers[chosen.worker], score)
        return len(games)

    def _take_chosen(self) -> list[ChosenGame]:
        """Return the next games, those of the least checked workers first."""
        for record in self.workers.values():
            if not record.chosen and not record.verdict and is_suspicious(record, self._limits):
                self._choose_more(record)
        waiting = [record for record in self.workers.values() if record.chosen and not record.verdict]
        waiting.sort(key=lambda record: (not is_suspicious(record, self._limits), record.scores.observations))
        taken = list[ChosenGame]()
        for record in waiting:
            count = min(GAMES_OF_WORKER, GAMES_TOGETHER - len(taken))
            taken += self._load_games(record.chosen[:count])
            del record.chosen[:count]
        return taken

    def _load_games(self, chosen: Sequence[tuple[BatchRow, int]]) -> Iterator[ChosenGame]:
        """Yield these games, as far as their batches are intact."""
        for row, games in itertools.groupby(chosen, key=lambda each: each[0]):
            if batch := load_if_intact(self._ledger.folder, row, log_event=log.warning):
                yield from (ChosenGame(worker=row.worker, record=batch.game_record(index)) for _, index in games)

    def _choose_more(self, record: WorkerRecord) -> None:
        """Choose more games of a suspicious worker's last batches."""
        while record.unchecked and not record.chosen:
            row, indices = record.unchecked[-1]
            record.chosen = [(row, index) for index in indices[:GAMES_OF_WORKER]]
            del indices[:GAMES_OF_WORKER]
            if not indices:
                record.unchecked.pop()

    def score_games(self, games: Sequence[ChosenGame], versions: Sequence[int]) -> list[float | None]:
        """Return how far these games are from their searches; None where the models' files are lost or damaged.

        A game that differs is searched again in other number types, and as the run's earlier settings say.

        Args:
            games: that are searched.
            versions: of the models whose files are here, ascending.
        """
        needed = [choose_models(chosen.record, versions) for chosen in games]
        scores: list[float | None] = [
            1.0 if models else self._score_unknown(chosen) for chosen, models in zip(games, needed, strict=True)
        ]
        for terms, number_type in self._attempts():
            left = [
                index
                for index, score in enumerate(scores)
                if needed[index] and score is not None and score > self._limits.close_score
            ]
            if not left:
                break
            found = self._search_again([(games[index], needed[index]) for index in left], terms, number_type)
            for index, differences in zip(left, found, strict=True):
                is_whole = differences.keys() >= {*needed[index]}
                scores[index] = min(scores[index] or 0.0, score_game(differences)) if is_whole else None
        return scores

    def _attempts(self) -> Iterator[tuple[Terms, str]]:
        """Yield the settings and the number types in which games are searched until they agree."""
        other = "float32" if str(fastest_dtype(pick_device("cpu"))).endswith("bfloat16") else "bfloat16"
        yield self._terms[0], "auto"
        yield self._terms[0], other
        yield from ((terms, "auto") for terms in self._terms[1:])

    def _score_unknown(self, chosen: ChosenGame) -> float | None:
        """Return the score of a game whose models are not here: thinned, or never published."""
        newest = self._ledger.newest_model_version()
        return None if newest - chosen.record.last_model < THINNED_MODELS else 1.0

    def _search_again(
        self, games: Sequence[tuple[ChosenGame, Sequence[int]]], terms: Terms, number_type: str
    ) -> list[dict[int, Differences]]:
        """Search each of the games with each of its models, all games of a model side by side; models whose files are
        damaged or gone are left out.
        """
        found: list[dict[int, Differences]] = [{} for _ in games]
        for version in sorted({version for _, models in games for version in models}):
            indices = [index for index, (_, models) in enumerate(games) if version in models]
            records = [games[index][0].record for index in indices]
            most = GAMES_TOGETHER * terms.search.leaves_per_tree
            try:
                evaluate = self._load_network(version, number_type, max_batch=most)
            except (FileNotFoundError, ValueError) as error:
                log.warning("games of model %d cannot be checked: %s", version, error)
                continue
            searched = search_games(self._game, evaluate, terms.search, records)
            for index, differences in zip(indices, searched, strict=True):
                found[index][version] = differences
        return found

    def _load_network(self, version: int, number_type: str, *, max_batch: int) -> Evaluator:
        key = (version, number_type)
        if key not in self._networks or self._networks[key].max_batch < max_batch:
            network = load_model_file(model_path(self._ledger.folder, version)).build(self._game)
            self._networks[key] = Evaluator(network, self._game, device="cpu", dtype=number_type, max_batch=max_batch)
        self._networks.move_to_end(key)
        while len(self._networks) > KEPT_NETWORKS:
            self._networks.popitem(last=False)
        return self._networks[key]

    def _observe(self, record: WorkerRecord, score: float) -> None:
        record.scores = self._limits.observe_score(record.scores, score)
        record.gross = self._limits.observe_gross(record.gross, score)

    # Comparing with other workers' games.

    def _rank_batch(
        self, worker: str, record: WorkerRecord, batch: GameBatch, placed: Mapping[int, tuple[int, int]]
    ) -> None:
        """Measure the games of a batch, and rank those whose turn has come."""
        statistics, ready = measure_games(self._game, batch), list[tuple[int, Statistics]]()
        seeds = batch.seeds.tolist()
        numbered = sorted((placed[seed], index) for index, seed in enumerate(seeds) if seed in placed)
        if record.is_resumed and numbered:  # which games came before is not known any more
            (start, number), _ = numbered[-1]
            record.order.skip_to(start, number + 1)
            record.is_resumed = False
        ends = batch.lengths.cumsum()
        for (start, number), index in numbered:
            actions = batch.actions[ends[index] - batch.lengths[index] : ends[index]]
            statistics[index, REPEATED] = count_repeated(actions, record.openings)
            ready += record.order.add(start, number, (int(batch.first_model[index]), statistics[index]))
        for model, found in ready:
            self._add_reference(model, Reference(worker=worker, trusted=not is_crowd_worker(worker), statistics=found))
            is_ranked = not is_crowd_worker(worker) or self._rank_game(worker, model, found)
            if not is_ranked and model in self._references:  # else it is too old for that
                self._waiting.setdefault(model, []).append((worker, found))

    def _add_reference(self, model: int, reference: Reference) -> None:
        kept = self._references.setdefault(model, [])
        most = TRUSTED_REFERENCES if reference.trusted else CROWD_REFERENCES
        alike = sum(other.trusted if reference.trusted else other.worker == reference.worker for other in kept)
        if alike < most:
            kept.append(reference)
            if waiting := self._waiting.pop(model, None):
                left = [(worker, found) for worker, found in waiting if not self._rank_game(worker, model, found)]
                if left:
                    self._waiting[model] = left
        if len(self._references) > KEPT_MODELS:
            oldest = min(self._references)
            del self._references[oldest]
            self._waiting.pop(oldest, None)

    def _rank_game(self, worker: str, model: int, found: Statistics) -> bool:
        """Rank a game among others that began with its model; return False while there are too few."""
        record = self.workers[worker]
        if record.verdict:
            return True
        others = self._references.get(model, [])
        compared = [other.statistics for other in others if other.trusted]
        if len(compared) < self._limits.compared_games:
            compared = [other.statistics for other in others if other.worker != worker]
        if len(compared) < self._limits.compared_games:
            return False
        for statistic in range(NUM_STATISTICS):
            values = [float(other[statistic]) for other in compared if other[statistic] == other[statistic]]
            if found[statistic] == found[statistic] and len(values) >= self._limits.compared_games:
                rank = find_rank(float(found[statistic]), values, self._random.random())
                record.ranks[statistic] = self._limits.observe_rank(record.ranks[statistic], rank)
        return True

    # Verdicts.

    def judge(self) -> None:
        """Write a verdict on each worker against which there is enough evidence; newcomers that were checked pass.

        Raises:
            OSError: the disk does not take it; the next call tries again.
        """
        for worker, record in self.workers.items():
            if record.verdict or not is_crowd_worker(worker):
                continue
            if self._limits.weigh(record.scores, record.gross, record.ranks) < self._limits.evidence:
                if not record.has_passed and has_been_checked(record, self._limits):
                    append_pass(self._folder, worker)
                    record.has_passed = True
                continue
            reason = self._limits.give_reason(record.scores, record.gross, record.ranks)
            append_verdict(self._folder, worker, reason)
            record.verdict = reason
            log.info("worker %s is distrusted after %d games: %s", worker, record.received, reason)
            self._forget(worker, record)

    def _forget(self, worker: str, record: WorkerRecord) -> None:
        """Forget the games of a liar."""
        record.chosen, record.unchecked = [], []
        for model, references in self._references.items():
            self._references[model] = [other for other in references if other.worker != worker]

    # What the next process needs.

    def save(self) -> None:
        """Keep what is known.

        Raises:
            OSError: the disk does not take it.
        """
        state = {
            "run_id": self._ledger.run_id,
            "cursor": self._cursor,
            "terms": [{"seed": terms.seed, "search": terms.search.model_dump(mode="json")} for terms in self._terms],
            "workers": {worker: record.to_json() for worker, record in self.workers.items() if is_crowd_worker(worker)},
        }
        write_atomically(self._folder / STATE, json.dumps(state).encode(), durable=False)

    def _read_state(self) -> None:
        """Continue from what an earlier process has kept, and from its verdicts; else from the run's first batch."""
        try:
            state = json.loads(read_limited(self._folder / STATE, MAX_STATE_BYTES))
            if state["run_id"] == self._ledger.run_id:
                workers = {worker: WorkerRecord.from_json(kept) for worker, kept in state["workers"].items()}
                terms = [
                    Terms(seed=int(kept["seed"]), search=SearchSettings.model_validate(kept["search"]))
                    for kept in state["terms"]
                ]
                self._cursor, self.workers, self._terms = int(state["cursor"]), workers, [*self._terms, *terms]
        except FileNotFoundError:
            pass
        except (OSError, ValueError, TypeError, KeyError) as error:
            log.warning("the checks begin anew: %s cannot be read: %s", self._folder / STATE, error)
        judged = dict(self._ledger.distrusted())
        with suppress(OSError):
            judged |= VerdictReader(self._ledger.folder).read_new()
        for worker, reason in judged.items():
            self.workers.setdefault(worker, WorkerRecord(is_resumed=True)).verdict = reason
