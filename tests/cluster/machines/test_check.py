"""What is found on a machine, and the remedies for beginners."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from keima.cluster.agent.call import check_value
from keima.cluster.agent.commands import Probe
from keima.cluster.machines.check import Finding, refuse_unfit, run_checks, worker_slots
from keima.cluster.machines.machine import WorkerSlot
from keima.cluster.machines.release import WorkerRequirements
from keima.cluster.ssh.errors import Refused
from keima.config.commands import CONFIG, keima
from keima.config.sections.workers import WorkerSettings

NOW = 1_000_000.0
REQUIRED = WorkerRequirements(code_hash="abc", packages={"torch": "2.13.0+cpu", "numpy": "2.4.6"})
GPUS = [{"index": number, "name": "H200", "memory": 140 * 10**9} for number in range(2)]


def machine(**values: Any) -> WorkerSettings:
    return WorkerSettings.model_validate({"host": "worker1.example.com", "user": "keima", **values})


def a_probe(**changes: Any) -> Probe:
    """Return the probe of a machine without problems; ``packages`` and ``version`` are of its Python."""
    python = {
        "path": "/home/keima/keima/.venv/bin/python",
        "version": changes.pop("version", [3, 12, 1]),
        "environment": changes.pop("environment", False),
        "packages": {"torch": "2.13.0", "numpy": "2.4.6", **changes.pop("packages", {})},
    }
    good = {
        "root": "/home/keima/keima",
        "writable": True,
        "disk_free": 50 * 10**9,
        "python": python,
        "platform": "Linux",
        "machine": "x86_64",
        "cpus": 4,
        "memory": 16 * 10**9,
        "gpus": [],
        "gpu_error": "",
        "kills_processes": False,
        "clock": NOW,
        "boot_id": "boot",
        "code": {"releases/abc": "abc", ".": ""},
        "whole": ["releases/abc"],
    }
    return check_value("worker1", Probe, {**good, **changes})


def wrong(probe: Probe, **values: Any) -> list[Finding]:
    return [finding for finding in run_checks(probe, machine(**values), REQUIRED, now=lambda: NOW) if not finding.ok]


def test_a_machine_without_problems_needs_no_remedy() -> None:
    assert wrong(a_probe()) == []
    assert all(finding.text for finding in run_checks(a_probe(), machine(), REQUIRED, now=lambda: NOW))


def test_a_remedy_of_several_findings_is_said_once() -> None:
    checked = run_checks(a_probe(code={".": ""}, packages={"torch": None}), machine(), REQUIRED, now=lambda: NOW)
    with pytest.raises(Refused) as refused:
        refuse_unfit("worker1", checked)
    assert refused.value.remedy.count("cluster bootstrap worker1") == 1


@pytest.mark.parametrize(
    ("changes", "settings", "what", "text", "remedy"),
    [
        ({"writable": False}, {}, "folder", "not writable", "chown -R keima /home/keima/keima"),
        ({"disk_free": 10**8}, {}, "disk", "0.1 GB free", "free space"),
        ({"memory": 2 * 10**8, "cpus": 1}, {}, "memory", "0.2 GB", "another machine"),
        ({"python": None}, {}, "python", "python3 is not installed", "apt-get install python3"),
        ({"python": None}, {"python": "/opt/python"}, "python", "/opt/python is not there", "`python:`"),
        ({"version": [3, 9, 2]}, {}, "python", "Python 3.9.2 at", "install Python 3.11 or newer"),
        ({"version": [3, 9, 2]}, {"python": "/opt/python"}, "python", "older than 3.11", "`python:`"),
        ({"packages": {"torch": None}}, {}, "packages", "missing: torch", "cluster bootstrap worker1"),
        ({"packages": {"numpy": "1.26.0"}}, {}, "packages", "numpy is 1.26.0, here 2.4.6", "cluster bootstrap worker1"),
        (
            {"packages": {"numpy": "1.26.0"}, "environment": True},
            {"python": "/opt/python"},
            "packages",
            "numpy is 1.26.0",
            "-m pip install numpy==2.4.6",
        ),
        (
            {"packages": {"numpy": "1.26.0"}},
            {"python": "/opt/python"},
            "packages",
            "numpy is 1.26.0",
            "cluster bootstrap worker1",
        ),
        ({"code": {"releases/abc": "", ".": ""}}, {}, "code", "not installed", "cluster bootstrap worker1"),
        ({"code": {"releases/abc": "", ".": ""}}, {}, "code", "not installed", "name them as `directory` and `python`"),
        (
            {"code": {"releases/abc": "", ".": ""}, "releases": ["old"]},
            {},
            "code",
            "an older release (old)",
            "cluster bootstrap worker1",
        ),
        (
            {"code": {".": "", "/home/keima/AZ-Go": "def"}},
            {},
            "code",
            "(def in /home/keima/AZ-Go, here abc)",
            "cluster bootstrap worker1",
        ),
        (
            {"code": {"releases/abc": "", ".": "def"}},
            {},
            "code",
            "differs from the code here (def in /home/keima/keima, here abc)",
            "cluster bootstrap worker1",
        ),
        ({"whole": []}, {}, "code", "not complete", "cluster bootstrap worker1"),
        ({"gpus": GPUS}, {"gpu_id": 2}, "gpu", "no GPU 2; there are 0: H200, 1: H200", "gpu_id"),
        ({"gpus": GPUS}, {"gpu_ids": [1, 5, 7]}, "gpu", "no GPU 5, 7", "gpu_ids"),
        ({}, {"gpu_ids": [0, 1]}, "gpu", "no NVIDIA GPU", "driver"),
        ({"gpus": GPUS, "packages": {"torch": "2.13.0+cpu"}}, {}, "gpu", "cannot use the GPU", "`gpu_id: null`"),
    ],
)
def test_every_obstacle_is_named_with_its_remedy(
    changes: dict[str, Any], settings: dict[str, Any], what: str, text: str, remedy: str
) -> None:
    (finding,) = wrong(a_probe(**changes), **settings)
    assert (finding.what, finding.fatal) == (what, True)
    assert text in finding.text
    assert remedy in finding.remedy


@pytest.mark.parametrize(
    ("changes", "what", "text"),
    [
        ({"clock": NOW - 3600}, "clock", "3600 s behind the main node's"),
        ({"gpu_error": "nvidia-smi is missing"}, "gpu", "nvidia-smi is missing, so its processor plays"),
        ({"kills_processes": True}, "logout", "KillUserProcesses"),
        ({"memory": 2 * 10**9}, "memory", "only 2.0 GB for 4 workers"),
        ({"memory": 6 * 10**8, "cpus": 1}, "memory", "only 0.6 GB for 1 worker"),
    ],
)
def test_a_warning_keeps_no_worker_from_playing(changes: dict[str, Any], what: str, text: str) -> None:
    (finding,) = wrong(a_probe(**changes))
    assert (finding.what, finding.fatal) == (what, False)
    assert text in finding.text
    assert finding.remedy


@pytest.mark.parametrize(
    ("memory", "processes", "remedy"), [(11, 12, "`processes: 11`"), (0.5, "auto", "`gpu_id: null`")]
)
def test_a_gpu_with_too_little_memory_for_its_processes_is_a_warning(
    memory: float, processes: Any, remedy: str
) -> None:
    small = [{**GPUS[0], "memory": int(memory * 10**9)}]
    (finding,) = wrong(a_probe(gpus=small), processes=processes)
    assert (finding.what, finding.fatal) == ("gpu", False) and "of memory for" in finding.text
    assert remedy in finding.remedy


def test_a_processor_may_play_although_there_is_a_gpu() -> None:
    assert wrong(a_probe(gpus=GPUS, packages={"torch": "2.13.0+cpu"}), gpu_id=None) == []


def test_the_build_of_a_package_is_not_part_of_its_version() -> None:
    assert wrong(a_probe(packages={"torch": "2.13.0+cpu"})) == []


@pytest.mark.parametrize("gpu", [0, 1])
def test_a_missing_gpu_that_the_config_names_is_no_tick(gpu: int) -> None:
    (finding,) = wrong(a_probe(), gpu_id=gpu)
    assert (finding.what, finding.fatal) == ("gpu", False)
    assert f"no GPU {gpu}, nor any other, so its processor plays" in finding.text and "gpu_id" in finding.remedy


def test_remedies_name_the_settings_file_in_use(tmp_path: Path) -> None:
    bare = a_probe(code={".": ""})
    for config, command in {
        CONFIG: keima("cluster bootstrap worker1"),
        tmp_path / "my cluster.yaml": keima(f"cluster bootstrap worker1 --config '{tmp_path}/my cluster.yaml'"),
    }.items():
        required = replace(REQUIRED, config=config)
        (finding,) = (each for each in run_checks(bare, machine(), required, now=lambda: NOW) if not each.ok)
        assert f"run: {command};" in finding.remedy


def test_a_clone_in_the_folder_is_used_if_it_has_the_same_code() -> None:
    assert a_probe(code={"releases/abc": "", ".": "abc"}, whole=[]).folder_of("abc") == "."
    assert a_probe(code={"releases/abc": "abc", ".": "abc"}).folder_of("abc") == "releases/abc"
    assert a_probe(code={".": "", "/home/keima/AZ-Go": "abc"}, whole=[]).folder_of("abc") == "/home/keima/AZ-Go"


@pytest.mark.parametrize(
    ("changes", "settings", "expected"),
    [
        ({"gpus": GPUS}, {}, [WorkerSlot("worker1", 0)]),
        ({"gpus": GPUS}, {"gpu_id": 1}, [WorkerSlot("worker1", 1)]),
        ({"gpus": GPUS}, {"gpu_ids": [0, 1]}, [WorkerSlot("worker1-1", 0), WorkerSlot("worker1-2", 1)]),
        ({"cpus": 2}, {}, [WorkerSlot("worker1-1"), WorkerSlot("worker1-2")]),
        ({"cpus": 2}, {"processes": 1}, [WorkerSlot("worker1")]),
        ({"cpus": 1}, {}, [WorkerSlot("worker1")]),
        ({"gpus": GPUS, "cpus": 2}, {"gpu_id": None}, [WorkerSlot("worker1-1"), WorkerSlot("worker1-2")]),
        ({"gpus": GPUS}, {"processes": 2}, [WorkerSlot("worker1-1", 0), WorkerSlot("worker1-2", 0)]),
        (
            {"gpus": GPUS},
            {"gpu_ids": [0, 1], "processes": 2},
            [WorkerSlot(f"worker1-{number}", gpu) for number, gpu in ((1, 0), (2, 1), (3, 0), (4, 1))],
        ),
    ],
)
def test_a_machine_has_one_worker_per_gpu_or_else_per_core(
    changes: dict[str, Any], settings: dict[str, Any], expected: list[WorkerSlot]
) -> None:
    assert worker_slots(a_probe(**changes), machine(**settings)) == expected
