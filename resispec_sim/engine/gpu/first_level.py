"""Kernels of the first rejection: one thread per token that can be rejected first.

Opening a state finds its index and share and counts what it accepts; light ones are closed at once,
the others are walked block by block and closed when the sums over all their blocks are there.
"""

from __future__ import annotations

import numpy as np
from numba import cuda, float64, int64

from resispec_sim.engine.gpu.device_math import (
    clipped_mass,
    count_below,
    light_terms,
    repeat_share,
    share_of,
)
from resispec_sim.engine.gpu.layout import (
    ACC_CW,
    ACCEPTED,
    BASE,
    COUNT_BIG,
    CW,
    FULL,
    FULL_W,
    INDEX,
    LEAST_FREE,
    LIGHTEST,
    N_DRAFTED,
    N_OVER,
    N_ZERO,
    RHO,
    SCALE,
    SHARE,
    SPREAD,
    SPREAD_LOW,
    STEPS,
    SUFFIX,
    SUFFIX_LOW,
    TAIL,
    WEIGHT,
    WEIGHT_BIG,
    P,
    Q,
)
from resispec_sim.engine.gpu.scatter import (
    acc_row,
    add_acceptance,
    add_level,
    add_split,
    add_total,
    emit_state,
    leave_out,
    leave_out_accepted,
    own_mass,
    sum_slots,
)


@cuda.jit
def open_first(tables, buckets, sizes, first, sums, totals, children, n, want_law, water, by_token):
    """Open every state of one rejection; grid (blocks of tokens, B).

    `first` holds weights and scales, and gets shares and indices. `children` (B, V) gets the number
    of next rejections of the states that are left to walk.
    """
    b = cuda.blockIdx.y
    tid = cuda.threadIdx.x
    n_threads = cuda.blockDim.x
    x = cuda.blockIdx.x * n_threads + tid
    stride = n_threads + 1
    shared = cuda.shared.array(0, float64)
    results = shared[: 2 * n + 3]
    parts = shared[2 * n + 3 :]
    table = tables[b]
    out = sums[b]
    total = totals[b]
    last = n if want_law else n - 1
    # slots: accepted mass and light weight per sibling, then the law's weights, shares and steps
    n_slots = 2 * n + 3
    for s in range(n_slots):
        parts[s * stride + tid] = 0.0
    w = 0.0
    if x < sizes[b, N_OVER]:
        w = first[b, WEIGHT, x]
    if w > LIGHTEST:
        tokens = cuda.local.array(1, int64)
        tokens[0] = x
        scale = first[b, SCALE, x]
        px = table[P, x]
        qx = table[Q, x]
        k = count_below(w, table, buckets[b])
        mass = clipped_mass(w, k, table, tokens, 1)
        t = share_of(w - mass, 1.0 - mass - px)
        first[b, SHARE, x] = t
        first[b, INDEX, x] = k
        parts[(2 * n + 2) * stride + tid] = 1.0
        drafted = table[SUFFIX, 0]
        free = max(drafted - qx, 0.0)
        light = sizes[b, N_ZERO] == 0 and w <= table[RHO, 0]
        if water:
            light = light and free > LEAST_FREE and w <= table[RHO, 0] * free
        if light:
            gap = (1.0 - drafted) - table[SUFFIX_LOW, 0] + qx
            weight = w
            for level in range(1, n):
                parts[level * stride + tid] = scale * weight * free
                parts[(n + level) * stride + tid] = scale * weight
                leave_out_accepted(out, acc_row(level, by_token), x, scale * weight * qx)
                weight *= qx
            if want_law and water:
                leaf = w
                for _ in range(n - 1):
                    leaf *= qx
                parts[(2 * n) * stride + tid] = scale * leaf / free
                add_split(out, FULL_W, x, scale * leaf / free, WEIGHT_BIG)
            elif want_law:
                t = share_of(w * gap, 1.0 - px - w * free)
                again = repeat_share(qx, free, gap)
                cw, spread = light_terms(w, n - 1, qx, (1.0 - again) * qx, again)
                cw += (1.0 - t) * spread * w
                parts[(2 * n) * stride + tid] = scale * cw
                parts[(2 * n + 1) * stride + tid] = scale * t * spread
                add_split(out, FULL_W, x, scale * cw, WEIGHT_BIG)
                add_split(out, FULL, x, scale * t * spread, COUNT_BIG)
        else:
            if n > 1:
                parts[stride + tid] = scale * mass
                row = acc_row(1, by_token)
                add_acceptance(out, row, k, scale, w)
                leave_out_accepted(out, row, x, scale * own_mass(w, x, table))
            if last > 1:
                children[b, x] = k + 1
            elif want_law and water:
                tau, at, rest = add_level(out, table, sizes[b, N_DRAFTED], tokens, 1, k, scale, w)
                leave_out(out, x, at, scale, tau)
                add_total(total, TAIL, scale * rest, WEIGHT_BIG)
            elif want_law:
                emit_state(out, table, tokens, 1, True, k, w, scale, t, 1.0, 0, 1)
                parts[(2 * n + 1) * stride + tid] = scale * t
    sum_slots(parts, results, n_slots, tid, n_threads)
    for s in range(tid, n_slots, n_threads):
        value = results[s]
        if value != 0.0:
            if s < n:
                add_total(total, ACCEPTED + 2 * s, value, WEIGHT_BIG)
            elif s < 2 * n:
                add_split(out, acc_row(s - n, by_token) + ACC_CW, 0, value, WEIGHT_BIG)
            elif s == 2 * n:
                add_split(out, CW, 0, value, WEIGHT_BIG)
            elif s == 2 * n + 1:
                add_total(total, BASE, value, COUNT_BIG)
            else:
                cuda.atomic.add(total, STEPS, value)


@cuda.jit
def close_first(tables, sizes, first, sums, totals, children):
    """Add the own terms of the states that were walked, fill capacity; grid as in `open_first`."""
    b = cuda.blockIdx.y
    tid = cuda.threadIdx.x
    n_threads = cuda.blockDim.x
    x = cuda.blockIdx.x * n_threads + tid
    shared = cuda.shared.array(0, float64)
    results = shared[:1]
    parts = shared[1:]
    parts[tid] = 0.0
    if x < sizes[b, N_OVER] and children[b, x] > 0:
        tokens = cuda.local.array(1, int64)
        tokens[0] = x
        w = first[b, WEIGHT, x]
        scale = first[b, SCALE, x]
        t = first[b, SHARE, x]
        k = np.int64(first[b, INDEX, x])
        spread = first[b, SPREAD, x] + first[b, SPREAD_LOW, x]
        emit_state(sums[b], tables[b], tokens, 1, True, k, w, scale, t, spread, 0, 1)
        parts[tid] = scale * t * spread
    sum_slots(parts, results, 1, tid, n_threads)
    if tid == 0 and results[0] != 0.0:
        add_total(totals[b], BASE, results[0], COUNT_BIG)
