"""The cluster's quantitative promises, measured on real hosts with the real program.

``--log-cli-level=INFO`` shows what was measured.
"""

import logging
import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.lab.driver import ACTIVE, PAUSE_SECONDS, Driver, driven
from tests.lab.hosts import running_hosts

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

log = logging.getLogger(__name__)

PAUSES = {
    "worker1": "0.02",
    "worker2": "0.02",
    "worker3": "0.04",
}  # seconds between two steps: the third is half as fast
WEIGHTS = {"worker1": 1.0, "worker2": 2.0, "worker3": 2.0}
GAMES = 2000
WARM_UP_GAMES = 300  # until all speeds have been measured
ADDITIONS = 7
READY_SECONDS = 10.0


@contextmanager
def running_cluster(
    folder: Path, *, count: int, in_config: int, **options: Mapping[str, Mapping[str, Any]]
) -> Iterator[Driver]:
    """A run on ``in_config`` of this many hosts, all Active."""
    with running_hosts(count) as hosts, driven(folder, hosts, in_config=in_config, **options) as driver:
        driver.start()
        driver.wait_until_all_play(in_config)
        yield driver


def finished(cluster: Driver) -> dict[str, int]:
    """Return the finished games of each worker, as it last reported them."""
    return {host.name: int(cluster.heartbeat(host)["finished"]) for host in cluster.hosts}


def test_over_2000_games_shares_are_weights_times_measured_rates_within_5_per_cent(
    real_hosts: None, tmp_path: Path
) -> None:
    machines = {name: {"env": {PAUSE_SECONDS: seconds}} for name, seconds in PAUSES.items()}
    changes = {
        "self_play": {"parallel_games": 16},
        "evaluation": {"every": 0},
        "training": {"samples_per_position": 0.5, "games_per_iteration": 500},
        "distributed": {"worker_weights": WEIGHTS},
    }
    with running_cluster(tmp_path, count=3, in_config=3, machines=machines, changes=changes) as cluster:
        cluster.wait(lambda: sum(finished(cluster).values()) > WARM_UP_GAMES, "speeds to be measured")
        before = last = finished(cluster)
        wanted: dict[str, float] = defaultdict(float)
        rates = defaultdict(list)

        def enough() -> bool:
            """Record what the balancer wants of the games since the last check: weights times the rates that it has
            measured by now.
            """
            nonlocal last
            now = finished(cluster)
            for name, worker in cluster.workers().items():
                wanted[name] += worker["share"] * (sum(now.values()) - sum(last.values()))
                rates[name].append(float(cluster.heartbeat(cluster.hosts[int(name[-1]) - 1])["speed"]))
            last = now
            return sum(now.values()) - sum(before.values()) >= GAMES

        cluster.wait(enough, f"{GAMES} games", seconds=600.0)
        played = {name: last[name] - before[name] for name in before}
    claims = {name: WEIGHTS[name] * statistics.mean(rates[name]) for name in played}
    for name, games in played.items():
        share, total = games / sum(played.values()), sum(claims.values())
        log.info(
            "%s: weight %g, %.2f games/s: %d of %d games, %.2f %%; weights x rates now: %.2f %%, over all: %.2f %%",
            *(name, WEIGHTS[name], statistics.mean(rates[name]), games, sum(played.values()), 100 * share),
            *(100 * wanted[name] / sum(wanted.values()), 100 * claims[name] / total),
        )
    for name, games in played.items():
        assert games == pytest.approx(wanted[name], rel=0.05), name
        assert games / sum(played.values()) == pytest.approx(claims[name] / sum(claims.values()), rel=0.05), name


def test_a_worker_added_during_a_run_is_active_within_ten_seconds_every_time(real_hosts: None, tmp_path: Path) -> None:
    with running_cluster(tmp_path, count=3, in_config=2) as cluster:
        new = cluster.hosts[2]
        took = []
        for _ in range(ADDITIONS):
            cluster.add(new)
            took.append(cluster.wait(lambda: cluster.states().get(new.name) == ACTIVE, f"{new.name} to be Active"))
            cluster.remove(new)
    log.info(
        "Active after %s s: median %.1f, worst %.1f",
        [round(each, 1) for each in took],
        statistics.median(took),
        max(took),
    )
    assert max(took) < READY_SECONDS
