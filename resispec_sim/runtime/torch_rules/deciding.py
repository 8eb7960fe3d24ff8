"""What a rule does with the siblings of a batch of nodes. Legend: B nodes, K siblings, V tokens."""

from typing import Any, NamedTuple

from ...errors import InputError, RuleError
from ...rules import RULES, ResiSpecEagle, Rule, parse_rule
from ...rules.formulas import namespace, total
from .arrays import to_float64
from .base import BatchedRule
from .clock import Clock, NoClock
from .residuals import (
    BatchedRejection,
    BatchedResiSpecIid,
    BatchedResiSpecProxy,
    BatchedResiSpecWor,
    BatchedRrsWor,
    BatchedSpecInfer,
    BatchedTargetOnly,
)
from .shaping import BatchedExactShaping, BatchedKSeq

BATCHED: dict[str, type[BatchedRule]] = {
    "rejection": BatchedRejection,
    "specinfer": BatchedSpecInfer,
    "resispec": BatchedResiSpecIid,
    "rrs-wor": BatchedRrsWor,
    "k-seq": BatchedKSeq,
    "nss": BatchedTargetOnly,
    "target-only": BatchedTargetOnly,
    "exact-shaping": BatchedExactShaping,
    "resispec-wor": BatchedResiSpecWor,
    "resispec-eagle": BatchedResiSpecWor,
}
"""Batched rules by name."""

READINGS: dict[str, type[BatchedRule]] = {
    "softmax": BatchedResiSpecWor,
    "one-hot": BatchedTargetOnly,  # whatever the fill
    "proxy": BatchedResiSpecProxy,
}
"""The readings of `resispec_sim.rules.ResiSpecEagle`."""


class Decision(NamedTuple):
    """What a rule does at each node.

    Attributes
    ----------
    accept : array, (B, K)
        Probability that sibling i is accepted given that those before it were rejected; 0 where there
        is no sibling, or where an earlier one is accepted for certain.
    residual : array, (B, V)
        Law of the token that is emitted if none is.
    """

    accept: Any
    residual: Any


def supported(rule: str | Rule) -> bool:
    """Whether `decide` knows a rule.

    Examples
    --------
    >>> supported("resispec:fill=water"), supported("block")
    (True, False)
    """
    rule = parse_rule(rule)
    return type(rule) is RULES.get(rule.name) and rule.name in BATCHED


def decide(
    rule: str | Rule, target: Any, draft: Any, siblings: Any, *, clock: Clock | None = None
) -> Decision:
    """Acceptance of every sibling, and the law of what is emitted else, for a batch of nodes.

    The formulas are those of `resispec_sim.rules`; the result is that of a rule's ``decide``, as
    conditional probabilities. All of it is computed where the arrays are, with no value waited for
    (one exception: the budget "applied" is checked at the end, since it can be infeasible).

    Parameters
    ----------
    rule : str or Rule
        See `supported`.
    target, draft : array of float32 or float64, (B, V)
        Probabilities, of torch (or numpy), on one device. Not modified. Their type is computed in.
    siblings : array of int64, (B, K)
        Token ids in order of drawing; -1 where there is none, which leaves everything as it is.
    clock : Clock, optional
        Times the parts of ResiSpec's shaping; see `PHASES`.

    Raises
    ------
    RuleError
        If the rule has no batched form.
    InputError
        If the shapes or types do not belong together.
    InfeasibleBudgetError
        Where a rejection asks for more mass than there is (budget "applied" only).

    Examples
    --------
    >>> import numpy as np
    >>> p, q = np.array([[0.25, 0.25, 0.5]]), np.array([[0.5, 0.5, 0.0]])
    >>> decision = decide("resispec", p, q, np.array([[0, 1]]))
    >>> decision.accept.tolist(), decision.residual.round(6).tolist()
    ([[0.5, 1.0]], [[0.0, 0.6, 0.4]])
    """
    rule = parse_rule(rule)
    kind = _batched(rule)
    check_nodes(target, draft, siblings)
    xp, clock = namespace(target), clock if clock is not None else NoClock()
    n_siblings = siblings.shape[1]
    batch = kind(rule, target, draft, to_float64(total(siblings >= 0)), n_siblings)
    state = batch.start()
    reached = siblings[:, :0].sum(-1)[:, None] == 0
    accepts = [0 * target[:, :0]]
    for place in range(n_siblings):
        token = siblings[:, place : place + 1]
        tested = reached & (token >= 0)
        token = token.clip(min=0)
        accept = batch.accept(state, token)
        accepts.append(xp.where(tested, accept, 0 * accept))
        rejected = tested & (accept < 1)
        reached = reached & (rejected | ~tested)
        after = batch.reject(state, token, clock)
        state = tuple(
            old if new is old else xp.where(rejected, new, old)
            for new, old in zip(after, state, strict=True)
        )
    batch.check(state)
    return Decision(xp.concatenate(accepts, -1), batch.residual(state))


def _batched(rule: Rule) -> type[BatchedRule]:
    if not supported(rule):
        raise RuleError(f"{rule.label} has no batched form; use one of {', '.join(BATCHED)}")
    return READINGS[rule.reading] if isinstance(rule, ResiSpecEagle) else BATCHED[rule.name]


def check_nodes(target: Any, draft: Any, siblings: Any) -> None:
    """Refuse shapes and types that do not belong together (`InputError`); no value is looked at."""
    shapes = tuple(tuple(array.shape) for array in (target, draft, siblings))
    if len(shapes[0]) != 2 or shapes[0] != shapes[1] or shapes[0][1] == 0:
        raise InputError(
            f"target {shapes[0]} and draft {shapes[1]} must both be (B, V): align the vocabularies"
        )
    if len(shapes[2]) != 2 or shapes[2][0] != shapes[0][0]:
        raise InputError(f"siblings {shapes[2]} must be (B, K) with B = {shapes[0][0]}")
    xp = namespace(target)
    if target.dtype != draft.dtype or target.dtype not in (xp.float32, xp.float64):
        raise InputError(
            f"target is {target.dtype}, draft {draft.dtype}: both must be float32 or both float64"
        )
    if siblings.dtype != xp.int64:
        raise InputError(f"siblings are {siblings.dtype}: they must be int64")
