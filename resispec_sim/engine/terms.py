"""Where a walk collects its law: terms ``c min(w q, p)`` at the index ``k(w)``, and corrections.

Two rows each: row 0 for paths that were walked to their end, row 1 for those that were cut off.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from resispec_sim.engine.elementary import two_sum
from resispec_sim.engine.jit import inlined, kernel
from resispec_sim.engine.ratio_space import RatioSpace
from resispec_sim.engine.series import POINT_TERMS
from resispec_sim.engine.tail import DEGREE, TAIL_OCTAVE, octave

FloatArray = NDArray[np.float64]
CNT, CNT_LOW, CW, CW_LOW = 0, 1, 2, 3


class Terms(NamedTuple):
    """Sums over the terms of a law, in ratio order. R = rows (2, or 1 where nothing is cut off).

    A rejected token is left out of its path's term. For fill ``water`` what it would have held is
    counted apart, in the unit of the term (`full`, `full_w`), since p or q times a difference of counts
    loses nothing where the difference of products would.
    """

    sums: FloatArray  # (R, K + 1, 4) sum of c at k(w), its rounding, sum of c w, its rounding
    point: FloatArray  # (R, V) mass to add at one token
    series: FloatArray  # (K + 1, 12) mass to add at the tail's tokens below an index, as a series
    full: FloatArray  # (R, V) sum of c over terms that leave out a token of theirs below k(w)
    full_w: FloatArray  # (R, V) sum of c w over those that leave out one at or above k(w)
    full_w_low: FloatArray  # (R, V) rounding of full_w
    tail: FloatArray  # (R, 1) multiple of p on the tokens that are never drafted
    tail_low: FloatArray  # (R, 1) rounding of tail
    work: FloatArray  # (1,) tokens that had to be summed one by one


class Accepted(NamedTuple):
    """What a walk finds of acceptance, in ratio order. n = siblings, V = tokens, K = places below n_over."""

    mass: FloatArray  # (n,) accepted mass per sibling
    lost: FloatArray  # (n + 1,) mass that was cut off before a sibling was tried; last: in all
    terms: FloatArray  # (n, K + 1, 4) terms min(w q, p) at k(w): number, sum of w, each with its rounding
    point: FloatArray  # (n, V) mass to add at one token
    series: (
        FloatArray  # (K + 1, 2) of the last sibling: mass to add at the tail's tokens, as a series
    )
    before: FloatArray  # (K + 1, 2) likewise of the sibling before; times q, of the last one too


def new_accepted(
    space: RatioSpace, n_siblings: int, *, series: bool, pairs: bool = False
) -> Accepted:
    """Sums that hold the first sibling, which no rejection precedes: its weight is 1.

    `pairs`: whether the last two siblings are summed together, without a law.
    """
    n, places = n_siblings, space.n_over + 1
    accepted = Accepted(
        mass=np.zeros(n),
        lost=np.zeros(n + 1),
        terms=np.zeros((n, places, 4)),
        point=np.zeros((n, space.p.size)),
        series=np.zeros((places if series else 0, 2)),
        before=np.zeros((places if series and pairs else 0, 2)),
    )
    accepted.mass[0] = space.prefix_p[space.n_over] + space.suffix_q[space.n_over]
    accepted.terms[0, space.n_over, CNT] = accepted.terms[0, space.n_over, CW] = 1.0
    return accepted


def new_terms(space: RatioSpace, *, water: bool, cuts: bool, series: bool) -> Terms:
    """Empty sums; a water level may lie above every ratio below 1."""
    rows = 2 if cuts else 1
    vocab = space.p.size
    places = vocab if water else space.n_over
    full = vocab if water else 0
    return Terms(
        sums=np.zeros((rows, places + 1, 4)),
        point=np.zeros((rows, vocab)),
        series=np.zeros((places + 1 if series else 0, POINT_TERMS)),
        full=np.zeros((rows, full)),
        full_w=np.zeros((rows, full)),
        full_w_low=np.zeros((rows, full)),
        tail=np.zeros((rows, 1)),
        tail_low=np.zeros((rows, 1)),
        work=np.zeros(1),
    )


def sum_law(space: RatioSpace, terms: Terms, base: FloatArray) -> FloatArray:
    """Mass per token (R, V); `base` multiplies p itself."""
    law = np.empty(terms.point.shape)
    _sum_law(space, terms, base, np.zeros(POINT_TERMS), law)
    return law


@kernel
def _sum_law(space, terms, base, total, law):
    p = space.p
    for row in range(law.shape[0]):
        mass, point = law[row], terms.point[row]
        for y in range(p.size):
            mass[y] = point[y] + base[row] * p[y]
        _sum_places(
            space, terms.sums[row], terms.full[row], terms.full_w[row], terms.full_w_low[row], mass
        )
        share = terms.tail[row, 0] + terms.tail_low[row, 0]
        for y in range(space.n_drafted, p.size):
            mass[y] += share * p[y]
    if terms.series.shape[0] > 0:
        add_series(space, terms.series, 2, DEGREE, total, law[0])


def sum_accepted(space: RatioSpace, accepted: Accepted) -> FloatArray:
    """Accepted mass by token (n, V), from terms ``min(w q, p)`` and what was left out of them."""
    by_token = accepted.point.copy()
    _sum_accepted(space, accepted, np.zeros(0), np.zeros((3, 2)), by_token)
    return by_token


@kernel
def _sum_accepted(space, accepted, nothing, totals, by_token):
    for row in range(by_token.shape[0]):
        _sum_places(space, accepted.terms[row], nothing, nothing, nothing, by_token[row])
    if accepted.series.shape[0] > 0:
        add_series(space, accepted.series, 2, 2, totals[0], by_token[-1])
    if accepted.before.shape[0] > 0:
        add_series(space, accepted.before, 2, 2, totals[1], by_token[-2])
        add_series(space, accepted.before, 3, 3, totals[2], by_token[-1])


@kernel
def _sum_places(space, sums, full, full_w, full_w_low, mass):
    """Add what terms at their places come to at each token, less what is left out (or arrays of size 0)."""
    p, q = space.p, space.q
    places = sums.shape[0] - 1
    # from above: the terms that hold all of p at a token
    high, low = 0.0, 0.0
    for y in range(p.size - 1, -1, -1):
        if y < places:
            high, low = two_sum(high, low, sums[y + 1, CNT], sums[y + 1, CNT_LOW])
        count = high + low
        if full.size > 0:
            count = (high - full[y]) + low
        mass[y] += p[y] * count
    high, low = 0.0, 0.0
    for y in range(p.size):
        if y <= places:
            high, low = two_sum(high, low, sums[y, CW], sums[y, CW_LOW])
        weighted = high + low
        if full.size > 0:
            weighted = (high - full_w[y]) + (low - full_w_low[y])
        mass[y] += q[y] * weighted


@inlined
def accept_next(level, w, k, scale, space, tokens, n_tokens, accepted):
    """Count what sibling `level` (an index) has accepted after a path of weight w, mass apart."""
    add_term(accepted.terms[level], k, scale, scale * w)
    for i in range(n_tokens):
        e = tokens[i]
        accepted.point[level, e] -= scale * min(space.p[e], w * space.q[e])


@kernel
def add_series(space, series, lowest, highest, total, mass):
    """Add what the series of all states above each token of the tail come to; `total` starts at 0."""
    for y in range(series.shape[0] - 2, space.n_zero - 1, -1):
        for m in range(total.size):
            total[m] += series[y + 1, m]
        if octave(space.q[y]) < TAIL_OCTAVE:
            continue
        ratio = space.p[y] / space.q[y]
        head = 1.0
        for _ in range(lowest):
            head *= space.q[y]
        m = 0
        value = 0.0
        for degree in range(lowest, highest + 1):
            power = head
            for _ in range(degree + 1):
                if m == total.size:
                    # accepted mass has no term in p**2
                    break
                value += total[m] * power
                power *= ratio
                m += 1
            head *= space.q[y]
        mass[y] += value


@inlined
def add_term(sums, k, c, cw):
    """Add a term to its place, with what rounding drops kept beside it."""
    sums[k, CNT], sums[k, CNT_LOW] = two_sum(sums[k, CNT], sums[k, CNT_LOW], c, 0.0)
    sums[k, CW], sums[k, CW_LOW] = two_sum(sums[k, CW], sums[k, CW_LOW], cw, 0.0)


@inlined
def add_exactly(high, low, row, i, value):
    """``high[row, i] += value``, with what rounding drops kept in `low`."""
    high[row, i], low[row, i] = two_sum(high[row, i], low[row, i], value, 0.0)
