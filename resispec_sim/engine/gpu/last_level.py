"""Device functions that close the last level of a path: the threads of a block share its last token.

All threads of the block call them with the same state; each takes every n-th child. Sums over the
children, and what they leave out at the tokens that were rejected before, are kept per thread and
added up once: atomics of a whole block at one address would queue.
"""

from __future__ import annotations

from numba import cuda, float64

from resispec_sim.engine.gpu.device_math import clipped_mass, contains, count_below, share_of
from resispec_sim.engine.gpu.layout import (
    COUNT_BIG,
    CW,
    FULL,
    FULL_W,
    LEAST_FREE,
    LIGHTEST,
    MAX_SIBLINGS,
    POINT,
    RHO,
    SUFFIX,
    SUFFIX_LOW,
    TAIL,
    WEIGHT_BIG,
    P,
    Q,
)
from resispec_sim.engine.gpu.scatter import (
    add_level,
    add_split,
    add_term,
    add_total,
    leave_out,
    sum_slots,
)


@cuda.jit(device=True)
def close_capacity(
    sums,
    table,
    bucket,
    n_zero,
    tokens,
    n_tokens,
    w,
    k,
    start,
    end,
    scale,
    parts,
    results,
    tid,
    n_threads,
):
    """Fill capacity: children `start` to `end` of a state. Returns the sum of ``t`` over them."""
    stride = n_threads + 1
    full = cuda.local.array(MAX_SIBLINGS, float64)
    full_w = cuda.local.array(MAX_SIBLINGS, float64)
    q_rejected = 0.0
    for i in range(n_tokens):
        full[i] = 0.0
        full_w[i] = 0.0
        if tokens[i] >= n_zero:
            q_rejected += table[Q, tokens[i]]
    rho_low = table[RHO, n_zero]
    free = table[SUFFIX, n_zero] - q_rejected
    gap = (1.0 - table[SUFFIX, n_zero]) - table[SUFFIX_LOW, n_zero] + q_rejected
    spread = 0.0
    low_cw = 0.0
    for at in range(start + tid, end, n_threads):
        fresh = at < k
        px = 0.0
        qx = 0.0
        if fresh:
            x = at
            if contains(tokens, n_tokens, x):
                continue
            px = table[P, x]
            qx = table[Q, x]
            wx = w * qx - px
        else:
            x = tokens[at - k]
            wx = w * table[Q, x]
        if wx <= LIGHTEST:
            continue
        if wx <= rho_low:
            # Every token but those of p = 0 is clipped on the draft's side: no look-up.
            own = qx if x >= n_zero else 0.0
            t = share_of(wx * (gap + own), w - px - wx * max(free - own, 0.0))
            c = 1.0 - t
            low_cw += c * wx
            if fresh:
                add_split(sums, POINT, x, scale * (c * wx * own + t * px), WEIGHT_BIG)
        else:
            kx = count_below(wx, table, bucket)
            own = min(px, wx * qx)
            mass = max(clipped_mass(wx, kx, table, tokens, n_tokens) - own, 0.0)
            t = share_of(wx - mass, w - px - mass)
            c = 1.0 - t
            add_term(sums, kx, scale * c, wx)
            if fresh:
                add_split(sums, POINT, x, scale * (c * own + t * px), WEIGHT_BIG)
            for i in range(n_tokens):
                if tokens[i] < kx:
                    full[i] += c
                else:
                    full_w[i] += c * wx
        spread += t
    parts[tid] = spread
    parts[stride + tid] = low_cw
    for i in range(n_tokens):
        parts[(2 + i) * stride + tid] = full[i]
        parts[(2 + n_tokens + i) * stride + tid] = full_w[i]
    sum_slots(parts, results, 2 + 2 * n_tokens, tid, n_threads)
    if tid == 0 and results[1] != 0.0:
        add_split(sums, CW, n_zero, scale * results[1], WEIGHT_BIG)
    for i in range(tid, n_tokens, n_threads):
        e = tokens[i]
        low = results[1] if e >= n_zero else 0.0
        add_split(sums, FULL, e, scale * results[2 + i], COUNT_BIG)
        add_split(sums, FULL_W, e, scale * (results[2 + n_tokens + i] + low), WEIGHT_BIG)
    return results[0]


@cuda.jit(device=True)
def close_water(
    sums,
    total,
    table,
    bucket,
    n_zero,
    n_drafted,
    tokens,
    n_tokens,
    w,
    k,
    start,
    end,
    scale,
    parts,
    results,
    tid,
    n_threads,
):
    """Fill water: the final residual of each child of a state is one level."""
    stride = n_threads + 1
    full = cuda.local.array(MAX_SIBLINGS, float64)
    full_w = cuda.local.array(MAX_SIBLINGS, float64)
    free = table[SUFFIX, 0]
    for i in range(n_tokens):
        full[i] = 0.0
        full_w[i] = 0.0
        free -= table[Q, tokens[i]]
    low_tau = 0.0
    tail = 0.0
    for at in range(start + tid, end, n_threads):
        fresh = at < k
        own = 0.0
        if fresh:
            x = at
            if contains(tokens, n_tokens, x):
                continue
            own = table[Q, x]
            wx = w * own - table[P, x]
        else:
            x = tokens[at - k]
            wx = w * table[Q, x]
        if wx <= LIGHTEST:
            continue
        left = free - own
        if n_zero == 0 and left > LEAST_FREE and wx <= table[RHO, 0] * left:
            tau = wx / left
            low_tau += tau
            if fresh:
                add_split(sums, FULL_W, x, scale * tau, WEIGHT_BIG)
            continue
        n_off = n_tokens
        if fresh:
            tokens[n_tokens] = x
            n_off += 1
        kx = count_below(wx, table, bucket)
        tau, kx, rest = add_level(sums, table, n_drafted, tokens, n_off, kx, scale, wx)
        tail += rest
        if fresh:
            leave_out(sums, x, kx, scale, tau)
        for i in range(n_tokens):
            if tokens[i] < kx:
                full[i] += 1.0
            else:
                full_w[i] += tau
    parts[tid] = low_tau
    parts[stride + tid] = tail
    for i in range(n_tokens):
        parts[(2 + i) * stride + tid] = full[i]
        parts[(2 + n_tokens + i) * stride + tid] = full_w[i]
    sum_slots(parts, results, 2 + 2 * n_tokens, tid, n_threads)
    if tid == 0:
        add_split(sums, CW, 0, scale * results[0], WEIGHT_BIG)
        add_total(total, TAIL, scale * results[1], WEIGHT_BIG)
    for i in range(tid, n_tokens, n_threads):
        e = tokens[i]
        add_split(sums, FULL, e, scale * results[2 + i], COUNT_BIG)
        add_split(sums, FULL_W, e, scale * (results[2 + n_tokens + i] + results[0]), WEIGHT_BIG)
