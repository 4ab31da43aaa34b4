"""Measure how much an open dashboard slows a run on the same machine.

    python benchmarks/speed/dashboard_beside.py [--pairs 40] [--seconds 8] [--browser]

A run of Connect Four with a worker for each core plays and learns all the time. Beside it, in a session of its own as
in another terminal, runs scripts/dashboard.py, and a client that does what the page does: it follows the changes, and
reads curves and state again whenever they are new. Like a browser on another machine, the client takes nothing from the
run. With --browser, a headless Chromium on this machine has the page open instead, with all that it takes.

Segments with the dashboard and without it alternate; without, the dashboard's processes are stopped (SIGSTOP). Two
neighboring segments are a pair, and pairs take turns in which comes first. The figures are medians of the pairs'
ratios, with over without, and their 95 % intervals (of the median, by order statistics):

    evaluations      positions that the workers' networks evaluated, per second, from their heartbeats; pairs in which
                     the workers paused are left out
    processor        processor time that the run received, in all its processes; steadier, because how many evaluations
                     a segment has also depends on when the learner works
    dashboard        processor time that the dashboard takes, in % of a core

The run is busy with all cores, so what the dashboard took would be missing there.
"""

import argparse
import json
import math
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from http.client import HTTPConnection
from pathlib import Path
from typing import NamedTuple

import yaml

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.processor import processor_seconds
from keima.base.system.priority import give_way
from keima.config.flags import number, whole
from keima.config.load import load_settings
from keima.worker.worker_folder import BrokenMessage, WorkerFolder
from tests.report.browser import running_browser
from tests.web.serving import Dashboard, printed_address

CLIENT = "--client"  # begins the arguments of the process that does what the page does
SETTLE_SECONDS = 1.0  # after the dashboard's processes were stopped or continued
WARM_UP_ITERATIONS = 3
PATIENCE = 600.0  # seconds for the run to begin
CHANGES = {
    "run": {"minutes": None, "iterations": None},
    "training": {"games_per_iteration": 200, "learning_rate_schedule": "constant"},
    "evaluation": {"every": 0},
}


class Segment(NamedTuple):
    """What was done in a segment, per second."""

    evaluations: float
    processor: float  # of the run
    dashboard: float  # processor seconds of the dashboard


def config(folder: Path) -> Path:
    """Write the settings of a run without end, with short iterations and without evaluations."""
    values = load_settings(ROOT / "configs" / "quickstart.yaml").model_dump(mode="json")
    for section, changes in CHANGES.items():
        values[section] |= changes
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(values))
    return path


@contextmanager
def program(*words: object) -> Iterator["subprocess.Popen[str]"]:
    """A program in a session of its own, which ends with the block."""
    process = subprocess.Popen(
        [sys.executable, *map(str, words)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        process.send_signal(signal.SIGCONT)
        process.terminate()
        process.wait()


def family(pid: int) -> list[int]:
    """The process and all its descendants."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    found = [pid]
    for each in found:
        found += [child for child, parent in parents.items() if parent == each]
    return found


def processor_seconds_of(pids: Sequence[int]) -> float:
    """The processor time of these processes so far; those that have ended count no more."""
    total = 0.0
    for pid in pids:
        with suppress(OSError):
            total += processor_seconds(pid)
    return total


def evaluations(folder: Path) -> dict[str, tuple[int, float]]:
    """Each worker's evaluations so far, and when it said so."""
    found = {}
    for path in (folder / "workers").glob("*/worker.json"):
        try:
            heartbeat, when = WorkerFolder(path.parent).read_heartbeat(), path.stat().st_mtime
        except (OSError, BrokenMessage):
            continue
        if heartbeat:
            found[path.parent.name] = (heartbeat.evaluations, when)
    return found


def measured(folder: Path, run: int, dashboard: Sequence[int], seconds: float) -> Segment:
    """What is done in these seconds."""
    processes = family(run)
    began, before = time.monotonic(), evaluations(folder)
    spent = processor_seconds_of(processes), processor_seconds_of(dashboard)
    time.sleep(seconds)
    took, after = time.monotonic() - began, evaluations(folder)
    rates = [
        (after[name][0] - done) / (after[name][1] - when)
        for name, (done, when) in before.items()
        if name in after and after[name][1] > when
    ]
    return Segment(
        evaluations=sum(rates),
        processor=(processor_seconds_of(processes) - spent[0]) / took,
        dashboard=(processor_seconds_of(dashboard) - spent[1]) / took,
    )


def pairs_of(measure: Callable[[], Segment], dashboard: Sequence[int], count: int) -> Iterator[tuple[Segment, Segment]]:
    """Pairs of neighboring segments: with the dashboard, and without it."""
    for pair in range(count):
        found = {}
        for shown in (True, False) if pair % 2 else (False, True):
            for pid in dashboard:
                os.kill(pid, signal.SIGCONT if shown else signal.SIGSTOP)
            time.sleep(SETTLE_SECONDS)
            found[shown] = measure()
        yield found[True], found[False]


def median_interval(values: Sequence[float]) -> tuple[float, float, float]:
    """The median, and its 95 % interval from the order of the values (the binomial distribution of how many lie below
    it).
    """
    ordered, count = sorted(values), len(values)
    below, rank = 0.0, 0
    while below + math.comb(count, rank) / 2**count <= 0.025:
        below += math.comb(count, rank) / 2**count
        rank += 1
    low = max(0, rank - 1)
    return statistics.median(ordered), ordered[low], ordered[count - 1 - low]


def follow(port: int, token: str) -> None:
    """Do what the page does, until the dashboard ends; give way, as what runs elsewhere."""
    give_way()
    cookie = {"Cookie": f"keima-{port}={token}"}
    with closing(HTTPConnection("127.0.0.1", port)) as told, closing(HTTPConnection("127.0.0.1", port)) as asked:
        told.request("GET", "/api/changes", headers=cookie)
        for line in told.getresponse():
            if not line.startswith(b"data: {"):
                continue
            change = json.loads(line.removeprefix(b"data: "))
            for part in ("curves", "state"):
                if change[part]:
                    asked.request("GET", f"/api/runs/{change['run']}/{part}", headers=cookie)
                    json.loads(asked.getresponse().read())


def wait_until_it_learns(folder: Path) -> None:
    """Wait for some iterations.

    Raises:
        SystemExit: they take too long.
    """
    until = time.monotonic() + PATIENCE
    metrics = folder / "metrics.jsonl"
    while not metrics.exists() or len(metrics.read_bytes().splitlines()) < WARM_UP_ITERATIONS:
        if time.monotonic() > until:
            raise SystemExit("dashboard_beside.py: the run has not begun to learn")
        time.sleep(1.0)


@contextmanager
def onlooker(served: Dashboard, scratch: Path, *, browser: bool) -> Iterator[list[int]]:
    """Somebody who has the page open; yields the processes whose time counts as the dashboard's."""
    if not browser:
        with program(__file__, CLIENT, served.port, served.token) as client:
            yield [client.pid]
        return
    others = family(os.getpid())
    with running_browser(scratch / "profile") as page:
        page.visit(served.address)
        yield [pid for pid in family(os.getpid()) if pid not in others]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=whole(6), default=40, help="of segments (default: 40)")
    parser.add_argument("--seconds", type=number(above=1.0), default=8.0, help="of a segment (default: 8)")
    parser.add_argument("--browser", action="store_true", help="a headless Chromium on this machine has the page open")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch, "run")
        with program("start_main.py", "--config", config(Path(scratch)), "--run-dir", folder) as run:
            wait_until_it_learns(folder)
            report(run.pid, folder, arguments)


def report(run: int, folder: Path, arguments: argparse.Namespace) -> None:
    """Open the dashboard of the run, measure, and print."""
    with program("dashboard", "--no-browser", folder) as process:
        served = printed_address(process)
        with onlooker(served, folder.parent, browser=arguments.browser) as watching:
            time.sleep(5.0)
            server = family(process.pid)
            counted = [*server, *(pid for each in watching for pid in family(each))] if arguments.browser else server
            stopped = list(dict.fromkeys([*counted, *(pid for each in watching for pid in family(each))]))
            found = list(pairs_of(lambda: measured(folder, run, counted, arguments.seconds), stopped, arguments.pairs))
            for pid in stopped:
                os.kill(pid, signal.SIGCONT)
    print(f"{'':12} {'with':>10} {'without':>10} {'ratio':>7}  95 % interval")
    for name in ("evaluations", "processor"):
        values = [(getattr(shown, name), getattr(alone, name)) for shown, alone in found]
        values = [pair for pair in values if all(pair)]  # workers pause when their games wait for the learner
        ratio, low, high = median_interval([shown / alone for shown, alone in values])
        shown, alone = (statistics.median(each) for each in zip(*values, strict=True))
        print(f"{name:12} {shown:10,.2f} {alone:10,.2f} {ratio:7.4f}  {low:.4f} to {high:.4f}")
    print(f"{'dashboard':12} {100 * statistics.median(shown.dashboard for shown, _ in found):9.2f} % of a core")


if __name__ == "__main__":
    follow(int(sys.argv[2]), sys.argv[3]) if sys.argv[1:2] == [CLIENT] else main()
