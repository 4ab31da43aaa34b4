"""The network and the disks of the hosts: a bridge that this machine shares, and a link from it to each host.

All labs build theirs here, so that what killed processes leave is found in one place (tests/lab/left_overs.py).
"""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.lab.left_overs import BRIDGE

SUBNETS = 512  # of 198.18.0.0/15, which is set aside for experiments with networks
INSIDE = "eth0"  # the name of a link's end in its host


def run(*argv: object, text: str = "") -> None:
    """Run a program that must succeed, and give it a text to read."""
    subprocess.run([str(word) for word in argv], input=text, capture_output=True, text=True, check=True)


@contextmanager
def bridged_network() -> Iterator[tuple[str, str]]:
    """Make an unused bridge to which this machine is connected; yield it and the first three numbers of its network."""
    for number in ((os.getpid() + i) % SUBNETS for i in range(SUBNETS)):
        bridge, network = f"{BRIDGE}{number}", f"198.{18 + number // 256}.{number % 256}"
        line = ["ip", "link", "add", bridge, "type", "bridge"]
        made = subprocess.run(line, capture_output=True, text=True, check=False)
        if made.returncode == 0:
            break
        if "exists" not in made.stderr:
            raise RuntimeError(f"no bridge can be made: {made.stderr.strip()}")
    else:
        raise RuntimeError("no bridge can be made: all networks are used")
    try:
        run("ip", "link", "set", bridge, "alias", f"{BRIDGE} {os.getpid()}")
        run("ip", "addr", "add", f"{network}.254/24", "dev", bridge)
        run("ip", "link", "set", bridge, "up")
        yield bridge, network
    finally:
        run("ip", "link", "del", bridge)


class Link:
    """The link of a host, which exists while the host is switched on.

    Args:
        number: the host's, from 1.
        bridge: what it leads to.
        network: the first three numbers of its address.
    """

    def __init__(self, number: int, bridge: str, network: str) -> None:
        self.bridge, self.address = bridge, f"{network}.{number}"
        self._network, self._name = network, f"{bridge}-{number}"
        self._mac = "02:6b:{:02x}:{:02x}:{:02x}:{:02x}".format(*map(int, self.address.split(".")))
        self._mbit: float | None = None
        self._pid = 0

    def plug_in(self, pid: int) -> None:
        """Lead the link to the network of a process."""
        self._pid = pid
        peer = ("peer", "name", INSIDE, "address", self._mac, "netns", pid)
        run("ip", "link", "add", self._name, "type", "veth", *peer)
        up = f"link set lo up\nlink set {INSIDE} up"
        route = f"addr add {self.address}/24 dev {INSIDE}\n{up}\nroute add default via {self._network}.254\n"
        self._run_inside("ip", "-batch", "-", text=route)
        self.heal()
        mbit, self._mbit = self._mbit, None
        self.shape(mbit)

    def remove(self) -> None:
        """Remove it, if it exists."""
        with suppress(subprocess.CalledProcessError):  # the process may have ended, and the link with it
            run("ip", "link", "del", self._name)

    def cut(self) -> None:
        """Unplug the cable."""
        run("ip", "link", "set", self._name, "down")

    def blackhole(self) -> None:
        """Lose every packet on the way, without unplugging the cable."""
        run("ip", "link", "set", self._name, "nomaster")

    def heal(self) -> None:
        """Undo ``cut`` and ``blackhole``."""
        run("ip", "link", "set", self._name, "master", self.bridge, "up")

    def shape(self, mbit: float | None) -> None:
        """Limit the link to this many megabits per second in each direction; None: no limit."""
        for tc, device in ((run, self._name), (self._run_inside, INSIDE)):
            if self._mbit is not None:
                tc("tc", "qdisc", "del", "dev", device, "root")
            if mbit is not None:
                limit = ("tbf", "rate", f"{mbit}mbit", "burst", "64kb", "latency", "50ms")
                tc("tc", "qdisc", "add", "dev", device, "root", *limit)
        self._mbit = mbit

    def _run_inside(self, *argv: object, text: str = "") -> None:
        run("nsenter", "--target", self._pid, "--net", *argv, text=text)


def mount_disk(folder: Path, mb: int) -> None:
    """Mount an empty disk of a size there, in memory."""
    run("mount", "-t", "tmpfs", "-o", f"size={mb}m,mode=755", "tmpfs", folder)


def unmount_disk(folder: Path, *, lazily: bool = False) -> None:
    """Unmount the disk there, if there is one; lazily: though files on it are open."""
    if os.path.ismount(folder):
        run("umount", *(["--lazy"] if lazily else []), folder)
