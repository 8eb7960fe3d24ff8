"""Recursive rejection sampling, as SpecInfer verifies several candidates."""

from dataclasses import dataclass
from typing import ClassVar

from resispec_sim.rules.base import ProbsT, ResidualRule, like, to_array


@dataclass(frozen=True)
class SpecInfer(ResidualRule):
    """Recursive rejection sampling (RRS): the residual after a rejection is ``norm((R - q)+)``.

    Whatever token was rejected, the whole draft is taken off the residual. Exact for every target
    and draft.

    References
    ----------
    Miao et al. 2024, "SpecInfer", arXiv:2305.09781; Equation 2 of arXiv:2608.24411v1.

    Examples
    --------
    >>> from fractions import Fraction as F
    >>> p, q = (F(1, 6), F(1, 3), F(1, 2)), (F(1, 2), F(1, 3), F(1, 6))
    >>> [str(r) for r in SpecInfer().residual_after(p, q, 0)]
    ['0', '0', '1']
    """

    name: ClassVar[str] = "specinfer"
    exact: ClassVar[bool] = True
    complexity: ClassVar[str] = "n V"
    path_free: ClassVar[bool] = True
    paper: ClassVar[str] = "SpecInfer, arXiv:2305.09781"

    def proxy(self, residual: ProbsT, draft: ProbsT, token: int) -> ProbsT:
        """The draft itself."""
        return like(residual, to_array(draft))
