"""What programs do before the imports that take seconds: programs are started with every import traced in the order in
which it ends.
"""

import re
import subprocess
import sys
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from keima.base.system.start import LAUNCHED, SAID, parse_before_imports
from keima.cli.main import VERBS
from tests.programs import command
from tests.sources import ROOT

HEAVY = re.compile(r"import time:.*\| +(torch|numba|numpy|pydantic|rich|paramiko)$")
NOWHERE = ROOT / "runs" / "nowhere"
ANOTHER_FOLDER = "/"  # programs are started there: shipped files are found from any folder
MISSING: dict[str, Sequence[Sequence[object]]] = {  # calls that name missing files
    "start_main.py": (["--config", NOWHERE], ["--run-dir", NOWHERE, "--resume"]),
    "start_worker.py": (),
    "train_parallel.py": (["--checkpoint", NOWHERE], ["--run-dir", NOWHERE, "--resume"]),
    "train_distributed.py": (["--data", NOWHERE], ["--data", ROOT, "--resume", "--save-dir", NOWHERE]),
    "train_ppo_lstm.py": (["--data", NOWHERE], ["--resume", "--checkpoint-dir", NOWHERE]),
    "train_ppo_lstm_distributed.py": (["--data", NOWHERE],),
    "audit": ([NOWHERE],),
    "results": ([NOWHERE],),
    "watch": ([NOWHERE],),
    "benchmark": (["--run", NOWHERE],),
    "rate": ([NOWHERE], ["go9", "--ladder", NOWHERE]),
    "speedrun": ([NOWHERE.with_suffix(".yaml")], ["nowhere"]),
    "verify": ([NOWHERE],),
    "join": (["--folder", NOWHERE],),
    "crowd": (["links", NOWHERE], ["link", NOWHERE, "anna"]),
    "ppo": (["--data", NOWHERE],),
    "big-learner": (["--data", NOWHERE],),
    "scripts/benchmark.py": (["--run", NOWHERE], ["--model", NOWHERE], ["--checkpoint", NOWHERE]),
    "check-game": (["nowhere.py"], ["nowhere"]),
    "plan": (["nowhere.py"], [NOWHERE]),
    "dashboard": ([NOWHERE],),
    "new-game": (),
    "play": (
        [NOWHERE],
        [NOWHERE, "--version", 2],
        [NOWHERE, "--web"],
    ),
    "gtp": ([NOWHERE],),
    "analysis": ([NOWHERE], ["-model", NOWHERE]),
    "uci": ([NOWHERE],),
    "export": ([NOWHERE, "new.safetensors"],),
    "train": ([NOWHERE], [NOWHERE.with_suffix(".py")]),
    "resume": ([NOWHERE],),
    "cluster": (["check", "--config", NOWHERE],),
    "worker": (),
    "completion": (),
    "scripts/train_multi_gpu.py": (["--save-dir", NOWHERE, "--resume"], ["--config", NOWHERE]),
    "scripts/view_results.py": ([NOWHERE], [NOWHERE, "--game", 1]),
    "scripts/watch_training.py": ([NOWHERE],),
    "distributed/ssh_connector.py": (["--check", "--config", NOWHERE],),
}
WAITED_FOR: dict[
    str, tuple[Sequence[object], str]
] = {  # a program's message about what it loads, and a call that gets this far
    "start_main.py": (["--run-dir", NOWHERE], "PyTorch"),
    "train_parallel.py": (["--run-dir", NOWHERE], "PyTorch"),
    "train_distributed.py": (["--data", ROOT], "PyTorch"),
    "train_ppo_lstm.py": (["--checkpoint-dir", NOWHERE], "PyTorch"),
    "gtp": (["go7"], "PyTorch"),
    "scripts/benchmark.py": (["--model", "models/go7.safetensors"], "PyTorch"),
    "check-game": (["tic_tac_toe"], "PyTorch"),
    "plan": (["tic_tac_toe"], "PyTorch"),
    "scripts/train_multi_gpu.py": (["--save-dir", NOWHERE], "PyTorch"),
}


def called_by(program: str) -> str:
    """Return the name in a program's messages."""
    return f"keima {program}" if program in VERBS else Path(program).name


@contextmanager
def started(program: str, *words: object) -> Iterator[Iterator[str]]:
    """Yield the lines on standard error of a program that is started with every import traced; it ends with the
    block.
    """
    line = [sys.executable, "-X", "importtime", *command(program, *words)[1:]]
    with subprocess.Popen(
        line, cwd=ANOTHER_FOLDER, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stderr
            yield iter(process.stderr)
        finally:
            process.kill()


def answered(program: str, *words: object) -> tuple[int, str, list[str]]:
    """Return the exit code, the output, and which large libraries were imported for it."""
    line = [sys.executable, "-X", "importtime", *command(program, *words)[1:]]
    ended = subprocess.run(line, cwd=ANOTHER_FOLDER, capture_output=True, text=True, timeout=240, check=False)
    told = ended.stderr.splitlines()
    said = "\n".join(line for line in told if not line.startswith("import time:"))
    return ended.returncode, ended.stdout + said, [line for line in told if HEAVY.search(line)]


def test_every_program_is_tried() -> None:
    files = [*ROOT.glob("start_*.py"), *ROOT.glob("train_*.py"), *(ROOT / "scripts").glob("[!_]*.py")]
    assert {path.relative_to(ROOT).as_posix() for path in files} | set(VERBS) <= set(MISSING)


@pytest.mark.parametrize("program", MISSING)
def test_help_is_shown_before_anything_large_is_imported(program: str) -> None:
    code, said, imported = answered(program, "--help")
    assert (code, imported) == (0, [])
    assert "usage:" in said


@pytest.mark.parametrize(
    ("program", "words"), [(program, words) for program, calls in MISSING.items() for words in calls]
)
def test_missing_files_are_reported_before_anything_large_is_imported(program: str, words: Sequence[object]) -> None:
    code, said, imported = answered(program, *words)
    assert (code, imported) == (2, [])
    name = "train_ppo_lstm.py" if program.startswith("train_ppo") else called_by(program)
    assert said.startswith(f"{name}: ") and "nowhere" in said and len(said.splitlines()) == 1


@pytest.mark.parametrize("program", WAITED_FOR)
def test_the_first_line_names_what_is_loaded_before_it_is_loaded(program: str) -> None:
    words, large = WAITED_FOR[program]
    with started(program, *words) as lines:
        first = next(line for line in lines if not line.startswith("import time:") or HEAVY.search(line.rstrip()))
        assert first == f"{called_by(program)}: loading {large}\n"


@pytest.mark.parametrize(("rank", "said", "speaks"), [("0", None, True), ("1", None, False), ("0", "PyTorch", False)])
def test_of_torchrun_s_ranks_only_the_first_speaks_unless_its_launcher_has(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], rank: str, said: str | None, speaks: bool
) -> None:
    monkeypatch.setattr(sys, "argv", ["train_distributed.py"])
    monkeypatch.setenv(LAUNCHED, "run")
    monkeypatch.setenv("RANK", rank)
    monkeypatch.delenv(SAID, raising=False)
    if said:
        monkeypatch.setenv(SAID, said)
    parse_before_imports(lambda _: Namespace(), loading="PyTorch")
    assert capsys.readouterr().err == ("train_distributed.py: loading PyTorch\n" if speaks else "")


@pytest.mark.medium
def test_libraries_to_draw_to_write_events_and_for_ray_are_imported_only_when_they_are_used() -> None:
    modules = "keima.cli.reports.results, keima.cli.reports.dashboard, keima.cli.training.train"
    modules += ", keima.cli.worker, keima.ppo.observers, keima.worker, keima.cluster.control.cluster"
    large = "{'matplotlib', 'PIL', 'tensorboard', 'google', 'ray'}"
    imported = f"sorted({{name.partition('.')[0] for name in sys.modules}} & {large})"
    program = f"import sys, {modules}; print({imported})"
    ended = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert ended.stdout == "[]\n"
