"""K-SEQ: one acceptance threshold for every sibling (SpecTr)."""

from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar

import numpy as np

from resispec_sim.errors import RuleError
from resispec_sim.rules.base import (
    SequentialRule,
    number_like,
    ratio_capped,
    total_of,
)
from resispec_sim.rules.formulas import is_k_seq_exact, k_seq_residual

EXACT_STEPS = 60
"""Bisections of the factor in rationals: it is irrational in general, and any larger one is exact."""

ROUNDING = 1e-14
"""Excess that counts as rounding in floats, where the probabilities themselves do not sum to 1."""


@dataclass(frozen=True)
class KSeq(SequentialRule):
    """Accept the first ``x`` with ``u < p/(c q)``, else sample ``norm(p - min(p/c, q) A/beta)``.

    ``beta = sum min(p/c, q)`` is the acceptance of one sibling and ``A = 1 - (1 - beta)^n`` that of
    all. The factor ``c`` is the root of ``A = c beta`` on ``[1, n]``: from there on the residual is
    nowhere negative and the rule exact, and the acceptance falls with ``c``. Where the supports are
    disjoint nothing is accepted.

    Parameters
    ----------
    factor : float, optional
        Another ``c``, at least 1, in place of the root; below the root the residual is clipped at 0
        and the rule is not exact.

    References
    ----------
    Sun et al. 2023, "SpecTr", arXiv:2310.15141.

    Examples
    --------
    >>> p, q = np.array([0.25, 0.25, 0.5]), np.array([0.5, 0.5, 0.0])
    >>> decision = KSeq().decide(p, q, [0, 1])
    >>> [round(a, 6) for a in decision.accepted], decision.residual.tolist()
    ([0.292893, 0.207107], [0.0, 0.0, 1.0])
    """

    factor: Any = None
    name: ClassVar[str] = "k-seq"
    complexity: ClassVar[str] = "V per bisection"
    path_free: ClassVar[bool] = True
    paper: ClassVar[str] = "SpecTr, arXiv:2310.15141"
    depends_on_count: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.factor is None:
            return
        try:
            factor = self.factor if isinstance(self.factor, Fraction) else float(self.factor)
        except (TypeError, ValueError):
            factor = float("nan")
        if not 1 <= factor < float("inf"):
            raise RuleError(f"k-seq: factor={self.factor!r} is not a number from 1 on")
        object.__setattr__(self, "factor", factor)

    @property
    def exact(self) -> bool:  # type: ignore[override]
        """Claimed for the root only: whether another factor lies above it depends on the position."""
        return self.factor is None

    def start(self, target: np.ndarray, draft: np.ndarray, n_siblings: int) -> tuple[Any, ...]:
        if self.factor is None:
            factor = solve_factor(target, draft, n_siblings)
        else:
            factor = number_like(self.factor, target)
        beta, residual = k_seq_residual(target, draft, factor, n_siblings)
        if not beta > 0:
            return 0 * target, target
        return ratio_capped(target / factor, draft), residual

    def accept_probs(self, state: tuple[Any, ...]) -> np.ndarray:
        return state[0]

    def after_rejection(self, state: tuple[Any, ...], token: int) -> tuple[Any, ...]:
        return state

    def last_residual(self, state: tuple[Any, ...]) -> np.ndarray:
        return state[1]


def solve_factor(target: np.ndarray, draft: np.ndarray, n_siblings: int) -> Any:
    """The root ``c`` of ``1 - (1 - beta(c))^n = c beta(c)`` on ``[1, n]``, from above.

    The left side falls with ``c`` and ``c beta = sum min(p, c q)`` rises, so bisection finds it; the
    result errs to the side on which the rule stays exact, by rounding (floats) or ``n 2^-60``.
    """

    exact = target.dtype == object
    slack = 0 if exact else ROUNDING
    low, high = (Fraction(1), Fraction(n_siblings)) if exact else (1.0, float(n_siblings))

    def is_exact(factor: Any) -> bool:
        overlap = total_of(np.minimum(target, factor * draft))
        return bool(is_k_seq_exact(overlap, factor, n_siblings, slack))

    if is_exact(low):
        return low
    for _ in range(EXACT_STEPS):
        middle = (low + high) / 2
        if not low < middle < high:
            break
        low, high = (low, middle) if is_exact(middle) else (middle, high)
    return high
