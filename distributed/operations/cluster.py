"""The fleet of a run as its main program has it: reached over SSH, shown in status.txt, told what to do by requests and
by the config.

Everything here happens in the Coach's thread, whenever it looks at its workers.
"""

import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path

from configs.schema import Settings
from distributed.fleet.fleet import Fleet
from distributed.fleet.ownership import Claimant, owner_here
from distributed.fleet.views import FleetView
from distributed.operations import requests as control
from distributed.operations import status
from distributed.operations.command_handler import CommandHandler
from distributed.operations.requests import RequestInbox
from distributed.operations.status import StatusFile
from distributed.setup.process_manager import RemoteProcessManager
from distributed.setup.release import ours
from distributed.ssh import ssh
from games import Game
from training.common.reports import ClusterReport, RemoteStanding
from training.run.backend import PendingBatch

log = logging.getLogger(__name__)


class Cluster(Fleet):
    """The machines of a config file, which is followed: a worker that is added to it or removed from it comes or goes.

    Args:
        root: the folder of the mirrors.
        config: the file.
        run_dir: the run's folder.
        game: what they play.
        settings: the run's.
        run_id: the run's.
        takeover: whether workers that play for others are taken over at the first contact.
        log_event: is told what is worth a line in the log.
        control_folder: where requests come in.
        status_folder: where status.txt is written.

    Raises:
        RunLocked: another Coach works with this checkout's workers.
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
        control_folder: Path = control.FOLDER,
        status_folder: Path = status.FOLDER,
    ) -> None:
        distributed = settings.distributed
        if distributed.unused_weights:
            log_event(distributed.unused_weights)
        code = ours(distributed.worker_class, config=config)
        owner = owner_here(run_id, lease_seconds=distributed.lease_seconds)
        title = f"{settings.run.name}: {game.name}"
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
                RemoteProcessManager, ours=code, bootstrap=distributed.bootstrap, pip=distributed.pip, coach=owner.coach
            ),
            claimant=Claimant(owner=owner, takeover=takeover, connector=code.connector),
            log_event=log_event,
        )
        self._commands = CommandHandler(self, config, inbox=self._requests, title=title, log_event=log_event)

    def collect(self) -> list[PendingBatch]:
        """See ``SelfPlayBackend``; also does what is asked, follows the config, and shows how things stand."""
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
    """What the terminal shows of a cluster."""
    return ClusterReport(
        active=view.active,
        total=view.total,
        sync_seconds=view.sync_seconds,
        network_mb_per_minute=view.network_mb_per_minute,
        standings={
            worker.name: RemoteStanding(mark=worker.mark.value, share=worker.share, last_batch=worker.last_batch)
            for worker in view.workers
        },
    )
