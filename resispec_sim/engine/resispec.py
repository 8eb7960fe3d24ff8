"""ResiSpec's law at one position: exact, certified or sampled, under a budget of paths."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from resispec_sim.engine.paths import FirstRejection, Walked, first_rejection, run_walk
from resispec_sim.engine.predict import predict_path_steps
from resispec_sim.engine.ratio_space import RatioSpace, to_ratio_space
from resispec_sim.engine.result import (
    Outcome,
    bounded_law,
    check_mass,
    check_walkable,
    to_token_order,
)
from resispec_sim.engine.sampled import sampled_outcome
from resispec_sim.rules.resispec import ResiSpec

FIRST_THETA = 0.25
THETA_STEP = 8.0
WATER_COST = (
    16  # a path-step of fill water has a level to find and takes as long as many plain ones
)
SLACK = 2  # an exact walk may take this many times the budget before it is given up


def resispec_outcome(
    rule: ResiSpec,
    target_probs: NDArray[np.float64],
    draft_probs: NDArray[np.float64],
    n_siblings: int,
    *,
    method: str,
    max_paths: float,
    seed: int,
) -> Outcome:
    """Law of ResiSpec with i.i.d. siblings.

    Parameters
    ----------
    rule : ResiSpec
        Fill ``capacity`` or ``water``, the two with a ratio form; any budget.
    target_probs, draft_probs : ndarray (V,)
    n_siblings : int
    method : {"auto", "exact", "certified", "sampled"}
        ``auto`` is ``exact`` where the predicted path-steps are within `max_paths`, else ``certified``.
    max_paths : int
        Budget of path-steps; ``exact`` asked for by name disregards it.
    seed : int
        Of the sampled method.

    Raises
    ------
    InputError
        If ``exact`` is asked for where the walk would take days.
    InfeasibleBudgetError
        If budget ``applied`` asks for more mass than is left off a token that can be rejected.
    """
    space = to_ratio_space(target_probs, draft_probs)
    first = first_rejection(rule, space)
    if rule.fill == "water":
        max_paths = max(max_paths / WATER_COST, 1)
    outcome: Outcome | None = None
    if method == "sampled":
        outcome = sampled_outcome(rule, space, first, n_siblings, max_paths, seed)
    elif method == "exact":
        check_walkable(rule, predict_path_steps(space, first.weight, n_siblings))
        outcome = exact_outcome(rule, space, first, n_siblings)
    elif method == "auto":
        if predict_path_steps(space, first.weight, n_siblings) <= max_paths:
            outcome = exact_outcome(rule, space, first, n_siblings, SLACK * max_paths)
    if outcome is None:
        outcome = certified_outcome(rule, space, first, n_siblings, max_paths)
    if rule.fill == "water" and space.n_overflow:
        outcome = _without_certain_residual(outcome, space.n_overflow)
    return to_token_order(outcome, space.order, notes=first.notes)


def _without_certain_residual(outcome: Outcome, n_overflow: int) -> Outcome:
    """Keep of a law only what is certain: the water fill may tell apart what floats cannot.

    It fills drafted tokens before never-drafted ones, so a token whose q is too small for a ratio can
    hold much of a residual. Acceptance does not depend on it.
    """
    note = (
        f"{n_overflow} drafted tokens have p/q beyond the float range: their residual is estimated"
    )
    return replace(
        outcome,
        method="estimated",
        certain=outcome.accepted_by_token.sum(axis=0),
        notes=(*outcome.notes, note),
    )


def exact_outcome(
    rule: ResiSpec,
    space: RatioSpace,
    first: FirstRejection,
    n_siblings: int,
    max_steps: float = np.inf,
) -> Outcome | None:
    """All paths, or None where they turn out to be more than `max_steps`."""
    walked = run_walk(rule, space, first, n_siblings, max_steps=max_steps)
    if not walked.complete:
        return None
    law = walked.accepted_by_token.sum(axis=0) + walked.closed
    return Outcome(
        output_probs=check_mass(law, f"the law of {rule.label}"),
        accepted=walked.accepted,
        accepted_by_token=np.maximum(walked.accepted_by_token, 0.0),
        method="exact",
        n_paths=walked.steps,
    )


def certified_outcome(
    rule: ResiSpec, space: RatioSpace, first: FirstRejection, n_siblings: int, max_paths: float
) -> Outcome:
    """The heaviest paths under a budget, and rigorous bounds for what the others can add.

    Acceptance needs one level less than the law, so it is walked apart and is usually much tighter.
    """
    acceptance = _deepen(rule, space, first, n_siblings, max_paths, want_law=False)
    law = _deepen(rule, space, first, n_siblings, max_paths, want_law=True)
    steps = acceptance.steps + law.steps
    # A path that was cut off may still accept any later sibling, or none.
    cut_before = acceptance.lost[:n_siblings]
    interval = np.stack((acceptance.accepted, acceptance.accepted + cut_before), axis=1)
    by_token = np.maximum(acceptance.accepted_by_token, 0.0)
    estimate = check_mass(
        law.accepted_by_token.sum(axis=0) + law.closed + law.cut, f"the law of {rule.label}"
    )
    certain = np.maximum(by_token.sum(axis=0) + np.maximum(law.closed, 0.0), 0.0)
    output, note = bounded_law(certain, estimate)
    return Outcome(
        output_probs=output,
        accepted=interval.mean(axis=1),
        accepted_by_token=by_token,
        method="certified" if law.lost[-1] > 0 or cut_before.any() else "exact",
        n_paths=steps,
        accepted_interval=interval,
        certain=certain,
        notes=(note,),
    )


def _deepen(
    rule: ResiSpec,
    space: RatioSpace,
    first: FirstRejection,
    n_siblings: int,
    max_steps: float,
    *,
    want_law: bool,
) -> Walked:
    """Lower the weight at which paths are cut off until the next walk would pass the budget."""
    theta, spent = FIRST_THETA, 0.0
    best = run_walk(rule, space, first, n_siblings, theta=2.0, want_law=want_law)
    while best.lost[-1] > 0 and spent < max_steps:
        walked = run_walk(
            rule,
            space,
            first,
            n_siblings,
            theta=theta,
            max_steps=max_steps - spent,
            want_law=want_law,
        )
        spent += walked.work
        if not walked.complete:
            break
        # Far down, where nothing lies between one threshold and the next, go on in larger steps.
        idle = theta < 1e-8 and walked.work < 1.1 * best.work
        step = THETA_STEP**4 if idle else THETA_STEP
        best = walked
        # a path that was cut off is lighter than theta; none can be heavier than all of them together
        theta = min(theta / step, float(best.lost[-1]))
    return best
