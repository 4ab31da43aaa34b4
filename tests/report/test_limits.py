"""What limits a run, and what it costs."""

from dataclasses import replace

import pytest

from keima.base.reports.run_reports import ProgressReport
from keima.base.reports.worker_status import ClusterNetwork, WorkerState
from keima.report.cost import compute_cost, core_hours_by_worker, cumulative_core_hours
from keima.report.limits import Limit, compute_time_shares, find_limits
from tests.example_reports import progress, worker

Rows = list[dict[str, float]]


def rows(*, learning: float, evaluating: float = 0.0, count: int = 10) -> Rows:
    """Return iterations of 100 s, of which the learner and evaluations take so many."""
    return [
        {"run/seconds": 100.0 * number, "learner/seconds": learning, "evaluation/seconds": evaluating}
        for number in range(1, count + 1)
    ]


def clustered(*, disk_free: int = 10**12, **changes: object) -> ProgressReport:
    workers = (replace(worker(0), name="a", state=WorkerState.ACTIVE, disk_free=disk_free),)
    network = ClusterNetwork(model_version=12, sync_seconds=3.0, network_mb_per_minute=1.0)
    return replace(progress(5, workers=workers), network=replace(network, **changes))  # type: ignore[arg-type]


def of(who: str, found: list[Limit]) -> Limit:
    (limit,) = [each for each in found if each.who == who]
    return limit


def test_the_shares_of_the_last_iterations_add_up() -> None:
    earlier: Rows = [{"run/seconds": 0.0}, {"run/seconds": 5000.0, "learner/seconds": 5000.0}]
    late = [{**row, "run/seconds": row["run/seconds"] + 5000} for row in rows(learning=20.0, evaluating=30.0)]
    shares = compute_time_shares([*earlier, *late])
    assert shares is not None
    assert (shares.games, shares.learning, shares.evaluating) == pytest.approx((0.5, 0.2, 0.3))
    assert shares.seconds == pytest.approx(100.0)


def test_a_measurement_beside_playing_takes_only_the_time_that_was_waited_for_it() -> None:
    beside = [{**row, "waits/learning": 30.0, "waits/evaluation": 0.0} for row in rows(learning=25.0, evaluating=60.0)]
    shares = compute_time_shares(beside)
    assert shares is not None
    assert (shares.games, shares.learning, shares.evaluating) == pytest.approx((0.7, 0.3, 0.0))


def test_there_are_no_shares_before_two_iterations_or_without_times() -> None:
    assert compute_time_shares([]) is None
    assert compute_time_shares(rows(learning=1.0, count=1)) is None
    assert compute_time_shares([{"iteration": 1.0}, {"iteration": 2.0}]) is None
    assert compute_time_shares([{"run/seconds": 3.0}, {"run/seconds": 3.0}]) is None


@pytest.mark.parametrize(
    ("learning", "evaluating", "who", "said"),
    [(10.0, 5.0, "workers", "85.0 %"), (70.0, 5.0, "learner", "70.0 %"), (20.0, 60.0, "evaluation", "60.0 %")],
)
def test_where_most_of_the_time_goes_is_named_with_a_remedy(
    learning: float, evaluating: float, who: str, said: str
) -> None:
    found = find_limits(
        progress(5, workers=(worker(0),)), rows(learning=learning, evaluating=evaluating), disk_free=10**12
    )
    assert [each.who for each in found] == [who]
    assert said in found[0].what and found[0].remedy


def test_workers_that_wait_for_the_learner_are_counted() -> None:
    workers = (worker(0, activity="waiting"), worker(1, activity="waiting"), worker(2))
    found = find_limits(progress(5, workers=workers), rows(learning=90.0), disk_free=None)
    assert "2 of 3 workers wait for it" in of("learner", found).what


def test_empty_places_for_games_are_named_unless_they_are_meant_to_be() -> None:
    def is_named(learning: float, idle: float, *weights: float, shares: tuple[float, ...] = ()) -> bool:
        workers = tuple(replace(worker(number), weight=weight) for number, weight in enumerate(weights))
        now = progress(5, workers=workers)
        if shares:
            far = [replace(each, share=share) for each, share in zip(workers, shares, strict=True)]
            now = replace(clustered(), workers=tuple(far))
        times = [{**row, "waits/learner": idle} for row in rows(learning=learning)]
        found = find_limits(now, times, disk_free=None)
        return any("69.0 % of the workers' places" in each.what for each in found)

    assert is_named(30.0, 69.0, 1.0, 1.0)
    assert not is_named(90.0, 69.0, 1.0, 1.0), "they wait for a learner that is behind"
    assert not is_named(30.0, 69.0, 1.0, 0.5), "a machine is to be spared"
    assert is_named(30.0, 69.0, 1.0, 1.0, shares=(0.4, 0.6))
    assert not is_named(30.0, 69.0, 1.0, 1.0, shares=(0.5, 0.5)), "without load balancing the slowest sets the pace"


def test_what_stands_still_comes_first() -> None:
    now = replace(progress(5, workers=(worker(0, activity="error", error="it died"), worker(1))))
    found = find_limits(now, rows(learning=10.0), disk_free=5 * 10**8)
    assert [each.who for each in found] == ["disk", "workers", "workers"]
    assert "only 500 MB" in found[0].what and "1 of 2 workers do not play" in found[1].what
    full = find_limits(replace(now, phase="waiting for space on the disk"), [], disk_free=0)
    assert "the run waits" in of("disk", full).what
    nobody = find_limits(progress(5, workers=(worker(0, activity="error"),)), [], disk_free=None)
    assert of("workers", nobody).what == "no worker is playing"


def test_a_slow_network_and_full_disks_of_workers_are_named() -> None:
    assert not [each for each in find_limits(clustered(), rows(learning=1.0), disk_free=None) if each.who == "network"]
    slow = find_limits(clustered(sync_seconds=250.0), rows(learning=1.0), disk_free=None)
    assert "longer than an iteration (1 min 40 s)" in of("network", slow).what
    behind = replace(clustered(), workers=(replace(worker(0), waiting=5000),))
    assert "5,000 finished games wait" in of("network", find_limits(behind, [], disk_free=None)).what
    full = find_limits(clustered(disk_free=10**8), [], disk_free=None)
    assert "where these workers play: a" in of("disk", full).what


def test_core_hours_are_those_of_all_worker_processes() -> None:
    found = cumulative_core_hours(
        [
            {"run/seconds": 3600.0, "workers/processes": 4.0, "workers/playing": 1.0},
            {"run/seconds": 7200.0, "workers/playing": 2.0},  # of an earlier version
            {"run/seconds": 9000.0},
        ]
    )
    assert found == pytest.approx([4.0, 6.0, 6.0])
    assert cumulative_core_hours([]) == []


def test_in_a_cluster_a_worker_that_returns_does_not_count_again() -> None:
    rows = [
        {"run/core_hours": 4.0, "workers/core_hours": 4.0},
        {"run/core_hours": 5.0, "workers/core_hours": 2.0},  # one is away
        {"run/core_hours": 6.0, "workers/core_hours": 6.0},
    ]
    assert cumulative_core_hours(rows) == [4.0, 5.0, 6.0]
    assert cumulative_core_hours([*rows, {"workers/core_hours": 7.0}]) == [4.0, 5.0, 6.0, 7.0], "alone again"


def test_measured_processor_time_counts_and_stays_counted_when_a_worker_leaves() -> None:
    used = (1.0, 3.0, 2.0, 2.5)
    rows = [{"run/seconds": 100.0, "workers/processes": 9.0, "workers/core_hours": hours} for hours in used]
    assert cumulative_core_hours(rows) == pytest.approx([1.0, 3.0, 3.0, 3.5])


def test_a_worker_whose_folder_was_deleted_keeps_the_hours_it_had_used() -> None:
    assert core_hours_by_worker([{"a": 1.0, "b": 0.5}, {"a": 2.0}, {"a": 0.25, "b": 0.5}]) == {"a": 2.25, "b": 0.5}


def test_the_cost_of_elo_is_told_for_the_whole_run_and_lately() -> None:
    elos = (None, 100.0, 200.0, None, 300.0, 350.0)
    found = [
        {"run/seconds": 3600.0 * number, "workers/processes": 2.0} | ({} if elo is None else {"evaluation/elo": elo})
        for number, elo in enumerate(elos, 1)
    ]
    cost = compute_cost(found)
    assert cost.core_hours == pytest.approx(12.0)
    assert cost.per_100_elo == pytest.approx(12 / 3.5)
    assert cost.recent_per_100_elo == pytest.approx(2 / 0.5)
    for without in (found[:1], [{**found[1], "evaluation/elo": -5.0}], []):
        assert (compute_cost(without).per_100_elo, compute_cost(without).recent_per_100_elo) == (None, None)
