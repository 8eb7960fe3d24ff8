"""What verification rules have in common: their kinds, and arithmetic on floats and rationals alike."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, fields
from fractions import Fraction
from typing import Any, ClassVar, NamedTuple, TypeVar

import numpy as np

from resispec_sim.errors import RuleError
from resispec_sim.rules import formulas
from resispec_sim.rules.formulas import normalised
from resispec_sim.rules.siblings import Siblings

ProbsT = TypeVar("ProbsT", bound="Sequence[Any] | np.ndarray")
"""Probabilities of one position: a list or tuple of Fraction, or a float array, (V,)."""


@dataclass(frozen=True)
class Rule(ABC):
    """A verification rule. Rules are pure: they hold options only, draw nothing, edit nothing.

    Attributes
    ----------
    name : str
        The name in `resispec_sim.rules.RULES`.
    exact : bool
        Whether the emitted tokens follow the target for every target, draft and number of siblings.
    siblings : str
        How siblings are drawn: ``"iid"``, ``"without_replacement"``, ``"topk"``, ``"hub"``; or
        ``"chain"`` and ``"tree"`` for rules that verify several levels at once.
    complexity : str
        Cost of the law at one position, in V tokens and n siblings.
    paper : str
        Where the rule was published.
    only_count : int or None
        The one number of siblings that the rule is defined for, if there is only one.
    depends_on_count : bool
        Whether the acceptance of a sibling depends on how many come after it.
    """

    name: ClassVar[str]
    exact: ClassVar[bool]
    siblings: ClassVar[Siblings] = "iid"
    complexity: ClassVar[str] = "n V^n"
    paper: ClassVar[str] = ""
    only_count: ClassVar[int | None] = None
    depends_on_count: ClassVar[bool] = False

    @property
    def label(self) -> str:
        """Name and options, as printed in tables; `parse_rule` reads it back.

        Options that are None stand for the rule's own choice and are left out.
        """
        values = [getattr(self, field.name) for field in fields(self)]
        options = ",".join(str(value) for value in values if value is not None)
        return f"{self.name}[{options}]" if options else self.name

    def check_count(self, n_siblings: int) -> None:
        """Refuse a number of siblings that the rule is not defined for (`RuleError`)."""
        if self.only_count is not None and n_siblings != self.only_count:
            raise RuleError(
                f"{self.label} is defined for {self.only_count} siblings, not {n_siblings}"
            )


class Decision(NamedTuple):
    """What a rule does with given siblings: K probabilities of acceptance, and what follows else."""

    accepted: list[Any]  # (K,) probability that sibling i is the accepted one
    residual: np.ndarray  # (V,) law of the token that is emitted if none is


@dataclass(frozen=True)
class PositionRule(Rule):
    """A rule that verifies the siblings of one position."""

    @abstractmethod
    def decide(self, target: np.ndarray, draft: np.ndarray, siblings: Sequence[int]) -> Decision:
        """Acceptance of each of the drawn siblings, and the law of what is emitted else.

        Parameters
        ----------
        target, draft : ndarray of float or of Fraction, (V,)
            Probabilities, as `to_array` makes them.
        siblings : sequence of int, (K,)
            Token ids in order of drawing; fewer than asked for where the draft has no more.
        """


@dataclass(frozen=True)
class SequentialRule(PositionRule):
    """A rule that tests siblings one after another and carries a state from one to the next.

    To define a rule of your own, derive from this class: every law, bound and report then works for
    it. A state is a tuple of arrays, numbers and other hashable values; nothing may edit it.

    Attributes
    ----------
    path_free : bool
        Whether the state after a rejection is the same whatever token was rejected; its law then
        takes one path instead of all of them.
    """

    path_free: ClassVar[bool] = False

    @abstractmethod
    def start(self, target: np.ndarray, draft: np.ndarray, n_siblings: int) -> tuple[Any, ...]:
        """The state before the first of `n_siblings` siblings is tested."""

    @abstractmethod
    def accept_probs(self, state: tuple[Any, ...]) -> np.ndarray:
        """Probability of accepting each token if it is the next sibling, (V,), in [0, 1].

        Only the entries of tokens that can be drawn count.
        """

    @abstractmethod
    def after_rejection(self, state: tuple[Any, ...], token: int) -> tuple[Any, ...]:
        """The state once `token` was rejected; asked for only where that has positive probability."""

    @abstractmethod
    def last_residual(self, state: tuple[Any, ...]) -> np.ndarray:
        """Law of the token that is emitted if no sibling is left, (V,)."""

    def decide(self, target: np.ndarray, draft: np.ndarray, siblings: Sequence[int]) -> Decision:
        state = self.start(target, draft, len(siblings))
        accepted: list[Any] = []
        reach: Any = 1
        for token in siblings:
            accept = plain(self.accept_probs(state)[token])
            accepted.append(reach * accept)
            reach = reach * (1 - accept)
            if reach <= 0:
                accepted += [0 * reach] * (len(siblings) - len(accepted))
                break
            state = self.after_rejection(state, token)
        return Decision(accepted, self.last_residual(state))


@dataclass(frozen=True)
class ResidualRule(SequentialRule):
    """Sibling ``x`` is accepted with probability ``min(1, R(x)/q(x))``; a rejection changes ``R``.

    ``R`` is the residual (at first the target) and ``q`` the draft. The state is ``(R, q)``.
    """

    @abstractmethod
    def proxy(self, residual: ProbsT, draft: ProbsT, token: int) -> ProbsT:
        """The density ``K`` that is taken off the residual when `token` is rejected.

        Parameters
        ----------
        residual, draft : sequence of Fraction or ndarray of float, (V,)
            Probabilities. Integers count as exact.
        token : int
            The rejected sibling; ``draft[token] > residual[token]``.

        Returns
        -------
        same kind as `residual`, (V,)
        """

    def residual_after(self, residual: ProbsT, draft: ProbsT, token: int) -> ProbsT:
        """The residual that follows the rejection of `token`: ``norm((R - K)+)``.

        Parameters and returned kind are those of `proxy`. Where nothing is left (only rounding
        lets a rule reject then) the residual stays as it is.
        """
        old = to_array(residual)
        rest = np.maximum(old - to_array(self.proxy(residual, draft, token)), 0)
        return like(residual, normalised(rest, old))

    def start(self, target: np.ndarray, draft: np.ndarray, n_siblings: int) -> tuple[Any, ...]:
        return target, draft

    def accept_probs(self, state: tuple[Any, ...]) -> np.ndarray:
        residual, draft = state
        return ratio_capped(residual, draft)

    def after_rejection(self, state: tuple[Any, ...], token: int) -> tuple[Any, ...]:
        residual, draft = state
        return self.residual_after(residual, draft, token), self.draft_after(draft, token)

    def draft_after(self, draft: np.ndarray, token: int) -> np.ndarray:
        """The law of the next sibling once `token` was drawn."""
        return without_token(draft, token) if self.siblings == "without_replacement" else draft

    def last_residual(self, state: tuple[Any, ...]) -> np.ndarray:
        return state[0]


def to_array(values: Sequence[Any] | np.ndarray) -> np.ndarray:
    """Copy probabilities to float64, or to an object array of Fraction when they are exact.

    numpy's elementwise functions serve both, so a formula is written once for floats and rationals.
    """
    if isinstance(values, np.ndarray) and values.dtype != object:
        return values.astype(np.float64)
    if all(isinstance(value, int | Fraction) for value in values):
        exact = np.empty(len(values), dtype=object)
        # plain integers would turn exact divisions into floats
        exact[:] = [Fraction(value) for value in values]
        return exact
    return np.array([float(value) for value in values], dtype=np.float64)


def like(template: ProbsT, values: np.ndarray) -> ProbsT:
    """Return `values` as the kind of sequence that `template` is."""
    if isinstance(template, np.ndarray):
        return values  # type: ignore[return-value]
    return type(template)(values.tolist())  # type: ignore[call-arg]


def total_of(values: np.ndarray) -> Any:
    """Sum of a float or Fraction array; an empty exact sum is 0."""
    return values.sum() if values.dtype != object else sum(values.tolist(), Fraction(0))


def ratio_capped(top: np.ndarray, bottom: np.ndarray) -> np.ndarray:
    """``min(1, top / bottom)``, and 1 where ``bottom`` is 0: such a token is never drawn."""
    ratio = formulas.ratio_capped(top, bottom)
    return to_array(ratio) if ratio.dtype == object else ratio


def without_token(probs: np.ndarray, token: int) -> np.ndarray:
    """``probs`` given that the token is another one; all 0 where there is no other."""
    rest = probs.copy()
    rest[token] = 0 * rest[token]  # stays a Fraction where it is one
    return normalised(rest, rest)


def plain(value: Any) -> Any:
    """A numpy number as Python's own; anything else as it is."""
    return value.item() if isinstance(value, np.generic) else value


def number_like(value: Any, template: np.ndarray) -> Any:
    """A number as a Fraction where the array is exact, else as a float."""
    return Fraction(value) if template.dtype == object else float(value)
