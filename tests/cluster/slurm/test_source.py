"""The machines of a Slurm cluster as a source: their folder, what is checked before a submission, and their end."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from keima.cluster.machines.machine_source import MachineSource
from keima.cluster.machines.release import WorkerRequirements, worker_requirements
from keima.cluster.slurm import source as sources
from keima.cluster.slurm.jobs import Job
from keima.cluster.slurm.source import SlurmMachines, shared_folder
from keima.cluster.ssh.errors import ClusterError, Refused, RemoteFailure
from keima.config.sections.slurm import SlurmSettings


class Slurm:
    """Slurm's commands, as the test wants them."""

    def __init__(self) -> None:
        self.found: list[Job] = []
        self.cancelled: list[str] = []
        self.missing = False
        self.silent = False

    def check(self) -> None:
        if self.missing:
            raise Refused("slurm", "Slurm's sbatch is not found on this machine")

    def submit(self, script: Path, slots: Sequence[int], options: Sequence[str]) -> int:
        return 9

    def jobs(self, name: str) -> list[Job]:
        if self.silent:
            raise RemoteFailure("slurm", "squeue: no answer")
        assert name == "keima-run"
        return self.found

    def warn(self, *jobs: str) -> None:
        assert not jobs

    def cancel(self, *jobs: str) -> None:
        self.cancelled += jobs


class Run:
    """A run with a source."""

    def __init__(self, root: Path) -> None:
        self.run_dir = root / "go9"
        self.run_dir.mkdir()
        self.slurm = Slurm()
        self.events: list[str] = []
        self.sources: list[SlurmMachines] = []

    def open(self, *, required: WorkerRequirements | None = None, **settings: Any) -> SlurmMachines:
        source = SlurmMachines(
            SlurmSettings.model_validate({"count": 3, **settings}),
            run_dir=self.run_dir,
            run_id="run",
            required=required or worker_requirements(),
            offline_seconds=10.0,
            log_event=self.events.append,
            slurm=self.slurm,
        )
        self.sources.append(source)
        return source

    def prepare(self, source: SlurmMachines) -> None:
        machine = source.machines()[0]
        source.process_manager(machine).prepare(source.connect(machine), str, lambda: True)
        source.machines()


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    one = Run(tmp_path)
    yield one
    for source in one.sources:
        source.close()


def test_all_jobs_are_one_machine(run: Run) -> None:
    source: MachineSource = run.open()
    assert [machine.name for machine in source.machines()] == ["slurm"]
    assert source.title == "distributed.slurm"


@pytest.mark.medium
def test_each_job_has_a_worker_that_need_not_wait_for_the_others(run: Run) -> None:
    source = run.open()
    (machine,) = source.machines()
    slots = source.process_manager(machine).prepare(source.connect(machine), str, lambda: True)
    assert [(slot.name, slot.alone) for slot in slots] == [(f"slurm-{number}", True) for number in (1, 2, 3)]


def test_the_folder_of_workers_is_the_run_s_own_wherever_it_lies(run: Run, tmp_path: Path) -> None:
    inside = shared_folder(SlurmSettings(count=1), run.run_dir, "abc")
    assert inside == run.run_dir / "slurm"
    elsewhere = SlurmSettings(count=1, directory=str(tmp_path / "scratch"))
    assert shared_folder(elsewhere, run.run_dir, "abc") == tmp_path / "scratch" / "go9-abc"
    with pytest.raises(ValueError, match="percent sign"):
        shared_folder(SlurmSettings(count=1, directory="/scratch/100%"), run.run_dir, "abc")


@pytest.mark.medium
def test_the_folder_gets_the_code_and_the_scripts_and_a_local_disk_is_mentioned(run: Run) -> None:
    source = run.open()
    run.prepare(source)
    assert (source.folder / "releases" / worker_requirements().code_hash / "keima/__main__.py").is_file()
    assert f"releases/{worker_requirements().code_hash}" in (source.folder / "worker.sh").read_text()
    assert str(source.folder) in (source.folder / "job.sh").read_text()
    assert len([event for event in run.events if "The nodes must share it" in event]) <= 1
    before = sorted(source.folder.rglob("*"))
    run.prepare(run.open())  # the next session
    assert sorted(source.folder.rglob("*")) == before


@pytest.mark.medium
def test_a_python_without_the_packages_is_refused_before_anything_is_submitted(run: Run) -> None:
    required = WorkerRequirements(code_hash=worker_requirements().code_hash, packages={"no-such-package": "1.0"})
    with pytest.raises(Refused, match=r"missing: no-such-package; install them: .*python.* -m pip install"):
        run.prepare(run.open(required=required))
    with pytest.raises(Refused, match=r"/nowhere/python is not there; set distributed\.slurm\.python"):
        run.prepare(run.open(python="/nowhere/python"))


@pytest.mark.medium
def test_what_setup_loads_is_not_checked_on_the_main_node(run: Run) -> None:
    source = run.open(python="/nowhere/python", setup=["module load python"])
    run.prepare(source)
    assert "python=/nowhere/python" in (source.folder / "worker.sh").read_text()
    assert "module load python" in (source.folder / "worker.sh").read_text()


def test_a_main_node_without_slurm_is_refused(run: Run) -> None:
    run.slurm.missing = True
    with pytest.raises(Refused, match="sbatch is not found"):
        run.prepare(run.open())


def test_a_file_system_without_locks_is_refused(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "can_lock_files", lambda folder: False)
    with pytest.raises(ClusterError, match=r"without locks; mount it with locks .*distributed\.slurm\.directory"):
        run.prepare(run.open())


@pytest.mark.medium
def test_a_file_system_that_shows_changes_late_is_mentioned(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "file_system_of", lambda folder: "nfs4")
    run.prepare(run.open())
    assert [event for event in run.events if "raise distributed.offline_seconds to 90" in event]
    assert not [event for event in run.events if "The nodes must share it" in event]


@pytest.mark.medium
def test_jobs_beyond_the_count_of_an_earlier_session_are_ended(run: Run) -> None:
    run.slurm.found = [Job(array=4, slot=slot, state="RUNNING") for slot in (1, 3, 4, 5)]
    run.prepare(run.open())
    assert run.slurm.cancelled == ["4_4", "4_5"]


@pytest.mark.medium
def test_the_end_of_a_run_ends_all_its_jobs(run: Run) -> None:
    states = ("RUNNING", "PENDING", "COMPLETED")
    run.slurm.found = [Job(array=4, slot=slot, state=state) for slot, state in enumerate(states, start=1)]
    source = run.open()
    run.prepare(source)
    source.close()
    assert run.slurm.cancelled == ["4_1", "4_2"]


@pytest.mark.medium
def test_a_run_ends_even_if_slurm_does_not_answer(run: Run) -> None:
    source = run.open()
    run.prepare(source)
    run.slurm.silent = True
    source.close()
    assert "they end when their lease expires: slurm: squeue: no answer" in run.events[-1]
