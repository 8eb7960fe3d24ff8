"""Where a walk collects its law: terms ``c min(w q, p)`` at the index ``k(w)``, and corrections.

Two rows each: row 0 for paths that were walked to their end, row 1 for those that were cut off.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from resispec_sim.engine.jit import njit
from resispec_sim.engine.ratio_space import RatioSpace

FloatArray = NDArray[np.float64]


class Terms(NamedTuple):
    """Sums over the terms of a law, in ratio order. V = tokens.

    A rejected token is left out of its path's term. What it would have held is counted apart, in the
    unit of the term (`full`, `full_w`), since p or q times a difference of counts loses nothing where
    the difference of products would.
    """

    cnt: FloatArray  # (2, V + 1) sum of c at k(w)
    cnt_low: FloatArray  # (2, V + 1) rounding of cnt
    cw: FloatArray  # (2, V + 1) sum of c w at k(w)
    cw_low: FloatArray  # (2, V + 1) rounding of cw
    point: FloatArray  # (2, V) mass to add at one token
    full: FloatArray  # (2, V) sum of c over terms that leave out a token of theirs below k(w)
    full_w: FloatArray  # (2, V) sum of c w over those that leave out one at or above k(w)
    full_w_low: FloatArray  # (2, V) rounding of full_w
    tail: FloatArray  # (2, 1) multiple of p on the tokens that are never drafted
    tail_low: FloatArray  # (2, 1) rounding of tail
    work: FloatArray  # (1,) tokens that had to be summed one by one


def new_terms(vocab_size: int) -> Terms:
    """Empty sums."""
    v = vocab_size
    shapes = (*[(2, v + 1)] * 4, (2, v), (2, v), (2, v), (2, v), (2, 1), (2, 1), (1,))
    return Terms(*(np.zeros(shape) for shape in shapes))


def sum_law(space: RatioSpace, terms: Terms, base: tuple[float, float]) -> FloatArray:
    """Mass per token (2, V); `base` multiplies p itself."""
    # extended precision where the machine has it: two large sums may differ by little
    counts = terms.cnt.astype(np.longdouble) + terms.cnt_low
    above = np.cumsum(counts[:, ::-1], axis=1)[:, ::-1][:, 1:]
    weighted = np.cumsum(terms.cw.astype(np.longdouble) + terms.cw_low, axis=1)[:, :-1]
    left_out = terms.full_w.astype(np.longdouble) + terms.full_w_low
    law = space.p * (above - terms.full).astype(np.float64) + space.q * (
        weighted - left_out
    ).astype(np.float64)
    law += terms.point + np.array(base)[:, None] * space.p
    law[:, space.n_drafted :] += (terms.tail + terms.tail_low) * space.p[space.n_drafted :]
    return law


@njit
def add_exactly(high, low, row, i, value):
    """``high[row, i] += value``, with what rounding drops kept in `low`."""
    before = high[row, i]
    after = before + value
    part = after - before
    low[row, i] += (before - (after - part)) + (value - part)
    high[row, i] = after
