"""Array code of the GPU engine: what can be said of many positions without a kernel.

Written against the array API standard; the namespace comes from the arrays. B = positions, V = tokens,
K = siblings.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from array_api_compat import array_namespace, device

from resispec_sim.engine.gpu.layout import (
    ACC,
    ACC_CNT,
    ACC_CW,
    ACC_POINT,
    ACC_ROWS,
    ACCEPTED,
    BASE,
    CNT,
    CW,
    FULL,
    FULL_W,
    N_DRAFTED,
    POINT,
    RHO,
    TAIL,
    P,
    Q,
)
from resispec_sim.engine.ratio_order import LARGEST_RATIO

Array = Any


class BatchSpace(NamedTuple):
    """Positions in ratio order: tokens sorted by ``rho = p / q``, with prefix sums.

    Attributes
    ----------
    table : array (B, N_TABLE, V + 1)
        rho, p, q (the last column unused), sums of p before and of q from an index on, each in two
        parts.
    sizes : array of int32 (B, 3)
        Tokens with rho = 0, with q > 0, and with rho < 1.
    order : array of int (B, V)
        Token id at each place.
    n_overflow : array (B,)
        Tokens with q > 0 whose ratio passes the float range, counted as never drafted.
    """

    table: Array
    sizes: Array
    order: Array
    n_overflow: Array


def prepare(target_probs: Array, draft_probs: Array) -> BatchSpace:
    """Sort each position by ``p / q`` and sum it up; both arrays are float64 (B, V)."""
    p, q = target_probs, draft_probs
    xp = array_namespace(p, q)
    zero, one, inf = (xp.asarray(v, dtype=xp.float64, device=device(p)) for v in (0.0, 1.0, np.inf))
    drawn = q > 0.0
    with np.errstate(over="ignore"):
        rho = xp.where(drawn, p / xp.where(drawn, q, one), inf)
        rho = xp.where(rho < LARGEST_RATIO, rho, inf)
    overflow = xp.isinf(rho) & drawn
    q = xp.where(xp.isinf(rho), zero, q)
    order = xp.argsort(rho, axis=1, stable=True)
    rho, p, q = (xp.take_along_axis(values, order, axis=1) for values in (rho, p, q))
    prefix, prefix_low = exact_sums(p)
    suffix, suffix_low = (xp.flip(sums, axis=1) for sums in exact_sums(xp.flip(q, axis=1)))
    pad = xp.zeros((p.shape[0], 1), dtype=xp.float64, device=device(p))
    padded = [xp.concat((values, pad), axis=1) for values in (rho, p, q)]
    table = xp.stack((*padded, prefix, prefix_low, suffix, suffix_low), axis=1)
    masks = (rho == 0.0, q > 0.0, rho < 1.0)
    sizes = xp.stack([count(mask) for mask in masks], axis=1)
    return BatchSpace(table, xp.astype(sizes, xp.int32), order, count(overflow))


def count(mask: Array) -> Array:
    """True entries of each row."""
    xp = array_namespace(mask)
    return xp.sum(xp.astype(mask, xp.int64), axis=1)


def exact_sums(values: Array) -> tuple[Array, Array]:
    """Running sums of numbers from 0 to 1 that add up to about 1, and their rounding, each (B, V + 1).

    Multiples of 2**-52 are summed apart from what is below: the former without any rounding, in
    whatever order a device adds them up.
    """
    xp = array_namespace(values)
    high = (values + 1.0) - 1.0
    parts = (high, values - high)
    above, below = (xp.cumulative_sum(part, axis=1, include_initial=True) for part in parts)
    sums = above + below
    return sums, (above - sums) + below


def first_weights(space: BatchSpace, budget: str) -> tuple[Array, Array, Array, Array]:
    """Weights after the first rejection (B, V) and their scales, and where the budget was too large.

    Returns ``(weight, scale, excess, n_cut)``: `excess` (B,) is the most by which a budget passes the
    mass that is left off its token, `n_cut` (B,) how many do so by more than rounding.
    """
    xp = array_namespace(space.table)
    p, q = space.table[:, P, :-1], space.table[:, Q, :-1]
    weight = q - p
    over = weight > 0.0
    zero, one = xp.zeros_like(weight), xp.ones_like(weight)
    weight = xp.where(over, weight, zero)
    none = xp.zeros_like(weight[:, 0])
    if budget == "minimal":
        return weight, one, none, none
    least = space.table[:, RHO, 0][:, None]
    room = 1.0 - p
    raised = xp.where(over, xp.maximum(weight, least), zero)
    beyond = xp.where(over, raised - room, zero - 1.0)
    raised = xp.where(over, xp.minimum(raised, room), zero)
    scale = xp.where(raised > 0.0, weight / xp.where(raised > 0.0, raised, one), zero)
    return raised, scale, xp.max(beyond, axis=1), count(beyond > 1e-12)


class BatchLaw(NamedTuple):
    """Results of a walk by token id. Attributes: see the arrays' comments."""

    law: Array  # (B, V)
    accepted: Array  # (B, K)
    accepted_total: Array  # (B, V)
    accepted_by_token: Array | None  # (B, K, V)
    error: Array  # (B,) the most by which a law or an acceptance misses its total


def sum_up(
    space: BatchSpace,
    sums: Array,
    totals: Array,
    n_siblings: int,
    *,
    by_token: bool,
    want_law: bool,
) -> BatchLaw:
    """Turn the kernels' sums into laws.

    ``M(y) = p_y (base + sum_{k > y} c - full_y) + q_y (sum_{k <= y} c w - full_w_y) - point_y`` for the
    residual of the last rejection, and the accepted mass in the same way.
    """
    xp = array_namespace(sums)
    p, q = space.table[:, P, :-1], space.table[:, Q, :-1]
    first = xp.minimum(p, q)
    rows = [first]
    for row in range(ACC, sums.shape[1], ACC_ROWS):
        above, below = _above(sums, row + ACC_CNT), _below(sums, row + ACC_CW)
        rows.append(p * above + q * below - _both(sums, row + ACC_POINT))
    accepted_total = sum(rows[1:], first)
    by_sibling = [xp.sum(first, axis=1)]
    by_sibling += [
        totals[:, ACCEPTED + 2 * i] + totals[:, ACCEPTED + 2 * i + 1] for i in range(1, n_siblings)
    ]
    accepted = xp.stack(by_sibling, axis=1)
    error = xp.abs(xp.sum(accepted_total, axis=1) - xp.sum(accepted, axis=1))
    law = accepted_total
    if want_law:
        law = law + _closed(space, sums, totals)
        error = xp.maximum(error, xp.abs(xp.sum(law, axis=1) - 1.0))
        error = xp.maximum(error, -xp.min(law, axis=1))
    zero = xp.zeros_like(law)
    law = xp.maximum(law, zero)
    back = xp.argsort(space.order, axis=1)
    tokens = None
    if by_token:
        kept = [xp.take_along_axis(xp.maximum(row, zero), back, axis=1) for row in rows]
        tokens = xp.stack(kept, axis=1)
    law, accepted_total = (xp.take_along_axis(row, back, axis=1) for row in (law, accepted_total))
    return BatchLaw(law, accepted, accepted_total, tokens, error)


def _closed(space: BatchSpace, sums: Array, totals: Array) -> Array:
    """Mass per token that is emitted after the last rejection, in ratio order."""
    xp = array_namespace(sums)
    p, q = space.table[:, P, :-1], space.table[:, Q, :-1]
    base = (totals[:, BASE] + totals[:, BASE + 1])[:, None]
    tail = (totals[:, TAIL] + totals[:, TAIL + 1])[:, None]
    places = xp.arange(p.shape[1], device=device(p))[None, :]
    never = places >= xp.astype(space.sizes[:, N_DRAFTED], places.dtype)[:, None]
    of_p = base + _above(sums, CNT, FULL) + xp.where(never, tail, xp.zeros_like(tail))
    return p * of_p + q * _below(sums, CW, FULL_W) - _both(sums, POINT)


def _both(sums: Array, row: int) -> Array:
    return sums[:, row, :-1] + sums[:, row + 1, :-1]


def _above(sums: Array, row: int, less: int | None = None) -> Array:
    """Sum of a row over the indices above each token; `less` is a row that is taken off it."""
    xp = array_namespace(sums)

    def part(i: int) -> Array:
        above = xp.flip(xp.cumulative_sum(xp.flip(sums[:, row + i, :], axis=1), axis=1), axis=1)
        return above[:, 1:] if less is None else above[:, 1:] - sums[:, less + i, :-1]

    return part(0) + part(1)


def _below(sums: Array, row: int, less: int | None = None) -> Array:
    """Sum of a row over the indices up to each token; see `_above`."""
    xp = array_namespace(sums)

    def part(i: int) -> Array:
        below = xp.cumulative_sum(sums[:, row + i, :], axis=1)[:, :-1]
        return below if less is None else below - sums[:, less + i, :-1]

    return part(0) + part(1)
