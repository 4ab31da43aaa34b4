"""Every path of the code that differs on a GPU: on the CPU, which tries the paths themselves, and by ``make test-gpu``
on a GPU.
"""

import json
import sys
from pathlib import Path

import pytest

from benchmarks import gpu
from benchmarks.gpu import SLOW_PATHS
from benchmarks.gpu_paths import PATHS, NotHere

QUICK_PATHS = [name for name in PATHS if name not in SLOW_PATHS]


@pytest.mark.gpu
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", PATHS)
def test_every_path_works_on_a_gpu(name: str, tmp_path: Path) -> None:
    try:
        PATHS[name]("cuda", tmp_path)
    except NotHere as error:
        pytest.skip(str(error))


@pytest.mark.medium
@pytest.mark.parametrize(
    "name",
    [
        "evaluator, resnet, float32, with graphs",
        pytest.param("learner, resnet, float16", marks=pytest.mark.slow),
        "resume on another device, float16",
        "PPO, float32",
    ],
)
def test_a_path_works_on_the_cpu(name: str, tmp_path: Path) -> None:
    assert PATHS[name]("cpu", tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", PATHS)
def test_all_paths_work_on_the_cpu(name: str, tmp_path: Path) -> None:
    try:
        assert PATHS[name]("cpu", tmp_path)
    except NotHere as error:
        assert name == "too little memory" and "only GPUs" in str(error)


@pytest.mark.trial
def test_the_benchmark_measures_and_marks_the_cpu_s_figures(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "gpu.json"
    words = ["--device", "cpu", "--quick", "--only", "go", "--json", str(path)]
    monkeypatch.setattr(sys, "argv", ["gpu.py", *words])
    assert gpu.main() == 0
    assert "device the CPU, not a GPU, shrunk: the figures compare with nothing" in capsys.readouterr().out
    found = json.loads(path.read_text())
    assert found["quick"] and found["machine"]["device"] == "the CPU, not a GPU"
    assert {figure["unit"] for figure in found["figures"]} == {"evaluations/s", "of its rate", "samples/s", "%"}
    assert all(figure["value"] > 0 for figure in found["figures"])


def test_a_path_that_fails_is_reported_and_the_others_still_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(device: str, folder: Path) -> str:
        raise AssertionError("differs by 9")

    def skip(device: str, folder: Path) -> str:
        raise NotHere("only GPUs do")

    monkeypatch.setattr(gpu, "PATHS", {"one": fail, "two": skip, "three": lambda device, folder: f"on {device}"})
    monkeypatch.setattr(gpu, "figures", lambda device, effort: iter(()))
    monkeypatch.setattr(sys, "argv", ["gpu.py", "--device", "cpu", "--json", str(tmp_path / "gpu.json")])
    assert gpu.main() == 1
    said = capsys.readouterr().out
    assert "| one | **fails** | AssertionError: differs by 9 |" in said
    assert "| two | skipped | only GPUs do |" in said and "| three | works | on cpu |" in said
    assert "2 of 3 paths work" in said


def test_without_a_gpu_the_benchmark_says_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["gpu.py"])
    assert gpu.main() == 2
    assert capsys.readouterr().err.startswith("gpu.py: there is no device 'cuda' here; use auto or cpu: ")
