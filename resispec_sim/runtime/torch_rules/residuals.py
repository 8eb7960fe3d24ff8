"""Rules that carry a residual (and a draft) from one sibling to the next."""

from typing import Any

from ...errors import InfeasibleBudgetError
from ...rules.formulas import (
    filled,
    filled_to_level,
    kept_below,
    namespace,
    normalised,
    ratio_capped,
    smallest_ratio,
    take,
    total,
)
from ...rules.resispec import ROUNDING
from .arrays import put
from .base import BatchedRule, State
from .clock import Clock


class BatchedSpecInfer(BatchedRule):
    """``norm((R - q)+)`` after a rejection."""

    def start(self) -> State:
        return self.target, self.draft

    def accept(self, state: State, token: Any) -> Any:
        residual, draft = state[:2]
        return ratio_capped(take(residual, token), take(draft, token))

    def reject(self, state: State, token: Any, clock: Clock) -> State:
        residual, draft = state
        return normalised((residual - draft).clip(min=0), residual), draft

    def residual(self, state: State) -> Any:
        return state[0]


class BatchedRrsWor(BatchedSpecInfer):
    """The same, with the draft renormalised off the rejected tokens."""

    def reject(self, state: State, token: Any, clock: Clock) -> State:
        residual, draft = super().reject(state, token, clock)
        return residual, without(draft, token)


class BatchedRejection(BatchedSpecInfer):
    """The first sibling alone is tested."""

    def start(self) -> State:
        return *super().start(), 1 + 0 * total(self.target)

    def accept(self, state: State, token: Any) -> Any:
        return super().accept(state, token) * state[2]

    def reject(self, state: State, token: Any, clock: Clock) -> State:
        residual, draft, is_first = state
        xp, rest = namespace(residual), super().reject((residual, draft), token, clock)[0]
        return xp.where(is_first > 0, rest, residual), draft, 0 * is_first


class BatchedTargetOnly(BatchedSpecInfer):
    """``R(x)`` accepts, and a rejected token is struck out: target-only, and naive sampling."""

    def accept(self, state: State, token: Any) -> Any:
        return take(state[0], token).clip(max=1)

    def reject(self, state: State, token: Any, clock: Clock) -> State:
        residual, draft = state
        return normalised(put(residual, token, 0.0), residual), draft


class BatchedResiSpec(BatchedSpecInfer):
    """``r / Z`` after a rejection. State: residual, draft, whether a budget was infeasible."""

    budget = "minimal"

    def start(self) -> State:
        if self.budget != "applied":
            return super().start()
        return *super().start(), self.counts < 0

    def reject(self, state: State, token: Any, clock: Clock) -> State:
        residual, draft = state[:2]
        xp, fill = namespace(residual), self.rule.fill
        with clock.phase("budgeting"):
            mass, infeasible = self._mass(residual, draft, token)
            capacity = put(residual, token, 0.0)
            kept = capacity if fill == "water" else kept_below(capacity, draft, mass)
        with clock.phase("redistribution"):
            if fill == "water":
                kept = filled_to_level(capacity, draft, mass)
            else:
                kept = filled(capacity, kept, mass, fill)
        with clock.phase("proxy"):
            # nothing off the token: only rounding lets it be rejected then
            some = (total(kept) > 0) & (mass > 0)
            after = xp.where(some, kept / xp.where(some, mass, 1), residual)
            draft_after = self._draft_after(residual, draft, kept, token)
        if self.budget != "applied":
            return after, draft_after
        return after, draft_after, state[2] | infeasible

    def _mass(self, residual: Any, draft: Any, token: Any) -> tuple[Any, Any]:
        """The budget ``Z`` (B, 1), and where it exceeds the mass off the token."""
        xp, rejected = namespace(residual), take(residual, token)
        least = take(draft, token) - rejected
        if self.budget == "minimal":
            return least, None
        available = total(residual) - rejected
        wanted = xp.maximum(smallest_ratio(residual, draft), least)
        slack = rounding_of(residual, ROUNDING)
        return xp.minimum(wanted, available), wanted > available * (1 + slack)

    def _draft_after(self, residual: Any, draft: Any, kept: Any, token: Any) -> Any:
        return draft

    def check(self, state: State) -> None:
        if self.budget != "applied":
            return
        if bool(state[2].any()):
            row = int(namespace(state[0]).argmax(1 * state[2][:, 0], -1))
            raise InfeasibleBudgetError(
                f"row {row}: budget 'applied' asks for more than the residual off the rejected "
                "token; use budget=clipped or budget=minimal"
            )


class BatchedResiSpecIid(BatchedResiSpec):
    """ResiSpec on i.i.d. siblings, with its budgets."""

    @property
    def budget(self) -> str:  # type: ignore[override]
        """As the rule says; the other schemes have Algorithm 1's."""
        return str(self.rule.budget)


class BatchedResiSpecWor(BatchedResiSpec):
    """ResiSpec on siblings without replacement: the draft is renormalised off the rejected tokens."""

    def _draft_after(self, residual: Any, draft: Any, kept: Any, token: Any) -> Any:
        return without(draft, token)


class BatchedResiSpecProxy(BatchedResiSpec):
    """The reading in which the proxy ``K`` takes the place of the draft."""

    def _draft_after(self, residual: Any, draft: Any, kept: Any, token: Any) -> Any:
        return put(residual - kept, token, take(draft, token))


def without(probs: Any, token: Any) -> Any:
    """``probs`` given that the token is another one; all 0 where there is no other."""
    rest = put(probs, token, 0.0)
    return normalised(rest, rest)


def rounding_of(values: Any, in_float64: float) -> float:
    """What counts as rounding in the type of `values`, given what does in float64."""
    xp = namespace(values)
    return float(in_float64 * xp.finfo(values.dtype).eps / xp.finfo(xp.float64).eps)
