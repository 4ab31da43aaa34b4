"""Machines and accounts whose names contain characters that are special to shells, files and regular expressions."""

import re
import subprocess

import pytest

from keima.cluster.ssh.errors import Refused
from keima.cluster.ssh.ssh_transport import connect
from keima.config.sections.workers import WorkerSettings
from tests.lab.hosts import Host, Hosts
from tests.lab.processes import wait_until

pytestmark = pytest.mark.medium
SHOW = ("ip", "-6", "addr", "show", "scope", "link", "dev")
ACCOUNTS = ("CORP\\alice", "alice+ml")


def give_accounts(host: Host) -> None:
    """Give the host's user more names, as a directory service does."""
    (account,) = re.findall(f"(?m)^{host.user}:(.*)$", (host.files / "passwd").read_text())
    for name in ACCOUNTS:
        for file, line in (("passwd", f"{name}:{account}\n"), ("shadow", f"{name}:*:19000:0:99999:7:::\n")):
            with (host.files / file).open("a") as opened:
                opened.write(line)


def link_local(host: Host) -> str:
    """Return its address on the link, with our end of the link, once both have one that is unique."""
    found: list[str] = []

    def both_have() -> bool:
        theirs = host.run([*SHOW, "eth0"]).stdout
        ours = subprocess.run([*SHOW, host.link.bridge], capture_output=True, text=True, check=True).stdout
        found[:] = re.findall(r"inet6 (fe80:[0-9a-f:]+)/", theirs)
        return bool(found) and "fe80:" in ours and "tentative" not in theirs + ours

    wait_until(both_have, f"{host.name} and this machine to have an address of IPv6 on their link")
    return f"{found[0]}%{host.link.bridge}"


def test_domain_accounts_and_link_local_addresses_are_reached(small_hosts: Hosts) -> None:
    host = small_hosts[0]
    give_accounts(host)
    address = link_local(host)
    for account in ACCOUNTS:
        for name in (host.address, address):
            machine = WorkerSettings.model_validate({"host": name, "user": account, "key_path": str(small_hosts.key)})
            transport = connect(machine, host_key_policy="accept-new")
            transport.put(b"here", "a")
            assert transport.get("a", 9) == b"here"
            transport.close()
    assert address in small_hosts.known_hosts.read_text()
    strict = connect(machine, host_key_policy="strict")
    strict.close()


def test_their_remedies_can_be_typed(small_hosts: Hosts) -> None:
    host = small_hosts[0]
    give_accounts(host)
    (host.home / ".ssh/authorized_keys").write_text("")
    machine = WorkerSettings.model_validate(
        {"host": host.address, "user": ACCOUNTS[0], "key_path": str(small_hosts.key)}
    )
    with pytest.raises(Refused) as refused:
        connect(machine, host_key_policy="strict")
    assert f"ssh-copy-id -p 22 'CORP\\alice@{host.address}'" in refused.value.remedy
