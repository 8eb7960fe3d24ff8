"""Device functions that add to the sums of one position, and sums over the threads of a block."""

from __future__ import annotations

from numba import cuda

from resispec_sim.engine.gpu.device_math import water_level
from resispec_sim.engine.gpu.layout import (
    ACC,
    ACC_CNT,
    ACC_CW,
    ACC_POINT,
    ACC_ROWS,
    CNT,
    COUNT_BIG,
    CW,
    FULL,
    FULL_W,
    WEIGHT_BIG,
    P,
    Q,
)


@cuda.jit(device=True)
def add_split(sums, row, i, value, big):
    """``sums[row, i] += value`` in two parts; `big` sets the unit of the first one."""
    high = (value + big) - big
    if high != 0.0:
        cuda.atomic.add(sums, (row, i), high)
    low = value - high
    if low != 0.0:
        cuda.atomic.add(sums, (row + 1, i), low)


@cuda.jit(device=True)
def add_total(totals, i, value, big):
    """`add_split` to the totals of one position."""
    high = (value + big) - big
    if high != 0.0:
        cuda.atomic.add(totals, i, high)
    low = value - high
    if low != 0.0:
        cuda.atomic.add(totals, i + 1, low)


@cuda.jit(device=True)
def acc_row(level, by_token):
    """First row of the accepted mass of sibling `level`; one for all unless they are kept apart."""
    return ACC + ACC_ROWS * (level - 1) if by_token else ACC


@cuda.jit(device=True)
def add_acceptance(sums, row, k, scale, w):
    """The next sibling is accepted with mass ``min(w q, p)`` per token."""
    add_split(sums, row + ACC_CNT, k, scale, COUNT_BIG)
    add_split(sums, row + ACC_CW, k, scale * w, WEIGHT_BIG)


@cuda.jit(device=True)
def leave_out_accepted(sums, row, e, mass):
    add_split(sums, row + ACC_POINT, e, mass, WEIGHT_BIG)


@cuda.jit(device=True)
def add_term(sums, k, c, w):
    """A term ``c min(w q, p)`` of the law."""
    add_split(sums, CNT, k, c, COUNT_BIG)
    add_split(sums, CW, k, c * w, WEIGHT_BIG)


@cuda.jit(device=True)
def leave_out(sums, e, k, c, w):
    """Take token e out of a term: in units of p below ``k(w)``, else of q."""
    if e < k:
        add_split(sums, FULL, e, c, COUNT_BIG)
    else:
        add_split(sums, FULL_W, e, c * w, WEIGHT_BIG)


@cuda.jit(device=True)
def emit_state(sums, table, tokens, n_tokens, fresh, k, w, scale, t, spread, tid, n_threads):
    """The own term of a state, capacity fill, once all that hangs below it is known.

    ``U' = (1 - t) min(w q, p) + t U`` off E: the first part is a term, the second is handed up less
    what U had at a token that was rejected only now.
    """
    term = scale * (1.0 - t) * spread
    if tid == 0:
        add_term(sums, k, term, w)
        if fresh:
            add_split(sums, FULL, tokens[n_tokens - 1], scale * t * spread, COUNT_BIG)
    for i in range(tid, n_tokens, n_threads):
        leave_out(sums, tokens[i], k, term, w)


@cuda.jit(device=True)
def add_level(sums, table, n_drafted, tokens, n_tokens, k_start, scale, mass):
    """Add the water-filled residual of a path of the given mass; returns the never-drafted share."""
    tau, k, share = water_level(mass, table, n_drafted, tokens, n_tokens, k_start)
    add_term(sums, k, scale, tau)
    return tau, k, share


@cuda.jit(device=True)
def own_mass(w, x, table):
    return min(table[P, x], w * table[Q, x])


@cuda.jit(device=True)
def sum_slots(parts, results, n_slots, tid, n_threads):
    """Sum `parts` over the threads into `results`, the same way every time.

    Slot s of thread i is at ``s (threads + 1) + i``: a row more than there are threads, so that the
    threads that sum them up do not all read from one bank. Ends with a barrier, so that every thread
    may read the results.
    """
    cuda.syncthreads()
    for s in range(tid, n_slots, n_threads):
        total = 0.0
        for i in range(n_threads):
            total += parts[s * (n_threads + 1) + i]
        results[s] = total
    cuda.syncthreads()
