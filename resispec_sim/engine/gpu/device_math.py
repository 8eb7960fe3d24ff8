"""Device functions over the table of one position: look-ups and sums that leave tokens out.

`table` is (N_TABLE, V + 1), `tokens` holds the rejected tokens E of a path in its first `n_tokens`
places. The same sums in the CPU engine are the standard that these are tested against.
"""

from __future__ import annotations

import numpy as np
from numba import cuda

from resispec_sim.engine.gpu.layout import (
    BUCKET_SHIFT,
    LOWEST_BUCKET,
    PREFIX,
    PREFIX_LOW,
    RHO,
    SUFFIX,
    SUFFIX_LOW,
    TINY,
    P,
    Q,
)


@cuda.jit(device=True)
def count_below(w, table, bucket):
    """``k(w) = #{rho < w}`` for 0 < w <= 1: a bucket by the float's high bits, then bisection."""
    key = (np.float64(w).view(np.int64) >> BUCKET_SHIFT) - LOWEST_BUCKET
    if key < 0:
        key = 0
    lo = bucket[key]
    hi = bucket[key + 1]
    while lo < hi:
        mid = (lo + hi) >> 1
        if table[RHO, mid] < w:
            lo = mid + 1
        else:
            hi = mid
    return lo


@cuda.jit(device=True)
def contains(tokens, n_tokens, x):
    for i in range(n_tokens):
        if tokens[i] == x:
            return True
    return False


@cuda.jit(device=True)
def clipped_mass(w, k, table, tokens, n_tokens):
    """``G_E(w) = sum over y not in E of min(p_y, w q_y)``."""
    mass = table[PREFIX, k] + w * table[SUFFIX, k]
    for i in range(n_tokens):
        e = tokens[i]
        mass -= min(table[P, e], w * table[Q, e])
    return max(mass, 0.0)


@cuda.jit(device=True)
def share_of(deficit, room):
    """``t`` of the capacity fill, the deficit over the room; the term's factor ``c`` is ``1 - t``."""
    if room <= TINY:
        return 0.0
    return min(max(deficit, 0.0) / room, 1.0)


@cuda.jit(device=True)
def prefix_off(k, table, tokens, n_tokens):
    """Sum of p before index k, rejected tokens left out, with a relative error of rounding."""
    total = table[PREFIX, k]
    error = table[PREFIX_LOW, k]
    for i in range(n_tokens):
        e = tokens[i]
        if e < k:
            rest = total - table[P, e]
            error += (total - rest) - table[P, e]
            total = rest
    return total + error


@cuda.jit(device=True)
def suffix_off(k, table, tokens, n_tokens):
    """Sum of q from index k on, rejected tokens left out; see `prefix_off`."""
    total = table[SUFFIX, k]
    error = table[SUFFIX_LOW, k]
    for i in range(n_tokens):
        e = tokens[i]
        if e >= k:
            rest = total - table[Q, e]
            error += (total - rest) - table[Q, e]
            total = rest
    return total + error


@cuda.jit(device=True)
def water_level(mass, table, n_drafted, tokens, n_tokens, k_start):
    """Level ``tau`` with ``sum over y not in E of min(tau q, p) = mass``.

    Returns ``(tau, k(tau), s)``; where the drafted tokens cannot hold the mass they are full and the
    never-drafted ones get the share ``s`` of their ``p``.
    """
    end = table.shape[1] - 1
    held = prefix_off(n_drafted, table, tokens, n_tokens)
    if mass >= held:
        undrafted = table[PREFIX, end] - table[PREFIX, n_drafted]
        undrafted += table[PREFIX_LOW, end] - table[PREFIX_LOW, n_drafted]
        share = 0.0
        if undrafted > 0.0:
            share = max(min((mass - held) / undrafted, 1.0), 0.0)
        return 0.0, n_drafted, share
    lo = k_start
    hi = n_drafted
    stride = 16
    # tau is at least the path's weight: gallop from there, since it is usually near.
    while lo < hi:
        if stride > 0:
            k = min(lo + stride, hi - 1)
        else:
            k = (lo + hi) >> 1
        held = prefix_off(k, table, tokens, n_tokens)
        held += table[RHO, k] * suffix_off(k, table, tokens, n_tokens)
        if held < mass:
            lo = k + 1
            stride *= 8
        else:
            hi = k
            stride = 0
    below = prefix_off(lo, table, tokens, n_tokens)
    slope = suffix_off(lo, table, tokens, n_tokens)
    if slope < 1e-6 * table[SUFFIX, lo]:
        # Nearly all draft mass above is rejected: the difference has no digits left, so sum anew.
        slope = 0.0
        for y in range(lo, n_drafted):
            if not contains(tokens, n_tokens, y):
                slope += table[Q, y]
    if slope <= 0.0:
        return 0.0, lo, 0.0
    return max(mass - below, 0.0) / slope, lo, 0.0


@cuda.jit(device=True)
def repeat_share(a, free, gap):
    """``t`` of rejecting a token of E again, of draft probability `a`, from a light state.

    A state is light where every token is clipped on the draft's side. `free` is the draft mass off E
    and `gap` is ``1 - free``, kept apart since the difference has no digits where E is light.
    """
    return share_of(a * gap, 1.0 - a * free)


@cuda.jit(device=True)
def light_terms(w, remaining, a_sum, c_sum, t_sum):
    """Sum of ``c w`` over all states below a light one, and the part of it that is handed up.

    Below a light state only its own rejected tokens can be rejected, again and again, and the shares
    do not depend on the weight: with ``A``, ``C`` and ``T`` the sums of ``q``, ``(1 - t) q`` and
    ``t`` over E, depth d adds ``w A^(d-1) C T^(r-d)`` and what is left at the end is ``T^r``.
    """
    cw = 0.0
    power = 1.0
    spread = 1.0
    for _ in range(remaining):
        cw = cw * t_sum + power * c_sum
        power *= a_sum
        spread *= t_sum
    return w * cw, spread
