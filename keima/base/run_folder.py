"""A run's folder as named on the command line. Imports only the standard library, so that programs start fast."""

from pathlib import Path

RUNS = Path("runs")  # where runs are searched by name
LEDGER_NAME = "run.db"
STATS_NAME = "training_stats.json"
RECORD_NAME = "record.json"  # of a race
PROGRESS_NAME = "progress.json"  # of a run under way
FOLLOWED = "followed_config"  # the path of the config file that the run was started with or followed last
SMALLER_BOARDS = "smaller"  # the folder of the folders of a run's smaller boards


def resolve_run_folder(given: Path) -> Path:
    """Return the folder of a run given by path or name."""
    return given if given.is_dir() or len(given.parts) > 1 else RUNS / given


def find_followed_config(run_dir: Path) -> Path | None:
    """Return the config file that a run was started with or followed last; None if it is not known."""
    mark = run_dir / FOLLOWED
    return Path(mark.read_text(encoding="utf-8")) if mark.exists() else None


def list_smaller_boards(run_dir: Path) -> list[Path]:
    """Return the folders of the smaller boards on which a run has begun, the first one first."""
    found = run_dir.glob(f"{SMALLER_BOARDS}/*/{LEDGER_NAME}")
    return [path.parent for path in sorted(found, key=lambda path: path.stat().st_mtime)]


def find_board_folder(run_dir: Path) -> Path:
    """Return the folder of the board that a run is on: that of a smaller one, until the run's own begins."""
    if (run_dir / PROGRESS_NAME).exists() or (run_dir / STATS_NAME).exists():
        return run_dir
    begun = list(run_dir.glob(f"{SMALLER_BOARDS}/*/{PROGRESS_NAME}"))
    return max(begun, key=lambda path: path.stat().st_mtime).parent if begun else run_dir


def name_run(folder: Path) -> str:
    """Return the name of the run in a folder; on a smaller board, with the board: "hex11 (size-7)"."""
    folder = folder.resolve()
    is_smaller = folder.parent.name == SMALLER_BOARDS
    return f"{folder.parent.parent.name} ({folder.name})" if is_smaller else folder.name


def find_stats_of_board(path: Path) -> Path:
    """Return the statistics of the board that a run is on, given the run's; any other file is returned as it is."""
    return find_board_folder(path.parent) / STATS_NAME if path.name == STATS_NAME else path


def list_runs() -> list[Path]:
    """Return the folders of runs in ``RUNS``, sorted: those with a ledger, and those of PPO, which have only
    statistics.
    """
    return sorted({path.parent for name in (LEDGER_NAME, STATS_NAME) for path in RUNS.glob(f"*/{name}")})


def list_run_names() -> str:
    """Return the names of the runs in ``RUNS``, for messages."""
    return ", ".join(path.name for path in list_runs()) or "none"


def stats_path(given: Path) -> Path:
    """Return the statistics file given by its path, its run's folder or its run's name."""
    folder = resolve_run_folder(given)
    return folder / STATS_NAME if folder.is_dir() else given


def check_run_folder(run_dir: Path, *, resume: bool, option: str = "--run-dir") -> None:
    """Check that a run can start in its folder, given by the program's ``option``, or can be resumed there.

    Raises:
        ValueError: it is a file; it holds a run and ``resume`` is false; or it holds none and ``resume`` is true.
    """
    if run_dir.exists() and not run_dir.is_dir():
        raise ValueError(f"{run_dir} is a file, and a run needs a folder: choose another with {option}")
    begun = (run_dir / LEDGER_NAME).exists()
    if begun and not resume:
        raise ValueError(
            f"{run_dir} holds a run already: continue it with --resume, or choose another folder with {option}"
        )
    if resume and not begun:
        raise ValueError(f"there is no run in {run_dir} to continue: start it without --resume")
