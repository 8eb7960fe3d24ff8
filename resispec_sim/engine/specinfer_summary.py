"""All figures of SpecInfer at one position, block by block of tokens, with no array of V masses.

Writing masses and reading them again takes most of the time otherwise, and a replay keeps none of them.
The formulas are those of `specinfer`, `appendix_b` and `distance_kernels`; only the order is another.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from resispec_sim.engine.appendix_b import (
    TOTAL_TOLERANCE,
    Proxies,
    reaches,
    reaches_of,
    take,
)
from resispec_sim.engine.distance_kernels import LEAST, VERY_NEAR, add_divergences
from resispec_sim.engine.elementary import sum_side_by_side
from resispec_sim.engine.jit import kernel, njit
from resispec_sim.engine.result import check_total
from resispec_sim.engine.specinfer import take_steps

FloatArray = NDArray[np.float64]

SPAN = 256  # tokens of a block: it, its masses and all lanes stay in the first-level cache


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
    n_paths: int
    method: str = "exact"
    notes: tuple[str, ...] = ()


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
    figures, excess_token, accepted_here = summarise(p, q, accepted, steps, token, *random)
    total, kl, own_total, own_kl, random_total, random_kl, tv, lower_bound, excess = (
        figures.tolist()
    )
    check_total(total, "the law of specinfer")
    if not math.isfinite(sum(map(abs, (kl, own_kl, random_kl, tv, lower_bound, excess)))) or not (
        abs(own_total - 1.0) <= TOTAL_TOLERANCE and abs(random_total - 1.0) <= TOTAL_TOLERANCE
    ):
        return None
    return Summary(
        accepted,
        accepted_here,
        tv,
        kl,
        lower_bound,
        excess_token,
        excess,
        own_kl,
        random_kl,
        n_siblings,
    )


@kernel
def accept_first(target, draft, law, total, left):
    """The mass accepted at the first step, which also is what a reconstruction takes first."""
    for i in range(target.size):
        own, share = target[i], draft[i]
        mass = min(share, own)
        law[i] = mass
        total[i] = mass
        left[i] = own - mass


@kernel
def add_accepted(target, draft, level, scale, reach, law):
    """Add the mass that is accepted at a later step to a block of the law."""
    for i in range(target.size):
        share = draft[i]
        residual = max(target[i] - level * share, 0.0) * scale
        law[i] += reach * min(residual, share)


@kernel
def add_two(target, draft, one, other, law):
    """`add_accepted` of two steps (3,), with the block read once."""
    level, scale, reach = one[0], one[1], one[2]
    level_2, scale_2, reach_2 = other[0], other[1], other[2]
    for i in range(target.size):
        own, share = target[i], draft[i]
        mass = reach * min(max(own - level * share, 0.0) * scale, share)
        mass_2 = reach_2 * min(max(own - level_2 * share, 0.0) * scale_2, share)
        law[i] = (law[i] + mass) + mass_2


@kernel
def take_draft(left, draft, factor, weight, total):
    """`resispec_sim.engine.appendix_b.take` with the draft as proxy, all over a block."""
    for i in range(left.size):
        own = left[i] * factor
        mass = min(draft[i], own)
        total[i] += weight * mass
        left[i] = own - mass


@kernel
def add_residual(target, draft, level, scale, reach, law, over):
    """Complete a block of accepted masses to the law; add what of them exceeds the target."""
    for i in range(law.size):
        over[i] += max(law[i] - target[i], 0.0)
    for i in range(law.size):
        law[i] += reach * (max(target[i] - level * draft[i], 0.0) * scale)


@kernel
def distance_of_law(target, law, away, distance, sums, most):
    """Write ``M - p`` of a block; count the tokens not very near p, and those beyond `most`."""
    n_away = n_more = 0
    for i in range(law.size):
        mass, share = law[i], target[i]
        more = mass - share
        away[i] = more
        sums[i] += mass
        n_away += abs(more) > VERY_NEAR * share
        n_more += more > most
    for i in range(law.size):
        distance[i] += abs(away[i])
    return n_away, n_more


@kernel
def distance_of_sum(target, left, factor, total, away, sums):
    """Add what is left, times `factor`, to a reconstructed block; then as `distance_of_law`."""
    n_away = 0
    for i in range(total.size):
        mass, share = total[i] + factor * left[i], target[i]
        more = mass - share
        total[i] = mass
        away[i] = more
        sums[i] += mass
        n_away += abs(more) > VERY_NEAR * share
    return n_away


@kernel
def distance_of_multiple(target, factor, total, away, sums):
    """`distance_of_sum` where no proxy has taken anything."""
    n_away = 0
    for i in range(total.size):
        share = target[i]
        mass = factor * share
        more = mass - share
        total[i] = mass
        away[i] = more
        sums[i] += mass
        n_away += abs(more) > VERY_NEAR * share
    return n_away


@kernel
def add_near_terms(target, law, own, random, terms):
    """First terms of the three divergences, summed over a block; one division, which takes longest."""
    of_law, of_own, of_random = terms
    for i in range(target.size):
        half = 0.5 / max(target[i], LEAST)
        a, b, c = law[i], own[i], random[i]
        of_law[i] += a * a * half
        of_own[i] += b * b * half
        of_random[i] += c * c * half


@kernel
def add_blocks(
    p, q, steps, own_reaches, random, random_reaches, terms, sums, over, distance, space
):
    """Go through all blocks; return how many terms are not finite, the excess and its token."""
    last = steps.shape[1] - 1
    n_siblings = random.starts.size
    reach, upscale = own_reaches
    random_reach, random_upscale = random_reaches
    random_factor = 1.0
    for k in range(n_siblings):
        random_factor *= random_upscale[k]
    n_lost, token, most = 0, 0, -np.inf
    for start in range(0, p.size, SPAN):
        target, draft = p[start : start + SPAN], q[start : start + SPAN]
        size = target.size
        law, own, random_sum = space[0, :size], space[1, :size], space[2, :size]
        away = (space[3, :size], space[4, :size], space[5, :size])
        left, work = space[6, :size], space[7, :size]
        accept_first(target, draft, law, own, left)
        for k in range(1, last - 1, 2):
            add_two(target, draft, steps[:, k], steps[:, k + 1], law)
        if last % 2 == 0:
            k = last - 1
            add_accepted(target, draft, steps[0, k], steps[1, k], steps[2, k], law)
        add_residual(target, draft, steps[0, last], steps[1, last], steps[2, last], law, over)
        n_of_law, n_more = distance_of_law(target, law, away[0], distance, sums[0], most)
        if n_more > 0:
            for i in range(size):
                if away[0][i] > most:
                    most, token = away[0][i], start + i
        for k in range(1, n_siblings):
            take_draft(left, draft, upscale[k - 1], reach[k], own)
        factor = upscale[n_siblings - 1] * reach[n_siblings]
        n_of_own = distance_of_sum(target, left, factor, own, away[1], sums[1])
        touched = False
        for k in range(n_siblings):
            touched |= (random.windows[k, 0] < start + size) & (random.windows[k, 1] > start)
        if touched:
            for i in range(size):
                left[i] = target[i]
                random_sum[i] = 0.0
            factor = 1.0
            for k in range(n_siblings):
                factor = take(left, random_sum, start, random, k, factor, random_reach[k])
                factor *= random_upscale[k]
            factor *= random_reach[n_siblings]
            n_of_random = distance_of_sum(target, left, factor, random_sum, away[2], sums[2])
        else:
            factor = random_factor * random_reach[n_siblings]
            n_of_random = distance_of_multiple(target, factor, random_sum, away[2], sums[2])
        if n_of_law + n_of_own + n_of_random == 0:
            add_near_terms(target, *away, terms)
        else:
            masses = (law, own, random_sum)
            for row in range(3):
                outside, huge = add_divergences(masses[row], target, terms[row], work)
                n_lost += outside + huge
    return n_lost, token, most


@njit
def summarise(p, q, accepted, steps, token, values, starts, scales, windows):
    """``(figures, token of the excess, mass accepted at a token)``; the last four are `Proxies`.

    Figures (9,), not finite where a divergence is not: sum and KL of the law and of the two
    reconstructions; TV of the law and its lower bound; the excess.
    """
    random = Proxies(values, starts, scales, windows)
    # the rule's proxy is the draft: the mass taken is the acceptance of a sibling that is reached
    betas = np.ones(accepted.size)
    for k in range(steps.shape[1] - 1):
        betas[k] = accepted[k] / steps[2, k]
    terms = (np.zeros(SPAN), np.zeros(SPAN), np.zeros(SPAN))
    sums = (np.zeros(SPAN), np.zeros(SPAN), np.zeros(SPAN))
    over, distance, space = np.zeros(SPAN), np.zeros(SPAN), np.empty((8, SPAN))
    n_lost, excess_token, excess = add_blocks(
        p,
        q,
        steps,
        reaches_of(betas),
        random,
        reaches(p, random),
        terms,
        sums,
        over,
        distance,
        space,
    )
    figures = np.empty(9)
    for row in range(3):
        figures[2 * row] = sum_side_by_side(sums[row])
        figures[2 * row + 1] = sum_side_by_side(terms[row]) if n_lost == 0 else np.inf
    figures[6] = 0.5 * sum_side_by_side(distance)
    figures[7] = sum_side_by_side(over)
    figures[8] = excess
    accepted_here = 0.0
    for k in range(steps.shape[1] - 1):
        residual = max(p[token] - steps[0, k] * q[token], 0.0) * steps[1, k]
        accepted_here += steps[2, k] * min(residual, q[token])
    return figures, excess_token, accepted_here
