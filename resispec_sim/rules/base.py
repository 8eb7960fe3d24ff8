"""What every sequential verification rule has in common."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, fields
from fractions import Fraction
from typing import Any, ClassVar, TypeVar

import numpy as np

ProbsT = TypeVar("ProbsT", bound="Sequence[Any] | np.ndarray")
"""Probabilities of one position: a list or tuple of Fraction, or a float array, (V,)."""


@dataclass(frozen=True)
class Rule(ABC):
    """A rule that tests siblings one after another against a residual.

    Sibling ``x`` is accepted with probability ``min(1, R(x)/q(x))``, where ``R`` is the residual
    (at first the target) and ``q`` the draft. A rule says what ``R`` becomes when ``x`` is
    rejected. Rules are pure: they hold options only, draw nothing at random and never edit their
    arguments.

    Attributes
    ----------
    name : str
        The name in `resispec_sim.rules.RULES`.
    exact : bool
        Whether the emitted token follows the target for every target, draft and number of siblings.
    """

    name: ClassVar[str]
    exact: ClassVar[bool]

    @property
    def label(self) -> str:
        """Name and options, as printed in tables; `parse_rule` reads it back."""
        options = ",".join(str(getattr(self, field.name)) for field in fields(self))
        return f"{self.name}[{options}]" if options else self.name

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
        total = total_of(rest)
        return like(residual, rest / total if total > 0 else old)


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
