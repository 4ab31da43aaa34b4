"""The format of a model's transfer file."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keima.games import load_game
from keima.networks.files.container import CorruptModel, ModelLimits, decode_content, encode_content
from keima.networks.files.heading import stored_sha256
from keima.networks.files.model import (
    decode_model,
    encode_model,
)
from tests.networks.files.forged_files import DATA, HEADER, PLANES, forged, join, model, split
from tests.small_networks import CONNECT_FOUR


def test_a_model_that_says_how_far_its_searches_had_grown_is_read() -> None:
    header, planes = split(DATA)
    header["model"]["simulations"] = 200
    assert decode_model(join(header, planes)).description == model().description


@pytest.mark.medium
@given(at=st.integers(0, len(DATA) - 1), bit=st.integers(0, 7))
def test_one_wrong_bit_anywhere_is_detected_or_changes_nothing(at: int, bit: int) -> None:
    data = bytearray(DATA)
    data[at] ^= 1 << bit
    try:
        content = decode_content(bytes(data))
    except CorruptModel:
        return
    assert encode_content(content) == DATA  # a bit that zstd does not use


@given(length=st.integers(0, len(DATA) - 1))
def test_a_truncated_file_is_detected(length: int) -> None:
    with pytest.raises(CorruptModel):
        decode_model(DATA[:length])


def header_with(index: int, **changes: Any) -> bytes:
    """Return a file with one tensor's entry changed."""
    header, planes = split(DATA)
    header["tensors"][index] |= changes
    return join(header, planes)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (join(HEADER, PLANES, magic=b"KEIMAGB\n"), "does not begin like a model"),
        (join(HEADER, PLANES, form=3), "it has format 3, and this program reads format 2: update this program"),
        (join(b"{", PLANES), "the header is wrong"),
        (join(b"[" * 100_000, PLANES), "the header is wrong"),
        (join(HEADER, PLANES, extra=b"more"), "cannot be unpacked"),
        (join(HEADER, PLANES[:-1]), "declares"),
        (join(HEADER | {"surprise": 1}, PLANES), "surprise"),
        (forged(tensors=HEADER["tensors"] + HEADER["tensors"][:1]), "two tensors have the same name"),
        (forged(tensors=[]), "declares 0 bytes"),
        (forged(canary={"values": ["1"], "policy_logits": []}), "canary.values"),
        (forged(model=HEADER["model"] | {"model_version": -1}), "model.model_version"),
        (forged(model=HEADER["model"] | {"network": {"blocks": 10**9}}), "model.network.blocks"),
        (header_with(0, shape=[2**31, 2**31]), "are more than"),
        (header_with(0, shape=[-1]), r"tensors\.0\.shape"),
        (header_with(0, dtype="object"), r"tensors\.0\.dtype"),
        (header_with(0, dtype="float32"), "declares"),
    ],
)
def test_a_forged_file_is_refused_with_the_reason(data: bytes, reason: str) -> None:
    with pytest.raises(CorruptModel, match=reason):
        decode_model(data)


def test_a_small_file_does_not_unpack_to_a_large_one() -> None:
    header = HEADER | {"tensors": [{"name": "zeros", "shape": [2**29], "dtype": "float32"}]}
    with pytest.raises(CorruptModel, match="are more than"):
        decode_model(join(header, b""))


def test_limits_hold() -> None:
    with pytest.raises(CorruptModel, match="more than the 100 allowed"):
        decode_model(DATA, limits=ModelLimits(max_bytes=100))
    with pytest.raises(CorruptModel, match="a header of"):
        decode_model(DATA, limits=ModelLimits(max_header_bytes=100))


def test_the_same_weights_have_the_same_name_however_they_are_compressed() -> None:
    stored = encode_model(model(), CONNECT_FOUR, compressed=False)
    assert stored_sha256(stored) == stored_sha256(DATA) and len(stored) > max(len(DATA), len(PLANES))
    assert encode_content(decode_content(stored)) == DATA


def test_other_weights_or_another_header_have_another_name() -> None:
    names = {stored_sha256(encode_model(each, CONNECT_FOUR)) for each in (model(), model(version=8), model(shift=0.05))}
    assert len(names) == 3


def test_a_model_that_names_no_planes_is_of_before_there_was_a_choice() -> None:
    game = load_game("connect_four", planes="threats")
    header, planes = split(encode_model(model(game), game))
    header["model"]["options"] = {}
    older = decode_model(join(header, planes))
    assert older.description.options == {"planes": "threats"}
    older.build(game)
