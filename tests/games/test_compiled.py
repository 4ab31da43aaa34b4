"""Machine code is kept on disk, is never stale, and agrees with plain Python."""

import ast
import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from keima.compilation.decorators import captured_digest
from keima.compilation.sources import imported_sources
from keima.games import load_game
from keima.paths import PACKAGE, SOURCE
from tests.sources import ROOT

HELPER = """
from keima.compilation.decorators import inlined

@inlined
def added(number):
    return number + 1
"""

FUNCTIONS = """
from numba import types
from keima.games import helper
from keima.compilation.decorators import compiled, kernel

added = helper.added

@compiled
def twice(number):
    return 2 * added(number)

@kernel(types.int64(types.int64))
def thrice(number):
    return 3 * added(number)

@compiled
def call(function, number):
    return function(number)
"""

USE = """
from keima.games import functions
from keima.compilation.sources import cache_folder
from pathlib import Path
result = functions.twice(10), functions.call(functions.thrice, 10)
twice, call = (sum(function.stats.cache_hits.values()) for function in (functions.twice, functions.call))
kept = twice, functions.thrice.cache_hits, call
print(*result, *kept, cache_folder(Path(functions.__file__).resolve()).name)
"""


ALL_AT_ONCE = """
import os, time
import keima.compilation.decorators
from pathlib import Path
Path(f"{os.getpid()}.ready").touch()
while len(list(Path().glob("*.ready"))) < 3:
    time.sleep(0.001)
"""

BROKEN = """
from numba import types
from numba.core.errors import NumbaError
from keima.games import functions
from keima.compilation.decorators import compiled, kernel

for compile in (lambda: compiled(functions.broken)(1), lambda: kernel(types.int64(types.int64))(functions.broken)):
    try:
        compile()
    except NumbaError:
        print("broken", flush=True)
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A small project next to this one that compiles in the same way."""
    package, games = tmp_path / "project" / "keima", tmp_path / "project" / "keima" / "games"
    games.mkdir(parents=True)
    shutil.copytree(PACKAGE / "compilation", package / "compilation")
    shutil.copytree(PACKAGE / "config", package / "config")
    shutil.copy(PACKAGE / "paths.py", package)
    (package / "__init__.py").touch()
    (games / "__init__.py").touch()
    (games / "helper.py").write_text(HELPER)
    (games / "functions.py").write_text(FUNCTIONS)
    return tmp_path / "project"


def run(project: Path, program: str, **environment: str) -> list[str]:
    """Return the words that ``program`` prints in a new process."""
    with start(project, program, **environment) as process:
        return finish(process)


def start(project: Path, program: str, **environment: str) -> subprocess.Popen[str]:
    """Start a new process of the project."""
    environment = {
        **os.environ,
        "KEIMA_CACHE": str(project.parent / "cache"),
        "PYTHONPATH": str(project),
        **environment,
    }
    return subprocess.Popen(
        [sys.executable, "-c", program], cwd=project, env=environment, stdout=subprocess.PIPE, text=True
    )


def finish(process: subprocess.Popen[str]) -> list[str]:
    """Return the words that a process printed."""
    words = process.communicate(timeout=120)[0].split()
    assert process.returncode == 0
    return words


@pytest.mark.medium
@pytest.mark.slow
def test_a_second_process_finds_the_machine_code_on_disk(project: Path) -> None:
    *first, folder = run(project, USE)
    assert first == ["22", "33", "0", "0", "0"]
    assert run(project, USE) == ["22", "33", "1", "1", "1", folder]


@pytest.mark.medium
def test_of_processes_that_begin_together_one_compiles_each_function(project: Path) -> None:
    processes = [start(project, ALL_AT_ONCE + USE) for _ in range(3)]
    kept = [finish(process)[2:-1] for process in processes]
    assert [sorted(hits) for hits in zip(*kept, strict=True)] == [["0", "1", "1"]] * 3


@pytest.mark.slow
@pytest.mark.medium
def test_nobody_waits_for_a_function_that_could_not_be_compiled(project: Path) -> None:
    functions = project / "keima" / "games" / "functions.py"
    functions.write_text(FUNCTIONS + "\ndef broken(number):\n    return number.nothing\n")
    again = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {BROKEN!r}], check=True, timeout=240)"
    assert run(project, BROKEN + again) == ["broken"] * 4


@pytest.mark.slow
@pytest.mark.medium
def test_where_files_cannot_be_locked_each_process_compiles(project: Path) -> None:
    no_locks = """
import errno, fcntl
def lockf(*arguments):
    raise OSError(errno.ENOLCK, "No locks available")
fcntl.lockf = lockf
"""
    assert run(project, no_locks + USE)[:2] == ["22", "33"]


@pytest.mark.slow
@pytest.mark.medium
def test_a_copy_of_the_project_elsewhere_also_finds_it(project: Path) -> None:
    """Each release of the code on a worker is such a copy."""
    *_, folder = run(project, USE)
    copy = shutil.copytree(project, project.parent / "copy", copy_function=shutil.copyfile)
    assert run(Path(copy), USE) == ["22", "33", "1", "1", "1", folder]


@pytest.mark.medium
def test_an_edit_in_an_imported_file_is_noticed(project: Path) -> None:
    *_, before = run(project, USE)
    (project / "keima" / "games" / "helper.py").write_text(HELPER.replace("number + 1", "number + 2"))
    *values, after = run(project, USE)
    assert values == ["24", "36", "0", "0", "0"]
    assert after != before


@pytest.mark.slow
@pytest.mark.medium
def test_an_edit_in_another_file_keeps_the_machine_code(project: Path) -> None:
    (project / "keima" / "games" / "bystander.py").write_text("number = 1\n")
    *_, before = run(project, USE)
    (project / "keima" / "games" / "bystander.py").write_text("number = 2\n")
    assert run(project, USE) == ["22", "33", "1", "1", "1", before]


def test_imports_are_followed_through_other_files() -> None:
    found = {path.name for path in imported_sources(PACKAGE / "games" / "authoring" / "contract.py")}
    assert found >= {"contract.py", "game.py", "decorators.py"}


@pytest.mark.parametrize(
    "line",
    [
        "import numpy as np, keima.games.perft as perft",
        "import os; import keima.games.perft",
        "if True: from keima.games.perft import perft",
        "    from keima.games import boards, perft  # counts",
        "from keima.games import (  # a note (of two)\n    boards as planes,\n    perft as counts,\n)",
        "from keima.games \\\n    import boards, \\\n    perft",
    ],
)
def test_imports_are_followed_however_they_are_written(line: str, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(f"import os\n{line}\n")
    assert PACKAGE / "games" / "perft.py" in imported_sources(tmp_path / "mine.py")


@pytest.mark.parametrize("room", ["games", "search", "self_play"])
def test_no_import_that_python_finds_is_missed(room: str) -> None:
    for path in (PACKAGE / room).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module:
                names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
                files = {(SOURCE / name.replace(".", "/")).with_suffix(".py") for name in names}
                assert {file for file in files if file.is_file()} <= imported_sources(path)


OWN = """
from numba import types
from keima.games import helper
from keima.compilation.decorators import compile_captured_kernel, compiled, inlined, kernel

added = helper.added

def build(size):
    @inlined
    def shifted(number):
        return added(number) + size

    @compiled
    def twice(number):
        return 2 * shifted(number)

    @kernel(types.int64(types.int64))
    def thrice(number):
        return 3 * shifted(number)

    return twice, thrice
"""

USE_OWN = """
import importlib.util, sys
from keima.games.functions import call
name, file, *sizes = {arguments}
specification = importlib.util.spec_from_file_location(name, file)
module = sys.modules[name] = importlib.util.module_from_spec(specification)
specification.loader.exec_module(module)
for size in sizes:
    twice, thrice = module.build(size)
    print(twice(10), call(thrice, 10), sum(twice.stats.cache_hits.values()), thrice.cache_hits)
"""


def use_own(project: Path, *sizes: int, source: str = OWN) -> list[str]:
    """What a new process finds out about a game of one's own that is built with these options."""
    file, content = project.parent / "mine.py", hashlib.sha256(source.encode()).hexdigest()[:12]
    file.write_text(source)
    return run(project, USE_OWN.format(arguments=(f"keima_own.mine_{content}", str(file), *sizes)))


@pytest.mark.medium
def test_functions_of_one_s_own_file_are_compiled_once_for_each_of_its_options(project: Path) -> None:
    assert use_own(project, 1, 2) == ["24", "36", "0", "0", "26", "39", "0", "0"]
    others = use_own(project, 2, 1, 3)
    assert others == ["26", "39", "1", "1", "24", "36", "1", "1", "28", "42", "0", "0"]


@pytest.mark.slow
@pytest.mark.medium
def test_an_edit_in_one_s_own_file_is_seen(project: Path) -> None:
    assert use_own(project, 1) == ["24", "36", "0", "0"]
    assert use_own(project, 1, source=OWN.replace("2 *", "4 *")) == ["48", "36", "0", "0"]


@pytest.mark.slow
@pytest.mark.medium
def test_an_edit_in_what_one_s_own_file_imports_is_seen(project: Path) -> None:
    assert use_own(project, 1) == ["24", "36", "0", "0"]
    (project / "keima" / "games" / "helper.py").write_text(HELPER.replace("number + 1", "number + 2"))
    assert use_own(project, 1) == ["26", "39", "0", "0"]


def test_what_a_function_refers_to_is_the_same_in_every_process_and_told_apart() -> None:
    def function(*values: object) -> Any:
        return lambda: values

    digests = [captured_digest(function(*values)) for values in ((1,), (1.0,), (2,), (np.arange(3),), ("1",), ((1,),))]
    assert len(set(digests)) == len(digests)
    assert captured_digest(function(1, function(2))) == captured_digest(function(1, function(2)))
    assert captured_digest(function(1, function(2))) != captured_digest(function(1, function(3)))


def test_functions_with_other_defaults_or_other_attributes_are_told_apart() -> None:
    def with_default(number: int) -> Any:
        return lambda value, most=number: value + most

    def with_keyword(number: int) -> Any:
        return lambda value, *, most=number: value + most

    largest, smallest = (lambda values: values.max()), (lambda values: values.min())
    smallest.__qualname__ = largest.__qualname__
    assert captured_digest(with_default(1)) == captured_digest(with_default(1)) != captured_digest(with_default(2))
    assert captured_digest(with_keyword(1)) != captured_digest(with_keyword(2))
    assert captured_digest(largest) != captured_digest(smallest)


def digest_of_games(name: str, **options: Any) -> str:
    """Return a digest of everything that the kernels of a game say about the positions of a few random games."""
    game, random, digest = load_game(name, **options), np.random.default_rng(5), hashlib.sha256()
    for _ in range(4):
        state = game.initial_state()
        while True:
            parts = (state, game.legal_actions(state), game.returns(state), game.observe(state))
            digest.update(b"".join(part.tobytes() for part in parts))
            digest.update(f"{game.hash(state)} {game.terminal(state)} {game.current_player(state)}".encode())
            if game.terminal(state):
                break
            game.play(state, int(random.choice(game.legal_actions(state))))
    return digest.hexdigest()


@pytest.mark.medium
def test_plain_python_agrees_with_machine_code() -> None:
    names = ["tic_tac_toe", "connect_four"]
    program = (
        f"from tests.games.test_compiled import digest_of_games\nfor name in {names}: print(digest_of_games(name))"
    )
    environment = {**os.environ, "NUMBA_DISABLE_JIT": "1", "PYTHONPATH": str(ROOT)}
    plain = subprocess.run(
        [sys.executable, "-c", program], env=environment, cwd=ROOT, check=True, capture_output=True, text=True
    )
    assert plain.stdout.split() == [digest_of_games(name) for name in names]
