"""Numbers, bars and tables as people see them."""

import math
from typing import Any

import pytest
from rich.cells import cell_len
from rich.text import Text

from keima.base.reports.formats import (
    BLOCKS,
    Column,
    format_count,
    format_duration,
    format_elo,
    format_percent,
    format_rate,
    format_score,
    progress_bar,
    sparkline,
    spread_line,
    table_lines,
)


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0"),
        (9_999, "9,999"),
        (10_000, "10.0k"),
        (99_960, "100k"),
        (999_499, "999k"),
        (999_500, "1.00M"),
        (1_234_567, "1.23M"),
        (2.5e9, "2.50G"),
    ],
)
def test_counts_are_short(number: float, text: str) -> None:
    assert format_count(number) == text
    assert len(text) <= 6


@pytest.mark.parametrize(
    ("number", "text"), [(0.046, "0.05"), (9.999, "10.0"), (12.34, "12.3"), (99.97, "100"), (12_345, "12.3k")]
)
def test_rates_have_three_digits(number: float, text: str) -> None:
    assert format_rate(number) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.4, "0 s"),
        (59.7, "1 min 00 s"),
        (725, "12 min 05 s"),
        (3 * 3600 + 7 * 60 + 59, "3 h 07 min"),
        (86400 * 2 + 4 * 3600, "2 d 04 h"),
        (-3, "0 s"),
        (math.inf, "?"),
        (math.nan, "?"),
    ],
)
def test_durations_have_their_two_largest_units(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


def test_metrics_carry_their_margins() -> None:
    assert format_percent(0.041, 0.008) == "4.1 ± 0.8 %"
    assert format_percent(0.041) == "4.1 %"
    assert format_elo(1031.4, 40.2) == "1,031 ± 40"
    assert format_score(36108.2, 2374.4) == "36,108 ± 2,374"
    assert format_score(0.4213, 0.0312) == "0.421 ± 0.031"
    assert [format_score(score) for score in (12345.6, 4.0, 0.5, 0.0)] == ["12,346", "4", "0.50", "0"]


@pytest.mark.parametrize("show", [format_count, format_rate, format_percent, format_elo])
def test_nan_and_infinity_can_be_shown(show: Any) -> None:
    assert "nan" in show(math.nan) and "inf" in show(math.inf)


def test_a_sparkline_goes_from_the_least_to_the_greatest() -> None:
    assert sparkline(range(8), 20) == BLOCKS
    assert sparkline([3.0, -1.0, 3.0], 20) == "█▁█"


def test_a_long_sparkline_shows_the_whole_run_in_means() -> None:
    assert sparkline(range(800), 8) == BLOCKS
    assert len(sparkline(range(1000), 30)) == 30


def test_a_sparkline_leaves_out_missing_measurements() -> None:
    assert sparkline([None, 1.0, math.nan, 2.0, math.inf], 20) == "▁█"
    assert sparkline([None], 20) == "" == sparkline([1.0], 0) == sparkline([1.0], -5)


def test_a_sparkline_of_equal_values_is_level() -> None:
    assert set(sparkline([7.0] * 5, 20)) == {"▄"}


@pytest.mark.parametrize(
    ("done", "wanted", "filled"), [(0, 10, 0), (5, 10, 5), (10, 10, 10), (25, 10, 10), (-1, 10, 0), (1, 0, 0)]
)
def test_a_bar_is_filled_in_proportion_to_the_finished_work(done: float, wanted: float, filled: int) -> None:
    assert progress_bar(done, wanted, 10).plain == "█" * filled + "░" * (10 - filled)


def test_the_right_end_of_a_line_stays_and_the_left_one_is_cut() -> None:
    assert spread_line(Text("left"), Text("right"), 14).plain == "left     right"
    assert spread_line(Text("a long left"), Text("right"), 12).plain == "a lon… right"
    assert spread_line(Text("left"), Text("right"), 3).plain == "left"


COLUMNS: list[Column[dict[str, str]]] = [
    Column(title="Name", cell=lambda row: row["name"], left=True),
    Column(title="Unimportant", cell=lambda row: "12", rank=2),
    Column(title="Useful", cell=lambda row: "345", rank=1),
    Column(title="Error", cell=lambda row: row["error"], left=True, claim=8),
]


def shown(rows: list[dict[str, str]], width: int) -> list[str]:
    return [line.plain for line in table_lines(COLUMNS, rows, width)]


def test_an_empty_column_is_not_shown() -> None:
    assert shown([{"name": "a", "error": ""}], 80) == ["Name  Unimportant  Useful", "a              12     345"]


def test_in_a_narrow_table_the_least_important_columns_disappear_first() -> None:
    assert shown([{"name": "a", "error": ""}], 20)[0] == "Name  Useful"
    assert shown([{"name": "a", "error": ""}], 8)[0] == "Name"


def test_a_long_text_is_cut_before_it_pushes_out_other_columns() -> None:
    titles, row = shown([{"name": "a", "error": "a very long story"}], 40)
    assert titles.startswith("Name  Unimportant  Useful  Error")
    assert row.endswith("a very long…") or row.endswith("…")


def test_columns_stay_aligned_next_to_wide_characters() -> None:
    _, first, second = shown([{"name": "囲碁", "error": ""}, {"name": "go", "error": ""}], 80)
    assert cell_len(first) == cell_len(second)
