"""Measure how fast the dashboard loads a large run, and how much memory it takes.

    python benchmarks/speed/dashboard_load.py [--workers 100] [--iterations 2000]

The files are those of an invented run on other machines: metrics.jsonl with all iterations, progress.json with all
workers, and a ledger with their accounts and as many events as iterations. The lines:

    start         from the command to the printed address
    first load    everything that the page requests, one after the other
    next load     the same again, when the files are known
    new report    the state, after progress.json was replaced
    browser       a headless Chromium, from the address to all charts and cards drawn; if it is installed
    memory        of the server's processes together, at the end (proportional set size: shared memory counts in parts)

After each time stands the server's processor time, which tells more on a machine that is busy with other work.
"""

import argparse
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from http.client import HTTPConnection
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.speed.dashboard_beside import family, processor_seconds_of
from keima.base.files import write_atomically
from keima.base.reports import ClusterReport, RemoteDetails, RemoteStanding
from keima.base.run_lock import RunLock
from keima.config.flags import whole
from keima.data.ledger import open_ledger
from keima.games import load_game
from keima.report.files.progress_file import PROGRESS_NAME, ProgressFile
from keima.report.files.run_files import METRICS_NAME, MetricsFile
from tests.example_reports import evaluation, iteration, progress, worker
from tests.report.browser import running_browser
from tests.web.serving import Dashboard, printed_address

SECONDS = 60.0  # for an answer
REPEATS = 15
CHARTS = 8  # at least, that the page draws


def invented_run(folder: Path, workers: int, iterations: int) -> None:
    """Write the files of a run."""
    folder.mkdir()
    metrics = MetricsFile(folder / METRICS_NAME)
    for number in range(1, iterations + 1):
        metrics.iteration(iteration(number, measured=evaluation(number), workers=(worker(0), worker(1))))
    standing = RemoteStanding(mark="Active", share=1 / workers, last_batch=3.0)
    all_workers = tuple(replace(worker(i), name=f"worker{i}", standing=standing) for i in range(1, workers + 1))
    details = {
        each.name: RemoteDetails(machine=each.name, since=60.0, sent=10**7, received=10**8, disk_free=10**11)
        for each in all_workers
    }
    cluster = ClusterReport(
        active=workers,
        total=workers,
        sync_seconds=2.0,
        network_mb_per_minute=30.0,
        standings={each.name: standing for each in all_workers},
        details=details,
    )
    ProgressFile(folder / PROGRESS_NAME).progress(replace(progress(iterations, workers=all_workers), cluster=cluster))
    with open_ledger(folder, load_game("connect_four")) as ledger:
        ledger.grant_all({each.name: 1000 for each in all_workers})
        for number in range(iterations):
            ledger.add_event("note", f"event {number} of the run", worker=all_workers[number % workers].name)


class Taken(NamedTuple):
    """What something took."""

    seconds: float
    processor: float  # seconds, of the server

    def __str__(self) -> str:
        return f"{self.seconds:7.3f} s, processor {self.processor:6.3f} s"


def taken(server: Sequence[int], work: Callable[[], object], repeats: int = 1) -> Taken:
    """What this takes: the median time of several calls, and the mean processor time."""
    before, times = processor_seconds_of(server), []
    for _ in range(repeats):
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    return Taken(statistics.median(times), (processor_seconds_of(server) - before) / repeats)


class Page:
    """What a browser requests, over one connection."""

    def __init__(self, served: Dashboard) -> None:
        self._connection = HTTPConnection("127.0.0.1", served.port, timeout=SECONDS)
        self._cookie = {"Cookie": f"keima-{served.port}={served.token}"}
        self.received = 0  # bytes

    def get(self, path: str) -> bytes:
        """The content at a path."""
        self._connection.request("GET", path, headers=self._cookie)
        answer = self._connection.getresponse()
        assert answer.status == 200, path
        content = answer.read()
        self.received += len(content)
        return content

    def load(self) -> None:
        """Everything that the page needs."""
        text = self.get("/").decode()
        for name in re.findall(r'(?:src|href)="(/[^"]+)"', text):
            self.get(name)
        for path in ("/api/runs", "/api/runs/0/curves", "/api/runs/0/state"):
            self.get(path)


def memory(pid: int) -> float:
    """The memory of a process and its children, in MB."""
    rollups = [Path(f"/proc/{each}/smaps_rollup").read_text() for each in family(pid)]
    return sum(int(size) for text in rollups for size in re.findall(r"(?m)^Pss: +(\d+) kB", text)) / 1e3


def in_browser(served: Dashboard, scratch: Path, workers: int) -> float:
    """The seconds until a browser has drawn everything."""
    drawn = "return [document.querySelectorAll('figure').length, document.querySelectorAll('.card').length]"
    with running_browser(scratch / "profile") as browser:
        began = time.perf_counter()
        browser.visit(served.address)
        while True:
            charts, cards = browser.found(drawn)
            if charts >= CHARTS and cards == workers:
                return time.perf_counter() - began
            time.sleep(0.01)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=whole(1), default=100)
    parser.add_argument("--iterations", type=whole(2), default=2000)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch, "run")
        invented_run(folder, arguments.workers, arguments.iterations)
        line = [sys.executable, "dashboard", "--no-browser", str(folder)]
        began = time.perf_counter()
        with RunLock(folder), subprocess.Popen(line, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
            served, server = printed_address(process), family(process.pid)
            print(f"start       {Taken(time.perf_counter() - began, processor_seconds_of(server))}")
            measure(Page(served), folder, server)
            if shutil.which("chromium") and shutil.which("chromedriver"):
                print(f"browser     {in_browser(served, Path(scratch), arguments.workers):7.3f} s")
            print(f"memory      {memory(process.pid):6.0f} MB")
            process.terminate()


def measure(page: Page, folder: Path, server: Sequence[int]) -> None:
    """Print the times of the page's requests."""
    first = taken(server, page.load)
    print(f"first load  {first}, {page.received / 1e6:.1f} MB")
    print(f"next load   {taken(server, page.load, REPEATS)}")
    file = folder / PROGRESS_NAME

    def report() -> None:
        write_atomically(file, file.read_bytes(), durable=False)
        page.get("/api/runs/0/state")

    print(f"new report  {taken(server, report, REPEATS)}")


if __name__ == "__main__":
    main()
