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

# A bucket is the exponent and the top six bits of the fraction of a float64: 64 buckets an octave.
BUCKET_SHIFT = 46
# Below 2**-80 the look-up falls back to one bucket: such weights carry no mass that could be seen.
LOWEST_BUCKET = (1023 - 80) << 6
HIGHEST_BUCKET = 1023 << 6  # that of 1.0; path weights never pass it


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
    """Sort one position by ``p / q`` and sum it up; O(V log V)."""
    p, q = target_probs, draft_probs
    rho = np.full(p.shape, np.inf)
    with np.errstate(over="ignore"):
        np.divide(p, q, out=rho, where=q > 0)
    # Where p/q overflows, q is below 1e-308 p: such a token counts as never drafted.
    n_overflow = int(np.count_nonzero(np.isinf(rho) & (q > 0)))
    q = np.where(np.isinf(rho), 0.0, q)
    order = np.argsort(rho, kind="stable")
    rho, p, q = rho[order], p[order], q[order]
    # Extended precision, where the machine has it, kept in two parts: a sum over 1e5 tokens
    # is off by 1e-13 otherwise, the same way for every path.
    exact_prefix = np.concatenate(([0.0], np.cumsum(p, dtype=np.longdouble)))
    prefix_p = exact_prefix.astype(np.float64)
    exact_suffix = np.append(np.cumsum(q[::-1], dtype=np.longdouble)[::-1], 0.0)
    suffix_q = exact_suffix.astype(np.float64)
    n_over = int(np.searchsorted(rho, 1.0))
    keys = rho[:n_over].view(np.int64) >> BUCKET_SHIFT
    edges = np.arange(LOWEST_BUCKET, HIGHEST_BUCKET + 2)
    bucket = np.searchsorted(keys, edges).astype(np.int32)
    bucket[0] = 0
    return RatioSpace(
        rho=rho,
        p=p,
        q=q,
        prefix_p=prefix_p,
        prefix_p_low=(exact_prefix - prefix_p).astype(np.float64),
        suffix_q=suffix_q,
        suffix_q_low=(exact_suffix - suffix_q).astype(np.float64),
        bucket=bucket,
        n_zero=int(np.searchsorted(rho, 0.0, side="right")),
        n_drafted=int(np.count_nonzero(q > 0)),
        n_overflow=n_overflow,
        n_over=n_over,
        order=order,
    )


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
