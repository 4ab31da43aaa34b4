"""From a bare folder to one that can play; a stand-in installs the packages, which takes no minutes."""

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from keima.cluster.agent.client import AgentTransport
from keima.cluster.agent.process import find_running
from keima.cluster.machines import bootstrap
from keima.cluster.machines.bootstrap import (
    MAKE_ENVIRONMENT,
    NO_PIP_SETTINGS,
    bootstrap_machine,
    bootstrap_steps,
    environment_job_place,
)
from keima.cluster.machines.check import run_checks
from keima.cluster.machines.machine import (
    WorkerSlot,
    ask_if_alive,
    probe_machine,
    read_log_end,
    start_worker,
    stop_worker,
)
from keima.cluster.machines.process_manager import RemoteProcessManager
from keima.cluster.machines.release import WorkerRequirements, worker_code_hash, worker_requirements
from keima.cluster.ssh.errors import Refused, RemoteFailure
from keima.cluster.ssh.transport import LocalTransport
from keima.config.sections.workers import PipSettings, WorkerSettings
from tests.cluster.machines.test_check import a_probe
from tests.cluster.small_project import make_project, root, wait_until
from tests.worker.test_worker import Main

__all__ = ["root"]

PYTHON_OF_TESTS = (
    f'printf \'#!/bin/sh\\nexec {sys.executable} "$@"\\n\' >"$KEIMA_VENV/bin/python"; chmod +x "$KEIMA_VENV/bin/python"'
)
INSTALL = f"""
mkdir -p "$(dirname "$KEIMA_VENV")"
echo ran >>"$KEIMA_VENV.runs"
for file; do echo "Installing $(cat "$file")"; done
mkdir -p "$KEIMA_VENV/bin"
{PYTHON_OF_TESTS}
"""
MACHINE = WorkerSettings.model_validate({"host": "worker1", "processes": 1})


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Our checkout; and a python3 that has no packages."""
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "python3").write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    (tools / "python3").chmod(0o700)
    monkeypatch.setenv("PATH", f"{tools}:/usr/bin:/bin")
    # The tests of packages hand over compiled code.
    monkeypatch.setattr("keima.cluster.machines.compile_cache.compile_here", lambda game: iter(()))
    monkeypatch.setattr("keima.cluster.machines.compile_cache.pack_cache", lambda: b"")
    return setup_is(make_project(tmp_path / "ours"), INSTALL)


def setup_is(project: Path, text: str) -> Path:
    (project / MAKE_ENVIRONMENT).write_text(text)
    return project


def run(
    root: Path, project: Path, machine: WorkerSettings = MACHINE, *, pip: PipSettings = NO_PIP_SETTINGS
) -> list[str]:
    reported: list[str] = []
    transport = AgentTransport(LocalTransport(root, worker="worker1"), python=sys.executable)
    try:
        bootstrap_machine(
            transport, machine, report=reported.append, pip=pip, root=project, sleep=lambda seconds: time.sleep(0.05)
        )
    finally:
        transport.close()
    return reported


def stand_in(path: Path, command: str) -> None:
    path.write_text(f"#!/bin/sh\n{command}\n")
    path.chmod(0o700)


def runs(root: Path) -> int:
    return sum(path.read_text().count("ran") for path in (root / "environments").glob("*.runs"))


@pytest.mark.medium
def test_a_bare_machine_becomes_one_that_can_play(root: Path, project: Path) -> None:
    reported = run(root, project)
    assert reported[-1] == "ready: worker1"
    assert f"Installing {worker_requirements(root=project).pins[0]}" in reported
    assert (root / "releases" / worker_code_hash(project) / "keima/__main__.py").exists()
    checked = run_checks(
        probe_machine(LocalTransport(root), MACHINE, worker_requirements(root=project)),
        MACHINE,
        worker_requirements(root=project),
    )
    assert [finding for finding in checked if finding.fatal] == []


@pytest.mark.slow
def test_openspiel_is_installed_for_its_games_and_in_an_environment_of_its_own(root: Path, project: Path) -> None:
    pytest.importorskip("pyspiel", reason="open_spiel is not installed")
    plain, required = (worker_requirements(game=game, root=project) for game in ("connect_four", "openspiel"))
    assert "open_spiel" not in plain.packages
    assert required.packages.keys() - plain.packages.keys() == {"open_spiel"}
    reported = list(bootstrap_steps(LocalTransport(root, worker="worker1"), MACHINE, required=required, root=project))
    (pin,) = (each for each in required.pins if each.startswith("open_spiel=="))
    assert pin in reported
    assert (root / required.environment_folder).is_dir() and not (root / plain.environment_folder).exists()


@pytest.mark.medium
def test_a_machine_that_is_ready_is_only_checked_until_there_is_new_code_for_its_environment(
    root: Path, project: Path
) -> None:
    run(root, project)
    reported = run(root, project)
    assert reported[1:] == ["the environment is complete", "ready: worker1"]
    (project / "keima/games/__init__.py").write_text("x = 1\n")
    reported = run(root, project)
    assert f"releases/{worker_code_hash(project)}" in reported[1]
    assert reported[2] == "the environment is complete"
    assert "tested tic_tac_toe" in reported
    assert runs(root) == 1


@pytest.mark.slow
@pytest.mark.medium
def test_checkouts_with_different_requirements_have_separate_environments_and_others_share_one(
    root: Path, project: Path, tmp_path: Path
) -> None:
    def required_by(project: Path, packages: Sequence[str]) -> WorkerRequirements:
        found = worker_requirements(root=project)
        return replace(found, packages={name: found.packages[name] for name in packages})

    other = setup_is(make_project(tmp_path / "other"), INSTALL)
    wanted = [required_by(project, ["numpy"]), required_by(other, ["numpy", "torch"])]
    first, second = (root / required.environment_folder for required in wanted)
    assert first != second
    for _ in range(2):
        for each, required in zip((project, other), wanted, strict=True):
            steps = bootstrap_steps(LocalTransport(root, worker="worker1"), MACHINE, required=required, root=each)
            assert "ready: worker1" in list(steps)
        (first / "mark").touch()
    assert (first / "mark").exists() and second.is_dir() and runs(root) == 2
    for required, environment in zip(wanted, (first, second), strict=True):
        found = probe_machine(LocalTransport(root), MACHINE, required).python
        assert found and found.path == f"{environment}/bin/python"
    third = setup_is(make_project(tmp_path / "third"), INSTALL)
    (third / "keima/games/__init__.py").write_text("x = 3\n")
    required = required_by(third, ["numpy"])
    assert list(bootstrap_steps(LocalTransport(root, worker="worker1"), MACHINE, required=required, root=third))
    assert runs(root) == 2


def test_a_python_that_is_too_old_is_refused_before_anything_is_sent(
    root: Path, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bootstrap, "probe_machine", lambda *arguments: a_probe(version=[3, 9, 2]))
    with pytest.raises(Refused, match=r"is older than 3\.11"):
        run(root, project)
    assert not (root / "releases").exists()


@pytest.mark.medium
def test_an_environment_of_an_earlier_version_is_used_unchanged(root: Path, project: Path) -> None:
    python = root / ".venv/bin/python"
    python.parent.mkdir(parents=True)
    stand_in(python, f'exec {sys.executable} "$@"')
    assert "the environment is complete" in run(root, project)
    assert not (root / "environments").exists()


@pytest.mark.medium
def test_an_interrupted_bootstrap_is_continued(root: Path, project: Path) -> None:
    setup_is(project, f'while [ ! -e "$KEIMA_VENV.go" ]; do sleep 0.02; done\n{INSTALL}')
    steps = bootstrap_steps(LocalTransport(root, worker="worker1"), MACHINE, root=project)
    while next(steps):  # until it waits for the long step
        pass
    del steps
    assert find_running(root / environment_job_place(worker_requirements(root=project))) is not None
    again = bootstrap_steps(LocalTransport(root, worker="worker1"), MACHINE, root=project)
    while next(again) != "an earlier bootstrap is still running":
        pass
    (root / "environments").mkdir(exist_ok=True)
    (root / f"{worker_requirements(root=project).environment_folder}.go").touch()
    assert list(again)[-1] == "ready: worker1"
    assert runs(root) == 1


@pytest.mark.slow
def test_a_bootstrap_whose_long_step_ended_meanwhile_finds_it_done(root: Path, project: Path) -> None:
    steps = bootstrap_steps(LocalTransport(root, worker="worker1"), MACHINE, root=project)
    while not (root / environment_job_place(worker_requirements(root=project)) / "process.json").exists():
        next(steps)
    del steps
    wait_until(lambda: find_running(root / environment_job_place(worker_requirements(root=project))) is None)
    reported = run(root, project)
    assert (reported[1], reported[-1]) == ("the environment is complete", "ready: worker1")


@pytest.mark.medium
def test_the_index_and_the_proxy_of_the_settings_reach_pip(root: Path, project: Path) -> None:
    setup_is(project, f'echo "told $PIP_INDEX_URL $PIP_EXTRA_INDEX_URL $PIP_PROXY $TORCH_INDEX"\n{INSTALL}')
    pip = PipSettings(
        index_url="https://mirror/simple",
        extra_index_url="https://more",
        proxy="http://proxy:3128",
        torch_index="https://t/cpu",
    )
    assert "told https://mirror/simple https://more http://proxy:3128 https://t/cpu" in run(root, project, pip=pip)
    record = json.loads((root / environment_job_place(worker_requirements(root=project)) / "process.json").read_text())
    assert "mirror" not in " ".join(record["argv"])


@pytest.mark.slow
def test_a_machine_s_own_variables_take_precedence(root: Path, project: Path) -> None:
    setup_is(project, f'echo "index $PIP_INDEX_URL"\n{INSTALL}')
    machine = MACHINE.model_copy(update={"env": {"PIP_INDEX_URL": "https://mirror.example"}})
    assert "index https://mirror.example" in run(root, project, machine, pip=PipSettings(index_url="https://other"))
    record = json.loads((root / environment_job_place(worker_requirements(root=project)) / "process.json").read_text())
    assert "mirror" not in " ".join(record["argv"])


@pytest.mark.medium
def test_a_failed_installation_is_reported_with_its_last_output(root: Path, project: Path) -> None:
    setup_is(project, 'echo "No space left on device" >&2; exit 1')
    with pytest.raises(
        RemoteFailure,
        match=r"failed: its disk is full \(No space left on device\); free space there; then run: .*cluster bootstrap",
    ):
        run(root, project)
    setup_is(project, INSTALL)
    assert run(root, project)[-1] == "ready: worker1"


@pytest.mark.medium
def test_after_a_killed_installation_the_message_says_to_start_again(root: Path, project: Path) -> None:
    setup_is(project, "kill -9 $PPID")
    with pytest.raises(RemoteFailure, match="cut off"):
        run(root, project)


@pytest.mark.medium
def test_a_user_s_own_environment_is_never_changed(root: Path, project: Path, tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "env")], check=True)
    machine = MACHINE.model_copy(update={"python": str(tmp_path / "env/bin/python")})
    with pytest.raises(Refused, match=r"missing: .*torch.*-m pip install .*torch=="):
        run(root, project, machine)
    assert runs(root) == 0


@pytest.mark.medium
def test_the_environment_is_made_with_the_interpreter_that_the_user_has_named(
    root: Path, project: Path, tmp_path: Path
) -> None:
    """Even if python3 is not installed; a home is written as in a shell."""
    (tmp_path / "tools/python3").rename(tmp_path / "named")
    stand_in(tmp_path / "tools/python3", "exit 1")
    for name in ("python3.14", "python3.13", "python3.12", "python3.11"):
        stand_in(tmp_path / "tools" / name, "exit 1")
    setup_is(project, f'echo "with $PYTHON"\n{INSTALL}')
    machine = MACHINE.model_copy(update={"python": str(tmp_path / "named")})
    reported = run(root, project, machine)
    assert f"with {tmp_path}/named" in reported and reported[-1] == "ready: worker1"
    assert run(root, project, machine)[1:] == ["the environment is complete", "ready: worker1"]


def test_impossible_installations_are_refused_at_once(root: Path, project: Path) -> None:
    machine = MACHINE.model_copy(update={"gpu_ids": (98, 99)})
    with pytest.raises(Refused, match="gpu"):
        run(root, project, machine)
    assert not (root / "releases").exists()


@pytest.mark.medium
def test_a_machine_that_fails_the_test_games_is_not_ready(root: Path, project: Path) -> None:
    machine = MACHINE.model_copy(update={"env": {"NO_GPU": "1"}})
    with pytest.raises(RemoteFailure, match="the test games failed: tested connect_four"):
        bootstrap_machine(
            LocalTransport(root, worker="worker1"), machine, report=lambda line: None, game="connect_four", root=project
        )
    assert run(root, project)[-1] == "ready: worker1"


@pytest.mark.slow
@pytest.mark.trial
def test_a_machine_plays_with_our_real_code(root: Path) -> None:
    required = worker_requirements()
    machine = WorkerSettings.model_validate({"host": "worker1", "processes": 1, "python": sys.executable})
    there = LocalTransport(root, worker="worker1")
    bootstrap_machine(there, machine, report=lambda line: None)
    main = Main(root / "workers/worker1", granted=20)
    start_worker(
        there, WorkerSlot("worker1"), machine=machine, probe=probe_machine(there, machine, required), required=required
    )
    wait_until(lambda: sum(batch.num_games for batch in main.batches()) == 20)
    assert ask_if_alive(there, "worker1").running
    assert stop_worker(there, "worker1").found
    assert main.heartbeat().state == "ended"
    assert "handed over its games" in read_log_end(there, "worker1")


def test_no_machine_is_set_up_for_a_run_that_ends(root: Path, project: Path) -> None:
    process_manager = RemoteProcessManager(MACHINE, required=worker_requirements(root=project), bootstrap=True)
    with pytest.raises(Refused, match="Keima's code is not installed"):
        process_manager.prepare(LocalTransport(root, worker="worker1"), lambda text: None, lambda: False)
    assert not (root / "releases").exists()
