"""One walk of ResiSpec's paths: what goes into the kernel and what its terms sum up to."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from resispec_sim.engine.closing import new_scratch
from resispec_sim.engine.jit import kernel
from resispec_sim.engine.nodes import no_second
from resispec_sim.engine.ratio_space import RatioSpace
from resispec_sim.engine.tail import Table
from resispec_sim.engine.terms import add_series, new_terms, sum_law
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
    n, vocab = n_siblings, space.p.size
    water = rule.fill == "water"
    accepted, lost = np.zeros(n), np.zeros(n + 1)
    acc, acc_point = np.zeros((n, space.n_over + 1, 2)), np.zeros((n, vocab))
    series = table.moments.shape[0] > 0
    acc_series = np.zeros((space.n_over + 1 if series else 0, 2))
    terms = new_terms(space, water=water, cuts=theta > 0.0, series=series and not water)
    # sibling 1 has no rejection before it: the weight is 1
    acc[0, space.n_over] = 1.0
    accepted[0] = space.prefix_p[space.n_over] + space.suffix_q[space.n_over]
    scratch = new_scratch(n)
    steps, work, complete = walk(
        space,
        table,
        n,
        first.weight,
        first.scale,
        theta,
        min(max_work, 2.0**62),
        want_law,
        water,
        accepted,
        lost,
        acc,
        acc_point,
        acc_series,
        scratch,
        no_second(),
        terms,
    )
    by_token = sum_terms(space, acc, acc_point, acc_series)
    law = sum_law(space, terms, scratch.base[:2, 0] + scratch.base[2:, 0])
    return Walked(
        accepted,
        by_token,
        lost,
        law[0],
        law[-1] if theta > 0.0 else np.zeros_like(law[0]),
        int(steps),
        float(space.n_over + work + SUM_COST * terms.work[0]),
        complete,
    )


def sum_terms(
    space: RatioSpace,
    acc: NDArray[np.float64],
    acc_point: NDArray[np.float64],
    acc_series: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Sum terms ``c min(w q, p)`` kept as counts and weighted counts at ``k(w)``; (n, V).

    The series belongs to the last sibling.
    """
    by_token = np.empty(acc_point.shape)
    _sum_terms(space, acc, acc_point, acc_series, np.zeros(2), by_token)
    return by_token


@kernel
def _sum_terms(space, acc, acc_point, acc_series, total, by_token):
    p, q = space.p, space.q
    places = acc.shape[1] - 1
    for row in range(acc.shape[0]):
        above = 0.0
        for y in range(p.size - 1, -1, -1):
            if y < places:
                above += acc[row, y + 1, 0]
            by_token[row, y] = p[y] * above + acc_point[row, y]
        weighted = 0.0
        for y in range(p.size):
            if y <= places:
                weighted += acc[row, y, 1]
            by_token[row, y] += q[y] * weighted
    if acc_series.shape[0] > 0:
        add_series(space, acc_series, 2, 2, total, by_token[-1])
