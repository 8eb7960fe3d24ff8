"""Exponential and logarithm in float64 of a form that compiles to vector instructions.

A call of the C library's functions in a loop keeps a compiler from vectorising it, and numpy has
vectorised ones for few processors only.
"""

from __future__ import annotations

import numpy as np

from resispec_sim.engine.jit import inlined, njit

LOG2_E = 1.4426950408889634
# ln 2 in two parts; the first has so few bits that its product with an exponent is exact
LN2_HIGH, LN2_LOW = 6.93147180369123816490e-01, 1.90821492927058770002e-10
# Adding it rounds a small float to a whole number and leaves that in the low bits of the fraction.
ROUNDER = 6755399441055744.0
ROUNDER_BITS = 0x4338000000000000
LOWEST = -746.0  # exp of it is 0 in float64; also what -inf is put at
ROOT_HALF_BITS = 0x3FE6A09E667F3BCD  # of the float sqrt(1/2)

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

# 2 (atanh(s) / s - 1) / s**2 at the Chebyshev nodes of s**2, where exp(2 atanh(s)) lies between
# sqrt(1/2) and sqrt(2): relative error of log below 5e-18
L0, L1, L2, L3, L4, L5, L6 = (
    0.666666666666667,
    0.3999999999989938,
    0.28571428626031065,
    0.22222211125723262,
    0.1818288978615799,
    0.15331699634642276,
    0.146167211662876,
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
def log_of(x):
    """``log`` of a positive normal float, within one unit in the last place; else some finite number."""
    bits = np.float64(x).view(np.int64)
    # an unsigned shift, which vectorises, of a number that was made positive
    exponent = ((bits - ROOT_HALF_BITS + (1 << 62)) >> 52) - (1 << 10)
    f = np.int64(bits - (exponent << 52)).view(np.float64) - 1.0
    whole = np.int64(exponent + ROUNDER_BITS).view(np.float64) - ROUNDER
    s = f / (2.0 + f)
    z = s * s
    z2 = z * z
    tail = z * (((L0 + L1 * z) + (L2 + L3 * z) * z2) + ((L4 + L5 * z) + L6 * z2) * (z2 * z2))
    half = 0.5 * f * f
    return whole * LN2_HIGH - ((half - (s * (half + tail) + whole * LN2_LOW)) - f)


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


@inlined
def two_sum(high, low, value, value_low):
    """``high + low + value + value_low`` as a number and its rounding."""
    after = high + value
    part = after - high
    return after, low + ((high - (after - part)) + (value - part)) + value_low
