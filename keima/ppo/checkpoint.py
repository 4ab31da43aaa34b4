"""Checkpoints of PPO: files that appear whole, resume exactly, and are read by PyTorch's restricted reader.

In the file, ``"network"`` is the network's state dictionary, including the scales of observations and rewards.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from keima.learning.learner import LearnerState
from keima.learning.ranks.process_group import Ranks
from keima.networks.files.weights_file import CorruptWeights, decode_tree, save_tree

log = logging.getLogger(__name__)

FORMAT = 1
FILE_PREFIX = "ppo_lstm_episode_"
KEEP = 3  # of the newest, one of which may be damaged
GROUPS = ("network", "optimizer", "worlds", "acting")


@dataclass(frozen=True)
class PPOCheckpoint:
    """A saved run."""

    state: LearnerState
    settings: dict[str, Any]  # of the run, without sections


def list_checkpoints(folder: Path) -> list[Path]:
    """Return the checkpoints in a folder, the newest last."""
    found = [path for path in folder.glob(f"{FILE_PREFIX}*.pt") if path.stem[len(FILE_PREFIX) :].isdecimal()]
    return sorted(found, key=lambda path: int(path.stem[len(FILE_PREFIX) :]))


def save_checkpoint(folder: Path, state: LearnerState, settings: Mapping[str, Any]) -> Path:
    """Save a trainer's state and the settings of its run, and remove all but the last few checkpoints.

    Raises:
        OSError: the disk is full or the folder not writable.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{FILE_PREFIX}{state.counters['episodes_over']:07d}.pt"
    save_tree(path, {"format": FORMAT, **state.tensors, "counters": state.counters, "told": dict(settings)})
    for older in list_checkpoints(folder)[:-KEEP]:
        older.unlink()
    return path


def load_newest_ppo_checkpoint(ranks: Ranks, folder: Path) -> PPOCheckpoint | None:
    """Load the newest checkpoint that rank 0 can read, on every rank; None if it has none.

    Raises:
        CorruptWeights: it has some, and none can be read.
    """
    data, problem = (b"", "")
    if ranks.is_main:
        data, problem = _newest_readable(folder)
    problem = ranks.broadcast_text(problem)
    if problem:
        raise CorruptWeights(problem)
    data = ranks.broadcast_bytes(data)
    return _parse_checkpoint(data, folder) if data else None


def _newest_readable(folder: Path) -> tuple[bytes, str]:
    """Return the newest readable checkpoint's bytes, and the problem if there are files but none is readable."""
    problem = ""
    for path in reversed(list_checkpoints(folder)):
        try:
            data = path.read_bytes()
            _parse_checkpoint(data, path)
            return data, ""
        except (CorruptWeights, OSError) as error:
            log.warning("%s; trying the previous checkpoint", error)
            problem = f"none of the checkpoints in {folder} can be read: {error}"
    return b"", problem


def _parse_checkpoint(data: bytes, path: Path) -> PPOCheckpoint:
    tree = decode_tree(data, path=path)
    if tree.get("format") != FORMAT or not all(
        isinstance(tree.get(name), dict) for name in (*GROUPS, "counters", "told")
    ):
        raise CorruptWeights(f"{path} is not a PPO checkpoint, or was written by another version of this program")
    return PPOCheckpoint(LearnerState({name: tree[name] for name in GROUPS}, tree["counters"]), tree["told"])
