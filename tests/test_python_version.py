"""A Python that is too old is reported in one sentence, whatever else is missing."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sources import ROOT, programs, relative

AN_OLD_PYTHON = """
import runpy, sys
sys.version_info = (3, 10, 12, "final", 0)
sys.modules.update(dict.fromkeys(["numba", "numpy", "paramiko", "pydantic", "rich", "torch", "yaml"]))
sys.argv = sys.argv[1:]
sys.path[0] = sys.argv[0].rpartition("/")[0]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
# Not benchmarks and examples, nor programs that immediately become another of these, nor modules that these run.
ELSEWHERE = ("benchmarks", "examples", "train_ppo_lstm_distributed.py", "keima")
STARTED = [
    path
    for path in programs()
    if '__name__ == "__main__"' in path.read_text(encoding="utf-8")
    and not {*path.relative_to(ROOT).parts} & {*ELSEWHERE}
]


@pytest.mark.medium
@pytest.mark.parametrize("program", STARTED, ids=relative)
def test_python_3_10_is_refused_in_one_sentence(program: Path) -> None:
    command = [sys.executable, "-c", AN_OLD_PYTHON, program, "--help"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert ended.returncode == 1 and not ended.stdout
    assert ended.stderr.startswith("Keima needs Python 3.11 or newer, and this is Python 3.10.12 (")
    assert ended.stderr.count("\n") == 1


def test_old_pythons_can_parse_up_to_that_sentence() -> None:
    for path in [*STARTED, ROOT / "keima/__init__.py"]:
        ast.parse(path.read_text(encoding="utf-8"), feature_version=(3, 10))
