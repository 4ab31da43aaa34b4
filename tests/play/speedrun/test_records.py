"""The records in docs/records hold on every machine, by this version of the search."""

from pathlib import Path

import pytest

from keima.cli.reports.verify import main as verify
from tests.sources import ROOT

RECORDS = sorted((ROOT / "docs" / "records").glob("*.zip"))
QUICK = {"tic_tac_toe"}


@pytest.mark.parametrize(
    "record",
    [
        pytest.param(each, id=each.stem, marks=pytest.mark.medium if each.stem in QUICK else pytest.mark.slow)
        for each in RECORDS
    ],
)
def test_a_record_of_ours_holds_here(record: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = verify([str(record), "--processes", "1"])
    assert code == 0, capsys.readouterr().out
