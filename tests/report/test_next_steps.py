"""The lines that training programs print when they end."""

from pathlib import Path

from keima.report.terminal.next_steps import next_steps


def test_a_finished_run_is_viewed_and_audited() -> None:
    assert next_steps(Path("runs/a")) == [
        "Everything is in runs/a: models/ games/ checkpoints/ training_stats.json run.db",
        "View the run:      python scripts/view_results.py runs/a",
        "Audit:             python scripts/audit.py runs/a",
    ]


def test_an_interrupted_run_names_the_command_that_continues_it() -> None:
    lines = next_steps(Path("a"), play=True, resume="start_main.py --run-dir a --resume")
    assert lines[1] == "Play against it:   python scripts/play.py --run a"
    assert lines[-1] == "Continue:          python start_main.py --run-dir a --resume"
