from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from keima.ppo.worlds.trading_data import BadHistory, read_history
from tests.ppo.worlds.simulated import simulated_history

HEADER = "timestamp,open,high,low,close,volume"
ROWS = [
    "2024-01-01,10,11,9,10.5,100",
    "2024-01-02,10.5,12,10,11,150",
    "2024-01-03,11,11.5,10.8,11,120",
    "2024-01-04,11,12,11,12,0",
]


def written(folder: Path, rows: list[str], header: str = HEADER) -> Path:
    path = folder / "prices.csv"
    path.write_text("\n".join([header, *rows]) + "\n", encoding="utf-8")
    return path


def test_a_csv_file_may_have_its_columns_in_any_order_and_case(tmp_path: Path) -> None:
    bars = read_history(written(tmp_path, ROWS))
    np.testing.assert_array_equal(bars[1], [10.5, 12, 10, 11, 150])
    turned = [",".join(row.split(",")[::-1]) for row in ROWS]
    path = written(tmp_path, turned, header="Volume,Close,Low,High,Open,Date")
    np.testing.assert_array_equal(read_history(path), bars)


@pytest.mark.parametrize(
    "times", [("0", "60", "120", "180"), ("1700000000000", "1700000060000", "1700000120000", "1700000180000")]
)
def test_times_may_be_numbers_of_seconds_or_milliseconds(tmp_path: Path, times: tuple[str, ...]) -> None:
    rows = [f"{time},{row.partition(',')[2]}" for time, row in zip(times, ROWS, strict=True)]
    assert read_history(written(tmp_path, rows)).shape == (4, 5)


def replaced(row: int, text: str) -> Callable[[], list[str]]:
    return lambda: [text if number == row else line for number, line in enumerate(ROWS)]


@pytest.mark.parametrize(
    ("rows", "row", "complaint"),
    [
        (replaced(2, "2024-01-03,11,,10.8,11,120"), 4, "missing or not finite"),
        (replaced(1, "2024-01-02,10.5,nan,10,11,150"), 3, "missing or not finite"),
        (replaced(1, "2024-01-02,10.5,inf,10,11,150"), 3, "missing or not finite"),
        (replaced(0, "2024-01-01,10,11,-9,10.5,100"), 2, "not above 0"),
        (replaced(3, "2024-01-04,11,12,11,12,-5"), 5, "volume is negative"),
        (replaced(1, "2024-01-02,10.5,10,12,11,150"), 3, "high is below the low"),
        (replaced(1, "2024-01-02,10.5,10.6,10,11,150"), 3, "high is below the open or the close"),
        (replaced(1, "2024-01-02,10.5,12,10.9,11,150"), 3, "low is above the open or the close"),
        (replaced(2, "2024-01-02,11,11.5,10.8,11,120"), 4, "not after"),
        (replaced(3, "2024-02-04,11,12,11,12,0"), 5, "rows are missing.*--max-gap 0"),
        (replaced(1, "2024-01-02,10.5,12,10,11"), 3, "5 fields"),
        (replaced(1, "2024-01-02,ten,12,10,11,150"), 3, "ten"),
        (replaced(1, "yesterday,10.5,12,10,11,150"), 3, "'yesterday' is not a time"),
    ],
)
def test_a_fault_is_named_with_its_row(tmp_path: Path, rows: Callable[[], list[str]], row: int, complaint: str) -> None:
    with pytest.raises(BadHistory, match=rf"prices\.csv, row {row}: .*{complaint}"):
        read_history(written(tmp_path, rows()))


def test_a_gap_may_be_allowed(tmp_path: Path) -> None:
    assert len(read_history(written(tmp_path, replaced(3, "2024-02-04,11,12,11,12,0")()), max_gap=0)) == 4


def test_weekends_are_no_gap(tmp_path: Path) -> None:
    days = ["01", "02", "03", "04", "05", "08", "09"]
    rows = [f"2024-01-{day},10,11,9,10,5" for day in days]
    assert len(read_history(written(tmp_path, rows))) == 7


def test_missing_columns_are_named(tmp_path: Path) -> None:
    with pytest.raises(BadHistory, match="no column timestamp, volume; it has when, open"):
        read_history(written(tmp_path, ["1,2,3,4,5"], header="when,open,high,low,close"))


@pytest.mark.parametrize("text", ["", HEADER, HEADER + "\n" + ROWS[0]])
def test_a_file_without_a_history_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "prices.csv"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(BadHistory, match=r"empty|too few"):
        read_history(path)


def test_other_kinds_of_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadHistory, match=r"\.csv and \.parquet"):
        read_history(tmp_path / "prices.xlsx")


def test_parquet_files_are_read_with_pyarrow(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    bars = simulated_history(10)
    columns = dict(zip(("open", "high", "low", "close", "volume"), bars.T, strict=True))
    parquet.write_table(pyarrow.table({"timestamp": np.arange(10) * 60, **columns}), tmp_path / "prices.parquet")
    np.testing.assert_array_equal(read_history(tmp_path / "prices.parquet"), bars)
