"""Recursive rejection sampling without replacement, as Sequoia and MCSD verify siblings."""

from dataclasses import dataclass
from typing import ClassVar

from resispec_sim.rules.base import ProbsT, ResidualRule, like, to_array
from resispec_sim.rules.siblings import Siblings


@dataclass(frozen=True)
class RrsWor(ResidualRule):
    """Recursive rejection sampling of siblings that are drawn without replacement.

    As `resispec_sim.rules.SpecInfer`, but after a rejection the draft is renormalised off the rejected
    tokens, which is the law of the next sibling. Where the draft has fewer tokens than siblings were
    asked for, drawing stops at its support. Exact for every target and draft.

    References
    ----------
    Chen et al. 2024, "Sequoia", arXiv:2402.12374; Yang et al. 2024, "Multi-Candidate Speculative
    Decoding", arXiv:2401.06706.

    Examples
    --------
    >>> import numpy as np
    >>> p, q = np.array([0.25, 0.25, 0.5]), np.array([0.5, 0.25, 0.25])
    >>> RrsWor().decide(p, q, [0, 1]).accepted
    [0.5, 0.0]
    """

    name: ClassVar[str] = "rrs-wor"
    exact: ClassVar[bool] = True
    siblings: ClassVar[Siblings] = "without_replacement"
    complexity: ClassVar[str] = "V for n <= 2, classes of q for n = 3, sampled beyond"
    paper: ClassVar[str] = "Sequoia, arXiv:2402.12374"

    def proxy(self, residual: ProbsT, draft: ProbsT, token: int) -> ProbsT:
        """The draft, as renormalised off the tokens that were rejected before."""
        return like(residual, to_array(draft))
