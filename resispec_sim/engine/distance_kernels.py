"""Kernels of the distances: one pass over the tokens each, in blocks whose lanes are summed apart.

Legend: V = tokens, K = siblings; M = law, p = target.
"""

from __future__ import annotations

import numpy as np

from resispec_sim.engine.elementary import log_of, sum_side_by_side
from resispec_sim.engine.jit import njit

BLOCK = 1024  # tokens that stay in the first-level cache from one step to the next
NEAR = 2.0**-6  # ratios M/p this close to 1 take a series
VERY_NEAR = 2.0**-26  # and these its first term: the next one is below 1e-24
HUGE = 1e308
LEAST = 1e-300  # in place of p = M = 0


@njit
def near_term(r):
    """``(1 + r) log(1 + r) - r`` for small r: nothing cancels."""
    r2 = r * r
    low = (1 / 2 - r * (1 / 6)) + (1 / 12 - r * (1 / 20)) * r2
    high = (1 / 30 - r * (1 / 42)) + (1 / 56 - r * (1 / 72)) * r2
    return r2 * (low + high * (r2 * r2))


@njit
def add_divergences(m, p, terms, ratio):
    """Add ``M log(M/p) - M + p`` of a block to its lanes; `ratio` is work space.

    Return how many tokens have ``M > 0 = p``, and a ratio that passes the float range.
    """
    n_outside = n_huge = n_far = n_not_very_near = 0
    for i in range(m.size):
        n_not_very_near += abs(m[i] - p[i]) > VERY_NEAR * p[i]
    if n_not_very_near == 0:
        for i in range(m.size):
            away = m[i] - p[i]
            terms[i] += 0.5 * (away * away) / max(p[i], LEAST)
        return n_outside, n_huge
    for i in range(m.size):
        mass, share = m[i], p[i]
        # where p = 0 it is 0 or infinite
        r = (mass - share) / share if share > 0.0 else (np.inf if mass > 0.0 else 0.0)
        ratio[i] = r
        n_far += abs(r) > NEAR
        n_huge += r > HUGE
        n_outside += (share <= 0.0) & (mass > 0.0)
    if n_far == 0:
        for i in range(m.size):
            terms[i] += p[i] * near_term(ratio[i])
    else:
        for i in range(m.size):
            # every load and both forms before any choice: the compiler vectorises nothing else
            mass, share, r = m[i], p[i], ratio[i]
            far = max(mass * log_of(mass / share) - mass + share, 0.0)
            term = share * near_term(r) if abs(r) <= NEAR else far
            terms[i] += term if min(mass, share) > 0.0 else share
    return n_outside, n_huge


@njit
def divergences(law, target):
    """``(TV, KL, whether M/p passes the float range, sum of M)``.

    KL has the terms ``M log(M/p) - M + p >= 0``; where the third value is true it is wrong.
    """
    distance, terms, ratio, sums = (
        np.zeros(BLOCK),
        np.zeros(BLOCK),
        np.empty(BLOCK),
        np.zeros(BLOCK),
    )
    n_outside = n_huge = 0
    for start in range(0, law.size, BLOCK):
        m, p = law[start : start + BLOCK], target[start : start + BLOCK]
        outside, huge = add_divergences(m, p, terms, ratio)
        n_outside += outside
        n_huge += huge
        for i in range(m.size):
            sums[i] += m[i]
            distance[i] += abs(m[i] - p[i])
    kl = sum_side_by_side(terms) if n_outside == 0 else np.inf
    return (
        0.5 * sum_side_by_side(distance),
        kl,
        n_outside == 0 and n_huge > 0,
        sum_side_by_side(sums),
    )


@njit
def excess_over(accepted_by_token, target):
    """``sum (A - p)+`` with A the sum of the rows (K, V)."""
    excess = np.zeros(BLOCK)
    held = np.empty(BLOCK)
    for start in range(0, target.size, BLOCK):
        p = target[start : start + BLOCK]
        total = held[: p.size]
        total[:] = 0.0
        for k in range(accepted_by_token.shape[0]):
            row = accepted_by_token[k, start : start + BLOCK]
            for i in range(p.size):
                total[i] += row[i]
        for i in range(p.size):
            excess[i] += max(total[i] - p[i], 0.0)
    return sum_side_by_side(excess)


@njit
def excess_and_gain(certain, target, missing):
    """``sum (M - p)+`` and what `missing` mass on a single token can add to it at most."""
    excess, gain = np.zeros(BLOCK), np.zeros(BLOCK)
    for start in range(0, certain.size, BLOCK):
        m, p = certain[start : start + BLOCK], target[start : start + BLOCK]
        for i in range(m.size):
            over = m[i] - p[i]
            own = max(over, 0.0)
            excess[i] += own
            gain[i] = max(gain[i], max(over + missing, 0.0) - own if p[i] > 0.0 else 0.0)
    return sum_side_by_side(excess), gain.max()


@njit
def raising_level(certain, target, missing):
    """The level c at which ``sum (c p - M)+ = missing``; every p > 0.

    Newton's method from above on a convex function that is linear between ratios: it ends at the
    level itself, after as many passes as there are sets to go through.
    """
    level = np.inf
    while True:
        mass, held = np.zeros(BLOCK), np.zeros(BLOCK)
        for start in range(0, certain.size, BLOCK):
            m, p = certain[start : start + BLOCK], target[start : start + BLOCK]
            for i in range(m.size):
                below = m[i] < level * p[i]
                mass[i] += m[i] if below else 0.0
                held[i] += p[i] if below else 0.0
        lower = (sum_side_by_side(mass) + missing) / sum_side_by_side(held)
        if not lower < level:
            return level
        level = lower


@njit
def sum_and_gain_of_logs(certain, target, missing):
    """``sum M log(M/p)``, and what `missing` mass on a single token can add to it at most; every p > 0.

    The third value tells whether a ratio passes the float range, and the others are wrong.
    """
    terms, gain = np.zeros(BLOCK), np.full(BLOCK, -np.inf)
    n_huge = 0
    for start in range(0, certain.size, BLOCK):
        m, p = certain[start : start + BLOCK], target[start : start + BLOCK]
        for i in range(m.size):
            raised = m[i] + missing
            n_huge += raised / p[i] > HUGE
            own = m[i] * log_of(m[i] / p[i])
            terms[i] += own
            gain[i] = max(gain[i], raised * log_of(raised / p[i]) - own)
    return sum_side_by_side(terms), gain.max(), n_huge > 0
