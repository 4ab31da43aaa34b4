"""Checkpoints: the states of a learner and its Coach, in folders that appear whole.

A checkpoint is a folder ``checkpoint-000012``: a safetensors file for each group of tensors, and ``checkpoint.json``
with the counters, the Coach's state and the SHA-256 of each file. It is written under a temporary name, synced, and
renamed. If the newest cannot be read, the one before is used, with a warning in the log.
"""

import json
import logging
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors
from safetensors.torch import load, save

from keima.base.files import PART, read_limited, sha256_hex, sync_folder, write_atomically
from keima.learning.learner import LearnerState

log = logging.getLogger(__name__)

FORMAT = 1
FOLDER_PREFIX = "checkpoint-"
INDEX = "checkpoint.json"
MAX_CHECKPOINT_FILE_BYTES = 2**34  # of one file


class CorruptCheckpoint(ValueError):
    """A checkpoint is damaged or of another format; the message names the file."""


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A saved learner and the state of its Coach."""

    path: Path
    learner: LearnerState
    coach: dict[str, Any]


class Checkpoints:
    """The checkpoints of one run, of which the newest ``keep`` are kept. Only one process may write them."""

    def __init__(self, folder: Path, *, keep: int = 3) -> None:
        self.folder, self.keep = folder, keep

    def paths(self) -> list[Path]:
        """Return the complete checkpoints, newest last."""
        return sorted(
            (path for path in self.folder.glob(f"{FOLDER_PREFIX}*") if path.name[len(FOLDER_PREFIX) :].isdecimal()),
            key=_checkpoint_number,
        )

    def save(self, learner: LearnerState, coach: Mapping[str, Any]) -> Path:
        """Save the states of a learner and of its Coach (plain JSON); when this returns, they are on the disk.

        Raises:
            OSError: the disk is full or the folder not writable; the older checkpoints are unchanged.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        older = self.paths()
        final = self.folder / f"{FOLDER_PREFIX}{_checkpoint_number(older[-1]) + 1 if older else 1:06d}"
        part = final.with_name(final.name + PART)
        for stale in self.folder.glob(f"{FOLDER_PREFIX}*{PART}"):
            shutil.rmtree(stale)
        part.mkdir(mode=0o700)
        write_checkpoint(part, learner, coach)
        part.rename(final)
        sync_folder(self.folder)
        for path in self.paths()[: -self.keep]:
            shutil.rmtree(path)
        return final

    def load(self) -> Checkpoint | None:
        """Return the newest readable checkpoint; None if there are no checkpoints.

        Raises:
            CorruptCheckpoint: there are checkpoints, but none can be read.
        """
        paths = self.paths()
        for path in reversed(paths):
            try:
                return read_checkpoint(path)
            except CorruptCheckpoint as error:
                log.warning("%s; trying the previous checkpoint", error)
        if paths:
            raise CorruptCheckpoint(f"none of the {len(paths)} checkpoints in {self.folder} can be read: see the log")
        return None


def _checkpoint_number(path: Path) -> int:
    return int(path.name[len(FOLDER_PREFIX) :])


def write_checkpoint(folder: Path, learner: LearnerState, coach: Mapping[str, Any]) -> None:
    """Write the files of a checkpoint into an empty folder, the index last."""
    hashes = {}
    for group, tensors in learner.tensors.items():
        data = save(dict(tensors))
        hashes[group] = sha256_hex(data)
        write_atomically(folder / f"{group}.safetensors", data)
    content = {"format": FORMAT, "groups": hashes, "counters": learner.counters, "coach": dict(coach)}
    text = json.dumps(content, allow_nan=False)
    # The content is text within JSON, so that the checksum is of exactly what was written.
    index = {"sha256": sha256_hex(text.encode()), "content": text}
    write_atomically(folder / INDEX, json.dumps(index).encode())


def read_checkpoint(folder: Path) -> Checkpoint:
    """Read a checkpoint's folder.

    Raises:
        CorruptCheckpoint: it is damaged or of another format; the message names the file.
    """
    content = _read_index(folder / INDEX)
    tensors = {
        group: _read_tensors(folder / f"{group}.safetensors", digest) for group, digest in content["groups"].items()
    }
    return Checkpoint(path=folder, learner=LearnerState(tensors, content["counters"]), coach=content["coach"])


def _read_index(path: Path) -> dict[str, Any]:
    data = _read_file(path)
    try:
        index = json.loads(data)
        text = index["content"]
        intact = sha256_hex(text.encode()) == index["sha256"]
        content: dict[str, Any] = json.loads(text) if intact else {}
        number = content.get("format")
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise CorruptCheckpoint(f"{path} is not the index of a checkpoint: {error}") from error
    if not intact:
        raise CorruptCheckpoint(f"{path} does not match its SHA-256: it is damaged")
    if number != FORMAT:
        raise CorruptCheckpoint(f"{path} has format {number}, and this program reads format {FORMAT}")
    for name in ("groups", "counters", "coach"):
        if not isinstance(content.get(name), dict):
            raise CorruptCheckpoint(f"{path} is not the index of a checkpoint: it has no {name}")
    if odd := [
        name for name, digest in content["groups"].items() if not (name.isidentifier() and isinstance(digest, str))
    ]:
        raise CorruptCheckpoint(f"{path} is not the index of a checkpoint: {odd[0]!a} is not a group of tensors")
    return content


def _read_tensors(path: Path, digest: str) -> dict[str, Any]:
    data = _read_file(path)
    if sha256_hex(data) != digest:
        raise CorruptCheckpoint(f"{path} does not match its SHA-256 in the index: it is damaged")
    try:
        return load(data)
    except safetensors.SafetensorError as error:
        raise CorruptCheckpoint(f"{path} cannot be read: {error}") from error


def _read_file(path: Path) -> bytes:
    try:
        return read_limited(path, MAX_CHECKPOINT_FILE_BYTES)
    except (OSError, ValueError) as error:
        raise CorruptCheckpoint(f"{path} cannot be read: {error}") from error
