"""One walk of ResiSpec's paths: what goes into the kernel and what its terms sum up to."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from resispec_sim.engine.closing import new_scratch
from resispec_sim.engine.nodes import no_second
from resispec_sim.engine.ratio_space import RatioSpace
from resispec_sim.engine.tail import Table
from resispec_sim.engine.terms import new_accepted, new_terms, sum_accepted, sum_law
from resispec_sim.engine.walk import SUM_COST, walk
from resispec_sim.errors import InfeasibleBudgetError
from resispec_sim.rules.resispec import ResiSpec

ROUNDING = 1e-12  # a budget Z may pass the mass that is left by this much and is then cut to it


@dataclass(frozen=True)
class FirstRejection:
    """Weights after the first rejection, in ratio order over the over-estimated tokens.

    `weight` is the residual's budget Z, `scale` the probability of the rejection over Z (1 unless the
    budget was raised).
    """

    weight: NDArray[np.float64]
    scale: NDArray[np.float64]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Walked:
    """Results of one walk, still in ratio order."""

    accepted: NDArray[np.float64]  # (K,)
    accepted_by_token: NDArray[np.float64]  # (K, V)
    lost: NDArray[np.float64]  # (K + 1,) mass cut off before sibling i was tried, and in all
    closed: NDArray[np.float64]  # (V,) emitted after the last rejection
    cut: NDArray[np.float64]  # (V,) residual of the paths that were cut off
    steps: int  # paths of rejections that were summed, however that was done
    work: float  # what they cost, in steps of a plain loop
    complete: bool


def first_rejection(rule: ResiSpec, space: RatioSpace) -> FirstRejection:
    """Weights after the first rejection; the only one whose budget can differ from ``q - R``.

    Afterwards a drafted token has residual 0, so ``min R/q`` is 0 and Equation 13 is Algorithm 1.
    """
    n = space.n_over
    p, q = space.p[:n], space.q[:n]
    weight = q - p
    ones = np.ones(n)
    if rule.budget == "minimal" or n == 0:
        return FirstRejection(weight, ones)
    raised = np.maximum(weight, space.rho[0])
    room = 1.0 - p
    excess = raised > room
    notes: tuple[str, ...] = ()
    if excess.any():
        worst = int(np.argmax(raised - room))
        over = float(raised[worst] - room[worst])
        if rule.budget == "applied" and over > ROUNDING:
            raise InfeasibleBudgetError(
                f"token {int(space.order[worst])}: Z = {raised[worst]:.6g} exceeds the mass "
                f"{room[worst]:.6g} off it; use budget='clipped' to cut it, or budget='minimal'"
            )
        raised = np.minimum(raised, room)
        if over > ROUNDING:
            n_cut = int(np.count_nonzero(excess))
            notes = (f"budget cut to the capacity at {n_cut} of {n} first rejections",)
    scale = np.divide(weight, raised, out=np.zeros(n), where=raised > 0)
    return FirstRejection(raised, scale, notes)


def run_walk(
    rule: ResiSpec,
    space: RatioSpace,
    table: Table,
    first: FirstRejection,
    n_siblings: int,
    *,
    theta: float = 0.0,
    max_work: float = np.inf,
    want_law: bool = True,
) -> Walked:
    """One walk of the paths heavier than `theta`, and its terms summed up."""
    water = rule.fill == "water"
    series = table.moments.shape[0] > 0
    accepted = new_accepted(space, n_siblings, series=series, pairs=not want_law and n_siblings > 3)
    terms = new_terms(space, water=water, cuts=theta > 0.0, series=series and not water)
    scratch = new_scratch(n_siblings)
    steps, work, complete = walk(
        space,
        table,
        n_siblings,
        first.weight,
        first.scale,
        float(theta),
        float(max_work),
        want_law,
        True if water else None,
        accepted,
        scratch,
        no_second(),
        terms,
    )
    law = sum_law(space, terms, (scratch.base + scratch.base_low)[:, 0])
    return Walked(
        accepted.mass,
        sum_accepted(space, accepted),
        accepted.lost,
        law[0],
        law[-1] if theta > 0.0 else np.zeros_like(law[0]),
        int(steps),
        float(space.n_over + work + SUM_COST * terms.work[0]),
        complete,
    )
