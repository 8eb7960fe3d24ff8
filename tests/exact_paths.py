"""The law of a verifier in exact rationals, by forking on every comparison with a coin.

A verifier is a plain function; run on Fractions and on coins that know only the interval they lie
in. A comparison that the interval leaves open splits it, and the run is repeated once for each
answer. So a coin that is used twice, or for the wrong purpose, is followed exactly.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Any


class ImpossibleTokenError(Exception):
    """A verifier emitted what is no token."""


class Forks:
    """One run's answers: those planned, then the first of each choice that is still open."""

    def __init__(self, planned: tuple[int, ...]):
        self.planned, self.taken, self.weight = planned, [], Fraction(1)
        self.pending: list[tuple[int, ...]] = []

    def choose(self, weights: list[Fraction]) -> int:
        """Pick one of the outcomes, whose probabilities are `weights`."""
        step = len(self.taken)
        if step < len(self.planned):
            choice = self.planned[step]
        else:
            possible = [i for i, weight in enumerate(weights) if weight > 0]
            choice = possible[0]
            self.pending += [(*self.taken, other) for other in possible[1:]]
        self.taken.append(choice)
        self.weight *= weights[choice]
        return choice


class Coin:
    """A number drawn uniformly from [0, 1), of which only an interval is known."""

    def __init__(self, forks: Forks):
        self.forks, self.low, self.high = forks, Fraction(0), Fraction(1)

    def __lt__(self, limit: Any) -> bool:
        if isinstance(limit, Coin):
            # what is known of two coins would no longer be a pair of intervals
            raise TypeError("compare a coin with a number: this enumeration knows intervals only")
        limit = Fraction(limit)
        if limit <= self.low or limit >= self.high:
            return limit >= self.high
        below = (limit - self.low) / (self.high - self.low)
        if self.forks.choose([below, 1 - below]) == 0:
            self.high = limit
            return True
        self.low = limit
        return False

    def __ge__(self, limit: Any) -> bool:
        return not self < limit

    # a single point has probability 0
    __le__, __gt__ = __lt__, __ge__

    def __eq__(self, other: object) -> bool:
        return self is other

    __hash__ = None  # type: ignore[assignment]


class Drawn:
    """Independent siblings, each drawn when a run first looks at it."""

    def __init__(self, forks: Forks, draft: list[Fraction], n_siblings: int):
        self.forks, self.draft = forks, draft
        self.tokens: list[int | None] = [None] * n_siblings

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, idx: int) -> int:
        token = self.tokens[idx]
        if token is None:
            token = self.tokens[idx] = self.forks.choose(self.draft)
        return token

    def __iter__(self) -> Iterator[int]:
        return (self[idx] for idx in range(len(self)))


@dataclass(frozen=True)
class PathLaw:
    """Probability of every result ``(token, accepted_idx)``; of tokens, (V,); of siblings, (K,)."""

    results: dict[tuple[Any, Any], Fraction]
    output_probs: list[Fraction]
    accepted: list[Fraction]


def path_law(
    verify: Callable[..., tuple[Any, Any]],
    target: Any,
    draft: Any,
    n_siblings: int,
    *,
    n_uniforms: int | None = None,
    siblings: Callable[..., Any] | None = None,
) -> PathLaw:
    """Enumerate a verifier forward; what it raises is passed on.

    `siblings` yields (probability, ids); without it they are independent draws from the draft.
    """
    target, draft = [Fraction(x) for x in target], [Fraction(x) for x in draft]
    drawn = None if siblings is None else list(siblings(target, draft, n_siblings))
    results: dict[tuple[Any, Any], Fraction] = {}
    todo: list[tuple[int, ...]] = [()]
    while todo:
        forks = Forks(todo.pop())
        ids: Any = Drawn(forks, draft, n_siblings)
        if drawn is not None:
            ids = drawn[forks.choose([Fraction(weight) for weight, _ in drawn])][1]
        coins = [Coin(forks) for _ in range(n_siblings + 1 if n_uniforms is None else n_uniforms)]
        result = verify(list(target), list(draft), ids, coins)
        results[result] = results.get(result, Fraction(0)) + forks.weight
        todo += forks.pending
    output, accepted = [Fraction(0)] * len(target), [Fraction(0)] * n_siblings
    for (token, accepted_idx), weight in results.items():
        if type(token) is not int or not 0 <= token < len(target):
            raise ImpossibleTokenError(f"emits {token!r}")
        output[token] += weight
        if accepted_idx is not None:
            accepted[accepted_idx] += weight
    assert sum(output) == 1
    return PathLaw(results, output, accepted)
