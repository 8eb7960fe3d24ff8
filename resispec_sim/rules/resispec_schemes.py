"""ResiSpec on the drafting schemes that its paper combines it with: Sequoia's and EAGLE's siblings."""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args

import numpy as np

from resispec_sim.errors import RuleError
from resispec_sim.rules.base import ProbsT, ResidualRule, like, to_array, without_token
from resispec_sim.rules.resispec import Fill, ResiSpec
from resispec_sim.rules.siblings import Siblings

Reading = Literal["softmax", "one-hot", "proxy"]


@dataclass(frozen=True)
class ResiSpecWor(ResidualRule):
    """ResiSpec on siblings without replacement (Sequoia + ResiSpec).

    The residual after a rejection is Algorithm 1's with the draft as it then is: renormalised off the
    tokens that were rejected. The fill matters for acceptance here, since the renormalised draft can
    reach into what the fill spread. Not exact in general.

    Parameters
    ----------
    fill : {"capacity", "water", "index"}
        As in `resispec_sim.rules.ResiSpec`; the budget is Algorithm 1's.

    References
    ----------
    arXiv:2608.24411v1, the experiments on Sequoia and Appendix C.

    Examples
    --------
    >>> p, q = np.array([0.25, 0.25, 0.5]), np.array([0.5, 0.25, 0.25])
    >>> ResiSpecWor().decide(p, q, [0, 1]).accepted
    [0.5, 0.4]
    """

    fill: Fill = "capacity"
    name: ClassVar[str] = "resispec-wor"
    exact: ClassVar[bool] = False
    siblings: ClassVar[Siblings] = "without_replacement"
    complexity: ClassVar[str] = "paths of n rejections"
    paper: ClassVar[str] = "ResiSpec on Sequoia, arXiv:2608.24411"

    def __post_init__(self) -> None:
        _check_choice(self.name, "fill", self.fill, Fill)

    def proxy(self, residual: ProbsT, draft: ProbsT, token: int) -> ProbsT:
        return ResiSpec(self.fill).proxy(residual, draft, token)

    def residual_after(self, residual: ProbsT, draft: ProbsT, token: int) -> ProbsT:
        return ResiSpec(self.fill).residual_after(residual, draft, token)


@dataclass(frozen=True)
class ResiSpecEagle(ResidualRule):
    """ResiSpec on siblings that share a parent in EAGLE's tree (EAGLE + ResiSpec).

    The paper says only that target and draft are updated as in its recurrence. Three readings:

    - ``softmax`` (default): siblings are drawn without replacement from the draft's distribution and
      verified against it; the same law as `ResiSpecWor`.
    - ``one-hot``: siblings are the draft's most probable tokens, each with draft probability 1. The
      residual is then the target off the rejected tokens for every fill: this *is* target-only, exact
      and without a gain.
    - ``proxy``: siblings as in ``softmax``, but after a rejection the proxy takes the place of the
      draft in the next test (``q <- K``).

    Parameters
    ----------
    fill : {"capacity", "water", "index"}
    reading : {"softmax", "one-hot", "proxy"}

    References
    ----------
    arXiv:2608.24411v1, Appendix C, "ResiSpec integration".

    Examples
    --------
    >>> p, q = np.array([0.25, 0.25, 0.5]), np.array([0.5, 0.25, 0.25])
    >>> ResiSpecEagle(reading="one-hot").decide(p, q, [0, 1]).accepted
    [0.25, 0.25]
    """

    fill: Fill = "capacity"
    reading: Reading = "softmax"
    name: ClassVar[str] = "resispec-eagle"
    exact: ClassVar[bool] = False
    complexity: ClassVar[str] = "paths of n rejections"
    paper: ClassVar[str] = "ResiSpec on EAGLE, arXiv:2608.24411"

    def __post_init__(self) -> None:
        _check_choice(self.name, "fill", self.fill, Fill)
        _check_choice(self.name, "reading", self.reading, Reading)

    @property
    def siblings(self) -> Siblings:  # type: ignore[override]
        """How siblings are drawn depends on the reading."""
        return "topk" if self.reading == "one-hot" else "without_replacement"

    def proxy(self, residual: ProbsT, draft: ProbsT, token: int) -> ProbsT:
        return ResiSpec(self.fill).proxy(residual, self._verified(draft, token), token)

    def residual_after(self, residual: ProbsT, draft: ProbsT, token: int) -> ProbsT:
        return ResiSpec(self.fill).residual_after(residual, self._verified(draft, token), token)

    def accept_probs(self, state: tuple[Any, ...]) -> np.ndarray:
        return state[0] if self.reading == "one-hot" else super().accept_probs(state)

    def after_rejection(self, state: tuple[Any, ...], token: int) -> tuple[Any, ...]:
        residual, draft = state
        if self.reading == "proxy":
            draft_after = to_array(self.proxy(residual, draft, token))
        else:
            draft_after = without_token(draft, token)
        return self.residual_after(residual, draft, token), draft_after

    def _verified(self, draft: ProbsT, token: int) -> ProbsT:
        """The draft that a test of `token` counts with."""
        if self.reading != "one-hot":
            return draft
        only = 0 * to_array(draft)
        only[token] = only[token] + 1
        return like(draft, only)


def _check_choice(rule: str, option: str, value: Any, kind: Any) -> None:
    if value not in get_args(kind):
        choices = ", ".join(get_args(kind))
        raise RuleError(f"{rule}: {option}={value!r} is unknown; use one of {choices}")
