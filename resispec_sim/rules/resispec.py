"""ResiSpec: a rejected sibling leaves a residual that is kept close to the draft."""

from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar, Literal, NamedTuple, get_args

import numpy as np

from resispec_sim.errors import InfeasibleBudgetError, InputError, RuleError
from resispec_sim.rules.base import ProbsT, ResidualRule, like, to_array, total_of
from resispec_sim.rules.formulas import filled, filled_to_level, kept_below, smallest_ratio

Fill = Literal["capacity", "water", "index"]
Budget = Literal["minimal", "applied", "clipped"]

ROUNDING = 1e-12
"""Relative excess of a float budget over the mass available that counts as rounding."""


class ResidualMass(NamedTuple):
    """The mass ``Z`` that a rejection keeps, and whether `ResiSpec` had to cut it."""

    mass: Any
    clipped: bool


@dataclass(frozen=True)
class ResiSpec(ResidualRule):
    """Residual shaping (Algorithm 1): the residual after a rejection is ``r / Z``.

    With ``x0`` the rejected token, ``R`` the residual and ``q`` the draft, ``r(x) = min(Z q(x),
    R(x))`` for ``x != x0`` and ``r(x0) = 0``; the deficit ``D = Z - sum r`` is spread over the
    room ``R - r`` off ``x0``. The proxy is ``K = R - r`` off ``x0`` and ``K(x0) = q(x0)``. The
    paper leaves two things open; both are options.

    The rule is **not** exact in general: its law is the target for ``V = 2`` and for ``p = q``,
    and with the fills "capacity" and "water" also for ``p = q(.|S)``, for disjoint supports, and
    for one over-estimated token with the target proportional to the draft elsewhere. The
    acceptance is the same for every fill.

    Parameters
    ----------
    fill : {"capacity", "water", "index"}
        How the deficit is spread: in proportion to the room; by raising one level ``r = min(t q,
        R)``, what is left then going to tokens with ``q = 0`` in proportion to ``R``; or in token
        order.
    budget : {"minimal", "applied", "clipped"}
        ``Z``: "minimal" is ``q(x0) - R(x0)`` (Algorithm 1); "applied" is
        ``max(min_{q>0} R/q, q(x0) - R(x0))`` (Equation 13), which may exceed the mass off ``x0``
        and may leave a proxy that sums to less than 1; "clipped" is "applied" cut to the mass off
        ``x0``.

    Raises
    ------
    RuleError
        If an option has another value.

    References
    ----------
    arXiv:2608.24411v1, Algorithm 1 and Equations 13 and 17.

    Examples
    --------
    >>> from fractions import Fraction as F
    >>> p, q = (F(1, 4), F(1, 4), F(1, 2)), (F(1, 2), F(1, 2), F(0))
    >>> [str(r) for r in ResiSpec().residual_after(p, q, 0)]
    ['0', '3/5', '2/5']
    >>> [str(r) for r in ResiSpec(fill="water").residual_after(p, q, 0)]
    ['0', '1', '0']
    """

    fill: Fill = "capacity"
    budget: Budget = "minimal"
    name: ClassVar[str] = "resispec"
    exact: ClassVar[bool] = False
    complexity: ClassVar[str] = "paths of n rejections"
    paper: ClassVar[str] = "ResiSpec, arXiv:2608.24411"

    def __post_init__(self) -> None:
        for option, kind in (("fill", Fill), ("budget", Budget)):
            value = getattr(self, option)
            if value not in get_args(kind):
                choices = ", ".join(get_args(kind))
                raise RuleError(f"resispec: {option}={value!r} is unknown; use one of {choices}")

    def residual_mass(self, residual: ProbsT, draft: ProbsT, token: int) -> ResidualMass:
        """The budget ``Z`` of the rejection of `token`.

        Raises
        ------
        InputError
            If `token` cannot be rejected: ``draft[token] <= residual[token]``.
        InfeasibleBudgetError
            If ``Z`` exceeds the mass off `token` (budget "applied" only).

        Examples
        --------
        >>> ResiSpec(budget="clipped").residual_mass([0.4, 0.6], [0.5, 0.5], 0)
        ResidualMass(mass=0.6, clipped=True)
        """
        mass, clipped = self._residual_mass(to_array(residual), to_array(draft), token)
        return ResidualMass(mass if isinstance(mass, Fraction) else float(mass), clipped)

    def proxy(self, residual: ProbsT, draft: ProbsT, token: int) -> ProbsT:
        """GetProxy: ``K = R - r`` off `token`, ``K(token) = q(token)``; see `ResidualRule.proxy`."""
        old, drafted = to_array(residual), to_array(draft)
        kept, _ = self._keep(old, drafted, token)
        density = old - kept
        density[token] = drafted[token]
        return like(residual, density)

    def residual_after(self, residual: ProbsT, draft: ProbsT, token: int) -> ProbsT:
        """The residual ``r / Z`` that follows the rejection of `token`; see `ResidualRule.residual_after`.

        This is ``norm((R - K)+)`` without the cancellation of ``R - (R - r)``.
        """
        old = to_array(residual)
        kept, mass = self._keep(old, to_array(draft), token)
        # nothing off the token: only rounding lets it be rejected then
        return like(residual, kept / mass if (kept > 0).any() else old)

    def _keep(self, residual: np.ndarray, draft: np.ndarray, token: int) -> tuple[np.ndarray, Any]:
        """The kept mass ``r`` per token, and its sum ``Z``."""
        mass, _ = self._residual_mass(residual, draft, token)
        capacity = residual.copy()
        capacity[token] = 0 * capacity[token]  # stays a Fraction where it is one
        if self.fill == "water":
            return filled_to_level(capacity, draft, mass), mass
        return filled(capacity, kept_below(capacity, draft, mass), mass, self.fill), mass

    def _residual_mass(
        self, residual: np.ndarray, draft: np.ndarray, token: int
    ) -> tuple[Any, bool]:
        least = draft[token] - residual[token]
        if not least > 0:
            raise InputError(
                f"token {token} cannot be rejected: its draft probability {draft[token]} does not "
                f"exceed its residual {residual[token]}; ask only for tokens that can be refused"
            )
        if self.budget == "minimal":
            return least, False
        ratio = smallest_ratio(residual, draft)[0]
        mass = max(ratio, least)
        available = total_of(residual) - residual[token]
        slack = 0 if isinstance(mass, Fraction) else ROUNDING
        if mass <= available * (1 + slack):
            return min(mass, available), False
        if self.budget == "clipped":
            return available, True
        raise InfeasibleBudgetError(
            f"budget 'applied' asks for Z = {mass} after the rejection of token {token}, but the "
            f"residual off that token is only {available}; use budget=clipped or budget=minimal"
        )
