"""The folder of a run as command lines name it. This file is imported before all that takes long to import."""

from pathlib import Path

RUNS = Path("runs")  # where a name is looked for
LEDGER_NAME = "run.db"
STATS_NAME = "training_stats.json"


def run_folder(given: Path) -> Path:
    """The run's folder that is meant by its path or by its name."""
    return given if given.is_dir() else RUNS / given


def stats_path(given: Path) -> Path:
    """The statistics file that is meant by its own path, by its run's folder, or by the run's name."""
    folder = run_folder(given)
    return folder / STATS_NAME if folder.is_dir() else given


def see_run_folder(run_dir: Path, *, resume: bool, option: str = "--run-dir") -> None:
    """See that a run can begin in its folder, which the program's ``option`` names, or is there to go on with.

    Raises:
        ValueError: it is a file, it is there and nobody said ``resume``, or the other way round.
    """
    if run_dir.exists() and not run_dir.is_dir():
        raise ValueError(f"{run_dir} is a file, and a run needs a folder of its own: choose another by {option}")
    begun = (run_dir / LEDGER_NAME).exists()
    if begun and not resume:
        raise ValueError(
            f"{run_dir} holds a run already: go on with it by --resume, or choose another folder by {option}"
        )
    if resume and not begun:
        raise ValueError(f"there is no run in {run_dir} to go on with: start it without --resume")
