"""The fleet of start_main.py: reached over SSH, shown in status.txt, and controlled by requests and by the config file.

Everything here runs in the Coach's thread, each time it collects batches.
"""

import logging
from collections.abc import Callable
from pathlib import Path

from configs.schema import DistributedSettings, Settings, WorkerSettings
from distributed.fleet.fleet import Fleet
from distributed.fleet.fleet_view import FleetView
from distributed.fleet.ownership import Claimant, owner_here
from distributed.operations import requests as control
from distributed.operations import status
from distributed.operations.command_handler import CommandHandler
from distributed.operations.requests import RequestInbox
from distributed.operations.status import StatusFile
from distributed.setup.machine import printable_start
from distributed.setup.machine_source import MachineSources
from distributed.setup.process_manager import ProcessManager, RemoteProcessManager
from distributed.setup.release import WorkerRequirements, worker_requirements
from distributed.ssh import ssh
from distributed.ssh.transport import Transport
from games import Game
from training.common.reports import ClusterReport, RemoteDetails, RemoteStanding
from training.run.backend import PendingBatch
from views.charts import game_title

log = logging.getLogger(__name__)


class SshMachines:
    """The machines of the config's list as a ``MachineSource``.

    Args:
        config: the file with the list.
        settings: what it says about the cluster.
        required: the code and packages that the machines must have.
        coach: the Coach that their workers play for.
    """

    def __init__(
        self, config: Path, settings: DistributedSettings, *, required: WorkerRequirements, coach: str
    ) -> None:
        self.title = str(config)
        self._settings, self._required, self._coach = settings, required, coach

    def machines(self) -> tuple[WorkerSettings, ...]:
        """See ``MachineSource``."""
        return self._settings.workers

    def connect(self, machine: WorkerSettings) -> Transport:
        """See ``MachineSource``."""
        policy, seconds = self._settings.host_key_policy, self._settings.login_seconds
        return ssh.connect(machine, host_key_policy=policy, login_seconds=seconds)

    def process_manager(self, machine: WorkerSettings) -> ProcessManager:
        """See ``MachineSource``."""
        return RemoteProcessManager(
            machine,
            required=self._required,
            bootstrap=self._settings.bootstrap,
            pip=self._settings.pip,
            coach=self._coach,
        )

    def close(self) -> None:
        """See ``MachineSource``."""


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
        self._sources = MachineSources(SshMachines(config, distributed, required=code, coach=owner.coach))
        self._ended = False
        super().__init__(
            root,
            distributed.workers,
            game=game,
            settings=settings,
            run_id=run_id,
            connect=self._sources.connect,
            process_manager=self._sources.process_manager,
            claimant=Claimant(owner=owner, takeover=takeover, connector=code.connector),
            log_event=log_event,
        )
        self._commands = CommandHandler(
            self, config, inbox=self._requests, title=title, sources=self._sources, log_event=log_event
        )

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
        self._sources.close()
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
