"""The machines of a cluster, for scripts and for ``keima cluster``, with or without a running Coach.

    from keima import SSHConnector
    SSHConnector().add_worker("new_worker.com", "username")

Commands about workers are carried out by the running Coach. Without one, they change the settings file and act on the
machines directly.
"""

import logging
import re
import shutil
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from keima.base.disk_words import error_text
from keima.base.system.threads import run_in_parallel
from keima.cluster.agent.commands import Probe
from keima.cluster.control import requests as control
from keima.cluster.control import status
from keima.cluster.limits import AT_ONCE, LOG_LINES, LOG_MEGABYTES
from keima.cluster.machines import machine as remote
from keima.cluster.machines.bootstrap import POLL_SECONDS, bootstrap_steps
from keima.cluster.machines.check import Finding, fatal_findings, run_checks, worker_slots
from keima.cluster.machines.logs import copy_logs
from keima.cluster.machines.release import WorkerRequirements, pack_code, wheel_name, worker_requirements
from keima.cluster.machines.worker_list import add_worker, remove_worker
from keima.cluster.ssh import ssh_transport as ssh
from keima.cluster.ssh.errors import ClusterError, RemoteFailure, Unreachable
from keima.cluster.ssh.host_keys import KeyScan, UnknownHostKey
from keima.cluster.ssh.transport import Transport
from keima.config.commands import CONFIG, cluster, keima
from keima.config.load import ConfigError, load_settings
from keima.config.schema import Settings
from keima.config.sections.cluster import DistributedSettings
from keima.config.sections.types import listed
from keima.config.sections.workers import WorkerSettings
from keima.paths import SHIPPED, SOURCE

log = logging.getLogger(__name__)

Connect = Callable[[WorkerSettings], Transport]


class NotDone(Exception):
    """The request cannot be carried out; the text says why, and the remedy."""


@dataclass(frozen=True)
class CheckedMachine:
    """The findings on one machine."""

    machine: WorkerSettings
    findings: tuple[Finding, ...]
    scan: KeyScan | None = None  # what would fetch its host key, which is not known
    slots: tuple[remote.WorkerSlot, ...] = ()  # its workers, if it could be asked

    @property
    def ready(self) -> bool:
        """Whether it can play."""
        return not fatal_findings(self.findings)


@dataclass(frozen=True)
class Progress:
    """A line about work in progress on a machine."""

    machine: str
    text: str


@dataclass(frozen=True)
class Outcome:
    """The outcome of a command on a machine: its result, or why it failed."""

    machine: str
    ok: bool
    text: str
    may_pass: bool = False  # it failed there at a step, which another attempt may get over


@dataclass(frozen=True)
class ChosenMachine:
    """A machine that a command is about, and the selected workers: ``names``, or all if that is empty."""

    machine: WorkerSettings
    names: frozenset[str]

    def selected_slots(self, every: Sequence[remote.WorkerSlot]) -> tuple[remote.WorkerSlot, ...]:
        """Return the selected slots.

        Raises:
            NotDone: the machine has no worker of a name.
        """
        unknown = sorted(self.names - {slot.name for slot in every})
        if unknown:
            known = listed([slot.name for slot in every])
            raise NotDone(f"{self.machine.name} has no worker {unknown[0]}; its workers are: {known}")
        return tuple(slot for slot in every if not self.names or slot.name in self.names)

    @property
    def name_pattern(self) -> str:
        """A pattern of the names of the selected workers."""
        names = "|".join(map(re.escape, sorted(self.names)))
        return names or rf"{re.escape(self.machine.name)}(?:-[1-9][0-9]{{0,3}})?"


@dataclass(frozen=True)
class _ConnectedMachine:
    """A connected machine, and the selected slots."""

    machine: WorkerSettings
    transport: Transport
    probe: Probe
    required: WorkerRequirements
    slots: tuple[remote.WorkerSlot, ...]


Steps = Generator[str, None, str]  # yields lines about the progress, and returns the result


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
        root: Path = SOURCE,
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
        facts = control.read_coach_facts(control_folder)
        self.config = config or (Path(facts.config) if facts else CONFIG)
        self._foreign = facts is not None and config is not None and config.resolve() != Path(facts.config).resolve()
        self._followed = facts.config if facts else ""
        self._settings: Settings | None = None  # within ``settings_read_once``

    @contextmanager
    def settings_read_once(self) -> Iterator[None]:
        """Within the block, the settings are those of now, so that all methods mean the same machines."""
        self._settings = self._load_settings()
        try:
            yield
        finally:
            self._settings = None

    # Commands for the running Coach.

    def add_worker(self, host: str, user: str | None = None, **options: Any) -> str:
        """Add a machine; ``options`` are further settings: ``name``, ``port``, ``key_path``, ``gpu_ids`` ..."""
        given = {"host": host, "user": user, **options}
        try:
            new = WorkerSettings.model_validate({key: value for key, value in given.items() if value is not None})
        except ValidationError as error:
            raise NotDone(f"{host} cannot be added: {control.validation_text(error)}") from None
        answer = self._ask_coach(control.Request(command="add", machine=new))
        if answer is not None:
            return self._answer_text(answer)
        with _errors_as_not_done():
            if self.config == CONFIG and not self.config.exists():  # the first machine of an installed Keima
                self.config.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(SHIPPED / "configs" / "config.yaml", self.config)
            add_worker(self.config, new)
        return self._answer_text(
            f"{new.name} is in {self.config}. No Coach is running: it plays from the next start on. "
            "If it is bare, prepare it with\n"
            f"  {cluster(f'bootstrap {new.name}', self.config)}"
        )

    def remove_worker(self, name: str) -> str:
        """Remove a machine; a running Coach first fetches its finished games."""
        answer = self._ask_coach(control.Request(command="remove", worker=name))
        if answer is not None:
            return self._answer_text(answer)
        self._load_settings()  # which says what to do if there is no file
        with _errors_as_not_done():
            remove_worker(self.config, name)
        return self._answer_text(
            f"{name} is no longer in {self.config}. No Coach is running; what {name} has finished stays there."
        )

    def restart_worker(self, name: str) -> str:
        """End and restart a worker, or all workers of a machine."""
        answer = self._ask_coach(control.Request(command="restart", worker=name))
        if answer is not None:
            return self._answer_text(answer)
        lines = []
        with self._connect_to_worker(name) as there:
            for slot in there.slots:
                remote.stop_worker(there.transport, slot.name, python=there.machine.python)
                started = remote.start_worker(
                    there.transport, slot, machine=there.machine, probe=there.probe, required=there.required
                )
                lines.append(f"{slot.name} runs there again, as process {started.pid}")
        return self._answer_text(
            "\n".join([*lines, "No Coach is running: it plays what it has been granted, and waits."])
        )

    def stop_worker(self, name: str) -> str:
        """End a worker, or all workers of a machine; a running Coach does not start them until a restart."""
        answer = self._ask_coach(control.Request(command="stop", worker=name))
        if answer is not None:
            return self._answer_text(answer)
        lines = []
        with self._connect_to_worker(name) as there:
            for slot in there.slots:
                stopped = remote.stop_worker(there.transport, slot.name, python=there.machine.python)
                ended = "had to be killed" if stopped.killed else "has handed over and ended"
                lines.append(f"{slot.name} {ended if stopped.found else 'was not running'}")
        return self._answer_text("\n".join(lines))

    def take_over_worker(self, name: str) -> str:
        """Have the running Coach take over a worker, or all of a machine; the other run's games are set aside."""
        answer = self._ask_coach(control.Request(command="takeover", worker=name))
        if answer is None:
            start = keima("train --distributed --takeover")
            raise NotDone(f"no Coach is running that could take it over; start one with: {start}")
        return self._answer_text(answer)

    def status(self, names: Sequence[str] = ()) -> str:
        """Return the state of workers, from the running Coach, or else from the machines themselves; see ``chosen``."""
        answer = self.status_of_coach(names)
        if answer is not None:
            return answer
        return "\n".join(
            [self.about_status(), *(found.text for found in self._sort_outcomes(names, self.status_of_machines(names)))]
        )

    def status_of_coach(self, names: Sequence[str] = ()) -> str | None:
        """Return the state of workers from the running Coach; None if none is running."""
        about = {"workers": tuple(names)} if names else {}
        return self._ask_coach(control.Request.model_validate({"command": "status", **about}), any_config=True)

    def status_of_machines(self, names: Sequence[str] = (), *, at_once: int = AT_ONCE) -> Iterator[Outcome]:
        """Yield each machine's own report about its workers, as it arrives."""
        required, connect = self._worker_requirements(), self._connect_function()

        def ask(chosen: ChosenMachine) -> Steps:
            yield from ()
            with _connect_to(chosen, required, connect) as there:
                return "\n".join(self._state_line(there, slot) for slot in there.slots)

        for event in self._run_on_each(names, ask, at_once):
            if isinstance(event, Outcome):
                yield event if event.ok else Outcome(event.machine, False, f"  {event.text}")

    def _state_line(self, there: _ConnectedMachine, slot: remote.WorkerSlot) -> str:
        alive = remote.ask_if_alive(there.transport, slot.name, python=there.machine.python)
        return f"  {slot.name}: {f'runs, as process {alive.pid}' if alive.running else 'does not run'}"

    def about_status(self) -> str:
        """Return the heading above the machines' own reports."""
        lines = [f"No Coach is running. Status reported by the machines in {self.config}:"]
        if since := status.stale_since(self._status_folder):
            lines[:0] = [
                f"{self._status_folder / status.TEXT_NAME} is stale: the Coach that wrote it was killed after {since}."
            ]
        return "\n".join(
            lines
            if self._distributed_settings().workers
            else [*lines, f"  there are none: {cluster('add HOST USER', self.config)} adds one"]
        )

    def _answer_text(self, text: str) -> str:
        self._log_event(text)
        return text

    def _ask_coach(self, request: control.Request, *, any_config: bool = False) -> str | None:
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

    def chosen(self, names: Sequence[str] = ()) -> list[ChosenMachine]:
        """Return the machines that names mean, in the order of the settings.

        Args:
            names: of groups, machines, or single workers such as worker1-2; without any, all machines are meant.

        Raises:
            NotDone: there is no worker and no group of a name.
        """
        machines = self._distributed_settings().workers
        meant: dict[str, set[str] | None] = {} if names else {machine.name: None for machine in machines}
        for name in names:
            whole = [machine.name for machine in machines if name in (machine.group, machine.name)]
            base = re.sub(r"-[1-9][0-9]*$", "", name)
            part = [machine.name for machine in machines if machine.name == base]
            if not whole and not part:
                groups = sorted({machine.group for machine in machines if machine.group})
                also = f"; its groups are: {listed(groups)}" if groups else ""
                known = listed([machine.name for machine in machines])
                raise NotDone(f"{self.config} has no worker {name}; its workers are: {known}{also}")
            meant |= dict.fromkeys(whole)
            for machine in part if not whole else []:
                some = meant.setdefault(machine, set())
                if some is not None:
                    some.add(name)
        return [
            ChosenMachine(machine, frozenset(meant[machine.name] or ()))
            for machine in machines
            if machine.name in meant
        ]

    def members(self, name: str) -> list[str]:
        """Return the names of the machines of a group; or the name itself, if it is not a group's."""
        try:
            machines = self._distributed_settings().workers
        except NotDone:
            return [name]  # a running Coach may know it
        if any(machine.name == name for machine in machines):
            return [name]
        return [machine.name for machine in machines if machine.group == name] or [name]

    def check(self, names: Sequence[str] = (), *, at_once: int = AT_ONCE) -> Iterator[CheckedMachine]:
        """Check machines, several at once; yield each when it is done. See ``chosen``."""
        required, connect = self._worker_requirements(), self._connect_function()

        def check_machine(chosen: ChosenMachine) -> Iterator[CheckedMachine]:
            yield _check_machine(chosen.machine, required, connect)

        for _, checked in run_in_parallel(check_machine, self.chosen(names), at_once=at_once):
            yield checked

    def bootstrap_all(
        self, names: Sequence[str] = (), *, wheels: Path | None = None, at_once: int = AT_ONCE
    ) -> Iterator[Progress | Outcome]:
        """Install the code and its environment on machines, several at once, and verify both; see ``chosen``.

        Args:
            names: which machines.
            wheels: a folder of packages to send, instead of what the settings say.
            at_once: the most machines in work at a time.
        """
        required, pip, connect = self._worker_requirements(), self._distributed_settings().pip, self._connect_function()
        pip = pip.model_copy(update={"wheels": str(wheels)}) if wheels else pip

        def install(chosen: ChosenMachine) -> Steps:
            found = chosen.machine
            with _errors_as_not_done(), closing(connect(found)) as transport:
                for line in bootstrap_steps(transport, found, required=required, pip=pip, root=self._root):
                    if line:
                        yield line
                    else:
                        time.sleep(POLL_SECONDS)
            self._retry_machine(found.name)
            return f"{found.name} is ready to play"

        # Machines that share a home disturb each other: those that then fail find the work done in another attempt.
        disturbed, succeeded = list[Outcome](), False
        for event in self._run_on_each(names, install, at_once):
            if isinstance(event, Outcome) and event.may_pass:
                disturbed.append(event)
            else:
                succeeded |= isinstance(event, Outcome) and event.ok
                yield event
        if succeeded and disturbed:
            yield from (Progress(each.machine, f"is retried once: {each.text}") for each in disturbed)
            yield from self._run_on_each([each.machine for each in disturbed], install, at_once)
        else:
            yield from disturbed

    def _retry_machine(self, name: str) -> None:
        """Have a running Coach try a machine again at once: it may have refused it for what is now put right."""
        with suppress(NotDone):
            self._ask_coach(control.Request(command="retry", worker=name))

    def bootstrap_worker(self, name: str, *, report: Callable[[str], None], wheels: Path | None = None) -> str:
        """Install the code and its environment on a machine, and verify both.

        Args:
            name: the machine's name.
            report: called with each line about the progress.
            wheels: a folder of packages to send, instead of what the settings say.
        """
        return combine_results(self.bootstrap_all([name], wheels=wheels), report)

    def logs_of(
        self, names: Sequence[str] = (), *, lines: int = LOG_LINES, at_once: int = AT_ONCE
    ) -> Iterator[Progress | Outcome]:
        """Read the last lines of workers' logs, on several machines at once; see ``chosen``."""
        required, connect = self._worker_requirements(), self._connect_function()

        def read(chosen: ChosenMachine) -> Steps:
            yield from ()
            with _connect_to(chosen, required, connect) as there:
                return "\n\n".join(self._log_end_text(there, slot, lines) for slot in there.slots)

        return self._run_on_each(names, read, at_once)

    def logs(self, name: str, *, lines: int = LOG_LINES) -> str:
        """Return the last lines of a worker's log, or of the logs of all workers of a machine."""
        return combine_results(self.logs_of([name], lines=lines), lambda line: None)

    def _log_end_text(self, there: _ConnectedMachine, slot: remote.WorkerSlot, lines: int) -> str:
        text = remote.read_log_end(there.transport, slot.name, lines=lines, python=there.machine.python)
        return f"==> {there.machine.directory}/{remote.log_name(slot.name)} <==\n{text or '(nothing yet)'}"

    def gather_logs(
        self,
        folder: Path,
        names: Sequence[str] = (),
        *,
        megabytes: int = LOG_MEGABYTES,
        at_once: int = AT_ONCE,
    ) -> Iterator[Progress | Outcome]:
        """Copy workers' logs into ``folder``, from several machines at once; see ``chosen``.

        Args:
            folder: gets a new folder for each machine; a machine that has one already fails, and nothing is changed.
            names: which workers.
            megabytes: of a log that has more, the end is copied.
            at_once: the most machines in work at a time.
        """
        connect, most = self._connect_function(), megabytes * 10**6

        def copy(chosen: ChosenMachine) -> Steps:
            yield from ()
            found = chosen.machine
            with _errors_as_not_done(), closing(connect(found)) as transport:
                got = copy_logs(transport, found.name, folder, most=most, processes=chosen.name_pattern)
            cut = f"; only the ends of {listed(got.cut)}" if got.cut else ""
            files = f"{got.files} {'file' if got.files == 1 else 'files'}"
            return f"{found.name}: {files}, {got.size / 1000:.0f} kB, in {folder / found.name}{cut}"

        return self._run_on_each(names, copy, at_once)

    def _run_on_each(
        self, names: Sequence[str], act: Callable[[ChosenMachine], Steps], at_once: int
    ) -> Iterator[Progress | Outcome]:
        """Run ``act`` on several machines at once and yield its messages as they come; each machine ends with an
        Outcome.
        """

        def attempt(chosen: ChosenMachine) -> Iterator[Progress | Outcome]:
            name, steps = chosen.machine.name, act(chosen)
            while True:
                try:
                    yield Progress(name, next(steps))
                except StopIteration as ended:
                    return (yield Outcome(name, True, ended.value))
                except NotDone as error:
                    may_pass = type(error.__cause__) is RemoteFailure
                    return (yield Outcome(name, False, str(error), may_pass))

        for _, event in run_in_parallel(attempt, self.chosen(names), at_once=at_once):
            yield event

    def _sort_outcomes(self, names: Sequence[str], outcomes: Iterator[Outcome]) -> list[Outcome]:
        """Return outcomes in the order of the settings."""
        found = {outcome.machine: outcome for outcome in outcomes}
        return [found[chosen.machine.name] for chosen in self.chosen(names)]

    def write_wheel(self, folder: Path) -> str:
        """Write what a worker runs as a wheel into ``folder``, which is created if missing; see ``release``."""
        required = self._worker_requirements()
        path = folder / wheel_name(required.code_hash)
        with _errors_as_not_done():
            folder.mkdir(parents=True, exist_ok=True)
            path.write_bytes(pack_code(required, self._root))
        return f"{path}: what a worker runs; pip install brings the packages that it needs"

    def _distributed_settings(self) -> DistributedSettings:
        return self._load_settings().distributed

    def _load_settings(self) -> Settings:
        if self._settings is not None:
            return self._settings
        if self.config == CONFIG and not CONFIG.exists():
            begin = f"or create one with {keima('cluster add HOST USER')}"
            raise NotDone(f"there is no {CONFIG}: go to the folder of your run, name a file with --config, {begin}")
        with _errors_as_not_done():
            return load_settings(self.config)

    def _worker_requirements(self) -> WorkerRequirements:
        settings = self._load_settings()
        with _errors_as_not_done():
            worker_class, game = settings.distributed.worker_class, settings.game.name
            return worker_requirements(worker_class, game=game, root=self._root, config=self.config)

    def _connect_function(self) -> Connect:
        """Return a function that connects to a machine by the settings; it raises ClusterError."""
        settings = self._distributed_settings()
        return self._connect or partial(
            ssh.connect, host_key_policy=settings.host_key_policy, login_seconds=settings.login_seconds
        )

    @contextmanager
    def _connect_to_worker(self, name: str) -> Iterator[_ConnectedMachine]:
        """Connect to the one machine that ``name`` selects."""
        (chosen, *more) = self.chosen([name])
        if more:
            raise NotDone(
                f"{name} is a group; name one of its workers: {listed([chosen.machine.name, *_machine_names(more)])}"
            )
        with _connect_to(chosen, self._worker_requirements(), self._connect_function()) as there:
            yield there


@contextmanager
def _connect_to(chosen: ChosenMachine, required: WorkerRequirements, connect: Connect) -> Iterator[_ConnectedMachine]:
    """Connect to a machine and yield it with the selected slots."""
    with _errors_as_not_done(), closing(connect(chosen.machine)) as transport:
        probed = remote.probe_machine(transport, chosen.machine, required)
        slots = chosen.selected_slots(worker_slots(probed, chosen.machine))
        yield _ConnectedMachine(chosen.machine, transport, probed, required, slots)


def _check_machine(found: WorkerSettings, required: WorkerRequirements, connect: Connect) -> CheckedMachine:
    connected: tuple[Finding, ...] = ()
    try:
        with closing(connect(found)) as transport:
            connected = tuple(connection_findings(None))
            probed = remote.probe_machine(transport, found, required)
            findings = (*connected, *run_checks(probed, found, required))
            return CheckedMachine(found, findings, slots=tuple(worker_slots(probed, found)))
    except ClusterError as error:
        if connected:
            return CheckedMachine(found, (*connected, Finding("machine", False, True, error.what, error.remedy)))
        scan = error.scan if isinstance(error, UnknownHostKey) else None
        return CheckedMachine(found, tuple(connection_findings(error)), scan)


def _machine_names(several: Sequence[ChosenMachine]) -> list[str]:
    return [chosen.machine.name for chosen in several]


def combine_results(events: Iterator[Progress | Outcome], report: Callable[[str], None]) -> str:
    """Return the results on the machines as one text.

    Raises:
        NotDone: it failed on one of them.
    """
    texts = []
    for event in events:
        if isinstance(event, Progress):
            report(event.text)
        elif event.ok:
            texts.append(event.text)
        else:
            raise NotDone(event.text)
    return "\n".join(texts)


@contextmanager
def _errors_as_not_done() -> Iterator[None]:
    """Turn every expected error within the block into NotDone."""
    try:
        yield
    except (ClusterError, ConfigError, ValueError, OSError) as error:
        raise NotDone(error_text(error)) from error


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
    yield Finding("host key", True, False, "is known")
    yield Finding("login", True, False, "one of the keys is accepted")
