"""Peers with their environments and trainings, each in a folder of its own."""

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from benchmarks.strength.peers.adapter import Task, Trained, read_trained, write_task
from benchmarks.strength.peers.adapter_player import AdapterPlayer

HERE = Path(__file__).resolve().parent
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
NO_ACCELERATOR = {"CUDA_VISIBLE_DEVICES": "", "JAX_PLATFORMS": "cpu"}
INSTALLED = "installed.txt"  # the requirements of an environment, once it is complete


@dataclass(frozen=True, kw_only=True)
class Peer:
    """A program that trains networks.

    Attributes:
        adapter: see adapter.py.
        requirements: of its environment; None: it runs in Keima's.
        settings: the names of its sets of settings.
    """

    name: str
    adapter: Path
    requirements: Path | None
    settings: tuple[str, ...]


PEERS = {
    peer.name: peer
    for peer in (
        Peer(name="keima", adapter=HERE / "keima_peer.py", requirements=None, settings=("authors", "quick")),
        Peer(
            name="openspiel",
            adapter=HERE / "openspiel_peer.py",
            requirements=HERE / "openspiel.txt",
            settings=("authors", "tuned", "quick"),
        ),
        Peer(
            name="pgx",
            adapter=HERE / "pgx_peer.py",
            requirements=HERE / "pgx.txt",
            settings=("authors", "tuned", "quick"),
        ),
    )
}


def find_python(peer: Peer, folder: Path) -> Path:
    """Return the interpreter of a peer's environment below the folder."""
    return Path(sys.executable) if peer.requirements is None else folder / "environments" / peer.name / "bin" / "python"


def install(peer: Peer, folder: Path) -> None:
    """Make a peer's environment, unless it is complete.

    Raises:
        subprocess.CalledProcessError: pip cannot install it.
    """
    if peer.requirements is None:
        return
    python, wanted = find_python(peer, folder), peer.requirements.read_text(encoding="utf-8")
    installed = python.parents[1] / INSTALLED
    if installed.exists() and installed.read_text(encoding="utf-8") == wanted:
        return
    print(f"Installing {peer.name}", flush=True)
    subprocess.run([sys.executable, "-m", "venv", "--clear", python.parents[1]], check=True)
    subprocess.run([python, "-m", "pip", "install", "--quiet", "--requirement", peer.requirements], check=True)
    installed.write_text(wanted, encoding="utf-8")


def make_environment(threads: int) -> dict[str, str]:
    """Return the variables of a peer's process, which computes with so many threads and without an accelerator."""
    return {**os.environ, **NO_ACCELERATOR, **dict.fromkeys(THREADS, str(threads))}


@dataclass(frozen=True, kw_only=True)
class PeerRun:
    """A training of a peer, below a folder."""

    peer: Peer
    task: Task
    folder: Path

    @property
    def path(self) -> Path:
        """Its own folder."""
        task = self.task
        return self.folder / f"{self.peer.name}-{task.settings}-{task.minutes:g}min-{task.cores}cores-{task.seed}"

    def trained(self) -> Trained | None:
        """Return what it has done; None: it has not ended."""
        return read_trained(self.path)

    def train(self) -> None:
        """Train, unless it has ended; one that was interrupted begins again.

        Raises:
            ChildProcessError: it fails.
        """
        if self.trained():
            return
        print(f"Training {self.path.name}", flush=True)
        shutil.rmtree(self.path, ignore_errors=True)
        write_task(self.path, self.task)
        with (self.path / "train.log").open("w") as log:
            subprocess.run(self._line("train"), env=make_environment(self.task.cores), stdout=log, stderr=log)
        if not self.trained():
            raise ChildProcessError(f"{self.path.name} has failed: see {self.path / 'train.log'}")

    def player(self, simulations: int) -> AdapterPlayer:
        """Return its last network as a player, with a process for each core."""
        return AdapterPlayer(
            self._line("choose", simulations),
            processes=self.task.cores,
            environment=make_environment(1),
            log=self.path / "choose.log",
        )

    def _line(self, command: str, *words: object) -> list[str]:
        return [*map(str, (find_python(self.peer, self.folder), self.peer.adapter, command, self.path, *words))]
