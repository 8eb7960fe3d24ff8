"""The stable order of ratios: a counting sort on the high bits of floats, finished within its buckets.

A non-negative float64 orders as its bits do, so ratios are sorted as whole numbers. The buckets divide
the span of bits that a position really uses, about one for two tokens. What still shares a bucket is
put in order by insertion where it is little, and else by the same counting sort on the span of its own:
logits stored in 16 bits have many ratios that differ in the last bits only.

Legend: keys = bits of rho, non-negative; V = tokens.
"""

from __future__ import annotations

import numpy as np

from resispec_sim.engine.jit import njit

INFINITE = 0x7FF0000000000000  # bits of the float inf
FEW = 12  # as many are sorted by insertion
MOST_BUCKETS = 1024  # of one group of a bucket
FLOAT_BIAS, FRACTION_BITS = 1023, 52
LARGEST_RATIO = 1e290


@njit
def ratio_keys(p, q, keys):
    """Write the bits of ``p / q``, infinite where q = 0; return ``(n_drafted, n_overflow)``.

    A ratio is infinite from 1e290 on: sums of water levels over all paths must stay finite.
    """
    rho = keys.view(np.float64)
    for i in range(p.size):
        # adding 0 turns -0.0 into 0.0, whose bits are in order
        ratio = (p[i] / q[i] if q[i] > 0.0 else np.inf) + 0.0
        rho[i] = ratio if ratio < LARGEST_RATIO else np.inf
    n_finite = 0
    n_positive = 0
    for i in range(p.size):
        n_finite += keys[i] < INFINITE
        n_positive += q[i] > 0.0
    return n_finite, n_positive - n_finite


@njit
def bits_beyond(span, n_buckets):
    """How far to shift numbers up to `span` so that at most `n_buckets` are told apart."""
    bits = (np.float64(span).view(np.int64) >> FRACTION_BITS) - FLOAT_BIAS + 1
    room = (np.float64(n_buckets).view(np.int64) >> FRACTION_BITS) - FLOAT_BIAS
    return max(bits - room, 0) if span > 0 else 0


@njit
def bounds_of(keys, start, stop):
    """Least and largest key of a piece; zeros if it is empty."""
    low = high = keys[start] if start < stop else 0
    for i in range(start + 1, stop):
        low = min(low, keys[i])
        high = max(high, keys[i])
    return low, high


@njit
def insert(keys, order, start, stop):
    """Sort a short piece in place; equal keys keep their order."""
    for i in range(start + 1, stop):
        key = keys[i]
        token = order[i]
        j = i
        while j > start and keys[j - 1] > key:
            keys[j] = keys[j - 1]
            order[j] = order[j - 1]
            j -= 1
        keys[j] = key
        order[j] = token


@njit
def count_out(keys, order, start, stop, low, high, sorted_keys, sorted_order, ends):
    """Sort a piece whose keys are few numbers apart: every number has a bucket, so none need be moved."""
    last = high - low
    ends[: last + 1] = 0
    for i in range(start, stop):
        ends[keys[i] - low] += 1
    at = start
    for b in range(last + 1):
        end = at + ends[b]
        ends[b] = at
        for i in range(at, end):
            sorted_keys[i] = low + b
        at = end
    for i in range(start, stop):
        b = keys[i] - low
        at = ends[b]
        ends[b] = at + 1
        sorted_order[at] = order[i]


@njit
def sort_group(keys, order, start, stop, spare_keys, spare_order, ends, waiting):
    """Sort a long piece in place by counting sorts, each on the bits that its keys differ in."""
    waiting[0, 0] = start
    waiting[0, 1] = stop
    n_waiting = 1
    while n_waiting > 0:
        n_waiting -= 1
        start = waiting[n_waiting, 0]
        stop = waiting[n_waiting, 1]
        low, high = bounds_of(keys, start, stop)
        if low == high:
            continue
        shift = bits_beyond(high - low, min(stop - start, MOST_BUCKETS))
        n_buckets = ((high - low) >> shift) + 1
        ends[: n_buckets + 1] = 0
        for i in range(start, stop):
            ends[((keys[i] - low) >> shift) + 1] += 1
        at = start
        for b in range(n_buckets + 1):
            at += ends[b]
            ends[b] = at
        for i in range(start, stop):
            b = (keys[i] - low) >> shift
            at = ends[b]
            ends[b] = at + 1
            spare_keys[at] = keys[i]
            spare_order[at] = order[i]
        keys[start:stop] = spare_keys[start:stop]
        order[start:stop] = spare_order[start:stop]
        if shift == 0:
            continue
        begin = start
        for b in range(n_buckets):
            end = ends[b]
            if end - begin > FEW:
                waiting[n_waiting, 0] = begin
                waiting[n_waiting, 1] = end
                n_waiting += 1
            elif end - begin > 1:
                insert(keys, order, begin, end)
            begin = end


@njit
def sort_keys(keys, sorted_keys, order):
    """Write the stable ascending order of `keys` (V,) and the keys in it.

    Zero and infinity have buckets of their own at the two ends: many tokens may hold them, and they
    would stretch the span of all others.
    """
    n = keys.size
    low = INFINITE
    high = 0
    for i in range(n):
        key = keys[i]
        low = min(low, key if key > 0 else INFINITE)
        high = max(high, key if key < INFINITE else 0)
    low = min(low, high)
    shift = bits_beyond(high - low, n // 2)
    last = ((high - low) >> shift) + 2
    ends = np.zeros(last + 2, dtype=np.int64)
    for i in range(n):
        key = keys[i]
        b = ((key - low) >> shift) + 1 if key > 0 else 0
        b = b if key < INFINITE else last
        order[i] = b  # until it holds the order itself
        ends[b + 1] += 1
    at = 0
    for b in range(last + 2):
        at += ends[b]
        ends[b] = at
    spare_keys = np.empty(n, dtype=np.int64)
    spare_order = np.empty(n, dtype=np.int64)
    for i in range(n):
        b = order[i]
        at = ends[b]
        ends[b] = at + 1
        spare_keys[at] = keys[i]
        spare_order[at] = i
    own_ends = np.empty(MOST_BUCKETS + 2, dtype=np.int64)
    waiting = np.empty((n // FEW + 2, 2), dtype=np.int64)
    begin = 0
    for b in range(last + 1):
        end = ends[b]
        least, most = (0, 0) if b == 0 or b == last else bounds_of(spare_keys, begin, end)
        is_long = end - begin > FEW
        if is_long and least < most < least + MOST_BUCKETS:
            count_out(
                spare_keys, spare_order, begin, end, least, most, sorted_keys, order, own_ends
            )
        else:
            for i in range(begin, end):
                sorted_keys[i] = spare_keys[i]
                order[i] = spare_order[i]
            if is_long and least < most:
                sort_group(
                    sorted_keys, order, begin, end, spare_keys, spare_order, own_ends, waiting
                )
            elif least < most:
                insert(sorted_keys, order, begin, end)
        begin = end
