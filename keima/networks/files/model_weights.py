"""A network's weights as the words of a transfer file (``model_content``), and back.

Matrices and kernels have 16 bits; one-dimensional tensors, such as batch norm's, keep 32.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from keima.networks.files.model_content import (
    LIMITS,
    WORD_TYPES,
    Entries,
    TensorEntry,
    WordRows,
    count_words,
    iterate_tensors,
    require_valid,
)

NUMBER_TYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32, "int64": torch.int64}


def make_tensor_entry(name: str, tensor: Tensor, dtype: Literal["bfloat16", "float16"]) -> TensorEntry:
    """How a tensor is transferred. Whole numbers and one-dimensional tensors are few, and keep all their bits."""
    if not tensor.is_floating_point():
        return TensorEntry(name=name, shape=tuple(tensor.shape), dtype="int64")
    return TensorEntry(name=name, shape=tuple(tensor.shape), dtype=dtype if tensor.ndim > 1 else "float32")


def encode_weights(weights: Mapping[str, Tensor], entries: Entries) -> WordRows:
    """All weights, rounded if necessary.

    Tensor by tensor, so that intermediate results stay in the processor's caches.
    """
    counts = count_words(entries, LIMITS)
    words = tuple(np.empty(count, kind) for count, kind in zip(counts, WORD_TYPES.values(), strict=True))
    with use_one_thread():
        for entry, part in iterate_tensors(words, entries):
            values = weights[entry.name].detach().cpu().to(NUMBER_TYPES[entry.dtype]).contiguous().flatten()
            part[:] = values.view(torch.uint8).numpy().view(part.dtype)
    return words


def decode_weights(words: WordRows, entries: Entries) -> dict[str, Tensor]:
    """The tensors, in float32 (or int64). They share one block of memory: numpy uses large pages, which is much faster.

    Raises:
        CorruptModel: a tensor has numbers that are not finite.
    """
    row = torch.from_numpy(np.empty(sum(part.size for part in words), np.float32))
    start, weights = 0, dict[str, Tensor]()
    with use_one_thread():
        for entry, part in iterate_tensors(words, entries):
            number = NUMBER_TYPES[entry.dtype]
            values = torch.from_numpy(part.view(np.uint8)).view(number)
            if number.is_floating_point:
                # One pass: infinities are extremes, and NaN makes both extremes NaN.
                finite = torch.stack(values.aminmax()).isfinite().all()
                require_valid(finite, f"tensor {entry.name} has infinite or undefined numbers")
                values = row[start : start + len(values)].copy_(values)
                start += len(values)
            weights[entry.name] = values.reshape(entry.shape)
    return {entry.name: weights[entry.name] for entry in entries}


@contextmanager
def use_one_thread() -> Iterator[None]:
    """Within the block, torch uses one thread: with more, each of many small operations waits for all threads, which
    takes long when other programs keep cores busy.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
