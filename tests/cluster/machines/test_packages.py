"""Packages on a machine that has none: a real pip, a real interpreter without packages, a real sshd, and no package
index.
"""

import platform
import shutil
import sys
import tarfile
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from keima.cluster.agent.call import call_remote
from keima.cluster.agent.commands import UNPACK_CACHE, Done, Interpreter, UnpackCacheRequest
from keima.cluster.agent.inspection import list_glibc_platforms, list_wheel_platforms
from keima.cluster.agent.packing import install_remote_program
from keima.cluster.machines import compile_cache, install_errors, wheels
from keima.cluster.machines.bootstrap import (
    CPU_ENVIRONMENT,
    CPU_TORCH,
    CUDA_ENVIRONMENT,
    MAKE_ENVIRONMENT,
    bootstrap_machine,
    check_disk_space,
    wheels_folder,
)
from keima.cluster.machines.machine import probe_machine
from keima.cluster.machines.process_manager import RemoteProcessManager
from keima.cluster.machines.release import worker_requirements
from keima.cluster.machines.wheels import NoWheels, fitting_wheels
from keima.cluster.ssh.errors import Refused, RemoteFailure
from keima.cluster.ssh.ssh_transport import connect
from keima.cluster.ssh.transport import LocalTransport
from keima.compilation import sources
from keima.config.sections.workers import PipSettings, WorkerSettings
from tests.cluster.machines.test_check import a_probe, machine
from tests.cluster.machines.wheelhouse import PURE, make_wheels
from tests.cluster.small_project import end_all, make_project, root
from tests.cluster.sshd import Sshd, needs_sshd
from tests.sources import ROOT

__all__ = ["root"]

BARE = Path(sys.base_prefix) / "bin" / f"python3.{sys.version_info.minor}"
NO_INDEX = {"PIP_CONFIG_FILE": "/dev/null", "PIP_INDEX_URL": "http://127.0.0.1:9/simple", "PIP_RETRIES": "1"}
FIND_LINKS = ("PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL")


# A machine without any interpreter of ours, over SSH.


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small project that needs two packages and is set up like ours."""
    monkeypatch.setattr("keima.cluster.machines.release.PACKAGES", PURE)
    made = make_project(tmp_path / "ours")
    shutil.copy2(ROOT / MAKE_ENVIRONMENT, made / MAKE_ENVIRONMENT)
    return made


@pytest.fixture
def bare(server: Sshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The machine: its python3 has no packages, and it can reach no package index."""
    for name in FIND_LINKS:
        monkeypatch.delenv(name, raising=False)
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "python3").write_text(f'#!/bin/sh\nexec {BARE} -S "$@"\n')
    (tools / "python3").chmod(0o700)
    server.stop()
    server.start(environment=f"PATH={tools}:/usr/bin:/bin")
    yield server.worker(processes=1, env=NO_INDEX)
    end_all(server.folder / "keima")


@pytest.mark.slow
@needs_sshd
@pytest.mark.trial
def test_a_machine_without_an_interpreter_of_ours_is_set_up_when_it_is_connected(
    bare: WorkerSettings, server: Sshd, project: Path, tmp_path: Path
) -> None:
    """As with `bootstrap: true`; first without the packages, then with them."""
    transport = connect(bare, host_key_policy="strict")
    reported: list[str] = []

    def process_manager(pip: PipSettings) -> RemoteProcessManager:
        return RemoteProcessManager(
            bare, required=worker_requirements(root=project), bootstrap=True, pip=pip, root=project
        )

    with pytest.raises(RemoteFailure) as failed:
        process_manager(PipSettings()).prepare(transport, reported.append, lambda: True)
    assert "making the environment failed: it cannot reach the package index (" in failed.value.what
    assert "`--wheels DIR`" in failed.value.remedy and "logs/bootstrap.log there" in failed.value.remedy
    folder = make_wheels(tmp_path / "wheels", *PURE)
    (slot,) = process_manager(PipSettings(wheels=str(folder))).prepare(transport, reported.append, lambda: True)
    assert slot.name == "worker1"
    assert any(line.startswith("being set up: sending 2 packages") for line in reported)
    found = probe_machine(transport, bare, worker_requirements(root=project)).python
    assert found and found.path == f"{bare.directory}/{worker_requirements(root=project).environment_folder}/bin/python"
    assert found.packages == {name: metadata.version(name) for name in PURE}
    assert transport.list_files(wheels_folder(worker_requirements(root=project))) == []
    transport.close()


@pytest.mark.slow
@needs_sshd
@pytest.mark.trial
def test_a_python_without_venv_takes_pip_from_the_wheels(bare: WorkerSettings, project: Path, tmp_path: Path) -> None:
    """As on Debian without python3-venv: ensurepip is missing, and there is no other pip."""
    folder = make_wheels(tmp_path / "wheels", *PURE, "pip")
    (tmp_path / "tools/python3").write_text(f"""#!/bin/sh
case "$*" in
    "-m venv --without-pip"*) exec {BARE} -S "$@";;
    "-m venv"*|"-m pip"*) echo "ensurepip is not available"; exit 1;;
esac
exec {BARE} -S "$@"
""")
    transport = connect(bare, host_key_policy="strict")
    reported: list[str] = []
    bootstrap_machine(
        transport,
        bare,
        report=reported.append,
        required=worker_requirements(root=project),
        pip=PipSettings(wheels=str(folder)),
        root=project,
    )
    assert reported[-1] == "ready: worker1"
    transport.close()


def test_missing_wheels_are_named_before_anything_is_sent(root: Path, project: Path, tmp_path: Path) -> None:
    folder = make_wheels(tmp_path / "wheels", "scp")
    own = WorkerSettings.model_validate({"host": "worker1", "python": str(BARE)})
    with pytest.raises(Refused, match=r"has no wheels of sgfmill==.* run here: pip download .*sgfmill==.* pip"):
        bootstrap_machine(
            LocalTransport(root, worker="worker1"),
            own,
            report=lambda line: None,
            required=worker_requirements(root=project),
            pip=PipSettings(wheels=str(folder)),
            root=project,
        )
    assert not (root / "releases").exists()


# Which wheels a machine needs.

TORCH = "torch-2.13.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl"
FILES = (
    TORCH,
    "torch-2.13.0-cp312-cp312-manylinux_2_28_aarch64.whl",
    "safetensors-0.8.0-cp310-abi3-manylinux_2_17_x86_64.manylinux2014_x86_64.whl",
    "numpy-2.4.6-cp311-cp311-macosx_14_0_arm64.whl",
    "snntorch-1.0.0-py2.py3-none-any.whl",
    "PyYAML-6.0.3-1-cp311-cp311-manylinux_2_28_x86_64.whl",
    "notes.txt",
)
NEEDED = ["torch==2.13.0", "safetensors==0.8.0", "PyYAML==6.0.3"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number, name in enumerate(FILES):
        (tmp_path / name).write_bytes(bytes(1000 - number))
    return tmp_path


def interpreter(*version: int, kind: str = "x86_64", glibc: str = "2.36") -> Interpreter:
    platforms = list_glibc_platforms(glibc, kind)
    return Interpreter(path="python3", version=version, packages={}, platforms=tuple(platforms))


def test_only_wheels_for_the_machine_s_python_and_processor_are_sent_small_ones_first(folder: Path) -> None:
    chosen = fitting_wheels(folder, NEEDED, interpreter(3, 11, 2))
    assert [wheel.path.name for wheel in chosen] == [FILES[5], FILES[4], FILES[2], TORCH]
    assert wheels.installed_size(chosen) == 4 * (995 + 996 + 998 + 1000)


@pytest.mark.parametrize(
    ("version", "kind", "lacks"),
    [
        ((3, 12), "x86_64", "torch==2.13.0, PyYAML==6.0.3"),
        ((3, 12), "aarch64", "safetensors"),
        ((3, 11), "riscv64", "torch"),
    ],
)
def test_wheels_for_another_machine_do_not_count(folder: Path, version: tuple[int, int], kind: str, lacks: str) -> None:
    where = f"for Python 3.{version[1]} on manylinux_2_36_{kind}"
    with pytest.raises(NoWheels, match=f"has no wheels of .*{lacks}.* {where}") as failed:
        fitting_wheels(folder, NEEDED, interpreter(*version, kind=kind))
    assert f"--platform manylinux_2_28_{kind}" in str(failed.value)
    assert str(failed.value).endswith(" ".join([*NEEDED, "pip"]))


@pytest.mark.parametrize("glibc", ["2.27", ""])
def test_wheels_for_a_newer_or_another_libc_do_not_count(folder: Path, glibc: str) -> None:
    with pytest.raises(NoWheels, match=r"has no wheels of torch==2.13.0, .*") as failed:
        fitting_wheels(folder, NEEDED, interpreter(3, 11, glibc=glibc))
    assert "manylinux_2_28" not in str(failed.value)
    assert ("--platform manylinux_2_27_x86_64 " in str(failed.value)) == bool(glibc)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="it is about glibc")
def test_the_platforms_that_follow_from_glibc_are_those_that_pip_lists() -> None:
    listed = list_wheel_platforms()
    assert sorted(list_glibc_platforms(platform.libc_ver()[1], platform.machine())) == sorted(listed)


def test_a_missing_folder_contains_no_wheels(folder: Path) -> None:
    with pytest.raises(NoWheels, match=r"has no wheels of torch==2.13.0, safetensors==0.8.0, PyYAML==6.0.3"):
        fitting_wheels(folder / "nowhere", NEEDED, interpreter(3, 11))


# Space and failures.


@pytest.mark.parametrize(
    ("free", "pip", "gpus", "ok"),
    [
        (CUDA_ENVIRONMENT, {}, 0, True),
        (CUDA_ENVIRONMENT - 1, {}, 0, False),
        (CPU_ENVIRONMENT, {"torch_index": CPU_TORCH}, 0, True),
        (CPU_ENVIRONMENT - 1, {"torch_index": CPU_TORCH}, 0, False),
    ],
)
def test_the_space_for_the_packages_depends_on_the_build_of_torch(
    free: int, pip: dict[str, str], gpus: int, ok: bool
) -> None:
    found = check_disk_space(a_probe(disk_free=free), machine(), PipSettings.model_validate(pip), [])
    assert found.ok == ok
    assert ok or ("choose another `directory`" in found.remedy and ("torch_index" in found.remedy) == (not pip))


@pytest.mark.parametrize(
    ("said", "why", "remedy"),
    [
        (
            [
                "WARNING: Retrying after connection broken by 'NewConnectionError("
                "': [Errno -2] Name or service not known')'",
                "ERROR: Could not find a version that satisfies the requirement numba==0.68.1 (from versions: none)",
                "ERROR: No matching distribution found for numba==0.68.1",
            ],
            "it cannot reach the package index",
            "--wheels DIR",
        ),
        (
            ["ERROR: Could not find a version that satisfies the requirement scp==0.16.2 (from versions: none)"],
            "pip finds no scp==0.16.2 at all: it cannot reach",
            "--wheels DIR",
        ),
        (
            ["ERROR: No matching distribution found for numba==0.68.1"],
            "pip finds no package numba==0.68.1",
            "--wheels DIR",
        ),
        (["OSError: [Errno 28] No space left on device: '/x'"], "its disk is full", "free space"),
        (
            ["This Python cannot make virtual environments. On Debian"],
            "cannot make virtual environments",
            "apt-get install python3-venv",
        ),
        (
            ["Traceback (most recent call last):", "ImportError: libgo.so.9: cannot open", "more"],
            "ImportError: libgo.so.9",
            "fix that",
        ),
        (["something", "the last line"], "the last line", "fix that"),
        ([], "exit code 7", "fix that"),
    ],
)
def test_a_failure_is_explained_in_one_sentence_with_its_remedy(said: list[str], why: str, remedy: str) -> None:
    found, remedied = install_errors.explain_install_error(said, 7)
    assert why in found and remedy in remedied
    assert "\n" not in found


# Compiled code.


def test_compiled_code_goes_only_to_machines_with_the_same_processor_and_python(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = WorkerSettings.model_validate({"host": "worker1", "python": sys.executable})
    found = probe_machine(LocalTransport(root), own, worker_requirements())
    assert compile_cache.can_use_cache(found)
    assert not compile_cache.can_use_cache(found, version=(3, 1))
    monkeypatch.setattr("keima.cluster.machines.compile_cache.processor_name", lambda: "another")
    assert not compile_cache.can_use_cache(found)


def test_a_game_is_compiled_once_for_all_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    started = list[list[str]]()

    class Program:
        """A program that ends after two polls."""

        def __init__(self, command: list[str], **options: object) -> None:
            started.append(command)
            self.left = 2

        def poll(self) -> int | None:
            self.left -= 1
            return None if self.left > 0 else 0

    monkeypatch.setattr("keima.cluster.machines.compile_cache._compiling", {})
    monkeypatch.setattr("subprocess.Popen", Program)
    waits = [list(compile_cache.compile_here(game)) for game in ("go", "go", "chess")]
    assert [command[-3:] for command in started] == [["worker", "--test-games", game] for game in ("go", "chess")]
    assert waits == [[""], [], [""]]


def test_compiled_code_is_added_to_the_existing_cache(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache, there = tmp_path / "cache", tmp_path / "there"
    monkeypatch.setattr(sources, "CACHE", cache)
    sources.cache_folder.cache_clear()
    try:
        assert compile_cache.pack_cache() == b""
        present = [sources.cache_folder(ROOT / "keima" / "games" / name) for name in ("tic_tac_toe.py", "exact.py")]
        for number, path in enumerate([*present, cache / "edited-since-0123456789abcdef"]):
            path.mkdir(parents=True)
            (path / "f.nbi").write_text(f"index {number}")
            (path / "f.1.nbc").write_text("code")
        packed = compile_cache.pack_cache()
    finally:
        sources.cache_folder.cache_clear()
    (there / present[1].name).mkdir(parents=True)
    (there / present[1].name / "f.nbi").write_text("its own")
    transport = LocalTransport(root)
    install_remote_program(transport)
    transport.put(packed, "compiled.tar.gz")
    assert call_remote(transport, UNPACK_CACHE, UnpackCacheRequest("compiled.tar.gz", str(there))) == Done()
    assert {path.name for path in there.iterdir()} == {path.name for path in present}
    assert (there / present[0].name / "f.nbi").read_text() == "index 0"
    assert (there / present[1].name / "f.nbi").read_text() == "its own"
    assert not (root / "compiled.tar.gz").exists()


def test_nothing_is_unpacked_outside_the_cache(root: Path, tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "bad.tar.gz", "w:gz") as tar:
        tar.add(ROOT / "LICENSE", "../outside")
    transport = LocalTransport(root)
    install_remote_program(transport)
    transport.put((tmp_path / "bad.tar.gz").read_bytes(), "bad.tar.gz")
    with pytest.raises(RemoteFailure, match="does not belong"):
        call_remote(transport, UNPACK_CACHE, UnpackCacheRequest("bad.tar.gz", str(tmp_path / "there/cache")))
    assert not list((tmp_path / "there/cache").iterdir())
