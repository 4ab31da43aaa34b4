"""Who plays how many games: each worker's share is its weight times its measured speed.

Pure: ``balance`` takes what is known of the Active workers and the time, and says what each is granted now.

What is promised. A worker of weight 1 beside one of weight 2 plays half as much at equal speed. As no worker can play
more than it can, the lighter one has to idle half of the time, on purpose: so it leaves a machine to its owner, or the
learning to games of a better-trusted one. Workers of the highest weight are *free*: they never idle, being granted
games ahead that last all of them equally long. The others are *paced*: what they may have finished grows with what the
free ones finish, exactly by the shares, of which the fractions are carried on, and is granted in pieces of a few
seconds' play; so over some hundred games each, shares are as promised within a few per cent, whatever the speeds do
meanwhile. With equal weights nobody is paced. Without load balancing all shares are equal, so that the slowest worker
is the free one and paces the rest.

Speeds are those at full load, as the workers measure them, so that idling does not make a worker look slow. One that
has not been measured yet is taken to be as fast as the others are on average and is granted what keeps all its slots
taken for a while, since only then it can be measured. One whose games would take it several times as long as the others
theirs has those taken back that it has not begun.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

HALF_LIFE = 10.0  # seconds after which an earlier measurement counts half
PIECE_SECONDS = 4.0  # of play, that a paced worker is granted at a time
TOO_LONG = 3.0  # times what the others take makes a straggler ...
SURPLUS = 2.0  # ... if it has so many times the games that it would be granted now
ENOUGH, MIN_GRANT = (
    1 / 2,
    1 / 16,
)  # of what a worker may have ahead: while it has more than the one, less than the other is granted later
START = 4  # games for every slot that a worker is granted before it has been measured
FREE = 0.999  # a worker that plays for at least this part of the time is not paced


@dataclass(frozen=True, kw_only=True)
class WorkerLoad:
    """How an Active worker stands, from its account and its last heartbeat."""

    finished: int  # games in all; of a worker that has not said anything yet, those that are in the books
    granted: int  # likewise
    speed: float = 0.0  # games a second at full load; 0: not measured yet
    parallel_games: int = 0  # that it plays at once; 0: not known yet
    weight: float = 1.0


@dataclass(frozen=True, kw_only=True)
class WorkerHistory:
    """What is remembered of a worker from one look to the next."""

    finished: int  # the most that it has ever said
    speed: float = 0.0  # smoothed
    owed: float = (
        0.0  # games that a paced worker has still to finish for its share, never many; negative: it is ahead of it
    )
    in_hand: float = 0.0  # granted and not finished, smoothed: by so many games its answer to a grant lags


@dataclass(frozen=True)
class Balance:
    """What is remembered of all workers."""

    parts: Mapping[str, WorkerHistory] = field(default_factory=dict)
    time: float = 0.0  # of the last look, by a clock that never goes back


@dataclass(frozen=True, kw_only=True)
class Decision:
    """What is decided about a worker, and why."""

    grant: int  # games more
    lower: int | None  # the number of games in all beyond which it is to begin none, if that is below its grant
    share: float  # of all games, 0 to 1
    speed: float  # games a second at full load, measured or supposed
    reason: str


def balance(
    before: Balance,
    workers: Mapping[str, WorkerLoad],
    now: float,
    *,
    ahead: int,
    batch_games: int,
    load_balancing: bool = True,
) -> tuple[Balance, dict[str, Decision]]:
    """One look at the Active ``workers``.

    Args:
        before: what the last look returned; ``Balance()`` at first.
        workers: by name. One that is left out, being Offline say, is forgotten but for its speed.
        now: seconds that never go back.
        ahead: games a worker, on average, that are granted and not finished; 0: nobody is granted any now.
        batch_games: in a transfer, of which everybody has at least one ahead.
        load_balancing: False: equal shares.
    """
    parts = _measured(before, workers, now)
    measured = [name for name in workers if parts[name].speed > 0]
    mean = sum(parts[name].speed for name in measured) / len(measured) if measured else 1.0
    speeds = {name: parts[name].speed or mean for name in workers}
    claims = {name: worker.weight * speeds[name] if load_balancing else 1.0 for name, worker in workers.items()}
    lookahead = _lookahead(workers, speeds, claims, set(measured), ahead=ahead, batch_games=batch_games)
    stragglers = _stragglers(workers, speeds, lookahead, ahead=ahead) & set(measured)
    duty = _duty(claims, speeds, [name for name in measured if name not in stragglers])
    free = {name for name in measured if name not in stragglers and duty[name] >= FREE}
    paced = {name for name in measured if free and duty[name] < FREE}
    after: dict[str, WorkerHistory] = {name: part for name, part in parts.items() if name not in workers}
    pace = sum(_progress(parts[name], workers[name]) for name in free) / max(sum(claims[name] for name in free), 1e-12)
    decisions = {}
    total = sum(claims.values())
    for name, worker in workers.items():
        was_measured = name in before.parts and before.parts[name].speed > 0
        owed = parts[name].owed
        if name in paced:
            owed = owed if was_measured else owed * (1 - duty[name])  # until now it has played without a pause
            owed = min(owed + claims[name] * pace - _progress(parts[name], worker), float(lookahead[name]))
        elif name not in measured:
            owed -= _progress(parts[name], worker)
        elif load_balancing or len(free) != 1:
            owed = 0.0
        after[name] = _noted(parts[name], worker, owed)
        left = worker.granted - worker.finished
        grant = lookahead[name] - left
        if name in paced:
            piece = min(max(PIECE_SECONDS * speeds[name] * duty[name], 1.0), batch_games)
            due = owed + after[name].in_hand - left + piece / 2
            grant = min(grant, math.floor(due) if due >= piece else 0)
        elif grant < MIN_GRANT * lookahead[name] and left > ENOUGH * lookahead[name]:
            grant = 0  # each grant is a file on its way to a worker: not one a game
        decisions[name] = Decision(
            grant=max(0, grant) if ahead > 0 and name not in stragglers else 0,
            lower=worker.finished + lookahead[name] if name in stragglers else None,
            share=claims[name] / total,
            speed=speeds[name],
            reason=_reason(
                worker, speeds[name], duty[name], name in measured, name in paced, name in stragglers, load_balancing
            ),
        )
    return Balance(after, now), decisions


def split(total: int, claims: Mapping[str, float]) -> dict[str, int]:
    """``total`` shared out in proportion to ``claims``, in whole numbers that add up to it, each less than 1 from its
    exact share.

    What rounding down leaves goes to the largest remainders; of equal ones, to the first by name.
    """
    whole = sum(claims.values())
    exact = {name: total * claim / whole for name, claim in claims.items()}
    shares = {name: math.floor(value) for name, value in exact.items()}
    by_remainder = sorted(claims, key=lambda name: (shares[name] - exact[name], name))
    for name in by_remainder[: total - sum(shares.values())]:
        shares[name] += 1
    return shares


def _measured(before: Balance, workers: Mapping[str, WorkerLoad], now: float) -> dict[str, WorkerHistory]:
    """The parts with their speeds and what they have in hand brought up to now; those who join begin with what they
    have finished.
    """
    keep = 0.5 ** (max(now - before.time, 0.0) / HALF_LIFE)
    parts = {name: WorkerHistory(finished=-1, speed=part.speed) for name, part in before.parts.items()}
    for name, worker in workers.items():
        old = before.parts.get(name)
        left = float(worker.granted - worker.finished)
        earlier = old.speed if old else 0.0
        speed = (
            keep * earlier + (1 - keep) * worker.speed if earlier > 0 and worker.speed > 0 else worker.speed or earlier
        )
        if old is None or old.finished < 0:
            parts[name] = WorkerHistory(finished=worker.finished, speed=speed, in_hand=left)
        else:
            in_hand = keep * old.in_hand + (1 - keep) * left
            parts[name] = WorkerHistory(finished=old.finished, speed=speed, owed=old.owed, in_hand=in_hand)
    return parts


def _noted(part: WorkerHistory, worker: WorkerLoad, owed: float) -> WorkerHistory:
    return WorkerHistory(
        finished=max(part.finished, worker.finished), speed=part.speed, owed=owed, in_hand=part.in_hand
    )


def _progress(part: WorkerHistory, worker: WorkerLoad) -> int:
    """Games finished since the last look; a worker that was killed and plays lost ones again makes none with them."""
    return max(0, worker.finished - part.finished)


def _lookahead(
    workers: Mapping[str, WorkerLoad],
    speeds: Mapping[str, float],
    claims: Mapping[str, float],
    measured: set[str],
    *,
    ahead: int,
    batch_games: int,
) -> dict[str, int]:
    """How many games each may have before it: by claims, but a batch and a game for every slot unless that takes far
    too long.

    Before a worker is measured that is several games for every slot: with one for each, slots would wait for the next
    grant, and a worker whose slots wait tells no speed.
    """
    if not workers:
        return {}
    games = ahead * len(workers)
    shares = split(games, claims)
    seconds = games / sum(speeds.values())
    least = {
        name: max(batch_games, worker.parallel_games * (1 if name in measured else START))
        for name, worker in workers.items()
    }
    bearable = {name: max(1, round(TOO_LONG * seconds * speeds[name])) for name in workers}
    return {
        name: max(shares[name], min(least[name], bearable[name])) if name in measured else least[name]
        for name in workers
    }


def _stragglers(
    workers: Mapping[str, WorkerLoad], speeds: Mapping[str, float], lookahead: Mapping[str, int], *, ahead: int
) -> set[str]:
    """Those whose games would take them several times as long as all games take all, with far more than they would be
    granted now.
    """
    seconds = ahead * len(workers) / sum(speeds.values()) if workers else 0.0
    left = {name: worker.granted - worker.finished for name, worker in workers.items()}
    return {
        name
        for name in workers
        if seconds > 0 and left[name] > TOO_LONG * seconds * speeds[name] and left[name] > SURPLUS * lookahead[name]
    }


def _duty(claims: Mapping[str, float], speeds: Mapping[str, float], among: list[str]) -> dict[str, float]:
    """Which part of the time each plays when those that claim most for their speed, ``among`` these, play all the time."""
    pull = {name: claims[name] / speeds[name] for name in claims}
    most = max((pull[name] for name in among), default=0.0)
    return {name: min(1.0, pull[name] / most) if most > 0 else 1.0 for name in claims}


def _reason(
    worker: WorkerLoad, speed: float, duty: float, measured: bool, paced: bool, straggler: bool, load_balancing: bool
) -> str:
    """Why the share is what it is, for the log and the status."""
    text = f"weight {worker.weight:g} x {speed:.3g} games/s" if load_balancing else "equal shares"
    if not measured:
        return f"{text}, not measured yet"
    if straggler:
        return f"{text}; it takes several times as long as the others: what it has not begun is taken back"
    return f"{text}; idles {1 - duty:.0%} of the time to keep to its share" if paced else text
