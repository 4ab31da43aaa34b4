"""Whatever a machine, a disk or a user sends, its reader refuses it in the documented way; tools/fuzz.py tries as often
as you like.
"""

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzzed import DECODERS
from tests.programs import printed
from tools import fuzz
from tools.fuzz import Tally, judge


@pytest.mark.parametrize("name", DECODERS)
def test_undamaged_input_is_accepted(name: str) -> None:
    for base in DECODERS[name].bases:
        DECODERS[name].read(base)


@pytest.mark.medium
@pytest.mark.parametrize("name", DECODERS)
@given(seed=st.integers(0, 2**32))
@settings(max_examples=60)
def test_damaged_input_is_refused_in_the_documented_way(name: str, seed: int) -> None:
    decoder, random, tally = DECODERS[name], np.random.default_rng(seed), Tally()
    judge(name, decoder.change(random, decoder.bases[random.integers(len(decoder.bases))]), tally)
    assert [reason for reason in tally.reasons if "processor time" not in reason] == []  # the first call may compile


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=12,
)


@pytest.mark.medium
@pytest.mark.parametrize("name", ["worker.json", "assignment", "match", "machine", "poll", "config", "stats"])
@given(value=JSON, data=st.data())
@settings(max_examples=40)
def test_any_json_in_any_place_of_a_message_is_read_or_refused(name: str, value: object, data: st.DataObject) -> None:
    decoder = DECODERS[name]
    message = yaml.safe_load(data.draw(st.sampled_from(decoder.bases)))
    inside = message[0] if isinstance(message, list) else message
    inside[data.draw(st.sampled_from(sorted(inside)))] = value
    with suppress(*decoder.errors):
        decoder.read(json.dumps(message).encode("utf-8", "surrogatepass"))


def fails(data: bytes) -> object:
    raise KeyError("nobody expects this")


def goes_on(data: bytes) -> object:
    while True:
        pass


@pytest.mark.parametrize(("read", "reason"), [(fails, "KeyError"), (goes_on, "Hangs")])
def test_a_broken_promise_is_found_and_its_input_is_kept(
    read: Callable[[bytes], object], reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(DECODERS, "sgf", replace(DECODERS["sgf"], read=read))
    monkeypatch.setattr(fuzz, "KEPT", tmp_path)
    monkeypatch.setattr(fuzz, "HANGS", 0.05)
    tally = Tally()
    judge("sgf", b"(;)", tally)
    (kept,) = tmp_path.iterdir()
    assert tally.broken == 1 and reason in tally.reasons[0] and str(kept) in tally.reasons[0]
    assert kept.read_bytes() == b"(;)"


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif(
    find_spec("atheris") is None, reason="atheris is not installed: it has packages for Linux and Python 3.11 to 3.13"
)
def test_a_guided_search_reaches_new_code_and_breaks_no_promise() -> None:
    tallies = json.loads(
        printed("tools/fuzz.py", "--guided", "--inputs", 1000, "--json", "--only", "sgf", "batch", seconds=880)
    )
    assert [tally["inputs"] for tally in tallies.values()] == [1000, 1000]
    assert all(tally["led_on"] > 10 for tally in tallies.values())
