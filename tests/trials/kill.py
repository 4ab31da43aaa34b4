"""Kill a run repeatedly, resume it each time, and check that nothing is lost and nothing counts twice.

    python -m tests.trials.kill --kills 20 --seed 1
    python -m tests.trials.kill --kills 20 --config configs/tic_tac_toe.yaml

Every session of ``start_main.py`` is killed by ``kill -9`` at a random moment: very early, while it plays and trains,
or while it is ending; all of its processes at once, or the main one alone, in which case the workers must die with it.
After each kill no process may be left and the ledger must balance. In the end every batch that had been complete
anywhere must have been received once, and every session must have begun with exactly the learner and window of its
checkpoint.
"""

import argparse
import contextlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

import yaml

from keima.cli.reports.audit import audit
from keima.data.ledger import NoSuchRun, read_ledger
from tests.small_run import small_settings

ROOT = Path(__file__).resolve().parents[2]
LONGEST_SESSION = 20.0  # seconds before the kill
ORPHAN_SECONDS = 120.0  # processes that die with their parent must have ended by then
END_SECONDS = 120.0
BATCH_SECONDS = 400.0  # from a cold compile cache, on a busy machine
RECOVERABLE = "resume the run to enter it"
SAVED = re.compile(r": (checkpoint-\d+): (learner .*)$")
RESUMED = re.compile(r": resumed from (checkpoint-\d+): (learner .*)$")


@dataclass
class Findings:
    """The findings of the trial."""

    kills: int = 0
    kinds: dict[str, int] = field(default_factory=dict)
    sessions_with_checkpoint: int = 0  # that resumed from a checkpoint whose fingerprint the log has
    batches_seen: int = 0  # complete in an outbox or in games/ after some kill
    batches_received: int = 0
    games_received: int = 0
    iterations: int = 0
    problems: list[str] = field(default_factory=list)


@contextlib.contextmanager
def session(config: Path, run_dir: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A run's session in its own process session: Ctrl-C does not reach it, so it is ended here whatever happens."""
    resume = ["--resume"] if (run_dir / "run.db").exists() else []
    command = [sys.executable, str(ROOT / "start_main.py"), "--config", str(config), "--run-dir", str(run_dir), *resume]
    with run_dir.with_suffix(".out").open("ab") as output:
        process = subprocess.Popen(command, cwd=ROOT, stdout=output, stderr=output, start_new_session=True)
    try:
        yield process
    finally:
        kill(process, alone=False)


def session_members(session: int) -> list[int]:
    """Return the living processes of a session."""
    members = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        if int(fields[3]) == session and fields[0] not in "ZX":
            members.append(int(stat.parent.name))
    return members


def kill(process: subprocess.Popen[bytes], *, alone: bool) -> list[int]:
    """Kill the session, or its main process ``alone``; return the processes that have outlived it for too long."""
    if process.poll() is None:
        (os.kill if alone else os.killpg)(process.pid, signal.SIGKILL)
        process.wait()
    deadline = time.monotonic() + ORPHAN_SECONDS
    while (left := session_members(process.pid)) and time.monotonic() < deadline:
        time.sleep(0.1)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    return left


def heartbeats(run_dir: Path) -> set[bytes]:
    """Return the workers' last heartbeats."""
    found = set()
    for path in run_dir.glob("workers/*/worker.json"):
        with contextlib.suppress(FileNotFoundError):
            found.add(path.read_bytes())
    return found


def wait_for_play(process: subprocess.Popen[bytes], run_dir: Path, patience: float) -> None:
    """Wait until a worker of this session has reported."""
    before, deadline = heartbeats(run_dir), time.monotonic() + patience
    while process.poll() is None and time.monotonic() < deadline and not heartbeats(run_dir) - before:
        time.sleep(0.1)


def batches_received(run_dir: Path) -> int:
    """Return how many batches the ledger has."""
    try:
        with read_ledger(run_dir) as ledger:
            return len(ledger.received_batches())
    except NoSuchRun:
        return 0


def wait_for_batch(process: subprocess.Popen[bytes], run_dir: Path) -> None:
    """Wait until this session has received games, which on a busy machine takes longer than earlier kills allow."""
    before, deadline = batches_received(run_dir), time.monotonic() + BATCH_SECONDS
    while process.poll() is None and time.monotonic() < deadline and batches_received(run_dir) == before:
        time.sleep(0.5)


def one_kill(config: Path, run_dir: Path, chance: random.Random, found: Findings) -> None:
    """Start a session and kill it."""
    kind = chance.choice(["early", "running", "running", "ending"])
    alone = chance.random() < 0.5
    with session(config, run_dir) as process:
        if kind == "early":
            time.sleep(chance.uniform(0.0, 6.0))
        else:
            wait_for_play(process, run_dir, END_SECONDS)
            time.sleep(chance.uniform(0.0, LONGEST_SESSION))
        if kind == "ending":
            process.send_signal(signal.SIGINT)
            time.sleep(chance.uniform(0.0, 1.5))
        ended = process.poll()
        if ended is not None and not (kind == "ending" and ended == 130):
            found.problems.append(f"session {found.kills + 1} ended by itself with exit code {ended}")
        left = kill(process, alone=alone)
    found.kills += 1
    name = f"{kind}, {'main process alone' if alone else 'all processes'}"
    found.kinds[name] = found.kinds.get(name, 0) + 1
    if left:
        found.problems.append(f"after kill {found.kills} these processes were left: {left}")


def complete_batches(run_dir: Path) -> set[str]:
    """Return the batches that are complete somewhere."""
    return {path.stem for pattern in ("workers/*/outbox/*.games", "games/*.games") for path in run_dir.glob(pattern)}


def check_ledger(run_dir: Path, found: Findings, *, ended: bool) -> None:
    """Check whether the ledger balances; a file that was about to be entered is received by the next session."""
    try:
        problems = audit(run_dir).problems
    except NoSuchRun:
        return
    found.problems += [f"after kill {found.kills}: {text}" for text in problems if ended or RECOVERABLE not in text]


def check_fingerprints(run_dir: Path, found: Findings) -> None:
    """Check whether each session began with the state of its checkpoint."""
    lines = (run_dir / "coach.log").read_text().splitlines()
    saved = {match[1]: match[2] for line in lines if (match := SAVED.search(line))}
    for match in filter(None, map(RESUMED.search, lines)):
        if match[1] in saved:
            found.sessions_with_checkpoint += 1
            if saved[match[1]] != match[2]:
                found.problems.append(f"{match[1]} was saved as {saved[match[1]]}, and resumed as {match[2]}")


def check_receipts(run_dir: Path, seen: set[str], found: Findings) -> None:
    """Check whether every batch that was ever complete is in the ledger once."""
    with read_ledger(run_dir) as ledger:
        rows = [row for row in ledger.batches() if row.state == "received"]
        found.iterations = len(ledger.iterations())
    times = Counter(row.id for row in rows)
    found.batches_seen, found.batches_received, found.games_received = (
        len(seen),
        len(rows),
        sum(row.games for row in rows),
    )
    found.problems += [
        f"batch {batch} was complete, and is {times[batch]} times in the ledger"
        for batch in sorted(seen)
        if times[batch] != 1
    ]


def trial(config: Path, run_dir: Path, *, kills: int, seed: int) -> Findings:
    """Kill and resume, then let the run end by itself and check everything."""
    found, chance = Findings(), random.Random(seed)
    seen: set[str] = set()
    for _ in range(kills):
        one_kill(config, run_dir, chance, found)
        seen |= complete_batches(run_dir)
        check_ledger(run_dir, found, ended=False)
    with session(config, run_dir) as process:
        wait_for_batch(process, run_dir)
        process.send_signal(signal.SIGINT)
        if process.wait(END_SECONDS) != 130:
            found.problems.append(f"the last session ended with exit code {process.returncode} instead of 130")
    if list(run_dir.glob("workers/*/outbox/*.games")):
        found.problems.append("after a clean end there are games left in an outbox")
    check_ledger(run_dir, found, ended=True)
    check_fingerprints(run_dir, found)
    check_receipts(run_dir, seen, found)
    return found


def small_config(folder: Path) -> Path:
    """Return an endless run of tic-tac-toe, small enough to do everything that a run does within seconds."""
    changes = {"self_play": {"workers": 2}, "evaluation": {"every": 1, "num_simulations": 8, "rating_games": 4}}
    settings = small_settings(folder, run={"iterations": None}, **changes)
    path = folder / "kill.yaml"
    path.write_text(yaml.safe_dump(settings.model_dump(mode="json")))
    return path


def main() -> int:
    """Run the trial and print the findings as JSON; exit code 1 if anything was wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--config", type=Path, help="of a run without an end (default: a tiny one of tic-tac-toe)")
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="keima-kill-"))
    found = trial(arguments.config or small_config(folder), folder / "run", kills=arguments.kills, seed=arguments.seed)
    sys.stdout.write(json.dumps({"folder": str(folder)} | asdict(found), indent=1) + "\n")
    return 1 if found.problems else 0


if __name__ == "__main__":
    sys.exit(main())
