"""Where the server listens, and what it says."""

import socket

import pytest

from keima.web import server

LINK = "http://127.0.0.1:8080/?token=secret"


def test_over_ssh_it_says_how_to_forward_the_port(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SSH_CONNECTION", raising=False)
    assert not any("ssh -L" in line for line in server.greeting_lines("dashboard", LINK, "127.0.0.1", 8080))
    monkeypatch.setenv("SSH_CONNECTION", "192.0.2.7 50000 192.0.2.1 22")
    monkeypatch.setenv("USER", "ada")
    lines = server.greeting_lines("dashboard", LINK, "127.0.0.1", 8080)
    assert lines[0] == f"dashboard: {LINK}"
    assert any("ssh -L 8080:127.0.0.1:8080 ada@192.0.2.1" in line for line in lines)


def test_browsers_may_use_the_names_of_the_address_that_it_listens_at() -> None:
    assert server.list_allowed_hosts("127.0.0.1", 1) == ["127.0.0.1:1", "localhost:1", "[::1]:1"]
    assert server.list_allowed_hosts("192.0.2.1", 1) == ["192.0.2.1:1"]
    assert server.list_allowed_hosts("::1", 1)[0] == "[::1]:1"
    everywhere = server.list_allowed_hosts("0.0.0.0", 1)
    assert everywhere[0] == f"{socket.gethostname()}:1".lower() and "localhost:1" in everywhere
    assert server.list_allowed_hosts("192.0.2.1", 80) == ["192.0.2.1:80", "192.0.2.1"]


def test_browsers_write_a_name_in_lower_case(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "DESKTOP-AB")
    monkeypatch.setattr(server, "list_own_addresses", lambda: [])
    assert server.list_allowed_hosts("0.0.0.0", 1)[0] == "desktop-ab:1"
