"""Single-draft rejection sampling: the rule of a chain."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from resispec_sim.rules.base import SequentialRule, normalised, ratio_capped


@dataclass(frozen=True)
class Rejection(SequentialRule):
    """Accept the first sibling with ``min(1, p/q)``, else sample ``norm((p - q)+)``.

    Further siblings are not looked at. Exact for every target and draft; with one sibling the
    acceptance ``1 - TV(p, q)`` is the optimum.

    References
    ----------
    Leviathan et al. 2023, arXiv:2211.17192; Chen et al. 2023, arXiv:2302.01318.

    Examples
    --------
    >>> p, q = np.array([0.25, 0.25, 0.5]), np.array([0.5, 0.5, 0.0])
    >>> Rejection().decide(p, q, [0, 1])
    Decision(accepted=[0.5, 0.0], residual=array([0., 0., 1.]))
    """

    name: ClassVar[str] = "rejection"
    exact: ClassVar[bool] = True
    complexity: ClassVar[str] = "V"
    path_free: ClassVar[bool] = True
    paper: ClassVar[str] = "Leviathan et al., arXiv:2211.17192"

    def start(self, target: np.ndarray, draft: np.ndarray, n_siblings: int) -> tuple[Any, ...]:
        return (
            target,
            ratio_capped(target, draft),
            normalised(np.maximum(target - draft, 0), target),
        )

    def accept_probs(self, state: tuple[Any, ...]) -> np.ndarray:
        return state[1]

    def after_rejection(self, state: tuple[Any, ...], token: int) -> tuple[Any, ...]:
        _, accept, residual = state
        return residual, 0 * accept, residual

    def last_residual(self, state: tuple[Any, ...]) -> np.ndarray:
        return state[0]
