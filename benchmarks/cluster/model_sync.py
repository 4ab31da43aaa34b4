"""Measure the time to send a new 20x256 model to four machines, against OpenSSH's ``scp`` of its float32 file.

    python benchmarks/cluster/model_sync.py [--rounds 5] [--slow-rounds 2] [--steps 40]

It needs Linux and root, because it creates four hosts. Our time covers everything from tensors here to tensors there:
encoding, computing a delta, four parallel transfers over open connections, and on each host reading the file, applying
the delta, checking the SHA-256 and decoding. ``scp`` runs four times in parallel, each with its own connection, and its
files are not decoded. The last column is the share of the float32 file's bytes; 0.42 and 0.25 were wanted, in 0.7 of
scp's time.

All hosts share this machine's cores, so work that four machines would do in parallel is done in sequence.
"""

import os
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from multiprocessing.pool import ThreadPool
from pathlib import Path
from statistics import median
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.harness import Parser, Report, divide_rounds
from keima.cluster.ssh.ssh_transport import connect
from keima.config.flags import whole
from keima.config.sections.workers import WorkerSettings
from keima.games import load_game
from keima.learning.learner import Learner
from keima.networks.files.heading import stored_sha256
from keima.networks.files.model import Model, describe_model, encode_model, save_safetensors
from keima.networks.network import build_network
from keima.worker.model_inbox import ModelInbox
from keima.worker.model_push import ModelPush, PublishedModel
from keima.worker.worker_folder import WorkerFolder
from tests.lab.hosts import Host, Hosts, running_hosts, why_not
from tests.small_networks import FixedWindow

GAME = load_game("tic_tac_toe")  # the game hardly changes the network's size, and steps are fast
NETWORK: dict[str, Any] = {"type": "resnet", "blocks": 20, "channels": 256, "global_pooling": False}
QUICK_NETWORK = {**NETWORK, "blocks": 2, "channels": 64}
BATCH_SIZE = 16
SLOW_MBIT = 100.0
DIRECTORY = "keima"
RECEIVE = "--receive"  # begins the arguments of a receiver


@dataclass(frozen=True)
class Took:
    """Seconds of one push, total and by part; with several hosts, those of the slowest. And the bytes sent to each."""

    total: float
    encode: float
    send: float
    verify: float
    sent: int


class Receiver:
    """A program on a host that checks requested models, as a running worker does."""

    def __init__(self, hosts: Hosts, host: Host) -> None:
        line = f"{host.python} {Path(__file__).resolve()} {RECEIVE} {DIRECTORY}/workers/{host.name}"
        self._ssh = subprocess.Popen(
            ["ssh", "-F", str(hosts.config), host.name, line], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.answer()

    def request(self, line: str) -> None:
        """Request the check of a model by version and SHA-256; version 0: delete all."""
        assert self._ssh.stdin is not None
        print(line, file=self._ssh.stdin, flush=True)

    def answer(self) -> str:
        """Wait for its answer and return it."""
        assert self._ssh.stdout is not None
        line = self._ssh.stdout.readline().strip()
        if not line:
            raise RuntimeError("a receiver has ended")
        return line

    def close(self) -> None:
        """End it."""
        assert self._ssh.stdin is not None
        self._ssh.stdin.close()
        self._ssh.wait()


def run_receiver(root: Path) -> None:
    """Run the receiver on a host."""
    torch.set_num_threads(1)
    folder = WorkerFolder(root).create_folders()
    inbox = ModelInbox(folder)
    print("ready", flush=True)
    for line in sys.stdin:
        version, sha256 = line.split()
        if version == "0":
            inbox = ModelInbox(folder)
            inbox.remove_other_models(10**6)
            print("empty", flush=True)
            continue
        model = inbox.receive_model(int(version), sha256)
        print(len(model.weights), flush=True)
        inbox.remove_other_models(int(version))  # a worker plays by now
        print("tidy", flush=True)


class SyncedCluster:
    """Four hosts, with an open connection to each and a receiver on each."""

    def __init__(self, hosts: Hosts) -> None:
        self.hosts = hosts
        machines = [WorkerSettings(host=host.name, name=host.name, directory=f"~/{DIRECTORY}") for host in hosts]
        self.transports = [connect(machine, host_key_policy="strict", seconds=30.0) for machine in machines]
        self.receivers = [Receiver(hosts, host) for host in hosts]

    def empty(self) -> None:
        """Delete all models from all inboxes."""
        for receiver in self.receivers:
            receiver.request("0 -")
            receiver.answer()

    def push(
        self, model: Model, version: int, push: ModelPush, base: PublishedModel | None
    ) -> tuple[Took, PublishedModel]:
        """Send a model from tensors here to tensors on every host; return also the file."""
        began = time.perf_counter()
        data = encode_model(model, GAME)
        file = PublishedModel(version=version, data=data, sha256=stored_sha256(data))
        sent = push.file_for(file, base)
        encoded = time.perf_counter()

        def deliver(host: Host) -> tuple[float, float]:
            number, then = self.hosts.index(host), time.perf_counter()
            self.transports[number].put(sent.data, f"workers/{host.name}/inbox/{sent.name}", durable=False)
            arrived = time.perf_counter()
            self.receivers[number].request(f"{version} {file.sha256}")
            assert int(self.receivers[number].answer()) == len(model.weights)
            return arrived - then, time.perf_counter() - arrived

        with ThreadPool(len(self.hosts)) as pool:
            marks = pool.map(deliver, self.hosts, chunksize=1)
        total = time.perf_counter() - began
        for receiver in self.receivers:
            receiver.answer()  # later work is not measured
        send, verify = (max(column) for column in zip(*marks, strict=True))
        return Took(total, encoded - began, send, verify, len(sent.data)), file

    def scp(self, path: Path) -> float:
        """Return the seconds of four parallel ``scp``s of a file."""
        started = time.perf_counter()
        line = ["scp", "-q", "-F", str(self.hosts.config), str(path)]
        copies = [subprocess.Popen([*line, f"{host.name}:float32"]) for host in self.hosts]
        assert [copy.wait() for copy in copies] == [0] * len(copies)
        return time.perf_counter() - started

    def close(self) -> None:
        """Disconnect from the hosts."""
        for transport in self.transports:
            transport.close()
        for receiver in self.receivers:
            receiver.close()


def train_models(network: dict[str, Any], steps: int) -> tuple[Model, Model]:
    """Train a network, and return the models after ``steps`` and after ``2 * steps`` training steps."""
    torch.manual_seed(0)
    learner = Learner(build_network(GAME, **network), batch_size=BATCH_SIZE)
    window = FixedWindow(GAME, 512)
    models = []
    for version in (1, 2):
        learner.train(window, steps, seed=version)
        models.append(Model(description=describe_model(GAME, network, version), weights=learner.weights()))
    return models[0], models[1]


def measure_sync(report: Report, title: str, cluster: SyncedCluster, models: tuple[Model, Model], rounds: int) -> None:
    """Let ``scp``, the first push and the delta take turns, and print the times."""
    float32 = cluster.hosts.home / "float32"
    save_safetensors(float32, models[1])
    scps, first, delta = list[float](), list[Took](), list[Took]()
    for _ in range(rounds):
        scps.append(cluster.scp(float32))
        cluster.empty()
        push = ModelPush()
        took, base = cluster.push(models[0], 1, push, None)
        first.append(took)
        # In a run, all but the first two models were already unpacked for their own deltas.
        push.file_for(base, replace(base, version=0))
        delta.append(cluster.push(models[1], 2, push, base)[0])
    table = report.table(title, "way", "seconds", "encode", "send", "verify", "of scp's time", "of its bytes")
    table.add("scp of float32", median(scps), None, None, None, None, None)
    for name, pushes in (("first push", first), ("delta", delta)):
        parts = [median(getattr(each, part) for each in pushes) for part in ("total", "encode", "send", "verify")]
        ratio = divide_rounds([each.total for each in pushes], scps)
        table.add(name, *parts, ratio, pushes[-1].sent / float32.stat().st_size)


def main() -> None:
    """Measure on links without a limit and on slow links."""
    parser = Parser(__doc__, rounds=5)
    parser.option("--slow-rounds", whole(0), 2, quick=0, help=f"on links of {SLOW_MBIT:.0f} Mbit/s")
    parser.option("--steps", whole(), 40, quick=2, help="of training before each of the two models")
    arguments = parser.parse()
    if reason := why_not():
        raise SystemExit(reason)
    with Report(arguments) as report, running_hosts() as hosts:
        os.environ["HOME"] = str(hosts.home)
        models = train_models(QUICK_NETWORK if arguments.quick else NETWORK, arguments.steps)
        cluster = SyncedCluster(hosts)
        try:
            measure_sync(report, "Links without a limit", cluster, models, arguments.rounds)
            for host in hosts:
                host.link.shape(SLOW_MBIT)
            if arguments.slow_rounds:
                measure_sync(report, f"Links of {SLOW_MBIT:.0f} Mbit/s", cluster, models, arguments.slow_rounds)
        finally:
            cluster.close()


if __name__ == "__main__":
    run_receiver(Path(sys.argv[2])) if sys.argv[1:2] == [RECEIVE] else main()
