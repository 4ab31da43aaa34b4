"""Puts faults into a module, one at a time, and reports which of them its tests detect.

    python tools/mutation.py
    python tools/mutation.py --sample 80 --seed 1 keima/data/ledger.py
    python tools/mutation.py --sample 0 keima/data/ledger.py:120-150

A fault is killed if a test fails or does not end; it survives if all tests pass. The tests are those that MODULES
names, a part of ``make test`` without its trials, and of these the ones that reach the fault's statement. Other
processes are not traced: programs that tests start have the module without the fault. ``--sample 0`` tries every fault.
The exit code is 1 if a share is below ``--least``.

Each fault has a process, forked after pytest has collected the tests; there the functions of the module get the faulty
code. Only faults that take effect while the module is loaded need a process that has not loaded it yet. Modules of
kernels are interpreted, because compiling would take most of the time.
"""

import argparse
import ast
import contextlib
import gc
import importlib
import importlib.util
import json
import os
import random
import resource
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch reads it; and no thread is left after a fork

import hypothesis  # noqa: F401
import numba
import pytest
import torch  # noqa: F401

from keima.base.reports.intervals import wilson_interval
from tests.sources import ROOT, imported_files, relative
from tools.mutants import Mutant, mutants

LIVES, KILLED, BROKEN, UNSEEN, ANEW = 0, 1, 3, 98, 99  # how a fault's process ends; anew: it must load the module
FATES = {LIVES: "lives", UNSEEN: "no test comes by"}  # everything else is a kill
PROCESSOR_SECONDS = 20.0  # time that a fault's tests may take in addition to SLACK times their time without it
WALL_SECONDS = 90.0
SLACK = 5.0
MOST_MEMORY = 8 * 2**30  # bytes
LARGEST_FILE = 2**30
SEARCH = tuple(f"search/test_{name}.py" for name in ("puct", "search_decide", "search_trees", "search"))
NOISE = "search/test_search_noise.py"
BIG_GAMES = "connect_four or twenty48 and not naive"


@dataclass(frozen=True)
class Module:
    """A module to be judged by tests, whose files are named relative to tests/."""

    tests: tuple[str, ...]
    interpreted: bool = False
    without: str = ""  # tests that take too long, as an expression for pytest's -k


MODULES = {
    "keima/cluster/fleet/balancer.py": Module(("cluster/fleet/test_balancer.py",)),
    "keima/cluster/fleet/tracked_worker.py": Module(
        ("cluster/fleet/test_tracked_worker.py", "cluster/fleet/test_connection_failures.py")
    ),
    "keima/cluster/fleet/mirror.py": Module(
        (
            "cluster/fleet/test_mirror.py",
            "cluster/fleet/test_machine_connection.py",
            "cluster/fleet/test_connection_failures.py",
            "cluster/fleet/test_ownership.py",
        )
    ),
    "keima/data/ledger.py": Module(
        (
            "data/test_ledger.py",
            "worker/test_withdrawing.py",
            "data/test_receive.py",
            "data/test_model_files.py",
            "coach/crowd/test_distrusting.py",
            "cli/reports/test_audit.py",
        )
    ),
    "keima/data/receive.py": Module(
        ("data/test_receive.py", "worker/test_worker_folder.py", "data/test_seed_games.py")
    ),
    "keima/learning/learner.py": Module(
        (
            "learning/test_learner.py",
            "learning/test_muon.py",
            "networks/test_auxiliary_heads.py",
            "networks/test_growth.py",
            "learning/test_checkpoint.py",
            "learning/test_big_learner.py",
            "learning/ranks/test_total_batch.py",
        )
    ),
    "keima/learning/ranks/total_batch.py": Module(("learning/ranks/test_total_batch.py",)),
    "keima/replay/value_targets.py": Module(("replay/test_value_targets.py",), interpreted=True),
    "keima/ppo/rollout.py": Module(("ppo/test_rollout.py", "ppo/test_ppo.py"), interpreted=True),
    "keima/ppo/trainer.py": Module(("ppo/test_ppo_losses.py", "ppo/test_ppo.py", "ppo/test_ppo_memory.py")),
    "keima/data/verify.py": Module(("data/test_verify.py", "search/test_chance.py"), interpreted=True),
    "keima/search/puct.py": Module(
        (*SEARCH, NOISE), interpreted=True, without=f"{BIG_GAMES} or draw_from_the_policy or weaker_or_none"
    ),
    "keima/search/gumbel.py": Module(
        (*SEARCH, NOISE), interpreted=True, without=f"{BIG_GAMES} or dirichlet_draw or weaker_or_none"
    ),
}


@dataclass
class Case:
    """A test, as it ran without a fault."""

    seconds: float = 0.0  # of this process's processor time
    wall: float = 0.0
    outcome: str = ""
    lines: set[int] = field(default_factory=set)  # lines of the module that it reached


class Planted(SourceFileLoader):
    """Finds and loads one module, from a tree instead of its file."""

    def __init__(self, path: Path, tree: ast.Module) -> None:
        super().__init__(".".join(path.relative_to(ROOT).with_suffix("").parts), str(path))
        self.code = compile(tree, str(path), "exec")

    def find_spec(self, name: str, path: object, target: object = None) -> ModuleSpec | None:
        """Implement importlib's protocol."""
        return importlib.util.spec_from_file_location(name, self.path, loader=self) if name == self.name else None

    def get_code(self, fullname: str) -> CodeType:
        """Return the tree's code instead of the file's."""
        return self.code


class Watch:
    """A pytest plugin that records the result of each test, and the lines of the module that it reaches."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        self.cases: dict[str, Case] = {}
        self.prepared: dict[
            str, set[int]
        ] = {}  # lines that the tests of a file reached before they began, often in one import for all
        self.lines: set[int] = set()

    def trace(self, frame: FrameType, event: str, argument: object) -> Any:
        """Implement ``sys.settrace``'s protocol."""
        if frame.f_code.co_filename != self.path:
            return None
        self.lines.add(frame.f_lineno)
        return self.trace

    def noted(self, lines: set[int]) -> Iterator[None]:
        """Record the lines that are reached in the block."""
        self.lines = lines
        threading.settrace(self.trace)
        sys.settrace(self.trace)
        yield
        sys.settrace(None)
        threading.settrace(None)

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Iterator[None]:
        """Note the lines that a file's tests reach before they begin."""
        yield from self.noted(self.prepared.setdefault(relative(item.path), set()))

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Iterator[None]:
        """Note the lines that a test reaches."""
        yield from self.noted(self.cases[item.nodeid].lines)

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Note how long a test takes."""
        case = self.cases[item.nodeid] = Case()
        seconds, wall = time.process_time(), time.monotonic()
        yield
        case.seconds, case.wall = time.process_time() - seconds, time.monotonic() - wall

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note how a test ended."""
        case = self.cases[report.nodeid]
        if report.when == "call" or report.outcome != "passed":
            case.outcome = report.outcome


class Bench:
    """A pytest plugin that does some work with the tests instead of running them all."""

    def __init__(self, work: Callable[[pytest.Session], None]) -> None:
        self.work = work

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Do the work."""
        if not session.testsfailed:  # otherwise one of the files cannot be loaded
            self.work(session)
        return True

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """End the process at the first failure: the fault is killed."""
        if report.failed:
            os._exit(KILLED)


class Judge:
    """Judges the faults of one module, in a process that has loaded everything that does not depend on it."""

    def __init__(self, module: str, lines: str, scratch: Path, options: argparse.Namespace) -> None:
        self.path, self.files = ROOT / module, [ROOT / "tests" / name for name in MODULES[module].tests]
        self.interpreted, self.without = MODULES[module].interpreted, MODULES[module].without
        self.scratch, self.at_once = scratch, options.at_once
        self.tree = ast.parse(self.path.read_text(encoding="utf-8"))
        first, _, last = lines.partition("-")
        self.faults = [
            fault for fault in mutants(self.tree) if not lines or int(first) <= fault.line <= int(last or first)
        ]
        count = min(options.sample or len(self.faults), len(self.faults))
        self.sample = sorted(random.Random(options.seed).sample(range(len(self.faults)), count))
        self.cases: dict[str, Case] = {}
        self.fates: dict[int, int] = {}  # of the faults that were tried, by number
        self.began = time.monotonic()

    def judge(self) -> int:
        """Try the faults; leave the results in the scratch folder."""
        self.load()
        if code := forked(lambda: self.hold(self.tree, self.judge_functions)).wait():
            raise SystemExit(
                f"{relative(self.path)}: pytest ended with {code}\n{(self.scratch / 'pytest').read_text()[-3000:]}"
            )
        self.recall()
        self.try_all([number for number in self.sample if self.fates.get(number, ANEW) == ANEW], self.try_anew)
        (self.scratch / "fates.json").write_text(json.dumps(self.fates))
        return 0

    def load(self) -> None:
        """Load what the tests need and what does not depend on the module."""
        if self.interpreted:
            os.environ["NUMBA_DISABLE_JIT"] = "1"
            numba.config.DISABLE_JIT = 1
        fixtures = {file.parent / "conftest.py" for file in self.files}
        for file in sorted(
            reached([*self.files, *(file for file in fixtures if file.exists())]) - fixtures - set(self.files)
        ):
            if self.path not in reached([file]):
                importlib.import_module(
                    ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
                )
        gc.collect()
        gc.freeze()  # existing objects stay, and no fork has to traverse them or copy them for that

    def hold(self, tree: ast.Module, work: Callable[[pytest.Session], None]) -> int:
        """Let pytest collect the tests, with the module as the tree has it, and do some work with them."""
        sys.meta_path.insert(0, Planted(self.path, tree))
        quiet = (
            ["-W", "ignore:overflow encountered:RuntimeWarning"] if self.interpreted else []
        )  # numpy's warnings about intended overflow
        words = [
            "-q",
            "--capture=no",
            "--assert=plain",
            "-p",
            "no:cacheprovider",
            "-m",
            "not slow and not trial",
            *quiet,
        ]
        words += ["-k", f"not ({self.without})"] if self.without else []
        with (self.scratch / "pytest").open("wb") as file:
            os.dup2(file.fileno(), 1)
        return int(pytest.main([*words, *map(str, self.files)], plugins=[Bench(work)]))

    def judge_functions(self, session: pytest.Session) -> None:
        """Run the tests without a fault, and try the faults of functions."""
        forked(lambda: self.watch(session), self.scratch / "output").wait()
        self.recall()
        gc.unfreeze()  # what tests/conftest.py has frozen would not be found
        everything = (thing for thing in gc.get_objects() if type(thing) is FunctionType)
        functions = [function for function in everything if function.__code__.co_filename == str(self.path)]
        gc.collect()
        gc.freeze()

        def begin(fault: Mutant) -> Trial:
            def work() -> int:
                fault.put()
                return (
                    self.run(session, fault)
                    if exchanged(functions, compile(self.tree, str(self.path), "exec"))
                    else ANEW
                )

            return self.forked(work, fault)

        self.try_all([number for number in self.sample if self.faults[number].lines is not None], begin)
        (self.scratch / "fates.json").write_text(json.dumps(self.fates))

    def watch(self, session: pytest.Session) -> int:
        """Run all tests and record their results."""
        watch = Watch(self.path)
        for plugin in session.config.pluginmanager.get_plugins():
            if isinstance(plugin, Bench):
                session.config.pluginmanager.unregister(plugin)
        session.config.pluginmanager.register(watch)
        run(session, session.items)
        cases = [
            (name, case.seconds, case.wall, case.outcome, sorted(case.lines | watch.prepared[name.partition("::")[0]]))
            for name, case in watch.cases.items()
        ]
        (self.scratch / "cases.json").write_text(json.dumps(cases))
        return 0

    def recall(self) -> None:
        """Read the findings of other processes.

        Raises:
            SystemExit: no test passes without a fault.
        """
        for name, seconds, wall, ended, lines in json.loads((self.scratch / "cases.json").read_text()):
            if ended == "passed":
                self.cases[name] = Case(seconds, wall, ended, set(lines))
        if not self.cases:
            raise SystemExit((self.scratch / "output").read_text()[-3000:])
        fates = self.scratch / "fates.json"
        if fates.exists():
            self.fates = {int(number): code for number, code in json.loads(fates.read_text()).items()}
            return
        seconds, tried = (
            sum(case.seconds for case in self.cases.values()),
            f"{len(self.sample)} of {len(self.faults)} faults",
        )
        tell(f"{relative(self.path)}: {len(self.cases)} tests in {seconds:.0f} s of processor time; {tried}")
        for name, *_, ended, _ in json.loads((self.scratch / "cases.json").read_text()):
            if ended == "failed":
                tell(f"  left out, for it fails without a fault: {name}")

    def try_anew(self, fault: Mutant) -> "Trial":
        """Start the tests on a fault that takes effect when the module is loaded."""

        def work() -> int:
            fault.put()
            self.hold(self.tree, lambda session: os._exit(self.run(session, fault)))
            return KILLED  # they were not even started

        return self.forked(work, fault)

    def run(self, session: pytest.Session, fault: Mutant) -> int:
        """Run the tests that reach a fault, the quickest file first; does not return if one fails."""
        os.environ["PYTEST_DEBUG_TEMPROOT"] = str(self.scratch)
        chosen, files = self.chosen(fault), Counter[Path]()
        items = [item for item in session.items if item.nodeid in chosen]
        for item in items:
            files[item.path] += chosen[item.nodeid].seconds  # type: ignore[assignment]
        run(session, sorted(items, key=lambda item: (files[item.path], item.path, chosen[item.nodeid].seconds)))
        return LIVES

    def chosen(self, fault: Mutant) -> dict[str, Case]:
        """Return the tests that reach a fault."""
        lines = fault.lines
        return (
            self.cases
            if lines is None
            else {name: case for name, case in self.cases.items() if not case.lines.isdisjoint(lines)}
        )

    def forked(self, work: Callable[[], int], fault: Mutant) -> "Trial":
        """Do some work on a fault in a process limited to the resources that the tests need."""
        cases = self.chosen(fault).values()
        seconds, wall = sum(case.seconds for case in cases), sum(case.wall for case in cases)

        def bounded() -> int:
            limit = int(PROCESSOR_SECONDS + SLACK * seconds)
            resource.setrlimit(resource.RLIMIT_CPU, (limit, limit))
            resource.setrlimit(resource.RLIMIT_DATA, (MOST_MEMORY, MOST_MEMORY))
            resource.setrlimit(resource.RLIMIT_FSIZE, (LARGEST_FILE, LARGEST_FILE))
            return work()

        return forked(bounded, self.scratch / "output", seconds=WALL_SECONDS + SLACK * wall)

    def try_all(self, numbers: Sequence[int], begin: Callable[[Mutant], "Trial"]) -> None:
        """Try these faults, several at a time."""
        waiting, under_way = list(numbers), dict[int, Trial]()
        while waiting or under_way:
            while waiting and len(under_way) < self.at_once:
                number = waiting.pop(0)
                if self.chosen(self.faults[number]):
                    under_way[number] = begin(self.faults[number])
                else:
                    self.conclude(number, UNSEEN)
            for number in [number for number, trial in under_way.items() if trial.over()]:
                self.conclude(number, under_way.pop(number).wait())
            time.sleep(0.01)

    def conclude(self, number: int, code: int) -> None:
        """Record the result of a fault and report it."""
        self.fates[number] = code
        if code != ANEW:
            tests, seconds = len(self.chosen(self.faults[number])), time.monotonic() - self.began
            tell(f"  {FATES.get(code, 'killed')} ({tests} tests, {seconds:.0f} s): {told(self.faults[number])}")


def told(fault: Mutant) -> str:
    """Return a readable description of a fault."""
    return f"{fault.line}: {fault.was}  ->  {fault.now}"


def run(session: pytest.Session, items: Sequence[pytest.Item]) -> None:
    """Run tests as pytest does."""
    for item, following in zip(items, [*items[1:], None], strict=True):
        session.config.hook.pytest_runtest_protocol(item=item, nextitem=following)


def exchanged(functions: Sequence[FunctionType], code: CodeType) -> bool:
    """Give the functions of a module the code of another version; False if one cannot take it."""
    found = dict[tuple[str, int], CodeType]()
    waiting = [code]
    while waiting:
        inner = [constant for constant in waiting.pop().co_consts if isinstance(constant, CodeType)]
        found |= {(code.co_qualname, code.co_firstlineno): code for code in inner}
        waiting += inner
    try:
        for function in functions:
            function.__code__ = found[function.__code__.co_qualname, function.__code__.co_firstlineno]
    except (KeyError, ValueError):
        return False
    return True


class Trial:
    """A forked process that ends by itself or at its time limit."""

    def __init__(self, pid: int, seconds: float) -> None:
        self.pid, self.until, self.code = pid, time.monotonic() + seconds, None

    code: int | None  # as in a shell: how it ended, below 0 by a signal

    def over(self) -> bool:
        """Return whether it has ended; processes that it has started end with it."""
        if self.code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if not pid and time.monotonic() > self.until:
                os.killpg(self.pid, signal.SIGKILL)
                pid, status = os.waitpid(self.pid, 0)
            if pid:
                self.code = os.waitstatus_to_exitcode(status)
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self.pid, signal.SIGKILL)
        return self.code is not None

    def wait(self) -> int:
        """Return how it ended."""
        while not self.over():
            time.sleep(0.02)
        assert self.code is not None
        return self.code


def forked(work: Callable[[], int], output: Path | None = None, *, seconds: float = float("inf")) -> Trial:
    """Do some work in a process forked from this one, in its own process group; its output goes to a file, if there is
    one.
    """
    pid = os.fork()
    if pid == 0:
        code = BROKEN
        try:
            os.setpgid(0, 0)
            if output:
                with output.open("wb") as file:
                    os.dup2(file.fileno(), 1)
                    os.dup2(file.fileno(), 2)
            code = work()
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    return Trial(pid, seconds)


def reached(files: Sequence[Path]) -> set[Path]:
    """Return these project files and everything that they import."""
    found, waiting = set(files), list(files)
    while waiting:
        new = imported_files(waiting.pop()) - found
        found |= new
        waiting += new
    return found


def tell(text: str) -> None:
    """Report progress."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def main(words: Sequence[str] | None = None) -> int:
    """Judge the modules, one after the other; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "modules",
        nargs="*",
        metavar="MODULE[:FIRST[-LAST]]",
        help="whose faults are tried, at these lines; all by default",
    )
    parser.add_argument(
        "--sample", type=int, default=80, help="faults of each module, drawn at random; 0: all (default 80)"
    )
    parser.add_argument("--seed", type=int, default=1, help="of the drawing (default 1)")
    parser.add_argument("--at-once", type=int, default=1, help="faults that are tried at the same time (default 1)")
    parser.add_argument(
        "--least", type=float, default=0.0, help="the share of each module that is to be killed (default 0)"
    )
    options = parser.parse_args(words)
    wanted = [word.partition(":")[::2] for word in options.modules] or [(module, "") for module in MODULES]
    if unknown := [module for module, _ in wanted if module not in MODULES]:
        parser.error(f"no tests are named for {', '.join(unknown)}; there are {', '.join(MODULES)}")
    enough, rows, lived = True, [], []
    for module, lines in wanted:
        with tempfile.TemporaryDirectory(prefix="keima-mutation-") as scratch:
            judge = Judge(module, lines, Path(scratch), options)
            if forked(judge.judge).wait():
                return 2
            fates = json.loads((Path(scratch) / "fates.json").read_text())
        survivors = {int(number): code for number, code in fates.items() if code in FATES}
        count, killed = len(fates), len(fates) - len(survivors)
        low, high = wilson_interval(killed, count)
        enough &= killed >= options.least * count
        rows.append(
            f"| `{module}` | {len(judge.faults)} | {count} | {killed} | {killed / max(1, count):.1%} | "
            f"{low:.0%} to {high:.0%} |"
        )
        lived += [
            f"{module}:{told(judge.faults[number])}  ({FATES[code]})" for number, code in sorted(survivors.items())
        ]
    sys.stdout.write(
        "| module | faults | tried | killed | share | 95 % interval |\n|---|---|---|---|---|---|\n"
        + "\n".join(rows)
        + "\n\n"
    )
    sys.stdout.write("".join(f"{line}\n" for line in lived))
    return 0 if enough else 1


if __name__ == "__main__":
    sys.exit(main())
