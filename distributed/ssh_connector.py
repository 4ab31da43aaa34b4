#!/usr/bin/env python3
"""Manage the machines of a cluster, with or without a running Coach.

    python distributed/ssh_connector.py --check               check every machine; show what to fix, and how
    python distributed/ssh_connector.py --bootstrap worker1   install the code and its environment, and verify them
    python distributed/ssh_connector.py --add HOST USER       add a machine; a running Coach uses it within seconds
    python distributed/ssh_connector.py --status              show the state of all workers

In scripts: from distributed.ssh_connector import SSHConnector; SSHConnector().add_worker("new_worker.com", "username")

Commands about workers are carried out by the running Coach. Without one, they change the settings file and act on the
machines directly.
"""

import argparse
import logging
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

if __name__ == "__main__" and not __package__:
    # A script's own folder comes first in sys.path, but its imports are in the folder above.
    sys.path[:] = [
        str(Path(__file__).resolve().parent.parent),
        *(each for each in sys.path if Path(each) != Path(__file__).resolve().parent),
    ]

if __name__ == "__main__":
    from training.common.signals import ends_at_once

    ends_at_once()

from configs.commands import CONFIG, connector, settings_file
from configs.flags import as_setting, whole
from training.common.signals import interruptible
from training.common.start import before_imports, say_on_stderr, see_file

LOG_LINES = 40


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        prog="ssh_connector.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--check", action="store_true", help="check every machine, and show what to fix")
    what.add_argument(
        "--status", action="store_true", help="show the workers, as the Coach or else the machines report them"
    )
    what.add_argument("--restart", metavar="NAME", help="end and restart a worker, or all of a machine")
    what.add_argument("--stop", metavar="NAME", help="end a worker, or all of a machine, until --restart")
    what.add_argument(
        "--takeover",
        metavar="NAME",
        help="have the running Coach take a worker, or all of a machine, from another Coach",
    )
    what.add_argument(
        "--add", nargs="+", metavar=("HOST", "USER"), help="add a machine to the settings and the running Coach"
    )
    what.add_argument(
        "--remove",
        metavar="NAME",
        help="remove a machine from the settings and the running Coach; no finished game is lost",
    )
    what.add_argument(
        "--bootstrap", metavar="NAME", help="install the code and its environment on a machine, and verify them"
    )
    what.add_argument("--logs", metavar="NAME", help="show the end of a worker's log")
    parser.add_argument(
        "--config",
        type=settings_file,
        help="settings file (default: that of the running Coach, else configs/config.yaml)",
    )
    parser.add_argument(
        "--wheels",
        type=Path,
        metavar="DIR",
        help="with --bootstrap: send the packages in this folder, made by pip download",
    )
    parser.add_argument(
        "--lines", type=whole(), default=LOG_LINES, help="with --logs: number of lines (default: %(default)s)"
    )
    parser.add_argument("--name", help="with --add: the machine's name (default: the first label of its host)")
    parser.add_argument(
        "--port",
        type=as_setting("distributed.workers.port"),
        help="with --add: port of its SSH server (default: from ~/.ssh/config)",
    )
    parser.add_argument("--key-path", help="with --add: private key (default: from ~/.ssh/config)")
    arguments = parser.parse_args(argv)
    if arguments.add and len(arguments.add) > 2:
        parser.error("--add takes HOST, or HOST and USER")
    if not arguments.add and (arguments.name or arguments.port or arguments.key_path):
        parser.error("--name, --port and --key-path go with --add")
    if arguments.wheels and not arguments.bootstrap:
        parser.error("--wheels goes with --bootstrap")
    return arguments


def see(arguments: argparse.Namespace) -> None:
    """Check that the settings file exists.

    Raises:
        ValueError: it does not.
    """
    if arguments.config:
        see_file(arguments.config)


if __name__ == "__main__":
    before_imports(parse, see)

from pydantic import ValidationError
from rich.console import Console

from configs.load import ConfigError, load_settings
from configs.schema import DistributedSettings, WorkerSettings
from distributed.operations import requests as control
from distributed.operations import status
from distributed.setup import machine as remote
from distributed.setup.bootstrap import bootstrap
from distributed.setup.check import Finding, findings, in_the_way, worker_slots
from distributed.setup.release import PROJECT, WorkerRequirements, worker_requirements
from distributed.setup.worker_list import add_worker, remove_worker
from distributed.ssh import ssh
from distributed.ssh.errors import ClusterError, Unreachable
from distributed.ssh.transport import Transport

log = logging.getLogger(__name__)

Connect = Callable[[WorkerSettings], Transport]


class NotDone(Exception):
    """The request cannot be carried out; the text says why, and the remedy."""


@dataclass(frozen=True)
class Checked:
    """The findings on one machine."""

    machine: WorkerSettings
    findings: tuple[Finding, ...]

    @property
    def ready(self) -> bool:
        """Whether it can play."""
        return not in_the_way(self.findings)


@dataclass(frozen=True)
class _There:
    """A connected machine, and the slots that are meant."""

    machine: WorkerSettings
    transport: Transport
    probe: remote.Probe
    required: WorkerRequirements
    slots: tuple[remote.WorkerSlot, ...]


class SSHConnector:
    """The machines of a settings file. Methods return their result as text, and raise NotDone.

    Methods that change something also log the text, so that a script that ignores it still shows what comes next.

    Args:
        config: the settings file; by default that of the running Coach, else configs/config.yaml.
        control_folder: where requests to a running Coach are written.
        status_folder: where the Coach writes the status.
        connect: opens a transport to a machine; raises ClusterError.
        root: the checkout whose code runs on the machines.
        seconds: how long to wait for the Coach's answer.
        log_event: called with the text of each change; by default it goes to the script's log, or to standard error.
    """

    def __init__(
        self,
        config: Path | None = None,
        *,
        control_folder: Path = control.CONTROL_FOLDER,
        status_folder: Path = status.STATUS_FOLDER,
        connect: Connect | None = None,
        root: Path = PROJECT,
        seconds: float = control.WAIT_SECONDS,
        log_event: Callable[[str], None] = log.warning,
    ) -> None:
        self._status_folder = status_folder
        self._control, self._seconds, self._connect, self._root, self._log_event = (
            control_folder,
            seconds,
            connect,
            root,
            log_event,
        )
        facts = control.coach_facts(control_folder)
        self.config = config or (Path(facts.config) if facts else CONFIG)
        self._foreign = facts is not None and config is not None and config.resolve() != Path(facts.config).resolve()
        self._followed = facts.config if facts else ""

    # Commands for the running Coach.

    def add_worker(self, host: str, user: str | None = None, **options: Any) -> str:
        """Add a machine; ``options`` are further settings: ``name``, ``port``, ``key_path``, ``gpu_ids`` ..."""
        given = {"host": host, "user": user, **options}
        try:
            new = WorkerSettings.model_validate({key: value for key, value in given.items() if value is not None})
        except ValidationError as error:
            raise NotDone(f"{host} cannot be added: {control.complaint(error)}") from None
        answer = self._asked(control.Request(command="add", machine=new))
        if answer is not None:
            return self._reported(answer)
        with _said():
            add_worker(self.config, new)
        return self._reported(
            f"{new.name} is in {self.config}. No Coach is running: it plays from the next start on. "
            "If it is bare, prepare it with\n"
            f"  {connector(self.config)} --bootstrap {new.name}"
        )

    def remove_worker(self, name: str) -> str:
        """Remove a machine; a running Coach first fetches its finished games."""
        answer = self._asked(control.Request(command="remove", worker=name))
        if answer is not None:
            return self._reported(answer)
        with _said():
            remove_worker(self.config, name)
        return self._reported(
            f"{name} is no longer in {self.config}. No Coach is running; what {name} has finished stays there."
        )

    def restart_worker(self, name: str) -> str:
        """End and restart a worker, or all workers of a machine."""
        answer = self._asked(control.Request(command="restart", worker=name))
        if answer is not None:
            return self._reported(answer)
        lines = []
        with self._at(name) as there:
            for slot in there.slots:
                remote.stop(there.transport, slot.name, python=there.machine.python)
                started = remote.start(
                    there.transport, slot, machine=there.machine, probe=there.probe, required=there.required
                )
                lines.append(f"{slot.name} runs there again, as process {started.pid}")
        return self._reported("\n".join([*lines, "No Coach is running: it plays what it has been granted, and waits."]))

    def stop_worker(self, name: str) -> str:
        """End a worker, or all workers of a machine; a running Coach does not start them until a restart."""
        answer = self._asked(control.Request(command="stop", worker=name))
        if answer is not None:
            return self._reported(answer)
        lines = []
        with self._at(name) as there:
            for slot in there.slots:
                stopped = remote.stop(there.transport, slot.name, python=there.machine.python)
                ended = "had to be killed" if stopped.killed else "has handed over and ended"
                lines.append(f"{slot.name} {ended if stopped.found else 'was not running'}")
        return self._reported("\n".join(lines))

    def take_over_worker(self, name: str) -> str:
        """Have the running Coach take over a worker, or all of a machine; the other run's games are set aside."""
        answer = self._asked(control.Request(command="takeover", worker=name))
        if answer is None:
            start = "start_main.py --distributed --takeover"
            raise NotDone(f"no Coach is running that could take it over; start one with: {start}")
        return self._reported(answer)

    def status(self) -> str:
        """Return the state of all workers, from the running Coach, or else from the machines themselves."""
        answer = self._asked(control.Request(command="status"), any_config=True)
        if answer is not None:
            return answer
        lines = [f"No Coach is running. What the machines in {self.config} say:"]
        if since := status.stale_since(self._status_folder):
            lines[:0] = [
                f"{self._status_folder / status.TEXT_NAME} is stale: the Coach that wrote it was killed after {since}."
            ]
        for found in self._settings().workers:
            try:
                with self._at(found.name) as there:
                    for slot in there.slots:
                        alive = remote.alive(there.transport, slot.name, python=found.python)
                        lines.append(
                            f"  {slot.name}: {f'runs, as process {alive.pid}' if alive.running else 'does not run'}"
                        )
            except NotDone as error:
                lines.append(f"  {error}")
        return "\n".join(lines if len(lines) > 1 else [*lines, "  there are none: --add HOST USER adds one"])

    def _reported(self, text: str) -> str:
        self._log_event(text)
        return text

    def _asked(self, request: control.Request, *, any_config: bool = False) -> str | None:
        """Return the Coach's answer; None if none is running."""
        if self._foreign and not any_config:
            raise NotDone(
                f"the running Coach follows {self._followed}, not {self.config}; leave out --config, or stop it first"
            )
        try:
            answer = control.ask_coach(request, self._control, seconds=self._seconds)
        except control.NoCoach:
            return None
        except (control.NotAnswered, OSError) as error:
            raise NotDone(str(error)) from None
        if not answer.ok:
            raise NotDone(answer.text)
        return answer.text

    # Commands that act on the machines, whether a Coach runs or not.

    def check(self) -> Iterator[Checked]:
        """Check all machines, one after the other."""
        required = self._required()
        for found in self._settings().workers:
            yield self._checked(found, required)

    def bootstrap_worker(self, name: str, *, report: Callable[[str], None], wheels: Path | None = None) -> str:
        """Install the code and its environment on a machine, and verify both.

        Args:
            name: the machine's name.
            report: called with each line about the progress.
            wheels: a folder of packages to send, instead of what the settings say.
        """
        with _said(), self._connected(self._machine_of(name)) as (found, transport):
            pip = self._settings().pip
            pip = pip.model_copy(update={"wheels": str(wheels)}) if wheels else pip
            bootstrap(transport, found, report=report, required=self._required(), pip=pip, root=self._root)
        return f"{found.name} is ready to play"

    def logs(self, name: str, *, lines: int = LOG_LINES) -> str:
        """Return the last lines of a worker's log, or of the logs of all workers of a machine."""
        with self._at(name) as there:
            found = there.machine
            texts = {
                slot.name: remote.tail(there.transport, slot.name, lines=lines, python=found.python)
                for slot in there.slots
            }
        parts = [
            f"==> {found.directory}/{remote.log_name(worker)} <==\n{text or '(nothing yet)'}"
            for worker, text in texts.items()
        ]
        return "\n\n".join(parts)

    def _checked(self, found: WorkerSettings, required: WorkerRequirements) -> Checked:
        connected: tuple[Finding, ...] = ()
        try:
            with self._connected(found) as (_, transport):
                connected = tuple(connection_findings(None))
                probed = remote.probe(transport, found, required)
                return Checked(found, (*connected, *findings(probed, found, required)))
        except ClusterError as error:
            if connected:
                return Checked(found, (*connected, Finding("machine", False, True, error.what, error.remedy)))
            return Checked(found, tuple(connection_findings(error)))

    def _settings(self) -> DistributedSettings:
        with _said():
            return load_settings(self.config).distributed

    def _required(self) -> WorkerRequirements:
        with _said():
            settings = load_settings(self.config)
            worker_class, game = settings.distributed.worker_class, settings.game.name
            return worker_requirements(worker_class, game=game, root=self._root, config=self.config)

    def _machine_of(self, name: str) -> WorkerSettings:
        """Return the machine with this name, or with the worker of this name."""
        workers = {worker.name: worker for worker in self._settings().workers}
        found = workers.get(name) or workers.get(re.sub(r"-[1-9][0-9]*$", "", name))
        if found is None:
            raise NotDone(f"{self.config} has no worker {name}; its workers are: {', '.join(workers) or 'none'}")
        return found

    @contextmanager
    def _connected(self, found: WorkerSettings) -> Iterator[tuple[WorkerSettings, Transport]]:
        """Connect to a machine; raises ClusterError."""
        settings = self._settings()
        connect = self._connect or partial(
            ssh.connect, host_key_policy=settings.host_key_policy, login_seconds=settings.login_seconds
        )
        transport = connect(found)
        try:
            yield found, transport
        finally:
            transport.close()

    @contextmanager
    def _at(self, name: str) -> Iterator[_There]:
        """Connect to a machine and yield it with the slots that ``name`` means: all of them, or one."""
        with _said(), self._connected(self._machine_of(name)) as (found, transport):
            required = self._required()
            probed = remote.probe(transport, found, required)
            every = worker_slots(probed, found)
            meant = tuple(slot for slot in every if name in (found.name, slot.name))
            if not meant:
                raise NotDone(
                    f"{found.name} has no worker {name}; its workers are: {', '.join(slot.name for slot in every)}"
                )
            yield _There(found, transport, probed, required, meant)


@contextmanager
def _said() -> Iterator[None]:
    """Turn every expected error within the block into NotDone."""
    try:
        yield
    except (ClusterError, ConfigError, ValueError, OSError) as error:
        raise NotDone(str(error)) from error


def connection_findings(error: ClusterError | None) -> Iterator[Finding]:
    """Yield the findings of an attempt to connect; None: it succeeded."""
    if isinstance(error, Unreachable):
        yield Finding(
            "reachable",
            False,
            True,
            error.what,
            error.remedy or "check that it is on, that its sshd runs, and that no firewall blocks it",
        )
        return
    yield Finding("reachable", True, False, "it answers")
    if error and "host key" in error.what:
        yield Finding("host key", False, True, error.what, error.remedy)
        return
    if error:
        yield Finding("login", False, True, error.what, error.remedy)
        return
    yield Finding("host key", True, False, "is the known one")
    yield Finding("login", True, False, "a key of ours is accepted")


def _quiet(config: Path | None) -> SSHConnector:
    """Return a connector that logs nothing, since the caller shows its texts."""
    return SSHConnector(config, log_event=lambda text: None)


@interruptible
def main(argv: Sequence[str] | None = None, *, make: Callable[[Path | None], SSHConnector] = _quiet) -> int:
    """Run the program; return 0, 1 if the request failed or a machine is not ready, or 130 after Ctrl-C."""
    arguments = parse(argv)
    console = Console(highlight=False, emoji=False)
    show = partial(console.print, markup=False, soft_wrap=True)
    try:
        machines = make(arguments.config)
        if arguments.check:
            say_on_stderr(f"checking the machines of {machines.config}")
            return show_findings(machines, show)
        show(run_command(machines, arguments, show))
    except NotDone as error:
        Console(stderr=True, highlight=False, emoji=False).print(str(error), style="red", markup=False, soft_wrap=True)
        return 1
    return 0


def run_command(machines: SSHConnector, arguments: argparse.Namespace, show: Callable[[str], None]) -> str:
    """Carry out the command line; return the result."""
    if arguments.restart:
        return machines.restart_worker(arguments.restart)
    if arguments.stop:
        return machines.stop_worker(arguments.stop)
    if arguments.takeover:
        return machines.take_over_worker(arguments.takeover)
    if arguments.remove:
        return machines.remove_worker(arguments.remove)
    if arguments.bootstrap:
        return machines.bootstrap_worker(arguments.bootstrap, report=show, wheels=arguments.wheels)
    if arguments.logs:
        return machines.logs(arguments.logs, lines=arguments.lines)
    if arguments.add:
        host, *user = arguments.add
        return machines.add_worker(host, *user, name=arguments.name, port=arguments.port, key_path=arguments.key_path)
    return machines.status()


def show_findings(machines: SSHConnector, show: Callable[[str], None]) -> int:
    """Show the findings on each machine, with remedies; return 1 unless all can play."""
    ready: list[str] = []
    wanting: list[str] = []
    for checked in machines.check():
        show(f"{checked.machine.name} ({checked.machine.host})")
        for finding in checked.findings:
            sign = "✓" if finding.ok else "✗" if finding.fatal else "!"
            show(f"  {sign} {finding.what:9}  {finding.text}")
            if finding.remedy and not finding.ok:
                show(f"{'':14}-> {finding.remedy}")
        (ready if checked.ready else wanting).append(checked.machine.name)
    if not ready and not wanting:
        show(f"{machines.config} lists no workers: --add HOST USER adds one")
        return 1
    show("")
    show(
        "\n".join(f"{what}: {', '.join(names)}" for what, names in (("ready", ready), ("not ready", wanting)) if names)
    )
    return 1 if wanting else 0


if __name__ == "__main__":
    sys.exit(main())
