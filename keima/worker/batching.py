"""Make batches of finished games."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from keima.base.files import sha256_hex
from keima.data.records import GameBatch, GameRecord
from keima.worker.worker_folder import batch_name

MOST_POSITIONS = 500_000  # in a batch; well below the limit of its readers


def records_that_fit(records: list[GameRecord]) -> list[GameRecord]:
    """Return the first ``records`` that fit into a batch, at least one; some games have thousands of moves."""
    positions = np.cumsum([len(record.actions) for record in records])
    return records[: max(1, int(np.searchsorted(positions, MOST_POSITIONS, side="right")))]


def make_batch(
    records: Sequence[GameRecord],
    *,
    run_id: str,
    worker: str,
    game: str,
    options: dict[str, Any],
    rules_version: int,
    first_game: int,
) -> GameBatch:
    """Return a batch of these games with its id; ``first_game`` is the number of the first among all games of the
    worker.
    """
    columns = gather_columns(records)
    content = sha256_hex(columns["seeds"].tobytes() + columns["actions"].tobytes())
    return GameBatch(
        batch_id=batch_name(run_id, worker, first_game, len(records), content),
        run_id=run_id,
        worker=worker,
        game=game,
        options=options,
        rules_version=rules_version,
        first_game=first_game,
        **columns,
    )


def gather_columns(records: Sequence[GameRecord]) -> dict[str, NDArray[Any]]:
    """Return the columns of a ``GameBatch`` of these games."""
    joined = ("actions", "root_values", "flags", "surprise", "policy_sizes", "policy_actions", "policy_weights")
    return {
        "lengths": np.array([len(record.actions) for record in records], np.int32),
        "returns": np.stack([record.returns for record in records]),
        "first_model": np.array([record.first_model for record in records], np.int32),
        "last_model": np.array([record.last_model for record in records], np.int32),
        "seeds": np.array([record.seed for record in records], np.uint64),
        "resigned": np.array([record.resigned for record in records], np.uint8),
        **{name: np.concatenate([getattr(record, name) for record in records]) for name in joined},
    }
