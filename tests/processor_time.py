"""A plugin of pytest: the processor time of tests and of the programs that they start.

    .venv/bin/python -m pytest -p tests.processor_time -m "not slow"

Durations depend on what else the machine does; processor seconds hardly do. They say which tests to make cheaper. What
the server of processes forks (keima/base/system/processes.py) is not counted: the system counts it for nobody.
"""

import resource
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import pytest

PROPERTY = "processor_seconds"
SHOWN = 40

seconds_of_tests: defaultdict[str, float] = defaultdict(float)


def used() -> float:
    """The seconds of this process and of its children that have ended."""
    usage = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(each.ru_utime + each.ru_stime for each in usage)


def measured(item: pytest.Item) -> Iterator[None]:
    """Add what a phase of the test uses to the test's properties, which reach the report."""
    before = used()
    yield
    item.user_properties.append((PROPERTY, used() - before))


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    """Measure."""
    yield from measured(item)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Measure."""
    yield from measured(item)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    """Measure."""
    yield from measured(item)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Sum up."""
    if report.when == "teardown":
        seconds = (value for name, value in report.user_properties if name == PROPERTY)
        seconds_of_tests[report.nodeid] += sum(float(str(each)) for each in seconds)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print the most expensive files and tests."""
    files: defaultdict[str, float] = defaultdict(float)
    for test, seconds in seconds_of_tests.items():
        files[test.partition("::")[0]] += seconds
    terminalreporter.section(f"processor time, {sum(files.values()):.0f} s in all")
    for found in (files, seconds_of_tests):
        for name, seconds in sorted(found.items(), key=lambda each: -each[1])[:SHOWN]:
            terminalreporter.write_line(f"{seconds:8.1f} s  {name}")
        terminalreporter.write_line("")
