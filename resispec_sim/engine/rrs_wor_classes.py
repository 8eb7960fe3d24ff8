"""Three siblings of RRS without replacement, by classes of tokens with nearly equal draft probability.

Legend: v, u = classes of the first and second rejected token; lo, mid, hi = bounds of a class and its
mean; D = classes; V = tokens. Where every class holds one probability the result is exact.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from resispec_sim.engine.jit import njit
from resispec_sim.engine.ratio_look_up import index_below, sum_above, sum_below, uncovered
from resispec_sim.engine.ratio_space import RatioSpace
from resispec_sim.engine.result import Outcome, bounded_law
from resispec_sim.engine.rrs_wor_two import up_to_two

FloatArray = NDArray[np.float64]

MAX_SINGLE = 1024  # distinct probabilities, from the largest, that have a class of their own
MAX_MERGED = 1024  # classes of the others
HEAVY = 0.05  # tokens above it are classes of their own, so that what they leave can be summed anew
TAIL = 1e-7
PAIR_COST = 4  # path-steps that a pair of classes counts as
TINY = 1e-13  # residual mass below which what is left is rounding


class Classes(NamedTuple):
    """Classes in ascending order of q, and their tokens in order of class and then of ratio."""

    low: FloatArray  # (D,) least q
    mid: FloatArray  # (D,) mean q
    high: FloatArray  # (D,) largest q
    rest: FloatArray  # (D,) draft mass off one token of the class
    start: NDArray[np.int64]  # (D + 1,) first token of a class
    one: NDArray[np.int64]  # (D,) first token with rho >= 1 in it
    rho: FloatArray  # (V,)
    sum_q: FloatArray  # (V + 1,) prefix sums
    sum_p: FloatArray  # (V + 1,)
    rejected: FloatArray  # (D,) mass of the first rejections
    rejected_q: FloatArray  # (D,) the same times q
    only: NDArray[np.int64]  # (D,) place in ratio order of the token of a class of one, else -1


def three_siblings(
    space: RatioSpace, method: str, max_paths: float, multiplier_scale: float
) -> Outcome:
    """Law of three siblings; see `resispec_sim.engine.rrs_wor.rrs_wor_outcome`."""
    n_distinct = len(np.unique(space.q[: space.n_drafted]))
    exactly = method == "exact" or (method == "auto" and PAIR_COST * n_distinct**2 <= max_paths)
    classes = make_classes(space, exactly)
    # the first two siblings do not see the multiplier after the second rejection
    two = up_to_two(space, 2, 1.0)
    vocab = space.p.size
    plus, minus, rest = (np.zeros((2, 2, vocab + 1)) for _ in range(3))
    low, high, stuck = walk_pairs(space, classes, multiplier_scale, plus, minus, rest)
    third = sum_below(space, plus[:, 0], plus[:, 1]) - sum_below(space, minus[:, 0], minus[:, 1])
    emitted = sum_above(space, rest[:, 0], rest[:, 1])
    estimate = two.accepted_by_token.sum(axis=0) + third[0] + emitted[0] + stuck * space.p
    n_paths = len(classes.low) ** 2
    if np.array_equal(classes.low, classes.high):
        by_token = np.vstack((two.accepted_by_token, np.maximum(third[:1], 0.0)))
        return Outcome(estimate, by_token.sum(axis=1), by_token, "exact", n_paths)
    by_token = np.vstack((two.accepted_by_token, np.maximum(third[1:], 0.0)))
    interval = np.stack((two.accepted, two.accepted), axis=1)
    interval = np.vstack((interval, [[low, max(high, low)]]))
    certain = by_token.sum(axis=0) + np.maximum(emitted[1], 0.0)
    output, note = bounded_law(certain, estimate)
    return Outcome(
        output_probs=output,
        accepted=interval.mean(axis=1),
        accepted_by_token=by_token,
        method="certified",
        n_paths=n_paths,
        accepted_interval=interval,
        certain=certain,
        notes=(note,),
    )


def make_classes(space: RatioSpace, exactly: bool) -> Classes:
    """Group the drafted tokens by q."""
    n = space.n_drafted
    p, q, rho = space.p[:n], space.q[:n], space.rho[:n]
    _, key = np.unique(q, return_inverse=True)
    if not exactly and key.max() >= MAX_SINGLE:
        merged = key <= key.max() - MAX_SINGLE
        key = key + np.int64(MAX_MERGED) + 1
        depth = np.log(np.maximum(q[merged], TAIL))
        span = max(float(depth.max() - np.log(TAIL)), 1e-12)
        key[merged] = ((depth - np.log(TAIL)) * ((MAX_MERGED - 1) / span)).astype(np.int64)
    heavy = np.flatnonzero(q > HEAVY)
    key[heavy] = key.max() + 1 + np.argsort(np.argsort(q[heavy], kind="stable"))
    _, key = np.unique(key, return_inverse=True)
    order = np.lexsort((rho, key))
    key, p, q, rho = key[order], p[order], q[order], rho[order]
    n_classes = int(key[-1]) + 1
    start = np.searchsorted(key, np.arange(n_classes + 1))
    counts = np.diff(start)
    over = np.maximum(q - p, 0.0)
    mid = np.bincount(key, weights=q) / counts
    low, high = np.minimum.reduceat(q, start[:-1]), np.maximum.reduceat(q, start[:-1])
    # a mean of equal numbers must be that number
    mid = np.clip(mid, low, high)
    only = np.where(counts == 1, order[start[:-1]], -1)
    rest = 1.0 - mid
    for at in np.flatnonzero((rest < 0.5) & (only >= 0)):
        rest[at] = space.q[: only[at]].sum() + space.q[only[at] + 1 :].sum()
    return Classes(
        low=low,
        mid=mid,
        high=high,
        rest=rest,
        start=start,
        one=start[:-1] + np.bincount(key, weights=rho < 1.0, minlength=n_classes).astype(np.int64),
        rho=rho,
        sum_q=np.concatenate(([0.0], np.cumsum(q, dtype=np.longdouble))).astype(float),
        sum_p=np.concatenate(([0.0], np.cumsum(p, dtype=np.longdouble))).astype(float),
        rejected=np.bincount(key, weights=over).astype(float),
        rejected_q=np.bincount(key, weights=over * q).astype(float),
        only=only,
    )


@njit
def walk_pairs(space, classes, scale, plus, minus, rest):
    """Sum the pairs of classes. Rows of the sums: 0 the estimate, 1 what is certain.

    Returns bounds of the third sibling's acceptance, and the mass that is left where the residual has
    none (only a wrong multiplier leaves any).
    """
    rho, n_drafted = space.rho, space.n_drafted
    n_classes = len(classes.low)
    first_left = uncovered(1.0, index_below(1.0, rho, n_drafted), space)
    cut = classes.one.copy()
    stuck, acc_low, acc_high = 0.0, 0.0, 0.0
    if first_left <= TINY:
        return 0.0, 0.0, 0.0
    for v in range(n_classes):
        if classes.rejected[v] <= 0.0:
            continue
        v_lo, v_mid, v_hi = classes.low[v], classes.mid[v], classes.high[v]
        open_v = classes.rest[v]
        open_v_lo = open_v if v_hi == v_mid else 1.0 - v_hi
        open_v_hi = open_v if v_lo == v_mid else 1.0 - v_lo
        if open_v <= 0.0:
            continue
        s_mid, s_lo, s_hi = 1.0 / open_v, 1.0 / open_v_hi, 1.0 / open_v_lo
        level = 1.0 + first_left * s_mid
        c_mid = 1.0 + scale * first_left * s_mid
        c_lo = 1.0 + scale * first_left * s_lo
        c_hi = 1.0 + scale * first_left * s_hi
        g_mid = uncovered(c_mid, index_below(c_mid, rho, n_drafted), space)
        g_hi = uncovered(c_lo, index_below(c_lo, rho, n_drafted), space)
        g_lo = uncovered(c_hi, index_below(c_hi, rho, n_drafted), space)
        k_mid = index_below(c_mid, rho, n_drafted)
        k_hi = index_below(c_hi, rho, n_drafted)
        through, through_low = 0.0, 0.0
        for u in range(n_classes):
            begin, end = classes.start[u], classes.start[u + 1]
            if u == v and classes.only[v] >= 0:
                continue  # a token is not drawn twice
            # where a second sibling with rho below the level can be refused; levels rise with v
            at = cut[u]
            while at < end and classes.rho[at] < level:
                at += 1
            cut[u] = at
            drawn = classes.sum_q[at] - classes.sum_q[begin]
            held = (classes.sum_p[at] - classes.sum_p[classes.one[u]]) - (
                classes.sum_q[at] - classes.sum_q[classes.one[u]]
            )
            mass = classes.rejected[v] * max(s_mid * drawn - held / first_left, 0.0)
            mass_lo = classes.rejected[v] * max(s_lo * drawn - held / first_left, 0.0)
            # tokens at the edge of the level: their share is bounded, not cut
            mass_hi = mass + classes.rejected[v] * (s_hi - s_lo) * (
                classes.sum_q[end] - classes.sum_q[begin]
            )
            if u == v:
                mass -= classes.rejected_q[v] * s_mid
                mass_lo -= classes.rejected_q[v] * s_hi
                mass_hi -= classes.rejected_q[v] * s_lo
            if mass <= 1e-300 and mass_hi <= 1e-300:
                continue
            mass, mass_lo = max(mass, 0.0), max(mass_lo, 0.0)
            open_mid = open_v - classes.mid[u]
            if open_mid < 1e-3 and classes.only[v] >= 0 and classes.only[u] >= 0:
                open_mid = 0.0
                for y in range(n_drafted):
                    if y != classes.only[v] and y != classes.only[u]:
                        open_mid += space.q[y]
            if open_mid <= 0.0 or g_mid <= TINY:
                stuck += mass
                continue
            reached = c_mid + g_mid / open_mid
            k = index_below(reached, rho, n_drafted)
            still = uncovered(reached, k, space) / g_mid
            through += mass / g_mid
            plus[0, 0, k] += mass / g_mid
            plus[0, 1, k] += mass / g_mid * reached
            after = c_mid + scale * g_mid / open_mid
            k_after = index_below(after, rho, n_drafted)
            g_after = uncovered(after, k_after, space)
            if g_after <= TINY:
                stuck += mass * still
            else:
                rest[0, 0, k_after] += mass * still / g_after
                rest[0, 1, k_after] += mass * still / g_after * after
            if v_lo == v_hi and classes.low[u] == classes.high[u]:
                low = high = reached
                still_lo = still_hi = still
                k_low = k
                g_high, g_div = uncovered(high, k, space), g_mid
            else:
                low = c_lo + g_lo / (open_v_hi - classes.low[u])
                high = c_hi + g_hi / (open_v_lo - classes.high[u])
                k_low = index_below(low, rho, n_drafted)
                g_low = uncovered(low, k_low, space)
                k_high = index_below(high, rho, n_drafted)
                g_high = uncovered(high, k_high, space)
                still_hi = min(g_low / max(g_lo, TINY), 1.0)
                still_lo = g_high / g_hi
                g_div = g_hi
            acc_low += mass_lo * (1.0 - still_hi)
            acc_high += mass_hi * (1.0 - still_lo)
            if low > c_hi or low == high:
                through_low += mass_lo / g_div
                plus[1, 0, k_low] += mass_lo / g_div
                plus[1, 1, k_low] += mass_lo / g_div * low
            g_norm = uncovered(low, k_low, space)
            if g_norm > TINY:
                k_high = index_below(high, rho, n_drafted)
                rest[1, 0, k_high] += mass_lo * still_lo / g_norm
                rest[1, 1, k_high] += mass_lo * still_lo / g_norm * high
        minus[0, 0, k_mid] += through
        minus[0, 1, k_mid] += through * c_mid
        minus[1, 0, k_hi] += through_low
        minus[1, 1, k_hi] += through_low * c_hi
    return acc_low, acc_high, stuck
