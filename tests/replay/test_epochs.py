"""An epoch over files has every position once, in an order that depends only on the seed."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from keima.base.files import write_atomically
from keima.data.imports.game_files import file_size, find_game_files, read_game_file
from keima.data.records import encode_batch
from keima.games import load_game
from keima.learning.feed import EpochFeed
from keima.replay.epochs import Epochs, PlannedBatch
from keima.replay.window import ALL_ROWS, Batch
from tests.small_networks import CONNECT_FOUR, TIC_TAC_TOE
from tests.synthetic import synthetic_batch


@pytest.fixture
def data(tmp_path: Path) -> Path:
    for seed in range(4):
        batch = synthetic_batch(CONNECT_FOUR, games=5, seed=seed, full_share=0.7)
        write_atomically(tmp_path / f"batch{seed}.games", encode_batch(batch))
    return tmp_path


def epochs(data: Path) -> Epochs:
    files = [(path, file_size(path)) for path in find_game_files(data)]
    return Epochs(game=CONNECT_FOUR, files=files, seed=1, batch_size=32, shuffle_positions=150)


def made(planned: Iterator[PlannedBatch]) -> NDArray[np.float32]:
    """Return the observations of batches, one after another."""
    return np.concatenate([batch.make_batch(ALL_ROWS).observations for batch in planned])


def test_every_position_with_a_full_search_occurs_once(data: Path) -> None:
    batches = list(epochs(data).batches(0))
    seen: dict[int, list[int]] = {}
    windows = {}
    for batch in batches:
        for piece in batch.pieces:
            windows[id(piece.window)] = piece.window
            seen.setdefault(id(piece.window), []).extend(piece.positions.tolist())
    assert len(windows) > 1
    assert all(sorted(seen[key]) == window.to_learn_from().tolist() for key, window in windows.items())
    searched = sum(
        int(np.count_nonzero(chunk.games.flags))
        for path in find_game_files(data)
        for chunk in read_game_file(path, CONNECT_FOUR)
        if chunk.games
    )
    assert sum(batch.num_positions for batch in batches) == searched
    assert all(16 <= batch.num_positions <= 32 for batch in batches) and all(
        batch.num_positions == 32 for batch in batches[:-2]
    )


def test_the_finished_share_rises_to_one(data: Path) -> None:
    shares = [batch.completed_share for batch in epochs(data).batches(0)]
    assert shares == sorted(shares) and shares[0] < 0.3 and shares[-1] == 1


def test_the_shares_of_the_ranks_make_up_the_batch(data: Path) -> None:
    for planned in epochs(data).batches(0):
        whole = planned.make_batch(ALL_ROWS)
        for rank in range(3):
            share = planned.make_batch(slice(rank, None, 3))
            for name, array in vars(share).items():
                np.testing.assert_array_equal(array, getattr(whole, name)[rank::3])  # unknown values are not numbers


def test_a_seed_gives_the_same_epoch_again_and_other_epochs_another_order(data: Path) -> None:
    first, again, second = (made(epochs(data).batches(epoch)) for epoch in (0, 0, 1))
    assert np.array_equal(first, again)
    assert first.shape == second.shape and not np.array_equal(first, second)


@pytest.mark.parametrize("batches", [1, 5])
def test_an_epoch_continues_where_it_was_left(data: Path, batches: int) -> None:
    whole = list(epochs(data).batches(0))
    done = sum(batch.num_positions for batch in whole[:batches])
    rest = list(epochs(data).batches(0, done=done))
    assert [batch.num_positions for batch in rest] == [batch.num_positions for batch in whole[batches:]]
    assert np.array_equal(made(iter(rest)), made(iter(whole[batches:])))


@pytest.mark.filterwarnings("ignore:This DataLoader will create 2 worker processes")  # with one core
@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_feed_gives_the_share_of_its_rank_in_order(data: Path, num_workers: int) -> None:
    rows = slice(1, None, 2)
    feed = EpochFeed(epochs(data), rows=rows, num_workers=num_workers)
    found: list[Batch] = [feed.sample(ready.total, 0, rows=rows) for ready in feed.batches(0)]
    wanted = [planned.make_batch(rows) for planned in epochs(data).batches(0)]
    assert len(found) == len(wanted)
    assert all(np.array_equal(a.observations, b.observations) for a, b in zip(found, wanted, strict=True))


def left_out(data: Path) -> list[str]:
    return [line for planned in epochs(data).batches(0) for line in planned.bad]


def test_a_damaged_file_is_left_out_and_named(data: Path) -> None:
    (data / "batch1.games").write_bytes(
        b"KEIMAGB\n and nothing else that could be a batch of games, for it ends too early"
    )
    (line,) = left_out(data)
    assert "batch1.games" in line


def test_a_bad_game_is_left_out_with_its_place_and_the_others_stay(data: Path) -> None:
    batch = synthetic_batch(CONNECT_FOUR, games=5, seed=9)
    returns = batch.returns.copy()
    returns[2] = np.where(returns[2] == 1, -1, 1)
    write_atomically(data / "batch1.games", encode_batch(replace(batch, returns=returns)))
    (chunk,) = read_game_file(data / "batch1.games", CONNECT_FOUR)
    assert chunk.games is not None and chunk.games.num_games == 4
    assert np.array_equal(np.delete(batch.lengths, 2), chunk.games.lengths)
    assert len(chunk.bad) == 1 and "game 3 of 5" in chunk.bad[0] and "returns" in chunk.bad[0]


def test_games_of_another_game_are_left_out(data: Path) -> None:
    write_atomically(data / "batch1.games", encode_batch(synthetic_batch(TIC_TAC_TOE)))
    (line,) = left_out(data)
    assert "batch1.games" in line and "tic_tac_toe" in line


PGN = """\
[Event "good"]
[Result "1-0"]

1. e4 e5 2. Bc4 Nc6 3. Qh5 Nf6 4. Qxf7# 1-0

[Event "bad"]
[Result "0-1"]

1. e4 e4 0-1

[Event "no result"]

1. d4 d5 *

[Event "good"]
[Result "1/2-1/2"]

1. d4 d5 1/2-1/2
"""


def test_human_games_are_learned_from_and_bad_ones_reported_with_their_line(tmp_path: Path) -> None:
    (tmp_path / "games.pgn").write_text(PGN)
    files = [(path, file_size(path)) for path in find_game_files(tmp_path)]
    chess = load_game("chess")
    (planned,) = Epochs(game=chess, files=files, batch_size=16, seed=1).batches(0)
    batch = planned.make_batch(ALL_ROWS)
    assert planned.num_positions == 9 and planned.completed_share == 1
    assert (batch.policies.sum(1) == 1).all() and (batch.policies[~batch.legal] == 0).all()
    assert (
        sorted(batch.values.tolist()) == [-1] * 3 + [0] * 2 + [1] * 4
    )  # the winner has moved four times, the loser three
    assert [line.split(": ")[1] for line in planned.bad] == ["line 9", "line 11"]


SGF = """\
(;SZ[5]KM[2.5]RE[B+R];B[cc];W[bb];B[dd])
(;SZ[9]KM[2.5]RE[B+R];B[cc];W[bb])
(;SZ[5]KM[2.5]RE[W+R];B[cc];W[bb])
"""


def test_go_games_come_from_sgf_files(tmp_path: Path) -> None:
    (tmp_path / "games.SGF").write_text(SGF)
    files = [(path, file_size(path)) for path in find_game_files(tmp_path)]
    (planned,) = Epochs(game=load_game("go", size=5, komi=2.5), files=files, batch_size=16, seed=1).batches(0)
    assert planned.num_positions == 5 and planned.completed_share == 1
    assert sorted(planned.make_batch(ALL_ROWS).values.tolist()) == [-1] * 2 + [1] * 3
    assert planned.bad == (f"{tmp_path / 'games.SGF'}: line 2: its board is 9 x 9, and not 5 x 5",)


def test_folders_without_games_are_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"has no files \*.games, \*.pgn"):
        find_game_files(tmp_path)
    with pytest.raises(ValueError, match="does not exist"):
        find_game_files(tmp_path / "nowhere")


def test_a_run_provides_its_games(data: Path) -> None:
    run = data / "run"
    (run / "games").mkdir(parents=True)
    (run / "quarantine").mkdir()
    (data / "batch0.games").rename(run / "games" / "batch0.games")
    (data / "batch1.games").rename(run / "quarantine" / "batch1.games")
    (run / "run.db").touch()
    assert find_game_files(run) == [run / "games" / "batch0.games"]
