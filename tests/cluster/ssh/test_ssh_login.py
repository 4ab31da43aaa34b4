"""SSH as its users know it: host keys, keys, the agent, ~/.ssh/config, and the messages when one of them fails."""

import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from keima.cluster.ssh.errors import Refused, Unreachable
from keima.cluster.ssh.host_keys import UnknownHostKey, scan_commands
from keima.cluster.ssh.ssh_transport import connect
from keima.config.sections.workers import WorkerSettings
from tests.cluster.sshd import Sshd, keygen, needs_sshd, reach, refusal, running_sshd, shell

pytestmark = [needs_sshd, pytest.mark.usefixtures("nothing_is_left")]
LIMIT = 2**30


# Host keys


def known_hosts(user: Path) -> Path:
    return user / ".ssh/known_hosts"


def test_an_unknown_machine_is_refused_with_the_command_that_makes_it_known(server: Sshd, user: Path) -> None:
    known_hosts(user).unlink()
    remedy = refusal(server.worker()).remedy
    assert f"ssh-keyscan -t ed25519 -p {server.port} 127.0.0.1 >> {known_hosts(user)}" in remedy
    shell(remedy[remedy.index("ssh-keyscan") :])
    reach(server.worker())


def test_hosts_without_a_known_key_are_scanned_by_one_command_for_each_port(server: Sshd, user: Path) -> None:
    known_hosts(user).unlink()
    scans = []
    for host in ("127.0.0.1", "localhost"):
        with pytest.raises(UnknownHostKey) as unknown:
            connect(server.worker(host=host), host_key_policy="strict")
        scans.append(unknown.value.scan)
    (command,) = scan_commands(filter(None, scans))
    assert command == f"ssh-keyscan -t ed25519 -p {server.port} 127.0.0.1 localhost >> {known_hosts(user)}"
    shell(command)
    for host in ("127.0.0.1", "localhost"):
        reach(server.worker(host=host))


def test_a_changed_key_is_refused_with_the_command_that_forgets_the_old_one(server: Sshd, user: Path) -> None:
    server.stop()
    keygen(server.folder / "host_key")
    server.start()
    for policy in ("strict", "accept-new"):
        refused = refusal(server.worker(), policy)
        assert "has changed" in str(refused) and len(re.findall("SHA256:", str(refused))) == 2
        assert f"ssh-keygen -R '[127.0.0.1]:{server.port}' -f {known_hosts(user)}" in refused.remedy
    shell(refused.remedy[refused.remedy.index("ssh-keygen") :])
    reach(server.worker(), "accept-new")


def test_a_key_of_another_kind_than_the_known_one_is_a_changed_key(server: Sshd) -> None:
    server.stop()
    keygen(server.folder / "host_key", kind="ecdsa")
    server.start()
    assert "has changed" in str(refusal(server.worker(), "accept-new"))


def test_accepted_new_machines_are_stored(server: Sshd, user: Path) -> None:
    known_hosts(user).write_text("# a last line without an end")
    reach(server.worker(), "accept-new")
    assert known_hosts(user).read_text().startswith("# a last line without an end\n[127.0.0.1]:")
    reach(server.worker(), "strict")
    assert len(known_hosts(user).read_text().splitlines()) == 2


@pytest.mark.medium
@pytest.mark.parametrize("kind", ["rsa", "ecdsa", "ed25519"])
def test_every_kind_of_host_key_and_hashed_names_are_understood(server: Sshd, user: Path, kind: str) -> None:
    server.stop()
    keygen(server.folder / "host_key", kind=kind)
    known_hosts(user).unlink()
    server.trust()
    shell(f"ssh-keygen -H -f {known_hosts(user)}")
    nonsense = "|1|broken|line ssh-rsa AAAA\nhalf a\n@cert-authority * ssh-ed25519 %%%\n"
    known_hosts(user).write_text(nonsense + known_hosts(user).read_text())
    server.start()
    reach(server.worker())


def test_a_revoked_key_is_refused(server: Sshd, user: Path) -> None:
    known_hosts(user).write_text(f"@revoked * {(server.folder / 'host_key.pub').read_text()}")
    server.trust()
    assert "revoked" in str(refusal(server.worker(), "accept-new"))


def test_known_hosts_patterns_mean_the_same_as_in_ssh(server: Sshd, user: Path) -> None:
    known_hosts(user).unlink()
    server.trust(f"*,!127.0.0.1,![127.0.0.1]:{server.port}")
    assert "not known" in str(refusal(server.worker()))
    server.trust(f"[127.0.0.?]:{server.port}")
    reach(server.worker())


# The user's keys


@pytest.mark.medium
@pytest.mark.parametrize("kind", ["rsa", "ecdsa", "ed25519"])
def test_every_kind_of_key_logs_in(server: Sshd, user: Path, kind: str) -> None:
    key = user / "key"
    keygen(key, kind=kind)
    assert f"ssh-copy-id -p {server.port}" in refusal(server.worker(key_path="~/key")).remedy
    server.allow(key)
    reach(server.worker(key_path="~/key"))


def test_a_missing_key_is_reported_as_missing(server: Sshd) -> None:
    assert "the file of `key_path` cannot be read: No such file" in str(refusal(server.worker(key_path="~/nowhere")))


def test_a_key_that_others_can_read_is_not_used(server: Sshd, user: Path) -> None:
    server.key.chmod(0o640)
    refused = refusal(server.worker())
    assert f"others can read the private key {server.key.name}" in str(refused) and "chmod 600" in refused.remedy
    assert "of `key_path`" in str(refusal(server.worker(key_path=str(server.key))))
    keygen(user / ".ssh/id_rsa", kind="rsa")
    server.allow(user / ".ssh/id_rsa")
    reach(server.worker())


@pytest.mark.parametrize("name", ["id_ed25519.pub", "renamed"])
def test_a_public_key_instead_of_the_private_one_is_reported(server: Sshd, user: Path, name: str) -> None:
    public = server.key.with_name(name)
    public.write_text(server.key.with_name("id_ed25519.pub").read_text())
    refused = refusal(server.worker(key_path=str(public)))
    assert "is a public key" in refused.what and "without .pub" in refused.remedy


@pytest.mark.parametrize(
    "text", ["", "no key at all\n", "-----BEGIN OPENSSH PRIVATE KEY-----\nAAAA\n-----END OPENSSH PRIVATE KEY-----\n"]
)
def test_a_file_without_a_key_is_refused(server: Sshd, text: str) -> None:
    server.key.write_text(text)
    assert "`key_path` does not hold a supported private key" in str(refusal(server.worker(key_path=str(server.key))))


@pytest.mark.medium
def test_no_message_says_where_a_key_lies_or_what_its_passphrase_is(
    server: Sshd, user: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Messages go into logs and into the status, which people share."""
    monkeypatch.setenv("KEIMA_KEY_PASSPHRASE", "open sesame")
    broken, open_to_all, encrypted, strange = (
        user / f"hidden-{name}" / "key" for name in ("broken", "open", "encrypted", "strange")
    )
    for path in (broken, open_to_all, encrypted, strange):
        path.parent.mkdir()
    broken.write_text("no key at all\n")
    keygen(open_to_all)
    open_to_all.chmod(0o644)
    keygen(encrypted, passphrase="another one")
    keygen(strange)
    broken.chmod(0o600)
    refusals = [
        refusal(server.worker(key_path=str(path)))
        for path in (broken, open_to_all, encrypted, strange, user / "hidden-none" / "key")
    ]
    assert len({refused.what for refused in refusals}) == 5
    assert not [
        refused
        for refused in refusals
        if "hidden" in str(refused) or "sesame" in str(refused) or "another one" in str(refused)
    ]


def test_a_user_without_a_key_is_told_how_to_make_one(server: Sshd) -> None:
    server.key.unlink()
    assert "ssh-keygen -t ed25519" in refusal(server.worker()).remedy


@pytest.mark.medium
def test_an_encrypted_key_needs_its_passphrase(server: Sshd, user: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key = user / "key"
    keygen(key, passphrase="open sesame")
    server.allow(key)
    for passphrase in (None, "wrong"):
        if passphrase:
            monkeypatch.setenv("KEIMA_KEY_PASSPHRASE", passphrase)
        refused = refusal(server.worker(key_path=str(key)))
        assert "ssh-add" in refused.remedy and "KEIMA_KEY_PASSPHRASE" in refused.remedy
    monkeypatch.setenv("KEIMA_KEY_PASSPHRASE", "open sesame")
    reach(server.worker(key_path=str(key)))
    reach(server.worker())  # a key without one, next to it


@pytest.fixture
def agent(tmp_path: Path, user: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Path], None]]:
    """The user's agent: call it with a key to add."""
    path = tmp_path / "agent"
    process = subprocess.Popen(["ssh-agent", "-D", "-a", str(path)], stdout=subprocess.DEVNULL)
    while not path.exists():
        time.sleep(0.01)
    monkeypatch.setenv("SSH_AUTH_SOCK", str(path))
    yield lambda key: shell(f"ssh-add {key}")
    process.kill()
    process.wait()


@pytest.mark.medium
def test_the_agent_may_have_the_key_that_is_encrypted_on_disk(
    server: Sshd, user: Path, agent: Callable[[Path], None]
) -> None:
    key = user / "key"
    keygen(key)
    server.allow(key)
    server.key.unlink()
    agent(key)
    reach(server.worker())  # no file is needed
    shell(f"ssh-keygen -q -p -N secret -f {key}")
    reach(server.worker(key_path=str(key)))


@pytest.mark.medium
def test_a_server_that_hangs_up_after_many_keys_is_reported(
    server: Sshd, user: Path, agent: Callable[[Path], None]
) -> None:
    server.key.unlink()
    for number in range(8):
        keygen(user / f"key{number}")
        agent(user / f"key{number}")
    assert "key_path" in refusal(server.worker()).remedy
    keygen(server.key)
    server.allow(server.key)
    reach(server.worker(key_path=str(server.key)))


@pytest.mark.medium
def test_the_agent_may_have_the_key_that_cannot_be_read_from_the_named_file(
    server: Sshd, user: Path, agent: Callable[[Path], None]
) -> None:
    agent(server.key)
    server.key.chmod(0o640)
    reach(server.worker())
    reach(server.worker(key_path=str(server.key)))
    reach(server.worker(key_path=f"{server.key}.pub"))
    (user / ".ssh/config").write_text(f"Host *\n  IdentityFile {server.key}.pub\n  IdentitiesOnly yes\n")
    reach(server.worker())


@pytest.mark.medium
def test_the_agent_named_by_the_configuration_is_asked(
    server: Sshd, user: Path, agent: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    agent(server.key)
    server.key.unlink()
    (user / ".ssh/config").write_text("Host *\n  IdentityAgent none\n")
    assert "there is no key" in str(refusal(server.worker()))
    (user / ".ssh/config").write_text(f'Host *\n  IdentityAgent "{os.environ["SSH_AUTH_SOCK"]}"\n')
    monkeypatch.delenv("SSH_AUTH_SOCK")
    reach(server.worker())


class SilentAgent:
    """An agent that answers nothing, or only which keys there are, for which it asks another agent."""

    def __init__(self, path: Path, *, lists: str = "") -> None:
        self._lists = lists
        self._server = socket.socket(socket.AF_UNIX)
        self._server.bind(str(path))
        self._server.listen()
        self._clients: list[socket.socket] = []
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                self._clients.append(self._server.accept()[0])
                if self._lists:
                    with socket.socket(socket.AF_UNIX) as real:
                        real.connect(self._lists)
                        real.sendall(self._clients[-1].recv(4096))
                        self._clients[-1].sendall(real.recv(2**16))

    def close(self) -> None:
        self._server.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        for each in (*self._clients, self._server):
            each.close()


@pytest.mark.medium
@pytest.mark.parametrize("lists", [False, True])
def test_a_silent_agent_is_waited_for_a_bounded_time(
    server: Sshd, tmp_path: Path, agent: Callable[[Path], None], lists: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent(server.key)
    silent = SilentAgent(tmp_path / "silent", lists=os.environ["SSH_AUTH_SOCK"] if lists else "")
    monkeypatch.setenv("SSH_AUTH_SOCK", str(tmp_path / "silent"))
    monkeypatch.setattr("keima.cluster.ssh.wire.AGENT_SECONDS", 60.0 if lists else 2.0)
    monkeypatch.setattr("keima.cluster.ssh.wire.SIGNING_SHARE", 0.1)
    try:
        reach(server.worker())  # it is never asked
        server.key.unlink()
        with pytest.raises(
            Refused, match="SSH agent has a key, but does not sign" if lists else "SSH agent does not answer"
        ) as refused:
            connect(server.worker(), host_key_policy="strict", login_seconds=20.0)
        assert "ssh-add -l" in refused.value.remedy
    finally:
        silent.close()


def test_an_agent_that_has_ended_does_no_harm(server: Sshd, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SSH_AUTH_SOCK", str(tmp_path / "nowhere"))
    reach(server.worker())


# Slow logins


@pytest.mark.medium
@pytest.mark.slow
def test_a_login_may_be_slow(tmp_path: Path, user: Path) -> None:
    """As if sshd asks another server for its users' keys: longer than any later answer may take."""
    slow = f"AuthorizedKeysCommand /bin/sh {tmp_path}/slow\nAuthorizedKeysCommandUser root"
    with running_sshd(tmp_path / "server", user, more=slow) as server:
        keys = (server.folder / "authorized_keys").rename(tmp_path / "keys")
        (tmp_path / "slow").write_text(f"sleep 4; cat {keys}\n")
        with pytest.raises(Unreachable, match="no answer"):
            connect(server.worker(), host_key_policy="strict", login_seconds=1.0)
        transport = connect(server.worker(), host_key_policy="strict", seconds=3.0)
        assert transport.run(["echo", "here"]).stdout == b"here\n"
        server.signal(signal.SIGSTOP)
        with pytest.raises(Unreachable):
            transport.list_files("folder")
        transport.close()


# ~/.ssh/config


def test_the_user_s_ssh_configuration_is_followed(server: Sshd, user: Path) -> None:
    server.key.rename(user / "elsewhere")
    (user / ".ssh/config").write_text("Include more/*\nHost *\n  User nobody-at-all\n")
    (user / ".ssh/more").mkdir()
    known = "  UserKnownHostsFile ~/known\n  HostKeyAlias another-name\n"
    login = f"  Port {server.port}\n  User {server.worker().user}\n  IdentityFile ~/elsewhere\n"
    own = f"Host box\n  HostName=127.0.0.1\n{login}{known}"
    (user / ".ssh/more/boxes").write_text(own)
    known_hosts(user).rename(user / "known")
    server.trust("another-name")
    known_hosts(user).rename(user / "known")
    reach(WorkerSettings(name="worker1", host="box", directory=str(user / "keima")))


def test_the_settings_take_precedence_over_the_ssh_configuration(server: Sshd, user: Path) -> None:
    (user / ".ssh/config").write_text(
        "Host *\n  Port 1\n  User nobody-at-all\n  IdentityFile ~/nowhere\n  ProxyJump nowhere\n"
    )
    reach(server.worker(key_path=str(server.key), proxy_jump="none"))


@pytest.mark.parametrize("text", ["Host 'a\n", "Host *\n  Port many\n", "?\n"])
def test_an_invalid_ssh_configuration_is_refused(server: Sshd, user: Path, text: str) -> None:
    (user / ".ssh/config").write_text(text)
    assert "~/.ssh/config" in str(refusal(server.worker(port=None)))


@pytest.fixture
def three(tmp_path: Path, user: Path) -> Iterator[list[Sshd]]:
    with ExitStack() as stack:
        yield [stack.enter_context(running_sshd(tmp_path / name, user)) for name in ("one", "two", "three")]


def hosts(servers: list[Sshd]) -> str:
    named = zip(("one", "two", "three"), servers, strict=True)
    return "".join(f"Host {name}\n  HostName 127.0.0.1\n  Port {server.port}\n" for name, server in named)


@pytest.mark.medium
@pytest.mark.parametrize("way", ["in one line", "one by one", "in the settings"])
def test_a_machine_behind_two_others_is_reached(three: list[Sshd], user: Path, way: str) -> None:
    one = "Host two\n  ProxyJump one\n" if way == "one by one" else ""
    last = {
        "in one line": "Host three\n  ProxyJump one,two\n",
        "one by one": "Host three\n  ProxyJump two\n",
        "in the settings": "",
    }[way]
    (user / ".ssh/config").write_text(hosts(three) + one + last)
    machine = three[2].worker(host="three", port=None, proxy_jump="one,two" if way == "in the settings" else None)
    reach(machine)
    assert all("Accepted publickey" in server.log for server in three)
    transport = connect(machine, host_key_policy="strict", seconds=30.0)
    try:
        data = os.urandom(3 * 2**20)
        transport.put(data, "a")
        assert transport.get("a", LIMIT) == data
        three[1].signal(signal.SIGKILL)
        with pytest.raises(Unreachable):
            transport.get("a", LIMIT)
    finally:
        transport.close()


@pytest.mark.medium
@pytest.mark.parametrize("which", [0, 1, 2])
def test_every_machine_on_the_way_must_be_known(three: list[Sshd], user: Path, which: int) -> None:
    (user / ".ssh/config").write_text(hosts(three) + "Host three\n  ProxyJump one,two\n")
    lines = known_hosts(user).read_text().splitlines(keepends=True)
    known_hosts(user).write_text("".join(lines[:which] + lines[which + 1 :]))
    machine = three[2].worker(host="three", port=None)
    remedy = refusal(machine).remedy
    shell(remedy[remedy.index("echo" if which else "ssh-keyscan") :])
    reach(machine)


def test_circular_jumps_are_refused(server: Sshd, user: Path) -> None:
    (user / ".ssh/config").write_text("Host a\n  ProxyJump b\nHost b\n  ProxyJump a\n")
    assert "circle" in str(refusal(server.worker(host="a", name="worker1")))


RELAY = """
import os, select, socket, sys
far = socket.create_connection((sys.argv[1], int(sys.argv[2])))
open(sys.argv[3], "w").write(str(os.getpid()))
while True:
    for end in select.select([0, far], [], [])[0]:
        data = os.read(0, 65536) if end == 0 else far.recv(65536)
        if not data:
            sys.exit()
        os.write(1, data) if end is far else far.sendall(data)
"""


def gone(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()


@pytest.mark.medium
def test_a_machine_behind_a_proxy_command_is_reached(server: Sshd, user: Path) -> None:
    relay = user / "relay.py"
    relay.write_text(RELAY)
    tail = f"-c 'exec {sys.executable} {relay} %h %p {user}/%n-%r-%%'"
    (user / ".ssh/config").write_text(
        f"Host box\n  HostName 127.0.0.1\nHost *\n  ProxyCommand=sh {tail}\n  ProxyJump nowhere\n"
    )
    machine = server.worker(host="box", directory="relayed")
    reach(machine)
    transport = connect(machine, host_key_policy="strict", seconds=30.0)
    data = os.urandom(3 * 2**20)
    transport.put(data, "a")
    assert transport.get("a", LIMIT) == data
    pid = int((user / f"box-{machine.user}-%").read_text())
    assert not gone(pid)
    transport._channel.settimeout(3.0)
    os.kill(pid, signal.SIGSTOP)
    with pytest.raises(Unreachable):
        transport.get("a", LIMIT)
    transport.close()
    assert gone(pid)


@pytest.mark.medium
def test_openssh_itself_may_be_the_proxy_command(three: list[Sshd], user: Path) -> None:
    first = three[0]
    options = f"-F none -i {first.key} -o UserKnownHostsFile={known_hosts(user)} -o BatchMode=yes -p {first.port}"
    jump = f"Host three\n  ProxyCommand ssh {options} -W %h:%p 127.0.0.1\n"
    (user / ".ssh/config").write_text(hosts(three) + jump + "Host two\n  ProxyJump three\n")
    reach(three[2].worker(host="three", port=None))
    reach(three[1].worker(host="two", port=None))
    assert first.log.count("Accepted publickey") == 2


@pytest.mark.medium
def test_a_failing_proxy_command_is_reported(server: Sshd, user: Path) -> None:
    config = user / ".ssh/config"
    for command, said in {
        "cloudflared-is-not-here %h": "ProxyCommand ended with 127 and said: .*cloudflared-is-not-here",
        "echo no route to %h >&2; exit 3": "ProxyCommand ended with .* and said",
        "sleep 60": "what its ProxyCommand leads to does not answer as an SSH server does",
    }.items():
        config.write_text(f"Host *\n  ProxyCommand {command}\n")
        with pytest.raises(Unreachable, match=said):
            connect(server.worker(), host_key_policy="strict", login_seconds=2.0 if command == "sleep 60" else 60.0)
    config.write_text("Host *\n  ProxyCommand relay %C\n")
    assert "%C, which is not supported" in str(refusal(server.worker()))
    config.write_text("Host *\n  ProxyCommand none\n  ProxyJump nowhere\n")
    reach(server.worker())


def test_a_machine_that_forwards_no_connections_is_named(tmp_path: Path, server: Sshd, user: Path) -> None:
    with running_sshd(tmp_path / "jump", user, more="AllowTcpForwarding no") as jump:
        refused = refusal(server.worker(proxy_jump=f"127.0.0.1:{jump.port}"))
    assert "AllowTcpForwarding" in refused.remedy
