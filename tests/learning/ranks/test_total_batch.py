"""However a batch is cut, every row occurs once."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keima.learning.ranks.total_batch import (
    PartRows,
    group_bounds,
    halve_micro_batch,
    largest_part_rows,
    split_into_parts,
)

SIZES = st.fixed_dictionaries(
    {"norm_batch": st.none() | st.integers(8, 64), "micro_batch": st.none() | st.integers(1, 64)}
)


@given(total=st.integers(8, 300), world_size=st.integers(1, 4), sizes=SIZES)
def test_every_row_is_in_one_part_of_one_rank_and_in_one_group(
    total: int, world_size: int, sizes: dict[str, int | None]
) -> None:
    ranks = [split_into_parts(total, rank=rank, world_size=world_size, **sizes) for rank in range(world_size)]
    bounds = group_bounds(total, sizes["norm_batch"])
    assert len({len(parts) for parts in ranks}) == 1
    found: list[int] = []
    for rank, parts in enumerate(ranks):
        share = list(range(rank, total, world_size))
        assert sum(part.count for part in parts) == len(share)
        group = 0
        for part in parts:
            taken = share[part.rows]
            assert len(taken) == part.count
            for size, whole in zip(part.sizes, part.totals, strict=True):
                own, taken = taken[:size], taken[size:]
                assert (
                    all(bounds[group] <= row < bounds[group + 1] for row in own)
                    and whole == bounds[group + 1] - bounds[group]
                )
                found += own
                group += 1
    assert sorted(found) == list(range(total))


@given(total=st.integers(8, 300), world_size=st.integers(1, 4), sizes=SIZES)
def test_no_part_is_larger_than_allowed_unless_one_group_is(
    total: int, world_size: int, sizes: dict[str, int | None]
) -> None:
    largest = largest_part_rows(total, world_size=world_size, **sizes)
    parts = [
        part
        for rank in range(world_size)
        for part in split_into_parts(total, rank=rank, world_size=world_size, **sizes)
    ]
    assert max(part.count for part in parts) == largest
    if sizes["micro_batch"] is not None:
        assert all(part.count <= sizes["micro_batch"] or len(part.sizes) == 1 for part in parts)


def test_groups_are_of_equal_size_give_or_take_a_row() -> None:
    assert group_bounds(2000, 256) == [0, 250, 500, 750, 1000, 1250, 1500, 1750, 2000]
    assert group_bounds(10, 4) == [0, 3, 6, 10]
    assert group_bounds(10, None) == [0, 10]


def test_halving_ends_with_one_group_at_once() -> None:
    sizes = {"norm_batch": 256, "world_size": 2}
    steps = [1024]
    while (smaller := halve_micro_batch(2048, micro_batch=steps[-1], **sizes)) is not None:
        steps.append(smaller)
    assert steps == [1024, 512, 256, 128]
    assert halve_micro_batch(2048, norm_batch=None, micro_batch=None, world_size=1) is None


def test_without_ranks_one_part_has_all_rows() -> None:
    assert split_into_parts(10) == [PartRows(slice(0, 10), (10,), (10,))]


def test_groups_too_small_for_the_ranks_are_refused() -> None:
    assert [part.sizes for part in split_into_parts(10, norm_batch=4, world_size=3)] == [(1, 1, 2)]
    with pytest.raises(ValueError, match="4 ranks cannot share 3 positions"):
        split_into_parts(10, norm_batch=4, world_size=4)
    with pytest.raises(ValueError, match="8 ranks cannot share 4 positions"):
        split_into_parts(64, norm_batch=4, world_size=8)
