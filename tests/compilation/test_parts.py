"""Compiled functions without machine code of their own give the same results, also to a process that reads them."""

from pathlib import Path

import numpy as np
import pytest

from keima.compilation.decorators import compiled, compiled_part, inlined_by_llvm
from keima.compilation.parts import Part, PartLibrary
from tests.compilation.compiling import run_code

SUM = """
import numba
import numpy as np
from tests.compilation.compiling import watch_compiling
from tests.compilation.test_parts import sum_squares

compiled = watch_compiling()


@numba.njit
def sum_twice(values):
    return 2 * sum_squares(values, 1.0)


print(sum_twice(np.array([1.0, 2.0])))
print([type(code.library).__name__ for code in sum_squares.overloads.values()])
print(*(name.partition(":")[2] for name in compiled), sep="\\n")
"""


@inlined_by_llvm
def square(value: float) -> float:
    if value != value:
        raise ValueError("not a number")
    return value * value


@compiled_part
def sum_squares(values: np.ndarray, start: float) -> float:
    total = start
    for i in range(len(values)):
        total += square(values[i])
    return total


@compiled_part
def halve_to_one(value: int) -> int:
    return 0 if value <= 1 else 1 + halve_to_one(value // 2)


@compiled
def sum_from_compiled_code(values: np.ndarray) -> tuple[float, int]:
    return sum_squares(values, 0.5), halve_to_one(len(values))


def test_a_part_gives_the_same_to_python_and_to_compiled_code() -> None:
    values = np.arange(5.0)
    assert sum_squares(values, 0.5) == 30.5
    assert sum_from_compiled_code(values) == (30.5, 2)


def test_a_part_has_no_machine_code() -> None:
    sum_from_compiled_code(np.arange(3.0))
    assert isinstance(sum_squares, Part)
    libraries = [code.library for code in sum_squares.overloads.values()]
    assert libraries and all(isinstance(library, PartLibrary) for library in libraries)


def test_an_error_of_a_part_reaches_python() -> None:
    with pytest.raises(ValueError, match="not a number"):
        sum_from_compiled_code(np.array([1.0, np.nan]))


@pytest.mark.medium
def test_another_process_reads_a_part_from_the_cache_and_links_it(tmp_path: Path) -> None:
    first, second = run_code(SUM, tmp_path), run_code(SUM, tmp_path)
    assert first[:2] == second[:2] == ["12.0", "['PartLibrary']"]
    assert "sum_squares" in first[2:]
    assert second[2:] == ["sum_twice"]
