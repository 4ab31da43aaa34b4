"""What the main node does on a machine, here with a folder of this one in its place."""

import json
import sys
from collections.abc import Sequence
from dataclasses import MISSING, fields, replace
from pathlib import Path
from typing import Any

import pytest

from keima.cluster.agent.call import call_remote, disk_remedy, find_answer, read_answer
from keima.cluster.agent.commands import ALIVE, COMMANDS, POLL, PROBE, AliveRequest, Command, Probe
from keima.cluster.agent.packing import install_remote_program
from keima.cluster.agent.process import find_running
from keima.cluster.machines.machine import (
    WorkerSlot,
    ask_if_alive,
    log_name,
    probe_machine,
    read_log_end,
    start_worker,
    stop_worker,
    worker_place,
)
from keima.cluster.machines.release import WorkerRequirements, worker_code_hash
from keima.cluster.ssh.errors import Refused, RemoteFailure
from keima.cluster.ssh.transport import Completed, LocalTransport
from tests.cluster.small_project import make_project, root, settings, wait_until
from tests.real_inputs import answers, poll

__all__ = ["root"]

SLOT = WorkerSlot("worker1")


@pytest.fixture
def there(root: Path) -> LocalTransport:
    return LocalTransport(make_project(root, module="custom_worker"), worker="worker1")


def required_in(root: Path, worker_class: str = "training.worker.Worker") -> WorkerRequirements:
    extra = "custom_worker" if worker_class.startswith("custom") else ""
    return WorkerRequirements(
        code_hash=worker_code_hash(root, worker_class), extra=extra, worker_class=worker_class, packages={"pytest": "1"}
    )


def inspect_machine(there: LocalTransport, root: Path, **values: object) -> Probe:
    return probe_machine(there, settings(**values), required_in(root))


def begin(there: LocalTransport, root: Path, *, slot: WorkerSlot = SLOT, **values: object) -> dict[str, Any]:
    """Start a worker; return what it sees of the system."""
    start_worker(
        there, slot, machine=settings(**values), probe=inspect_machine(there, root), required=required_in(root)
    )
    seen = root / worker_place(slot.name) / "seen.json"
    wait_until(lambda: seen.exists() and seen.read_text().endswith("}"))
    found = json.loads(seen.read_text())
    assert isinstance(found, dict)
    return found


def test_the_first_contact_installs_only_our_program(there: LocalTransport, root: Path) -> None:
    name = install_remote_program(there)
    sent = there.sent
    assert (root / name).stat().st_size == sent
    assert install_remote_program(there) == name
    assert there.sent == sent


def test_a_removed_program_is_installed_again(there: LocalTransport, root: Path) -> None:
    (root / install_remote_program(there)).unlink()
    assert inspect_machine(there, root).writable


def test_a_probe_reports_the_machine(there: LocalTransport, root: Path) -> None:
    found = inspect_machine(there, root)
    assert found.root == str(root)
    assert found.python and found.python.version == sys.version_info[:3]
    assert found.folder_of(worker_code_hash(root)) == "."
    assert found.folder_of("other") is None


@pytest.mark.medium
def test_a_missing_interpreter_named_by_the_user_is_reported(there: LocalTransport, root: Path) -> None:
    assert inspect_machine(there, root, python="/no/such/python").python is None


@pytest.mark.medium
def test_an_interpreter_that_does_not_work_is_refused(there: LocalTransport, root: Path) -> None:
    broken = root / "python"
    broken.write_text("#!/bin/sh\nexit 1\n")
    broken.chmod(0o700)
    with pytest.raises(Refused, match=r"does not work as a Python interpreter.*`python:`"):
        inspect_machine(there, root, python=str(broken))


@pytest.mark.medium
def test_a_worker_can_be_started_seen_and_stopped(there: LocalTransport, root: Path) -> None:
    assert not ask_if_alive(there, "worker1").running
    seen = begin(there, root)
    assert seen["argv"] == [
        "./keima/__main__.py",
        *("worker", "--folder", "workers/worker1", "--log", "logs/worker_worker1.log"),
    ]
    assert seen["cwd"] == str(root)
    assert ask_if_alive(there, "worker1").running
    again = start_worker(
        there, SLOT, machine=settings(), probe=inspect_machine(there, root), required=required_in(root)
    )
    assert again.already and again.pid == ask_if_alive(there, "worker1").pid
    assert "the worker begins" in read_log_end(there, "worker1")
    stopped = stop_worker(there, "worker1")
    assert stopped.found and not stopped.killed
    assert (root / "workers/worker1/handed-over").exists()
    assert not ask_if_alive(there, "worker1").running


def test_a_process_without_a_gpu_has_one_thread_and_sees_no_gpu(there: LocalTransport, root: Path) -> None:
    env = begin(there, root)["env"]
    assert (env["OMP_NUM_THREADS"], env["CUDA_VISIBLE_DEVICES"]) == ("1", "")


@pytest.mark.medium
def test_a_process_with_a_gpu_sees_only_that_one(there: LocalTransport, root: Path) -> None:
    seen = begin(there, root, slot=WorkerSlot("worker1-2", 3))
    assert seen["env"]["CUDA_VISIBLE_DEVICES"] == "3"
    assert seen["argv"][-2:] == ["--gpu", "3"]


@pytest.mark.medium
def test_variables_of_the_config_reach_the_worker_but_not_the_process_list(
    there: LocalTransport, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[str] = []
    run = there.run

    def note(argv: Sequence[str], *, seconds: float = 5.0) -> Completed:
        lines.append(" ".join(argv))
        return run(argv, seconds=seconds)

    monkeypatch.setattr(there, "run", note)
    seen = begin(there, root, env={"TOKEN": "hidden-value", "OMP_NUM_THREADS": "2"})
    assert (seen["env"]["TOKEN"], seen["env"]["OMP_NUM_THREADS"]) == ("hidden-value", "2")
    assert lines and not any("hidden-value" in line for line in lines)
    assert "hidden-value" not in (root / "workers/worker1/process.json").read_text()
    assert not list((root / ".remote/requests").iterdir())


@pytest.mark.medium
def test_the_worker_is_told_the_user_s_worker_class(there: LocalTransport, root: Path) -> None:
    own = required_in(root, "custom_worker.CustomWorker")
    start_worker(there, SLOT, machine=settings(), probe=probe_machine(there, settings(), own), required=own)
    seen = root / "workers/worker1/seen.json"
    wait_until(lambda: seen.exists() and seen.read_text().endswith("}"))
    assert json.loads(seen.read_text())["argv"][-2:] == ["--worker-class", "custom_worker.CustomWorker"]


def test_no_worker_is_started_with_different_code(there: LocalTransport, root: Path) -> None:
    before = inspect_machine(there, root)
    (root / "keima/games/__init__.py").write_text("x = 1\n")
    with pytest.raises(Refused, match=r"worker1: .*Keima's code.*cluster bootstrap worker1"):
        start_worker(there, SLOT, machine=settings(), probe=before, required=required_in(root))


def test_a_program_that_cannot_be_started_says_why(there: LocalTransport, root: Path) -> None:
    found = inspect_machine(there, root)
    assert found.python
    gone = replace(found, python=replace(found.python, path="/gone/python"))
    with pytest.raises(RemoteFailure, match="/gone/python cannot be started"):
        start_worker(there, SLOT, machine=settings(), probe=gone, required=required_in(root))
    assert find_running(root / worker_place("worker1")) is None


@pytest.mark.medium
def test_a_worker_s_log_cannot_control_the_terminal(there: LocalTransport, root: Path) -> None:
    (root / "logs").mkdir()
    (root / log_name("worker1")).write_text("one\n\x1b[2Jtwo\n")
    assert read_log_end(there, "worker1") == "one\n[2Jtwo"
    assert read_log_end(there, "worker2") == ""


@pytest.mark.parametrize(
    ("said", "remedy"),
    [
        ("PermissionError: [Errno 13] Permission denied: 'workers/worker1'", "give its user the right to write there"),
        ("OSError: [Errno 28] No space left on device", "free space on its disk"),
        ("FileNotFoundError: [Errno 2] No such file or directory: 'a'", ""),
        ("ValueError: no number", ""),
    ],
)
def test_a_file_error_there_has_the_remedy_of_its_number(said: str, remedy: str) -> None:
    assert disk_remedy(said).startswith(remedy) and bool(disk_remedy(said)) == bool(remedy)


def test_an_answer_is_found_in_the_output_of_a_noisy_login_shell() -> None:
    noise = b'Welcome!\n@@other {"ok": 1}\n@@n {"ok": 2}\nbye'
    assert find_answer("worker1", Completed(0, noise, b""), "n") == {"ok": 2}


def test_a_missing_answer_is_reported_with_the_output_instead() -> None:
    with pytest.raises(
        RemoteFailure, match=r"worker1: .*ended with 1 and printed: This account is currently not available"
    ):
        find_answer("worker1", Completed(1, b"This account is currently not available.\n", b""), "n")


@pytest.fixture
def tools(root: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder in which programs are found; the standard ones are there."""
    folder = root / "tools"
    folder.mkdir()
    for name in ("sh", "mkdir", "uname"):
        (folder / name).symlink_to(f"/bin/{name}")
    monkeypatch.setenv("PATH", str(folder))
    return folder


def stand_in(path: Path, command: str) -> None:
    path.write_text(f"#!/bin/sh\n{command}\n")
    path.chmod(0o700)


def test_an_ancient_python_is_skipped(there: LocalTransport, tools: Path) -> None:
    stand_in(tools / "python3", "exit 1")  # because it reports that it is older than required
    assert not ask_if_alive(there, "worker1", python=sys.executable).running
    with pytest.raises(Refused, match=r"no working Python.*Python 3\.11"):
        ask_if_alive(there, "worker1")


TOO_OLD = (
    """case "$*" in *"inspect inspect"*) echo '@@inspect {"ok": {"version": [3, 9, 2], "packages": {}}}';; *) exec """
)


@pytest.mark.medium
@pytest.mark.parametrize("python3", ["exit 1", f'{TOO_OLD} {sys.executable} "$@";; esac'], ids=["3.8", "3.9"])
def test_a_newer_python_next_to_an_old_python3_is_found(
    there: LocalTransport, root: Path, tools: Path, python3: str
) -> None:
    stand_in(tools / "python3", python3)
    stand_in(tools / "python3.11", f'exec {sys.executable} "$@"')
    found = probe_machine(there, settings(python="python3"), required_in(root)).python
    assert found and found.path == str(tools / "python3.11")
    assert found.version == sys.version_info[:3]


def test_a_machine_without_any_python_is_refused(there: LocalTransport, tools: Path) -> None:
    install_remote_program(there)
    with pytest.raises(Refused, match=r"no working Python.*install Python"):
        call_remote(there, ALIVE, AliveRequest("workers/worker1"))


def test_an_unexpected_answer_is_not_trusted(
    there: LocalTransport, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lie(argv: Sequence[str], *, seconds: float = 5.0) -> Completed:
        nonce = argv[5]
        return Completed(0, f'@@{nonce} {{"ok": {{"running": true, "pid": -4}}}}\n'.encode(), b"")

    monkeypatch.setattr(there, "run", lie)
    with pytest.raises(RemoteFailure, match="is invalid"):
        ask_if_alive(there, "worker1")


ANSWERS = answers() | {POLL.name: json.loads(poll())["ok"]}


@pytest.mark.parametrize("command", COMMANDS.values(), ids=lambda command: command.name)
def test_an_answer_of_the_wrong_shape_is_refused_with_the_machine_s_name(command: Command[Any, Any]) -> None:
    good = ANSWERS[command.name]
    assert isinstance(read_answer("worker1", command, {"ok": good}), command.answer)
    lacking = [{other: good[other] for other in good if other != name} for name in fields_without_default(command)]
    for wrong in [None, 7, "yes", [], *({**good, name: [["odd"]]} for name in good), *lacking]:
        with pytest.raises(RemoteFailure, match="worker1: an answer is invalid"):
            read_answer("worker1", command, {"ok": wrong})


def fields_without_default(command: Command[Any, Any]) -> list[str]:
    return [field.name for field in fields(command.answer) if field.default is MISSING]


def test_the_texts_of_an_answer_cannot_control_the_terminal_and_its_numbers_have_bounds() -> None:
    found = read_answer("worker1", PROBE, {"ok": ANSWERS["probe"] | {"platform": "Li\x1b[2Jnux\n" + "x" * 5000}})
    assert found.platform.startswith("Li [2Jnux x") and len(found.platform) <= 4000
    for name, odd in {"cpus": 0, "memory": -1, "clock": float("nan"), "root": "/home\n"}.items():
        with pytest.raises(RemoteFailure, match=name):
            read_answer("worker1", PROBE, {"ok": ANSWERS["probe"] | {name: odd}})
