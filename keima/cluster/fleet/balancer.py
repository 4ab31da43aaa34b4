"""The load balancer: each worker's share of the games is its weight times its measured speed.

``balance`` is a pure function. It takes what is known of the Active workers and the time, and decides how many games
each is granted now.

Guarantee: at equal speed, a worker of weight 1 plays half as many games as a worker of weight 2. No worker can play
faster than it does, so the lighter one idles half of the time, on purpose. This spares a machine that others use.

Workers with the highest weight are *free*: they never idle, because they are granted games ahead that last all of them
equally long. The others are *paced*: the games that they may finish follow those that the free ones finish, exactly by
the shares, with fractions carried over. They are granted in pieces of a few seconds of play. Over some hundred games
each, the shares are right within a few per cent, whatever the speeds do meanwhile. With equal weights no worker is
paced. Without load balancing all shares are equal, so the slowest worker is free and paces the others.

Speeds are those at full load, as the workers measure them, so idling does not make a worker look slow. A worker that
has not been measured is assumed to be as fast as the average, and gets enough games to fill all its parallel games for
a while, because only then can it be measured. A worker that would need several times as long for its games as the
others has the games withdrawn that it has not begun.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

HALF_LIFE = 10.0  # seconds after which an earlier measurement counts half
PIECE_SECONDS = 4.0  # of play, that a paced worker is granted at a time
STRAGGLER_FACTOR = 3.0  # a straggler takes this many times as long as the others ...
SURPLUS = 2.0  # ... and has this many times the games that it would be granted now
MIN_GRANT = 1 / 16  # of what a worker may have ahead; it gets no smaller grant
FORGET_SECONDS = 86_400.0  # after which the speed of a worker that stays away is not remembered
MOST_RESERVE = 16  # times the mean number of games ahead: more no worker gets for the speed alone that it claims
START_GAMES = 4  # games for each parallel game of a worker before it has been measured
FREE = 0.999  # a worker that plays at least this part of the time is not paced


@dataclass(frozen=True, kw_only=True)
class WorkerLoad:
    """The load of an Active worker, from its account and its last heartbeat."""

    finished: int  # in all; of a worker without a heartbeat, those of its account
    granted: int  # in all
    speed: float = 0.0  # games per second at full load; 0: not measured yet
    parallel_games: int = 0  # 0: unknown
    weight: float = 1.0
    answer_seconds: float = 0.0  # until it has the answer to what it says; its games ahead last so long at least

    @property
    def not_begun(self) -> int:
        """The granted games that it has probably not begun: but for those in progress."""
        return max(0, self.granted - self.finished - self.parallel_games)


@dataclass(frozen=True, kw_only=True)
class WorkerHistory:
    """The history of a worker between two calls."""

    finished: int  # the maximum that the worker has reported
    speed: float = 0.0  # smoothed
    owed: float = 0.0  # games that a paced worker must still finish for its share; negative: it is ahead
    in_hand: float = 0.0  # granted and not finished, smoothed: its answer to a grant lags by this many games
    seen: float = 0.0  # when it was Active last, by a monotonic clock


@dataclass(frozen=True)
class Balance:
    """The histories of all workers."""

    histories: Mapping[str, WorkerHistory] = field(default_factory=dict)
    time: float = 0.0  # of the last call, by a monotonic clock


@dataclass(frozen=True, kw_only=True)
class Decision:
    """The decision about a worker, and the reason."""

    grant: int  # additional games
    lower: int | None  # if not None, the worker must begin no games above this total, which is below its grant
    share: float  # of all games, 0 to 1
    speed: float  # games per second at full load, measured or assumed
    reason: str


def balance_games(
    before: Balance,
    workers: Mapping[str, WorkerLoad],
    now: float,
    *,
    ahead: int,
    batch_games: int,
    load_balancing: bool = True,
) -> tuple[Balance, dict[str, Decision]]:
    """Decide once about the Active ``workers``.

    Args:
        before: the result of the last call; ``Balance()`` at first.
        workers: by name. Of a worker that is left out, such as one that is Offline, only the speed is remembered, for a
            day.
        now: seconds by a monotonic clock.
        ahead: games per worker, on average, that are granted and not begun; 0: grant none now.
        batch_games: games in a transfer; every worker has at least one batch ahead.
        load_balancing: False: equal shares.
    """
    parts = _measured_histories(before, workers, now)
    measured = [name for name in workers if parts[name].speed > 0]
    mean = sum(parts[name].speed for name in measured) / len(measured) if measured else 1.0
    speeds = {name: parts[name].speed or mean for name in workers}
    claims = {name: worker.weight * speeds[name] if load_balancing else 1.0 for name, worker in workers.items()}
    games_ahead = _compute_games_ahead(workers, speeds, claims, set(measured), ahead=ahead, batch_games=batch_games)
    stragglers = _find_stragglers(workers, speeds, games_ahead, ahead=ahead) & set(measured)
    duty = _fair_share(claims, speeds, [name for name in measured if name not in stragglers])
    free = {name for name in measured if name not in stragglers and duty[name] >= FREE}
    paced = {name for name in measured if free and duty[name] < FREE}
    after = dict(parts)
    pace = sum(_newly_finished_games(parts[name], workers[name]) for name in free) / max(
        sum(claims[name] for name in free), 1e-12
    )
    decisions = {}
    total = sum(claims.values())
    for name, worker in workers.items():
        was_measured = name in before.histories and before.histories[name].speed > 0
        owed = parts[name].owed
        if name in paced:
            owed = owed if was_measured else owed * (1 - duty[name])  # until now it has played without a pause
            owed = min(
                owed + claims[name] * pace - _newly_finished_games(parts[name], worker), float(games_ahead[name])
            )
        elif name not in measured:
            owed -= _newly_finished_games(parts[name], worker)
        elif load_balancing or len(free) != 1:
            owed = 0.0
        after[name] = _updated_history(parts[name], worker, owed)
        left = worker.granted - worker.finished
        grant = games_ahead[name] - (worker.not_begun if name in measured else left)
        if name in paced:
            piece = min(max(PIECE_SECONDS * speeds[name] * duty[name], 1.0), batch_games)
            due = owed + after[name].in_hand - left + piece / 2
            grant = min(grant, math.floor(due) if due >= piece else 0)
        elif grant < MIN_GRANT * games_ahead[name]:
            grant = 0  # each grant is a file sent to a worker: do not send one per game
        decisions[name] = Decision(
            grant=max(0, grant) if ahead > 0 and name not in stragglers else 0,
            lower=worker.granted - worker.not_begun + games_ahead[name] if name in stragglers else None,
            share=claims[name] / total,
            speed=speeds[name],
            reason=_reason_text(
                worker, speeds[name], duty[name], name in measured, name in paced, name in stragglers, load_balancing
            ),
        )
    return Balance(after, now), decisions


def split_in_proportion(total: int, claims: Mapping[str, float]) -> dict[str, int]:
    """Split ``total`` in proportion to ``claims`` into whole numbers with that sum, each less than 1 from its exact
    share.

    What rounding down leaves goes to the largest remainders, and among equal ones to the first name.
    """
    whole = sum(claims.values())
    exact = {name: total * claim / whole for name, claim in claims.items()}
    shares = {name: math.floor(value) for name, value in exact.items()}
    by_remainder = sorted(claims, key=lambda name: (shares[name] - exact[name], name))
    for name in by_remainder[: total - sum(shares.values())]:
        shares[name] += 1
    return shares


def _measured_histories(before: Balance, workers: Mapping[str, WorkerLoad], now: float) -> dict[str, WorkerHistory]:
    """Return the histories with speeds and games in hand updated to now; new workers start with what they have
    finished.
    """
    keep = 0.5 ** (max(now - before.time, 0.0) / HALF_LIFE)
    parts = {
        name: WorkerHistory(finished=-1, speed=part.speed, seen=part.seen)
        for name, part in before.histories.items()
        if now - part.seen < FORGET_SECONDS
    }
    for name, worker in workers.items():
        old = before.histories.get(name)
        left = float(worker.granted - worker.finished)
        earlier = old.speed if old else 0.0
        speed = (
            keep * earlier + (1 - keep) * worker.speed if earlier > 0 and worker.speed > 0 else worker.speed or earlier
        )
        if old is None or old.finished < 0:
            parts[name] = WorkerHistory(finished=worker.finished, speed=speed, in_hand=left, seen=now)
        else:
            in_hand = keep * old.in_hand + (1 - keep) * left
            parts[name] = replace(old, speed=speed, in_hand=in_hand, seen=now)
    return parts


def _updated_history(part: WorkerHistory, worker: WorkerLoad, owed: float) -> WorkerHistory:
    return replace(part, finished=max(part.finished, worker.finished), owed=owed)


def _newly_finished_games(part: WorkerHistory, worker: WorkerLoad) -> int:
    """Return the games finished since the last call; a worker that replays lost games makes none with them."""
    return max(0, worker.finished - part.finished)


def _compute_games_ahead(
    workers: Mapping[str, WorkerLoad],
    speeds: Mapping[str, float],
    claims: Mapping[str, float],
    measured: set[str],
    *,
    ahead: int,
    batch_games: int,
) -> dict[str, int]:
    """Return how many games each worker may have ahead: by its claim, but at least what it plays until it has an
    answer, and a batch and one game for each of its parallel games, unless that takes far too long.

    An unmeasured worker gets several games for each of its parallel games. With one each, some would wait for the next
    grant, and a worker that waits cannot measure its speed.
    """
    if not workers:
        return {}
    games = ahead * len(workers)
    shares = split_in_proportion(games, claims)
    seconds = games / sum(speeds.values())
    least = {
        name: max(batch_games, worker.parallel_games * (1 if name in measured else START_GAMES))
        for name, worker in workers.items()
    }
    bearable = {name: max(1, round(STRAGGLER_FACTOR * seconds * speeds[name])) for name in workers}
    reserves = {
        name: min(MOST_RESERVE * ahead, math.ceil(worker.answer_seconds * speeds[name]))
        for name, worker in workers.items()
    }
    return {
        name: max(shares[name], reserves[name], min(least[name], bearable[name])) if name in measured else least[name]
        for name in workers
    }


def _find_stragglers(
    workers: Mapping[str, WorkerLoad], speeds: Mapping[str, float], games_ahead: Mapping[str, int], *, ahead: int
) -> set[str]:
    """Return the workers that would need several times as long as all for all games, and have far more than they would
    be granted now.
    """
    seconds = ahead * len(workers) / sum(speeds.values()) if workers else 0.0
    return {
        name
        for name, worker in workers.items()
        if seconds > 0
        and worker.not_begun > STRAGGLER_FACTOR * seconds * speeds[name]
        and worker.not_begun > SURPLUS * games_ahead[name]
    }


def _fair_share(claims: Mapping[str, float], speeds: Mapping[str, float], among: list[str]) -> dict[str, float]:
    """Return the fraction of time that each worker plays if those with the largest claim for their speed, ``among``
    these, always play.
    """
    pull = {name: claims[name] / speeds[name] for name in claims}
    most = max((pull[name] for name in among), default=0.0)
    return {name: min(1.0, pull[name] / most) if most > 0 else 1.0 for name in claims}


def _reason_text(
    worker: WorkerLoad, speed: float, duty: float, measured: bool, paced: bool, straggler: bool, load_balancing: bool
) -> str:
    """Return the reason for a share, for the log and the status."""
    text = f"weight {worker.weight:g} x {speed:.3g} games/s" if load_balancing else "equal shares"
    if not measured:
        return f"{text}, not measured yet"
    if straggler:
        return f"{text}; it takes several times as long as the others: games that it has not begun are withdrawn"
    return f"{text}; idles {1 - duty:.0%} of the time to keep to its share" if paced else text
