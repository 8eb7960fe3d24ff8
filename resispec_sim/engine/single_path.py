"""Laws of rules whose rejections all lead to the same state, or whose siblings are given: O(nV)."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from resispec_sim.engine.generic import read_only
from resispec_sim.engine.result import Outcome, check_accept_probs, check_residual
from resispec_sim.errors import RuleError
from resispec_sim.rules.base import SequentialRule
from resispec_sim.rules.siblings import next_draw


def single_path_outcome(
    rule: SequentialRule,
    target_probs: NDArray[np.float64],
    draft_probs: NDArray[np.float64],
    n_siblings: int,
    *,
    trusted: bool = True,
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
    trusted : bool
        Whether `path_free` is taken at its word; else another rejected token is tried as well.

    Returns
    -------
    Outcome
    """
    accepted_by_token = np.zeros((n_siblings, target_probs.size))
    target_probs, draft_probs = read_only(target_probs), read_only(draft_probs)
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
        before, state = state, rule.after_rejection(state, token)
        if trusted is False and rule.siblings == "iid":
            _check_path_free(rule, before, state, rejected, token)
        if rule.siblings != "iid":
            drawn.append(token)
    output = accepted_by_token.sum(axis=0)
    if reach > 0.0:
        output = output + reach * check_residual(rule.last_residual(state), rule.label, reach)
    return Outcome(
        output_probs=output,
        accepted=accepted_by_token.sum(axis=1),
        accepted_by_token=accepted_by_token,
        method="exact",
        n_paths=n_siblings,
    )


def _check_path_free(
    rule: SequentialRule,
    before: tuple[Any, ...],
    after: tuple[Any, ...],
    rejected: NDArray[np.float64],
    token: int,
) -> None:
    others = np.flatnonzero(rejected > 0)
    other = int(others[0] if others[0] != token else others[-1])
    twin = rule.after_rejection(before, other)
    for figure in (rule.accept_probs, rule.last_residual):
        if not np.allclose(figure(after), figure(twin), rtol=0, atol=1e-9):
            raise RuleError(
                f"{rule.label} is marked path_free, but rejecting token {other} leads elsewhere than "
                f"rejecting token {token}: set path_free = False"
            )
