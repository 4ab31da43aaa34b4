"""The fleet of a run: reached over SSH, shown in status.txt, and controlled by requests and by the config file.

Everything here runs in the main thread of the fleet's process (``keima/cluster/fleet/process/program.py``), at each
step.
"""

import logging
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from keima.base.reports.formats import game_title
from keima.base.system.priority import WORKER_PRIORITY
from keima.cluster.agent.commands import Owner
from keima.cluster.control import requests as control
from keima.cluster.control import status
from keima.cluster.control.command_handler import CommandHandler
from keima.cluster.control.requests import RequestInbox
from keima.cluster.control.status import StatusFile
from keima.cluster.fleet.backend import Fleet
from keima.cluster.fleet.ownership import Claimant
from keima.cluster.fleet.process.messages import MachineInFleet, Opening
from keima.cluster.http.source import CrowdMachines
from keima.cluster.machines.machine_source import MachineSource, MachineSources
from keima.cluster.machines.process_manager import ProcessManager, RemoteProcessManager
from keima.cluster.machines.release import WorkerRequirements, worker_requirements
from keima.cluster.ray import require_ray
from keima.cluster.slurm.source import SlurmMachines
from keima.cluster.ssh import ssh_transport as ssh
from keima.cluster.ssh.transport import LocalTransport, Transport
from keima.coach.backends.assignments import GameChoice
from keima.config.schema import Settings
from keima.config.sections.cluster import DistributedSettings
from keima.config.sections.workers import WorkerSettings

log = logging.getLogger(__name__)

HERE = "here"  # the name of this machine, and its folder in the run's


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


class ThisMachine:
    """This machine as a ``MachineSource``: it plays beside those that join from outside.

    Args:
        run_dir: the run's folder.
        required: the code and packages that its workers must have.
        coach: the Coach that they play for.
    """

    title = "this machine"

    def __init__(self, run_dir: Path, *, required: WorkerRequirements, coach: str) -> None:
        self._required, self._coach = required, coach
        given = {"directory": str((run_dir / HERE).absolute()), "python": sys.executable, "nice": WORKER_PRIORITY}
        self._machine = WorkerSettings.model_validate({"name": HERE, "host": "localhost", **given})

    def machines(self) -> tuple[WorkerSettings, ...]:
        """See ``MachineSource``."""
        return (self._machine,)

    def connect(self, machine: WorkerSettings) -> Transport:
        """See ``MachineSource``."""
        return LocalTransport(Path(machine.directory), worker=machine.name)

    def process_manager(self, machine: WorkerSettings) -> ProcessManager:
        """See ``MachineSource``."""
        return RemoteProcessManager(machine, required=self._required, bootstrap=True, coach=self._coach)

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
        owner: the Coach, which holds the lock of ``control_folder``.
        takeover: whether to take over workers of other Coaches at the first contact.
        machines: those of an earlier process of this Coach; None: those of the settings.
        log_event: called with each line for the log.
        arrived: called with the worker and the file when games have arrived.
        control_folder: where requests arrive.
        status_folder: where status.txt is written.

    Raises:
        ValueError: the worker class cannot be sent to the workers, or Ray is not installed.
        OSError: the control folder or the mirrors cannot be written.
    """

    def __init__(
        self,
        root: Path,
        *,
        config: Path,
        run_dir: Path,
        game: GameChoice,
        settings: Settings,
        run_id: str,
        owner: Owner,
        takeover: bool = False,
        machines: Sequence[MachineInFleet] | None = None,
        log_event: Callable[[str], None] = log.warning,
        arrived: Callable[[str, str], None] = lambda worker, file: None,
        control_folder: Path = control.CONTROL_FOLDER,
        status_folder: Path = status.STATUS_FOLDER,
    ) -> None:
        distributed = settings.distributed
        if distributed.unused_weights and machines is None:
            log_event(distributed.unused_weights)
        code = worker_requirements(distributed.worker_class, game=settings.game.name, config=config)
        title = f"{settings.run.name}: {game_title(game.name, game.options)}"
        self._requests = RequestInbox(control_folder, run=run_dir, config=config, coach=owner.pid)
        self._status = StatusFile(status_folder, title=title)
        others = other_sources(
            distributed, root, run_dir=run_dir, run_id=run_id, required=code, coach=owner.coach, log_event=log_event
        )
        self._sources = MachineSources(SshMachines(config, distributed, required=code, coach=owner.coach), others)
        self._ended = False
        super().__init__(
            root,
            [each.machine for each in machines] if machines is not None else distributed.workers,
            game=game,
            settings=settings,
            run_id=run_id,
            connect=self._sources.connect,
            process_manager=self._sources.process_manager,
            claimant=Claimant(owner=owner, takeover=takeover, config=code.config),
            log_event=log_event,
            arrived=arrived,
        )
        self.import_machines(machines or ())
        self._commands = CommandHandler(
            self,
            config,
            inbox=self._requests,
            title=title,
            sources=self._sources,
            log_event=log_event,
            reread=machines is not None,
        )

    def step(self) -> None:
        """See ``Fleet``; also carries out requests, follows the config, and updates the status."""
        super().step()
        if not self._ended:
            self._commands.step()
            self._status.write_if_due(self.cluster)

    def export_machines(self) -> tuple[MachineInFleet, ...]:
        """See ``Fleet``; without the machines of other sources, which list them again."""
        return tuple(each for each in super().export_machines() if self._sources.is_in_config(each.machine.name))

    def close(self) -> None:
        """See ``SelfPlayBackend``."""
        if self._ended:
            return
        super().close()
        self._sources.close()
        self._ended = True
        self._status.close(self.cluster())
        self._requests.close()


def open_cluster(opening: Opening, *, log_event: Callable[[str], None], arrived: Callable[[str, str], None]) -> Cluster:
    """Build the fleet in its process: see ``keima.cluster.fleet.process.program.Factory``.

    Raises:
        ValueError, OSError: see ``Cluster``.
    """
    return Cluster(
        opening.root,
        config=opening.config,
        run_dir=opening.run_dir,
        game=opening.game,
        settings=opening.settings,
        run_id=opening.run_id,
        owner=opening.owner,
        takeover=opening.takeover,
        machines=opening.machines,
        log_event=log_event,
        arrived=arrived,
    )


def other_sources(
    settings: DistributedSettings,
    root: Path,
    *,
    run_dir: Path,
    run_id: str,
    required: WorkerRequirements,
    coach: str,
    log_event: Callable[[str], None],
) -> list[MachineSource]:
    """Return the sources of machines beside the config's list.

    Raises:
        ValueError: Ray is not installed here, or Slurm's folder cannot be used.
    """
    found: list[MachineSource] = []
    if settings.slurm:
        found.append(
            SlurmMachines(
                settings.slurm,
                run_dir=run_dir,
                run_id=run_id,
                required=required,
                offline_seconds=settings.offline_seconds,
                log_event=log_event,
            )
        )
    if settings.crowd:
        found.append(CrowdMachines(settings.crowd, run_dir=run_dir, log_event=log_event))
        if settings.crowd.this_machine:
            found.append(ThisMachine(run_dir, required=required, coach=coach))
    if settings.ray:
        require_ray()
        from keima.cluster.ray.source import RaySource  # only here: it imports Ray

        found.append(
            RaySource(settings.ray, root=root, run_id=run_id, required=required, coach=coach, log_event=log_event)
        )
    return found
