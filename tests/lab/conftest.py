"""Four machines, fresh for each test."""

from collections.abc import Iterator

import pytest

from tests.lab.hosts import Hosts, running_hosts, why_not


@pytest.fixture(scope="session")
def real_hosts() -> None:
    """Skips tests that need hosts where hosts are impossible."""
    if reason := why_not():
        pytest.skip(reason)


def _as_client(hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> Hosts:
    monkeypatch.setenv("HOME", str(hosts.home))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    return hosts


@pytest.fixture
def hosts(real_hosts: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hosts]:
    """Four running hosts; the key, known_hosts and config are in $HOME/.ssh, and there is no agent."""
    with running_hosts() as hosts:
        yield _as_client(hosts, monkeypatch)


@pytest.fixture
def small_hosts(real_hosts: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hosts]:
    """Two hosts whose homes are on small disks, which can be filled."""
    with running_hosts(2, disk_mb=64) as hosts:
        yield _as_client(hosts, monkeypatch)
