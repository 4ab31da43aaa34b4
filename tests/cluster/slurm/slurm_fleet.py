"""A fleet whose machines are jobs of Slurm, and everything that a test wants to see of it."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from keima.base.reports.worker_status import WorkerState, WorkerStatus
from keima.cluster.fleet.backend import Fleet
from keima.cluster.machines.release import worker_requirements
from keima.cluster.slurm.commands import Slurm
from keima.cluster.slurm.source import SlurmMachines
from keima.config.schema import Settings
from keima.config.sections.slurm import SlurmSettings
from keima.data.records import decode_batch
from tests.cluster.local_fleet import fleet_settings
from tests.small_run import GAME, model_bytes

PATIENCE = 400.0  # a machine that is busy compiles the search for minutes
RUN_ID = "run"


@dataclass
class Ledger:
    """What the sessions of a run have received."""

    delivered: dict[str, int] = field(default_factory=dict)  # games of each worker
    batches: set[str] = field(default_factory=set)


class SlurmFleet:
    """The fleet of one session of a run, and what the Coach would know: it receives all games and counts them.

    Args:
        root: the folder of the run.
        environment: variables with which Slurm's commands find the cluster.
        ledger: what earlier sessions have received.
        changes: settings of the jobs.
    """

    def __init__(
        self,
        root: Path,
        environment: Mapping[str, str],
        *,
        ledger: Ledger | None = None,
        settings: Settings | None = None,
        **changes: Any,
    ) -> None:
        self.root = root
        self.events: list[str] = []
        self.ledger = ledger or Ledger()
        self.delivered = self.ledger.delivered
        given = {"count": 2, "poll_seconds": 1.0, "warning_seconds": 20, **changes}
        self.slurm = Slurm(environment=environment)
        self.machines = SlurmMachines(
            SlurmSettings.model_validate(given),
            run_dir=root,
            run_id=RUN_ID,
            required=worker_requirements(),
            offline_seconds=5.0,
            log_event=self.events.append,
            slurm=self.slurm,
        )
        self.settings = settings or fleet_settings(root)
        (root / "workers").mkdir(exist_ok=True)
        self.fleet = Fleet(
            root / "workers",
            self.machines.machines(),
            game=GAME,
            settings=self.settings,
            run_id=RUN_ID,
            connect=self.machines.connect,
            process_manager=self.machines.process_manager,
            log_event=self.events.append,
        )
        self.fleet.publish(1, model_bytes(1))
        self.seen: dict[str, list[tuple[WorkerState, str]]] = {}

    def step(self) -> None:
        """Do what the Coach does in a cycle: receive, and grant enough that nobody waits."""
        for name in self.fleet.workers:
            delivered = self.delivered.get(name, 0)
            self.fleet.grant(name, granted=delivered + 100_000, delivered=delivered)
        self._receive()
        self.machines.machines()
        for view in self.fleet.cluster().workers:
            history = self.seen.setdefault(view.name, [])
            if not history or history[-1] != (view.state, view.reason):
                history.append((view.state, view.reason))

    def _receive(self) -> None:
        for pending in self.fleet.collect():
            batch = decode_batch(pending.fetch(2**22))
            if pending.batch_id not in self.ledger.batches:
                assert batch.first_game == self.delivered.get(pending.worker, 0), f"{pending.batch_id} is not the next"
                self.ledger.batches.add(pending.batch_id)
                self.delivered[pending.worker] = batch.first_game + batch.num_games
            self.fleet.release(pending, delivered=self.delivered[pending.worker])

    def worker(self, name: str) -> WorkerStatus:
        """Return the state of a worker."""
        return next(view for view in self.fleet.cluster().workers if view.name == name)

    def wait(self, done: Callable[[], object], *, seconds: float = PATIENCE) -> None:
        """Step until it is so."""
        deadline = time.monotonic() + seconds
        while not done():
            assert time.monotonic() < deadline, self.told()
            self.step()
            time.sleep(0.05)

    def wait_for_games(self, *names: str, more: int = 30) -> None:
        """Step until each of these workers has delivered so many more games and is Active."""
        before = {name: self.delivered.get(name, 0) for name in names}
        self.wait(
            lambda: (
                all(self.delivered.get(name, 0) >= before[name] + more for name in names)
                and all(self.worker(name).state is WorkerState.ACTIVE for name in names)
            )
        )

    def states_of(self, name: str) -> list[WorkerState]:
        """Return the marks that the worker has had, in order."""
        return [mark for mark, _ in self.seen.get(name, [])]

    def reasons_of(self, name: str) -> str:
        """Return the reasons that the worker's marks have had, one a line."""
        return "\n".join(reason for _, reason in self.seen.get(name, []))

    def told(self) -> str:
        """Return everything that helps to see what went wrong."""
        logs = [path.read_text(errors="replace")[-1500:] for path in (self.root / "slurm" / "logs").glob("*")]
        return "\n".join([str(self.seen), *self.events[-30:], *logs])

    def close(self) -> None:
        """End the session as the Coach does."""
        self.fleet.close()
        self._receive()
        self.machines.close()

    def vanish(self) -> None:
        """End the session as a Coach that is killed does: nobody is told."""
        for thread in self.fleet._threads.values():
            thread.connection.done = True
            thread.wake()
        for thread in self.fleet._threads.values():
            thread.join(10.0)
            thread.connection._disconnect()
        self.machines._ended = True
        self.fleet._threads.clear()
