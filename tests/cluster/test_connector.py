"""The program and the class that manage machines: over a real sshd, next to a Coach in another process, and without
one.
"""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from keima.base.reports.worker_status import ClusterNetwork, ClusterStatus
from keima.cli.cluster import COMMANDS, main
from keima.cluster import connector
from keima.cluster.agent.process import find_running
from keima.cluster.connector import NotDone, SSHConnector
from keima.cluster.control.requests import is_coach_running
from keima.cluster.control.status import StatusFile
from keima.cluster.machines.machine import worker_place
from keima.cluster.players import find_players_elsewhere
from keima.coach.proposal import Players
from keima.config.commands import cluster
from keima.config.load import load_settings
from keima.config.schema import Settings
from keima.config.sections.cluster import DistributedSettings
from keima.config.sections.slurm import SlurmSettings
from keima.config.sections.workers import WorkerSettings
from tests.cluster.small_project import end_all, make_project, wait_until
from tests.cluster.sshd import Sshd, keygen, needs_sshd
from tests.sources import ROOT

PROGRAM = ROOT / "distributed" / "ssh_connector.py"


@pytest.fixture
def there(server: Sshd) -> Iterator[Path]:
    """The worker's folder; nothing that is started there outlives the test."""
    folder = server.folder / "keima"
    yield folder
    end_all(folder)


class Desktop:
    """Where commands are typed: a settings file, a checkout, and a folder for requests."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.config = folder / "config.yaml"
        self.control = folder / "control"
        self.project = make_project(folder / "project")
        self.list_workers()

    def list_workers(self, *machines: WorkerSettings) -> None:
        workers = [machine.model_dump(mode="json", exclude_defaults=True) for machine in machines]
        top = {"run": {"name": "cluster", "iterations": 1}, "game": {"name": "tic_tac_toe"}}
        self.config.write_text(yaml.safe_dump({**top, "distributed": {"workers": workers}}, sort_keys=False))

    def connector(self, config: Path | None = None) -> SSHConnector:
        return SSHConnector(
            config or self.config,
            control_folder=self.control,
            status_folder=self.folder,
            root=self.project,
            seconds=60.0,
        )

    def types(self, *argv: str) -> int:
        return main(list(argv), make=self.connector)

    def names(self) -> list[str]:
        return [worker.name for worker in load_settings(self.config).distributed.workers]


@pytest.fixture
def desktop(tmp_path: Path) -> Desktop:
    return Desktop(tmp_path)


def at(server: Sshd, **settings: Any) -> WorkerSettings:
    return server.worker(**{"python": sys.executable, "processes": 1, **settings})


# Over a real sshd.


@pytest.mark.slow
@needs_sshd
@pytest.mark.trial
def test_a_bare_machine_is_bootstrapped_and_then_ready(
    desktop: Desktop, server: Sshd, there: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    desktop.list_workers(at(server))
    assert desktop.types("--check") == 1
    before = capsys.readouterr().out
    assert "✗ code" in before and f"-> run: {cluster('bootstrap worker1', desktop.config)}; or" in before
    assert before.endswith("not ready: worker1\n")
    assert desktop.types("--bootstrap", "worker1") == 0
    assert capsys.readouterr().out.endswith("worker1 is ready to play\n")
    assert desktop.types("--check") == 0
    after = capsys.readouterr().out
    for what in (
        "reachable",
        "host key",
        "login",
        "folder",
        "disk",
        "memory",
        "python",
        "packages",
        "code",
        "gpu",
        "logout",
        "clock",
    ):
        assert f" {what} " in after
    assert "✗" not in after and after.endswith("ready: worker1\n")


@needs_sshd
def test_every_machine_is_checked_whatever_is_wrong_with_others(
    desktop: Desktop, server: Sshd, there: Path, user: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        closed = free.getsockname()[1]
    stranger = user / ".ssh" / "stranger"
    keygen(stranger)
    desktop.list_workers(
        at(server, name="off", port=closed),
        at(server, name="locked-out", key_path=str(stranger)),
        at(server, name="old", python="/no/such/python"),
    )
    assert desktop.types("--check") == 1
    output = capsys.readouterr().out
    off, locked_out, old = (
        output[output.index(f"{name} (127.0.0.1)") :].split("\n\n")[0] for name in ("off", "locked-out", "old")
    )
    assert "✗ reachable" in off and "start sshd there" in off
    assert "✓ host key" in locked_out and "✗ login" in locked_out and "ssh-copy-id" in locked_out
    assert "✗ python" in old and "/no/such/python is not there" in old
    assert output.endswith("not ready: off, locked-out, old\n")


@needs_sshd
def test_an_unknown_host_key_is_a_finding_with_the_command_that_fixes_it(
    desktop: Desktop, server: Sshd, user: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    desktop.list_workers(at(server))
    (user / ".ssh" / "known_hosts").unlink()
    assert desktop.types("--check") == 1
    output = capsys.readouterr().out
    assert "✓ reachable" in output and "✗ host key" in output
    assert f"ssh-keyscan -t ed25519 -p {server.port} 127.0.0.1 >> " in output


@pytest.mark.parametrize("command", ["check", "status"])
def test_a_command_reads_the_settings_once(
    desktop: Desktop, monkeypatch: pytest.MonkeyPatch, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    desktop.list_workers(WorkerSettings(host="no.such.machine.invalid"))
    read = []

    def load(path: Path) -> Settings:
        read.append(path)
        return load_settings(path)

    monkeypatch.setattr(connector, "load_settings", load)
    assert desktop.types(command) == 1
    assert "no.such.machine" in capsys.readouterr().out
    assert read == [desktop.config]


def test_the_status_of_a_killed_coach_is_called_stale(desktop: Desktop) -> None:
    nobody = ClusterStatus(
        workers=(), network=ClusterNetwork(model_version=0, sync_seconds=None, network_mb_per_minute=0.0)
    )
    StatusFile(desktop.folder, title="go", wall=lambda: 1.7e9).write_if_due(lambda: nobody)
    since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(1.7e9))
    assert f"status.txt is stale: the Coach that wrote it was killed after {since}" in desktop.connector().status()


@needs_sshd
@pytest.mark.slow
@pytest.mark.trial
def test_without_a_coach_a_worker_can_be_restarted_seen_read_and_stopped(
    desktop: Desktop, server: Sshd, there: Path
) -> None:
    desktop.list_workers(at(server))
    connector = desktop.connector()
    connector.bootstrap_worker("worker1", report=lambda line: None)
    assert "worker1: does not run" in connector.status()

    assert "worker1 runs there again" in connector.restart_worker("worker1")
    first = find_running(there / worker_place("worker1"))
    assert first and f"worker1: runs, as process {first['pid']}" in connector.status()
    wait_until(lambda: "the worker begins" in connector.logs("worker1"))

    connector.restart_worker("worker1")
    second = find_running(there / worker_place("worker1"))
    assert second and second["pid"] != first["pid"]
    wait_until(lambda: (there / worker_place("worker1") / "begun").read_text().count("\n") == 2)

    assert connector.stop_worker("worker1") == "worker1 has handed over and ended"
    assert find_running(there / worker_place("worker1")) is None
    assert connector.stop_worker("worker1") == "worker1 was not running"


@pytest.mark.slow
@needs_sshd
@pytest.mark.trial
def test_one_of_several_workers_is_addressed_by_its_own_name(desktop: Desktop, server: Sshd, there: Path) -> None:
    desktop.list_workers(at(server, processes=2))
    connector = desktop.connector()
    connector.bootstrap_worker("worker1", report=lambda line: None)
    assert connector.restart_worker("worker1-2").splitlines()[0].startswith("worker1-2 runs")
    assert find_running(there / worker_place("worker1-1")) is None
    assert connector.restart_worker("worker1").count("runs there again") == 2
    assert connector.logs("worker1").count("==> ") == 2
    assert connector.logs("worker1-1").count("==> ") == 1
    with pytest.raises(NotDone, match="no worker worker1-3; its workers are: worker1-1, worker1-2"):
        connector.stop_worker("worker1-3")
    assert connector.stop_worker("worker1").count("handed over") == 2


@needs_sshd
def test_an_unreachable_machine_is_named_with_the_remedy(
    desktop: Desktop, server: Sshd, capsys: pytest.CaptureFixture[str]
) -> None:
    desktop.list_workers(at(server))
    server.stop()
    for command in ("--restart", "--stop", "--bootstrap", "--logs"):
        assert desktop.types(command, "worker1") == 1
        said = capsys.readouterr().err
        assert said.startswith("worker1: nothing listens at 127.0.0.1") and "start sshd there" in said
    assert desktop.types("--status") == 1
    assert "worker1: nothing listens" in capsys.readouterr().out


def test_the_settings_limit_the_wait_for_a_login(
    desktop: Desktop, user: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        desktop.list_workers(WorkerSettings(host="127.0.0.1", name="worker1", port=silent.getsockname()[1]))
        settings = yaml.safe_load(desktop.config.read_text())
        settings["distributed"]["login_seconds"] = 1.0
        desktop.config.write_text(yaml.safe_dump(settings))
        began = time.monotonic()
        assert desktop.types("--check") == 1
        assert time.monotonic() - began < 20  # the default is 30
    assert "does not answer as an SSH server does" in capsys.readouterr().out


# Many machines at once.


@pytest.fixture
def lab(desktop: Desktop, server: Sshd, there: Path, user: Path) -> Desktop:
    """Twenty machines of a group, which are one; a machine that is off; and another one."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        closed = free.getsockname()[1]
    ssh_config = f"Host node* attic\n  HostName 127.0.0.1\n  Port {server.port}\n"
    (user / ".ssh" / "config").write_text(f"{ssh_config}Host off\n  HostName 127.0.0.1\n  Port {closed}\n")
    user_name = at(server).user
    desktop.config.write_text(
        "run: {name: cluster, iterations: 1}\ngame: {name: tic_tac_toe}\ndistributed:\n"
        f"  defaults: {{user: {user_name}, python: {sys.executable}, directory: {there}, processes: 1}}\n"
        "  workers:\n    - {hosts: 'node[01-20].lab', group: lab}\n    - host: off\n    - host: attic\n"
    )
    return desktop


NODES = [f"node{number:02}" for number in range(1, 21)]


@needs_sshd
@pytest.mark.slow
@pytest.mark.medium
def test_many_machines_are_checked_at_once_with_what_is_wrong_and_a_summary(
    lab: Desktop, capsys: pytest.CaptureFixture[str]
) -> None:
    lab.connector().status(["attic"])  # its program is there, in the home that all of these share
    assert lab.types("--check", "--at-once", "8") == 1
    lines = capsys.readouterr().out.splitlines()
    headings = sorted(line for line in lines if line[0:1] in ("✓", "✗"))
    assert headings == sorted([*(f"✗ {name} ({name}.lab)" for name in NODES), "✗ attic (attic)", "✗ off (off)"])
    assert not [line for line in lines if "login" in line]  # what is as it should be is left out
    assert sum("✗ code" in line for line in lines) == 21
    assert sum("✗ reachable" in line for line in lines) == 1
    assert lines[-1] == f"not ready (22 of 22): {', '.join([*NODES, 'off', 'attic'])}"


@needs_sshd
@pytest.mark.slow
@pytest.mark.medium
def test_a_run_that_sets_itself_counts_what_its_machines_have(lab: Desktop, capsys: pytest.CaptureFixture[str]) -> None:
    distributed = load_settings(lab.config).distributed
    jobs = distributed.model_copy(update={"slurm": SlurmSettings(count=3, gpus=1)})
    said = list[str]()
    assert find_players_elsewhere(lab.config, jobs, say=said.append) == Players(cores=21, gpus=3, machines=24)
    assert "off does not answer, and is not counted" in said


def test_without_any_other_machine_this_one_counts(desktop: Desktop) -> None:
    assert find_players_elsewhere(desktop.config, DistributedSettings(), say=pytest.fail) is None


@needs_sshd
@pytest.mark.medium
def test_groups_machines_and_workers_can_be_named(lab: Desktop, capsys: pytest.CaptureFixture[str]) -> None:
    connector = lab.connector()
    named = {
        (): [*NODES, "off", "attic"],
        ("lab",): NODES,
        ("attic", "node07"): ["node07", "attic"],
        ("node03-1", "attic"): ["node03", "attic"],
    }
    for names, machines in named.items():
        assert [chosen.machine.name for chosen in connector.chosen(names)] == machines
    assert [set(chosen.names) for chosen in connector.chosen(["node03-1", "attic"])] == [{"node03-1"}, set()]
    assert [set(chosen.names) for chosen in connector.chosen(["node03-1", "lab"])] == [set()] * 20
    assert lab.types("--status", "attic", "cellar") == 1
    assert capsys.readouterr().err.startswith(f"{lab.config} has no worker cellar; its workers are: node01, ")
    with pytest.raises(NotDone, match="its groups are: lab"):
        connector.chosen(["cellar"])
    with pytest.raises(NotDone, match=r"lab is a group; name one of its workers: node01, .* and 8 more"):
        connector.restart_worker("lab")


@pytest.mark.slow
@needs_sshd
@pytest.mark.medium
def test_without_a_coach_each_machine_says_its_state_and_those_that_do_not_answer_fail(
    lab: Desktop, capsys: pytest.CaptureFixture[str]
) -> None:
    lab.connector().status(["attic"])  # its program is there, in the home that all of these share
    assert lab.types("--status") == 1
    said = capsys.readouterr().out
    assert all(f"  {name}: does not run" in said for name in [*NODES, "attic"])
    assert "  off: nothing listens" in said and said.endswith("1 of 22 machines do not answer or cannot be asked\n")
    assert lab.types("--status", "lab") == 0
    assert lab.connector().status(["attic"]).splitlines()[1:] == ["  attic: does not run"]


@needs_sshd
@pytest.mark.medium
def test_logs_are_gathered_into_a_folder_for_each_machine_and_nothing_is_overwritten(
    lab: Desktop, there: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    logs, gathered = there / "logs", tmp_path / "gathered"
    logs.mkdir(parents=True)
    for name in ("worker_node01.log", "worker_node01.log.1", "worker_node01-2.log", "worker_node02.log", "other.log"):
        (logs / name).write_text(f"the log {name}\n")
    (logs / "bootstrap.log").write_text("begin\n" + "x" * 10**6 + "end\n")
    assert lab.types("--gather-logs", str(gathered), "node01", "node02", "off", "--log-megabytes", "1") == 1
    said = capsys.readouterr().out
    assert f"✓ node02: 2 files, 1000 kB, in {gathered}/node02; only the ends of bootstrap.log" in said
    assert "✗ off: nothing listens" in said
    assert said.endswith("\ngathered: node01, node02\nfailed: off\n")
    found = {str(path.relative_to(gathered)): path.read_text() for path in gathered.rglob("*") if path.is_file()}
    ends = [found.pop(f"{name}/bootstrap.log") for name in ("node01", "node02")]
    assert [(len(text), text[-5:]) for text in ends] == [(10**6, "xend\n")] * 2
    assert found == {
        f"node{number}/{name}": f"the log {name}\n"
        for number, names in {
            "01": ["worker_node01.log", "worker_node01.log.1", "worker_node01-2.log"],
            "02": ["worker_node02.log"],
        }.items()
        for name in names
    }
    (gathered / "node01" / "worker_node01.log").write_text("notes\n")
    assert lab.types("--gather-logs", str(gathered), "node01") == 1
    assert f"{gathered}/node01 is there already" in capsys.readouterr().err
    assert (gathered / "node01" / "worker_node01.log").read_text() == "notes\n"


@pytest.mark.slow
@needs_sshd
@pytest.mark.trial
def test_several_machines_are_bootstrapped_at_once_even_if_they_share_a_home(
    lab: Desktop, there: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert lab.types("--bootstrap", "node01", "off", "attic") == 1
    said = capsys.readouterr().out
    assert "node01: found " in said and "attic: found " in said  # each step, with its machine
    assert "✓ node01 is ready to play" in said and "✓ attic is ready to play" in said
    assert "✗ off: nothing listens" in said
    assert said.endswith("\nready: node01, attic\nfailed: off\n")
    assert lab.types("--logs", "node01", "attic") == 0
    said = capsys.readouterr().out
    assert f"==> {there}/logs/worker_node01.log <==\n(nothing yet)" in said and "worker_attic.log" in said


def test_ctrl_c_ends_a_check_of_machines_that_do_not_answer(desktop: Desktop, user: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        desktop.list_workers(*(WorkerSettings(host="127.0.0.1", name=f"worker{n}", port=port) for n in range(1, 9)))
        argv = [sys.executable, str(PROGRAM), "--check", "--config", str(desktop.config), "--at-once", "4"]
        process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        connections = [silent.accept()[0] for _ in range(4)]  # as many as are allowed
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=240)
        for connection in connections:
            connection.close()
    assert (process.returncode, out, err) == (130, "", f"checking the machines of {desktop.config}\n")


# Without a Coach: the settings file.


def test_an_added_machine_is_in_the_settings_and_the_next_step_is_printed(
    desktop: Desktop, capsys: pytest.CaptureFixture[str]
) -> None:
    assert desktop.types("--add", "new.example.com", "me", "--port", "2222") == 0
    (found,) = load_settings(desktop.config).distributed.workers
    assert (found.name, found.user, found.port) == ("new", "me", 2222)
    said = capsys.readouterr().out
    assert "No Coach is running" in said and "cluster bootstrap new" in said


def test_a_machine_may_be_added_without_a_user_and_under_another_name(desktop: Desktop) -> None:
    assert desktop.types("--add", "new.example.com", "--name", "attic", "--key-path", "~/.ssh/other") == 0
    (found,) = load_settings(desktop.config).distributed.workers
    assert (found.name, found.user, found.key_path) == ("attic", None, "~/.ssh/other")


def test_scripts_add_and_remove_machines(desktop: Desktop) -> None:
    desktop.connector().add_worker("new_worker.com", "username")
    desktop.connector().add_worker("gpus.example.com", gpu_ids=[0, 1])
    assert desktop.names() == ["new_worker", "gpus"]
    desktop.connector().remove_worker("new_worker")
    assert desktop.names() == ["gpus"]


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--add", "-oProxyCommand=x"], None),
        (["--add", "a b"], "host"),
        (["--add", "worker1.other.com"], "give each a `name`"),
        (["--remove", "worker7"], "its workers are: worker1"),
        (["--restart", "worker7"], "its workers are: worker1"),
        (["--logs", "worker7-1"], "its workers are: worker1"),
        (["--status", "--config", "missing.yaml"], "missing.yaml: cannot be read"),
    ],
)
def test_a_failed_command_says_why_in_one_line(
    desktop: Desktop, argv: list[str], said: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    desktop.list_workers(WorkerSettings(host="worker1"))
    before = desktop.config.read_text()
    if said is None:
        with pytest.raises(SystemExit):
            desktop.types(*argv)
    else:
        assert desktop.types(*argv) == 1
        assert said in capsys.readouterr().err
    assert desktop.config.read_text() == before


@pytest.mark.parametrize(
    "argv", [[], ["--check", "--status"], ["--add", "a", "b", "c"], ["--status", "--port", "22"], ["--stop"]]
)
def test_invalid_commands_are_refused(desktop: Desktop, argv: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        desktop.types(*argv)
    assert ended.value.code == 2


def test_settings_without_workers_say_how_to_add_one(desktop: Desktop, capsys: pytest.CaptureFixture[str]) -> None:
    assert desktop.types("--check") == 1
    assert "cluster add HOST USER" in capsys.readouterr().out
    assert desktop.types("--status") == 0
    assert "cluster add HOST USER" in capsys.readouterr().out


# Next to a Coach.

COACH = """
import sys, time
from pathlib import Path
from keima.cluster.control.requests import RequestInbox

def carry_out(request):
    if request.worker == "worker9":
        raise ValueError("there is no worker worker9; the workers are: worker1")
    return request.model_dump_json(exclude_unset=True)

desk = RequestInbox(Path(sys.argv[1]), run=Path("run"), config=Path(sys.argv[2]))
print("open", flush=True)
while True:
    desk.answer_requests(carry_out)
    time.sleep(0.01)
"""


@pytest.fixture
def coach(desktop: Desktop) -> Iterator[subprocess.Popen[str]]:
    """A Coach that answers with the request."""
    argv = [sys.executable, "-c", COACH, str(desktop.control), str(desktop.config)]
    process = subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "open\n"
    yield process
    process.kill()
    process.communicate()


Ask = Callable[[SSHConnector], str]


@pytest.mark.parametrize(
    ("ask", "request_made"),
    [
        (lambda c: c.restart_worker("worker1"), {"command": "restart", "worker": "worker1"}),
        (lambda c: c.stop_worker("worker1-2"), {"command": "stop", "worker": "worker1-2"}),
        (lambda c: c.remove_worker("worker1"), {"command": "remove", "worker": "worker1"}),
        (lambda c: c.take_over_worker("worker1"), {"command": "takeover", "worker": "worker1"}),
        (lambda c: c.status(), {"command": "status"}),
        (lambda c: c.status(["lab"]), {"command": "status", "workers": ["lab"]}),
        (
            lambda c: c.add_worker("new_worker.com", "username"),
            {"command": "add", "machine": {"host": "new_worker.com", "user": "username", "name": "new_worker"}},
        ),
    ],
)
def test_a_running_coach_is_asked_and_changes_the_settings_itself(
    desktop: Desktop, coach: subprocess.Popen[str], ask: Ask, request_made: dict[str, Any]
) -> None:
    before = desktop.config.read_text()
    assert json.loads(ask(desktop.connector())) == request_made
    assert desktop.config.read_text() == before


def test_without_a_coach_nothing_is_taken_over_and_the_message_says_how_to(desktop: Desktop) -> None:
    with pytest.raises(NotDone, match=r"keima train --distributed --takeover"):
        desktop.connector().take_over_worker("worker1")


def test_a_command_that_the_coach_refuses_fails(
    desktop: Desktop, coach: subprocess.Popen[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert desktop.types("--restart", "worker9") == 1
    assert capsys.readouterr().err == "there is no worker worker9; the workers are: worker1\n"


def test_commands_use_the_settings_that_the_coach_follows_unless_others_are_named(
    desktop: Desktop, coach: subprocess.Popen[str]
) -> None:
    assert SSHConnector(control_folder=desktop.control).config == desktop.config
    other = desktop.folder / "other.yaml"
    shutil.copy(desktop.config, other)
    with pytest.raises(NotDone, match=r"follows .*config.yaml, not .*other.yaml"):
        desktop.connector(other).remove_worker("worker1")


def test_after_the_coach_was_killed_commands_act_directly(desktop: Desktop, coach: subprocess.Popen[str]) -> None:
    coach.kill()
    coach.wait()
    assert not is_coach_running(desktop.control)
    desktop.connector().add_worker("new.example.com")
    assert desktop.names() == ["new"]


# As a separate program.


def run(*argv: str, cwd: Path, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run it without the test's import path."""
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(
        [sys.executable, *argv], cwd=cwd, env={**clean, **(env or {})}, capture_output=True, text=True, timeout=60
    )


@pytest.mark.medium
@pytest.mark.parametrize("env", [{}, {"PYTHONSAFEPATH": "1"}])
@pytest.mark.parametrize("start", ["by its path", "from the checkout", "from its own folder", "as a module"])
def test_the_program_starts_however_it_is_called(desktop: Desktop, start: str, env: dict[str, str]) -> None:
    argv, cwd = {
        "by its path": ([str(PROGRAM)], desktop.folder),
        "from the checkout": (["distributed/ssh_connector.py"], ROOT),
        "from its own folder": (["ssh_connector.py"], PROGRAM.parent),
        "as a module": (["-m", "keima.cli.cluster"], ROOT),
    }[start]
    if start == "as a module":
        env = {}  # with a safe path, Python finds no module here
    done = run(*argv, "--check", "--config", str(desktop.config), cwd=cwd, env=env)
    assert (done.returncode, done.stderr) == (1, f"checking the machines of {desktop.config}\n")
    assert done.stdout.startswith(f"{desktop.config} lists no workers: ")
    assert done.stdout.endswith(f"cluster add HOST USER --config {desktop.config} adds one\n")


@pytest.mark.medium
def test_a_script_in_the_checkout_may_import_it(desktop: Desktop) -> None:
    script = f"""
from pathlib import Path
from keima.cluster.connector import SSHConnector
connector = SSHConnector(Path({str(desktop.config)!r}), control_folder=Path({str(desktop.control)!r}))
connector.add_worker("new_worker.com", "username")
"""
    done = run("-c", script, cwd=ROOT)
    assert (done.returncode, done.stdout) == (0, "")
    assert (
        done.stderr.startswith(f"new_worker is in {desktop.config}. No Coach is running")
        and "cluster bootstrap new_worker" in done.stderr
    )
    assert desktop.names() == ["new_worker"]


@pytest.mark.medium
def test_the_program_reports_its_action_once(desktop: Desktop) -> None:
    done = run(str(PROGRAM), "--add", "new_worker.com", "username", "--config", str(desktop.config), cwd=ROOT)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("new_worker is in") == 1
    assert f"  {cluster('bootstrap new_worker', desktop.config)}\n" in done.stdout


@pytest.mark.medium
def test_importing_it_leaves_the_import_path_unchanged() -> None:
    script = "import sys; before = list(sys.path); import keima.cluster.connector; assert sys.path == before"
    assert run("-c", script, cwd=ROOT).returncode == 0


def test_several_machines_and_groups_are_removed_and_restarted_by_one_command(
    desktop: Desktop, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("first", "second", "third", "fourth"):
        assert desktop.types("add", f"{name}.invalid", "me") == 0
    settings = yaml.safe_load(desktop.config.read_text())
    for machine in settings["distributed"]["workers"][1:3]:
        machine["group"] = "attic"
    desktop.config.write_text(yaml.safe_dump(settings))
    assert desktop.types("restart", "attic", "first") == 1
    said = capsys.readouterr().out
    assert all(f"✗ {name}: " in said for name in ("first", "second", "third")) and "✗ fourth" not in said
    assert desktop.types("remove", "attic", "first") == 0
    assert desktop.names() == ["fourth"]
    assert desktop.types("--remove", "fourth", "nowhere") == 1
    assert desktop.names() == [] and "✗ " in capsys.readouterr().out


def test_the_workers_wheel_is_written_for_pip(desktop: Desktop, capsys: pytest.CaptureFixture[str]) -> None:
    assert desktop.types("wheel", str(desktop.folder / "wheels")) == 0
    (wheel,) = (desktop.folder / "wheels").iterdir()
    assert capsys.readouterr().out.startswith(f"{wheel}: what a worker runs")
    assert wheel.name.startswith("keima-") and wheel.suffix == ".whl"


@pytest.mark.medium
def test_its_help_names_every_command() -> None:
    said = run(str(PROGRAM), "--help", cwd=ROOT).stdout
    assert all(f"    {command}" in said for command in COMMANDS)
