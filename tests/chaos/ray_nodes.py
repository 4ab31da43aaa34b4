"""Kill nodes of a Ray cluster while a run trains on it, and check that no received game is lost and none counts twice.

    python tests/chaos/ray_nodes.py --nodes 3 --kills 30 --seed 1

The nodes are raylets of this machine, each with a home of its own. A killed node comes back with its disk, or without
it (its home is deleted), or another takes its place. It needs Ray (requirements-ray.txt). Exit code: 0 if all went
well, 1 if not (each problem is named), 2 without Ray.
"""

import argparse
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from rich.console import Console

from keima.config.flags import whole
from keima.data.ledger import read_ledger
from tests.cluster.ray.nodes import Nodes, ray_nodes
from tests.cluster.ray.ray_run import RayRun, ray_run
from tests.lab.driver import in_time

START_SECONDS = 600.0
ACTIVE_SECONDS = 35.0  # until a new node plays
RETURNS = ("with its disk", "with an empty disk", "as another node")


@dataclass
class Outcome:
    """What happened."""

    kills: int = 0
    noticed: list[float] = field(default_factory=list)  # seconds
    active: list[float] = field(default_factory=list)  # seconds from the moment when Ray has the node
    problems: list[str] = field(default_factory=list)
    totals: dict[str, int] = field(default_factory=dict)


@dataclass
class Watched:
    """A kill and what comes after it."""

    number: int
    node: str  # that comes instead
    how: str
    workers: set[str]  # that were killed
    killed: float
    there: float = 0.0  # when Ray has the node
    noticed: float | None = None  # seconds


class Campaign:
    """Kills of nodes under a run, one after the other, while earlier ones may still come back.

    Args:
        run: the run, with all workers Active.
        nodes: the cluster.
        chance: draws which node is killed, when, and how it comes back.
        log_event: called with each line for the user.
    """

    def __init__(self, run: RayRun, nodes: Nodes, chance: random.Random, log_event: Callable[[str], None]) -> None:
        self.outcome = Outcome()
        self._run, self._nodes, self._chance, self._log_event = run, nodes, chance, log_event
        self._received: set[str] = set()
        self._made = len(nodes.names)
        self._watched: list[Watched] = []

    def kill_one(self) -> None:
        """Kill a node on which a worker plays, and bring one back."""
        self._play_on(self._chance.uniform(0.5, 4.0))
        self._run.wait(lambda: self._watch() and self._playing(), "a worker to play")
        node = self._chance.choice(self._playing())
        kill = Watched(
            number=self.outcome.kills + 1,
            node=node,
            how=self._chance.choice(RETURNS),
            workers=self._run.workers_now_on(node),
            killed=time.monotonic(),
        )
        self._nodes.kill(node)
        self.outcome.kills += 1
        if kill.how == RETURNS[1]:
            shutil.rmtree(self._nodes.home(node), ignore_errors=True)
        elif kill.how == RETURNS[2]:
            self._made += 1
            kill.node = f"node{self._made}"
        self._nodes.add(kill.node)
        kill.there = time.monotonic()
        self._watched.append(kill)
        self._watch()

    def _playing(self) -> list[str]:
        """Return the nodes with an Active worker."""
        active = self._run.active()
        return [node for node in self._nodes.names if self._run.workers_now_on(node) & active]

    def _watch(self) -> bool:
        """Note which kills have been noticed, and which nodes play again; return True."""
        active, now = self._run.active(), time.monotonic()
        for kill in list(self._watched):
            if kill.noticed is None and not kill.workers & active:
                kill.noticed = now - kill.killed
            elif kill.node not in self._nodes.names:  # killed again before it played
                self._watched.remove(kill)
            elif self._run.workers_now_on(kill.node) & active:
                self._finish(kill, now - kill.there)
        return True

    def _finish(self, kill: Watched, active: float) -> None:
        self._watched.remove(kill)
        self.outcome.active.append(active)
        self.outcome.noticed += [kill.noticed] if kill.noticed is not None else []
        noticed = "back before it was noticed" if kill.noticed is None else f"noticed after {kill.noticed:4.1f} s"
        self._log_event(f"{kill.number:3d}  {noticed}, back {kill.how}: plays after {active:4.1f} s")
        if active > in_time(ACTIVE_SECONDS):
            self.outcome.problems.append(f"after kill {kill.number} the new node played after {active:.0f} s")

    def _play_on(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self._watch()
            time.sleep(0.1)
        self._check()

    def _check(self) -> None:
        """What was received stays received, once."""
        found = self._run.received()
        twice = [batch for batch, times in Counter(found).items() if times > 1]
        gone = self._received - set(found)
        self._received = set(found)
        self.outcome.problems += [f"{batch} is in the ledger twice" for batch in twice]
        self.outcome.problems += [f"{batch} was received, and is no longer in the ledger" for batch in sorted(gone)]

    def end(self) -> None:
        """Wait until all nodes play, end the run and audit it."""
        self._run.wait(lambda: self._watch() and not self._watched, "all nodes to play")
        if (code := self._run.interrupt()) != 130:
            self.outcome.problems.append(f"the program ended with {code}")
        self._check()
        self.outcome.problems += self._run.audit().problems
        with read_ledger(self._run.run_dir) as ledger:
            accounts, batches = ledger.accounts().values(), ledger.batches()
        refused = [batch for batch in batches if batch.state == "quarantined"]
        self.outcome.problems += [f"{batch.id} was refused: {batch.reason}" for batch in refused]
        missing = self._run.left_on_nodes() - {batch.id for batch in batches}
        self.outcome.problems += [f"{batch} was not fetched from a node that lives" for batch in sorted(missing)]
        self.outcome.totals = {
            "games received": sum(account.received for account in accounts),
            "batches received": len(batches) - len(refused),
            "games given up": sum(account.discarded for account in accounts),
            "workers": len(accounts),
        }


def campaign(
    *, nodes: int, kills: int, minutes: float, seed: int, log_event: Callable[[str], None], keep: Path | None
) -> Outcome:
    """Run a campaign in a folder that is removed afterwards; ``keep``: where the run is kept if anything went wrong."""
    with tempfile.TemporaryDirectory(prefix="ray-nodes-") as name:
        folder = Path(name)
        cpus = {f"node{number}": 1 for number in range(1, nodes + 1)}
        changes = {"training": {"checkpoint_every": 2}}
        with ray_nodes(folder / "nodes", **cpus) as made, ray_run(folder, made, changes=changes) as run:
            run.start()
            run.wait(lambda: len(run.active()) == nodes, f"{nodes} workers to play", seconds=START_SECONDS)
            found = Campaign(run, made, random.Random(seed), log_event)
            try:
                until = time.monotonic() + 60.0 * minutes
                while found.outcome.kills < kills and time.monotonic() < until:
                    found.kill_one()
                found.end()
            except AssertionError as error:
                found.outcome.problems.append(str(error))
            if keep and found.outcome.problems:
                shutil.copytree(folder, keep, dirs_exist_ok=True, ignore=shutil.ignore_patterns("*.npz", "releases"))
            return found.outcome


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=whole(1), default=3, help="how many nodes play (default: 3)")
    parser.add_argument(
        "--kills", type=whole(1), default=30, help="how many are killed, one after the other (default: 30)"
    )
    parser.add_argument("--minutes", type=whole(1), default=120, help="kill none after so many (default: 120)")
    parser.add_argument("--seed", type=whole(0), default=1, help="of what befalls which node (default: 1)")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="if anything is wrong, keep the run there")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program."""
    arguments, console = parse(argv), Console(soft_wrap=True, highlight=False, markup=False)
    if find_spec("ray") is None:
        console.print(f"ray_nodes.py: Ray is missing: run {sys.executable} -m pip install -r requirements-ray.txt")
        return 2
    found = campaign(
        nodes=arguments.nodes,
        kills=arguments.kills,
        minutes=arguments.minutes,
        seed=arguments.seed,
        log_event=console.print,
        keep=arguments.keep,
    )
    if found.noticed:
        console.print(
            f"{found.kills} kills; noticed after {median(found.noticed):.1f} s, at most {max(found.noticed):.1f} s"
        )
        console.print(f"a new node plays after {median(found.active):.1f} s, at most {max(found.active):.1f} s")
    for name, count in found.totals.items():
        console.print(f"{name}: {count:,}")
    for problem in found.problems:
        console.print(f"Problem: {problem}")
    return 1 if found.problems else 0


if __name__ == "__main__":
    sys.exit(main())
