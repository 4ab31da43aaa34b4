"""The functions that compile to a few instructions do the same as plain Python."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from keima.compilation.decorators import compiled
from keima.compilation.intrinsics import bit_count, byte_swap, lowest_bit, view_as
from keima.games import Game, load_game

ROOT = Path(__file__).resolve().parents[2]
# Plays games with captures and prints digests of everything that the kernels say.
PLAY = "from tests.games.test_intrinsics import digest_of_games; print(digest_of_games())"


@compiled
def copy_and_clear(array: NDArray[np.int64], first: int, length: int) -> NDArray[np.int16]:
    view = view_as(array, first, length, np.int16)
    copy = view.copy()
    view[:] = 0
    return copy


@compiled
def compiled_lowest_bit(mask: int) -> int:
    return lowest_bit(mask)


def test_fields_are_a_view_of_the_same_memory() -> None:
    for first, length in ((0, 12), (5, 3), (11, 1), (4, 0)):
        array = np.arange(1, 4, dtype=np.int64) * 0x0001_0002_0003_0004
        plain = array.copy()
        expected = view_as(plain, first, length, np.int16)
        assert np.array_equal(copy_and_clear(array, first, length), expected)
        expected[:] = 0
        assert np.array_equal(array, plain)


def test_fields_of_planes_are_flat() -> None:
    planes = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    assert view_as(planes, 12, 4, np.float32).tolist() == [12, 13, 14, 15]


def test_lowest_bit_is_the_number_of_the_lowest_set_bit() -> None:
    for bit in range(63):
        for mask in (1 << bit, (1 << 63) - (1 << bit)):
            assert lowest_bit(mask) == compiled_lowest_bit(mask) == bit


@compiled
def compiled_byte_swap(word: int) -> int:
    return byte_swap(word)


def test_byte_swap_reverses_the_bytes_of_a_word() -> None:
    for word in (0x0102030405060708, -2, -(2**63), 0x80, 0):
        expected = int.from_bytes(word.to_bytes(8, "little", signed=True), "big", signed=True)
        assert byte_swap(word) == compiled_byte_swap(word) == expected


@compiled
def compiled_bit_count(word: int) -> int:
    return bit_count(word)


def test_bit_count_counts_the_bits_of_a_word() -> None:
    for word in (0x0102030405060708, -1, -(2**63), 0):
        expected = bin(word & 2**64 - 1).count("1")
        assert bit_count(word) == compiled_bit_count(word) == expected


def digest_of_games() -> str:
    return digest_of_a_game(load_game("go", size=5, suicide=True)) + digest_of_a_game(load_game("chess", max_plies=60))


def digest_of_a_game(game: Game) -> str:
    random, digest, state = np.random.default_rng(1), hashlib.sha256(), game.initial_state()
    while not game.terminal(state):
        legal = game.legal_actions(state)
        for said in (state, legal, game.observe(state), np.array(game.hash(state)), game.returns(state)):
            digest.update(said.tobytes())
        game.play(state, int(random.choice(legal[:-1] if len(legal) > 1 else legal)))
    return digest.hexdigest()


@pytest.mark.medium
def test_games_are_the_same_without_compilation() -> None:
    environment = os.environ | {
        "NUMBA_DISABLE_JIT": "1",
        "PYTHONWARNINGS": "ignore",
    }  # numpy warns of products beyond 64 bits
    plain = subprocess.run(
        [sys.executable, "-c", PLAY], cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    )
    assert plain.stdout.strip() == digest_of_games()
