"""Whatever a machine, a disk or a user sends, its reader refuses it in the documented way; tests/fuzz.py tries as often as one likes."""

import json
from contextlib import suppress

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzz import MEMORY_BOUND, Tally, judge
from tests.fuzzed import DECODERS


@pytest.mark.parametrize("name", DECODERS)
def test_what_was_not_spoilt_is_let_in(name: str) -> None:
    for base in DECODERS[name].bases:
        DECODERS[name].read(base)


@pytest.mark.parametrize("name", DECODERS)
@given(seed=st.integers(0, 2**32))
@settings(max_examples=60)
def test_what_is_spoilt_is_refused_in_the_documented_way(name: str, seed: int) -> None:
    tally = Tally()
    judge(DECODERS[name], np.random.default_rng(seed), tally)
    assert not tally.crashes
    assert tally.grown < MEMORY_BOUND


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=12,
)


@pytest.mark.parametrize("name", ["worker.json", "assignment", "match", "machine", "config", "stats"])
@given(value=JSON, data=st.data())
@settings(max_examples=40)
def test_any_json_in_any_place_of_a_message_is_read_or_refused(name: str, value: object, data: st.DataObject) -> None:
    decoder = DECODERS[name]
    message = yaml.safe_load(data.draw(st.sampled_from(decoder.bases)))
    inside = message[0] if isinstance(message, list) else message
    inside[data.draw(st.sampled_from(sorted(inside)))] = value
    with suppress(*decoder.errors):
        decoder.read(json.dumps(message).encode("utf-8", "surrogatepass"))
