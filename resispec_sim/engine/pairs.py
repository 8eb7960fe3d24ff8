"""The last two levels of a path in one loop: nearly all states of a walk are here.

A state so light that every token is clipped on the draft's side (``w <= rho`` of all) needs no
look-up: what it accepts is ``w`` times the draft mass off its rejected tokens, and all that can be
rejected after it are those tokens again. Its terms are sums kept in registers.

Legend: V = tokens, K = siblings, k = index of a weight in ratio order, e = a rejected token.
"""

from __future__ import annotations

import numpy as np

from resispec_sim.engine.closing import (
    BLOCK_MASK,
    LIGHTEST,
    add_level,
    clipped_mass,
    close_capacity,
    close_water,
    contains,
    spread_share,
)
from resispec_sim.engine.jit import njit
from resispec_sim.engine.ratio_space import count_below
from resispec_sim.engine.terms import add_exactly

HEAVY_COST = 4  # path-steps that a state with a look-up costs, against one without


@njit
def close_pairs(
    space,
    w,
    k_end,
    tokens,
    n_tokens,
    scale,
    level,
    theta,
    water,
    accepted,
    lost,
    acc_cnt,
    acc_cw,
    acc_point,
    terms,
):
    """Walk all children of a state two levels from the end, and close each.

    `level` is the index of the last sibling. Children lighter than `theta` that would need a loop of
    their own are cut off. Returns ``(spread0, spread1, steps)``, the sums of ``t`` times what
    hangs below, of the closed and of the cut paths.
    """
    p, q = space.p, space.q
    point = terms.point
    rho_low = space.rho[0] if space.n_zero == 0 else 0.0
    q_open = space.suffix_q[0]
    for i in range(n_tokens):
        q_open -= q[tokens[i]]
    low_n, low_w, low_mass = 0.0, 0.0, 0.0
    low_c, low_cw, low_cw_rest, low_spread = 0.0, 0.0, 0.0, 0.0
    spread0, spread1 = 0.0, 0.0
    steps = 0
    block_w, block_mass, block_c, block_spread = 0.0, 0.0, 0.0, 0.0
    for at in range(k_end + n_tokens):
        if at & BLOCK_MASK == 0:
            low_w += block_w
            low_mass += block_mass
            low_c += block_c
            low_spread += block_spread
            block_w, block_mass, block_c, block_spread = 0.0, 0.0, 0.0, 0.0
        fresh = at < k_end
        if fresh:
            x = at
            if contains(tokens, n_tokens, x):
                continue
            wx = w * q[x] - p[x]
        else:
            x = tokens[at - k_end]
            wx = w * q[x]
        if wx <= LIGHTEST:
            continue
        if fresh and wx <= rho_low:
            steps += 1
            qx = q[x]
            free = max(q_open - qx, 0.0)
            mass = wx * free
            low_n += 1.0
            block_w += wx
            block_mass += mass
            acc_point[level, x] -= scale * wx * qx
            hanging = 0.0
            child_c, child_cw = 0.0, 0.0
            for i in range(n_tokens + 1):
                e = tokens[i] if i < n_tokens else x
                we = wx * q[e]
                if water:
                    if we > rho_low * free:
                        # its water level is above the lowest ratio after all
                        tokens[n_tokens] = x
                        add_level(0, scale, we, space, tokens, n_tokens + 1, 0, terms)
                    elif free > 0.0:
                        child_cw += we / free
                else:
                    t = spread_share(we, we * free, wx - we * free)
                    hanging += t
                    child_c += 1.0 - t
                    child_cw += (1.0 - t) * we
            t = 0.0
            if not water:
                t = spread_share(wx, mass, w - p[x] - mass)
                child_c += (1.0 - t) * hanging
                child_cw += (1.0 - t) * hanging * wx
            add_exactly(terms.full_w, terms.full_w_low, 0, x, scale * child_cw)
            point[0, x] -= scale * t * hanging * p[x]
            block_c += child_c
            after = low_cw + child_cw
            part = after - low_cw
            low_cw_rest += (low_cw - (after - part)) + (child_cw - part)
            low_cw = after
            block_spread += t * hanging
            continue

        k = count_below(wx, space.rho, space.bucket)
        nt = n_tokens
        if fresh:
            tokens[nt] = x
            nt += 1
        mass = clipped_mass(wx, k, space, tokens, nt)
        accepted[level] += scale * mass
        acc_cnt[level, k] += scale
        acc_cw[level, k] += scale * wx
        for i in range(nt):
            acc_point[level, tokens[i]] -= scale * min(p[tokens[i]], wx * q[tokens[i]])
        row = 0
        hanging = 0.0
        t = 0.0
        if not water:
            t = spread_share(wx, mass, w - mass - (p[x] if fresh else 0.0))
        steps += HEAVY_COST
        if wx < theta:
            # cut off: the residual as it stands, less the acceptance that is counted already
            row = 1
            lost[level + 1] += scale * max(wx - mass, 0.0)
            if water:
                add_level(1, scale, wx, space, tokens, nt, k, terms)
                term = -scale
            else:
                hanging = 1.0
                term = -scale * t
        else:
            steps += k + nt
            if water:
                close_water(space, wx, k, tokens, nt, scale, terms)
                continue
            hanging = close_capacity(space, wx, k, tokens, nt, scale, terms)
            term = scale * (1.0 - t) * hanging
        add_exactly(terms.cnt, terms.cnt_low, row, k, term)
        add_exactly(terms.cw, terms.cw_low, row, k, term * wx)
        for i in range(nt):
            point[row, tokens[i]] -= term * min(p[tokens[i]], wx * q[tokens[i]])
        if fresh:
            point[row, x] -= scale * t * hanging * p[x]
        if row == 0:
            spread0 += t * hanging
        else:
            spread1 += t * hanging

    low_w += block_w
    low_mass += block_mass
    low_c += block_c
    low_spread += block_spread
    accepted[level] += scale * low_mass
    acc_cnt[level, 0] += scale * low_n
    acc_cw[level, 0] += scale * low_w
    add_exactly(terms.cnt, terms.cnt_low, 0, 0, scale * low_c)
    add_exactly(terms.cw, terms.cw_low, 0, 0, scale * low_cw)
    terms.cw_low[0, 0] += scale * low_cw_rest
    for i in range(n_tokens):
        acc_point[level, tokens[i]] -= scale * low_w * q[tokens[i]]
        add_exactly(terms.full_w, terms.full_w_low, 0, tokens[i], scale * low_cw)
        terms.full_w_low[0, tokens[i]] += scale * low_cw_rest
    return spread0 + low_spread, spread1, steps


@njit
def close_acceptance(
    space, w, k_end, tokens, n_tokens, scale, level, accepted, acc_cnt, acc_cw, acc_point
):
    """Mass accepted of sibling `level` (an index), over all ways to reject the one before it."""
    p, q = space.p, space.q
    n_zero = space.n_zero
    rho_low = space.rho[n_zero] if n_zero < p.size else np.inf
    q_open = space.suffix_q[n_zero]
    for i in range(n_tokens):
        if tokens[i] >= n_zero:
            q_open -= q[tokens[i]]
    total, low_n, low_w = 0.0, 0.0, 0.0
    for at in range(k_end + n_tokens):
        fresh = at < k_end
        if fresh:
            x = at
            if contains(tokens, n_tokens, x):
                continue
            wx = w * q[x] - p[x]
        else:
            x = tokens[at - k_end]
            wx = w * q[x]
        if wx <= LIGHTEST:
            continue
        if wx <= rho_low:
            own = q[x] if fresh and x >= n_zero else 0.0
            total += wx * max(q_open - own, 0.0)
            low_n += 1.0
            low_w += wx
            acc_point[level, x] -= scale * wx * own
            continue
        k = count_below(wx, space.rho, space.bucket)
        own = min(p[x], wx * q[x]) if fresh else 0.0
        total += max(clipped_mass(wx, k, space, tokens, n_tokens) - own, 0.0)
        acc_cnt[level, k] += scale
        acc_cw[level, k] += scale * wx
        acc_point[level, x] -= scale * own
        for i in range(n_tokens):
            e = tokens[i]
            acc_point[level, e] -= scale * min(p[e], wx * q[e])
    accepted[level] += scale * total
    acc_cnt[level, n_zero] += scale * low_n
    acc_cw[level, n_zero] += scale * low_w
    for i in range(n_tokens):
        if tokens[i] >= n_zero:
            acc_point[level, tokens[i]] -= scale * low_w * q[tokens[i]]
