"""Exact residual shaping: accept less early, keep mass where the draft is, and stay exact."""

from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar

import numpy as np

from resispec_sim.errors import RuleError
from resispec_sim.rules.base import (
    SequentialRule,
    normalised,
    number_like,
    ratio_capped,
    total_of,
)
from resispec_sim.rules.formulas import shaped_residual, total, unspent

EXACT_STEPS = 24
"""Bisections in rationals before the last piece of a piecewise linear equation is tried."""

ROUNDING = 2e-15
"""What counts as rounding per sibling: in floats the probabilities themselves do not sum to 1."""


@dataclass(frozen=True, eq=False)
class Plan:
    """The unnormalised residuals ``r_0 = p, r_1, .., r_n`` of `ExactShaping`, each (V,)."""

    residuals: tuple[np.ndarray, ...]
    draft: np.ndarray


@dataclass(frozen=True)
class ExactShaping(SequentialRule):
    r"""The exact rule with the largest acceptance of all that decide on one sibling after another.

    With ``m(c) = sum min(p, c q)``, ``g = 1 - m``, a number ``S`` in ``[1, n]`` and ``C_1 = 1``,
    ``C_{i+1} = C_i + Z_i``, the residuals are ``r_0 = p`` and

        r_i = max(p - C_i q, min(p, (S - C_i)+ q)),   Z_i = sum r_i;

    sibling ``x`` at place ``i`` is accepted with probability ``(r_{i-1} - r_i)(x) / (Z_{i-1} q(x))``,
    and after the last rejection a token of ``r_n / Z_n`` is emitted. ``S = 1`` is recursive rejection
    sampling. By default ``S`` is the number that meets itself: ``C_n = S``.

    **Exact, for every S.** ``r_i`` falls as ``C_i`` grows, by at most ``q`` per unit, and ``C_i`` grew
    by ``Z_{i-1}``; so ``0 <= r_{i-1} - r_i <= Z_{i-1} q`` and the acceptance is a probability. If the
    procedure reaches test ``i`` with probability ``Z_{i-1}`` (true for ``i = 1``, ``Z_0 = 1``), it
    accepts ``x`` there with mass ``Z_{i-1} q(x) (r_{i-1} - r_i)(x) / (Z_{i-1} q(x))``, which is
    ``(r_{i-1} - r_i)(x)``, and goes on with probability ``Z_i``. The masses of all tests and ``r_n``
    telescope to ``r_0 = p``. Where ``q(x) = 0`` the difference is 0 too.

    **Optimal.** Take any exact rule that decides on siblings in order, for good, before it looks at
    the next; it may use what it rejected, and coins. Let ``r_i(x)`` be the probability that the first
    ``i`` siblings are rejected and ``x`` is emitted, ``Z_i`` its sum. Sibling ``i`` is independent of
    what came before, so ``0 <= r_{i-1} - r_i <= Z_{i-1} q``. With ``C_i = Z_0 + .. + Z_{i-1}``,
    ``S = C_n`` and ``T_i = S - C_i`` this gives

    (a) ``r_n >= p - S q``, hence ``Z_n >= g(S)``;
    (b) ``r_i <= min(p, r_n + T_i q) <= r_n + min(p, T_i q)``, hence ``T_i - T_{i+1} = Z_i <= Z_n +
        m(T_i)`` for ``0 < i < n``, with ``T_1 = S - 1`` and ``T_n = 0``.

    Let ``S*`` solve ``T*_1 = S* - 1``, ``T*_{i+1} = T*_i - m(T*_i) - g(S*)``, ``T*_n = 0``. Suppose
    ``Z_n < g(S*)``. By (a) ``g(S) < g(S*)``, so ``S > S*`` and ``T_1 > T*_1``. The function ``T -
    m(T)`` never falls, since ``m`` rises by at most ``sum q = 1`` per unit; so (b) carries ``T_i >
    T*_i`` over to ``T_{i+1}``, and ``T_n > T*_n = 0`` contradicts ``T_n = 0``. So no such rule has a
    larger acceptance than ``m(S*)``, which the residuals above attain: at ``S = S*`` they have
    ``Z_i = g(S*) + m(S* - C_i)``, and ``r_n = (p - S* q)+``.

    Parameters
    ----------
    level : float, optional
        Another ``S``, at least 1, in place of the one that meets itself; exact all the same.

    References
    ----------
    Derived here; the aim is that of arXiv:2608.24411, without its bias. For i.i.d. siblings it lies
    between K-SEQ (arXiv:2310.15141) and the optimal transport.

    Examples
    --------
    >>> F = Fraction
    >>> p, q = (np.array([F(w, 6) for w in row]) for row in ((1, 2, 3), (3, 2, 1)))
    >>> str(solve_level(p, q, 2))
    '7/4'
    >>> [str(a) for a in ExactShaping().decide(p, q, [2, 2]).accepted]
    ['1', '0']
    """

    level: Any = None
    name: ClassVar[str] = "exact-shaping"
    exact: ClassVar[bool] = True
    complexity: ClassVar[str] = "n V per bisection"
    path_free: ClassVar[bool] = True
    paper: ClassVar[str] = "resispec-sim"
    depends_on_count: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.level is None:
            return
        try:
            level = self.level if isinstance(self.level, Fraction) else float(self.level)
        except (TypeError, ValueError):
            level = float("nan")
        if not 1 <= level < float("inf"):
            raise RuleError(f"exact-shaping: level={self.level!r} is not a number from 1 on")
        object.__setattr__(self, "level", level)

    def start(self, target: np.ndarray, draft: np.ndarray, n_siblings: int) -> tuple[Any, ...]:
        if self.level is None:
            level = solve_level(target, draft, n_siblings)
        else:
            level = number_like(self.level, target)
        return 0, Plan(shaped_residuals(target, draft, n_siblings, level), draft)

    def accept_probs(self, state: tuple[Any, ...]) -> np.ndarray:
        i, plan = state
        before, after = plan.residuals[i], plan.residuals[i + 1]
        drop = np.maximum(before - after, 0)
        return ratio_capped(drop, total_of(before) * plan.draft)

    def after_rejection(self, state: tuple[Any, ...], token: int) -> tuple[Any, ...]:
        return state[0] + 1, state[1]

    def last_residual(self, state: tuple[Any, ...]) -> np.ndarray:
        i, plan = state
        return normalised(plan.residuals[i], plan.residuals[0])


def shaped_residuals(
    target: np.ndarray, draft: np.ndarray, n_siblings: int, level: Any
) -> tuple[np.ndarray, ...]:
    """``r_0 .. r_n`` for a given ``S``, each step with the mass that the one before really left."""
    residuals = [target]
    spent = 0 * total(target)
    for _ in range(n_siblings):
        spent = spent + total(residuals[-1])
        residuals.append(shaped_residual(target, draft, spent, level))
    return tuple(residuals)


def solve_level(target: np.ndarray, draft: np.ndarray, n_siblings: int) -> Any:
    """The least ``S`` with ``C_n = S``: to rounding in floats, and exactly in rationals.

    ``C_n`` is 1 + Z_1 + .. + Z_{n-1}; what it leaves of ``S`` never falls as ``S`` grows and is
    piecewise linear, so it is bracketed by bisection and, in rationals, solved on its last piece. It
    may be 0 on an interval; the least ``S`` accepts earliest.
    """

    def overlap(scale: Any) -> Any:
        return total_of(np.minimum(target, scale * draft)) if scale > 0 else 0

    def left(level: Any) -> Any:
        *_, rest = unspent(level, overlap, n_siblings)
        return rest

    exact = target.dtype == object
    low, high = (Fraction(1), Fraction(n_siblings)) if exact else (1.0, float(n_siblings))
    least = 0 if exact else -ROUNDING * n_siblings
    at_low = left(low)
    if at_low >= least:
        return low
    earlier: Any = None
    for step in range(200):
        middle = (low + high) / 2
        if not low < middle < high:
            break
        at_middle = left(middle)
        if at_middle >= least:
            high = middle
        else:
            earlier, low, at_low = (low, at_low), middle, at_middle
        if exact and step >= EXACT_STEPS and earlier is not None and at_low > earlier[1]:
            # from two points below the root, so that the first of several zeros is met
            root = low + at_low * (low - earlier[0]) / (earlier[1] - at_low)
            if low < root <= high and left(root) == 0:
                return root
    return high
