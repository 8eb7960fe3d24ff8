"""Sums over a ratio order at any level, not only below 1: ``m(c) = sum min(p, c q)`` and its index.

Legend: V = tokens; k(c) = #{rho < c}; arrays are those of a `RatioSpace`.
"""

from __future__ import annotations

import numpy as np

from resispec_sim.engine.jit import njit


@njit
def index_below(c, rho, n_drafted):
    """``k(c) = #{rho < c}`` among the drafted tokens."""
    lo, hi = 0, n_drafted
    while lo < hi:
        mid = (lo + hi) >> 1
        if rho[mid] < c:
            lo = mid + 1
        else:
            hi = mid
    return lo


def uncovered_at(c, k, space):
    """``g(c) = sum (p - c q)+`` at levels and their indices, from the tokens that are left.

    Summed from what is left, small values keep their digits. Numbers or arrays.
    """
    drafted, end = space.n_drafted, space.p.size
    p_left = space.prefix_p[drafted] - space.prefix_p[k]
    p_left = p_left + (space.prefix_p_low[drafted] - space.prefix_p_low[k])
    never = space.prefix_p[end] - space.prefix_p[drafted]
    never += space.prefix_p_low[end] - space.prefix_p_low[drafted]
    q_left = space.suffix_q[k] + space.suffix_q_low[k]
    return np.maximum(p_left - c * q_left, 0.0) + never


uncovered = njit(uncovered_at)


def sum_below(space, count, weighted):
    """``sum_j c_j min(p, l_j q)`` by token, from sums of ``c`` and ``c l`` at the index of ``l``.

    The last axis of both is V + 1; leading axes are kept.
    """
    # extended precision where the machine has it: one rounding for all terms, not one each
    above = np.cumsum(count[..., ::-1].astype(np.longdouble), axis=-1)[..., ::-1][..., 1:]
    below = np.cumsum(weighted.astype(np.longdouble), axis=-1)[..., :-1]
    return (space.p * above + space.q * below).astype(np.float64)


def sum_above(space, count, weighted):
    """``sum_j c_j (p - l_j q)+`` by token; see `sum_below`."""
    counted = np.cumsum(count.astype(np.longdouble), axis=-1)[..., :-1]
    below = np.cumsum(weighted.astype(np.longdouble), axis=-1)[..., :-1]
    return np.maximum((space.p * counted - space.q * below).astype(np.float64), 0.0)
