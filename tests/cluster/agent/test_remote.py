"""The program on a worker's machine, run by itself as it is there, with only Python."""

import ast
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from keima.cluster.agent.code import code_hash, unpack_release
from keima.cluster.agent.commands import COMMANDS, POLL, Stopped, StopRequest, UnpackRequest
from keima.cluster.agent.inspection import processor_name
from keima.cluster.agent.packing import REMOTE_PROGRAM, remote_program
from keima.cluster.agent.process import (
    CommandFailed,
    boot_id,
    claim_place,
    find_running,
    read_process_stat,
    release_place,
    stop_process_group,
)
from keima.cluster.agent.program import HANDLERS
from keima.cluster.machines.release import pack_code, worker_code_hash, worker_requirements
from tests.cluster.small_project import ask, make_project, root, wait_until
from tests.sources import ROOT, imported_modules

__all__ = ["root"]

PLACE = "workers/w"
LOG = "logs/worker_w.log"


@pytest.fixture
def program(root: Path) -> Path:
    content, name = remote_program()
    path = root / name
    path.parent.mkdir()
    path.write_bytes(content)
    return path


def answer(process: subprocess.Popen[bytes]) -> dict[str, Any]:
    stdout, stderr = process.communicate(timeout=240)
    lines = [line for line in stdout.decode().splitlines() if line.startswith("@@n1 ")]
    assert len(lines) == 1, stderr.decode()
    found = json.loads(lines[0].partition(" ")[2])
    assert isinstance(found, dict)
    return found


def worker(root: Path) -> dict[str, Any]:
    """A request to start a worker."""
    make_project(root)
    return {
        "place": PLACE,
        "argv": [sys.executable, "keima/__main__.py", "worker", "--folder", PLACE],
        "env": {},
        "log": LOG,
    }


def test_it_needs_nothing_but_the_standard_library() -> None:
    for path in (ROOT / "keima" / name for name in REMOTE_PROGRAM):
        own = {module.partition(".")[0] for module in imported_modules(path)}
        assert own - {"keima"} <= sys.stdlib_module_names | {"__future__"}
        ours = {module for module in imported_modules(path) if module.startswith("keima.")}
        others = ("keima.cluster.agent", "keima.base.reports.text", "keima.base.system.limits")
        assert all(module.startswith(others) for module in ours)


def test_every_command_but_the_poll_has_a_handler_of_its_own() -> None:
    assert HANDLERS.keys() == COMMANDS.keys() - {POLL.name}


def test_the_program_has_no_syntax_that_python_3_9_lacks() -> None:
    for name in REMOTE_PROGRAM:
        ast.parse((ROOT / "keima" / name).read_text(encoding="utf-8"), feature_version=(3, 9))


def test_it_answers_on_a_machine_without_our_packages(program: Path, root: Path) -> None:
    packages = {"numpy": "1", "no-such-package": "1"}
    request = {
        "own": sys.executable,
        "environments": [],
        "clone": ".venv/bin/python",
        "python": [],
        "packages": packages,
        "code": ["."],
        "extra": "",
    }
    found = answer(ask(program, root, "probe", request))["ok"]
    assert found["root"] == str(root)
    assert found["python"]["path"] == sys.executable
    assert found["python"]["version"] == list(sys.version_info[:3])
    assert found["python"]["packages"]["no-such-package"] is None
    assert found["writable"] and found["cpus"] >= 1 and found["memory"] > 0 and found["disk_free"] > 0
    assert found["code"]["."] == ""
    assert found["processor"] == processor_name() != ""


def test_the_answer_reports_failures(program: Path, root: Path) -> None:
    assert "KeyError" in answer(ask(program, root, "no-such-command", {}))["failed"]


def test_a_process_in_its_own_session_outlives_the_one_that_started_it(program: Path, root: Path) -> None:
    found = answer(ask(program, root, "start", worker(root)))["ok"]
    pid = found["pid"]
    assert not found["already"]
    assert (os.getsid(pid), os.getpgid(pid)) == (pid, pid)
    wait_until(lambda: "the worker begins" in (root / LOG).read_text())
    descriptors = {path.name: str(path.readlink()) for path in Path(f"/proc/{pid}/fd").iterdir()}
    assert descriptors == {"0": "/dev/null", "1": str(root / LOG), "2": str(root / LOG)}
    assert answer(ask(program, root, "alive", {"place": PLACE}))["ok"] == {"running": True, "pid": pid, "code": None}


def test_a_process_has_the_niceness_of_its_machine(program: Path, root: Path) -> None:
    found = answer(ask(program, root, "start", {**worker(root), "nice": 7}))["ok"]
    assert os.getpriority(os.PRIO_PROCESS, found["pid"]) == os.getpriority(os.PRIO_PROCESS, 0) + 7


@pytest.mark.medium
def test_six_starts_at_once_leave_exactly_one_process(program: Path, root: Path) -> None:
    patient = program.read_bytes().replace(b"LOCK_SECONDS = 4.0", b"LOCK_SECONDS = 99.")  # the last waits for five
    program.write_bytes(patient)
    request = worker(root)
    answers = [answer(process)["ok"] for process in [ask(program, root, "start", request) for _ in range(6)]]
    assert len({found["pid"] for found in answers}) == 1
    assert [found["already"] for found in answers].count(False) == 1
    wait_until(lambda: (root / PLACE / "begun").exists() and (root / PLACE / "begun").read_text())
    time.sleep(0.3)
    assert (root / PLACE / "begun").read_text().split() == [str(answers[0]["pid"])]


@pytest.mark.medium
def test_a_killed_start_leaves_no_second_worker(program: Path, root: Path) -> None:
    request = worker(root)
    for delay in (0.02, 0.05, 0.08, 0.11):
        process = ask(program, root, "start", request)
        time.sleep(delay)
        process.kill()
        process.communicate()
    found = answer(ask(program, root, "start", request))["ok"]
    wait_until(lambda: (root / PLACE / "begun").exists() and (root / PLACE / "begun").read_text())
    assert (root / PLACE / "begun").read_text().split() == [str(found["pid"])]


def test_a_missing_program_is_reported_as_missing(program: Path, root: Path) -> None:
    request = {"place": PLACE, "argv": ["no-such-program"], "env": {}, "log": LOG}
    assert "no-such-program cannot be started" in answer(ask(program, root, "start", request))["failed"]
    assert find_running(root / PLACE) is None


def test_a_stopped_process_first_hands_over_its_games(program: Path, root: Path) -> None:
    pid = answer(ask(program, root, "start", worker(root)))["ok"]["pid"]
    wait_until(lambda: (root / PLACE / "begun").exists() and (root / PLACE / "begun").read_text())
    assert answer(ask(program, root, "stop", {"place": PLACE, "seconds": 120.0}))["ok"] == {
        "found": True,
        "killed": False,
    }
    assert (root / PLACE / "handed-over").exists()
    stat = read_process_stat(pid)
    assert stat is None or stat[0] == "Z"


@pytest.mark.medium
def test_a_process_that_does_not_end_is_killed(program: Path, root: Path) -> None:
    answer(ask(program, root, "start", {**worker(root), "env": {"STUBBORN": "1"}}))
    wait_until(lambda: (root / PLACE / "begun").exists() and (root / PLACE / "begun").read_text())
    assert answer(ask(program, root, "stop", {"place": PLACE, "seconds": 0.5}))["ok"] == {"found": True, "killed": True}
    assert find_running(root / PLACE) is None


@pytest.mark.parametrize("changed", ["start_ticks", "boot_id"])
def test_an_unrelated_process_with_the_same_id_is_never_touched(root: Path, changed: str) -> None:
    place = root / PLACE
    place.mkdir(parents=True)
    with subprocess.Popen(["sleep", "60"]) as stranger:
        stat = read_process_stat(stranger.pid)
        assert stat is not None
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        record = {"pid": stranger.pid, "start_ticks": stat[2], "boot_id": boot, "argv": []}
        other = {"start_ticks": stat[2] - 1, "boot_id": "an earlier one"}[changed]
        (place / "process.json").write_text(json.dumps({**record, changed: other}))
        assert stop_process_group(StopRequest(str(place), 0.0)) == Stopped(found=False, killed=False)
        assert stranger.poll() is None
        stranger.kill()


def recorded_elsewhere(place: Path) -> Path:
    """Return the record of a worker that another machine with this home has started; its id and start time are those of
    this process.
    """
    place.mkdir(parents=True)
    found = read_process_stat(os.getpid())
    assert found is not None
    record = {
        "pid": os.getpid(),
        "start_ticks": found[2],
        "boot_id": boot_id(),
        "host": "other-0123abcd",
        "argv": ["releases/theirs/x.py"],
    }
    path = place / "process.json"
    path.write_text(json.dumps(record))
    return path


def test_a_worker_of_another_machine_with_this_home_is_neither_duplicated_nor_signalled(
    program: Path, root: Path
) -> None:
    record = recorded_elsewhere(root / PLACE)
    before = record.read_text()
    for command, request in (("start", worker(root)), ("stop", {"place": PLACE, "seconds": 0.0})):
        found = answer(ask(program, root, command, request))
        assert (
            found["kind"] == "elsewhere" and f"process {os.getpid()} of other is recorded at {PLACE}" in found["failed"]
        )
    assert answer(ask(program, root, "alive", {"place": PLACE}))["ok"]["running"]
    with pytest.raises(CommandFailed, match="share their home"):
        claim_place(root / PLACE, ["by hand"])
    assert record.read_text() == before


def test_a_long_command_on_another_machine_with_this_home_is_followed_until_it_leaves_its_exit_code(
    program: Path, root: Path
) -> None:
    record = recorded_elsewhere(root / PLACE)
    request = {**worker(root), "shared": True}
    assert answer(ask(program, root, "start", request))["ok"]["already"]
    assert answer(ask(program, root, "alive", {"place": PLACE}))["ok"] == {
        "running": True,
        "pid": os.getpid(),
        "code": None,
    }
    (record.parent / "exit").write_text("1\n")
    assert answer(ask(program, root, "alive", {"place": PLACE}))["ok"] == {"running": False, "pid": 0, "code": 1}
    found = answer(ask(program, root, "start", request))["ok"]
    assert not found["already"] and found["pid"] != os.getpid()


def test_the_release_of_a_worker_of_another_machine_with_this_home_stays(
    tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(root)
    record = recorded_elsewhere(root / PLACE)
    names = []
    for number in range(4):
        names.append(put_release(tmp_path, root, number))
        os.utime(root / "releases" / names[-1] / ".whole", (number, number))
        if number == 0:
            record.write_text(record.read_text().replace("theirs", names[0]))
    assert sorted(path.name for path in (root / "releases").glob("[!.]*")) == sorted([names[0], names[2], names[3]])


def test_a_process_that_ends_leaves_no_record_that_another_machine_would_have_to_trust(root: Path) -> None:
    place = root / PLACE
    other = recorded_elsewhere(place)
    release_place(place)
    assert other.exists()
    other.unlink()
    assert claim_place(place, ["by hand"]) is None
    release_place(place)
    assert not other.exists()


def test_a_process_started_by_hand_is_also_known(root: Path) -> None:
    place = root / PLACE
    place.mkdir(parents=True)
    assert claim_place(place, ["by hand"]) is None
    assert claim_place(place, ["by hand"]) is None
    record = find_running(place)
    assert record and record["pid"] == os.getpid()
    parent = read_process_stat(os.getppid())
    assert parent is not None
    (place / "process.json").write_text(json.dumps({**record, "pid": os.getppid(), "start_ticks": parent[2]}))
    assert claim_place(place, ["by hand"]) == os.getppid()
    (place / "process.json").unlink()


def test_the_end_of_a_log_is_read_from_the_last_position(program: Path, root: Path) -> None:
    (root / "logs").mkdir()
    (root / LOG).write_text("".join(f"line {number}\n" for number in range(100_000)))
    found = answer(ask(program, root, "tail", {"log": LOG, "lines": 2}))["ok"]
    assert found["text"] == "line 99998\nline 99999\n"
    with (root / LOG).open("a") as file:
        file.write("more\n")
    assert (
        answer(ask(program, root, "tail", {"log": LOG, "lines": 50, "offset": found["end"]}))["ok"]["text"] == "more\n"
    )
    assert answer(ask(program, root, "tail", {"log": "logs/none.log", "lines": 2}))["ok"] == {"text": "", "end": 0}


def test_a_large_log_is_rotated(program: Path, root: Path) -> None:
    (root / "logs").mkdir()
    (root / LOG).write_bytes(b"x" * (6 * 2**20))
    answer(ask(program, root, "start", worker(root)))
    assert (root / LOG).stat().st_size < 1000
    assert (root / f"{LOG}.1").exists()


def test_secrets_come_in_a_file_not_in_the_process_list(program: Path, root: Path) -> None:
    (root / "request.json").write_text(json.dumps({"place": PLACE}))
    assert answer(ask(program, root, "alive", {"request": "request.json"}))["ok"]["running"] is False
    assert not (root / "request.json").exists()


def put_release(tmp_path: Path, root: Path, number: int) -> str:
    project = make_project(tmp_path / f"project{number}", worker=f"number = {number}\n")
    (root / "code.whl").write_bytes(pack_code(worker_requirements(root=project), project))
    name = worker_code_hash(project)
    unpack_release(UnpackRequest("code.whl", name, extra=""))
    return name


def test_a_release_contains_exactly_the_packed_code(
    tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(root)
    name = put_release(tmp_path, root, 1)
    assert code_hash(root / "releases" / name) == name
    assert (root / "releases" / name / ".whole").exists()
    assert not list(root.glob("*.whl"))


def test_a_release_that_was_changed_by_hand_is_replaced(
    tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(root)
    name = put_release(tmp_path, root, 1)
    (root / "releases" / name / "keima/__main__.py").write_text("changed\n")
    (root / "releases" / "cut-off.part").mkdir()
    assert put_release(tmp_path, root, 1) == name
    assert code_hash(root / "releases" / name) == name
    assert sorted(path.name for path in (root / "releases").iterdir()) == [".lock", name]


def test_an_archive_that_does_not_match_its_name_is_refused(
    tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(root)
    project = make_project(tmp_path / "project")
    (root / "code.whl").write_bytes(pack_code(worker_requirements(root=project), project))
    with pytest.raises(CommandFailed, match="instead of 0123"):
        unpack_release(UnpackRequest("code.whl", "0123", extra=""))
    assert not (root / "releases" / "0123").exists()


def test_the_last_two_releases_and_those_in_use_are_kept(
    tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(root)
    names = []
    for number in range(4):
        names.append(put_release(tmp_path, root, number))
        os.utime(root / "releases" / names[-1] / ".whole", (number, number))
        if number == 0:
            (root / PLACE).mkdir(parents=True)
            claim_place(root / PLACE, ["python", f"releases/{names[0]}/start_worker.py"])
    assert sorted(path.name for path in (root / "releases").glob("[!.]*")) == sorted([names[0], names[2], names[3]])
    (root / PLACE / "process.json").unlink()


def test_ignored_signals_are_handled_again(program: Path, root: Path) -> None:
    program_text = [
        "sh",
        "-c",
        f"trap '' HUP INT; exec {sys.executable} -I {program} n1 start \"$1\"",
        "sh",
        json.dumps(worker(root)),
    ]
    process = subprocess.Popen(program_text, cwd=root, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    pid = answer(process)["ok"]["pid"]
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    ignored = int(status["SigIgn"], 16)
    assert not ignored & (1 << (signal.SIGHUP - 1))
