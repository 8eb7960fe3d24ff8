"""Rules that compare siblings with what the target itself samples: naive sampling and target-only."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from resispec_sim.rules.base import SequentialRule, without_token
from resispec_sim.rules.siblings import Siblings


@dataclass(frozen=True)
class _Matching(SequentialRule):
    """Accept ``x`` with probability ``R(x)``; a rejected token is struck out of ``R``.

    This is a sample of the target that is revealed only as far as the siblings ask for it.
    """

    def start(self, target: np.ndarray, draft: np.ndarray, n_siblings: int) -> tuple[Any, ...]:
        return (target,)

    def accept_probs(self, state: tuple[Any, ...]) -> np.ndarray:
        return state[0]

    def after_rejection(self, state: tuple[Any, ...], token: int) -> tuple[Any, ...]:
        return (without_token(state[0], token),)

    def last_residual(self, state: tuple[Any, ...]) -> np.ndarray:
        return state[0]


@dataclass(frozen=True)
class Nss(_Matching):
    """Naive sampling: draw ``y`` from the target, and accept it if it is among the siblings.

    Exact for every way of drawing siblings; total acceptance ``sum p (1 - (1 - q)^n)``.

    References
    ----------
    The naive baseline of Miao et al. 2024, "SpecInfer", arXiv:2305.09781.

    Examples
    --------
    >>> p, q = np.array([0.25, 0.25, 0.5]), np.array([0.5, 0.5, 0.0])
    >>> Nss().decide(p, q, [0, 0])
    Decision(accepted=[0.25, 0.0], residual=array([0.        , 0.33333333, 0.66666667]))
    """

    name: ClassVar[str] = "nss"
    exact: ClassVar[bool] = True
    complexity: ClassVar[str] = "n V"
    paper: ClassVar[str] = "SpecInfer, arXiv:2305.09781"


@dataclass(frozen=True)
class TargetOnly(_Matching):
    """Deterministic siblings, the draft's n most probable tokens, tested against the target alone.

    Accept ``x`` with probability ``R(x)``, else set ``R(x) = 0`` and renormalise. Exact, since the
    siblings are distinct and chosen without a coin; total acceptance is the target's mass on them.

    References
    ----------
    Verification of the EAGLE family, Li et al. 2024, arXiv:2401.15077 and arXiv:2406.16858.

    Examples
    --------
    >>> p, q = np.array([0.25, 0.25, 0.5]), np.array([0.5, 0.5, 0.0])
    >>> TargetOnly().decide(p, q, [0, 1]).accepted
    [0.25, 0.25]
    """

    name: ClassVar[str] = "target-only"
    exact: ClassVar[bool] = True
    siblings: ClassVar[Siblings] = "topk"
    complexity: ClassVar[str] = "n V"
    paper: ClassVar[str] = "EAGLE, arXiv:2401.15077"
