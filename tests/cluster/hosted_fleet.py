"""A fleet in its own process with real workers, for tests, and the client that opens it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from keima.base.run_lock import RunLock
from keima.cluster.fleet.backend import Fleet
from keima.cluster.fleet.ownership import Claimant, make_owner
from keima.cluster.fleet.process.client import FleetClient
from keima.cluster.fleet.process.messages import Opening
from tests.cluster.local_fleet import ForkedWorkers, Network
from tests.small_run import GAME, small_settings

PLAYS = "tests.cluster.hosted_fleet:open_playing"
SCRIPTED = "tests.cluster.scripted_fleet:open_scripted"
LOWER = "lower.json"  # in the run's folder: by worker, the number of games above which it may begin none


class PlayingFleet(Fleet):
    """Machines that are folders of this one, with forked workers; ``LOWER`` stands for the balancer."""

    def step(self) -> None:
        super().step()
        path = self.root.parent / LOWER
        if path.exists():
            for worker, games in json.loads(path.read_text()).items():
                self.lower_grant(worker, games)
            path.unlink()


def open_playing(
    opening: Opening, *, log_event: Callable[[str], None], arrived: Callable[[str, str], None]
) -> PlayingFleet:
    hosts = opening.root.parent / "hosts"
    workers = ForkedWorkers(hosts)
    machines = [each.machine for each in opening.machines or ()] or opening.settings.distributed.workers
    return PlayingFleet(
        opening.root,
        machines,
        game=opening.game,
        settings=opening.settings,
        run_id=opening.run_id,
        connect=Network(hosts).connect,
        process_manager=lambda machine: workers,
        claimant=Claimant(owner=opening.owner),
        log_event=log_event,
        arrived=arrived,
    )


def open_client(
    folder: Path, factory: str, *, settings: Any = None, lock: RunLock | None = None, **options: Any
) -> Any:
    """Open a client whose mirrors are in ``folder`` / workers."""
    (folder / "workers").mkdir(exist_ok=True)
    return FleetClient(
        folder / "workers",
        factory=factory,
        config=folder / "config.yaml",
        run_dir=folder,
        game=GAME,
        settings=settings or small_settings(folder),
        run_id="run",
        owner=make_owner("run", run_dir=folder, lease_seconds=900.0),
        lock=lock,
        **options,
    )
