"""SpecInfer's law in closed form: the residual after ``i`` rejections is ``norm((p - C_i q)+)``."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from resispec_sim.engine.result import Outcome


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
    p, q = target_probs, draft_probs
    accepted_by_token = np.zeros((n_siblings, p.size))
    accepted = np.zeros(n_siblings)
    residual, reach, multiplier = p, 1.0, 1.0
    for i in range(n_siblings):
        accept = np.minimum(residual, q)
        accepted_by_token[i] = reach * accept
        probability = min(float(accept.sum()), 1.0)
        accepted[i] = reach * probability
        reach *= 1.0 - probability
        if multipliers is not None:
            multiplier = multipliers[i]
        rest = np.maximum(p - multiplier * q, 0.0)
        total = float(rest.sum())
        if reach <= 0.0 or total <= 0.0:
            # Never rejected, or only by rounding: p and C q then agree, and so do the residuals.
            break
        residual = rest / total
        multiplier += total
    output = accepted_by_token.sum(axis=0) + reach * residual
    return Outcome(
        output_probs=output,
        accepted=accepted,
        accepted_by_token=accepted_by_token,
        method="exact",
        n_paths=n_siblings,
    )
