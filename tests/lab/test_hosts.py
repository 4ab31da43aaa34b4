"""The hosts of the cluster's tests are what they claim to be, each fault does what it says, and everything ends."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.lab.hosts import Hosts, running_hosts
from tests.lab.left_overs import BRIDGE, FOLDER, FOLDERS, bridges
from tests.lab.processes import command_line, lives, pids, wait_until
from tests.sources import ROOT

SLEEPER = ["setsid", "-f", "sleep", "1234"]


def says(hosts: Hosts, name: str, line: str) -> str:
    done = hosts.ssh(name, line)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def answers(hosts: Hosts, name: str) -> bool:
    return hosts.ssh("-o", "ConnectTimeout=1", name, "true").returncode == 0


def sleeping(hosts: Hosts, name: str) -> bool:
    return "sleep 1234" in says(hosts, name, "ps -A -o args")


def traces() -> set[str]:
    """Return the traces of hosts on this machine."""
    interfaces = (path.name for path in Path("/sys/class/net").glob(f"{BRIDGE}*"))
    return {*interfaces, *(str(path) for path in FOLDERS.glob(f"{FOLDER}*"))}


def traces_of(process: int) -> set[str]:
    """Return the traces that one process has made: others may have hosts at the same time."""
    its_bridges = {bridge for bridge, owner in bridges().items() if owner == str(process)}
    return {trace for trace in traces() if trace.partition("-")[0] in its_bridges or f"{FOLDER}{process}-" in trace}


@pytest.mark.medium
def test_every_host_is_a_separate_machine(hosts: Hosts) -> None:
    address = "ip -o -4 addr show eth0 | awk '{print $4}'"
    line = f"hostname; whoami; pwd; cat /proc/sys/kernel/random/boot_id; {address}; cat /proc/1/comm"
    said = [says(hosts, host.name, line).split() for host in hosts]
    assert [row[:3] for row in said] == [[host.name, host.user, f"/home/{host.user}"] for host in hosts]
    assert [row[4:] for row in said] == [[f"{host.address}/24", "sleep"] for host in hosts]
    assert len({row[3] for row in said}) == len(hosts) == 4
    assert len(set(hosts.known_hosts.read_text().split("\n"))) == 5  # and nothing after the last line


@pytest.mark.medium
def test_a_host_has_this_machine_s_python_and_the_repository_but_not_its_files(hosts: Hosts, tmp_path: Path) -> None:
    program = f"import numpy, sys; sys.path.insert(0, {str(ROOT)!r}); import keima; print(keima.__file__)"
    host = hosts[0]
    assert host.run([host.python, "-I", "-c", program], seconds=60).stdout.strip() == str(
        ROOT / "keima" / "__init__.py"
    )
    assert host.run(["touch", str(ROOT / "forbidden")]).returncode == 1
    assert host.run(["ls", str(tmp_path)]).returncode == 2
    needed = (ROOT, Path(sys.prefix), Path(sys.base_prefix))  # which may also be there

    def seen(folder: str) -> set[str]:
        return set(host.run(["ls", "-A", folder]).stdout.split()) - {
            p.relative_to(folder).parts[0] for p in needed if p.is_relative_to(folder)
        }

    assert (seen("/home"), seen("/tmp")) == ({host.user}, set())


@pytest.mark.medium
def test_hosts_do_not_share_homes(hosts: Hosts) -> None:
    says(hosts, "worker1", "echo mine >note; echo ours >/tmp/note")
    assert (hosts[0].home / "note").read_text() == "mine\n"
    assert hosts.ssh("worker2", "cat note").returncode == hosts.ssh("worker2", "cat /tmp/note").returncode == 1


@pytest.mark.medium
def test_a_host_can_be_reached_through_another(hosts: Hosts) -> None:
    assert says(hosts, "worker3", "true") == ""
    done = hosts.ssh("-o", f"ProxyCommand=ssh -F {hosts.config} -W %h:%p worker1", "worker2", "echo $SSH_CONNECTION")
    assert done.stdout.split()[0] == hosts[0].address


@pytest.mark.slow  # as are the tests that need this fault
def test_a_cut_host_is_unreachable_until_it_is_healed(hosts: Hosts) -> None:
    hosts[0].link.cut()
    assert not answers(hosts, "worker1") and answers(hosts, "worker2")
    hosts[0].link.heal()
    assert answers(hosts, "worker1")


@pytest.mark.slow  # as are the tests that need this fault
def test_packets_to_a_blackhole_get_no_answer_at_all(hosts: Hosts) -> None:
    assert answers(hosts, "worker1")  # so that its hardware address is known
    hosts[0].link.blackhole()
    with socket.socket() as lost:
        lost.settimeout(1.0)
        started = time.monotonic()
        assert lost.connect_ex((hosts[0].address, 22)) != 0
        assert time.monotonic() - started > 0.9
    hosts[0].link.heal()
    assert answers(hosts, "worker1")


@pytest.mark.slow  # as are the tests that need this fault
def test_processes_started_by_a_killed_sshd_survive(hosts: Hosts) -> None:
    says(hosts, "worker1", " ".join([*SLEEPER, "</dev/null", ">log", "2>&1"]))
    hosts[0].kill_sshd()
    assert "Connection refused" in hosts.ssh("worker1", "true").stderr
    hosts[0].start_sshd()
    assert sleeping(hosts, "worker1")


@pytest.mark.slow  # as are the tests that need this fault
def test_a_frozen_host_accepts_connections_and_stays_silent(hosts: Hosts) -> None:
    hosts[0].freeze()
    with socket.create_connection((hosts[0].address, 22), timeout=5) as mute:
        mute.settimeout(0.5)
        with pytest.raises(TimeoutError):
            mute.recv(100)
    hosts[0].thaw()
    assert answers(hosts, "worker1")


@pytest.mark.slow  # as are the tests that need this fault
def test_a_power_cut_keeps_the_home_and_ends_the_processes(hosts: Hosts) -> None:
    says(hosts, "worker1", f"echo kept >note; {' '.join(SLEEPER)} </dev/null >log 2>&1")
    boot = says(hosts, "worker1", "cat /proc/sys/kernel/random/boot_id")
    had = hosts[0].pids()
    hosts[0].poweroff()
    assert not [pid for pid in had if lives(str(pid))] and not answers(hosts, "worker1")
    hosts[0].boot()
    assert says(hosts, "worker1", "cat note") == "kept" and not sleeping(hosts, "worker1")
    assert says(hosts, "worker1", "cat /proc/sys/kernel/random/boot_id") != boot


@pytest.mark.slow  # as are the tests that need this fault
def test_a_power_cut_does_not_close_connections(hosts: Hosts) -> None:
    with socket.create_connection((hosts[0].address, 22), timeout=5) as kept:
        assert kept.recv(100).startswith(b"SSH-2.0")
        hosts[0].poweroff()
        kept.settimeout(0.5)
        with pytest.raises(TimeoutError):
            kept.recv(100)


@pytest.mark.slow  # as are the tests that need this fault
def test_a_process_of_a_host_can_be_killed_by_its_command_line(hosts: Hosts) -> None:
    hosts[0].run(SLEEPER)
    hosts[1].run(SLEEPER)
    assert len(hosts[0].kill("sleep 1234")) == 1
    assert sleeping(hosts, "worker2") and not sleeping(hosts, "worker1")


@pytest.mark.slow  # as are the tests that need this fault
def test_a_full_disk_rejects_writes_until_it_is_freed(small_hosts: Hosts) -> None:
    says(small_hosts, "worker1", "echo before >note")
    small_hosts[0].fill_disk()
    assert "No space left" in small_hosts.ssh("worker1", "head -c 100000 /dev/zero >data").stderr
    assert says(small_hosts, "worker2", "head -c 100000 /dev/zero >data; stat -c %s data") == "100000"
    small_hosts[0].free_disk()
    small_hosts[0].poweroff()
    small_hosts[0].boot()
    assert says(small_hosts, "worker1", "head -c 100000 /dev/zero >data; stat -c %s data; cat note").split() == [
        "100000",
        "before",
    ]


@pytest.mark.slow  # only a clock can tell
def test_a_shaped_link_is_as_fast_as_configured(hosts: Hosts) -> None:
    def seconds() -> float:
        started = time.monotonic()
        line = ["ssh", "-F", str(hosts.config), "worker1", "cat >/dev/null"]
        subprocess.run(line, input=bytes(2_000_000), check=True, timeout=240)
        return time.monotonic() - started

    def once_below(limit: float) -> bool:
        """Other work on this machine makes some times longer, but none shorter."""
        return any(seconds() < limit for _ in range(5))

    hosts[0].link.shape(8)
    assert seconds() > 1.9  # for 16 million bits
    assert once_below(4.0)
    hosts[0].link.shape(None)
    assert once_below(1.9)


@pytest.mark.slow
def test_two_clusters_are_isolated_from_each_other(hosts: Hosts) -> None:
    with running_hosts(1) as others:
        assert others.network != hosts.network
        assert says(others, "worker1", "hostname") == "worker1"
        others[0].link.cut()
        assert answers(hosts, "worker1")
        others[0].link.heal()


def test_nothing_remains(real_hosts: None) -> None:
    with running_hosts(2, disk_mb=8) as hosts:
        hosts[0].run(SLEEPER)
        hosts[0].freeze()
        hosts[1].link.cut()
        processes = {pid for host in hosts for pid in host.pids()}
        ours = traces_of(os.getpid())
        assert len(processes) >= 5 and len(ours) == 4  # a folder, a bridge, and two links to it
    assert not ours & traces()
    assert not [pid for pid in processes if lives(str(pid))]
    assert f"{FOLDER}{os.getpid()}-" not in Path("/proc/mounts").read_text()


def start_elsewhere() -> tuple[subprocess.Popen[str], str]:
    """Start a process with hosts; return it with a text that only their command lines contain."""
    program = "import signal, sys\nfrom tests.lab.hosts import running_hosts\n"
    program += "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # also if the tests run in the background
    program += "with running_hosts(2) as hosts:\n"
    program += "    hosts[0].run(['setsid', '-f', 'sleep', sys.argv[1]]); print('up', flush=True); sys.stdin.read()\n"
    mark = f"{os.getpid()}.{time.monotonic_ns() % 10**9}"
    pipe = subprocess.PIPE
    started = subprocess.Popen(
        [sys.executable, "-c", program, mark], cwd=ROOT, stdin=pipe, stdout=pipe, stderr=pipe, text=True
    )
    assert started.stdout is not None and started.stdout.readline() == "up\n"
    return started, f"sleep {mark}"


def running(mark: str) -> bool:
    return any(mark in command_line(pid) for pid in pids())


def test_ctrl_c_leaves_nothing(real_hosts: None) -> None:
    started, mark = start_elsewhere()
    its = traces_of(started.pid)
    assert running(mark) and len(its) == 4
    started.send_signal(signal.SIGINT)
    assert "KeyboardInterrupt" in started.communicate(timeout=240)[1]
    assert not running(mark) and not its & traces()


@pytest.mark.medium
def test_hosts_end_with_a_killed_process_and_the_next_one_cleans_up(real_hosts: None) -> None:
    started, mark = start_elsewhere()
    its = traces_of(started.pid)
    assert len(its) == 4
    started.kill()
    started.communicate(timeout=240)
    wait_until(lambda: not running(mark), "the hosts to end")
    with running_hosts(1):
        wait_until(lambda: not its & traces(), "the kernel to take away what it left")
