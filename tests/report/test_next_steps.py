"""The lines that training programs print when they end."""

from pathlib import Path

from keima.config.commands import keima
from keima.report.terminal.next_steps import next_steps


def test_a_finished_run_is_viewed_and_audited() -> None:
    assert next_steps(Path("runs/a")) == [
        "Everything is in runs/a: models/ games/ checkpoints/ training_stats.json run.db",
        f"View the run:      {keima('results runs/a')}",
        f"Audit:             {keima('audit runs/a')}",
    ]


def test_an_interrupted_run_names_the_command_that_continues_it() -> None:
    lines = next_steps(Path("a"), play=True, rate=True, resume="keima resume a")
    assert lines[2] == f"Rate it:           {keima('rate a')}"
    assert lines[1] == f"Play against it:   {keima('play a')}"
    assert lines[-1] == "Continue:          keima resume a"
