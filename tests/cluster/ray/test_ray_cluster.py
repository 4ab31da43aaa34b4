"""Which clusters are used: those that answer, and that ask for a token."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster.ray.nodes import ON_RAY, ray_nodes
from tests.sources import ROOT

pytestmark = ON_RAY
JOIN = """
from keima.config.sections.ray import RaySettings
from keima.cluster.ray.cluster import RayCluster
from keima.cluster.machines.release import worker_requirements
from keima.cluster.ssh.errors import ClusterError

def join(address):
    try:
        cluster = RayCluster(RaySettings(address=address), worker_requirements())
        print("joined, with room for", cluster.count_free_slots())
        cluster.disconnect()
    except ClusterError as error:
        print(type(error).__name__, error)
"""
# Ray reads the way of authentication once in each process.
JOIN_OPEN = """
import sys
from pathlib import Path
from tests.cluster.ray.nodes import SURROUNDINGS, ray_nodes

SURROUNDINGS["AUTH_MODE"] = "disabled"
with ray_nodes(Path(sys.argv[1])) as nodes:
    join(nodes.address)
"""


def said(program: str, *words: object) -> str:
    """Return the last line of a program in a process of its own."""
    line = [sys.executable, "-c", JOIN + program, *map(str, words)]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1]


def test_a_cluster_that_asks_for_a_token_is_joined_with_it_and_refuses_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ray_nodes(tmp_path, one=2) as nodes:
        assert said("import sys; join(sys.argv[1])", nodes.address) == "joined, with room for 2"
        monkeypatch.setenv("RAY_AUTH_TOKEN", "another" * 5)
        refused = said("import sys; join(sys.argv[1])", nodes.address)
    assert refused.startswith("Refused ray: Ray refuses its token") and "RAY_AUTH_TOKEN_PATH" in refused


def test_a_cluster_that_anybody_may_use_is_refused(tmp_path: Path) -> None:
    refused = said(JOIN_OPEN, tmp_path)
    assert refused.startswith("Refused ray: anyone who reaches ") and "RAY_AUTH_MODE=token" in refused


def test_a_head_node_that_does_not_answer_is_reported_at_once() -> None:
    assert said("join('127.0.0.1:9')").startswith("Unreachable ray: no head node answers at 127.0.0.1:9")
