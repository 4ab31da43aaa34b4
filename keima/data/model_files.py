"""The files of published models: a run keeps some hundred of them, however long it lasts.

The ledger keeps the row of every model, with its SHA-256; one without a file has an empty path.
"""

import numpy as np

from keima.data.ledger import Ledger
from keima.data.ledger_rows import model_path

SLACK = 1.1  # times as many files as wanted, from which on some are removed


def thin_models(ledger: Ledger, keep: int) -> None:
    """Remove files of older models, so that ``keep`` remain: the newest half, and others that lie evenly over the run.

    Args:
        ledger: of the run.
        keep: how many; 0: all.

    Raises:
        OSError, sqlite3.Error: a file cannot be removed, or the ledger not written; what is left to do is done by the
            next call.
    """
    rows = ledger.models()
    kept = [row.version for row in rows if row.path]
    if not keep or len(kept) < keep * SLACK:
        return
    newest, older = set(kept[len(kept) - keep // 2 :]), np.array(kept[: len(kept) - keep // 2])
    newest |= {max((row.version for row in rows if row.accepted), default=kept[-1])}  # which plays
    wanted = np.linspace(older[0], older[-1], keep - keep // 2)
    chosen = {int(older[np.abs(older - version).argmin()]) for version in wanted}
    ledger.forget_model_files(
        sorted(set(older.tolist()) - chosen - newest)
    )  # first: a row never names a file that is gone
    for version in {row.version for row in rows} - chosen - newest:
        model_path(ledger.folder, version).unlink(missing_ok=True)
