"""Let runs go on for hours beside each other, and check that nothing is lost and no process grows.

    python -m tests.trials.soak --hours 3 --runs 8 --report soak.json
    python -m tests.trials.soak tic_tac_toe quickstart --hours 2 --games-per-iteration 50     a week's iterations

Each run is a real ``keima train`` of a shipped game with a worker of its own, and a dashboard shows them all. The
first half of the runs is left alone. To each of the others something happens every ten minutes: its wall clock steps by
an hour or a day, forward or back; all its processes stop for half a minute and the clock is an hour later, as when a
laptop sleeps; or it ends by Ctrl-C and is resumed in another time zone. Only Python's wall clock steps, and monotonic
clocks do not. Windows are small, so that they are full soon.

Growth is that of the private memory of each process that has lived to the end, after ``--settled`` of the time, by a
line through its samples. Exit code: 1 if a run has ended by itself, a game is lost, or an audit fails.
"""

import argparse
import contextlib
import json
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table

from keima.base.files import write_atomically
from keima.base.system.processes import end_program
from keima.base.system.signals import INTERRUPTED
from keima.cli.reports.audit import audit
from keima.data.ledger import NoSuchRun, read_ledger
from tests.chaos.scene import SHIM
from tests.lab.processes import command_line, parent, wait_until
from tests.trials.kill import session_members

ROOT = Path(__file__).resolve().parents[2]
GAMES = (
    "quickstart",
    "tic_tac_toe",
    "games/othello.yaml",
    "games/three_player_connect_four.yaml",
    "games/hex7.yaml",
    "games/einstein.yaml",
    "go7",
    "games/gomoku.yaml",
    "twenty48",
    "games/corner_four.yaml",
)
SMALL = (
    "run.iterations=null",
    "self_play.workers=1",
    "training.window.max_positions=20000",
    "training.window.min_positions=1000",
)
SAMPLE_SECONDS = 20.0
EVENT_SECONDS = 600.0
SLEEP_SECONDS = 30.0
END_SECONDS = 300.0
SLOW_START_SECONDS = 60.0  # of a dashboard
HOUR, DAY = 3600.0, 86400.0
ZONES = ("Pacific/Kiritimati", "America/New_York", "Asia/Kathmandu", "UTC")


@dataclass
class Sample:
    """What a process used at one time."""

    at: float  # seconds since the trial began
    memory: int  # bytes of private memory
    descriptors: int
    threads: int


@dataclass
class Run:
    """A run of the trial, in a process session of its own."""

    config: str
    folder: Path
    games_per_iteration: int
    events: list[str] = field(default_factory=list)
    offset: float = 0.0  # seconds that its wall clock is ahead
    process: subprocess.Popen[bytes] | None = None

    @property
    def run_dir(self) -> Path:
        return self.folder / "run"

    def begin(self, hours: float, zone: str) -> None:
        """Start or resume it."""
        verb = ["resume", str(self.run_dir)] if (self.run_dir / "run.db").exists() else ["train", self.config]
        changes = (*SMALL, f"training.games_per_iteration={self.games_per_iteration}")
        words = [word for change in changes for word in ("--set", change)] if verb[0] == "train" else []
        where = ["--run-dir", str(self.run_dir)] if verb[0] == "train" else []
        environment = {**os.environ, "PYTHONPATH": str(self.folder / "clock"), "TZ": zone}
        with (self.folder / "output").open("ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "keima", *verb, *words, *where, "--hours", str(hours)],
                cwd=ROOT,
                env=environment,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def step(self, seconds: float) -> None:
        """Step its wall clock."""
        self.offset += seconds
        write_atomically(self.folder / "clock" / "offset", str(self.offset).encode(), durable=False)

    def end(self) -> int:
        """End it by Ctrl-C and return its exit code."""
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(END_SECONDS)
        code = self.process.poll()
        for pid in session_members(self.process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()
        return -signal.SIGKILL if code is None else code


class Soak:
    """Several runs, a dashboard, and what they use."""

    def __init__(
        self, folder: Path, *, configs: Sequence[str], hours: float, seed: int, games_per_iteration: int
    ) -> None:
        self.folder, self.seconds, self.hours = folder, hours * HOUR, hours
        self.chance = random.Random(seed)
        self.began = time.monotonic()
        self.problems: list[str] = []
        self.samples: dict[tuple[str, int], list[Sample]] = defaultdict(list)
        self.names: dict[tuple[str, int], str] = {}
        self.runs = [self._new_run(number, config, games_per_iteration) for number, config in enumerate(configs)]
        self.eventful = self.runs[len(configs) // 2 :]
        self._browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
        self.asleep: dict[int, float] = {}  # when a run wakes up, by its number

    def _new_run(self, number: int, config: str, games_per_iteration: int) -> Run:
        folder = self.folder / f"run{number}"
        (folder / "clock").mkdir(parents=True)
        (folder / "clock" / "sitecustomize.py").write_text(SHIM)
        return Run(config=config, folder=folder, games_per_iteration=games_per_iteration)

    def now(self) -> float:
        """Return the seconds since the trial began."""
        return time.monotonic() - self.began

    def go(self) -> None:
        """Run until the time is over, then end everything and check it."""
        for run in self.runs:
            run.begin(self.hours + 1.0, "UTC")
        next_event, next_sample = EVENT_SECONDS, SAMPLE_SECONDS
        with self._dashboard() as (dashboard, address):
            while self.now() < self.seconds:
                time.sleep(1.0)
                self._wake()
                if self.now() >= next_sample:
                    next_sample += SAMPLE_SECONDS
                    self._look(address)
                    self._sample("dashboard", [dashboard], dashboard)
                    for run in self.runs:
                        self._sample_run(run)
                if self.now() >= next_event:
                    next_event += EVENT_SECONDS
                    for number, run in enumerate(self.eventful):
                        self._befall(number, run)
            self._wake(everyone=True)
        self._end()

    @contextlib.contextmanager
    def _dashboard(self) -> Iterator[tuple[int, str]]:
        output = self.folder / "dashboard.output"
        wait_until(lambda: all((run.run_dir / "run.db").exists() for run in self.runs), "all runs", seconds=END_SECONDS)
        words = [sys.executable, "-m", "keima", "dashboard", *(str(run.run_dir) for run in self.runs), "--no-browser"]
        with output.open("wb") as file:
            process = subprocess.Popen(words, cwd=ROOT, stdout=file, stderr=file)
        try:
            wait_until(lambda: "http://" in output.read_text(), "the dashboard's address", seconds=END_SECONDS)
            yield process.pid, re.findall(r"http://\S+", output.read_text())[0]
        finally:
            if process.poll() is not None:
                self.problems.append(f"the dashboard has ended with {process.returncode}")
            end_program(process, END_SECONDS)

    def _look(self, address: str) -> None:
        """Open the dashboard as a browser does."""
        try:
            with self._browser.open(address, timeout=60.0) as page:
                page.read()
        except OSError as error:
            if self.now() > SLOW_START_SECONDS:
                self.problems.append(f"{self.now():.0f} s: the dashboard does not answer: {error}")

    # What befalls the runs.

    def _befall(self, number: int, run: Run) -> None:
        kind = self.chance.choice(("hour", "day", "back", "sleep", "zone"))
        run.events.append(f"{self.now():.0f} s: {kind}")
        if kind == "sleep":
            self._signal(run, signal.SIGSTOP)
            self.asleep[number] = self.now() + SLEEP_SECONDS
        elif kind == "zone":
            self._end_run(run)
            run.begin(self.hours + 1.0, self.chance.choice(ZONES))
        else:
            run.step({"hour": HOUR, "day": DAY, "back": -self.chance.choice((HOUR, DAY))}[kind])

    def _wake(self, *, everyone: bool = False) -> None:
        for number, at in list(self.asleep.items()):
            if everyone or self.now() >= at:
                del self.asleep[number]
                self.eventful[number].step(HOUR)
                self._signal(self.eventful[number], signal.SIGCONT)

    def _signal(self, run: Run, number: signal.Signals) -> None:
        assert run.process is not None
        for pid in session_members(run.process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    # What they use.

    def _sample_run(self, run: Run) -> None:
        assert run.process is not None
        if run.process.poll() is not None:
            self.problems.append(f"{self.now():.0f} s: {run.config} has ended with {run.process.returncode}")
            run.begin(self.hours + 1.0, "UTC")
        self._sample(run.config, session_members(run.process.pid), run.process.pid)

    def _sample(self, name: str, members: list[int], main: int) -> None:
        for pid in members:
            try:
                status = dict(
                    line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":" in line
                )
                descriptors = len(list(Path(f"/proc/{pid}/fd").iterdir()))
                memory = int(status["RssAnon"].split()[0]) * 1024
            except (OSError, KeyError):
                continue
            self.names.setdefault((name, pid), _role(pid, main))
            self.samples[name, pid].append(Sample(self.now(), memory, descriptors, int(status["Threads"])))

    # The end.

    def _end_run(self, run: Run) -> None:
        if (code := run.end()) != INTERRUPTED:
            self.problems.append(f"{self.now():.0f} s: {run.config} ended with {code} after Ctrl-C")

    def _end(self) -> None:
        for run in self.runs:
            self._end_run(run)
            try:
                self.problems += [f"{run.config}: {problem}" for problem in audit(run.run_dir).problems]
            except NoSuchRun as error:
                self.problems.append(f"{run.config}: {error}")
            if left := list(run.run_dir.glob("workers/*/outbox/*.games")):
                self.problems.append(f"{run.config}: {len(left)} batches were left in an outbox")

    def rows(self, settled: float) -> list[dict[str, object]]:
        """Return what each process used that lived from before ``settled`` of the time to the end."""
        found: list[dict[str, object]] = []
        for (name, pid), samples in self.samples.items():
            late = [sample for sample in samples if sample.at >= settled * self.seconds]
            if (
                len(late) < 5
                or samples[0].at > settled * self.seconds
                or late[-1].at < self.seconds - 3 * SAMPLE_SECONDS
            ):
                continue
            times, memory = [sample.at for sample in late], [sample.memory for sample in late]
            slope = statistics.linear_regression(times, memory).slope
            found.append(
                {
                    "run": name,
                    "process": self.names[name, pid],
                    "MB": round(statistics.median(memory) / 1e6, 1),
                    "percent a day": round(100 * DAY * slope / statistics.median(memory), 2),
                    "MB first, last": [round(memory[0] / 1e6, 2), round(memory[-1] / 1e6, 2)],
                    "descriptors": [late[0].descriptors, late[-1].descriptors],
                    "threads": [late[0].threads, late[-1].threads],
                }
            )
        return found

    def totals(self) -> list[dict[str, object]]:
        """Return what each run has done, and its files."""
        found: list[dict[str, object]] = []
        for run in self.runs:
            with read_ledger(run.run_dir) as ledger:
                games = sum(row.games for row in ledger.batches() if row.state == "received")
                iterations = len(ledger.iterations())
            files = [path for path in run.run_dir.rglob("*") if path.is_file()]
            size = sum(path.stat().st_size for path in files) / 1e6
            found.append(
                {
                    "run": run.config,
                    "games": games,
                    "iterations": iterations,
                    "files": len(files),
                    "MB": round(size, 1),
                    "events": run.events,
                }
            )
        return found


def _role(pid: int, main: int) -> str:
    """Return what a process of a run is."""
    if pid == main:
        return "main"
    if "resource_tracker" in command_line(pid):
        return "resource tracker"
    return "fork server" if parent(pid) == main else "worker"


def main() -> int:
    """Run the trial and print what it found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("configs", nargs="*", help="one for each run (default: ten shipped ones, as many as --runs)")
    parser.add_argument("--hours", type=float, default=3.0, help="of each run (default: 3)")
    parser.add_argument("--runs", type=int, default=8, help="beside each other (default: 8)")
    parser.add_argument("--games-per-iteration", type=int, default=200, help="few: more iterations (default: 200)")
    parser.add_argument("--settled", type=float, default=0.4, help="share of the time before growth counts")
    parser.add_argument("--seed", type=int, default=1, help="of what befalls whom")
    parser.add_argument("--folder", type=Path, help="keep the runs there (default: a temporary folder)")
    parser.add_argument("--report", type=Path, metavar="FILE", help="keep all samples there, as JSON")
    arguments, console = parser.parse_args(), Console(soft_wrap=True)
    folder = arguments.folder or Path(tempfile.mkdtemp(prefix="keima-soak-"))
    soak = Soak(
        folder,
        configs=arguments.configs or [GAMES[number % len(GAMES)] for number in range(arguments.runs)],
        hours=arguments.hours,
        seed=arguments.seed,
        games_per_iteration=arguments.games_per_iteration,
    )
    try:
        soak.go()
    finally:
        for run in soak.runs:
            if run.process is not None:
                soak._signal(run, signal.SIGCONT)
                run.end()
    processes, totals = soak.rows(arguments.settled), soak.totals()
    for rows in (processes, totals):
        if rows:
            table = Table(*rows[0])
            for row in rows:
                table.add_row(*map(str, row.values()))
            console.print(table)
    for problem in soak.problems:
        console.print(problem, markup=False)
    if arguments.report:
        samples = {
            f"{name} {pid}": [vars(sample) for sample in samples] for (name, pid), samples in soak.samples.items()
        }
        found = {"processes": processes, "runs": totals, "problems": soak.problems}
        arguments.report.write_text(json.dumps(found | {"samples": samples}))
    return 1 if soak.problems else 0


if __name__ == "__main__":
    sys.exit(main())
