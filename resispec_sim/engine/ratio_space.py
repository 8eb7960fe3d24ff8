"""Ratio space: the tokens of one position in order of ``rho = p / q``, with prefix sums.

After any rejections the mass that the next sibling has accepted at token ``y`` is ``min(p_y, w q_y)``,
with one number ``w`` for the whole path. In order of ``rho`` that is ``p`` below the index
``k(w) = #{rho < w}`` and ``w q`` from it on, so the total ``m(w) = sum min(p, w q)`` is a look-up.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from resispec_sim.engine.jit import njit
from resispec_sim.engine.ratio_order import ratio_keys, sort_keys

# A bucket is the exponent and the top six bits of the fraction of a float64: 64 buckets an octave.
BUCKET_SHIFT = 46
# Below 2**-80 the look-up falls back to one bucket: such weights carry no mass that could be seen.
LOWEST_BUCKET = (1023 - 80) << 6
HIGHEST_BUCKET = 1023 << 6  # that of 1.0; path weights never pass it
ONE = 1023 << 52  # bits of the float 1.0


class RatioSpace(NamedTuple):
    """One position in ratio order. V = tokens; every array but `order` is in ratio order.

    A NamedTuple of arrays, since that is what numba takes as it is.
    """

    rho: NDArray[np.float64]  # (V,) p / q, infinite where q = 0
    p: NDArray[np.float64]  # (V,) target probabilities
    q: NDArray[np.float64]  # (V,) draft probabilities
    prefix_p: NDArray[np.float64]  # (V + 1,) sum of p before an index
    prefix_p_low: NDArray[np.float64]  # (V + 1,) what float64 leaves out of prefix_p
    suffix_q: NDArray[np.float64]  # (V + 1,) sum of q from an index on
    suffix_q_low: NDArray[np.float64]  # (V + 1,) what float64 leaves out of suffix_q
    bucket: NDArray[np.int32]  # first index whose rho lies in a bucket or above it
    n_zero: int  # tokens with rho = 0, the first ones
    n_drafted: int  # tokens with q > 0; the rest are the last ones
    n_overflow: int  # tokens with q > 0 whose rho passes the float range, counted as never drafted
    n_over: int  # tokens with rho < 1: the over-estimated ones, all that can be rejected first
    order: NDArray[np.int64]  # (V,) token id at each place


def to_ratio_space(
    target_probs: NDArray[np.float64], draft_probs: NDArray[np.float64]
) -> RatioSpace:
    """Sort one position by ``p / q``, equal ratios by token id, and sum it up.

    Two probabilities whose quotient passes 1e290, near the end of the float range, make a token that
    counts as never drafted.
    """
    p = np.ascontiguousarray(target_probs)
    q = np.ascontiguousarray(draft_probs)
    keys, sorted_keys, order = np.empty((3, p.size), dtype=np.int64)
    with np.errstate(over="ignore"):
        n_drafted, n_overflow = ratio_keys(p, q, keys)
    sort_keys(keys, sorted_keys, order)
    in_order = np.empty((2, p.size))
    prefix_p, prefix_p_low, suffix_q, suffix_q_low = sums = np.empty((4, p.size + 1))
    bucket = np.empty(HIGHEST_BUCKET + 2 - LOWEST_BUCKET, dtype=np.int32)
    gather_and_sum(p, q, order, n_drafted, in_order, sums)
    rho = sorted_keys.view(np.float64)
    n_zero, n_over = index_buckets(sorted_keys, bucket)
    return RatioSpace(
        rho=rho,
        p=in_order[0],
        q=in_order[1],
        prefix_p=prefix_p,
        prefix_p_low=prefix_p_low,
        suffix_q=suffix_q,
        suffix_q_low=suffix_q_low,
        bucket=bucket,
        n_zero=n_zero,
        n_drafted=n_drafted,
        n_overflow=n_overflow,
        n_over=n_over,
        order=order,
    )


@njit
def gather_and_sum(p, q, order, n_drafted, in_order, sums):
    """Both rows in ratio order, with q = 0 from `n_drafted` on, and sums of p before and q from each index.

    Each sum is the nearest float and what that leaves out.

    Every rounding error of the running sum is itself summed (Knuth's two-sum), so that the two parts
    together are right to about 1e-27: a plain sum over 1e5 tokens is off by 1e-13, the same way for
    every path.
    """
    n = order.size
    p_sum = p_low = q_sum = q_low = 0.0
    sums[:2, 0] = 0.0
    sums[2:, n] = 0.0
    for i in range(n):
        # the two chains of additions run side by side, while the next rows are fetched
        value = p[order[i]]
        in_order[0, i] = value
        total = p_sum + value
        part = total - p_sum
        p_low += (p_sum - (total - part)) + (value - part)
        p_sum = total
        nearest = p_sum + p_low
        sums[0, i + 1] = nearest
        sums[1, i + 1] = p_low - (nearest - p_sum)
        value = q[order[n - 1 - i]] if n - 1 - i < n_drafted else 0.0
        in_order[1, n - 1 - i] = value
        total = q_sum + value
        part = total - q_sum
        q_low += (q_sum - (total - part)) + (value - part)
        q_sum = total
        nearest = q_sum + q_low
        sums[2, n - 1 - i] = nearest
        sums[3, n - 1 - i] = q_low - (nearest - q_sum)


@njit
def index_buckets(sorted_keys, bucket):
    """Fill the first index of every bucket below 1; return how many ratios are 0 and below 1."""
    n_zero = 0
    i = 0
    filled = 0
    while i < sorted_keys.size and sorted_keys[i] < ONE:
        n_zero += sorted_keys[i] == 0
        at = (sorted_keys[i] >> BUCKET_SHIFT) - LOWEST_BUCKET
        while filled <= at:
            bucket[filled] = i
            filled += 1
        i += 1
    bucket[filled:] = i
    # what lies below the lowest bucket is looked up in it
    bucket[0] = 0
    return n_zero, i


@njit
def count_below(w, rho, bucket):
    """``k(w) = #{rho < w}`` for 0 < w <= 1: a bucket by the float's high bits, then bisection in it."""
    key = (np.float64(w).view(np.int64) >> BUCKET_SHIFT) - LOWEST_BUCKET
    if key < 0:
        key = 0
    lo = bucket[key]
    hi = bucket[key + 1]
    while lo < hi:
        mid = (lo + hi) >> 1
        if rho[mid] < w:
            lo = mid + 1
        else:
            hi = mid
    return lo
