"""Closing the last level of a path: the sums over its last rejected sibling, and their terms.

Legend: V = tokens, K = siblings, k = index of a weight in ratio order, e = a rejected token; `tokens`
holds the rejected tokens of a path, the first `n_tokens` places of it.
"""

from __future__ import annotations

import numpy as np

from resispec_sim.engine.jit import njit
from resispec_sim.engine.ratio_space import count_below
from resispec_sim.engine.terms import add_exactly

TINY = 1e-300
# Lighter paths count as none: they carry nothing that could be seen, and subnormal numbers are slow.
LIGHTEST = 1e-250
BLOCK_MASK = 255  # terms per block of a sum, less one


@njit
def clipped_mass(w, k, space, tokens, n_tokens):
    """``G_E(w) = sum over y not in E of min(p_y, w q_y)``; absolute accuracy is all that is needed."""
    mass = space.prefix_p[k] + w * space.suffix_q[k]
    for i in range(n_tokens):
        e = tokens[i]
        mass -= min(space.p[e], w * space.q[e])
    return max(mass, 0.0)


@njit
def spread_share(weight, clipped, room):
    """``t`` of the capacity fill, the deficit over the room; the term's factor ``c`` is ``1 - t``.

    Formed from the deficit itself: as ``1 - c`` it would lose the small ones, and a path's mass with
    them. Without room the two shapes that it mixes are the same.
    """
    if room <= TINY:
        return 0.0
    return min(max(weight - clipped, 0.0) / room, 1.0)


@njit
def contains(tokens, n_tokens, x):
    for i in range(n_tokens):
        if tokens[i] == x:
            return True
    return False


@njit
def prefix_off(k, space, tokens, n_tokens):
    """Sum of p before index k, rejected tokens left out, with a relative error of rounding.

    The plain difference has the error of the whole sum, which a million light paths would add up.
    """
    total = space.prefix_p[k]
    error = space.prefix_p_low[k]
    for i in range(n_tokens):
        e = tokens[i]
        if e < k:
            rest = total - space.p[e]
            error += (total - rest) - space.p[e]
            total = rest
    return total + error


@njit
def suffix_off(k, space, tokens, n_tokens):
    """Sum of q from index k on, rejected tokens left out; see `prefix_off`."""
    total = space.suffix_q[k]
    error = space.suffix_q_low[k]
    for i in range(n_tokens):
        e = tokens[i]
        if e >= k:
            rest = total - space.q[e]
            error += (total - rest) - space.q[e]
            total = rest
    return total + error


@njit
def water_level(mass, space, tokens, n_tokens, k_start):
    """Level ``tau`` with ``sum over y not in E of min(tau q, p) = mass``.

    Returns ``(tau, k(tau), s, cost)``; where the drafted tokens cannot hold the mass they are full
    (``k`` = all of them) and the never-drafted ones get the share ``s`` of their ``p``. ``cost`` counts
    tokens that had to be summed one by one.
    """
    q, rho = space.q, space.rho
    n_drafted = space.n_drafted
    held = prefix_off(n_drafted, space, tokens, n_tokens)
    if mass >= held:
        undrafted = space.prefix_p[q.size] - space.prefix_p[n_drafted]
        share = 0.0 if undrafted <= 0.0 else min((mass - held) / undrafted, 1.0)
        return 0.0, n_drafted, max(share, 0.0), 0
    lo, hi, stride = k_start, n_drafted, 16
    # tau is at least the path's weight: gallop from there, since it is usually near.
    while lo < hi:
        k = min(lo + stride, hi - 1) if stride > 0 else (lo + hi) >> 1
        level = rho[k]
        held = prefix_off(k, space, tokens, n_tokens)
        held += level * suffix_off(k, space, tokens, n_tokens)
        if held < mass:
            lo = k + 1
            stride *= 8
        else:
            hi = k
            stride = 0
    k = lo
    below = prefix_off(k, space, tokens, n_tokens)
    slope = suffix_off(k, space, tokens, n_tokens)
    cost = 0
    if slope < 1e-6 * space.suffix_q[k]:
        # Nearly all draft mass above k is rejected: the difference has no digits left, so sum anew.
        slope = 0.0
        cost = n_drafted - k
        for y in range(k, n_drafted):
            if not contains(tokens, n_tokens, y):
                slope += q[y]
    if slope <= 0.0:
        return 0.0, k, 0.0, cost
    return max(mass - below, 0.0) / slope, k, 0.0, cost


@njit
def add_level(row, scale, mass, space, tokens, n_tokens, k_start, terms):
    """Add ``scale`` times the water-filled residual of a path of the given mass.

    A level can be high where little draft mass is left, and a rejected token would then hold much
    more than the path's mass: what is added and left out over a million paths must cancel exactly.
    """
    tau, k, share, cost = water_level(mass, space, tokens, n_tokens, k_start)
    terms.work[0] += cost
    terms.cnt[row, k] += scale
    add_exactly(terms.cw, terms.cw_low, row, k, scale * tau)
    for i in range(n_tokens):
        e = tokens[i]
        if e < k:
            terms.full[row, e] += scale
        else:
            add_exactly(terms.full_w, terms.full_w_low, row, e, scale * tau)
    add_exactly(terms.tail, terms.tail_low, row, 0, scale * share)


@njit
def close_capacity(space, w, k_end, tokens, n_tokens, scale, terms):
    """Last level of a path, fill capacity: all ways to reject the last sibling. Returns sum of t."""
    p, q = space.p, space.q
    point = terms.point
    n_zero = space.n_zero
    rho_low = space.rho[n_zero] if n_zero < p.size else np.inf
    q_rejected = 0.0
    for i in range(n_tokens):
        if tokens[i] >= n_zero:
            q_rejected += q[tokens[i]]
    q_open = space.suffix_q[n_zero] - q_rejected
    spread, low_c, low_cw = 0.0, 0.0, 0.0
    # Sums of blocks: a plain sum of 1e5 equal terms is off by 1e-12.
    block_t, block_c, block_cw = 0.0, 0.0, 0.0
    for at in range(k_end + n_tokens):
        if at & BLOCK_MASK == 0:
            spread += block_t
            low_c += block_c
            low_cw += block_cw
            block_t, block_c, block_cw = 0.0, 0.0, 0.0
        fresh = at < k_end
        if fresh:
            x = at
            if contains(tokens, n_tokens, x):
                continue
            px = p[x]
            wx = w * q[x] - px
        else:
            x = tokens[at - k_end]
            px = 0.0
            wx = w * q[x]
        if wx <= LIGHTEST:
            continue
        if wx <= rho_low:
            # Every token but those of p = 0 is clipped on the draft's side: no look-up.
            own = q[x] if fresh and x >= n_zero else 0.0
            clipped = wx * max(q_open - own, 0.0)
            t = spread_share(wx, clipped, w - px - clipped)
            c = 1.0 - t
            block_c += c
            block_cw += c * wx
            point[0, x] -= scale * (c * wx * own + t * px)
        else:
            k = count_below(wx, space.rho, space.bucket)
            clipped = clipped_mass(wx, k, space, tokens, n_tokens)
            if fresh:
                clipped -= min(px, wx * q[x])
            t = spread_share(wx, clipped, w - px - clipped)
            c = 1.0 - t
            add_exactly(terms.cnt, terms.cnt_low, 0, k, scale * c)
            add_exactly(terms.cw, terms.cw_low, 0, k, scale * c * wx)
            if fresh:
                point[0, x] -= scale * (c * min(px, wx * q[x]) + t * px)
            for i in range(n_tokens):
                e = tokens[i]
                point[0, e] -= scale * c * min(p[e], wx * q[e])
        block_t += t
    low_c += block_c
    low_cw += block_cw
    add_exactly(terms.cnt, terms.cnt_low, 0, n_zero, scale * low_c)
    add_exactly(terms.cw, terms.cw_low, 0, n_zero, scale * low_cw)
    for i in range(n_tokens):
        e = tokens[i]
        if e >= n_zero:
            point[0, e] -= scale * low_cw * q[e]
    return spread + block_t


@njit
def close_water(space, w, k_end, tokens, n_tokens, scale, terms):
    """Last level of a path, fill water: the final residual of each is one level."""
    p, q = space.p, space.q
    for x in range(k_end):
        if contains(tokens, n_tokens, x):
            continue
        wx = w * q[x] - p[x]
        if wx <= LIGHTEST:
            continue
        tokens[n_tokens] = x
        k = count_below(wx, space.rho, space.bucket)
        add_level(0, scale, wx, space, tokens, n_tokens + 1, k, terms)
    for r in range(n_tokens):
        wx = w * q[tokens[r]]
        if wx <= LIGHTEST:
            continue
        k = count_below(wx, space.rho, space.bucket)
        add_level(0, scale, wx, space, tokens, n_tokens, k, terms)
