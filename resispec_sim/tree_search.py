"""The best draft tree for a node budget: Sequoia's dynamic programme on measured acceptance.

The model: sibling ``i`` of a node with ``k`` children is accepted with probability ``a[k][i]``,
wherever the node is. The expected accepted length is then the sum over nodes of the product of the
acceptances on the way from the root, the root itself counting 1 (the bonus token).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Real

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .checks import check_whole
from .engine.jit import njit
from .errors import InputError
from .growmaps import MAX_NODES, GrowMap
from .trees import MAX_BRANCHING, MAX_DEPTH

FloatArray = NDArray[np.float64]
Acceptance = ArrayLike | Mapping[int, ArrayLike]
"""``a[k]``, (k,): acceptance of the siblings of a node with k children, for every k that may occur; or
one vector (K,) where it does not depend on k."""


@dataclass(frozen=True)
class TreePlan:
    """The best tree under a budget.

    Attributes
    ----------
    growmap : GrowMap
        Numbered level by level.
    model_eal : float
        Its expected accepted length in the model, bonus token included.
    budget, depth, max_branching : int
        The limits: nodes and levels (the root counts in both), children per node.
    """

    growmap: GrowMap
    model_eal: float
    budget: int
    depth: int
    max_branching: int


def optimise_tree(
    acceptance: Acceptance,
    budget: int,
    depth: int = MAX_DEPTH,
    *,
    max_branching: int | None = None,
) -> TreePlan:
    """Find the tree with the largest model EAL, by dynamic programming.

    Of equally good trees it takes one with the fewest nodes; of these, from the root down, one with the
    fewest children and the smallest subtrees below the last siblings. The result is the same on every
    run.

    Parameters
    ----------
    acceptance : array_like (K,), or mapping of int to array_like
        Entry k holds the acceptance of siblings 1 to k of a node with k children. Counts that are
        missing do not occur in the tree. A vector serves all counts up to its length.
    budget : int
        Nodes at most, the root included.
    depth : int
        Levels at most, the root included: 1 to 64.
    max_branching : int, optional
        Children per node at most, up to 1,024; default: the largest count in `acceptance`.

    Returns
    -------
    TreePlan

    Raises
    ------
    InputError
        If a limit or an acceptance is out of its range.

    References
    ----------
    Chen et al., Sequoia, arXiv 2402.12374, section 3.1; there the acceptance depends on the sibling
    alone.

    Examples
    --------
    >>> plan = optimise_tree([0.6, 0.2], budget=4)
    >>> plan.growmap.children, round(plan.model_eal, 3)
    (((1,), (2,), (3,), ()), 2.176)
    >>> optimise_tree([0.6, 0.2], budget=4, depth=3).growmap.children
    ((1, 2), (3,), (), ())
    """
    return TreeSearch(acceptance, budget, depth, max_branching=max_branching).plan(budget)


def model_eal(growmap: GrowMap, acceptance: Acceptance) -> float:
    """Expected accepted length of a tree in the model, bonus token included.

    Raises
    ------
    InputError
        If the tree has a node with a number of children that `acceptance` lacks.

    Examples
    --------
    >>> round(model_eal(GrowMap([[1, 2], [3], [], []]), {1: [0.7], 2: [0.6, 0.2]}), 3)
    2.22
    """
    rows = _as_rows(acceptance, max(growmap.child_counts))
    value = np.ones(growmap.n_nodes)
    for nodes in reversed(growmap.levels):
        for node in nodes:
            below = growmap.children[node]
            if below and len(below) not in rows:
                raise InputError(
                    f"node {node} has {len(below)} children, but acceptance holds the counts "
                    f"{', '.join(map(str, rows)) or 'none'}"
                )
            if below:
                value[node] += rows[len(below)] @ value[list(below)]
    return float(value[0])


class TreeSearch:
    """The tables of the dynamic programme; one search answers every budget up to its own.

    Parameters are those of `optimise_tree`.

    Examples
    --------
    >>> search = TreeSearch([0.6, 0.2], budget=8)
    >>> [round(search.plan(n).model_eal, 3) for n in (1, 2, 8)]
    [1.0, 1.6, 2.746]
    """

    def __init__(
        self,
        acceptance: Acceptance,
        budget: int,
        depth: int = MAX_DEPTH,
        *,
        max_branching: int | None = None,
    ) -> None:
        self.budget, self.depth = check_limits(budget, depth)
        if max_branching is not None:
            check_branching(max_branching)
        limit = min(MAX_BRANCHING if max_branching is None else max_branching, self.budget)
        self._rows = _as_rows(acceptance, limit)
        self.max_branching = max_branching or max(_as_rows(acceptance, MAX_BRANCHING))
        # _values[l][m]: best subtree of exactly m nodes on at most l + 1 levels, -inf: none; levels
        # beyond the last are like it
        alone = np.full(self.budget + 1, -np.inf)
        alone[1] = 1.0
        self._values: list[FloatArray] = [alone]
        self._counts: list[NDArray[np.int64]] = [np.zeros(self.budget + 1, dtype=np.int64)]
        for _ in range(1, self.depth):
            values, counts = self._deepen(self._values[-1])
            self._values.append(values)
            self._counts.append(counts)
            if np.array_equal(values, self._values[-2]):
                break  # all further levels would be like this one

    def plan(self, budget: int) -> TreePlan:
        """Return the best tree of at most `budget` nodes, which must not exceed the search's own."""
        if check_whole("budget", budget, at_least=1) > self.budget:
            raise InputError(f"budget is {budget}: this search goes up to {self.budget} nodes")
        n_nodes = int(np.argmax(self._values[-1][: budget + 1]))
        growmap = self._grow(n_nodes)
        value = float(self._values[-1][n_nodes])
        return TreePlan(growmap, value, budget, self.depth, self.max_branching)

    def _deepen(self, below: FloatArray) -> tuple[FloatArray, NDArray[np.int64]]:
        """Best subtrees with one level more than `below`, and the root's number of children."""
        best = np.full(self.budget + 1, -np.inf)
        best[1] = 1.0
        counts = np.zeros(self.budget + 1, dtype=np.int64)
        shared = np.empty(0)
        split = _nothing(self.budget)
        for count, row in self._rows.items():
            # Where a count only appends to the one before, its splits go on from there.
            if not np.array_equal(row[: len(shared)], shared):
                shared, split = np.empty(0), _nothing(self.budget)
            for a in row[len(shared) :]:
                split, _ = _add_sibling(split, below, a)
            shared = row
            better = 1.0 + split[:-1] > best[1:]
            best[1:][better] = 1.0 + split[:-1][better]
            counts[1:][better] = count
        return best, counts

    def _grow(self, n_nodes: int) -> GrowMap:
        known: dict[tuple[int, int], list[int]] = {}
        level = self.depth - 1
        children: list[list[int]] = []
        sizes = [n_nodes]
        while sizes:
            next_sizes: list[int] = []
            first = len(children) + len(sizes)
            for size in sizes:
                if (level, size) not in known:
                    known[level, size] = self._subtree_sizes(level, size)
                below = known[level, size]
                children.append(list(range(first, first + len(below))))
                first += len(below)
                next_sizes += below
            sizes, level = next_sizes, level - 1
        return GrowMap(tuple(map(tuple, children)))

    def _subtree_sizes(self, level: int, size: int) -> list[int]:
        last = len(self._values) - 1
        count = int(self._counts[min(level, last)][size])
        if count == 0:
            return []
        below = self._values[min(level - 1, last)][: size + 1]
        split, chosen = _nothing(size), []
        for a in self._rows[count]:
            split, choice = _add_sibling(split, below, a)
            chosen.append(choice)
        sizes, left = [], size - 1
        for choice in reversed(chosen):
            sizes.append(int(choice[left]))
            left -= sizes[-1]
        return sizes[::-1]


def check_limits(budget: int, depth: int) -> tuple[int, int]:
    """The most nodes, 1 to 65,536, and levels, 1 to 64, of a tree (`InputError`)."""
    if check_whole("budget", budget, at_least=1) > MAX_NODES:
        raise InputError(f"budget is {budget}: it must be at most {MAX_NODES:,} nodes")
    if check_whole("depth", depth, at_least=1) > MAX_DEPTH:
        raise InputError(f"depth is {depth}: it must be at most {MAX_DEPTH} levels")
    return budget, depth


def search_seconds(budget: int, depth: int, max_branching: int, shared: bool) -> float:
    """Rough seconds of a search on one core, at 0.7 billion splits per second.

    Where `shared`, a row only appends to the one before; else every count is solved anew.
    """
    widest = min(max_branching, max(budget - 1, 1))
    siblings = widest if shared else widest * (widest + 1) / 2
    splits, below = 0.0, 1
    for _ in range(1, depth):
        splits += siblings * min(budget, below) * min(budget, widest * below) / 2
        below = min(budget, 1 + widest * below)
    return splits / 7e8


def check_branching(max_branching: int) -> int:
    """A largest number of children: 1 to 1,024 (`InputError`)."""
    if check_whole("max_branching", max_branching, at_least=1) > MAX_BRANCHING:
        raise InputError(f"max_branching is {max_branching}: it must be at most {MAX_BRANCHING:,}")
    return max_branching


def _nothing(budget: int) -> FloatArray:
    """Splits among no siblings: 0 nodes are worth 0, any other number cannot be placed."""
    split = np.full(budget + 1, -np.inf)
    split[0] = 0.0
    return split


# split[s]: best worth of s nodes below the siblings so far; below[m]: best subtree of m nodes
@njit
def _add_sibling(
    split: FloatArray, below: FloatArray, acceptance: float
) -> tuple[FloatArray, NDArray[np.int64]]:
    best = np.full(len(split), -np.inf)
    choice = np.zeros(len(split), np.int64)
    for used in range(len(split)):
        if split[used] == -np.inf:
            continue
        for size in range(1, len(split) - used):
            # 0 times -inf would be NaN
            if below[size] == -np.inf:
                continue
            worth = split[used] + acceptance * below[size]
            total = used + size
            # >=: `size` shrinks as `used` grows, and of equal splits the last sibling gets least
            if worth >= best[total]:
                best[total], choice[total] = worth, size
    return best, choice


def _as_rows(acceptance: Acceptance, limit: int) -> dict[int, FloatArray]:
    """Checked rows by number of children, ascending, up to `limit` children."""
    if isinstance(acceptance, Mapping):
        given = {
            check_whole("a number of children", k, at_least=1): _as_row(f"acceptance[{k!r}]", row)
            for k, row in acceptance.items()
        }
    else:
        vector = _as_row("acceptance", acceptance)
        if vector.ndim != 1:
            raise InputError(f"acceptance has shape {vector.shape}: give (K,), or a row per count")
        # No node has more children, and a row for every count takes K^2 / 2 checks.
        given = {k: vector[:k] for k in range(1, min(len(vector), MAX_BRANCHING) + 1)}
    if not given:
        raise InputError("acceptance is empty: give at least one sibling's")
    for count, row in given.items():
        if count > MAX_BRANCHING:
            raise InputError(
                f"acceptance holds a row of {count} children: at most {MAX_BRANCHING} per node"
            )
        if row.shape != (count,):
            raise InputError(
                f"acceptance of {count} children has shape {row.shape}, not ({count},)"
            )
        bad = ~((row >= 0) & (row <= 1))
        if bad.any():
            i = int(np.argmax(bad))
            raise InputError(
                f"acceptance of sibling {i + 1} of {count} is {row[i]}: it must lie in 0..1"
            )
        if row.sum() > 1 + 1e-9:
            raise InputError(
                f"acceptances of {count} siblings sum to {row.sum()}: give the mass that each "
                "accepts, which is not conditional on the rejections before it"
            )
    return {k: given[k] for k in sorted(given) if k <= limit}


def _as_row(name: str, value: ArrayLike) -> FloatArray:
    if isinstance(value, np.ma.MaskedArray) and np.ma.is_masked(value):
        raise InputError(f"{name} is a masked array with masked entries: fill them in")
    try:
        array = np.asarray(value)
    except (ValueError, TypeError) as error:
        raise InputError(f"{name} is not an array of numbers: {error}") from None
    if array.size == 0:
        return np.zeros(array.shape)
    if array.dtype == object and all(isinstance(x, Real) for x in array.flat):
        return array.astype(np.float64)  # fractions
    if array.dtype.kind not in "iuf":
        raise InputError(f"{name} has the type {array.dtype}: give an array of real numbers")
    return np.asarray(array, dtype=np.float64)
