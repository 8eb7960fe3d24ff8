"""All figures of SpecInfer at one position, block by block of tokens, with no array of V masses.

Writing masses and reading them again takes most of the time otherwise, and a replay keeps none of them.
The formulas are those of `specinfer`, `appendix_b` and `distance_kernels`; only the order is another.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from resispec_sim.engine.appendix_b import (
    TOTAL_TOLERANCE,
    Proxies,
    reaches,
    reconstruct_block,
    whole,
)
from resispec_sim.engine.distance_kernels import BLOCK, add_divergences
from resispec_sim.engine.elementary import sum_side_by_side
from resispec_sim.engine.jit import njit
from resispec_sim.engine.result import check_total
from resispec_sim.engine.specinfer import assemble_block, take_steps

FloatArray = NDArray[np.float64]


class Summary(NamedTuple):
    """Figures of one position; see `resispec_sim.engine.law.Law`."""

    accepted: FloatArray  # (K,)
    accepted_here: float  # the mass accepted at the token that was asked for
    tv: float
    kl: float
    tv_lower_bound: float
    excess_token: int  # the token whose mass in the law exceeds that in the target most
    excess_mass: float
    appendix_b_kl: float
    appendix_b_kl_random: float


def specinfer_summary(
    target_probs: FloatArray,
    draft_probs: FloatArray,
    n_siblings: int,
    token: int,
    random: Proxies,
    *,
    multipliers: Sequence[float] | None = None,
) -> Summary | None:
    """Figures of the law of `specinfer_outcome` and of two Appendix B reconstructions; O(nV).

    Parameters
    ----------
    target_probs, draft_probs : ndarray (V,)
    n_siblings : int
    token : int
        Of `Summary.accepted_here`.
    random : Proxies
        Those of the second reconstruction; the first one takes the rule's, the draft each time.
    multipliers : sequence of float, (K,), optional
        As in `specinfer_outcome`.

    Returns
    -------
    Summary, or None
        None where a divergence passes the float range or a reconstruction is no distribution, which
        the functions for one figure each can say more about.

    Raises
    ------
    MassError
        If the law does not sum to 1 within 1e-12.
    """
    p, q = np.ascontiguousarray(target_probs), np.ascontiguousarray(draft_probs)
    accepted, steps = take_steps(p, q, n_siblings, multipliers)
    # the rule's proxy is the draft: the mass taken is the acceptance of a sibling that is reached
    reached = steps[2, : steps.shape[1] - 1]
    betas = np.append(accepted[: reached.size] / reached, np.ones(n_siblings - reached.size))
    own = whole(q, p.size, n_siblings, 0)
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        figures, excess_token = summarise(
            p, q, steps, own, reaches(p, own, betas), random, reaches(p, random)
        )
    (total, kl), *reconstructed = figures[:3]
    check_total(float(total), "the law of specinfer")
    if not np.isfinite(figures).all() or any(
        abs(row[0] - 1.0) > TOTAL_TOLERANCE for row in reconstructed
    ):
        return None
    tv, lower_bound, excess = figures[3, 0], figures[3, 1], figures[4, 0]
    here, spare = np.zeros(1), np.empty(1)
    for k in range(reached.size):
        assemble_block(p[token : token + 1], q[token : token + 1], steps, k, spare, here)
    return Summary(
        accepted,
        float(here[0]),
        float(tv),
        float(kl),
        float(lower_bound),
        int(excess_token),
        float(excess),
        float(reconstructed[0][1]),
        float(reconstructed[1][1]),
    )


@njit
def summarise(p, q, steps, own, own_reaches, random, random_reaches):
    """``(figures, token of the excess)``; figures (5, 2), not finite where a divergence is not.

    Rows 0 to 2: sum and KL of the law and of the two reconstructions; row 3: TV of the law and its lower
    bound; row 4: the excess.
    """
    last = steps.shape[1] - 1
    level, scale, reach = steps[:, last]
    sums, terms, distance = np.zeros((3, BLOCK)), np.zeros((3, BLOCK)), np.zeros(BLOCK)
    over, excess, found = np.zeros(BLOCK), np.full(BLOCK, -np.inf), np.zeros(BLOCK)
    masses, work = np.empty(BLOCK), np.empty(BLOCK)
    n_lost = 0
    for start in range(0, p.size, BLOCK):
        target, draft = p[start : start + BLOCK], q[start : start + BLOCK]
        law, spare = masses[: target.size], work[: target.size]
        for i in range(law.size):
            law[i] = 0.0
        for k in range(last):
            assemble_block(target, draft, steps, k, spare, law)
        for i in range(law.size):
            over[i] += max(law[i] - target[i], 0.0)
            law[i] += reach * (max(target[i] - level * draft[i], 0.0) * scale)
        begin = float(start)
        for i in range(law.size):
            more, most, where = law[i] - target[i], excess[i], found[i]
            found[i] = begin if more > most else where
            excess[i] = max(more, most)
            distance[i] += abs(more)
        for row in range(3):
            if row == 1:
                reconstruct_block(target, start, own, own_reaches, spare, law)
            elif row == 2:
                reconstruct_block(target, start, random, random_reaches, spare, law)
            outside, huge = add_divergences(law, target, terms[row], work)
            n_lost += outside + huge
            lanes = sums[row]
            for i in range(law.size):
                lanes[i] += law[i]
    figures = np.zeros((5, 2))
    for row in range(3):
        figures[row, 0] = sum_side_by_side(sums[row])
        figures[row, 1] = sum_side_by_side(terms[row]) if n_lost == 0 else np.inf
    figures[3, 0] = 0.5 * sum_side_by_side(distance)
    figures[3, 1] = sum_side_by_side(over)
    figures[4, 0] = excess.max()
    token = p.size
    for i in range(BLOCK):
        if excess[i] == figures[4, 0]:
            token = min(token, int(found[i]) + i)
    return figures, token
