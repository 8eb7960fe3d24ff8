"""ResiSpec's law at one position: exact, certified or sampled, under a budget of paths."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from resispec_sim.config import ENGINE
from resispec_sim.engine.grid import ROUNDING, bracket_three
from resispec_sim.engine.law_grid import estimate_residual
from resispec_sim.engine.nodes import new_grid
from resispec_sim.engine.paths import FirstRejection, Walked, first_rejection, run_walk
from resispec_sim.engine.predict import count_children, predict_path_steps
from resispec_sim.engine.ratio_space import RatioSpace, to_ratio_space
from resispec_sim.engine.result import (
    Outcome,
    bounded_law,
    check_mass,
    check_walkable,
    estimated_law,
    to_token_order,
)
from resispec_sim.engine.sampled import sampled_outcome
from resispec_sim.engine.tail import Table, to_table
from resispec_sim.rules.resispec import ResiSpec

FIRST_THETA = 0.25
THETA_STEP = 8.0
# A path-step of fill water has a level to find and takes as long as many plain ones.
WATER_COST = 16
HEAVY_COST = 12  # path-steps that a pair of rejections with a look-up costs at three siblings
CUT_SHARE = 0.25  # of the budget, for a walk whose light paths are cut off
GRID_SHARE = 0.3  # of that, where the law's estimate does not come from the walk
# With so many siblings nearly all paths draw a rejected token again and weigh nothing.
REPEATS_FROM = 5
NO_WEIGHT = 1e-20  # paths that are lighter are left out there
ROUNDING_MASS = 1e-15  # of all that is left out, where it counts as rounding
NEARLY_ALL = 2e-3  # mass of the paths not walked yet from which it is worth going on to all
MOMENTS_FROM = 400_000  # pairs of rejections from which series are worth their sums


def resispec_outcome(
    rule: ResiSpec,
    target_probs: NDArray[np.float64],
    draft_probs: NDArray[np.float64],
    n_siblings: int,
    *,
    method: str,
    max_paths: float,
    seed: int,
    tolerance: float = ENGINE.tolerance,
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
    tolerance : float
        Width of the acceptance interval below which no more paths are walked for it.

    Raises
    ------
    InputError
        If ``exact`` is asked for where the walk would take days.
    InfeasibleBudgetError
        If budget ``applied`` asks for more mass than is left off a token that can be rejected.
    """
    space = to_ratio_space(target_probs, draft_probs)
    first = first_rejection(rule, space)
    pairs, heavy = count_children(space, first.weight)
    table = to_table(space, with_moments=n_siblings > 1 and pairs > MOMENTS_FROM)
    if rule.fill == "water":
        max_paths = max(max_paths / WATER_COST, 1)
    # capacity, three siblings: a light pair of rejections costs nothing worth counting
    known = n_siblings == 3 and rule.fill == "capacity"
    cheap = known and HEAVY_COST * heavy <= max_paths
    cut_work = CUT_SHARE * max_paths
    heaviest: Walked | None = None
    outcome: Outcome | None = None
    if method == "sampled":
        outcome = sampled_outcome(rule, space, table, first, n_siblings, max_paths, seed)
    elif method == "exact":
        if not cheap:
            check_walkable(rule, predict_path_steps(space, first.weight, n_siblings))
        outcome = exact_outcome(rule, space, table, first, n_siblings)
    elif method == "auto":
        worth_it = cheap or not known
        if n_siblings >= REPEATS_FROM:
            heaviest = _deepen(rule, space, table, first, n_siblings, cut_work, want_law=True)
            worth_it = heaviest.lost[-1] < NEARLY_ALL
        if worth_it:
            outcome = exact_outcome(rule, space, table, first, n_siblings, max_paths)
    if outcome is None:
        if n_siblings == 3 and not table.moments.size:
            table = to_table(space, with_moments=True)
        outcome = certified_outcome(
            rule, space, table, first, n_siblings, cut_work, tolerance, heaviest
        )
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
    if outcome.method == "sampled":
        # nothing was certain before
        return replace(outcome, notes=(*outcome.notes, note))
    return replace(
        outcome,
        method="estimated",
        certain=outcome.accepted_by_token.sum(axis=0),
        notes=(*outcome.notes, note),
    )


def exact_outcome(
    rule: ResiSpec,
    space: RatioSpace,
    table: Table,
    first: FirstRejection,
    n_siblings: int,
    max_work: float = np.inf,
) -> Outcome | None:
    """All paths, or None where they turn out to be more than `max_work`.

    With many siblings paths that weigh nothing are left out, as long as all of them together are no more
    than rounding.
    """
    thetas = (NO_WEIGHT, 0.0) if n_siblings >= REPEATS_FROM else (0.0,)
    for theta in thetas:
        walked = run_walk(rule, space, table, first, n_siblings, theta=theta, max_work=max_work)
        if not walked.complete:
            return None
        if walked.lost[-1] <= ROUNDING_MASS:
            return _all_paths(rule, walked)
    raise AssertionError("a walk of all paths loses none")


def _all_paths(rule: ResiSpec, walked: Walked) -> Outcome:
    law = walked.accepted_by_token.sum(axis=0) + walked.closed + walked.cut
    return Outcome(
        output_probs=check_mass(law, f"the law of {rule.label}"),
        accepted=np.maximum(walked.accepted, 0.0),
        accepted_by_token=np.maximum(walked.accepted_by_token, 0.0),
        method="exact",
        n_paths=walked.steps,
    )


def certified_outcome(
    rule: ResiSpec,
    space: RatioSpace,
    table: Table,
    first: FirstRejection,
    n_siblings: int,
    max_work: float,
    tolerance: float,
    law: Walked | None = None,
) -> Outcome:
    """The heaviest paths under a budget, and rigorous bounds for what the others can add.

    Acceptance needs one level less than the law and does not depend on the fill: with three siblings it
    is bracketed on a grid, with more it is walked apart. Both are usually much tighter than the law,
    whose estimate with three siblings and fill ``capacity`` comes from a grid too. `law` is the walk of
    the heaviest paths where it was made already.
    """
    on_grid = n_siblings == 3 and rule.fill == "capacity"
    if on_grid:
        max_work *= GRID_SHARE
    if law is None:
        law = _deepen(rule, space, table, first, n_siblings, max_work, want_law=True)
    if law.lost[-1] == 0.0:
        return _all_paths(rule, law)
    steps = law.steps
    if n_siblings == 3:
        grid = new_grid(table)
        bracket = bracket_three(space, table, first, grid, tolerance)
        interval = np.stack((bracket.low, bracket.high), axis=1)
        accepted = interval.mean(axis=1)
        # only the last sibling's mass is not known
        total = np.clip(interval.sum(axis=0), 0.0, 1.0)
        by_token = bracket.by_token
        steps += bracket.work
    else:
        found = _deepen(
            rule, space, table, first, n_siblings, max_work, want_law=False, enough=tolerance
        )
        # A path that was cut off may still accept any later sibling, or none, but only one of them.
        lost = found.lost[:n_siblings]
        interval = np.stack((found.accepted, found.accepted + lost), axis=1)
        # the same allowance as the grid's: sums over first rejections are plain ones
        margin = ROUNDING * space.n_over * np.array([-1.0, 1.0])
        interval[1:] = np.clip(interval[1:] + margin, 0.0, 1.0)
        low, most = interval[:, 0].sum(), float(lost.max())
        total = np.array([low, min(low + most - 2.0 * margin[0] * n_siblings, 1.0)])
        # the middle of the total, shared in proportion to what each could have
        each = lost / lost.sum() if most > 0.0 else lost
        accepted = interval[:, 0] + 0.5 * (total[1] - total[0]) * each
        by_token = np.maximum(found.accepted_by_token, 0.0)
        steps += found.steps
    certain = by_token.sum(axis=0) + np.maximum(law.closed, 0.0)
    if on_grid:
        rest, work = estimate_residual(space, table, first, grid)
        steps += work
        output, note = estimated_law(by_token.sum(axis=0), rest, certain)
    else:
        estimate = check_mass(
            law.accepted_by_token.sum(axis=0) + law.closed + law.cut, f"the law of {rule.label}"
        )
        output, note = bounded_law(certain, estimate)
    return Outcome(
        output_probs=output,
        accepted=accepted,
        accepted_by_token=by_token,
        method="certified",
        n_paths=steps,
        accepted_interval=interval,
        total_interval=total,
        certain=certain,
        notes=(note, *_too_wide(total, tolerance)),
    )


def _too_wide(total: NDArray[np.float64], tolerance: float) -> tuple[str, ...]:
    if total[1] - total[0] <= tolerance:
        return ()
    return ("acceptance is bounded less narrowly than the tolerance: raise max_paths",)


def _deepen(
    rule: ResiSpec,
    space: RatioSpace,
    table: Table,
    first: FirstRejection,
    n_siblings: int,
    max_work: float,
    *,
    want_law: bool,
    enough: float = 0.0,
) -> Walked:
    """Lower the weight at which paths are cut off until the next walk would pass the budget."""
    theta, spent = FIRST_THETA, 0.0
    best = run_walk(rule, space, table, first, n_siblings, theta=2.0, want_law=want_law)
    # Of acceptance nothing is lost behind the last sibling; what is lost before it only one can have.
    open_mass = -1 if want_law else -2
    while spent < max_work and best.lost[open_mass] > enough:
        walked = run_walk(
            rule,
            space,
            table,
            first,
            n_siblings,
            theta=theta,
            max_work=max_work - spent,
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
