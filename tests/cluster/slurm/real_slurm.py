"""Debian's Slurm on this machine: a controller and two nodes of one core each, in a folder, ended with the test.

Each node daemon has a host name of its own (a UTS namespace), so that workers on two nodes see each other as being on
other machines that share the folder. Ports are on loopback. Nothing of the system's own Slurm or munge is used.
"""

import os
import secrets
import shutil
import socket
import subprocess
import time
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

PROGRAMS = ("slurmctld", "slurmd", "munged", "sbatch", "squeue", "scancel", "scontrol", "unshare")
PATIENCE = 60.0
NODES = ("node1", "node2")
CONFIG = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={root}/munge.socket,cred_expire={requeue}
SlurmctldPort={port}
StateSaveLocation={root}/state
SlurmdSpoolDir={root}/spool.%n
SlurmctldPidFile={root}/slurmctld.pid
SlurmdPidFile={root}/slurmd.%n.pid
SlurmctldLogFile={root}/slurmctld.log
SlurmdLogFile={root}/slurmd.%n.log
SlurmctldDebug=info
SlurmdDebug=info
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=2,sched_interval=2,batch_sched_delay=1
ReturnToService=2
KillWait=10
MinJobAge=300
SlurmdTimeout={timeout}
PropagateResourceLimits=NONE
{nodes}
PartitionName=debug Nodes=node[1-2] Default=YES MaxTime=60 State=UP
PartitionName=small Nodes=node1 MaxTime=60 State=UP
"""


def missing() -> str:
    """Return why Slurm cannot be run here; empty if it can."""
    lacking = [name for name in PROGRAMS if shutil.which(name) is None]
    if lacking:
        return f"{lacking[0]} is not installed (apt-get install slurm-wlm munge)"
    return "" if os.geteuid() == 0 else "only root can give the nodes host names of their own"


class RealSlurm:
    """A controller and two nodes.

    Args:
        root: a folder, with a short path.
        requeue_seconds: that a requeued job waits before it may begin again.
    """

    def __init__(self, root: Path, *, requeue_seconds: int = 5, node_timeout: int = 300) -> None:
        self.root = root
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        for name in ("state", *(f"spool.{node}" for node in NODES)):
            (root / name).mkdir(parents=True)
        ports = free_ports(1 + len(NODES))
        nodes = "\n".join(
            f"NodeName={node} NodeHostname={node} NodeAddr=127.0.0.1 Port={port} CPUs=1 RealMemory=2000 State=UNKNOWN"
            for node, port in zip(NODES, ports[1:], strict=True)
        )
        host = socket.gethostname().split(".")[0]
        text = CONFIG.format(
            root=root, host=host, port=ports[0], nodes=nodes, requeue=requeue_seconds, timeout=node_timeout
        )
        (root / "slurm.conf").write_text(text)
        (root / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
        (root / "munge.key").write_bytes(secrets.token_bytes(1024))
        (root / "munge.key").chmod(0o400)

    @property
    def environment(self) -> dict[str, str]:
        """Variables with which Slurm's commands find this cluster."""
        return {**os.environ, "SLURM_CONF": str(self.root / "slurm.conf")}

    def start(self) -> None:
        """Start the daemons, and wait until both nodes are idle."""
        root = self.root
        munge = [f"--{name}={root}/munge.{end}" for name, end in (("socket", "socket"), ("pid-file", "pid"))]
        munge += [f"--{name}={root}/munge.{end}" for name, end in (("key-file", "key"), ("log-file", "log"))]
        self._run("munged", ["munged", "--foreground", "--force", f"--seed-file={root}/munge.seed", *munge])
        wait_for(lambda: (root / "munge.socket").exists(), "munged")
        self._run("slurmctld", ["slurmctld", "-D", "-i", "-f", str(root / "slurm.conf")])
        for node in NODES:
            self.start_node(node)
        self.wait_for_nodes()

    def wait_for_nodes(self) -> None:
        """Wait until both nodes are there."""
        wait_for(
            lambda: set(self.command("sinfo", "-h", "-N", "-p", "debug", "-o", "%T").split()) <= {"idle", "allocated"},
            "the nodes",
            self.logs,
        )

    def start_node(self, node: str) -> None:
        """Start the daemon of a node."""
        daemon = f"hostname {node} && exec slurmd -D -f {self.root / 'slurm.conf'}"
        self._run(node, ["unshare", "--uts", "sh", "-c", daemon])

    def kill_node(self, node: str) -> None:
        """Kill a node's daemon and everything that it has started, as if its machine had lost power."""
        for pid in [*self._of_node(node), self._processes[node].pid]:
            with suppress(ProcessLookupError):
                os.kill(pid, 9)
        self._processes.pop(node).wait()

    def _of_node(self, node: str) -> list[int]:
        """Return the processes in the node's UTS namespace."""
        with suppress(FileNotFoundError):
            ours = Path(f"/proc/{self._processes[node].pid}/ns/uts").readlink()
            return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit() and uts(path) == ours]
        return []

    def command(self, *argv: str) -> str:
        """Run one of Slurm's commands and return what it prints."""
        done = subprocess.run(argv, env=self.environment, capture_output=True, text=True, timeout=240)
        return done.stdout if done.returncode == 0 else f"{done.stdout}{done.stderr}"

    def logs(self) -> str:
        """Return the ends of the daemons' logs."""
        found = [self.command("sinfo", "-N", "-l"), self.command("scontrol", "show", "node")]
        for path in sorted(self.root.glob("*.log")):
            found.append(f"{path.name}:\n{path.read_text(errors='replace')[-3000:]}")
        return "\n".join(found)

    def stop(self) -> None:
        """End all jobs and daemons."""
        if "slurmctld" in self._processes:
            self.command("scancel", f"--user={os.getuid()}", "--state=PENDING,RUNNING")
        for node in NODES:
            if node in self._processes:
                self.kill_node(node)
        for process in self._processes.values():
            process.terminate()
        for process in self._processes.values():
            with suppress(subprocess.TimeoutExpired):
                process.wait(10.0)
            process.kill()
            process.wait()

    def _run(self, name: str, argv: list[str]) -> None:
        with (self.root / f"{name}.out").open("ab") as output:
            self._processes[name] = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=self.environment
            )


def uts(path: Path) -> Path | None:
    with suppress(OSError):
        return (path / "ns" / "uts").readlink()
    return None


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    ports = []
    for each in sockets:
        with closing(each):
            each.bind(("127.0.0.1", 0))
            ports.append(each.getsockname()[1])
    return ports


def wait_for(
    condition: Callable[[], bool], what: str, told: Callable[[], str] = str, *, seconds: float = PATIENCE
) -> None:
    """Wait until the condition holds; otherwise fail and tell what was seen."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"{what} took longer than {seconds:g} s\n{told()}"
        time.sleep(0.2)
