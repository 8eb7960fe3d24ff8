"""The figures of one law: all that a replay keeps, so that a law in closed form needs no arrays."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from resispec_sim.config import ENGINE
from resispec_sim.engine.law import law_of_row
from resispec_sim.rules import PositionRule
from resispec_sim.types import Device, Method

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Figures:
    """Numbers of a law at one position; those that `resispec_sim.engine.law.Law` has mean the same.

    Attributes
    ----------
    accepted, accepted_interval : ndarray (K,), (K, 2)
    total_interval : ndarray (2,)
    accepted_here : float
        Mass that is accepted at the token that was asked for, from any sibling.
    kl, tv, tv_lower_bound : float
    kl_interval, tv_interval : ndarray (2,)
    excess_token, excess_mass : int, float
        The token whose mass in the law exceeds that in the target most, and by how much.
    method, n_paths, notes
    """

    accepted: FloatArray
    accepted_interval: FloatArray
    total_interval: FloatArray
    accepted_here: float
    kl: float
    tv: float
    tv_lower_bound: float
    kl_interval: FloatArray
    tv_interval: FloatArray
    excess_token: int
    excess_mass: float
    method: str
    n_paths: int
    notes: tuple[str, ...]


def figures_of_row(
    rule: PositionRule,
    p: FloatArray,
    q: FloatArray,
    n_siblings: int,
    *,
    token: int,
    method: Method,
    max_paths: int,
    seed: int,
    tolerance: float = ENGINE.tolerance,
    device: Device = "cpu",
) -> Figures:
    """Figures of one position; parameters as in `resispec_sim.engine.law.exact_law`, but checked."""
    if device == "cpu":
        law = law_of_row(rule, p, q, n_siblings, method, True, max_paths, seed, tolerance)
    else:
        from resispec_sim.engine.gpu.batch import laws_on_gpu

        (law,) = laws_on_gpu(
            rule,
            p[None],
            q[None],
            n_siblings,
            method=method,
            by_token=True,
            max_paths=max_paths,
            seeds=[seed],
        )
    assert law.accepted_by_token is not None
    excess = law.output_probs - p
    excess_token = int(excess.argmax())
    return Figures(
        accepted=law.accepted,
        accepted_interval=law.accepted_interval,
        total_interval=law.total_interval,
        accepted_here=float(law.accepted_by_token[:, token].sum()),
        kl=law.kl,
        tv=law.tv,
        tv_lower_bound=law.tv_lower_bound,
        kl_interval=law.kl_interval,
        tv_interval=law.tv_interval,
        excess_token=excess_token,
        excess_mass=float(excess[excess_token]),
        method=law.method,
        n_paths=law.n_paths,
        notes=law.notes,
    )
