"""SpecInfer's law in closed form: the residual after ``i`` rejections is ``norm((p - C_i q)+)``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from resispec_sim.engine.distance_kernels import BLOCK, add_divergences
from resispec_sim.engine.jit import njit
from resispec_sim.engine.result import Outcome, check_total

LEAST_TOTAL = 1e-290  # a residual with less mass than this is left by rounding


def specinfer_outcome(
    target_probs: NDArray[np.float64],
    draft_probs: NDArray[np.float64],
    n_siblings: int,
    *,
    multipliers: Sequence[float] | None = None,
) -> Outcome:
    """Law of recursive rejection sampling with i.i.d. siblings, assembled forward; O(nV).

    Each step multiplies the probability of reaching it with the acceptance of a sibling that is
    really drawn from the draft, and only then forms the next residual. A law written as accepted
    mass plus remainder would be the target for any ``C_i``; this one is not.

    Parameters
    ----------
    target_probs, draft_probs : ndarray (V,)
    n_siblings : int
        K.
    multipliers : sequence of float, (K,), optional
        ``C_1..C_K`` to use in place of the right ones ``C_1 = 1, C_{i+1} = C_i + sum (p - C_i q)+``;
        wrong ones give a law that is not the target, which is what the tests check.

    Returns
    -------
    Outcome
    """
    p, q = np.ascontiguousarray(target_probs), np.ascontiguousarray(draft_probs)
    accepted, steps = take_steps(p, q, n_siblings, multipliers)
    accepted_by_token = np.empty((n_siblings, p.size))
    accepted_by_token[steps.shape[1] - 1 :] = 0.0
    output = np.empty(p.size)
    assemble(p, q, steps, accepted_by_token, output)
    return Outcome(
        output_probs=output,
        accepted=accepted,
        accepted_by_token=accepted_by_token,
        method="exact",
        n_paths=n_siblings,
    )


class Summary(NamedTuple):
    """Figures of SpecInfer's law at one position, see `resispec_sim.engine.law.Law`."""

    accepted: NDArray[np.float64]  # (K,)
    accepted_here: float  # the mass accepted at the token that was asked for
    tv: float
    kl: float
    tv_lower_bound: float
    excess_token: int  # the token whose mass in the law exceeds that in the target most
    excess_mass: float


def specinfer_summary(
    target_probs: NDArray[np.float64],
    draft_probs: NDArray[np.float64],
    n_siblings: int,
    token: int,
    *,
    multipliers: Sequence[float] | None = None,
) -> Summary | None:
    """Figures of the law of `specinfer_outcome`, without an array of its masses; O(nV).

    Every block of tokens is assembled, used and forgotten: a third of the time goes into writing and
    reading masses otherwise. None where a ratio of the law to the target passes the float range.

    Raises
    ------
    MassError
        If the law does not sum to 1 within 1e-12.
    """
    p, q = np.ascontiguousarray(target_probs), np.ascontiguousarray(draft_probs)
    accepted, steps = take_steps(p, q, n_siblings, multipliers)
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        *figures, excess_token, total, overflow = summarise(p, q, steps)
    check_total(total, "the law of specinfer")
    if overflow:
        return None
    here = np.empty((steps.shape[1] - 1, 1))
    single = p[token : token + 1], q[token : token + 1]
    assemble(*single, steps, here, np.empty(1))
    tv, kl, lower_bound, excess = (float(figure) for figure in figures)
    return Summary(accepted, float(here.sum()), tv, kl, lower_bound, int(excess_token), excess)


def take_steps(
    p: NDArray[np.float64],
    q: NDArray[np.float64],
    n_siblings: int,
    multipliers: Sequence[float] | None,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Accepted mass per sibling (K,), and the residuals it is accepted from, (3, steps + 1).

    Rows: C and scale of the residual ``scale (p - C q)+`` in force at a step, and the probability of
    reaching it. The last column is what is left at the end.
    """
    accepted = np.zeros(n_siblings)
    levels, scales, reaches = [0.0], [1.0], [1.0]
    following = 1.0
    for i in range(n_siblings):
        if multipliers is not None:
            following = float(multipliers[i])
        probability, total = level_sums(p, q, levels[-1], scales[-1], following)
        probability = min(probability, 1.0)
        accepted[i] = reaches[-1] * probability
        reaches.append(reaches[-1] * (1.0 - probability))
        if reaches[-1] <= 0.0 or total <= LEAST_TOTAL:
            # Never rejected, or only by rounding: p and C q then agree, and so do the residuals.
            levels.append(levels[-1])
            scales.append(scales[-1])
            break
        levels.append(following)
        scales.append(1.0 / total)
        following += total
    return accepted, np.array([levels, scales, reaches])


@njit
def level_sums(p, q, level, scale, following):
    """Acceptance of a sibling against ``scale (p - level q)+``, and ``sum (p - following q)+``."""
    # a lane a token of the block, since sums in a single chain are not vectorised
    accepted = np.zeros(BLOCK)
    left = np.zeros(BLOCK)
    for start in range(0, p.size, BLOCK):
        target, draft = p[start : start + BLOCK], q[start : start + BLOCK]
        for i in range(target.size):
            residual = max(target[i] - level * draft[i], 0.0) * scale
            accepted[i] += min(residual, draft[i])
            left[i] += max(target[i] - following * draft[i], 0.0)
    return accepted.sum(), left.sum()


@njit
def assemble(p, q, steps, accepted_by_token, output):
    """Write the accepted mass by token of every step but the last, and their sum with the residual."""
    last = steps.shape[1] - 1
    level, scale, reach = steps[:, last]
    for start in range(0, p.size, BLOCK):
        target, draft = p[start : start + BLOCK], q[start : start + BLOCK]
        law = output[start : start + BLOCK]
        for i in range(target.size):
            law[i] = reach * (max(target[i] - level * draft[i], 0.0) * scale)
        for k in range(last):
            row = accepted_by_token[k, start : start + BLOCK]
            level_k, scale_k, reach_k = steps[:, k]
            for i in range(target.size):
                residual = max(target[i] - level_k * draft[i], 0.0) * scale_k
                mass = reach_k * min(residual, draft[i])
                row[i] = mass
                law[i] += mass


@njit
def summarise(p, q, steps):
    """``(TV, KL, lower bound of TV, excess, token of it, sum of the law, whether KL overflowed)``."""
    last = steps.shape[1] - 1
    level, scale, reach = steps[:, last]
    distance, terms, ratio = np.zeros(BLOCK), np.zeros(BLOCK), np.empty(BLOCK)
    total, over, sums, law = np.empty(BLOCK), np.zeros(BLOCK), np.zeros(BLOCK), np.empty(BLOCK)
    excess, found = np.full(BLOCK, -np.inf), np.zeros(BLOCK, dtype=np.int64)
    n_outside = n_huge = 0
    for start in range(0, p.size, BLOCK):
        target, draft = p[start : start + BLOCK], q[start : start + BLOCK]
        total[:] = 0.0
        for k in range(last):
            level_k, scale_k, reach_k = steps[:, k]
            for i in range(target.size):
                residual = max(target[i] - level_k * draft[i], 0.0) * scale_k
                total[i] += reach_k * min(residual, draft[i])
        for i in range(target.size):
            accepted = total[i]
            over[i] += max(accepted - target[i], 0.0)
            mass = accepted + reach * (max(target[i] - level * draft[i], 0.0) * scale)
            law[i] = mass
            sums[i] += mass
        for i in range(target.size):
            more = law[i] - target[i]
            best = excess[i]
            found[i] = start if more > best else found[i]
            excess[i] = max(more, best)
        outside, huge = add_divergences(law[: target.size], target, distance, terms, ratio)
        n_outside += outside
        n_huge += huge
    most = excess.max()
    token = p.size
    for i in range(BLOCK):
        if excess[i] == most:
            token = min(token, found[i] + i)
    kl = terms.sum() if n_outside == 0 else np.inf
    overflow = n_outside == 0 and n_huge > 0
    return 0.5 * distance.sum(), kl, over.sum(), most, token, sums.sum(), overflow
