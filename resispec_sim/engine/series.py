"""Taylor series of what light children add to a law, in ``a = q_x`` and ``b = p_x / w`` up to degree 4.

With Q the draft mass of tokens with p > 0 off the rejected ones and r = 1 - Q, a child is so light that
all of them are clipped on the draft's side: ``G = w (a - b)(Q - a)``. Then

    g  = (a - b) / D,    D = 1 - (a Q + b r - a**2 + a b)
    t  = (r + a) g       share of the parent's shape in the child's residual
    cw = w (1 - a) g     weight of the child's own term ``c min(w' q, p)``
    f  = (a (1 - a) + b (r + a)) g    what token x must be left out of both, over w

so every sum over such children is a sum of moments. A token with p = 0 has b = 0 and is never clipped
itself: ``G = w a Q`` and ``t = a r / (1 - a Q)``.

Legend: coefficients (15,) of ``a**i b**j`` by degree, j ascending; k = index of the state's weight.
"""

from __future__ import annotations

from resispec_sim.engine.jit import inlined, kernel
from resispec_sim.engine.tail import DEGREE

POINT_TERMS = 12  # coefficients of degree 2 to 4


@inlined
def at(i, j):
    """Place of ``a**i b**j``."""
    return (i + j) * (i + j + 1) // 2 + j


@kernel
def fill_g(open_q, g):
    """Coefficients of ``g`` from ``g D = a - b``, degree by degree."""
    rest = 1.0 - open_q
    g[0] = 0.0
    for degree in range(1, DEGREE + 1):
        for j in range(degree + 1):
            i = degree - j
            value = 0.0
            if degree == 1:
                value = 1.0 if j == 0 else -1.0
            if i > 0:
                value += open_q * g[at(i - 1, j)]
            if j > 0:
                value += rest * g[at(i, j - 1)]
            if i > 1:
                value -= g[at(i - 2, j)]
            if i > 0 and j > 0:
                value += g[at(i - 1, j - 1)]
            g[at(i, j)] = value


@kernel
def times_linear(constant, slope, series, product):
    """``(constant + slope a) series``."""
    for degree in range(DEGREE + 1):
        for j in range(degree + 1):
            i = degree - j
            value = constant * series[at(i, j)]
            if i > 0:
                value += slope * series[at(i - 1, j)]
            product[at(i, j)] = value


@kernel
def times_powers(powers, series, product):
    """``(sum of powers[m] a**m) series``."""
    for degree in range(DEGREE + 1):
        for j in range(degree + 1):
            i = degree - j
            value = 0.0
            for m in range(i + 1):
                value += powers[m] * series[at(i - m, j)]
            product[at(i, j)] = value


@kernel
def sum_series(series, w, moments):
    """Sum of a series over the tokens of a row of moments; `moments` are of q and p, b is p / w."""
    total = 0.0
    m = 0
    for degree in range(DEGREE + 1):
        scale = 1.0
        for _ in range(degree + 1):
            total += series[m] * moments[m] * scale
            scale /= w
            m += 1
    return total


@kernel
def add_points(factor, series, w, row):
    """Add ``factor`` times a series without terms below degree 2 to the coefficients in q and p."""
    m = 3
    inverse = 1.0 / w
    for degree in range(2, DEGREE + 1):
        scale = factor
        for _ in range(degree + 1):
            row[m - 3] += series[m] * scale
            scale *= inverse
            m += 1
