"""Solve sparse symmetric positive definite systems of a few thousand unknowns, for ratings; NumPy only has dense
solvers.
"""

import heapq
from collections.abc import Iterable, Mapping, Sequence

Matrix = dict[str, dict[str, float]]  # rows by name; missing entries are 0


def find_elimination_order(neighbours: Mapping[str, Iterable[str]]) -> list[str]:
    """Return an order of elimination that keeps factors sparse: smallest degree first (Tinney & Walker 1967)."""
    graph = {name: set(others) for name, others in neighbours.items()}
    waiting = [(len(others), name) for name, others in graph.items()]
    heapq.heapify(waiting)
    order = []
    while waiting:
        degree, name = heapq.heappop(waiting)
        if name not in graph or degree != len(graph[name]):
            continue  # its degree has changed since
        order.append(name)
        others = graph.pop(name)
        for other in others:
            graph[other] |= others
            graph[other] -= {name, other}
            heapq.heappush(waiting, (len(graph[other]), other))
    return order


class SparseFactors:
    """The factors of ``matrix`` = L D L^T, with the unknowns eliminated in ``order``; other columns are ignored."""

    def __init__(self, matrix: Matrix, order: Sequence[str]) -> None:
        self._pivots: dict[str, float] = {}
        self._columns: dict[str, dict[str, float]] = {}  # of L below the diagonal, in the order of elimination
        left = {name: {other: value for other, value in matrix[name].items() if other in matrix} for name in order}
        for name in order:
            row = left.pop(name)
            pivot = row.pop(name)
            column = {other: value / pivot for other, value in row.items()}
            for other, factor in column.items():
                below = left[other]
                del below[name]
                for third, value in row.items():
                    below[third] = below.get(third, 0.0) - factor * value
            self._pivots[name], self._columns[name] = pivot, column

    @property
    def num_entries(self) -> int:
        """The number of nonzero entries in the factors, which determines the cost of solving."""
        return len(self._pivots) + sum(map(len, self._columns.values()))

    def solve(self, right: Mapping[str, float]) -> dict[str, float]:
        """Return the x for which ``matrix`` x = ``right``."""
        x = dict(right)
        for name, column in self._columns.items():
            for other, factor in column.items():
                x[other] -= factor * x[name]
        for name, column in reversed(self._columns.items()):
            x[name] = x[name] / self._pivots[name] - sum(factor * x[other] for other, factor in column.items())
        return x

    def inverse_diagonal(self) -> dict[str, float]:
        """Return the diagonal of the inverse (Takahashi, Fagan & Chin, 1973: only entries where the factors have some
        are needed).
        """
        inverse: Matrix = {}
        for name, column in reversed(self._columns.items()):
            row = {other: -sum(factor * inverse[third][other] for third, factor in column.items()) for other in column}
            for other, value in row.items():
                inverse[other][name] = value
            row[name] = 1 / self._pivots[name] - sum(factor * row[other] for other, factor in column.items())
            inverse[name] = row
        return {name: row[name] for name, row in inverse.items()}
