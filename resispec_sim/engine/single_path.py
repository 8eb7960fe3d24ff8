"""Laws of rules whose rejections all lead to the same state, or whose siblings are given: O(nV)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from resispec_sim.engine.result import Outcome, check_accept_probs
from resispec_sim.rules.base import SequentialRule
from resispec_sim.rules.siblings import next_draw


def single_path_outcome(
    rule: SequentialRule,
    target_probs: NDArray[np.float64],
    draft_probs: NDArray[np.float64],
    n_siblings: int,
) -> Outcome:
    """Law of a rule with one path of rejections, assembled forward from its own definition.

    Either the state after a rejection does not depend on the rejected token (`path_free` rules with
    independent siblings), or the siblings are the draft's most probable tokens.

    Parameters
    ----------
    rule : SequentialRule
    target_probs, draft_probs : ndarray (V,)
    n_siblings : int
        K; where the draft has fewer tokens than that, the last siblings do not exist.

    Returns
    -------
    Outcome
    """
    accepted_by_token = np.zeros((n_siblings, target_probs.size))
    state = rule.start(target_probs, draft_probs, n_siblings)
    reach = 1.0
    drawn: list[int] = []
    for i in range(n_siblings):
        law = next_draw(rule.siblings, draft_probs, drawn)
        if law is None:
            break
        accept = check_accept_probs(rule.accept_probs(state), law, rule.label)
        accepted_by_token[i] = reach * law * accept
        rejected = law * (1.0 - accept)
        # by the rejected mass itself: 1 - accepted loses it where it is small
        reach *= float(rejected.sum())
        if reach <= 0.0:
            break
        token = int(np.argmax(rejected))
        state = rule.after_rejection(state, token)
        if rule.siblings != "iid":
            drawn.append(token)
    output = accepted_by_token.sum(axis=0)
    if reach > 0.0:
        output = output + reach * rule.last_residual(state)
    return Outcome(
        output_probs=output,
        accepted=accepted_by_token.sum(axis=1),
        accepted_by_token=accepted_by_token,
        method="exact",
        n_paths=n_siblings,
    )
