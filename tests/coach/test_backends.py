"""What every backend must do.

The fleet plays on machines that are folders of this one, with forked workers, in this process and in one of its own,
and on slots of a Ray cluster. The cluster's tests cover SSH and how workers are started.
"""

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from keima.base.files import write_atomically
from keima.cluster.fleet.backend import Fleet
from keima.cluster.fleet.process.client import FleetClient
from keima.cluster.local.processes import LocalProcesses
from keima.coach.backends.backend import FolderBackend, InlineBackend, SelfPlayBackend
from keima.coach.backends.pending_batch import PendingBatch
from keima.data.records import GameBatch, decode_batch
from keima.data.verify import verify_batch
from keima.worker.worker_folder import Heartbeat
from tests.cluster.conftest import no_local_stream_is_left
from tests.cluster.hosted_fleet import LOWER, PLAYS, open_client
from tests.cluster.local_fleet import ForkedWorkers, fleet_settings, open_fleet, worker_settings
from tests.cluster.ray.nodes import ON_RAY, Nodes, ray_nodes
from tests.cluster.ray.ray_fleet import RayFleet
from tests.small_run import GAME, model_bytes, small_settings

__all__ = ["no_local_stream_is_left"]

Open = Callable[..., SelfPlayBackend]
PATIENCE = 120.0  # seconds, most of them for a cold compile cache


def inline(root: Path, **changes: object) -> SelfPlayBackend:
    return InlineBackend(root, game=GAME, settings=small_settings(root, **changes), run_id="run")


def processes(root: Path, **changes: object) -> SelfPlayBackend:
    return LocalProcesses(root, count=2, game=GAME, settings=small_settings(root, **changes), run_id="run")


def fleet(root: Path, **changes: object) -> SelfPlayBackend:
    machines = [worker_settings("worker1"), worker_settings("worker2")]
    workers = ForkedWorkers(root / "hosts")
    return open_fleet(root, machines, settings=fleet_settings(root, **changes), process_manager=lambda machine: workers)


def hosted(root: Path, **changes: Any) -> SelfPlayBackend:
    machines = [worker_settings(name).model_dump() for name in ("worker1", "worker2")]
    changes["distributed"] = {"workers": machines, **changes.get("distributed", {})}
    return open_client(root, PLAYS, settings=fleet_settings(root, **changes))


def on_ray(root: Path, nodes: Nodes, **changes: Any) -> SelfPlayBackend:
    return RayFleet(root, nodes, **changes)


HOSTED = pytest.param(hosted, marks=[pytest.mark.trial, pytest.mark.slow])  # tests/cluster has it with real machines
FLEET = pytest.param(fleet, marks=[pytest.mark.trial, pytest.mark.slow])  # test_fleet.py has it
TRIALS = [pytest.param(processes, marks=pytest.mark.trial), FLEET, HOSTED]
RAY = pytest.param(on_ray, marks=ON_RAY)


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    with ray_nodes(tmp_path_factory.mktemp("nodes"), one=1, two=1) as made:
        yield made


@pytest.fixture(params=[inline, *TRIALS, RAY])
def open_backend(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Open]:
    opened: list[SelfPlayBackend] = []

    def open_in_folder(**changes: object) -> SelfPlayBackend:
        given = [request.getfixturevalue("nodes")] if request.param is on_ray else []
        opened.append(request.param(tmp_path, *given, **changes))
        return opened[-1]

    yield open_in_folder
    for backend in opened:
        backend.close()


def games_of(pending: PendingBatch) -> GameBatch:
    return decode_batch(pending.fetch(2**20))


def batch_ids(waiting: list[PendingBatch]) -> list[str]:
    return [pending.batch_id for pending in waiting]


def take_all(backend: SelfPlayBackend, wanted: dict[str, int]) -> dict[str, list[GameBatch]]:
    """Receive until every worker has handed over its ``wanted`` games."""
    batches: dict[str, list[GameBatch]] = {worker: [] for worker in wanted}
    delivered = dict.fromkeys(wanted, 0)
    deadline = time.monotonic() + PATIENCE
    while delivered != wanted:
        assert time.monotonic() < deadline, (delivered, wanted, backend.heartbeats())
        for pending in backend.collect():
            batch = games_of(pending)
            batches[pending.worker].append(batch)
            delivered[pending.worker] += batch.num_games
            backend.release(pending, delivered=delivered[pending.worker])
        time.sleep(0.02)
    return batches


@pytest.mark.medium
def test_workers_deliver_exactly_their_granted_games(open_backend: Open) -> None:
    backend = open_backend()
    backend.publish(1, model_bytes(1))
    wanted = {worker: 23 + number for number, worker in enumerate(backend.workers)}
    for worker, games in wanted.items():
        backend.grant(worker, granted=games, delivered=0)
    batches = take_all(backend, wanted)
    for worker, mine in batches.items():
        numbers = [batch.first_game + i for batch in mine for i in range(batch.num_games)]
        assert numbers == list(range(wanted[worker]))
        for batch in mine:
            verify_batch(batch, GAME)
            assert (batch.worker, batch.run_id) == (worker, "run")
            assert batch.num_games <= 10
    assert backend.collect() == []


@pytest.mark.medium
def test_games_that_a_worker_has_not_begun_are_taken_back_and_may_be_granted_again(open_backend: Open) -> None:
    backend = open_backend()
    backend.publish(1, model_bytes(1))
    worker = backend.workers[0]
    backend.grant(worker, granted=100_000, delivered=0)
    deadline = time.monotonic() + PATIENCE
    while not ((heartbeat := backend.heartbeats()[worker]) and heartbeat.begun > 0):
        assert time.monotonic() < deadline, backend.heartbeats()
        backend.collect()
        time.sleep(0.02)
    assert backend.withdrawn() == {}
    lower(backend, worker, 1)
    while not (unstarted := backend.withdrawn()):
        assert time.monotonic() < deadline, backend.heartbeats()
        backend.collect()
        time.sleep(0.02)
    left = 100_000 - unstarted[worker]
    assert heartbeat.begun <= left < 100_000
    backend.grant(worker, granted=left + 10, delivered=0)
    assert backend.withdrawn() == {}
    take_all(backend, {worker: left + 10})


def lower(backend: SelfPlayBackend, worker: str, games: int) -> None:
    if isinstance(backend, FleetClient):
        write_atomically(backend.root.parent / LOWER, json.dumps({worker: games}).encode())
        return
    assert isinstance(backend, FolderBackend | Fleet)
    backend.lower_grant(worker, games)


def test_every_worker_is_granted_the_games_missing_from_those_ahead(open_backend: Open) -> None:
    backend = open_backend()
    if isinstance(backend, Fleet | FleetClient):
        pytest.skip("its shares follow the measured speeds: see the tests of the balancer")
    shares = backend.plan_grants(dict.fromkeys(backend.workers, 15), 40)
    assert shares == dict.fromkeys(backend.workers, 40 + 10 - 15), "a batch of ten may wait"
    assert not any(backend.plan_grants(dict.fromkeys(backend.workers, 15), 0).values())


def test_a_fast_worker_has_games_ahead_for_the_seconds_until_its_next_grant(tmp_path: Path) -> None:
    backend = FolderBackend(tmp_path, ["gpu"], game=GAME, settings=small_settings(tmp_path), run_id="run")
    beat = Heartbeat(run_id="run", worker="gpu", beat=1, pid=1, state="playing", parallel_games=8, speed=300.0)
    backend.folders["gpu"].write_heartbeat(beat)
    assert backend.plan_grants({"gpu": 0}, 40) == {"gpu": 900 + 8 + 10}


@pytest.mark.medium
def test_games_that_are_played_or_wait_for_their_batch_are_not_those_ahead(tmp_path: Path) -> None:
    """Else eight games side by side would end before others begin where two are ahead, and no batch would fill."""
    settings = small_settings(tmp_path, self_play={"flush_seconds": 1e6})
    backend = InlineBackend(tmp_path, game=GAME, settings=settings, run_id="run", cycles=1)
    backend.publish(1, model_bytes(1))
    granted, delivered, sizes = 0, 0, list[int]()
    while delivered < 60:
        granted += backend.plan_grants({"inline": granted - delivered}, 2)["inline"]
        assert granted - delivered <= 2 + 8 + 10
        backend.grant("inline", granted=granted, delivered=delivered)
        for pending in backend.collect():
            sizes.append(games_of(pending).num_games)
            delivered += sizes[-1]
            backend.release(pending, delivered=delivered)
    assert sizes == [10] * 6


@pytest.mark.medium
def test_a_batch_stays_where_it_is_until_it_is_released(open_backend: Open) -> None:
    backend = open_backend()
    backend.publish(1, model_bytes(1))
    worker = backend.workers[0]
    backend.grant(worker, granted=10, delivered=0)
    deadline = time.monotonic() + PATIENCE
    while not (found := backend.collect()):
        assert time.monotonic() < deadline
    first = found[0]
    assert first.batch_id in batch_ids(backend.collect())
    backend.release(
        first, delivered=games_of(first).num_games
    )  # on a slow machine the ten games may come in more than one batch
    assert first.batch_id not in batch_ids(backend.collect())


@pytest.mark.medium
def test_all_workers_switch_to_a_new_model(open_backend: Open) -> None:
    backend = open_backend()
    backend.publish(1, model_bytes(1))
    first = dict.fromkeys(backend.workers, 10)
    for worker in backend.workers:
        backend.grant(worker, granted=10, delivered=0)
    take_all(backend, first)
    backend.publish(2, model_bytes(2))
    deadline = time.monotonic() + PATIENCE
    while {heartbeat.model_version for heartbeat in backend.heartbeats().values() if heartbeat} != {2}:
        assert time.monotonic() < deadline, backend.heartbeats()
        backend.collect()
        time.sleep(0.02)
    for worker in backend.workers:
        backend.grant(worker, granted=20, delivered=10)
    last = {
        worker: [version for pending in waiting for version in games_of(pending).first_model]
        for worker, waiting in wait_for_batches(backend, games=10).items()
    }
    assert all(set(versions) == {2} for versions in last.values())


def wait_for_batches(backend: SelfPlayBackend, *, games: int) -> dict[str, list[PendingBatch]]:
    deadline = time.monotonic() + PATIENCE
    while True:
        assert time.monotonic() < deadline, backend.heartbeats()
        waiting: dict[str, list[PendingBatch]] = {worker: [] for worker in backend.workers}
        for pending in backend.collect():
            waiting[pending.worker].append(pending)
        if all(sum(games_of(pending).num_games for pending in mine) == games for mine in waiting.values()):
            return waiting
        time.sleep(0.02)


@pytest.mark.medium
def test_a_model_that_does_not_fit_is_an_error_in_the_heartbeat_and_loses_nothing(open_backend: Open) -> None:
    backend = open_backend()
    backend.publish(1, model_bytes(1)[:-40])
    deadline = time.monotonic() + PATIENCE
    while not all(heartbeat and heartbeat.error for heartbeat in backend.heartbeats().values()):
        assert time.monotonic() < deadline, backend.heartbeats()
        backend.collect()
        time.sleep(0.02)
    assert all(heartbeat and heartbeat.state == "error" for heartbeat in backend.heartbeats().values())
    backend.publish(2, model_bytes(2))
    for worker in backend.workers:
        backend.grant(worker, granted=10, delivered=0)
    take_all(backend, dict.fromkeys(backend.workers, 10))


@pytest.mark.medium
def test_finished_games_are_handed_over_at_the_end(open_backend: Open) -> None:
    backend = open_backend(self_play={"flush_seconds": 1e6}, distributed={"batch_size": 10_000})
    backend.publish(1, model_bytes(1))
    for worker in backend.workers:
        backend.grant(worker, granted=100_000, delivered=0)
    deadline = time.monotonic() + PATIENCE
    while not all(heartbeat and heartbeat.finished > 0 for heartbeat in backend.heartbeats().values()):
        assert time.monotonic() < deadline, backend.heartbeats()
        assert backend.collect() == []
        time.sleep(0.02)
    backend.close()
    handed_over = {path.parent.parent.name for path in Path(small_settings_root(backend)).glob("*/outbox/*.games")}
    assert handed_over == set(backend.workers)


def small_settings_root(backend: SelfPlayBackend) -> Path:
    assert isinstance(backend, FolderBackend | Fleet | FleetClient)
    return backend.root
