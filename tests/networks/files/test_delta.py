"""One model as its difference from another."""

from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keima.networks.files.container import FORMAT, Content, CorruptModel, TensorEntry, decode_content, encode_content
from keima.networks.files.delta import DELTA_MAGIC, encode_delta, expand_delta
from keima.networks.files.heading import DIGEST_BYTES, MODEL_PREFIX
from tests.worker.test_model_push import EIGHT, SEVEN, network_file, pushed


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_delta_and_its_base_make_exactly_the_model_in_fewer_bytes(dtype: Literal["bfloat16", "float16"]) -> None:
    base, model = (network_file(version, dtype=dtype) for version in (7, 8))
    delta = encode_delta(decode_content(model.data), decode_content(base.data))
    assert delta is not None and len(delta) < 0.75 * len(model.data)
    assert encode_content(expand_delta(delta, decode_content(base.data))) == model.data


def arbitrary(seed: int, dtype: Literal["bfloat16", "float16"]) -> Content:
    """Return contents whose weights are arbitrary words, with some of the other types."""
    rng = np.random.default_rng(seed)
    numbers, none = rng.permutation(2**16).astype(np.uint16), np.empty(0, np.uint16)
    halves = (numbers, none) if dtype == "bfloat16" else (none, numbers)
    words = (*halves, rng.integers(0, 2**32, 9, dtype=np.uint32), rng.integers(0, 2**63, 1).astype(np.uint64))
    kinds: tuple[Any, ...] = ("bfloat16", "float16", "float32", "int64")
    entries = [
        TensorEntry(name=kind, shape=(row.size,), dtype=kind)
        for kind, row in zip(kinds, words, strict=True)
        if row.size
    ]
    header = decode_content(SEVEN.data).header.model_copy(update={"tensors": tuple(entries)})
    return Content(raw_header=header.model_dump_json().encode(), header=header, words=words)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_any_model_can_become_any_other(dtype: Literal["bfloat16", "float16"]) -> None:
    base, model = arbitrary(1, dtype), arbitrary(2, dtype)
    delta = encode_delta(model, base)
    assert delta is not None
    expanded = expand_delta(delta, base)
    assert expanded.sha256 == model.sha256 and expanded.raw_header == model.raw_header
    assert all(np.array_equal(got, wanted) for got, wanted in zip(expanded.words, model.words, strict=True))


DELTA = pushed(EIGHT, SEVEN)[1]


BASE = decode_content(SEVEN.data)


@given(at=st.integers(0, len(DELTA) - 1), bit=st.integers(0, 7))
def test_one_wrong_bit_in_a_delta_is_detected_or_changes_nothing(at: int, bit: int) -> None:
    data = bytearray(DELTA)
    data[at] ^= 1 << bit
    try:
        content = expand_delta(bytes(data), BASE)
    except CorruptModel:
        return
    assert encode_content(content) == EIGHT.data


@given(length=st.integers(0, len(DELTA) - 1))
def test_a_truncated_delta_is_detected(length: int) -> None:
    with pytest.raises(CorruptModel):
        expand_delta(DELTA[:length], BASE)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (EIGHT.data, "does not begin like a delta"),
        (MODEL_PREFIX.pack(DELTA_MAGIC, FORMAT + 1, 0) + bytes(DIGEST_BYTES), "format 3.*: update this program"),
        (encode_delta(BASE, decode_content(network_file(7, seed=5).data)), "does not give the intended model"),
    ],
    ids=["a model", "a newer format", "another base"],
)
def test_a_file_that_is_not_a_delta_to_this_model_is_refused_with_the_reason(data: bytes, reason: str) -> None:
    with pytest.raises(CorruptModel, match=reason):
        expand_delta(data, BASE)
