"""Weights as a ``.pth`` file, which other PyTorch programs read: a state dictionary and nothing else.

Such a file is a pickle. It is read only by torch's restricted reader, which builds tensors and plain containers and
calls nothing that the file names.
"""

import io
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from keima.base.files import FileTooLarge, read_limited, write_atomically
from keima.networks.files.container import LIMITS

ZIP = b"PK"  # the first bytes of PyTorch's files


class CorruptWeights(ValueError):
    """A file of weights is damaged or holds something else; the message names the file."""


def save_weights(path: Path, weights: Mapping[str, Tensor]) -> None:
    """Write a state dictionary; the file appears whole.

    Raises:
        OSError: the disk is full or the folder not writable.
    """
    save_tree(path, {name: tensor.detach().cpu().contiguous() for name, tensor in weights.items()})


def save_tree(path: Path, tree: Mapping[str, Any]) -> None:
    """Write dictionaries and lists of tensors, numbers and texts; the file appears whole.

    Raises:
        OSError: the disk is full or the folder not writable.
    """
    write_atomically(path, encode_tree(tree))


def encode_tree(tree: Mapping[str, Any]) -> bytes:
    """Return the file of ``save_tree``."""
    buffer = io.BytesIO()
    torch.save(tree, buffer)
    return buffer.getvalue()


def decode_tree(data: bytes, *, path: Path) -> dict[str, Any]:
    """Return the tree in the bytes of a file of ``save_tree``, on the CPU.

    Raises:
        CorruptWeights: the file is damaged, or holds anything else; the message names ``path``.
    """
    try:
        tree = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except Exception as error:  # the reader's errors are of many types, and advise to read without restrictions
        raise CorruptWeights(f"{path} is not a file of weights: {_explain_unreadable(data)}") from error
    if not isinstance(tree, dict):
        raise CorruptWeights(f"{path} is not a file of weights: it has no dictionary")
    return tree


def _explain_unreadable(data: bytes) -> str:
    """Why a file could not be read, and the remedy."""
    if zipfile.is_zipfile(io.BytesIO(data)):
        remedy = "write it with torch.save(model.state_dict(), path)"
        return f"it has objects other than tensors and plain containers; {remedy}"
    if data.startswith(ZIP):
        return "it was cut short or changed in transfer; copy it again"
    if data[8:9] == b"{":  # after the length of its header
        remedy = "give it to --model where there is one, or write a state dictionary with torch.save"
        return f"it is a safetensors file; {remedy}"
    return "PyTorch does not write such files; write it with torch.save(model.state_dict(), path)"


def load_weights(path: Path) -> dict[str, Tensor]:
    """Read a state dictionary, to the CPU.

    Raises:
        CorruptWeights: the file is damaged, or holds anything but finite tensors by name.
        OSError: it is missing or unreadable.
    """
    try:
        data = read_limited(path, LIMITS.max_bytes)
    except FileTooLarge as error:
        raise CorruptWeights(f"{path} is not a file of weights: {error}") from error
    weights = decode_tree(data, path=path)
    if not weights:
        raise CorruptWeights(f"{path} is not a file of weights: it has no state dictionary")
    for name, tensor in weights.items():
        if not isinstance(name, str) or not isinstance(tensor, Tensor):
            raise CorruptWeights(
                f"{path} is not a file of weights: {name!r} is not a tensor; write model.state_dict() alone"
            )
        if not torch.isfinite(tensor).all():
            raise CorruptWeights(f"{path} is damaged: the weights {name} are not all finite")
    return weights
