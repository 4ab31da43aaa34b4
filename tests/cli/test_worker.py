"""The worker's program, run as a program."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from keima.cli import worker
from keima.cluster.agent.process import CommandFailed, boot_id, find_running, hold_lock, read_process_stat
from tests import programs
from tests.sources import ROOT
from tests.worker.test_worker import Main

PATIENCE = 120.0

Open = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def begin() -> Iterator[Open]:
    """Start the program; it does not outlive the test."""
    with ExitStack() as stack:
        yield lambda folder, *options: stack.enter_context(
            programs.begun("start_worker.py", "--folder", folder, *options)
        )


def wait_until(done: Callable[[], object], process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not done():
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.trial
@pytest.mark.parametrize(
    "number",
    [signal.SIGTERM, *(pytest.param(number, marks=pytest.mark.slow) for number in (signal.SIGINT, signal.SIGHUP))],
)
def test_a_worker_plays_and_hands_over_its_games_when_asked_to_end(
    tmp_path: Path, begin: Open, number: signal.Signals
) -> None:
    main = Main(tmp_path / "w", granted=1_000_000, batch_games=10_000)
    process = begin(tmp_path / "w", "--log", str(tmp_path / "logs/worker_w.log"))
    wait_until(lambda: (said := main.folder.read_heartbeat()) and said.finished, process)
    process.send_signal(number)
    output, _ = process.communicate(timeout=PATIENCE)
    assert (process.returncode, output) == (0, "")
    assert main.heartbeat().state == "ended"
    assert 0 < sum(batch.num_games for batch in main.batches()) == main.heartbeat().finished
    assert main.batches()[-1].num_games < 10_000
    text = (tmp_path / "logs/worker_w.log").read_text()
    assert "on one core" in text
    assert "handed over its games" in text


@pytest.mark.trial
def test_a_folder_has_one_worker(tmp_path: Path, begin: Open) -> None:
    main = Main(tmp_path / "w", granted=1)
    first = begin(tmp_path / "w")
    wait_until(lambda: find_running(main.folder.root), first)
    second = begin(tmp_path / "w")
    output, _ = second.communicate(timeout=PATIENCE)
    assert second.returncode == worker.ALREADY_RUNNING
    assert f"already has a worker: process {first.pid}" in output


@pytest.mark.trial
def test_a_worker_whose_folder_was_recreated_while_it_started_leaves_it_to_the_other_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "w"
    other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])

    def replaced(name: str) -> object:
        record_of = json.dumps({"pid": other.pid, "start_ticks": read_process_stat(other.pid)[2], "boot_id": boot_id()})  # type: ignore[index]
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        (folder / "process.json").write_text(record_of)
        return None  # is not called

    monkeypatch.setattr("keima.worker.worker_class.load_worker_class", replaced)
    try:
        with pytest.raises(RuntimeError, match=f"process {other.pid}"):
            worker.play_in_worker_folder(folder, "x.Y", device="cuda")
    finally:
        other.kill()
        other.wait()


def recorded_elsewhere(folder: Path) -> Path:
    """Leave the record of a process on another machine that shares the folder; return it."""
    folder.mkdir()
    record = folder / "process.json"
    record.write_text(json.dumps({"pid": 7, "start_ticks": 7, "boot_id": "x", "host": "node7-ab", "argv": []}))
    return record


@pytest.mark.medium
@pytest.mark.parametrize("scheduled", [False, True])
def test_a_job_of_a_scheduler_takes_the_place_of_one_on_another_machine_and_no_other_process_does(
    tmp_path: Path, begin: Open, monkeypatch: pytest.MonkeyPatch, scheduled: bool
) -> None:
    record = recorded_elsewhere(tmp_path / "w")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    process = begin(tmp_path / "w", "--worker-class", "no_such_module.Worker", *["--scheduled"] * scheduled)
    output, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == (1 if scheduled else 2)
    assert record.exists() != scheduled
    assert ("no_such_module" in output) == scheduled and ("node7" in output) != scheduled
    assert ("on the GPU that the scheduler has assigned" in output) == scheduled


def test_a_job_whose_earlier_worker_still_holds_the_lock_does_not_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = recorded_elsewhere(tmp_path / "w")
    monkeypatch.setattr(worker, "ENDED_SECONDS", 0.1)
    with (
        hold_lock(tmp_path / "w" / "worker.lock", 1.0),
        pytest.raises(CommandFailed, match="another worker still holds"),
    ):
        worker.forget_ended_process(tmp_path / "w")
    assert record.exists()
    worker.forget_ended_process(tmp_path / "w")
    assert not record.exists()


@pytest.mark.slow
def test_a_job_of_a_scheduler_without_a_gpu_plays_on_a_core(
    tmp_path: Path, begin: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    output, _ = begin(tmp_path / "w", "--scheduled", "--worker-class", "no.Worker").communicate(timeout=PATIENCE)
    assert "on one core" in output


@pytest.mark.slow
@pytest.mark.medium
def test_a_missing_worker_class_ends_the_worker_with_the_reason(tmp_path: Path, begin: Open) -> None:
    process = begin(tmp_path / "w", "--worker-class", "no_such_module.Worker")
    output, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 1
    assert "no_such_module" in output


@pytest.mark.trial
def test_test_games_show_that_a_machine_can_play() -> None:
    process = programs.run("start_worker.py", "--test-games", "connect_four")
    assert process.returncode == 0, process.stderr
    assert "games of connect_four have been played" in process.stderr


def test_test_games_still_go_by_their_older_flag(capsys: pytest.CaptureFixture[str]) -> None:
    assert worker.parse(["--rehearse", "go"]).test_games == "go"
    with pytest.raises(SystemExit):
        worker.parse([])
    assert "one of the arguments --folder --test-games is required" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        worker.parse(["--help"])
    assert "--rehearse" not in capsys.readouterr().out


def test_its_help_explains_its_use(begin: Open, tmp_path: Path) -> None:
    output, _ = begin(tmp_path, "--help").communicate(timeout=PATIENCE)
    for word in ("--folder", "--gpu", "--worker-class", "--scheduled", "--log", "Ctrl-C"):
        assert word in output


@pytest.mark.parametrize(("gpu", "visible"), [(None, ""), (3, "3")])
def test_torch_sees_one_gpu_or_none(monkeypatch: pytest.MonkeyPatch, gpu: int | None, visible: str) -> None:
    monkeypatch.setattr(os, "environ", {})
    worker.restrict_to_device(gpu)
    assert os.environ["CUDA_VISIBLE_DEVICES"] == visible


PRINTER = """
import os, sys
from pathlib import Path
from keima.cli import worker
worker.LOG_BYTES = 10_000
worker.start_log(Path(sys.argv[1]))
for number in range(1000):
    print("line", number)
    sys.stderr.write(f"trouble {number}\\n")
os.write(2, b"from a library\\n")
"""


def test_a_log_keeps_its_size_whatever_is_printed(tmp_path: Path) -> None:
    path = tmp_path / "logs/worker_w.log"
    process = run([sys.executable, "-c", PRINTER, str(path)])
    assert process.stderr == ""
    files = sorted(path.parent.iterdir())
    assert [file.name for file in files] == ["worker_w.log", "worker_w.log.1"]
    assert all(file.stat().st_size <= 10_000 + len("from a library\n") for file in files)
    text = path.read_text()
    assert "trouble 999" in text
    assert text.endswith("from a library\n")


def run(argv: Sequence[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=True, timeout=240)


FULL_DISK = """
import logging, os, sys
from pathlib import Path
from keima.cli import worker
worker.start_log(Path(sys.argv[1]))
for _ in range(1000):
    print("something")
logging.shutdown()
os.write(1, b"it lives")
os._exit(0)
"""


def test_a_log_on_a_full_disk_does_not_end_the_worker(tmp_path: Path) -> None:
    (tmp_path / "log").symlink_to("/dev/full")
    assert run([sys.executable, "-c", FULL_DISK, str(tmp_path / "log")]).stdout == "it lives"


def test_test_games_on_a_gpu_fail_without_one_and_say_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr(worker, "start_log", lambda path: None)
    monkeypatch.setattr(worker, "restrict_to_device", lambda gpu: None)  # torch has read the environment already
    assert worker.main(["--test-games", "tic_tac_toe", "--gpu", "0"]) == 2
    assert "the test games have failed: there is no device 'cuda' here" in caplog.text


@pytest.mark.parametrize(("options", "device"), [([], "cpu"), (["--gpu", "3"], "cuda")])
def test_a_worker_with_a_gpu_may_not_play_on_the_cpu_instead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[str], device: str
) -> None:
    made = []

    class Kind:
        device = "auto"

        def __init__(self, folder: Path) -> None:
            made.append(self)

        def run(self) -> None:
            pass

    for name in ("start_log", "restrict_to_device"):
        monkeypatch.setattr(worker, name, lambda given: None)
    monkeypatch.setattr(worker.signal, "signal", lambda number, handler: None)
    monkeypatch.setattr("keima.networks.inference.evaluator.use_threads", lambda count: None)
    monkeypatch.setattr("keima.worker.worker_class.load_worker_class", lambda name: Kind)
    assert worker.main(["--folder", str(tmp_path / "w"), *options]) == 0
    assert [worker.device for worker in made] == [device]
