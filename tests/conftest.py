"""Rules for all tests: the same examples on every run, one thread each, no GPU, and no program's logging setup outlives
its test.
"""

import contextlib
import gc
import importlib
import os
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

from keima.base.system.logs import package_logger

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch reads it; programs started by tests inherit it
os.environ.setdefault(
    "OMP_WAIT_POLICY", "PASSIVE"
)  # learners use several all the same; spinning threads starve if others use the cores

GPU_TESTS = "KEIMA_TEST_GPU"  # `make test-gpu` sets it: the tests that need a GPU run, and see it
if GPU_TESTS not in os.environ:
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # many tests compare bits; torch and the programs that tests start read it

# A shell ignores Ctrl-C in what it starts in the background, and the programs that tests start would inherit this.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Imports and collecting make a million objects that stay, through which the collector would go again and again.
gc.disable()

hypothesis.settings.register_profile("keima", deadline=None, derandomize=True, database=None, max_examples=40)
hypothesis.settings.load_profile("keima")


@pytest.fixture(autouse=True)
def logging_as_it_was() -> Iterator[None]:
    """Programs whose ``main`` a test calls configure logging; undo this."""
    logger = package_logger()
    level, handlers = logger.level, list(logger.handlers)
    yield
    logger.setLevel(level)
    logger.handlers = handlers


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Return how many tests run in parallel: two more than there are processors, because some are always waiting."""
    return len(os.sched_getaffinity(0)) + 2


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Begin with the files that take longest if several run in parallel, so that no processor is idle at the end.

    How long a file takes is guessed from its marks: files with the most trials come first, and among the others those
    with the most medium tests.
    """
    skip_without_gpu([item for item in items if item.get_closest_marker("gpu")])
    if hasattr(config, "workerinput"):
        marked = {
            mark: Counter(item.path for item in items if item.get_closest_marker(mark)) for mark in ("trial", "medium")
        }
        items.sort(key=lambda item: (-marked["trial"][item.path], -marked["medium"][item.path], item.path))


def pytest_sessionstart(session: pytest.Session) -> None:
    """Let the process that only directs others collect garbage, as it collects no tests; the others share the
    compiling.
    """
    config = session.config
    if workerinput := getattr(config, "workerinput", None):
        if config.args_source is config.ArgsSource.TESTPATHS:
            compile_share(config.rootpath, int(workerinput["workerid"][2:]), workerinput["workercount"])
    elif getattr(config.option, "numprocesses", None):
        gc.enable()


def compile_share(root: Path, number: int, processes: int) -> None:
    """Import one's share of the test modules first: what one process compiles, the others find compiled.

    All of them import all modules in the same order, so each would compile everything at the same time.
    """
    for path in sorted((root / "tests").rglob("test_*.py"))[number::processes]:
        with contextlib.suppress(Exception, pytest.skip.Exception):  # collecting it will tell
            importlib.import_module(".".join(path.relative_to(root).with_suffix("").parts))


def pytest_collection_finish() -> None:
    """Let the collector of garbage look only at what tests make."""
    gc.collect()
    gc.freeze()
    gc.enable()


def skip_without_gpu(items: list[pytest.Item]) -> None:
    """Skip these tests where there is no GPU for them, with the reason."""
    if not items:
        return
    reason = f"needs a GPU, which `make test-gpu` shows ({GPU_TESTS}=1)"
    if GPU_TESTS in os.environ:
        import torch  # takes seconds, and most tests do without

        if torch.cuda.is_available():
            return
        reason = "there is no GPU here that PyTorch can use"
    for item in items:
        item.add_marker(pytest.mark.skip(reason=reason))
