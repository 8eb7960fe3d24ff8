"""SpecInfer's law in closed form: the residual after ``i`` rejections is ``norm((p - C_i q)+)``."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from resispec_sim.engine.distance_kernels import BLOCK
from resispec_sim.engine.elementary import sum_side_by_side
from resispec_sim.engine.jit import kernel, njit
from resispec_sim.engine.result import Outcome

SPAN = 256  # tokens of a block that stays in the first-level cache together with its lanes
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
    given = np.empty(0) if multipliers is None else np.array(multipliers, dtype=np.float64)
    accepted, steps = walk_steps(p, q, n_siblings, given)
    return accepted, steps


@njit
def walk_steps(p, q, n_siblings, multipliers):
    """`take_steps`; without multipliers, the right ones."""
    accepted = np.zeros(n_siblings)
    steps = np.empty((3, n_siblings + 1))
    level, scale, reach = 0.0, 1.0, 1.0
    steps[0, 0], steps[1, 0], steps[2, 0] = level, scale, reach
    last = 0
    following = 1.0
    for i in range(n_siblings):
        if multipliers.size > 0:
            following = multipliers[i]
        probability, total = level_sums(p, q, level, scale, following)
        probability = min(probability, 1.0)
        accepted[i] = reach * probability
        reach *= 1.0 - probability
        last += 1
        # Never rejected, or only by rounding: p and C q then agree, and so do the residuals.
        ended = reach <= 0.0 or total <= LEAST_TOTAL
        if not ended:
            level, scale = following, 1.0 / total
            following += total
        steps[0, last], steps[1, last], steps[2, last] = level, scale, reach
        if ended:
            break
    return accepted, steps[:, : last + 1].copy()


@njit
def level_sums(p, q, level, scale, following):
    """Acceptance of a sibling against ``scale (p - level q)+``, and ``sum (p - following q)+``."""
    # a lane a token of the block, since sums in a single chain are not vectorised
    accepted, left = np.zeros(SPAN), np.zeros(SPAN)
    for start in range(0, p.size, SPAN):
        add_level_sums(
            p[start : start + SPAN],
            q[start : start + SPAN],
            level,
            scale,
            following,
            accepted,
            left,
        )
    return sum_side_by_side(accepted), sum_side_by_side(left)


@kernel
def add_level_sums(target, draft, level, scale, following, accepted, left):
    """The terms of `level_sums` of a block, each to its lane."""
    for i in range(target.size):
        own, share = target[i], draft[i]
        residual = max(own - level * share, 0.0) * scale
        accepted[i] += min(residual, share)
        left[i] += max(own - following * share, 0.0)


@njit
def assemble_block(target, draft, steps, k, masses, law):
    """Write the mass that is accepted at step `k` of a block of tokens, and add it to their law."""
    level, scale, reach = steps[0, k], steps[1, k], steps[2, k]
    for i in range(target.size):
        residual = max(target[i] - level * draft[i], 0.0) * scale
        mass = reach * min(residual, draft[i])
        masses[i] = mass
        law[i] += mass


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
            assemble_block(target, draft, steps, k, row, law)
