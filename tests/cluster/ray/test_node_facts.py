"""Nodes that cannot play are refused by name, with the remedy."""

import platform

import pytest

from keima.cluster.ray.node_facts import NodeFacts, assigned_gpu, check_versions
from keima.cluster.ssh.errors import Refused

HERE = platform.python_version()


def place(**changes: str) -> NodeFacts:
    values = {"worker": "ray-1", "host": "node7", "python": "/usr/bin/python3", "version": HERE, "ray": "2.60.0"}
    return NodeFacts(**{**values, "gpus": "", **changes})


def test_a_node_with_the_same_versions_is_accepted() -> None:
    check_versions("ray-1", place(), ray="2.60.0")
    check_versions("ray-1", place(version=f"{HERE}.1"), ray="2.60.0")


@pytest.mark.parametrize(("changes", "said"), [({"ray": "2.40.0"}, "Ray 2.40.0"), ({"version": "3.8.1"}, "Python 3.8")])
def test_a_node_with_another_version_is_refused_by_name(changes: dict[str, str], said: str) -> None:
    with pytest.raises(
        Refused, match=rf"ray-1: node7 runs .*{said}.*here it is .*; give all nodes this one's versions"
    ):
        check_versions("ray-1", place(**changes), ray="2.60.0")


def test_the_gpu_is_the_one_that_ray_gives() -> None:
    assert assigned_gpu("ray-1", place(gpus="3")) == 3


@pytest.mark.parametrize("gpus", ["", "GPU-5a1d", "NoDevFiles"])
def test_a_gpu_without_a_number_is_refused(gpus: str) -> None:
    with pytest.raises(Refused, match=r"node7: Ray gives the slot the GPU .*, not a number; start Ray there without"):
        assigned_gpu("ray-1", place(gpus=gpus))
