"""Laws in closed form of rules whose paths differ but need not be walked: naive sampling, SpecHub."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from resispec_sim.engine.result import Outcome, check_accept_probs
from resispec_sim.rules.base import normalised
from resispec_sim.rules.spechub import plan_hub

FloatArray = NDArray[np.float64]


def nss_outcome(target_probs: FloatArray, draft_probs: FloatArray, n_siblings: int) -> Outcome:
    """Law of naive sampling with i.i.d. siblings; O(nV).

    A target sample ``y`` is accepted at place ``i`` if sibling ``i`` is the first that equals it; it
    is emitted whether one does or not.
    """
    p, q = target_probs, draft_probs
    accepted_by_token = np.zeros((n_siblings, p.size))
    missed = p.copy()
    for i in range(n_siblings):
        accepted_by_token[i] = missed * q
        missed *= 1.0 - q
    return Outcome(
        output_probs=accepted_by_token.sum(axis=0) + missed,
        accepted=accepted_by_token.sum(axis=1),
        accepted_by_token=accepted_by_token,
        method="exact",
        n_paths=n_siblings,
    )


def spechub_outcome(
    target_probs: FloatArray, draft_probs: FloatArray, *, transport_scale: float = 1.0
) -> Outcome:
    """Law of SpecHub: every pair that can be drawn, what it is accepted as, and what it leaves; O(V).

    Parameters
    ----------
    target_probs, draft_probs : ndarray (V,)
    transport_scale : float
        Factor on the mass that is moved from ``(i, a)`` onto ``i``; other than 1 it gives a law that
        is not the target, which is what the tests check.
    """
    p, q = target_probs, draft_probs
    accepted_by_token = np.zeros((2, p.size))
    hub = int(np.argmax(q))
    if not (np.delete(q, hub) > 0).any():
        accepted_by_token[0, hub] = q[hub] * p[hub]
        rest = p.copy()
        rest[hub] = 0.0
        left = q[hub] * (1.0 - p[hub])
        return Outcome(
            output_probs=accepted_by_token[0] + left * normalised(rest, p),
            accepted=accepted_by_token.sum(axis=1),
            accepted_by_token=accepted_by_token,
            method="exact",
            n_paths=1,
        )
    plan = plan_hub(p, q)
    left = 0.0
    for drawn, moved, share, place_of_token in (
        (plan.hub_last, transport_scale * plan.from_last, plan.onto_hub_last, 0),
        (plan.hub_first, plan.from_first, plan.onto_hub_first, 1),
    ):
        onto_token = np.divide(moved, drawn, out=np.zeros_like(p), where=drawn > 0)
        onto_token = check_accept_probs(onto_token, drawn, "spechub")
        passed = drawn * (1.0 - onto_token)
        accepted_by_token[place_of_token] += drawn * onto_token
        accepted_by_token[1 - place_of_token, hub] += float((passed * share).sum())
        left += float((passed * (1.0 - share)).sum())
    return Outcome(
        output_probs=accepted_by_token.sum(axis=0) + left * plan.residual,
        accepted=accepted_by_token.sum(axis=1),
        accepted_by_token=accepted_by_token,
        method="exact",
        n_paths=2 * int(np.count_nonzero(q)),
    )
