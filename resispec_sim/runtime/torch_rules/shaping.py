"""Rules whose plan for a pair is made before the first sibling: exact shaping and K-SEQ."""

from typing import Any

from ...rules.formulas import (
    k_seq_residual,
    namespace,
    normalised,
    ratio_capped,
    shaped_residual,
    take,
    total,
)
from .arrays import as_type
from .base import BatchedRule, State
from .clock import Clock
from .levels import solve_factors, solve_levels


class BatchedExactShaping(BatchedRule):
    """State: ``C`` and the mass ``Z`` of the residual before the next sibling, each (B, 1).

    The residuals are functions of ``C``, so none of (B, V) is carried along.
    """

    def start(self) -> State:
        if self.rule.level is None:
            self.level = solve_levels(self.target, self.draft, self.counts, self.n_most)
        else:
            self.level = float(self.rule.level)
        mass = total(self.target)
        return 0 * mass, mass

    def accept(self, state: State, token: Any) -> Any:
        spent, mass = state
        target, draft = take(self.target, token), take(self.draft, token)
        before = shaped_residual(target, draft, spent, self.level)
        after = shaped_residual(target, draft, spent + mass, self.level)
        return ratio_capped((before - after).clip(min=0), mass * draft)

    def reject(self, state: State, token: Any, clock: Clock) -> State:
        spent = state[0] + state[1]
        return spent, total(shaped_residual(self.target, self.draft, spent, self.level))

    def residual(self, state: State) -> Any:
        left = shaped_residual(self.target, self.draft, state[0], self.level)
        return normalised(left, self.target)


class BatchedKSeq(BatchedRule):
    """No state: every sibling is tested alike."""

    def start(self) -> State:
        counts = as_type(self.counts, self.target.dtype)
        if self.rule.factor is None:
            self.factor = solve_factors(self.target, self.draft, self.counts)
        else:
            self.factor = 0 * counts + float(self.rule.factor)
        self.beta, self.rest = k_seq_residual(self.target, self.draft, self.factor, counts)
        return ()

    def accept(self, state: State, token: Any) -> Any:
        target, draft = take(self.target, token), take(self.draft, token)
        ratio = ratio_capped(target / self.factor, draft)
        return namespace(ratio).where(self.beta > 0, ratio, 0 * ratio)

    def reject(self, state: State, token: Any, clock: Clock) -> State:
        return state

    def residual(self, state: State) -> Any:
        return self.rest
