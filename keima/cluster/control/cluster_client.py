"""The cluster of a run as the Coach's process sees it: a client of the fleet's process."""

from collections.abc import Callable
from pathlib import Path

from keima.cluster.control.requests import lock_control_folder
from keima.cluster.fleet.ownership import make_owner
from keima.cluster.fleet.process.client import FleetClient
from keima.config.schema import Settings
from keima.games import Game

FACTORY = "keima.cluster.control.cluster:open_cluster"


def open_cluster_client(
    root: Path,
    *,
    config: Path,
    run_dir: Path,
    game: Game,
    settings: Settings,
    run_id: str,
    takeover: bool,
    log_event: Callable[[str], None],
) -> FleetClient:
    """Start the cluster in a process of its own; see ``Cluster`` for the arguments.

    Raises:
        RunLocked: another Coach uses this folder's workers.
        ValueError: the worker class cannot be sent to the workers.
        OSError: the control folder or the mirrors cannot be written.
    """
    return FleetClient(
        root,
        factory=FACTORY,
        config=config,
        run_dir=run_dir,
        game=game,
        settings=settings,
        run_id=run_id,
        owner=make_owner(run_id, run_dir=run_dir, lease_seconds=settings.distributed.lease_seconds),
        takeover=takeover,
        lock=lock_control_folder(),
        log_event=log_event,
    )
