"""One walk of ResiSpec's paths: what goes into the kernel and what its terms sum up to."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from resispec_sim.engine.ratio_space import RatioSpace
from resispec_sim.engine.terms import new_terms, sum_law
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
    steps: int
    work: float  # path-steps and what else they cost, in path-steps
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
    first: FirstRejection,
    n_siblings: int,
    *,
    theta: float = 0.0,
    max_steps: float = np.inf,
    want_law: bool = True,
) -> Walked:
    """One walk of the paths heavier than `theta`, and its terms summed up."""
    n, vocab = n_siblings, space.p.size
    accepted, lost = np.zeros(n), np.zeros(n + 1)
    acc_cnt, acc_cw = np.zeros((n, vocab + 1)), np.zeros((n, vocab + 1))
    acc_point = np.zeros((n, vocab))
    terms = new_terms(vocab)
    # sibling 1 has no rejection before it: the weight is 1
    acc_cnt[0, space.n_over] = acc_cw[0, space.n_over] = 1.0
    accepted[0] = np.minimum(space.p, space.q).sum()
    steps, base0, base1, complete = walk(
        space,
        n,
        first.weight,
        first.scale,
        theta,
        min(max_steps, 2.0**62),
        want_law,
        rule.fill == "water",
        accepted,
        lost,
        acc_cnt,
        acc_cw,
        acc_point,
        terms,
    )
    by_token = sum_terms(space, acc_cnt, acc_cw) + acc_point
    work = float(space.n_over + steps + SUM_COST * terms.work[0])
    law = sum_law(space, terms, (base0, base1))
    return Walked(
        accepted, by_token, lost, law[0], law[1], space.n_over + int(steps), work, complete
    )


def sum_terms(
    space: RatioSpace, cnt: NDArray[np.float64], cw: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Sum terms ``c min(w q, p)`` kept as counts and weighted counts at ``k(w)``; (..., V)."""
    above = np.cumsum(cnt[..., ::-1], axis=-1)[..., ::-1][..., 1:]
    return space.p * above + space.q * np.cumsum(cw, axis=-1)[..., :-1]
