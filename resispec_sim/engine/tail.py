"""What a walk looks up: one packed row per token, tokens by octaves of q, and moments of the light ones.

A state of weight ``w`` has as many children as tokens with ``rho < w``, and nearly all of those are so
light that every later token is clipped on the draft's side. What such a child adds to a law is a
rational function of its ``a = q_x`` and ``b = p_x / w``, which for ``a <= 2**-11`` is its Taylor polynomial
of degree 4 up to rounding. So all of them are summed at once, from sums of ``q**i p**j`` over the tokens
below an index; only heavier children are visited one by one.

Legend: V = tokens, K = places below n_over, M = 15 moments with i + j <= 4, O = octaves of q.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from resispec_sim.engine.jit import inlined, kernel, njit
from resispec_sim.engine.ratio_space import RatioSpace

N_MOMENTS = 15
DEGREE = 4
TAIL_OCTAVE = 11  # tokens with q < 2**-11 are the tail: the series leaves out q**5
N_OCTAVES = 512
SERIES_FROM = (48, 160, 32)
FINE_SHIFT = 43  # 512 buckets an octave
FINE_LOWEST = (1023 - 80) << 9
FINE_HIGHEST = 1023 << 9

FloatArray = NDArray[np.float64]


class Table(NamedTuple):
    """One position as a walk reads it."""

    rows: FloatArray  # (K + 1, 4) rho, sum of p before, sum of q from here on, unused
    bucket: NDArray[np.int32]  # first index whose rho lies in a bucket or above it
    by_octave: (
        FloatArray  # (L, 3) q, p of the tokens that may have to be visited, heaviest q first; 1
    )
    place: NDArray[np.int32]  # (L,) their places in ratio order, ascending within an octave
    start: NDArray[np.int32]  # (O + 1,) where an octave starts in them
    moments: FloatArray  # (K + 1, M) sums of q**i p**j over the tail before an index, or (0, M)
    zero_moments: FloatArray  # (6,) sums of q**i over the tail's tokens with p = 0
    zero_head: FloatArray  # q of the tokens with p = 0 that are no tail
    rho_low: float  # smallest positive ratio
    deepest: int  # octave of q beyond which every child is taken for a light one
    leaf_from: int  # children of a last level from which their series is summed
    pair_from: int  # children two levels from the end, likewise
    accept_from: int  # children whose acceptance alone is wanted, likewise


@njit
def make_table(space, with_moments):
    """Pack a ratio space; the moments only where a walk is long enough to need them."""
    p, q, rho = space.p, space.q, space.rho
    n_over, n_zero = space.n_over, space.n_zero
    rows = np.empty((n_over + 1, 4))
    for k in range(n_over + 1):
        rows[k, 0] = rho[k] if k < rho.size else np.inf
        rows[k, 1] = space.prefix_p[k]
        rows[k, 2] = space.suffix_q[k]
        rows[k, 3] = 0.0
    rho_low = rho[n_zero] if n_zero < rho.size else np.inf
    bucket = np.empty(FINE_HIGHEST - FINE_LOWEST + 2, np.int32)
    k = 0
    for i in range(bucket.size):
        # the first bucket holds everything below it too
        if i > 0:
            edge = np.int64(FINE_LOWEST + i)
            while k < n_over and (np.float64(rho[k]).view(np.int64) >> FINE_SHIFT) < edge:
                k += 1
        bucket[i] = k
    # only tokens that can be heavier than rho_low after a rejection, and the head, are ever visited
    start = np.zeros(N_OCTAVES + 1, np.int32)
    lightest = min(rho_low, 2.0**-TAIL_OCTAVE)
    for x in range(n_over):
        if q[x] >= lightest:
            start[octave(q[x]) + 1] += 1
    for o in range(N_OCTAVES):
        start[o + 1] += start[o]
    place = start.copy()
    by_octave = np.empty((start[N_OCTAVES], 3))
    index = np.empty(start[N_OCTAVES], np.int32)
    for x in range(n_over):
        if q[x] >= lightest:
            o = octave(q[x])
            by_octave[place[o], 0] = q[x]
            by_octave[place[o], 1] = p[x]
            by_octave[place[o], 2] = 1.0
            index[place[o]] = x
            place[o] += 1
    zero_moments, rounding = np.zeros(6), np.zeros(6)
    n_head = 0
    for x in range(min(n_zero, n_over)):
        if octave(q[x]) >= TAIL_OCTAVE:
            power = 1.0
            for i in range(6):
                # a plain sum of 1e5 equal terms is off by 1e-12
                corrected = power + rounding[i]
                after = zero_moments[i] + corrected
                rounding[i] = corrected - (after - zero_moments[i])
                zero_moments[i] = after
                power *= q[x]
        else:
            n_head += 1
    zero_head = np.empty(n_head)
    n_head = 0
    for x in range(min(n_zero, n_over)):
        if octave(q[x]) < TAIL_OCTAVE:
            zero_head[n_head] = q[x]
            n_head += 1
    moments = np.zeros((n_over + 1 if with_moments else 0, N_MOMENTS))
    if with_moments:
        fill_moments(space, moments, np.zeros((2, N_MOMENTS)))
    return rows, bucket, by_octave, index, start, moments, zero_moments, zero_head, rho_low


@kernel
def fill_moments(space, moments, sums):
    """Sums before each index, each with the rounding of a single number."""
    p, q = space.p, space.q
    total, low = sums[0], sums[1]
    for x in range(space.n_over):
        for m in range(N_MOMENTS):
            moments[x, m] = total[m]
        if x < space.n_zero or octave(q[x]) < TAIL_OCTAVE:
            continue
        m = 0
        head = 1.0
        for degree in range(DEGREE + 1):
            # q**degree, then q**(degree - 1) p, and so on
            value = head
            ratio = p[x] / q[x]
            for _ in range(degree + 1):
                corrected = value + low[m]
                after = total[m] + corrected
                low[m] = corrected - (after - total[m])
                total[m] = after
                value *= ratio
                m += 1
            head *= q[x]
    for m in range(N_MOMENTS):
        moments[space.n_over, m] = total[m]


def to_table(
    space: RatioSpace, *, with_moments: bool, series_from: tuple[int, int, int] = SERIES_FROM
) -> Table:
    """Pack a ratio space for a walk; O(V).

    `series_from` holds the numbers of children (last level, last two levels, acceptance alone) from
    which a series is faster than a loop; the sums are the same.
    """
    limits = (N_OCTAVES - 1, *series_from)
    fields = (*make_table(space, with_moments), *limits)
    return Table(**dict(zip(Table._fields, fields, strict=True)))


@inlined
def octave(value):
    """0 for values from 1/2 to 1, 1 for those from 1/4 to 1/2, and so on."""
    exponent = np.float64(value).view(np.int64) >> 52
    return min(max(1022 - exponent, 0), N_OCTAVES - 1)


@inlined
def index_of(w, table):
    """``k(w) = #{rho < w}`` for 0 < w <= 1."""
    rows = table.rows
    key = (np.float64(w).view(np.int64) >> FINE_SHIFT) - FINE_LOWEST
    if key < 0:
        key = 0
    lo = table.bucket[key]
    hi = table.bucket[key + 1]
    while lo < hi:
        mid = (lo + hi) >> 1
        if rows[mid, 0] < w:
            lo = mid + 1
        else:
            hi = mid
    return lo
