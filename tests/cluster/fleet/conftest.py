"""Shared fixtures of the tests of a fleet."""

from collections.abc import Iterator

import pytest

from tests.cluster.local_fleet import Network


@pytest.fixture(autouse=True)
def no_agent_is_left() -> Iterator[None]:
    """Agents end with their connections, and connections with their tests, also those that nobody closes."""
    yield
    for network in Network.opened:
        network.close()
    Network.opened.clear()
