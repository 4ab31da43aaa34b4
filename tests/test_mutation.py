"""The faults that tools/mutation.py puts into modules, and how it distinguishes detected faults from others."""

import ast
import re
import subprocess
import sys

import pytest

from tests.sources import ROOT
from tools import mutants

EXAMPLE = '''
LIMIT = 3

def kept(values: list[int] | None, more: bool = False) -> list[int]:
    """Some of them, 1 at least."""
    log.info("kept %d", 7)
    if not values or (more and
                      values[0] < LIMIT):
        raise ValueError(f"not {values[0] + 1}")
    self.last = db.execute("SELECT name FROM players WHERE games > 5 AND lost = 0 ORDER BY name")
    with db:
        return sorted([value * 2.0 for value in values if value != 0], key=max)
'''


def shown(line: int) -> set[tuple[str, str]]:
    return {(mutant.was, mutant.now) for mutant in mutants.mutants(ast.parse(EXAMPLE)) if mutant.line == line}


def test_operators_bounds_conditions_and_statements_are_changed() -> None:
    assert shown(2) == {("3", "4")}
    assert shown(4) == {("False", "True")}
    assert {now for was, now in shown(7) if was.startswith("if ")} == {"if True:", "if False:"}
    assert {now for was, now in shown(7) if was == "more and values[0] < LIMIT"} == {
        "more or values[0] < LIMIT",
        "more",
        "values[0] < LIMIT",
    }
    assert ("not values", "values") in shown(7)
    assert {now for was, now in shown(8) if was == "values[0] < LIMIT"} == {"values[0] <= LIMIT", "values[0] >= LIMIT"}
    assert {now for was, now in shown(11)} >= {"if True:"}
    comprehension = "[value * 2.0 for value in values if value != 0]"
    assert shown(12) >= {
        ("value * 2.0", "value / 2.0"),
        ("2.0", "4.0"),
        ("value != 0", "value == 0"),
        (comprehension, comprehension[:-15] + "]"),
    }
    assert any(now == "return" for _, now in shown(12))


def test_log_lines_texts_and_types_are_not_mutated() -> None:
    assert shown(5) == shown(6) == set()
    assert {now for _, now in shown(9)} == {mutants.DELETED}


def test_sql_is_mutated() -> None:
    changed = {now for was, now in shown(10) if was.startswith("...") or "SELECT" in was}
    for end in (
        "WHERE games >= 5 AND lost = 0 ORDER BY name'",
        " > 5 OR lost = 0 ORDER BY name'",
        " > 5 AND lost = 0'",
    ):
        assert any(now.endswith(end) for now in changed), end


def test_a_fault_s_statement_is_known_without_its_block() -> None:
    found = {mutant.line: mutant.lines for mutant in mutants.mutants(ast.parse(EXAMPLE))}
    assert (found[2], found[4]) == (None, None)  # takes effect when the module is loaded
    assert found[8] == range(7, 9)
    assert found[12] == range(12, 13)


def test_a_fault_put_into_a_tree_is_in_its_code() -> None:
    tree = ast.parse("def least(a, b):\n    return min(a, b)\n")
    (fault,) = (mutant for mutant in mutants.mutants(tree) if mutant.now == "max(a, b)")
    fault.put()
    assert "max(a, b)" in ast.unparse(tree)


def test_the_modules_and_the_tests_that_judge_them_exist() -> None:
    text = (ROOT / "tools" / "mutation.py").read_text(encoding="utf-8")  # importing it would change this process
    tests, modules = re.findall(r'"(\w+/[\w/]*test_\w+\.py)"', text), re.findall(r'"(keima/[\w/]+\.py)": Module', text)
    assert len(tests) > 20 and len(modules) > 5
    assert [name for name in (*modules, *(f"tests/{test}" for test in tests)) if not (ROOT / name).is_file()] == []


WORKER_STATE = "keima/cluster/fleet/tracked_worker.py"


def judged(*lines: str) -> subprocess.CompletedProcess[str]:
    """Return what the tool says about all faults from the first to the last of the lines that begin so."""
    text = (ROOT / WORKER_STATE).read_text(encoding="utf-8").splitlines()
    first, last = (next(i for i, line in enumerate(text, start=1) if line.strip().startswith(each)) for each in lines)
    words = ["--sample", "0", "--least", "1", f"{WORKER_STATE}:{first}-{last}"]
    line = [sys.executable, "tools/mutation.py", *words]
    return subprocess.run(line, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)


@pytest.mark.slow
def test_detected_faults_are_distinguished_from_survivors() -> None:
    """The tests of worker states check the default times of the settings, but not the default of a heartbeat."""
    ended = judged("class HeartbeatSeen", "class ModelSent")
    assert ended.returncode == 1, ended.stderr
    assert f"| `{WORKER_STATE}` | 1 | 1 | 0 | 0.0% |" in ended.stdout
    assert ": 0  ->  1" in ended.stdout
    killed = judged("ask_seconds: float", "frozen_seconds: float")
    assert killed.returncode == 0, killed.stdout + killed.stderr
    assert "| 2 | 2 | 2 | 100.0% |" in killed.stdout
    of_a_function = judged("bound = min(timing.retry_seconds", "return draw * min(bound")
    assert "| 11 | 11 | 11 | 100.0% |" in of_a_function.stdout, of_a_function.stdout + of_a_function.stderr
