"""How the batch of one optimizer step is divided: into groups for batch norm, shares for the ranks, and parts that fit
the memory.

Row p of a total batch belongs to rank p mod W. Batch norm takes its statistics over *groups* of consecutive rows of the
total batch, over all ranks. So neither the number of ranks nor the size of their parts changes what is learned.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True)
class PartRows:
    """Whole groups that a rank computes at once."""

    rows: slice  # of the rank's share
    sizes: tuple[int, ...]  # this rank's rows in each group
    totals: tuple[int, ...]  # all ranks' rows in each group

    @property
    def count(self) -> int:
        """The number of this rank's rows."""
        return sum(self.sizes)


def split_into_parts(
    total: int, *, norm_batch: int | None = None, micro_batch: int | None = None, rank: int = 0, world_size: int = 1
) -> list[PartRows]:
    """Return the parts of one rank; every rank has the same number of parts, with the same groups.

    Args:
        total: rows of the batch.
        norm_batch: the most rows of a group; the sizes of a batch's groups differ by at most one. None: one group.
        micro_batch: rows that a rank computes at once, unless one group has more; None: all.

    Raises:
        ValueError: a group has fewer rows than there are ranks.
    """
    bounds = group_bounds(total, norm_batch)
    smallest = bounds[1]  # as their bounds are rounded down, the first group has the fewest rows
    if smallest < world_size:
        raise ValueError(
            f"{world_size} ranks cannot share {smallest} positions: batch norm needs at least one from each rank"
        )
    parts: list[PartRows] = []
    for first, last in _part_bounds(bounds, micro_batch, world_size):
        edges = [_rows_before(bound, rank, world_size) for bound in bounds[first : last + 1]]
        sizes = tuple(after - before for before, after in pairwise(edges))
        totals = tuple(after - before for before, after in pairwise(bounds[first : last + 1]))
        parts.append(PartRows(slice(edges[0], edges[-1]), sizes, totals))
    return parts


def group_bounds(total: int, norm_batch: int | None) -> list[int]:
    """Return the first row of each group of a batch, and the end of the last group."""
    groups = math.ceil(total / norm_batch) if norm_batch else 1
    return [total * group // groups for group in range(groups + 1)]


def largest_part_rows(total: int, *, norm_batch: int | None, micro_batch: int | None, world_size: int) -> int:
    """Return the most rows that any rank computes at once."""
    bounds = group_bounds(total, norm_batch)
    return max(
        _most_rows_per_rank(bounds[first], bounds[last], world_size)
        for first, last in _part_bounds(bounds, micro_batch, world_size)
    )


def halve_micro_batch(total: int, *, norm_batch: int | None, micro_batch: int | None, world_size: int) -> int | None:
    """Return about half of the rows that a rank computes at once; None if that is one indivisible group."""
    now = largest_part_rows(total, norm_batch=norm_batch, micro_batch=micro_batch, world_size=world_size)
    smaller = largest_part_rows(total, norm_batch=norm_batch, micro_batch=max(1, now // 2), world_size=world_size)
    return smaller if smaller < now else None


def _part_bounds(bounds: list[int], micro_batch: int | None, world_size: int) -> Iterator[tuple[int, int]]:
    """Yield the first and the last bound of each part."""
    first = 0
    for last in range(1, len(bounds)):
        full = (
            micro_batch is not None
            and last + 1 < len(bounds)
            and _most_rows_per_rank(bounds[first], bounds[last + 1], world_size) > micro_batch
        )
        if full or last + 1 == len(bounds):
            yield first, last
            first = last


def _most_rows_per_rank(begin: int, end: int, world_size: int) -> int:
    """Return the most of these rows that any rank has."""
    return max(
        _rows_before(end, rank, world_size) - _rows_before(begin, rank, world_size) for rank in range(world_size)
    )


def _rows_before(bound: int, rank: int, world_size: int) -> int:
    """Return how many of the rows before ``bound`` belong to ``rank``."""
    return (bound - rank - 1) // world_size + 1
