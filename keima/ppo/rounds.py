"""The rounds of a PPO run, from its training_stats.json. Imports no compiled code."""

import json
from pathlib import Path
from typing import Any

from keima.report.files.row_file import read_rows

# A row of training_stats.json: "round", and each number of the report, or None, under "section/name".
Round = dict[str, Any]


def read_rounds(path: Path) -> list[Round] | None:
    """Read the rounds from a statistics file; None if it holds something else.

    Raises:
        OSError: it is missing or may not be read.
    """
    try:
        rows = [json.loads(row) for row in read_rows(path)]
    except (ValueError, RecursionError):
        return None
    whole = bool(rows) and all(isinstance(row, dict) and isinstance(row.get("round"), int) for row in rows)
    return rows if whole else None
