"""Confined processes: what they may do works, what they may not do fails, and what a system cannot deny is said.

No test needs a feature of the system: where one is missing, only the report is checked.
"""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from keima.base.system import confinement
from keima.base.system.confinement import ALLOW, ARCHITECTURES, REFUSE, Confinement, Instruction, call_filter
from tests.sources import ROOT

SECONDS = 240
PROGRAM = """
import dataclasses, fcntl, json, os, socket, subprocess, sys
from pathlib import Path
from keima.base.system import confinement

inside, outside = map(Path, sys.argv[1:3])
code = [Path("/", name) for name in ("usr", "bin", "lib", "lib64", "etc", "proc", "opt")]
code += [Path(name) for name in (sys.prefix, sys.base_prefix, confinement.__file__)]
{before}
held = confinement.confine_process(writable=[inside], readable=code)
results = {{}}

def attempt(name, call):
    try:
        call()
        results[name] = "done"
    except OSError as error:
        results[name] = "refused" if isinstance(error, PermissionError) else repr(error)

{attempts}
print(json.dumps([dataclasses.asdict(held), results]))
"""
INSIDE = """
attempt("write", lambda: (inside / "new").write_text("text"))
attempt("empty", lambda: os.open(inside / "new", os.O_RDWR | os.O_TRUNC))
attempt("folder", lambda: (inside / "folder").mkdir())
attempt("rename", lambda: (inside / "new").replace(inside / "other"))
attempt("read", lambda: (inside / "other").read_text())
attempt("delete", lambda: (inside / "other").unlink())
attempt("null", lambda: Path("/dev/null").write_text("text"))
pair = socket.socketpair()
attempt("pair", lambda: pair[0].sendall(b"text"))
attempt("process", lambda: subprocess.run(["true"], check=True))
attempt("child", lambda: subprocess.run(["touch", inside / "of_child"], check=True))
attempt("signal", lambda: os.kill(os.getpid(), 0))
"""
OUTSIDE = """
attempt("write", lambda: (outside / "new").write_text("text"))
attempt("change", lambda: (outside / "file").write_text("text"))
attempt("read", lambda: (outside / "file").read_text())
attempt("list", lambda: list(outside.iterdir()))
attempt("empty", lambda: os.truncate(outside / "file", 0))
attempt("open to empty", lambda: os.open(outside / "file", os.O_RDONLY | os.O_TRUNC))
attempt("delete", lambda: (outside / "file").unlink())
attempt("folder", lambda: (outside / "folder").mkdir())
attempt("rights", lambda: (outside / "file").chmod(0o777))
attempt("rights of a folder", lambda: outside.chmod(0o777))
attempt("attribute", lambda: os.setxattr(outside / "file", "user.new", b"text"))
attempt("link", lambda: (inside / "link").symlink_to(outside / "file"))
attempt("pipe", lambda: os.mkfifo(inside / "pipe"))
attempt("type", lambda: fcntl.ioctl(0, 0x5412, b"x"))
subprocess.run(["sh", "-c", 'echo text > "$1/new"', "sh", outside], stderr=subprocess.DEVNULL)
results["child"] = "done" if (outside / "new").exists() else "refused"
"""
NETWORK = """
port, datagrams, local = int(sys.argv[3]), int(sys.argv[4]), sys.argv[5]
attempt("tcp", lambda: socket.create_connection(("127.0.0.1", port), 10))
attempt("udp", lambda: socket.socket(type=socket.SOCK_DGRAM).sendto(b"text", ("127.0.0.1", datagrams)))
attempt("raw", lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW))
attempt("listen", lambda: socket.create_server(("127.0.0.1", 0)))
attempt("local", lambda: socket.socket(socket.AF_UNIX).connect(local))
attempt("local datagrams", lambda: socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM))
child = "import socket; socket.create_connection(('127.0.0.1', %d), 10)" % port
text = subprocess.run([sys.executable, "-c", child], stderr=subprocess.PIPE, text=True).stderr
results["child"] = "refused" if "PermissionError" in text else "done"
"""
WITH_LANDLOCK = """
found = confinement.find_landlock_version
confinement.find_landlock_version = lambda system: min({version}, found(system))
"""
COMPILING = """
import numpy as np
from keima.compilation.decorators import compiled
from keima.compilation.random import uniform

attempt("compile", lambda: compiled(uniform.py_func)(np.ones(3, np.uint64), 0))
import torch
attempt("torch", lambda: torch.nn.Conv2d(2, 2, 3)(torch.ones(1, 2, 5, 5)))
"""


@pytest.fixture
def places(tmp_path: Path) -> tuple[Path, Path]:
    """The folder in which a confined process may write, and another one with a file."""
    for name in ("inside", "outside"):
        (tmp_path / name).mkdir()
    (tmp_path / "outside" / "file").write_text("precious")
    return tmp_path / "inside", tmp_path / "outside"


def confined(
    attempts: str, places: Sequence[Path], *words: object, before: str = "", **variables: str
) -> tuple[Confinement, dict[str, str]]:
    """Run these attempts in a confined process; return what holds, and how each has ended."""
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(before=before, attempts=attempts), *map(str, [*places, *words])],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), **variables},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    held, results = json.loads(ended.stdout)
    return Confinement(**{**held, "missing": tuple(held["missing"])}), results


def test_the_report_names_everything_that_does_not_hold(places: tuple[Path, Path]) -> None:
    held, _ = confined("", places)
    assert confinement.try_confinement() == held
    assert held.files == held.reads
    assert held.files or held.missing
    assert held.network or any("use the network" in sentence for sentence in held.missing)


@pytest.mark.parametrize("version", range(1, confinement.KNOWN_VERSION + 1))
def test_files_outside_stay_as_they_are_with_every_version_of_landlock(places: tuple[Path, Path], version: int) -> None:
    before = WITH_LANDLOCK.format(version=version)
    held, results = confined(OUTSIDE, places, before=before)
    assert (confinement.WITHOUT_SIGNALS in held.missing) == (held.files and version < confinement.OTHERS_VERSION)
    if held.files:
        assert {name: found for name, found in results.items() if found != "refused"} == {}
        assert [path.name for path in places[1].iterdir()] == ["file"]
        assert (places[1] / "file").read_text() == "precious"
    held, results = confined(INSIDE, places, before=before)
    assert {name: found for name, found in results.items() if found != "done"} == {}


@contextmanager
def listening(folder: Path) -> Iterator[tuple[int, int, Path]]:
    """Listen for connections, datagrams and local connections; yield both ports and the local address."""
    with ExitStack() as stack:
        server = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        datagrams = stack.enter_context(socket.socket(type=socket.SOCK_DGRAM))
        datagrams.bind(("127.0.0.1", 0))
        local = stack.enter_context(socket.socket(socket.AF_UNIX))
        local.bind(str(folder / "s"))
        local.listen()
        yield server.getsockname()[1], datagrams.getsockname()[1], folder / "s"


@pytest.mark.parametrize("version", [0, confinement.KNOWN_VERSION])
def test_no_network_and_no_other_program_is_reached(places: tuple[Path, Path], version: int) -> None:
    with listening(places[0]) as addresses:
        held, results = confined(NETWORK, places, *addresses, before=WITH_LANDLOCK.format(version=version))
    if held.network:
        assert {name: found for name, found in results.items() if found != "refused"} == {}


@pytest.mark.parametrize(
    ("before", "holds", "said"),
    [
        ("confinement.find_landlock_version = lambda system: 0", {"network"}, ["Landlock does not work here"]),
        ("confinement.platform.machine = lambda: 'riscv64'", set(), ["no filter is known for riscv64"]),
        ("sys.platform = 'darwin'", set(), ["Landlock does not work here", "does not filter system calls"]),
        ("confinement._count_threads = lambda: 2", set(), ["had started threads"]),
    ],
)
def test_a_missing_feature_is_said_and_ends_nothing(
    places: tuple[Path, Path], before: str, holds: set[str], said: list[str]
) -> None:
    held, results = confined(INSIDE, places, before=before)
    assert {name: found for name, found in results.items() if found != "done"} == {}
    assert {name for name in ("files", "reads", "network") if getattr(held, name)} <= holds
    for words in said:
        assert any(words in sentence for sentence in held.missing)


def test_what_it_may_write_must_exist_or_nothing_is_confined(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        confinement.confine_process(writable=[tmp_path / "missing"])
    (tmp_path / "new").write_text("text")


@pytest.mark.parametrize(
    ("held", "words"),
    [
        (
            Confinement(True, True, True),
            "no network, no writing outside its own folders, no reading of your other files",
        ),
        (Confinement(False, False, True, ("x",)), "no network"),
        (Confinement(False, False, False, ("x",)), "not confined"),
    ],
)
def test_what_holds_is_described_in_words(held: Confinement, words: str) -> None:
    assert held.describe() == words


@pytest.mark.medium
def test_code_is_compiled_and_torch_runs_in_a_confined_process(places: tuple[Path, Path]) -> None:
    before = "code.append(Path(confinement.__file__).parents[3])"
    _, results = confined(COMPILING, places, before=before, KEIMA_CACHE=str(places[0] / "cache"))
    assert results == {"compile": "done", "torch": "done"}
    assert list((places[0] / "cache").rglob("*.nbc"))


def decide(program: Sequence[Instruction], machine: int, call: int, *arguments: int) -> int:
    """Return what a filter decides about a system call, as the system's interpreter of classic BPF does."""
    seen = {0: call, 4: machine, **{16 + 8 * number: value for number, value in enumerate(arguments)}}
    held, place = 0, 0
    while True:
        operation, if_true, if_false, value = program[place]
        place += 1
        match operation:
            case confinement.LOAD:
                held = seen[value]
            case confinement.AND:
                held &= value
            case confinement.EQUAL:
                place += if_true if held == value else if_false
            case confinement.AT_LEAST:
                place += if_true if held >= value else if_false
            case confinement.ANY_BIT:
                place += if_true if held & value else if_false
            case confinement.RETURN:
                return value


CALLS: dict[str, dict[str, int]] = {  # numbers in the system's headers
    "x86_64": {
        "read": 0,
        "mmap": 9,
        "open": 2,
        "openat": 257,
        "ioctl": 16,
        "socket": 41,
        "connect": 42,
        "truncate": 76,
    },
    "aarch64": {"read": 63, "mmap": 222, "openat": 56, "ioctl": 29, "socket": 198, "connect": 203, "truncate": 45},
}
UNIX, INET, CLOEXEC = 1, 2, 0o2000000
DECISIONS: list[tuple[str, tuple[Any, ...], bool, bool]] = [  # call, arguments, refused, refused with old Landlock
    ("read", (3, 0, 0), False, False),
    ("mmap", (0, 0, 0), False, False),
    ("connect", (3, 0, 0), True, True),
    ("socket", (UNIX, 1 | CLOEXEC, 0), False, False),
    ("socket", (UNIX, 5, 0), False, False),
    ("socket", (UNIX, 2, 0), True, True),
    ("socket", (INET, 1, 0), True, True),
    ("socket", (10, 2, 0), True, True),
    ("ioctl", (0, 0x5412, 0), True, True),
    ("ioctl", (0, 0x541C, 0), True, True),
    ("ioctl", (0, 0x5413, 0), False, False),
    ("truncate", (0, 0), False, True),
    ("openat", (0, 0, os.O_RDONLY | os.O_TRUNC), False, True),
    ("openat", (0, 0, 3 | os.O_TRUNC), False, True),
    ("openat", (0, 0, os.O_WRONLY | os.O_TRUNC), False, False),
    ("openat", (0, 0, os.O_RDWR | os.O_TRUNC), False, False),
    ("openat", (0, 0, os.O_RDONLY), False, False),
    ("open", (0, os.O_RDONLY | os.O_TRUNC), False, True),
    ("open", (0, os.O_WRONLY | os.O_TRUNC), False, False),
]


@pytest.mark.parametrize("empties", [False, True])
@pytest.mark.parametrize("machine", ARCHITECTURES)
def test_the_filter_refuses_these_calls_on_every_architecture(machine: str, empties: bool) -> None:
    program, number = call_filter(machine, empties=empties), ARCHITECTURES[machine]
    for name, arguments, refused, refused_with_old in DECISIONS:
        if name in CALLS[machine]:
            expected = REFUSE if (refused_with_old if empties else refused) else ALLOW
            assert decide(program, number, CALLS[machine][name], *arguments) == expected, (name, arguments)
    other = next(number for name, number in ARCHITECTURES.items() if name != machine)
    assert decide(program, other, CALLS[machine]["read"], 3, 0, 0) == REFUSE
    if machine == "x86_64":
        assert decide(program, number, 0x40000000, 3, 0, 0) == REFUSE
