"""The softmax of rows of logits in float64, with an exponential that compiles to vector instructions.

A call of the C library's ``exp`` in a loop keeps a compiler from vectorising it, and numpy has a
vectorised one for few processors only. Legend: B = rows, V = tokens.
"""

from __future__ import annotations

import numpy as np

from resispec_sim.engine.jit import njit

LOG2_E = 1.4426950408889634
# ln 2 in two parts; the first has so few bits that its product with an exponent is exact
LN2_HIGH, LN2_LOW = 6.93147180369123816490e-01, 1.90821492927058770002e-10
# Adding it rounds a small float to a whole number and leaves that in the low bits of the fraction.
ROUNDER = 6755399441055744.0
ROUNDER_BITS = 0x4338000000000000
LOWEST = -746.0  # exp of it is 0 in float64; also what -inf is put at
BLOCK = 512  # tokens whose exponentials stay in the first-level cache until they are summed

# (exp(r) - 1 - r) / r**2 at the Chebyshev nodes of |r| <= ln(2)/2: relative error of exp below 2e-17
K0, K1, K2, K3, K4 = (
    0.5000000000000001,
    0.16666666666666669,
    0.04166666666662413,
    0.008333333333330062,
    0.0013888888917213717,
)
K5, K6, K7, K8, K9 = (
    0.00019841269863053618,
    2.4801521295954376e-05,
    2.7557268459997064e-06,
    2.7620088445409746e-07,
    2.510038549551032e-08,
)


@njit
def exp_in_place(values):
    """``exp`` of entries that are at most 0, within one unit in the last place; below -745 it is 0."""
    for i in range(values.size):
        x = values[i]
        x = x if x > LOWEST else LOWEST
        whole = (x * LOG2_E + ROUNDER) - ROUNDER
        r = (x - whole * LN2_HIGH) - whole * LN2_LOW
        r2 = r * r
        r4 = r2 * r2
        low = (K0 + K1 * r) + (K2 + K3 * r) * r2
        high = (K4 + K5 * r) + (K6 + K7 * r) * r2
        exp_r = 1.0 + (r + r2 * ((low + high * r4) + (K8 + K9 * r) * (r4 * r4)))
        # 2**whole in two factors, since a subnormal result is below the smallest normal power
        half = whole * 0.5 + ROUNDER
        rest = (whole - (half - ROUNDER)) + ROUNDER
        first = (np.float64(half).view(np.int64) - ROUNDER_BITS + 1023) << 52
        second = (np.float64(rest).view(np.int64) - ROUNDER_BITS + 1023) << 52
        values[i] = exp_r * np.int64(first).view(np.float64) * np.int64(second).view(np.float64)


@njit
def sum_side_by_side(values):
    """Sum in eight chains, which a processor adds side by side."""
    a = b = c = d = e = f = g = h = 0.0
    end = values.size & ~7
    for i in range(0, end, 8):
        a += values[i]
        b += values[i + 1]
        c += values[i + 2]
        d += values[i + 3]
        e += values[i + 4]
        f += values[i + 5]
        g += values[i + 6]
        h += values[i + 7]
    for i in range(end, values.size):
        a += values[i]
    return ((a + b) + (c + d)) + ((e + f) + (g + h))


@njit
def softmax_rows(logits, peak, temperature, probs):
    """Write ``exp((logits - peak) / temperature)`` divided by its sum, row by row, into `probs`.

    Shapes: logits and probs (B, V), peak (B,), the finite largest logit of each row.
    """
    for row in range(logits.shape[0]):
        scores, out = logits[row], probs[row]
        highest = np.float64(peak[row])
        total = low = 0.0
        for start in range(0, out.size, BLOCK):
            # slices, since the compiler takes an index that may be negative one by one
            given, block = scores[start : start + BLOCK], out[start : start + BLOCK]
            if temperature == 1.0:
                for i in range(block.size):
                    block[i] = np.float64(given[i]) - highest
            else:
                for i in range(block.size):
                    block[i] = (np.float64(given[i]) - highest) / temperature
            exp_in_place(block)
            piece = sum_side_by_side(block)
            before = total
            total = before + piece
            part = total - before
            low += (before - (total - part)) + (piece - part)
        total += low
        for i in range(out.size):
            out[i] /= total
