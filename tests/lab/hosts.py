"""Real machines on this one, for tests of everything that crosses SSH.

A host has its own network, with an address and a link to a bridge that this machine shares; its own processes, file
systems, name, users and boot id (Linux namespaces); and a real sshd with its own key. Its user's home survives a power
cut. A host sees this machine's programs and the repository, but neither its homes nor its temporary files, and changes
nothing on this machine.

Everything ends with the process that made it, even by kill -9; left-overs of that (an empty bridge, a folder) are
removed by the next one.
"""

import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from tests.lab.left_overs import FOLDER, FOLDERS, remove_left_overs
from tests.lab.network import Link, bridged_network, mount_disk, run, unmount_disk
from tests.lab.processes import command, command_line, namespace, parent, pids, state, wait_until
from tests.sources import ROOT

HOSTS = 4
FIRST_UID = 20_000
SSH_PORT = 22
WAIT_SECONDS = 10.0  # for short waits
PROGRAMS = ("sshd", "ssh", "ssh-keygen", "ip", "tc", "unshare", "nsenter", "setpriv", "mount", "umount", "timeout")
NAMESPACES = ("--mount", "--uts", "--ipc", "--net", "--pid")

SSHD_CONFIG = """\
HostKey /etc/ssh/ssh_host_ed25519_key
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM no
UseDNS no
PidFile /run/sshd.pid
Subsystem sftp /usr/lib/openssh/sftp-server
"""

# What a host's first process does before it sleeps for the rest of its life.
BOOT = """\
set -e
mount --all --fstab "$FILES/fstab"
echo "$NAME" >/proc/sys/kernel/hostname
[ -z "$SSHD" ] || "$SSHD" -E /etc/ssh/sshd.log
cd /
echo up
exec env --ignore-signal=CHLD sleep infinity >/dev/null
"""
HIDDEN = {"/run": "755", "/home": "755", "/root": "755", "/tmp": "1777", "/var/tmp": "1777", "/dev/shm": "1777"}


def why_not() -> str:
    """Return what this machine lacks for such hosts; empty if nothing."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "hosts of their own need Linux, and root"
    missing = [name for name in PROGRAMS if not _program(name)]
    if missing:
        packages = "openssh-server openssh-client iproute2 util-linux"
        return f"hosts of their own need {', '.join(missing)}: apt-get install {packages}"
    tried = subprocess.run([*_unshare(), "true"], capture_output=True, text=True, check=False)
    return f"this machine may not make namespaces: {tried.stderr.strip()}" if tried.returncode else ""


class Host:
    """One machine, initially switched off.

    Args:
        number: from 1.
        files: a folder for what it consists of.
        link: to the other machines.
        disk_mb: the size of a disk of its own for its home; None: this machine's.
    """

    def __init__(self, number: int, files: Path, *, link: Link, disk_mb: int | None) -> None:
        self.name = f"worker{number}"
        self.user = f"player{number}"
        self.link, self.address = link, link.address
        self.python = sys.executable
        self.files = files
        self.disk_mb = disk_mb
        self.home = files / "disk" / "home"  # as this machine sees it
        self.sshd_log = files / "ssh" / "sshd.log"
        self._uid = FIRST_UID + number
        self._first: subprocess.Popen[str] | None = None
        self._pid = 0  # of its first process, on this machine

    def install(self, *, authorized_key: str) -> str:
        """Make its disk, its user with the key that may log in, and its host key, which is returned as a line of
        known_hosts.
        """
        disk = self.files / "disk"
        disk.mkdir(parents=True)
        if self.disk_mb is not None:
            mount_disk(disk, self.disk_mb)
        keys, ssh = self.home / ".ssh" / "authorized_keys", self.files / "ssh"
        for folder in (self.home, keys.parent, ssh):
            folder.mkdir(mode=0o700)
        keys.write_text(authorized_key)
        for path in (self.home, keys.parent, keys):
            os.chown(path, self._uid, self._uid)
        account = f"{self.user}:x:{self._uid}:{self._uid}::/home/{self.user}:/bin/bash\n"
        (self.files / "passwd").write_text(Path("/etc/passwd").read_text(encoding="utf-8") + account)
        (self.files / "group").write_text(
            Path("/etc/group").read_text(encoding="utf-8") + f"{self.user}:x:{self._uid}:\n"
        )
        (self.files / "shadow").write_text(
            "".join(f"{name}:*:19000:0:99999:7:::\n" for name in ("root", "sshd", self.user))
        )
        (ssh / "sshd_config").write_text(SSHD_CONFIG)
        return f"{self.address} {make_key(ssh / 'ssh_host_ed25519_key')}"

    # Power.

    def boot(self, *, sshd: bool = True) -> None:
        """Switch it on: everything is as before, except for the processes."""
        assert self._first is None, f"{self.name} is on already"
        (self.files / "boot_id").write_text(f"{uuid.uuid4()}\n")
        (self.files / "fstab").write_text(self._mounts())
        values = {
            "FILES": str(self.files),
            "NAME": self.name,
            "SSHD": _program("sshd") if sshd else "",
            "PATH": os.environ["PATH"],
        }
        # Its own session, so that Ctrl-C does not reach it before the process that cleans up.
        line = ["setpriv", "--pdeathsig", "KILL", *_unshare(), "sh", "-c", BOOT]
        self._first = subprocess.Popen(
            line,
            env=values,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert self._first.stdout is not None and self._first.stderr is not None
        if self._first.stdout.readline() != "up\n":
            raise RuntimeError(f"{self.name} does not boot: {self._first.stderr.read()}")
        self._pid = next(pid for pid in pids() if parent(pid) == self._first.pid)
        self.link.plug_in(self._pid)
        if sshd:
            self._wait_for_sshd()

    def _mounts(self) -> str:
        """Return what is mounted where on this host, in mounting order."""
        kept = [path for path in dict.fromkeys((ROOT, Path(sys.prefix), Path(sys.base_prefix))) if _hidden(path)]
        shelf = {
            path: f"/run/kept/{number}" for number, path in enumerate(kept)
        }  # for files in folders that are hidden next
        rows = [(self.files / name, f"/etc/{name}", "bind") for name in ("passwd", "group", "shadow", "ssh")]
        rows += [(self.files / "boot_id", "/proc/sys/kernel/random/boot_id", "bind")]
        rows += [(Path("host-run"), "/run", "mode=755"), (Path("host-run-sshd"), "/run/sshd", "mode=755")]
        rows += [
            (self.files / "disk" / "home", "/run/home", "bind"),
            *((path, place, "bind") for path, place in shelf.items()),
        ]
        rows += [(Path(f"host{folder}"), folder, f"mode={mode}") for folder, mode in HIDDEN.items() if folder != "/run"]
        rows += [
            (Path("/run/home"), f"/home/{self.user}", "bind"),
            *((Path(place), str(path), "bind,ro") for path, place in shelf.items()),
        ]
        return "".join(
            f"{_escaped(source)} {_escaped(place)} {kind} {options},X-mount.mkdir 0 0\n"
            for source, place, options in rows
            for kind in ("none" if "bind" in options else "tmpfs",)
        )

    def poweroff(self) -> None:
        """Pull the plug: processes get no chance to react, and no connection is closed. The disk stays."""
        if self._first is None:
            return
        self.link.remove()
        with suppress(ProcessLookupError):
            # The system ends all processes of the host with the first one.
            os.kill(self._pid or self._first.pid, signal.SIGKILL)
        self._first.communicate(timeout=WAIT_SECONDS)
        self._first, self._pid = None, 0

    def freeze(self) -> None:
        """Stop all processes. The system still answers: connections are accepted, but remain silent."""

        def stopped() -> bool:
            running = [pid for pid in self.pids() if state(pid) not in "TZX"]
            for pid in running:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGSTOP)
            return not running

        wait_until(stopped, f"{self.name} to stand still")

    def thaw(self) -> None:
        """Let all processes continue."""
        for pid in self.pids():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    # What runs.

    def start_sshd(self) -> None:
        """Start its sshd, and wait until it listens."""
        run(*self._enter(), _program("sshd"), "-E", "/etc/ssh/sshd.log")
        self._wait_for_sshd()

    def _wait_for_sshd(self) -> None:
        wait_until(self._listens, f"the sshd of {self.name} to listen; see {self.sshd_log}")

    def kill_sshd(self) -> None:
        """Kill its sshd and all sessions; detached processes that they started keep running."""
        self._kill(lambda pid: command(pid).startswith("sshd"))

    def kill(self, text: str) -> list[int]:
        """Kill -9 the processes whose command line contains ``text``; return their ids on this machine."""
        return self._kill(lambda pid: text in command_line(pid))

    def _kill(self, wanted: Callable[[int], bool]) -> list[int]:
        chosen = [pid for pid in self.pids() if pid != self._pid and wanted(pid)]
        for pid in chosen:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        wait_until(lambda: all(state(pid) in "ZX" for pid in chosen), f"processes of {self.name} to end")
        return chosen

    def pids(self) -> list[int]:
        """Return its processes, by their ids on this machine."""
        return [pid for pid in pids() if self._pid and namespace(pid) == namespace(self._pid)]

    def run(
        self, argv: Sequence[str], *, user: str = "", seconds: float = WAIT_SECONDS
    ) -> subprocess.CompletedProcess[str]:
        """Run a program there without SSH, in the home of its user (or of root), and wait for it; 124 means that time
        ran out.
        """
        uid, home = (0, "/root") if user == "root" else (self._uid, f"/home/{self.user}")
        who = [
            "setpriv",
            f"--reuid={uid}",
            f"--regid={uid}",
            "--clear-groups",
            "env",
            f"HOME={home}",
            f"USER={user or self.user}",
        ]
        limited = ["timeout", "--kill-after=1", str(seconds)]
        line = [*self._enter(), *limited, *who, "sh", "-c", f"cd && exec {shlex.join(argv)}"]
        # Into files: a detached process may hold a pipe open for ever.
        with tempfile.TemporaryFile("w+") as stdout, tempfile.TemporaryFile("w+") as stderr:
            done = subprocess.run(line, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr, check=False)
            stdout.seek(0)
            stderr.seek(0)
            return subprocess.CompletedProcess(list(argv), done.returncode, stdout.read(), stderr.read())

    # The disk.

    def fill_disk(self) -> None:
        """Leave no room on its disk."""
        assert self.disk_mb is not None, "only a host with a disk of its own (disk_mb) can have a full one"
        with (self.files / "disk" / "ballast").open("ab", buffering=0) as ballast, suppress(OSError):
            while ballast.write(bytes(2**16)):
                pass

    def free_disk(self) -> None:
        """Undo ``fill_disk``."""
        (self.files / "disk" / "ballast").unlink(missing_ok=True)

    def remove(self) -> None:
        """Switch it off for good."""
        self.poweroff()
        unmount_disk(self.files / "disk")

    def _enter(self) -> list[str]:
        return ["nsenter", "--target", str(self._pid), *NAMESPACES]

    def _listens(self) -> bool:
        rows = Path(f"/proc/{self._pid}/net/tcp").read_text(encoding="ascii").splitlines()[1:]
        return any(row.split()[1].endswith(f":{SSH_PORT:04X}") and row.split()[3] == "0A" for row in rows)


class Hosts(list[Host]):
    """The hosts, and SSH access to them from here.

    Args:
        folder: for all of it.
        network: the first three numbers of all addresses.
    """

    def __init__(self, folder: Path, network: str) -> None:
        super().__init__()
        self.network = network
        self.home = folder / "client"  # $HOME of the client: the key, known_hosts and config are in its .ssh
        self.key = self.home / ".ssh" / "id_ed25519"
        self.known_hosts = self.home / ".ssh" / "known_hosts"
        self.config = self.home / ".ssh" / "config"
        self.key.parent.mkdir(parents=True, mode=0o700)
        self.public_key = make_key(self.key)

    def write_client_files(self, known: Sequence[str]) -> None:
        """Tell SSH about the hosts and their keys."""
        self.known_hosts.write_text("".join(known))
        # ssh takes the home from the user database, not from $HOME, so the paths are absolute.
        common = f"  IdentityFile {self.key}\n  IdentitiesOnly yes\n  UserKnownHostsFile {self.known_hosts}\n"
        strict = "  StrictHostKeyChecking yes\n  BatchMode yes\n"
        hosts = (f"Host {host.name}\n  HostName {host.address}\n  User {host.user}\n{common}{strict}" for host in self)
        self.config.write_text("".join(hosts))

    def ssh(self, *argv: str, seconds: float = WAIT_SECONDS) -> subprocess.CompletedProcess[str]:
        """Return the output of OpenSSH's ``ssh``: ``hosts.ssh("worker1", "hostname")``."""
        line = ["ssh", "-F", str(self.config), "-o", "ConnectTimeout=5", *argv]
        return subprocess.run(
            line, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=seconds, check=False
        )


@contextmanager
def running_hosts(count: int = HOSTS, *, disk_mb: int | None = None) -> Iterator[Hosts]:
    """This many hosts, switched on: ``worker1`` with the user ``player1``, and so on.

    Args:
        disk_mb: the size of a small disk for each host's home, in memory, which can be filled; None: homes on this
        machine's disk.
    """
    remove_left_overs()
    with ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix=f"{FOLDER}{os.getpid()}-", dir=FOLDERS))
        stack.callback(shutil.rmtree, folder)
        bridge, network = stack.enter_context(bridged_network())
        hosts = Hosts(folder, network)
        known = []
        for number in range(1, count + 1):
            link = Link(number, bridge, network)
            host = Host(number, folder / f"worker{number}", link=link, disk_mb=disk_mb)
            stack.callback(host.remove)
            known.append(host.install(authorized_key=hosts.public_key))
            hosts.append(host)
        hosts.write_client_files(known)
        for host in hosts:
            host.boot()
        yield hosts


def make_key(path: Path) -> str:
    """Make a key pair without a passphrase, and return the public one."""
    run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "keima", "-f", path)
    return path.with_name(f"{path.name}.pub").read_text(encoding="ascii")


def _unshare() -> list[str]:
    return ["unshare", *NAMESPACES, "--fork", "--mount-proc", "--kill-child", "--propagation", "private"]


def _hidden(path: Path) -> bool:
    return any(path.is_relative_to(folder) for folder in HIDDEN)


def _escaped(path: object) -> str:
    """Return a path as fstab escapes it."""
    return str(path).replace("\\", "\\134").replace(" ", "\\040").replace("\t", "\\011")


def _program(name: str) -> str:
    """Return where a program is, including administrators' programs; empty if it is missing."""
    return shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin:/sbin") or ""
