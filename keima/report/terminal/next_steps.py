"""What a training program prints when it ends: where the run's files are, and the commands that come next."""

from pathlib import Path

LABEL_WIDTH = 19


def next_steps(run_dir: Path, *, view: str = "", play: bool = False, resume: str = "") -> list[str]:
    """Return the lines to print at the end of a run.

    Args:
        run_dir: the run's folder.
        view: the arguments of scripts/view_results.py; by default the run's folder.
        play: whether scripts/play.py can play against the network.
        resume: the command that continues the run; empty: it was not interrupted.
    """
    commands = [("Play against it", f"python scripts/play.py --run {run_dir}")] if play else []
    commands += [
        ("View the run", f"python scripts/view_results.py {view or run_dir}"),
        ("Audit", f"python scripts/audit.py {run_dir}"),
    ]
    commands += [("Continue", f"python {resume}")] if resume else []
    return [
        f"Everything is in {run_dir}: models/ games/ checkpoints/ training_stats.json run.db",
        *(f"{label + ':':{LABEL_WIDTH}}{command}" for label, command in commands),
    ]
