"""What a training program prints when it ends: where the run's files are, and the commands that come next."""

from pathlib import Path

from keima.config.commands import keima

LABEL_WIDTH = 19


def next_steps(run_dir: Path, *, view: str = "", play: bool = False, rate: bool = False, resume: str = "") -> list[str]:
    """Return the lines to print at the end of a run.

    Args:
        run_dir: the run's folder.
        view: the arguments of ``keima results``; by default the run's folder.
        play: whether ``keima play`` can play against the network.
        rate: whether ``keima rate`` can rate it.
        resume: the command that continues the run; empty: it was not interrupted.
    """
    commands = [("Play against it", keima(f"play {run_dir}"))] if play else []
    commands += [("Rate it", keima(f"rate {run_dir}"))] if rate else []
    commands += [
        ("View the run", keima(f"results {view or run_dir}")),
        ("Audit", keima(f"audit {run_dir}")),
    ]
    commands += [("Continue", resume)] if resume else []
    return [
        f"Everything is in {run_dir}: models/ games/ checkpoints/ training_stats.json run.db",
        *(f"{label + ':':{LABEL_WIDTH}}{command}" for label, command in commands),
    ]
