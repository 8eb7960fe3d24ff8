"""The largest acceptance of i.i.d. siblings without sorting the tokens: ``1 + min_H [p(H) - q(H)^n]``.

The best set is a prefix of the tokens by ``rho = p/q``, of ratios below n: a token with ``p >= n q`` never
lowers the value. Tokens are added up in buckets of ratios, and only buckets that can hold a lower value
than those between buckets are sorted. Within a bucket whose ratios are at least `a`, from (P, Q) on,

    p(H) - q(H)^n >= P + a (q(H) - Q) - q(H)^n,

which is concave in q(H) and so at least its value at an end of the bucket. The same argument shows that
the order of equal ratios does not matter: between them the value is concave, and least at an end.

Masses are summed as whole multiples of 2**-62: exactly, so that many equal tokens do not round the same
way again and again; each is off by 2**-63 at most.

Legend: V = tokens, a bucket is the exponent and the top six bits of the fraction of a float64.
"""

from __future__ import annotations

import numpy as np

from resispec_sim.engine.jit import kernel, njit
from resispec_sim.engine.ratio_order import sort_keys

SHIFT = 46
LOWEST = (1023 - 30) << 6  # ratios below 2**-30 share the first bucket
BLOCK = 512
STRIDE = 64  # tokens that are looked at together for one in a bucket that is opened
UNIT = 2.0**62
SLACK = 1e-15  # a bucket that cannot gain more than this is left alone


@njit
def fill_buckets(p, q, bucket_of, sums):
    """Write the bucket of every token (V,), and the sums of p and q of every bucket (buckets, 2).

    The last bucket also holds all ratios above it, and the tokens that are never drafted.
    """
    last = sums.shape[0] - 1
    ratio = np.empty(BLOCK)
    keys = ratio.view(np.int64)
    least = np.int64(LOWEST << SHIFT).view(np.float64)
    limit = np.int64((last + LOWEST) << SHIFT).view(np.float64)
    for start in range(0, p.size, BLOCK):
        target, draft = p[start : start + BLOCK], q[start : start + BLOCK]
        place = bucket_of[start : start + BLOCK]
        for i in range(target.size):
            mass, drawn = target[i], draft[i]
            ratio[i] = max(min(mass / drawn, limit), least) if drawn > 0.0 else limit
        for i in range(target.size):
            place[i] = (keys[i] >> SHIFT) - LOWEST
        add_to_buckets(target, draft, place, sums)


@kernel
def add_to_buckets(target, draft, place, sums):
    """Add a block of tokens to the sums of its buckets."""
    for i in range(target.size):
        # an index that cannot be negative takes no test
        b = np.uintp(place[i])
        sums[b, np.uintp(0)] += np.int64(target[i] * UNIT + 0.5)
        sums[b, np.uintp(1)] += np.int64(draft[i] * UNIT + 0.5)


@kernel
def collect(place, candidate, lowest, highest, tokens):
    """Write the tokens of candidate buckets, all from `lowest` to `highest`; return how many."""
    n_tokens = 0
    for start in range(0, place.size, STRIDE):
        block = place[start : start + STRIDE]
        n_near = 0
        for i in range(block.size):
            n_near += (block[i] >= lowest) & (block[i] <= highest)
        if n_near > 0:
            for i in range(block.size):
                if candidate[block[i]]:
                    tokens[n_tokens] = start + i
                    n_tokens += 1
    return n_tokens


@njit
def value_at(mass, drawn, n_siblings):
    """``P - Q^n`` of a set with these sums."""
    return mass / UNIT - min(drawn / UNIT, 1.0) ** n_siblings


@njit
def least_value(p, q, n_siblings, n_buckets):
    """``min(0, min_H [p(H) - q(H)^n])``; the empty set gives 0."""
    bucket_of = np.empty(p.size, dtype=np.int32)
    sums = np.zeros((n_buckets, 2), dtype=np.int64)
    fill_buckets(p, q, bucket_of, sums)
    # what never enters is in the last bucket
    last = n_buckets - 1
    before = np.zeros((n_buckets, 2), dtype=np.int64)
    least = 0.0
    for b in range(last):
        before[b + 1, 0] = before[b, 0] + sums[b, 0]
        before[b + 1, 1] = before[b, 1] + sums[b, 1]
        if sums[b, 0] == 0 and sums[b, 1] == 0:
            continue
        least = min(least, value_at(before[b + 1, 0], before[b + 1, 1], n_siblings))
    candidate = np.zeros(n_buckets, dtype=np.bool_)
    lowest, highest = last, -1
    for b in range(last):
        if sums[b, 1] == 0:
            continue  # what is not drawn makes no value lower
        lowest_ratio = np.int64((b + LOWEST) << SHIFT).view(np.float64) if b > 0 else 0.0
        bound = value_at(before[b, 0] + lowest_ratio * sums[b, 1], before[b + 1, 1], n_siblings)
        if bound < least - SLACK:
            candidate[b] = True
            lowest, highest = min(lowest, b), b
    tokens = np.empty(p.size, dtype=np.int32)
    n_tokens = collect(bucket_of, candidate, np.int32(lowest), np.int32(highest), tokens)
    keys = np.empty(n_tokens, dtype=np.int64)
    ratio = keys.view(np.float64)
    for at in range(n_tokens):
        ratio[at] = p[tokens[at]] / q[tokens[at]] + 0.0
    order = np.empty(n_tokens, dtype=np.int64)
    sort_keys(keys, np.empty(n_tokens, dtype=np.int64), order)
    here = -1
    mass = drawn = 0
    for i in range(n_tokens):
        token = tokens[order[i]]
        b = bucket_of[token]
        if b != here:
            here = b
            mass, drawn = before[b]
        mass += np.int64(p[token] * UNIT + 0.5)
        drawn += np.int64(q[token] * UNIT + 0.5)
        least = min(least, value_at(mass, drawn, n_siblings))
    return least


def largest_acceptance(p, q, n_siblings):
    """`optimal_acceptance` of one position with independent draws; rows (V,) that were checked."""
    # the first bucket that begins at n or above
    highest = -(-int(np.float64(n_siblings).view(np.int64)) >> SHIFT)
    with np.errstate(over="ignore"):
        least = least_value(
            np.ascontiguousarray(p), np.ascontiguousarray(q), n_siblings, highest - LOWEST + 1
        )
    return min(max(1.0 + float(least), 0.0), 1.0)
