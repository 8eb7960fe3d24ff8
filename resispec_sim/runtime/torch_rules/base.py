"""What batched rules have in common. Legend: B pairs, K siblings, V tokens."""

from abc import ABC, abstractmethod
from typing import Any

from ...rules import Rule
from .clock import Clock

State = tuple[Any, ...]


class BatchedRule(ABC):
    """A rule on a batch of pairs, tested sibling after sibling.

    A state is a tuple of arrays with B rows. Every method computes all rows, also those whose outcome
    is not wanted; the caller chooses, so nothing here waits for a value.

    Parameters
    ----------
    rule : Rule
        The options.
    target, draft : array, (B, V)
    counts : array of float, (B, 1)
        How many siblings each row has.
    n_most : int
        The largest of them, or more.
    """

    def __init__(self, rule: Rule, target: Any, draft: Any, counts: Any, n_most: int) -> None:
        self.rule: Any = rule
        self.target, self.draft = target, draft
        self.counts, self.n_most = counts, n_most

    @abstractmethod
    def start(self) -> State:
        """The state before the first sibling."""

    @abstractmethod
    def accept(self, state: State, token: Any) -> Any:
        """Probability of accepting `token` (B, 1) as the next sibling, (B, 1)."""

    @abstractmethod
    def reject(self, state: State, token: Any, clock: Clock) -> State:
        """The state once `token` (B, 1) was rejected."""

    @abstractmethod
    def residual(self, state: State) -> Any:
        """Law of what is emitted if no sibling is left, (B, V)."""

    def check(self, state: State) -> None:
        """Raise where a rejection that took place cannot be answered; most rules always can."""
        return
