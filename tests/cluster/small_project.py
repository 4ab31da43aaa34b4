"""A minimal checkout: its worker reports who it is, and hands over when it is asked to end."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from keima.cluster.agent.commands import StopRequest
from keima.cluster.agent.process import find_running, stop_process_group
from keima.config.sections.workers import WorkerSettings
from keima.paths import CACHE

PATIENCE = 120.0

WORKER = """
import os, signal, sys, time
from pathlib import Path

if "--test-games" in sys.argv:
    print("tested", sys.argv[sys.argv.index("--test-games") + 1])
    sys.exit("NO_GPU" in os.environ)

folder = Path(sys.argv[sys.argv.index("--folder") + 1])
stubborn = "STUBBORN" in os.environ

def end(number, frame):
    print("handing over", flush=True)
    if not stubborn:
        (folder / "handed-over").touch()
        sys.exit(0)

signal.signal(signal.SIGTERM, end)
with (folder / "begun").open("a") as file:
    file.write(f"{os.getpid()}\\n")
seen = {"argv": sys.argv, "env": dict(os.environ), "cwd": os.getcwd()}
(folder / "seen.json").write_text(__import__("json").dumps(seen))
print("the worker begins", flush=True)
while True:
    time.sleep(0.05)
"""


def make_project(root: Path, *, worker: str = WORKER, module: str = "") -> Path:
    """A project in ``root`` that has a file of each kind."""
    files = {
        "keima/__main__.py": worker,
        "keima/games/__init__.py": "",
        "keima/search/worker.py": "x = 1\n",
        "keima/data/table.npz": "data",
        "keima/cluster/__init__.py": "",
        "keima/config/__init__.py": "",
        "keima/cluster/agent/make_environment.sh": "true\n",
    }
    if module:
        files[f"{module}.py"] = "class CustomWorker: ...\n"
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def settings(**values: object) -> WorkerSettings:
    """Return one machine, whose Python is the one that runs the tests."""
    return WorkerSettings.model_validate({"host": "worker1", "python": sys.executable, **values})


def wait_until(done: Callable[[], object]) -> None:
    """Wait for the effect of another process."""
    deadline = time.monotonic() + PATIENCE
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def end_all(root: Path) -> None:
    """End everything that was started in the folders below ``root``."""
    for record in root.rglob("process.json"):
        found = find_running(record.parent)
        if found and found["pid"] not in (os.getpid(), os.getppid()):
            stop_process_group(StopRequest(str(record.parent), 0.0))


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A machine's folder, in an empty home; nothing that is started there outlives the test."""
    folder = tmp_path / "keima"
    folder.mkdir()
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))  # checkouts in the own home count as the machine's
    monkeypatch.setenv("KEIMA_CACHE", str(CACHE))
    yield folder
    end_all(folder)


def ask(program: Path, root: Path, command: str, request: object) -> subprocess.Popen[bytes]:
    """Run the program of a machine as the main node does."""
    argv = [sys.executable, "-I", str(program), "n1", command, json.dumps(request)]
    return subprocess.Popen(argv, cwd=root, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
