"""What limits a run now, and what to do about it."""

from collections.abc import Sequence
from dataclasses import dataclass

from keima.base.reports.formats import format_count, format_duration, format_percent
from keima.base.reports.run_reports import ProgressReport
from keima.base.reports.worker_status import ClusterNetwork, WorkerStatus
from keima.report.metrics import MetricValues

RECENT = 8  # iterations over which shares of the time are averaged
LEAST_DISK = 10**9  # bytes
DISK_PHASE = "waiting for space on the disk"  # of the Coach
NO_LONGER_PLAYS = ("error", "ended")
MANY_WAIT = 0.5  # of the workers
MANY_EMPTY = 0.2  # of all places for games


@dataclass(frozen=True, kw_only=True)
class TimeShares:
    """How the main node spent the last iterations: the first three add up to 1."""

    games: float  # waiting for games
    learning: float
    evaluating: float
    idle: float  # of the workers' time, not of the main node's: places for games were empty
    seconds: float  # of an iteration, on average


@dataclass(frozen=True, kw_only=True)
class Limit:
    """Something that limits the run."""

    who: str  # workers, learner, evaluation, disk, network
    what: str
    remedy: str


def compute_time_shares(rows: Sequence[MetricValues]) -> TimeShares | None:
    """Return how the time of the last iterations was spent; None before there are two.

    Args:
        rows: the iterations' metrics, as metrics.jsonl has them.
    """
    recent = [row for row in rows[-RECENT - 1 :] if "run/seconds" in row]
    if len(recent) < 2:
        return None
    seconds = recent[-1]["run/seconds"] - recent[0]["run/seconds"]
    if seconds <= 0:
        return None
    learning = sum(row.get("waits/learning", row.get("learner/seconds", 0.0)) for row in recent[1:]) / seconds
    evaluating = sum(row.get("waits/evaluation", row.get("evaluation/seconds", 0.0)) for row in recent[1:]) / seconds
    idle = sum(row.get("waits/learner", 0.0) for row in recent[1:]) / seconds
    busy = max(1.0, learning + evaluating)
    learning, evaluating = learning / busy, evaluating / busy
    return TimeShares(
        games=1 - learning - evaluating,
        learning=learning,
        evaluating=evaluating,
        idle=idle,
        seconds=seconds / (len(recent) - 1),
    )


def find_limits(now: ProgressReport, rows: Sequence[MetricValues], *, disk_free: int | None) -> list[Limit]:
    """Return what limits a running run: stalled parts first, then where the time goes.

    Args:
        now: what the Coach last reported.
        rows: the iterations' metrics.
        disk_free: bytes on the main node's disk; None: unknown.
    """
    shares = compute_time_shares(rows)
    found = [*_disk_limits(now, disk_free), *_lost_worker_limits(now.workers)]
    if now.network:
        found += [*_worker_disk_limits(now.workers), *_network_limits(now, now.network, shares)]
    if shares:
        found += [*_empty_place_limits(now, shares), _largest_time_share(now, shares)]
    return found


def _disk_limits(now: ProgressReport, disk_free: int | None) -> list[Limit]:
    remedy = "free space on the main node's disk; the run then continues by itself"
    if now.phase == DISK_PHASE:
        return [Limit(who="disk", what="the run waits, because the main node's disk is full", remedy=remedy)]
    if disk_free is not None and disk_free < LEAST_DISK:
        what = f"only {format_count(disk_free / 1e6)} MB are free on the main node's disk"
        return [Limit(who="disk", what=what, remedy="free space there, before the run has to wait")]
    return []


def _worker_disk_limits(workers: Sequence[WorkerStatus]) -> list[Limit]:
    full = [each.name for each in workers if each.disk_free is not None and each.disk_free < LEAST_DISK]
    if not full:
        return []
    what = f"less than {format_count(LEAST_DISK / 1e6)} MB are free where these workers play: {', '.join(full)}"
    return [Limit(who="disk", what=what, remedy="free space there; finished games wait meanwhile")]


def _lost_worker_limits(workers: Sequence[WorkerStatus]) -> list[Limit]:
    lost = [worker for worker in workers if worker.activity in NO_LONGER_PLAYS]
    if not lost:
        return []
    which = (
        "no worker is playing" if len(lost) == len(workers) else f"{len(lost)} of {len(workers)} workers do not play"
    )
    return [Limit(who="workers", what=which, remedy="their cards below have the reasons and the remedies")]


def _network_limits(now: ProgressReport, network: ClusterNetwork, shares: TimeShares | None) -> list[Limit]:
    waiting = sum(worker.waiting for worker in now.workers)
    found = []
    if waiting > now.games_wanted > 0:
        what = f"{waiting:,} finished games wait to be fetched, more than an iteration has"
        remedy = "check the network between the main node and the workers, and the main node's load"
        found.append(Limit(who="network", what=what, remedy=remedy))
    if shares and network.sync_seconds is not None and network.sync_seconds > shares.seconds:
        took = f"a new model takes {format_duration(network.sync_seconds)} to reach all workers"
        what = f"{took}, longer than an iteration ({format_duration(shares.seconds)})"
        remedy = "raise training.games_per_iteration, which publishes fewer models, or lower distributed.sync_interval"
        found.append(Limit(who="network", what=what, remedy=remedy))
    return found


def _empty_place_limits(now: ProgressReport, shares: TimeShares) -> list[Limit]:
    """Return that workers play fewer games at once than they could while the learner waits for games.

    Meant to be idle are workers with different weights or, without load balancing, with equal shares; and all of them
    while a synchronous run learns and evaluates.
    """
    too_idle = shares.idle - shares.learning - shares.evaluating
    has_weights = len({worker.weight for worker in now.workers}) > 1
    has_equal_shares = len(now.workers) > 1 and len({worker.share for worker in now.workers}) == 1
    if too_idle < MANY_EMPTY or has_weights or (now.network and has_equal_shares):
        return []
    what = f"{format_percent(shares.idle)} of the workers' places for games are empty, and the learner waits for games"
    remedy = (
        "raise self_play.games_per_worker, or training.games_per_iteration in synchronous mode, to a multiple of the "
        "parallel games"
    )
    return [Limit(who="workers", what=what, remedy=remedy)]


def _largest_time_share(now: ProgressReport, shares: TimeShares) -> Limit:
    """Return where most of the main node's time goes."""
    idle = sum(worker.activity == "waiting" for worker in now.workers)
    if shares.learning >= max(shares.games, shares.evaluating):
        meanwhile = f", and {idle} of {len(now.workers)} workers wait for it" if _are_many_idle(idle, now) else ""
        return Limit(
            who="learner",
            what=f"learning takes {format_percent(shares.learning)} of the time{meanwhile}",
            remedy="lower training.samples_per_position, train on a GPU (training.device), or make the network smaller",
        )
    if shares.evaluating >= shares.games:
        return Limit(
            who="evaluation",
            what=f"measuring strength takes {format_percent(shares.evaluating)} of the time",
            remedy="raise evaluation.every, or lower evaluation.rating_games, score_games or num_simulations",
        )
    faster = "add workers" if now.network else "use more machines (--distributed)"
    return Limit(
        who="workers",
        what=f"the learner waits for games {format_percent(shares.games)} of the time",
        remedy=f"{faster}, lower search.num_simulations or full_search_probability, or learn more from each position "
        "(training.samples_per_position) as long as it does not overfit",
    )


def _are_many_idle(idle: int, now: ProgressReport) -> bool:
    return idle > 0 and idle >= MANY_WAIT * len(now.workers)
