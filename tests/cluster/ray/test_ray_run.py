"""A run on a Ray cluster whose nodes come and go."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.ray.nodes import ON_RAY, Nodes, ray_nodes
from tests.cluster.ray.ray_run import RayRun, ray_run

pytestmark = ON_RAY


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    with ray_nodes(tmp_path / "nodes", one=1, two=1, three=1) as made:
        yield made


@pytest.fixture
def run(tmp_path: Path, nodes: Nodes) -> Iterator[RayRun]:
    with ray_run(tmp_path, nodes) as made:
        yield made


@pytest.mark.timeout(900)
def test_a_run_loses_a_node_and_gains_another_and_its_account_balances(run: RayRun, nodes: Nodes) -> None:
    run.start()
    run.wait(lambda: len(run.active()) == 3, "three workers to play")
    lost = run.workers_now_on("two")
    nodes.kill("two")
    run.wait(lambda: not lost & run.active(), "the lost worker to be noticed")
    nodes.add("four")
    run.wait(lambda: run.workers_now_on("four") & run.active(), "the new node to play")
    games = run.games()
    run.wait(lambda: run.games() > games + 100, "more games")
    nodes.add("two")
    run.wait(lambda: lost <= run.active(), "the lost node to play again, under the old name")
    games = run.games()
    run.wait(lambda: run.games() > games + 100, "more games")
    received = run.received()
    assert run.interrupt() == 130
    assert not run.audit().problems
    assert len(set(run.received())) == len(run.received()) and set(received) <= set(run.received())
    assert run.left_on_nodes() <= set(run.received())
