"""One and two siblings of RRS without replacement: exact, one look-up per first rejected token."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from resispec_sim.engine.ratio_look_up import sum_above, sum_below, uncovered_at
from resispec_sim.engine.ratio_space import RatioSpace
from resispec_sim.engine.result import Outcome

FloatArray = NDArray[np.float64]

NEGLIGIBLE = 1e-13


def up_to_two(space: RatioSpace, n: int, scale: float) -> Outcome:
    """Law of one or two siblings in ratio order; `scale` multiplies what a rejection adds to ``C``."""
    p, q = space.p, space.q
    first = np.minimum(p, q)
    left = np.maximum(p - scale * q, 0.0)
    by_token = [first]
    weight = np.maximum(q[: space.n_over] - p[: space.n_over], 0.0)
    reach = float(weight.sum())
    residual = left / left.sum() if left.any() else p
    rest = reach * residual
    if n == 2:
        second = np.zeros_like(p)
        # below that, what is rejected at all is rounding
        if reach > NEGLIGIBLE and float(left.sum()) > NEGLIGIBLE:
            second, rest = _second(space, weight, scale)
        by_token.append(second)
    masses = np.stack(by_token)
    return Outcome(masses.sum(axis=0) + rest, masses.sum(axis=1), masses, "exact", n * space.n_over)


def _second(space: RatioSpace, weight: FloatArray, scale: float) -> tuple[FloatArray, FloatArray]:
    """Accepted mass of the second sibling by token, and what is emitted after both rejections."""
    p, q, rho = space.p, space.q, space.rho[: space.n_drafted]
    k_one = int(np.searchsorted(rho, scale))
    left = float(uncovered_at(scale, k_one, space))
    draft_left = open_masses(q, space.n_over)
    # the draft as drawn sets the acceptance, the recursion the residual
    level = scale + left / draft_left
    multiplier = scale + scale * left / draft_left
    k_level = np.searchsorted(rho, level)
    still = uncovered_at(level, k_level, space)
    accepted = sum_below(space, *_sums(space, weight / left, level, k_level))
    accepted -= weight.sum() / left * np.minimum(p, scale * q)
    k_rest = np.searchsorted(rho, multiplier)
    open_rest = uncovered_at(multiplier, k_rest, space)
    # rejected for good with probability still / left; the residual's own mass normalises it
    ratio = np.divide(still, open_rest, out=np.zeros_like(still), where=open_rest > 0)
    rest = sum_above(space, *_sums(space, weight / left * ratio, multiplier, k_rest))
    lost = float((weight / left * still)[open_rest <= 0].sum())
    return np.maximum(accepted, 0.0), rest + lost * p


def open_masses(q: FloatArray, n_over: int) -> FloatArray:
    """``1 - q_x`` for each of the first tokens; summed anew where it would lose digits."""
    masses = 1.0 - q[:n_over]
    for x in np.flatnonzero(masses < 0.5):
        masses[x] = q[:x].sum() + q[x + 1 :].sum()
    return masses


def _sums(
    space: RatioSpace, coefficient: FloatArray, level: FloatArray, index: NDArray[np.int64]
) -> tuple[FloatArray, FloatArray]:
    size = space.p.size + 1
    count, weighted = np.zeros(size), np.zeros(size)
    np.add.at(count, index, coefficient)
    np.add.at(weighted, index, coefficient * level)
    return count, weighted
