"""A rule's law by definition: every sibling tuple, every acceptance coin, exact rationals."""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from resispec_sim.checks import check_whole
from resispec_sim.errors import DistributionError, InputError, RuleError
from resispec_sim.rules.base import PositionRule, Rule, SequentialRule, to_array
from resispec_sim.rules.siblings import next_draw, sibling_tuples


@dataclass(frozen=True)
class OracleLaw:
    """What a rule does at one position, in exact rationals.

    Attributes
    ----------
    output_probs : list of Fraction, (V,)
        The probability that the position emits each token.
    accepted : list of Fraction, (K,)
        The mass with which each sibling is the accepted one.
    accepted_by_token : list of list of Fraction, (K, V)
        The same mass split by token.
    """

    output_probs: list[Fraction]
    accepted: list[Fraction]
    accepted_by_token: list[list[Fraction]]


def enumerate_law(
    rule: Rule, target_probs: Sequence[Fraction], draft_probs: Sequence[Fraction], n_siblings: int
) -> OracleLaw:
    """Run the procedure along every path, forward, and add up what it emits.

    Siblings are drawn as the rule says; draws without replacement stop at the support of the draft.
    Paths of a sequential rule that reach the same state have the same future and are walked together.
    The cost grows as ``V**n_siblings``: this is the standard that the engine is checked against, for
    small vocabularies.

    Parameters
    ----------
    rule : Rule
        Any rule of one position.
    target_probs, draft_probs : sequence of Fraction, (V,)
        Exact distributions.
    n_siblings : int
        Number K of siblings, 0 or more.

    Raises
    ------
    DistributionError
        If the probabilities are negative or do not sum to exactly 1.
    InputError
        If the lengths differ or `n_siblings` is negative.
    RuleError
        If the rule is not one of single positions, or not defined for this number of siblings.

    Examples
    --------
    >>> from fractions import Fraction as F
    >>> from resispec_sim.rules import ResiSpec
    >>> law = enumerate_law(ResiSpec(), [F(1, 4), F(1, 4), F(1, 2)], [F(1, 2), F(1, 2), F(0)], 1)
    >>> [str(mass) for mass in law.output_probs], str(law.accepted[0])
    (['2/5', '2/5', '1/5'], '1/2')
    """
    target, draft = _check_exact(target_probs, "target"), _check_exact(draft_probs, "draft")
    vocab_size = len(target)
    if len(draft) != vocab_size:
        raise InputError(
            f"the target has {vocab_size} tokens, the draft {len(draft)}; align them first"
        )
    n_siblings = check_whole("n_siblings", n_siblings, at_least=0)
    if not isinstance(rule, PositionRule):
        raise RuleError(f"{rule.label} verifies several levels: it has no law at one position")
    rule.check_count(n_siblings)
    tally = _Tally(n_siblings, vocab_size)
    p, q = to_array(target), to_array(draft)
    if isinstance(rule, SequentialRule):
        _walk_states(rule, p, q, n_siblings, tally)
    else:
        _walk_tuples(rule, p, q, n_siblings, tally)
    return OracleLaw(
        tally.output_probs,
        [sum(row, Fraction(0)) for row in tally.accepted_by_token],
        tally.accepted_by_token,
    )


class _Tally:
    """Emitted mass by token, and accepted mass by sibling and token."""

    def __init__(self, n_siblings: int, vocab_size: int) -> None:
        self.output_probs = [Fraction(0)] * vocab_size
        self.accepted_by_token = [[Fraction(0)] * vocab_size for _ in range(n_siblings)]

    def accept(self, i: int, token: int, mass: Fraction) -> None:
        self.accepted_by_token[i][token] += mass
        self.output_probs[token] += mass

    def emit(self, residual: np.ndarray, mass: Fraction) -> None:
        if mass:
            for token, prob in enumerate(residual):
                self.output_probs[token] += mass * prob


def _walk_states(
    rule: SequentialRule, target: np.ndarray, draft: np.ndarray, n_siblings: int, tally: _Tally
) -> None:
    state = rule.start(target, draft, n_siblings)
    reached: dict[Any, tuple[Any, tuple[int, ...], Fraction]] = {(): (state, (), Fraction(1))}
    for i in range(n_siblings):
        rejected: dict[Any, tuple[Any, tuple[int, ...], Fraction]] = {}
        for state, drawn, weight in reached.values():
            law = next_draw(rule.siblings, draft, drawn)
            if law is None:
                tally.emit(rule.last_residual(state), weight)
                continue
            accept_probs = rule.accept_probs(state)
            for token in np.flatnonzero(law > 0).tolist():
                mass, accept = weight * law[token], accept_probs[token]
                tally.accept(i, token, mass * accept)
                if accept >= 1:
                    continue
                after = rule.after_rejection(state, token)
                # independent draws do not look back
                tokens = () if rule.siblings == "iid" else tuple(sorted((*drawn, token)))
                key = _freeze(after), tokens
                seen = rejected[key][2] if key in rejected else Fraction(0)
                rejected[key] = after, tokens, seen + mass * (1 - accept)
        reached = rejected
    for state, _, weight in reached.values():
        tally.emit(rule.last_residual(state), weight)


def _walk_tuples(
    rule: PositionRule, target: np.ndarray, draft: np.ndarray, n_siblings: int, tally: _Tally
) -> None:
    for weight, siblings in sibling_tuples(rule.siblings, draft, n_siblings):
        decision = rule.decide(target, draft, siblings)
        for i, (token, accept) in enumerate(zip(siblings, decision.accepted, strict=True)):
            tally.accept(i, token, weight * accept)
        tally.emit(decision.residual, weight * (1 - sum(decision.accepted)))


def _freeze(state: Any) -> Any:
    """A hashable twin of a state."""
    if isinstance(state, tuple):
        return tuple(_freeze(item) for item in state)
    return tuple(state.tolist()) if isinstance(state, np.ndarray) else state


def _check_exact(probs: Sequence[Fraction], name: str) -> tuple[Fraction, ...]:
    exact = tuple(Fraction(prob) for prob in probs)
    if sum(exact) != 1 or min(exact) < 0:
        raise DistributionError(
            f"{name} probabilities sum to {sum(exact)}, the least is {min(exact, default=0)}; the "
            "oracle needs exact distributions: give Fractions that sum to 1"
        )
    return exact
