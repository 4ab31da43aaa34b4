"""The fleet of start_main.py: reached over SSH, shown in status.txt, and controlled by requests and by the config file.

Everything here runs in the Coach's thread, each time it collects batches.
"""

import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path

from configs.schema import Settings
from distributed.fleet.fleet import Fleet
from distributed.fleet.fleet_view import FleetView
from distributed.fleet.ownership import Claimant, owner_here
from distributed.operations import requests as control
from distributed.operations import status
from distributed.operations.command_handler import CommandHandler
from distributed.operations.requests import RequestInbox
from distributed.operations.status import StatusFile
from distributed.setup.machine import printable_start
from distributed.setup.process_manager import RemoteProcessManager
from distributed.setup.release import worker_requirements
from distributed.ssh import ssh
from games import Game
from training.common.reports import ClusterReport, RemoteDetails, RemoteStanding
from training.run.backend import PendingBatch
from views.charts import game_title

log = logging.getLogger(__name__)


class Cluster(Fleet):
    """A fleet that follows its config file: machines that are added to the file join, and those that are removed leave.

    Args:
        root: the folder of the mirrors.
        config: the config file.
        run_dir: the run's folder.
        game: the game they play.
        settings: the run's settings.
        run_id: the run's id.
        takeover: whether to take over workers of other Coaches at the first contact.
        log_event: called with each line for the log.
        control_folder: where requests arrive.
        status_folder: where status.txt is written.

    Raises:
        RunLocked: another Coach uses this checkout's workers.
        ValueError: the worker class cannot be sent to the workers.
    """

    def __init__(
        self,
        root: Path,
        *,
        config: Path,
        run_dir: Path,
        game: Game,
        settings: Settings,
        run_id: str,
        takeover: bool = False,
        log_event: Callable[[str], None] = log.warning,
        control_folder: Path = control.CONTROL_FOLDER,
        status_folder: Path = status.STATUS_FOLDER,
    ) -> None:
        distributed = settings.distributed
        if distributed.unused_weights:
            log_event(distributed.unused_weights)
        code = worker_requirements(distributed.worker_class, game=settings.game.name, config=config)
        owner = owner_here(run_id, lease_seconds=distributed.lease_seconds)
        title = f"{settings.run.name}: {game_title(game.name, game.options)}"
        self._requests = RequestInbox(control_folder, run=run_dir, config=config)
        self._status = StatusFile(status_folder, title=title)
        self._ended = False
        super().__init__(
            root,
            distributed.workers,
            game=game,
            settings=settings,
            run_id=run_id,
            connect=partial(
                ssh.connect, host_key_policy=distributed.host_key_policy, login_seconds=distributed.login_seconds
            ),
            process_manager=partial(
                RemoteProcessManager,
                required=code,
                bootstrap=distributed.bootstrap,
                pip=distributed.pip,
                coach=owner.coach,
            ),
            claimant=Claimant(owner=owner, takeover=takeover, connector=code.connector),
            log_event=log_event,
        )
        self._commands = CommandHandler(self, config, inbox=self._requests, title=title, log_event=log_event)

    def collect(self) -> list[PendingBatch]:
        """See ``SelfPlayBackend``; also carries out requests, follows the config, and updates the status."""
        batches = super().collect()
        if not self._ended:
            self._commands.step()
            self._status.show(self.view)
        return batches

    def cluster(self) -> ClusterReport:
        """See ``SelfPlayBackend``."""
        return cluster_report(self.view())

    def close(self) -> None:
        """See ``SelfPlayBackend``."""
        if self._ended:
            return
        super().close()
        self._ended = True
        self._status.close(self.view())
        self._requests.close()


def cluster_report(view: FleetView) -> ClusterReport:
    """Return what observers are told of a cluster."""
    return ClusterReport(
        active=view.active,
        total=view.total,
        sync_seconds=view.sync_seconds,
        network_mb_per_minute=view.network_mb_per_minute,
        standings={
            worker.name: RemoteStanding(mark=worker.mark.value, share=worker.share, last_batch=worker.last_batch)
            for worker in view.workers
        },
        details={
            worker.name: RemoteDetails(
                machine=worker.machine,
                since=worker.since,
                reason=printable_start(worker.reason),
                note=printable_start(worker.note),
                sent=worker.sent,
                received=worker.received,
                disk_free=worker.disk_free,
            )
            for worker in view.workers
        },
    )
