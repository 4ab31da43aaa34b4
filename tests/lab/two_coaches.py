"""Two Coaches, each with its own run, use the same hosts and take them from each other; then every game is searched
for.

    python tests/lab/two_coaches.py --minutes 10

The second run takes over the first run's workers; half of them are taken back; the first Coach is killed, and the
second one takes what has become free; the first one comes back and takes all. Every finished batch on any host must be
in the ledger of its run, none in the other's, and both audits must balance. It needs Linux and root. Exit code: 0 if
all of that holds, 1 if not (each problem is named), 2 if this machine cannot have hosts.
"""

import argparse
import json
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from rich.console import Console

from keima.data.ledger import read_ledger
from keima.data.ledger_rows import QUARANTINED, RECEIVED
from keima.worker.worker_folder import is_batch_of_run
from tests.lab.driver import ACTIVE, Driver, driven
from tests.lab.hosts import Host, Hosts, running_hosts, why_not

START_SECONDS = 900.0  # on a machine that is busy with other work
CHANGE_SECONDS = 300.0


@dataclass(kw_only=True)
class Meeting:
    """The result."""

    hosts: int
    seconds: float = 0.0
    takeovers: int = 0
    batches_seen: int = 0  # that were complete on a host at some time
    games: dict[str, int] = field(default_factory=dict)  # in the ledger of each run
    lost: list[str] = field(default_factory=list)
    foreign: list[str] = field(default_factory=list)  # batches in the other's ledger, or refused there
    problems: list[str] = field(default_factory=list)


class Pair:
    """Two Coaches on the same hosts."""

    def __init__(self, first: Driver, second: Driver, hosts: Hosts, log_event: Callable[[str], None]) -> None:
        self.first, self.second, self.hosts, self._log_event = first, second, hosts, log_event
        self.meeting = Meeting(hosts=len(hosts))

    def play(self, seconds: float) -> None:
        """Let both continue for this long."""
        until = time.monotonic() + seconds
        self.wait(lambda: time.monotonic() >= until, "the time to pass", seconds=seconds + CHANGE_SECONDS)

    def wait(self, condition: Callable[[], object], what: str, *, seconds: float = CHANGE_SECONDS) -> None:
        """Wait for a condition, and record every batch on every host meanwhile."""
        self.first.wait(condition, what, seconds=seconds) if self.first.runs else self.second.wait(
            condition, what, seconds=seconds
        )

    def plays_for(self, driver: Driver, hosts: Sequence[Host]) -> None:
        """Wait until these hosts' workers play for one Coach, and the other one, if it runs, shows them in Error."""
        other = self.second if driver is self.first else self.first
        run = driver.run_dir.name

        def settled() -> bool:
            mine, theirs = driver.states(), other.workers() if other.runs else {}
            shown = [theirs.get(host.name, {}) for host in hosts] if other.runs else []
            refused = all(f"plays for run {run} (" in str(worker.get("reason")) for worker in shown)
            return refused and all(mine.get(host.name) == ACTIVE for host in hosts)

        self.wait(settled, f"{[host.name for host in hosts]} to play for run {run} alone")

    def take_over(self, driver: Driver, hosts: Sequence[Host]) -> None:
        """Take over each of these hosts' workers, as a user does."""
        for host in hosts:
            done = driver.connector("--takeover", host.name)
            assert done.returncode == 0, done.stderr
        self.meeting.takeovers += 1
        self.plays_for(driver, hosts)
        self._log_event(
            f"takeover {self.meeting.takeovers}: {', '.join(host.name for host in hosts)} play for run {run_of(driver)}"
        )

    def count(self) -> Meeting:
        """Search for every game."""
        meeting, seen = self.meeting, self.first.seen | self.second.seen
        meeting.batches_seen = len(seen)
        for driver in (self.first, self.second):
            run = run_of(driver)
            with read_ledger(driver.run_dir) as ledger:
                rows = ledger.batches()
            received = {row.id for row in rows if row.state == RECEIVED}
            meeting.games[run] = sum(row.games for row in rows if row.state == RECEIVED)
            meeting.lost += sorted(batch for batch in seen - received if is_batch_of_run(f"{batch}.games", run))
            meeting.foreign += sorted(batch for batch in received if not is_batch_of_run(f"{batch}.games", run))
            meeting.foreign += [f"{row.id}, refused: {row.reason}" for row in rows if row.state == QUARANTINED]
            meeting.problems += [f"audit of run {run}: {problem}" for problem in driver.audit().problems]
        return meeting


def run_of(driver: Driver) -> str:
    """Return the id of a driver's run."""
    with read_ledger(driver.run_dir) as ledger:
        return ledger.run_id


def meet(folder: Path, hosts: Hosts, *, seconds: float, log_event: Callable[[str], None]) -> Meeting:
    """Let two Coaches play on the same hosts for about this long, with three takeovers."""
    (folder / "first").mkdir()
    (folder / "second").mkdir()
    count, part = len(hosts), seconds / 4
    with (
        driven(folder / "first", hosts, in_config=count) as first,
        driven(folder / "second", hosts, in_config=count, installed=True) as second,
    ):
        pair = Pair(first, second, hosts, log_event)
        first.start()
        first.wait_until_all_play(count, seconds=START_SECONDS)
        began = time.monotonic()
        second.start()
        pair.wait(
            lambda: (second.run_dir / "run.db").exists() and len(second.states()) == count, "the second Coach to begin"
        )
        pair.plays_for(first, hosts)
        log_event(f"run {run_of(first)} plays on {count} hosts, and run {run_of(second)} is told so")
        pair.play(part)
        pair.take_over(second, hosts)
        pair.play(part)
        pair.take_over(first, hosts[: count // 2])
        pair.play(part)
        first.kill()
        pair.plays_for(second, hosts)
        log_event(f"run {run_of(first)} was killed, and its hosts play for run {run_of(second)}")
        first.start("--distributed", "--takeover")
        pair.meeting.takeovers += 1
        pair.plays_for(first, hosts)
        log_event(f"takeover {pair.meeting.takeovers}: all hosts play for run {run_of(first)}, which is back")
        pair.play(part)
        pair.wait(lambda: not aside(hosts, run_of(second)), "what is set aside to be handed in")
        for driver in (second, first):
            code = driver.interrupt()
            if code != 128 + signal.SIGINT:
                pair.meeting.problems.append(f"a Coach ended with exit code {code} after Ctrl-C")
            driver.poll()
        pair.meeting.seconds = round(time.monotonic() - began, 1)
        return pair.count()


def aside(hosts: Hosts, run: str) -> list[Path]:
    """Return the batches that are set aside for a run."""
    return [path for host in hosts for path in (host.home / "keima" / "workers").glob(f"*.{run}/outbox/*.games")]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0, help="of play, with three takeovers (default: 10)")
    parser.add_argument("--hosts", type=int, default=4, help="how many machines both Coaches list (default: 4)")
    arguments, console = parser.parse_args(argv), Console(soft_wrap=True, highlight=False, markup=False)
    if reason := why_not():
        console.print(f"two_coaches.py: {reason}")
        return 2
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with running_hosts(arguments.hosts) as hosts, tempfile.TemporaryDirectory() as folder:
        meeting = meet(Path(folder), hosts, seconds=60.0 * arguments.minutes, log_event=console.print)
    console.print(json.dumps(asdict(meeting), indent=1))
    return 1 if meeting.lost or meeting.foreign or meeting.problems else 0


if __name__ == "__main__":
    sys.exit(main())
