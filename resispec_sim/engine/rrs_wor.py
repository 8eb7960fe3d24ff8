"""RRS without replacement: two numbers are a path's whole state.

After rejecting the set ``E`` the residual is ``norm((p - C q)+)`` with one multiplier ``C``, 0 on ``E``
by itself, and the draft is ``q / (1 - q(E))`` off ``E``. With ``g(c) = sum (p - c q)+``, the next
sibling is accepted at ``y`` with mass ``min((p - C q)+ / g(C), q / (1 - q(E)))``, and a rejection takes
``C`` to ``C + g(C) / (1 - q(E))``, whatever token it was: only ``q(E)`` remembers that.

Acceptance is computed from the draft as it is drawn, and the residual from ``C``: the law is the
target only if the multipliers are right.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from resispec_sim.engine.ratio_space import to_ratio_space
from resispec_sim.engine.result import Outcome, check_mass, to_token_order
from resispec_sim.engine.rrs_wor_classes import three_siblings
from resispec_sim.engine.rrs_wor_sampled import sampled_rrs_wor
from resispec_sim.engine.rrs_wor_two import up_to_two

FloatArray = NDArray[np.float64]


def rrs_wor_outcome(
    target_probs: FloatArray,
    draft_probs: FloatArray,
    n_siblings: int,
    *,
    method: str = "auto",
    max_paths: float = 5e7,
    seed: int = 0,
    multiplier_scale: float = 1.0,
) -> Outcome:
    """Law of recursive rejection sampling without replacement.

    Parameters
    ----------
    target_probs, draft_probs : ndarray (V,)
    n_siblings : int
        One and two siblings are exact in O(V log V); three are exact where the draft has few distinct
        probabilities and bounded rigorously else; more are sampled, with the paths' acceptance closed.
    method : {"auto", "exact", "certified", "sampled"}
        ``exact`` for three siblings takes one class per distinct draft probability whatever it costs;
        for more there is none here.
    max_paths : int
        Budget of path-steps: pairs of classes, or levels of drawn paths.
    seed : int
        Of the sampled method.
    multiplier_scale : float
        Factor on what a rejection adds to ``C``; other than 1 it gives a law that is not the target,
        which is what the tests check.
    """
    space = to_ratio_space(target_probs, draft_probs)
    n = min(n_siblings, space.n_drafted)
    if method == "sampled" or n > 3:
        outcome = sampled_rrs_wor(space, n, max_paths, seed, multiplier_scale)
    elif n == 3:
        outcome = three_siblings(space, method, max_paths, multiplier_scale)
    else:
        outcome = up_to_two(space, n, multiplier_scale)
    if outcome.method == "exact" and multiplier_scale == 1.0:
        check_mass(outcome.output_probs, "the law of rrs-wor")
    return to_token_order(outcome, space.order, n_siblings)
