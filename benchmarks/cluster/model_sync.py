"""Measure the time to send a new 20x256 model to four machines, against OpenSSH's ``scp`` of its float32 file.

    python benchmarks/cluster/model_sync.py [--rounds 5] [--slow-rounds 2] [--steps 40]

It needs Linux and root, because it creates four hosts. Our time covers everything from tensors here to tensors there:
encoding, computing a delta, four parallel transfers over open connections, and on each host reading the file, applying
the delta, checking the SHA-256 and decoding. ``scp`` runs four times in parallel, each with its own connection, and its
files are not decoded. Both alternate; the median of the rounds' ratios is reported.

All hosts share this machine's cores, so work that four machines would do in parallel is done in sequence.
"""

import argparse
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from keima.cluster.ssh.ssh_transport import SshTransport, connect
from keima.config.flags import whole
from keima.config.sections.workers import WorkerSettings
from keima.games import load_game
from keima.learning.learner import Learner
from keima.networks.files.model_file import (
    Model,
    content_sha256,
    describe_model,
    encode_model,
    save_safetensors,
)
from keima.networks.network import build_network
from keima.worker.model_inbox import ModelInbox
from keima.worker.model_push import InboxFile, ModelPush, PublishedModel
from keima.worker.worker_folder import WorkerFolder
from tests.lab.hosts import Host, Hosts, running_hosts, why_not
from tests.small_networks import FixedWindow

GAME = load_game("tic_tac_toe")  # the game hardly changes the network's size, and steps are fast
NETWORK = {"type": "resnet", "blocks": 20, "channels": 256, "global_pooling": False}
BATCH_SIZE = 16
SLOW_MBIT = 100.0
DIRECTORY = "keima"
TARGETS = {"first push": 0.42, "delta": 0.25}  # of the float32 file's bytes
TARGET_TIME = 0.7  # of scp's


@dataclass(frozen=True)
class Took:
    """Seconds of one push, total and by part; with several hosts, those of the slowest."""

    total: float
    encode: float
    send: float
    verify: float


class Receiver:
    """A program on a host that checks requested models, as a running worker does."""

    def __init__(self, hosts: Hosts, host: Host) -> None:
        line = f"{host.python} {Path(__file__).resolve()} --receive {DIRECTORY}/workers/{host.name}"
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
    folder = WorkerFolder(root).make()
    inbox = ModelInbox(folder)
    print("ready", flush=True)
    for line in sys.stdin:
        version, sha256 = line.split()
        if version == "0":
            inbox = ModelInbox(folder)
            inbox.tidy(10**6)
            print("empty", flush=True)
            continue
        model = inbox.receive(int(version), sha256)
        print(sum(tensor.numel() for tensor in model.weights.values()), flush=True)
        inbox.tidy(int(version))  # a worker plays by now
        print("tidy", flush=True)


class SyncedCluster:
    """Four hosts, with an open connection to each and a receiver on each."""

    def __init__(self, hosts: Hosts) -> None:
        self.hosts = hosts
        machines = [WorkerSettings(host=host.name, name=host.name, directory=f"~/{DIRECTORY}") for host in hosts]
        self.transports: list[SshTransport] = [
            connect(machine, host_key_policy="strict", seconds=30.0) for machine in machines
        ]
        self.receivers = [Receiver(hosts, host) for host in hosts]

    def empty(self) -> None:
        """Delete all models from all inboxes."""
        for receiver in self.receivers:
            receiver.request("0 -")
            receiver.answer()

    def push(
        self, model: Model, version: int, push: ModelPush, base: PublishedModel | None
    ) -> tuple[Took, PublishedModel, int]:
        """Send a model from tensors here to tensors on every host; return also the file, and the bytes sent to each."""
        started = time.perf_counter()
        data = encode_model(model, GAME)
        file = PublishedModel(version=version, data=data, sha256=content_sha256(data))
        sent = push.file_for(file, base)
        encoded = time.perf_counter()
        marks = [(0.0, 0.0)] * len(self.hosts)

        def one(number: int) -> None:
            marks[number] = self._deliver(number, file, sent)

        in_parallel([lambda number=number: one(number) for number in range(len(self.hosts))])  # type: ignore[misc]
        total = time.perf_counter() - started
        for receiver in self.receivers:
            receiver.answer()  # later work is not measured
        took = Took(total, encoded - started, max(put for put, _ in marks), max(checked for _, checked in marks))
        return took, file, len(sent.data)

    def _deliver(self, number: int, file: PublishedModel, sent: InboxFile) -> tuple[float, float]:
        started = time.perf_counter()
        self.transports[number].put(sent.data, f"workers/{self.hosts[number].name}/inbox/{sent.name}", durable=False)
        arrived = time.perf_counter()
        self.receivers[number].request(f"{file.version} {file.sha256}")
        assert int(self.receivers[number].answer()) > 20_000_000
        return arrived - started, time.perf_counter() - arrived

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


def in_parallel(works: Sequence[Callable[[], None]]) -> None:
    """Run all functions at once; raise the first error."""
    errors: list[Exception] = []

    def guarded(work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def trained_models(steps: int) -> tuple[Model, Model]:
    """Return the models after ``steps`` and after ``2 * steps`` training steps."""
    torch.manual_seed(0)
    learner = Learner(build_network(GAME, **NETWORK), batch_size=BATCH_SIZE)  # type: ignore[arg-type]
    window = FixedWindow(GAME, 512)
    models = []
    for version in (1, 2):
        learner.train(window, steps, seed=version)
        models.append(Model(description=describe_model(GAME, NETWORK, version), weights=learner.weights()))
    return models[0], models[1]


def measure_sync(cluster: SyncedCluster, models: tuple[Model, Model], float32: Path, rounds: int) -> None:
    """Alternate ``scp``, first push and delta, and print the times."""
    scps: list[float] = []
    pushes: dict[str, list[Took]] = {name: [] for name in TARGETS}
    shares: dict[str, float] = {}
    size = float32.stat().st_size
    for _ in range(rounds):
        scps.append(cluster.scp(float32))
        cluster.empty()
        push = ModelPush()
        first, base, sent = cluster.push(models[0], 1, push, None)
        pushes["first push"].append(first)
        shares["first push"] = sent / size
        # In a run, all but the first two models were already unpacked for their own deltas.
        push.file_for(base, replace(base, version=0))
        second, _, sent = cluster.push(models[1], 2, push, base)
        pushes["delta"].append(second)
        shares["delta"] = sent / size
    print(f"  scp of float32      {statistics.median(scps):6.2f} s   {size / 1e6:.1f} MB each")
    for name, took in pushes.items():
        ratio = statistics.median(each.total / scp for each, scp in zip(took, scps, strict=True))
        parts = [
            statistics.median(getattr(each, part) for each in took) for part in ("total", "encode", "send", "verify")
        ]
        times = f"{parts[0]:6.2f} s: encode {parts[1]:.2f}, send {parts[2]:.2f}, verify {parts[3]:.2f}"
        time_says, bytes_say = verdict(ratio, TARGET_TIME), verdict(shares[name], TARGETS[name])
        print(f"  {name:<18}{times}   time {ratio:.2f} ({time_says})   bytes {shares[name]:.3f} ({bytes_say})")


def verdict(value: float, target: float) -> str:
    """Return a text about whether a ratio meets its target."""
    return f"at most {target}: {'reached' if value <= target else 'MISSED'}"


def main() -> None:
    """Measure on links without a limit and on slow links."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=whole(), default=5, help="on links without a limit")
    parser.add_argument("--slow-rounds", type=whole(), default=2, help=f"on links of {SLOW_MBIT:.0f} Mbit/s")
    parser.add_argument("--steps", type=whole(), default=40, help="of training before each of the two models")
    parser.add_argument("--receive", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.receive:
        run_receiver(arguments.receive)
        return
    if reason := why_not():
        raise SystemExit(reason)
    models = trained_models(arguments.steps)
    with running_hosts() as hosts:
        os.environ["HOME"] = str(hosts.home)
        float32 = hosts.home / "float32"
        save_safetensors(float32, models[1])
        cluster = SyncedCluster(hosts)
        try:
            for mbit, rounds in ((None, arguments.rounds), (SLOW_MBIT, arguments.slow_rounds)):
                for host in hosts:
                    host.shape(mbit)
                if rounds:
                    print(
                        f"links {'without a limit' if mbit is None else f'of {mbit:.0f} Mbit/s'}, medians of {rounds}:"
                    )
                    measure_sync(cluster, models, float32, rounds)
        finally:
            cluster.close()


if __name__ == "__main__":
    main()
