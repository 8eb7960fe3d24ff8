"""Slow, plain implementations that the package is checked against."""

from collections import defaultdict
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import coo_array

Probs = Sequence[Fraction]


def residual_by_hand(fill: str, residual: Probs, draft: Probs, token: int) -> list[Fraction]:
    """ResiSpec's residual with budget "minimal", one token at a time, from the published steps."""
    budget = draft[token] - residual[token]
    others = [x for x in range(len(draft)) if x != token]
    kept = [Fraction(0)] * len(draft)
    for x in others:
        kept[x] = min(budget * draft[x], residual[x])
    if fill == "index":
        for x in others:
            kept[x] += min(residual[x] - kept[x], budget - sum(kept))
    elif fill == "capacity":
        deficit, room = budget - sum(kept), sum(residual[x] - kept[x] for x in others)
        if deficit > 0:
            kept = [
                k + deficit * (residual[x] - k) / room if x != token else k
                for x, k in enumerate(kept)
            ]
    else:
        kept = water_by_hand(residual, draft, others, budget)
    return [k / budget for k in kept]


def water_by_hand(
    residual: Probs, draft: Probs, others: list[int], budget: Fraction
) -> list[Fraction]:
    """Raise the level through every ratio at which a token fills up, until the budget is held."""
    drafted = [x for x in others if draft[x] > 0]
    ratios = sorted({residual[x] / draft[x] for x in drafted})
    low = Fraction(0)
    for high in ratios:
        held = sum(min(high * draft[x], residual[x]) for x in drafted)
        if held >= budget:
            rising = sum(draft[x] for x in drafted if residual[x] >= high * draft[x])
            full = sum(residual[x] for x in drafted if residual[x] < high * draft[x])
            level = (budget - full) / rising
            assert low <= level <= high
            return [
                min(level * draft[x], residual[x]) if x in drafted else Fraction(0)
                for x in range(len(draft))
            ]
        low = high
    kept = [residual[x] if x in drafted else Fraction(0) for x in range(len(draft))]
    outside = [x for x in others if draft[x] == 0]
    rest, room = budget - sum(kept), sum((residual[x] for x in outside), Fraction(0))
    for x in outside:
        if rest > 0:
            kept[x] = rest * residual[x] / room
    return kept


def sibling_sets(
    draft: Probs, n_siblings: int, replacement: bool
) -> dict[frozenset[int], Fraction]:
    """The probability of every set of distinct siblings."""
    reached = {frozenset[int](): Fraction(1)}
    for _ in range(n_siblings):
        grown: defaultdict[frozenset[int], Fraction] = defaultdict(Fraction)
        for drawn, weight in reached.items():
            left = sum((q for x, q in enumerate(draft) if x not in drawn), Fraction(0))
            if not replacement and left == 0:
                grown[drawn] += weight
                continue
            for x, q in enumerate(draft):
                if q > 0 and replacement:
                    grown[drawn | {x}] += weight * q
                elif q > 0 and x not in drawn:
                    grown[drawn | {x}] += weight * q / left
        reached = dict(grown)
    return reached


def transport_optimum(
    target: Probs, draft: Probs, n_siblings: int, replacement: bool = True
) -> float:
    """Largest acceptance of an exact rule for siblings drawn from the draft."""
    return transport_of_sets(sibling_sets(draft, n_siblings, replacement), target)


def transport_of_sets(sets: dict[frozenset[int], Fraction], target: Probs) -> float:
    """The same for any law of sibling sets: each is moved onto its members, by an LP."""
    # one variable per (set, member): rows say a set gives no more than its mass, a token takes no
    # more than the target's
    rows, columns = [], []
    for set_idx, members in enumerate(sets):
        for x in members:
            column = len(rows) // 2
            rows += [set_idx, len(sets) + x]
            columns += [column, column]
    n_variables = len(rows) // 2
    limits = np.array([float(mass) for mass in [*sets.values(), *target]])
    matrix = coo_array((np.ones(len(rows)), (rows, columns)), shape=(len(limits), n_variables))
    result = linprog(-np.ones(n_variables), A_ub=matrix.tocsr(), b_ub=limits, method="highs")
    assert result.status == 0, result.message
    return -result.fun
